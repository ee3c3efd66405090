/*
 * The handler's thread: rounds of publishing, retries, and the goodbye at the end.
 *
 * A round goes out at once, dated by our clock; the look for records of an earlier run goes out
 * beside it, not before it, because with dead nodes near a key it takes seconds. If it finds newer
 * ones (our clock was set back), another round follows at once with higher seqs.
 */
#include "dht/publish/handler.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/publish/publication.h"

enum {
    DEFAULT_PERIOD_S = 30,
    /* A record's lifetime is twice the period, and no node stores what lives over an hour. */
    MAX_PERIOD_S = RECORD_MAX_LIFETIME_S / 2,
    MIN_LIFETIME_S = 60,
    ROUND_MS = 10 * 1000, /* least time a round may take */
    RETRY_FIRST_MS = 1000,
    /* After the first round among peers: while a network forms, some puts land on nodes that are
     * not the closest to their key (1% of them, all at once among 128 new peers), and nobody finds
     * them before the next round. */
    SECOND_ROUND_MS = 5 * 1000,
    RETRIES_QUIET = 3,       /* before it counts as trouble that nothing is published */
    LOOK_FOR_PEERS_MS = 200, /* while there are none */
    OWN_LOOKUP_MS = 10 * 1000,
    /* Keys looked at for records of our own: in the first round, and in the later ones, where they
     * tell whether what we publish arrives or is held to be older than what is there. */
    FIRST_SAMPLE_KEYS = 64,
    SAMPLE_KEYS = 8,
    VERSION_BYTES = 32,
    FAILED_LOG_MS = 60 * 1000,
};

/* An expert to take in at the next turn. */
struct newcomer {
    struct newcomer *next;
    char uid[UID_BYTES];
    char cls[32];
    uint8_t schema_digest[16];
};

struct handler {
    struct swarm *swarm;
    struct publication *publication; /* the thread's alone */
    uint32_t period_s;
    uint32_t features;
    char version[VERSION_BYTES];
    struct publication_source source;
    void (*published)(void *arg);
    struct thread thread;
    uint64_t issued_seq;  /* the thread's alone */
    unsigned retries;     /* the same: since the last round without failures */
    size_t samples;       /* the same: looks for records of our own */
    unsigned among_peers; /* the same: full rounds since there are peers, up to 2 */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct newcomer *newcomers; /* owned */
    bool closing;
    uint64_t closing_deadline_us;
    bool refresh;
    bool first_round_ended;
    bool declaring;        /* a declare is under way */
    bool looking_up;       /* for records of our own */
    uint64_t own_sequence; /* the highest found */
    struct handler_stats stats;
};

/* ---- callbacks, on the directory's thread ---- */

static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct handler *h = arg;

    (void)declarations;
    (void)count;
    pthread_mutex_lock(&h->lock);
    h->declaring = false;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void on_own(void *arg, uint64_t highest_seq)
{
    struct handler *h = arg;

    pthread_mutex_lock(&h->lock);
    h->own_sequence = highest_seq;
    h->looking_up = false;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* ---- rounds ---- */

static uint32_t lifetime_s(const struct handler *h)
{
    uint32_t lifetime = 2 * h->period_s;

    return lifetime > MIN_LIFETIME_S ? lifetime : MIN_LIFETIME_S;
}

/* Copies the endpoints into `endpoints`, which the state refers to. */
static void read_state(struct handler *h, enum publication_scope scope,
                       struct endpoint endpoints[static RECORD_MAX_ENDPOINTS],
                       struct publication_state *out)
{
    pthread_mutex_lock(&h->lock);
    memcpy(endpoints, h->endpoints, sizeof(h->endpoints));
    size_t count = h->endpoint_count;
    pthread_mutex_unlock(&h->lock);
    *out = (struct publication_state){
        .scope = scope,
        .endpoints = endpoints,
        .endpoint_count = count,
        .features = h->features,
        .version = h->version,
        .now_s = directory_now_ms(swarm_directory(h->swarm)) / 1000,
        .lifetime_s = lifetime_s(h),
        .clock_skew_s = swarm_record(h->swarm)->clock_skew_s,
    };
}

/* Waits for the declare to end; a shutdown cuts it short. */
static void wait_declared(struct handler *h, const struct declaration *declarations)
{
    bool cut = false;

    pthread_mutex_lock(&h->lock);
    while (h->declaring) {
        if (h->closing && !cut) {
            cut = true;
            pthread_mutex_unlock(&h->lock);
            directory_declare_cancel(swarm_directory(h->swarm), declarations);
            pthread_mutex_lock(&h->lock);
            continue;
        }
        pthread_cond_wait(&h->changed, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

/* Declares and waits. Returns how many failed. */
static size_t declare(struct handler *h, struct declaration *declarations, size_t count,
                      uint64_t deadline_us, bool can_be_cut)
{
    struct skep_error err = {0};

    pthread_mutex_lock(&h->lock);
    h->declaring = true;
    pthread_mutex_unlock(&h->lock);
    skep_status rc = directory_declare(swarm_directory(h->swarm), declarations, count, deadline_us,
                                       on_declared, h, &err);
    if (rc != SKEP_OK) {
        log_warn("handler: %s", err.message);
        for (size_t i = 0; i < count; i++)
            declarations[i].outcome = rc;
        on_declared(h, declarations, count);
    }
    if (can_be_cut) {
        wait_declared(h, declarations);
    } else {
        pthread_mutex_lock(&h->lock);
        while (h->declaring)
            pthread_cond_wait(&h->changed, &h->lock);
        pthread_mutex_unlock(&h->lock);
    }
    return publication_note(h->publication, &h->issued_seq);
}

/* Not of a round that a shutdown has cut short: nothing is tried again, nothing is wrong. */
static void log_failed(struct handler *h, size_t failed, const struct declaration *declarations,
                       size_t count)
{
    static struct log_gate gate;
    unsigned long suppressed;

    pthread_mutex_lock(&h->lock);
    bool closing = h->closing;
    pthread_mutex_unlock(&h->lock);
    if (failed == 0 || closing || !log_gate_open(&gate, FAILED_LOG_MS, &suppressed))
        return;
    for (size_t i = 0; i < count; i++)
        if (declarations[i].outcome != SKEP_OK) {
            /* At first it is a peer that has left just now, such as a client at its end. */
            LOG_AT(h->retries < RETRIES_QUIET ? SKEP_LOG_INFO : SKEP_LOG_WARNING,
                   "DHT: %zu of %zu records have not reached a peer yet (%s); trying again", failed,
                   count, skep_status_text(declarations[i].outcome));
            return;
        }
}

static void note_round(struct handler *h, size_t count, size_t failed, bool has_peers)
{
    pthread_mutex_lock(&h->lock);
    h->stats.rounds++;
    h->stats.failed_rounds += failed > 0;
    h->stats.records_published += count - failed;
    h->stats.records_failed += failed;
    h->stats.reachable_peers = has_peers;
    if (failed == 0 && count > 0)
        h->stats.last_success_unix_s = clock_wall_ms() / 1000;
    h->first_round_ended = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* Our own experts, for lookups of this process. */
static void tell_directory(struct handler *h, const struct publication_state *state)
{
    const struct record_expert *locals;
    struct skep_error err = {0};
    size_t n = publication_update(h->publication, &h->source, state, &locals);

    if (directory_set_local(swarm_directory(h->swarm), locals, n, &err) != SKEP_OK)
        log_warn("handler: %s", err.message);
}

/* Returns how many records failed. */
static size_t publish(struct handler *h, enum publication_scope scope)
{
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct publication_state state;
    struct declaration *declarations;
    size_t count = 0, failed = 0;
    bool has_peers = swarm_peer_count(h->swarm) > 0;

    read_state(h, scope, endpoints, &state);
    tell_directory(h, &state);
    if (state.endpoint_count > 0)
        count = publication_round(h->publication, &state, &declarations);
    if (count > 0) {
        uint32_t limit_ms = h->period_s * 1000;
        failed = declare(h, declarations, count,
                         clock_deadline_us(limit_ms > ROUND_MS ? limit_ms : ROUND_MS), true);
        if (has_peers)
            log_failed(h, failed, declarations, count);
    }
    note_round(h, count > 0 ? count - publication_notifications(h->publication) : 0, failed,
               has_peers);
    return failed;
}

static void free_newcomers(struct newcomer *list)
{
    while (list != NULL) {
        struct newcomer *next = list->next;

        mem_free(list);
        list = next;
    }
}

/* Takes in the experts that were added since the last turn; if memory is short, the next one. */
static void take_newcomers(struct handler *h)
{
    struct handler_expert *more = NULL;
    struct publication *extended = NULL;
    struct skep_error err = {0};
    size_t count = 0;
    skep_status rc;

    pthread_mutex_lock(&h->lock);
    struct newcomer *list = h->newcomers;
    h->newcomers = NULL;
    pthread_mutex_unlock(&h->lock);
    for (const struct newcomer *n = list; n != NULL; n = n->next)
        count++;
    if (count == 0)
        return;
    more = mem_calloc(count, sizeof(*more));
    rc = more == NULL ? error_no_memory(&err, "experts", count * sizeof(*more)) : SKEP_OK;
    count = 0;
    for (const struct newcomer *n = list; n != NULL && more != NULL; n = n->next) {
        more[count] = (struct handler_expert){.uid = n->uid, .cls = n->cls};
        memcpy(more[count++].schema_digest, n->schema_digest, sizeof(n->schema_digest));
    }
    if (rc == SKEP_OK)
        rc = publication_extend(h->publication, swarm_identity(h->swarm), more, count, &extended,
                                &err);
    mem_free(more);
    if (rc == SKEP_OK) {
        publication_free(h->publication);
        h->publication = extended;
        free_newcomers(list);
        return;
    }
    log_warn("handler: %zu new expert%s not published yet: %s", count, count == 1 ? "" : "s",
             err.message);
    pthread_mutex_lock(&h->lock);
    struct newcomer **last = &list;
    while (*last != NULL)
        last = &(*last)->next;
    *last = h->newcomers;
    h->newcomers = list;
    pthread_mutex_unlock(&h->lock);
}

static void withdraw(struct handler *h)
{
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct publication_state state;
    struct declaration *declarations;

    if (directory_set_local(swarm_directory(h->swarm), NULL, 0, NULL) != SKEP_OK)
        log_debug("handler: own experts stay known to this process");
    read_state(h, PUBLISH_OFFLINE, endpoints, &state);
    if (state.endpoint_count == 0)
        return;
    size_t count = publication_round(h->publication, &state, &declarations);
    if (count == 0)
        return;
    size_t failed = declare(h, declarations, count, h->closing_deadline_us, false);
    log_debug("handler: withdrew %zu of %zu records", count - failed, count);
}

/* ---- the thread ---- */

/* Looks for records of our own, beside the round: newer ones than we know of mean that an earlier
 * run was dated by a clock ahead of ours, and that the nodes that store it refuse ours. */
static void find_own(struct handler *h)
{
    uint8_t keys[FIRST_SAMPLE_KEYS * RECORD_KEY_BYTES];
    struct skep_error err = {0};

    pthread_mutex_lock(&h->lock);
    bool busy = h->looking_up;
    h->looking_up = true;
    pthread_mutex_unlock(&h->lock);
    if (busy)
        return;
    size_t count = publication_sample_keys(h->publication, h->samples, keys,
                                           h->samples == 0 ? FIRST_SAMPLE_KEYS : SAMPLE_KEYS);
    h->samples++;
    if (directory_find_own(swarm_directory(h->swarm), keys, count, clock_deadline_us(OWN_LOOKUP_MS),
                           on_own, h, &err) != SKEP_OK) {
        log_debug("handler: %s", err.message);
        on_own(h, 0);
    }
}

/* Up to a tenth less, so that nodes started together do not publish together. */
static uint64_t next_round_us(struct handler *h)
{
    uint32_t ms = h->period_s * 1000;

    if (swarm_peer_count(h->swarm) == 0)
        h->among_peers = 0;
    else if (h->among_peers < 2 && ++h->among_peers == 1 && ms > SECOND_ROUND_MS)
        ms = SECOND_ROUND_MS;
    return clock_deadline_us(ms - randombytes_uniform(ms / 10 + 1));
}

static uint64_t next_retry_us(struct handler *h)
{
    uint64_t ms = (uint64_t)RETRY_FIRST_MS << (h->retries < 16 ? h->retries : 16);

    h->retries++;
    return clock_deadline_us(ms < h->period_s * UINT64_C(1000) ? ms : h->period_s * UINT64_C(1000));
}

enum turn { TURN_CLOSE, TURN_ALL, TURN_FAILED };

/* Waits for the next thing to do. */
static enum turn wait_turn(struct handler *h, uint64_t round_us, uint64_t retry_us)
{
    bool had_peers = swarm_peer_count(h->swarm) > 0;
    enum turn turn = TURN_ALL;

    pthread_mutex_lock(&h->lock);
    had_peers = had_peers && h->stats.reachable_peers;
    for (;;) {
        uint64_t now = clock_mono_us();
        bool has_peers = swarm_peer_count(h->swarm) > 0;
        if (h->closing) {
            turn = TURN_CLOSE;
            break;
        }
        if (h->refresh || round_us <= now || (has_peers && !had_peers))
            break;
        if (!h->looking_up && h->own_sequence > h->issued_seq) {
            log_info("handler: records of an earlier run are dated after our clock; going on from "
                     "there");
            break;
        }
        if (retry_us <= now && has_peers) {
            turn = TURN_FAILED;
            break;
        }
        had_peers = has_peers;
        uint64_t until = retry_us < round_us && has_peers ? retry_us : round_us;
        uint64_t look_us = clock_deadline_us(LOOK_FOR_PEERS_MS);
        cond_wait_until(&h->changed, &h->lock, !has_peers && look_us < until ? look_us : until);
    }
    h->refresh = false;
    h->own_sequence = 0;
    pthread_mutex_unlock(&h->lock);
    return turn;
}

static void run(void *arg)
{
    struct handler *h = arg;
    enum turn turn = TURN_ALL;
    uint64_t round_us = 0;

    while (turn != TURN_CLOSE) {
        if (turn == TURN_ALL) {
            round_us = next_round_us(h);
            take_newcomers(h);
            find_own(h);
        }
        size_t failed = publish(h, turn == TURN_ALL ? PUBLISH_ALL : PUBLISH_FAILED);
        if (failed == 0)
            h->retries = 0;
        if (turn == TURN_ALL && h->published != NULL && swarm_peer_count(h->swarm) > 0)
            h->published(h->source.arg);
        turn = wait_turn(h, round_us, failed > 0 ? next_retry_us(h) : CLOCK_NEVER);
    }
    withdraw(h);
    directory_get_cancel(swarm_directory(h->swarm), h);
    pthread_mutex_lock(&h->lock);
    while (h->looking_up) /* its callback must not outlive us */
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

/* ---- life cycle ---- */

static void set_endpoints(struct handler *h, const struct endpoint *endpoints, size_t count)
{
    h->endpoint_count = count < RECORD_MAX_ENDPOINTS ? count : RECORD_MAX_ENDPOINTS;
    memset(h->endpoints, 0, sizeof(h->endpoints));
    if (h->endpoint_count > 0)
        memcpy(h->endpoints, endpoints, h->endpoint_count * sizeof(*endpoints));
}

skep_status handler_new(const struct handler_config *config, const struct handler_expert *experts,
                        size_t count, struct handler **out, struct skep_error *err)
{
    uint32_t period_s = config->update_period_s ? config->update_period_s : DEFAULT_PERIOD_S;

    *out = NULL;
    if (period_s > MAX_PERIOD_S)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "update period: %u s, expected 1 to %d (records live for two periods, an "
                         "hour at most)",
                         period_s, MAX_PERIOD_S);
    struct handler *h = mem_calloc(1, sizeof(*h));
    if (h == NULL)
        return error_no_memory(err, "DHT handler", sizeof(*h));
    pthread_mutex_init(&h->lock, NULL);
    cond_init(&h->changed);
    h->swarm = config->swarm;
    h->period_s = period_s;
    h->features = config->features;
    h->source = (struct publication_source){
        .load = config->expert_load, .claim = config->expert_claim, .arg = config->arg};
    h->published = config->published;
    snprintf(h->version, sizeof(h->version), "%s", config->version != NULL ? config->version : "");
    set_endpoints(h, config->endpoints, config->endpoint_count);

    skep_status rc = publication_new(swarm_record(h->swarm), swarm_identity(h->swarm), experts,
                                     count, &h->publication, err);
    if (rc == SKEP_OK)
        rc = thread_start(&h->thread, "skep-handler", run, h, err);
    if (rc != SKEP_OK) {
        handler_free(h, 0);
        return rc;
    }
    *out = h;
    return SKEP_OK;
}

void handler_free(struct handler *h, uint64_t deadline_us)
{
    if (h == NULL)
        return;
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    h->closing_deadline_us = deadline_us;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    thread_join(&h->thread);
    publication_free(h->publication);
    free_newcomers(h->newcomers);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

bool handler_wait_first_round(struct handler *h, uint64_t deadline_us)
{
    pthread_mutex_lock(&h->lock);
    while (!h->first_round_ended)
        if (!cond_wait_until(&h->changed, &h->lock, deadline_us))
            break;
    bool ended = h->first_round_ended;
    pthread_mutex_unlock(&h->lock);
    return ended;
}

void handler_refresh(struct handler *h)
{
    pthread_mutex_lock(&h->lock);
    h->refresh = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

skep_status handler_add_experts(struct handler *h, const struct handler_expert *experts,
                                size_t count, struct skep_error *err)
{
    struct newcomer *list = NULL;

    for (size_t i = 0; i < count; i++) {
        struct newcomer *n = mem_calloc(1, sizeof(*n));

        if (n == NULL) {
            free_newcomers(list);
            return error_no_memory(err, experts[i].uid, sizeof(*n));
        }
        snprintf(n->uid, sizeof(n->uid), "%s", experts[i].uid);
        snprintf(n->cls, sizeof(n->cls), "%s", experts[i].cls);
        memcpy(n->schema_digest, experts[i].schema_digest, sizeof(n->schema_digest));
        n->next = list;
        list = n;
    }
    pthread_mutex_lock(&h->lock);
    struct newcomer **last = &h->newcomers;
    while (*last != NULL)
        last = &(*last)->next;
    *last = list;
    h->refresh = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    return SKEP_OK;
}

void handler_set_endpoints(struct handler *h, const struct endpoint *endpoints, size_t count)
{
    pthread_mutex_lock(&h->lock);
    set_endpoints(h, endpoints, count);
    h->refresh = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

void handler_stats(struct handler *h, struct handler_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->stats;
    pthread_mutex_unlock(&h->lock);
}
