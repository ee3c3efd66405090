/* See reach.h. reach_ask.c has the asking of one peer. */
#include "node/reach/reach.h"

#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lookup.h"
#include "base/log.h"
#include "base/number.h"
#include "base/thread.h"
#include "dht/directory/directory_list.h"
#include "net/pool.h"
#include "node/reach/reach_ask.h"

enum {
    WANTED = 2,         /* answers */
    MAX_CANDIDATES = 4, /* asked until there are so many answers */
    SHARDS_AT_ONCE = 4, /* of the list of nodes, to find candidates in: a large swarm's is long */

    GRACE_MS = 10000, /* before it is said that there is nobody to ask */
    POLL_MS = 500,    /* how often it is looked, without network, whether a peer has come */
    LIST_MS = 2000,
    RESOLVE_MS = 3000,
    NAME_ADDRESSES = 8, /* of one announced name */
    SELF_MS = 3000,

    AGAIN_MS = 10000, /* after a check that did not go well, and how it grows */
    AGAIN_MAX_MS = 10 * 60 * 1000,
    AGAIN_WELL_MS = 30 * 60 * 1000, /* what is well may change: addresses, firewalls */
};

struct candidate {
    struct pool_target target;
    char name[16];
};

struct reach {
    struct reach_config config;
    struct thread thread;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct endpoint endpoints[ANNOUNCE_MAX];
    size_t endpoint_count;
    unsigned news; /* grows whenever something else is announced */
    struct diagnosis diagnosis;
};

/* --- waiting ------------------------------------------------------------------------------- */

static bool is_closing(struct reach *r)
{
    pthread_mutex_lock(&r->lock);
    bool closing = r->closing;
    pthread_mutex_unlock(&r->lock);
    return closing;
}

/* --- what is known of the announced endpoints ---------------------------------------------- */

/* A socket can be bound to the addresses of this machine only. */
static bool is_local(const struct address *address)
{
    struct address any_port = *address;
    int fd = socket(address->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    address_set_port(&any_port, 0);
    bool local = fd >= 0 && bind(fd, (const struct sockaddr *)&any_port.sa, any_port.len) == 0;
    if (fd >= 0)
        close(fd);
    return local;
}

struct question {
    struct reach *reach;
    bool answered; /* guarded by reach's lock, as the result is */
    struct lookup_answer result;
};

static void on_looked_up(void *arg, const struct lookup_answer *result)
{
    struct question *q = arg;

    pthread_mutex_lock(&q->reach->lock);
    q->result = *result;
    q->answered = true;
    pthread_cond_broadcast(&q->reach->changed);
    pthread_mutex_unlock(&q->reach->lock);
}

/* The addresses of a name; without blocking longer than it should. */
static size_t resolve(struct reach *r, const struct endpoint *e, struct address *out, size_t cap)
{
    struct question q = {.reach = r};
    struct lookup *lookup;
    uint64_t deadline = clock_deadline_us(RESOLVE_MS);
    size_t count = 0;

    if (lookup_start(e, false, on_looked_up, &q, &lookup, NULL) != SKEP_OK)
        return 0;
    pthread_mutex_lock(&r->lock);
    while (!r->closing && !q.answered && cond_wait_until(&r->changed, &r->lock, deadline))
        continue;
    pthread_mutex_unlock(&r->lock);
    lookup_end(lookup);
    for (size_t i = 0; q.answered && q.result.status == SKEP_OK && i < q.result.count && i < cap;
         i++)
        out[count++] = q.result.addresses[i];
    return count;
}

static bool same_host(const struct address *a, const struct address *b)
{
    struct endpoint x, y;

    endpoint_from_address(&x, (const struct sockaddr *)&a->sa);
    endpoint_from_address(&y, (const struct sockaddr *)&b->sa);
    return strcmp(x.host, y.host) == 0;
}

/* One check. */
struct check {
    struct reach *reach;
    struct pool *pool;
    struct endpoint endpoints[ANNOUNCE_MAX];
    size_t endpoint_count;
    struct address addresses[ANNOUNCE_MAX * NAME_ADDRESSES];
    size_t address_count;
    struct candidate candidates[MAX_CANDIDATES];
    size_t candidate_count;
    struct diagnosis_answer answers[WANTED];
    size_t answered_by[WANTED]; /* index of the candidate */
    size_t answer_count;
    char failure[256]; /* of who could not be asked last */
};

static void find_addresses(struct check *c)
{
    for (size_t i = 0; i < c->endpoint_count; i++) {
        struct address *at = &c->addresses[c->address_count];
        if (endpoint_to_address(&c->endpoints[i], at))
            c->address_count++;
        else
            c->address_count += resolve(c->reach, &c->endpoints[i], at, NAME_ADDRESSES);
    }
}

static bool is_announced(const struct check *c, const struct endpoint *e)
{
    struct address address;

    if (!endpoint_to_address(e, &address))
        return false;
    for (size_t i = 0; i < c->address_count; i++)
        if (same_host(&address, &c->addresses[i]))
            return true;
    return false;
}

/* --- whom to ask --------------------------------------------------------------------------- */

/* A neighbour on this machine, or behind the same router, sees nothing of a firewall. */
static bool is_neighbour(const struct check *c, const struct record_node *node)
{
    for (size_t i = 0; i < node->endpoint_count; i++)
        if (is_announced(c, &node->endpoints[i]))
            return true;
    return false;
}

static void add_candidate(struct check *c, const struct record *record)
{
    const struct record_node *node = &record->node;
    bool loopback = swarm_record(c->reach->config.swarm)->loopback; /* all are neighbours */
    struct candidate *candidate;

    if (c->candidate_count == MAX_CANDIDATES || (!loopback && is_neighbour(c, node)))
        return;
    candidate = &c->candidates[c->candidate_count++];
    candidate->target = (struct pool_target){.has_peer_id = true, .no_loopback = !loopback};
    candidate->target.aes_gcm = (node->features & RECORD_FEATURE_AES_GCM) != 0;
    memcpy(candidate->target.peer_id, record->peer_id, PEER_ID_BYTES);
    for (size_t i = 0; i < node->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        candidate->target.endpoints[candidate->target.endpoint_count++] = node->endpoints[i];
    peer_id_short(record->peer_id, candidate->name);
}

static void shuffle(void *items, size_t count, size_t size)
{
    uint8_t *p = items;
    uint8_t spare[sizeof(struct record)];

    for (size_t i = count; i > 1; i--) {
        size_t k = randombytes_uniform((uint32_t)i);
        memcpy(spare, p + k * size, size);
        memmove(p + k * size, p + (i - 1) * size, size);
        memcpy(p + (i - 1) * size, spare, size);
    }
}

/* Reads the list of nodes, from anywhere in it, until there are enough of them. */
static void find_candidates(struct check *c)
{
    struct swarm *swarm = c->reach->config.swarm;
    uint8_t keys[RECORD_SHARDS * RECORD_KEY_BYTES];
    struct record_list list;
    struct skep_error err;

    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        record_key_nodes_shard(swarm_record(swarm), i, keys + i * RECORD_KEY_BYTES);
    shuffle(keys, RECORD_SHARDS, RECORD_KEY_BYTES);
    for (unsigned i = 0; i < RECORD_SHARDS && c->candidate_count < WANTED; i += SHARDS_AT_ONCE) {
        if (is_closing(c->reach))
            return;
        const struct list_question question = {RECORD_NODE, keys + i * RECORD_KEY_BYTES,
                                               SHARDS_AT_ONCE, true};
        if (directory_list(swarm_directory(swarm), &question, clock_deadline_us(LIST_MS), &list,
                           &err) != SKEP_OK)
            continue;
        shuffle(list.items, list.count, sizeof(*list.items));
        for (size_t k = 0; k < list.count; k++)
            add_candidate(c, &list.items[k]);
        record_list_free(&list);
    }
}

/* --- asking -------------------------------------------------------------------------------- */

static uint16_t visible_dht_port(const struct check *c)
{
    struct endpoint seen;
    bool v6 = strchr(c->endpoints[0].host, ':') != NULL;

    /* A router may show it under another port. */
    if (runner_public_address(swarm_runner(c->reach->config.swarm), v6, &seen) && seen.port != 0)
        return seen.port;
    return c->reach->config.dht_port;
}

static void take_answer(struct check *c, size_t candidate, const struct reach_answer *got,
                        uint16_t dht_port)
{
    struct diagnosis_answer *a = &c->answers[c->answer_count];
    struct address address;

    if (got->status != SKEP_OK) {
        snprintf(c->failure, sizeof(c->failure), "%s", got->message);
        return;
    }
    *a = (struct diagnosis_answer){.dialled = got->dialled,
                                   .tcp = got->reachable,
                                   .dht_port = dht_port,
                                   .is_announced = is_announced(c, &got->dialled),
                                   .is_private = diagnosis_is_private(&got->dialled)};
    if (got->has_dht)
        a->dht = got->dht_reachable ? DIAGNOSIS_DHT_ANSWERS : DIAGNOSIS_DHT_SILENT;
    a->is_local = endpoint_to_address(&got->dialled, &address) && is_local(&address);
    snprintf(a->peer, sizeof(a->peer), "%s", c->candidates[candidate].name);
    snprintf(a->why, sizeof(a->why), "%s", got->message);
    c->answered_by[c->answer_count++] = candidate;
}

static struct reach_waiter waiter_of(struct reach *r)
{
    return (struct reach_waiter){&r->lock, &r->changed, &r->closing};
}

/* Asks two at once, and others in place of those that do not answer. */
static void ask_around(struct check *c)
{
    const struct reach_waiter waiter = waiter_of(c->reach);
    uint16_t dht_port = visible_dht_port(c);
    size_t next = 0;

    while (c->answer_count < WANTED && next < c->candidate_count && !is_closing(c->reach)) {
        const struct pool_target *targets[WANTED];
        struct reach_answer got[WANTED];
        size_t first = next;
        size_t n = 0;

        while (n + c->answer_count < WANTED && next < c->candidate_count)
            targets[n++] = &c->candidates[next++].target;
        reach_ask(&waiter, c->pool, targets, n, c->endpoints[0].port, dht_port, got);
        for (size_t i = 0; i < n; i++)
            take_answer(c, first + i, &got[i], dht_port);
    }
}

/* If the announced port differs from ours and is not reachable: is ours? */
static void ask_for_bound(struct check *c)
{
    const struct reach_waiter waiter = waiter_of(c->reach);
    uint16_t bound = c->reach->config.bound.port;

    for (size_t i = 0; i < c->answer_count && !is_closing(c->reach); i++) {
        const struct pool_target *target = &c->candidates[c->answered_by[i]].target;
        struct reach_answer got;

        if (c->answers[i].tcp || c->endpoints[0].port == bound)
            continue;
        reach_ask(&waiter, c->pool, &target, 1, bound, 0, &got);
        c->answers[i].tried_bound = got.status == SKEP_OK;
        c->answers[i].bound_tcp = got.status == SKEP_OK && got.reachable;
    }
}

static void judge(struct check *c, struct diagnosis *out)
{
    const struct reach_waiter waiter = waiter_of(c->reach);
    struct diagnosis_evidence evidence = {
        .announced = c->endpoints[0],
        .bound = c->reach->config.bound,
        .by_hand = c->reach->config.by_hand,
        .resolves = c->address_count > 0,
    };
    bool seen = false;

    for (size_t i = 0; i < c->address_count; i++) {
        struct endpoint e;
        endpoint_from_address(&e, (const struct sockaddr *)&c->addresses[i].sa);
        evidence.is_private |= diagnosis_is_private(&e);
        evidence.is_local |= is_local(&c->addresses[i]);
    }
    for (size_t i = 0; i < c->answer_count; i++)
        seen |= c->answers[i].is_announced;
    if (!seen && evidence.resolves)
        evidence.leads_here =
            reach_dial_self(&waiter, c->pool, swarm_identity(c->reach->config.swarm)->peer_id,
                            &c->endpoints[0], SELF_MS);
    diagnosis_reach(&evidence, c->answers, c->answer_count, out);
}

/* --- one check ----------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void unchecked(struct diagnosis *out,
                                                            const char *format, ...)
{
    va_list args;

    out->state = SKEP_REACH_UNCHECKED;
    va_start(args, format);
    number_vprint(out->message, sizeof(out->message), format, args);
    va_end(args);
}

static void say_nobody(const struct check *c, struct diagnosis *out)
{
    const struct reach_config *config = &c->reach->config;

    if (swarm_peer_count(config->swarm) == 0 && config->joins)
        unchecked(out,
                  "could not check: no DHT peer answers. If --initial-peers are right and up, a "
                  "firewall blocks inbound UDP: open UDP port %u, or choose one that is open with "
                  "--dht-listen",
                  (unsigned)config->dht_port);
    else if (swarm_peer_count(config->swarm) == 0)
        unchecked(out, "could not check: nobody has joined yet");
    else if (c->endpoint_count == 0)
        unchecked(
            out,
            "could not check: nothing is announced, so nobody finds this node: no peer sees it "
            "at an address that others could use (who joins by 127.0.0.1 sees it there); give "
            "--announce, or let peers join by another address of this machine");
    else if (c->candidate_count == 0)
        unchecked(out, "could not check: the swarm has no other node%s yet",
                  swarm_record(config->swarm)->loopback ? "" : " at another address");
    else
        unchecked(out, "could not check: none of %zu nodes could be asked: %s", c->candidate_count,
                  c->failure);
}

static bool make_pool(struct check *c, struct skep_error *err)
{
    const struct reach_config *config = &c->reach->config;
    struct pool_config pool = {
        .identity = swarm_identity(config->swarm),
        .psk = config->psk,
        .plaintext = config->plaintext,
        .swarm = config->swarm_name,
        .limits = session_default_limits,
        .max_connections = MAX_CANDIDATES + 1,
        .connect_timeout_ms = SELF_MS,
        .idle_timeout_ms = SELF_MS,
    };

    return pool_new(&pool, &c->pool, err) == SKEP_OK;
}

static void run_check(struct check *c, struct diagnosis *out)
{
    struct skep_error err;

    find_addresses(c);
    if (c->endpoint_count > 0 && swarm_peer_count(c->reach->config.swarm) > 0)
        find_candidates(c);
    if (c->candidate_count > 0) {
        if (!make_pool(c, &err)) {
            unchecked(out, "could not check: %s", err.message);
            return;
        }
        ask_around(c);
        ask_for_bound(c);
    }
    if (c->answer_count > 0)
        judge(c, out);
    else
        say_nobody(c, out);
    pool_free(c->pool);
}

static void take_outcome(struct reach *r, const struct diagnosis *v)
{
    pthread_mutex_lock(&r->lock);
    bool is_new = v->state != r->diagnosis.state;
    r->diagnosis = *v;
    pthread_mutex_unlock(&r->lock);
    if (!is_new)
        log_debug("reachability: %s", v->message);
    else if (v->state == SKEP_REACH_REACHABLE || v->state == SKEP_REACH_UNCHECKED)
        log_info("reachability: %s", v->message);
    else
        log_warn("reachability: %s", v->message);
}

/* Looks now. Returns false if it was closed meanwhile. */
static bool check(struct reach *r, struct diagnosis *v)
{
    struct check *c = mem_calloc(1, sizeof(*c));
    *v = (struct diagnosis){0};

    if (c == NULL) {
        unchecked(v, "could not check: memory is short");
    } else {
        c->reach = r;
        pthread_mutex_lock(&r->lock);
        memcpy(c->endpoints, r->endpoints, sizeof(c->endpoints));
        c->endpoint_count = r->endpoint_count;
        pthread_mutex_unlock(&r->lock);
        run_check(c, v);
        mem_free(c);
    }
    if (is_closing(r))
        return false;
    take_outcome(r, v);
    return true;
}

/* --- the thread ---------------------------------------------------------------------------- */

/* Waits until there is somebody to ask and something to ask about, but not for ever. */
static void wait_for_peers(struct reach *r)
{
    uint64_t until = clock_deadline_us(GRACE_MS);

    pthread_mutex_lock(&r->lock);
    while (!r->closing && clock_mono_us() < until &&
           (r->endpoint_count == 0 || swarm_peer_count(r->config.swarm) == 0))
        cond_wait_until(&r->changed, &r->lock, clock_deadline_us(POLL_MS));
    pthread_mutex_unlock(&r->lock);
}

/* Until the time, or news: something else is announced, or the first peer has come. */
static void wait_for_news(struct reach *r, uint64_t until_us, unsigned known, bool alone)
{
    pthread_mutex_lock(&r->lock);
    while (!r->closing && r->news == known && clock_mono_us() < until_us &&
           !(alone && r->endpoint_count > 0 && swarm_peer_count(r->config.swarm) > 0)) {
        uint64_t poll_us = clock_deadline_us(POLL_MS);
        cond_wait_until(&r->changed, &r->lock, alone && poll_us < until_us ? poll_us : until_us);
    }
    pthread_mutex_unlock(&r->lock);
}

static void run(void *arg)
{
    struct reach *r = arg;
    struct diagnosis v;
    uint64_t again_ms = AGAIN_MS;

    wait_for_peers(r);
    for (;;) {
        pthread_mutex_lock(&r->lock);
        unsigned known = r->news;
        bool alone = r->endpoint_count == 0;
        pthread_mutex_unlock(&r->lock);
        alone |= swarm_peer_count(r->config.swarm) == 0;

        if (is_closing(r) || !check(r, &v))
            return;
        uint64_t pause_ms = v.state == SKEP_REACH_REACHABLE ? AGAIN_WELL_MS : again_ms;
        again_ms = v.state == SKEP_REACH_REACHABLE ? AGAIN_MS : again_ms * 2;
        if (again_ms > AGAIN_MAX_MS)
            again_ms = AGAIN_MAX_MS;
        pause_ms += randombytes_uniform((uint32_t)(pause_ms / 10)); /* not all nodes at once */
        wait_for_news(r, clock_deadline_us(pause_ms), known, alone);
    }
}

/* --- making and ending --------------------------------------------------------------------- */

static void take_endpoints(struct reach *r, const struct endpoint *endpoints, size_t count)
{
    r->endpoint_count = count < ANNOUNCE_MAX ? count : ANNOUNCE_MAX;
    if (r->endpoint_count > 0)
        memcpy(r->endpoints, endpoints, r->endpoint_count * sizeof(*endpoints));
}

skep_status reach_new(const struct reach_config *config, const struct endpoint *endpoints,
                      size_t count, struct reach **out, struct skep_error *err)
{
    struct reach *r = mem_calloc(1, sizeof(*r));

    *out = NULL;
    if (r == NULL)
        return error_no_memory(err, "reachability", sizeof(*r));
    r->config = *config;
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    take_endpoints(r, endpoints, count);
    skep_status rc = thread_start(&r->thread, "skep-reach", run, r, err);
    if (rc == SKEP_OK)
        *out = r;
    else
        reach_free(r);
    return rc;
}

void reach_announce(struct reach *r, const struct endpoint *endpoints, size_t count)
{
    pthread_mutex_lock(&r->lock);
    bool same = count == r->endpoint_count;
    for (size_t i = 0; same && i < count; i++)
        same = endpoint_equal(&endpoints[i], &r->endpoints[i]);
    if (!same) {
        take_endpoints(r, endpoints, count);
        r->news++;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
}

void reach_result(struct reach *r, struct diagnosis *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->diagnosis;
    pthread_mutex_unlock(&r->lock);
}

void reach_close(struct reach *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void reach_free(struct reach *r)
{
    if (r == NULL)
        return;
    reach_close(r);
    thread_join(&r->thread);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
