/* Keeping a runner connected: whom to contact, when, and what to tell people about it. */
#include "dht/bootstrap/bootstrap_internal.h"

#include <ifaddrs.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "dht/bootstrap/peers_file.h"

enum {
    /* Below so many good peers the configured and saved ones are tried with the short pauses: with
     * a single one left, its end would leave us alone. */
    PEER_FLOOR = 1,
    /* OpenDHT itself sends a contact three times, a second apart. */
    BACKOFF_FIRST_MS = 1000,
    BACKOFF_MAX_MS = 15 * 1000,
    ANSWER_MS = 4000, /* a peer that is not in the routing table by then did not answer */
    MINUTE_MS = 60 * 1000,
    SAVE_MINUTES = 5,
    COMPLAIN_MS = 10 * MINUTE_MS, /* between log lines about one peer */

    /* How often we look whether somebody answered. */
    LOOK_SOON_MS = 3,
    LOOK_JOINING_MS = 50,
    LOOK_ALONE_MS = 50, /* the first peer wants to find what is here */
    LOOK_MS = 1000,
    SOON_MS = 1000,     /* how long joining is watched that closely */
    JOINING_MS = 10000, /* the same, less closely */

    /* Peers that contacted us count as dubious until they have answered us too. */
    HURRY_MS = 500,

    LOOK_CHECKING_MS = 5,
    LATE_MS = 3000, /* to join: then it is said */

    MAX_KNOWN = 1024,
    INTRODUCTIONS = 3,
};

/*
 * Pauses before we look for our neighbours by id: once connected, then again because others join
 * at the same time. OpenDHT itself finds them over minutes only, and until then up to a tenth of
 * what is put among hundreds of new peers lands where others don't look.
 */
static const uint32_t introduce_after_ms[INTRODUCTIONS] = {0, 3 * 1000, 27 * 1000};

/* ---- addresses ---- */

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

static uint16_t port_of(const struct address *a)
{
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&a->sa);
    return e.port;
}

static bool is_own_host(const struct sockaddr *sa)
{
    struct ifaddrs *all = NULL;
    struct endpoint e;
    bool own = false;

    endpoint_from_address(&e, sa);
    if (endpoint_is_loopback(&e))
        return true;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i != NULL && !own; i = i->ifa_next)
        own = i->ifa_addr != NULL && same_host(i->ifa_addr, sa);
    freeifaddrs(all);
    return own;
}

/* Whether an address is where our own runner listens. */
static bool is_self(const struct bootstrap *b, const struct address *a)
{
    struct address listen;

    if (port_of(a) != runner_port(b->runner))
        return false;
    if (!endpoint_is_unspecified(&b->listen) && endpoint_to_address(&b->listen, &listen))
        return same_host((const struct sockaddr *)&listen.sa, (const struct sockaddr *)&a->sa);
    return is_own_host((const struct sockaddr *)&a->sa);
}

/* ---- contacting ---- */

static uint64_t after_ms(uint64_t ms)
{
    return clock_mono_us() + ms * 1000;
}

/* Up to a quarter less, so that nodes started together do not stay in step. */
static uint32_t jittered(uint32_t ms)
{
    return ms - randombytes_uniform(ms / 4 + 1);
}

static uint32_t backoff_ms(unsigned tries)
{
    uint32_t ms = BACKOFF_FIRST_MS;

    while (tries-- > 1 && ms < BACKOFF_MAX_MS)
        ms *= 2;
    return ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
}

static void ask_for_addresses(struct bootstrap *b, struct peer *p)
{
    struct skep_error err = {0};

    if (!p->is_name || p->resolving_us != 0)
        return;
    if (resolver_ask(b->resolver, (size_t)(p - b->peers), &p->initial, &err) == SKEP_OK)
        p->resolving_us = clock_mono_us();
    else
        log_warn("bootstrap peer %s: %s", p->text, err.message);
}

static void contact_addresses(struct bootstrap *b, struct peer *p)
{
    bool self = p->address_count > 0;

    for (size_t i = 0; i < p->address_count; i++) {
        if (is_self(b, &p->addresses[i]))
            continue;
        self = false;
        runner_contact(b->runner, &p->addresses[i]);
    }
    if (self && !p->self)
        log_info("bootstrap peer %s: is this node itself, left out", p->text);
    p->self = self;
    if (p->address_count > 0 && p->tried_us == 0)
        p->tried_us = clock_mono_us();
}

static void contact(struct bootstrap *b, struct peer *p)
{
    p->tries++;
    ask_for_addresses(b, p); /* each time: what a name means may have changed */
    contact_addresses(b, p);
}

/* All are on loopback that lead anywhere, or one is elsewhere. */
static void tell_place(struct bootstrap *b)
{
    enum resolver_scope place = RESOLVER_NOWHERE;

    for (size_t i = 0; i < b->peer_count && place != RESOLVER_ELSEWHERE; i++)
        if (b->peers[i].place != RESOLVER_NOWHERE)
            place = b->peers[i].place;
    b->placed(b->arg, place);
}

/*
 * The machine's own name leads to 127.0.1.1 on Debian. A DHT whose own host is such a name listens
 * on 127.0.0.1 (swarm.c has the reason), one whose host is that very address does so there.
 */
static void add_first_loopback(struct peer *p)
{
    size_t count = p->address_count;

    for (size_t i = 0; i < count && p->address_count < RESOLVER_MAX_ADDRESSES; i++) {
        struct address first = p->addresses[i];
        bool known = !address_to_first_loopback(&first);
        for (size_t k = 0; k < p->address_count && !known; k++)
            known = address_equal(&p->addresses[k], &first);
        if (!known)
            p->addresses[p->address_count++] = first;
    }
}

static void take_resolutions(struct bootstrap *b)
{
    struct resolution *r = mem_calloc(1, sizeof(*r));
    unsigned long suppressed;

    while (r != NULL && resolver_take(b->resolver, r)) {
        struct peer *p = &b->peers[r->tag];
        p->resolving_us = 0;
        if (r->place != RESOLVER_NOWHERE && r->place != p->place) {
            p->place = r->place;
            tell_place(b);
        }
        if (r->status == SKEP_OK) {
            p->address_count = r->count;
            memcpy(p->addresses, r->addresses, sizeof(p->addresses));
            add_first_loopback(p);
            if (!p->present)
                contact_addresses(b, p);
            p->why[0] = '\0';
            continue;
        }
        snprintf(p->why, sizeof(p->why), "%s", r->err.message);
        if (log_limit_passes(&p->gate, COMPLAIN_MS, &suppressed)) {
            p->complained = true;
            log_warn("bootstrap peer %s: %s; trying again", p->text, r->err.message);
        }
    }
    mem_free(r);
}

/* The system's resolver says nothing for half a minute where no DNS server answers. */
static void tell_slow_name(struct peer *p)
{
    unsigned long suppressed;

    if (p->resolving_us == 0 || p->resolving_us + ANSWER_MS * UINT64_C(1000) > clock_mono_us() ||
        !log_limit_passes(&p->gate, COMPLAIN_MS, &suppressed))
        return;
    p->complained = true;
    log_warn("bootstrap peer %s: %s", p->text,
             p->initial.is_tracker
                 ? "no answer yet, neither to its name nor from the tracker"
                 : "its name is still being looked up (does a DNS server answer?)");
}

/* ---- what the thread looks at ---- */

static bool is_known(const struct bootstrap *b, const struct address *a)
{
    for (size_t i = 0; i < b->known_count; i++)
        if (address_equal(&b->known[i], a))
            return true;
    return false;
}

/* Whether the peer answered, and what to tell people about it. */
static void look_at(struct bootstrap *b, struct peer *p)
{
    unsigned long suppressed;
    bool present = false;

    for (size_t i = 0; i < p->address_count && !present; i++)
        present = is_known(b, &p->addresses[i]);
    if (present) {
        if (p->complained)
            log_info("bootstrap peer %s: answers now", p->text);
        p->complained = false;
        p->tried_us = 0;
        p->tries = 0;
        p->why[0] = '\0';
    } else if (p->tried_us != 0 && !p->self && !p->saved &&
               p->tried_us + ANSWER_MS * UINT64_C(1000) <= clock_mono_us() &&
               log_limit_passes(&p->gate, COMPLAIN_MS, &suppressed)) {
        p->complain = p->complained = true;
        if (!peer_check_begin(b, p))
            peer_complain(p);
    }
    p->present = present;
}

static void contact_missing(struct bootstrap *b, bool lonely)
{
    uint64_t now = clock_mono_us();

    for (size_t i = 0; i < b->peer_count; i++) {
        struct peer *p = &b->peers[i];
        tell_slow_name(p);
        look_at(b, p);
        if (p->present || (p->saved && !lonely)) {
            /* Its turn comes as soon as it is missing, or we are alone. */
            p->contact_us = now;
            continue;
        }
        uint32_t pause = jittered(lonely ? backoff_ms(p->tries + 1) : b->minute_ms);
        if (p->contact_us > now && p->contact_us - now > pause * UINT64_C(1000))
            p->contact_us = now + pause * UINT64_C(1000); /* we have become lonely meanwhile */
        if (p->contact_us > now)
            continue;
        p->contact_us = now + pause * UINT64_C(1000);
        contact(b, p);
    }
}

/* Those that nobody configured. */
static void contact_seen(struct bootstrap *b, bool lonely)
{
    struct address due[PEERS_SEEN_MAX];
    uint64_t now = clock_mono_us();

    peers_seen_update(&b->seen, b->known, b->known_count, now);
    size_t count = peers_seen_due(&b->seen, lonely, b->minute_ms * UINT64_C(1000), now, due);
    for (size_t i = 0; i < count; i++)
        runner_contact(b->runner, &due[i]);
}

static void tell(struct bootstrap *b, unsigned good)
{
    if (good > 0 && !b->was_connected)
        log_info("DHT: connected to %u peer%s", good, good == 1 ? "" : "s");
    if (good == 0 && b->was_connected && b->expects_peers)
        log_warn("DHT: no peer answers any more; trying again those that are known");
    else if (good == 0 && b->was_connected)
        log_info("DHT: the last peer has left; waiting for others");
    b->was_connected = good > 0;
}

/* Says how others join, once we have joined ourselves. */
static void tell_joined(struct bootstrap *b, unsigned good)
{
    pthread_mutex_lock(&b->lock);
    bool joined = good > 0 || !b->expects_peers;
    char *line = joined ? b->joined_line : NULL;
    bool late = !joined && b->joined_line != NULL && !b->is_late_said &&
                b->started_us + LATE_MS * UINT64_C(1000) <= clock_mono_us();
    if (joined)
        b->joined_line = NULL;
    b->is_late_said = b->is_late_said || late;
    pthread_mutex_unlock(&b->lock);
    if (late)
        log_warn("DHT: not joined: no initial peer has answered in %d s; still trying. Until one "
                 "answers, "
                 "nobody in their swarm finds this process",
                 LATE_MS / 1000);
    if (line != NULL)
        log_info("%s", line);
    mem_free(line);
}

static void save(struct bootstrap *b)
{
    struct skep_error err = {0};
    size_t count = b->known_count < PEERS_FILE_MAX ? b->known_count : PEERS_FILE_MAX;

    /* An empty list says nothing that is worth losing the old one for. */
    if (b->peers_file == NULL || count == 0)
        return;
    if (peers_file_save(b->peers_file, b->known, count, &err) != SKEP_OK)
        log_warn("%s", err.message);
}

static void introduce(struct bootstrap *b, bool connected)
{
    if (!connected)
        b->introduced = 0;
    if (!connected || b->introduced == INTRODUCTIONS)
        return;
    if (b->introduced > 0 && b->introduce_us > clock_mono_us())
        return;
    runner_introduce(b->runner);
    if (++b->introduced < INTRODUCTIONS)
        b->introduce_us = after_ms(jittered(introduce_after_ms[b->introduced]));
}

static void look(struct bootstrap *b)
{
    struct runner_status status;

    runner_status(b->runner, &status);
    b->known_count = runner_known_peers(b->runner, b->known, MAX_KNOWN);
    if (status.good_nodes == 0 && status.dubious_nodes > 0 && b->hurry_us <= clock_mono_us()) {
        runner_check_dubious(b->runner);
        b->hurry_us = after_ms(HURRY_MS);
    }
    take_resolutions(b);
    contact_missing(b, status.good_nodes < PEER_FLOOR);
    contact_seen(b, status.good_nodes < PEER_FLOOR);
    peer_checks_look(b);
    tell(b, status.good_nodes);
    introduce(b, status.good_nodes > 0);

    pthread_mutex_lock(&b->lock);
    b->good = status.good_nodes;
    bool expects = false;
    for (size_t i = 0; i < b->peer_count; i++)
        expects = expects || !b->peers[i].self;
    b->expects_peers = expects;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    tell_joined(b, status.good_nodes);

    if (b->save_us <= clock_mono_us()) {
        save(b);
        b->save_us = after_ms((uint64_t)b->minute_ms * SAVE_MINUTES);
    }
}

/* With the lock held. */
static uint32_t look_again_ms(const struct bootstrap *b)
{
    uint64_t age_ms = (clock_mono_us() - b->started_us) / 1000;

    if (b->checking > 0)
        return LOOK_CHECKING_MS;
    if (b->good > 0)
        return b->minute_ms < LOOK_MS ? b->minute_ms : LOOK_MS;
    if (!b->expects_peers)
        return LOOK_ALONE_MS;
    return age_ms < SOON_MS ? LOOK_SOON_MS : age_ms < JOINING_MS ? LOOK_JOINING_MS : LOOK_ALONE_MS;
}

static void run(void *arg)
{
    struct bootstrap *b = arg;
    bool closing = false;

    while (!closing) {
        look(b);
        pthread_mutex_lock(&b->lock);
        uint64_t until = after_ms(look_again_ms(b));
        while (!b->closing && !b->woken)
            if (!cond_wait_until(&b->changed, &b->lock, until))
                break;
        b->woken = false;
        closing = b->closing;
        pthread_mutex_unlock(&b->lock);
    }
    for (size_t i = 0; i < b->peer_count; i++)
        peer_check_end(b, &b->peers[i]);
    b->known_count = runner_known_peers(b->runner, b->known, MAX_KNOWN);
    save(b);
}

static void wake(void *arg)
{
    struct bootstrap *b = arg;

    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* ---- life cycle ---- */

static struct peer *add_peer(struct bootstrap *b, const struct initial_peer *initial)
{
    for (size_t i = 0; i < b->peer_count; i++)
        if (initial_peer_equal(&b->peers[i].initial, initial))
            return NULL;
    struct peer *p = &b->peers[b->peer_count++];
    p->initial = *initial;
    initial_peer_format(initial, p->text);
    p->is_name = initial->is_tracker || !endpoint_to_address(&initial->endpoint, &p->addresses[0]);
    p->address_count = p->is_name ? 0 : 1;
    p->place = resolver_scope_of(&initial->endpoint);
    return p;
}

/* Adds everybody; contacts those whose address is known, so that joining has begun by the time the
 * thread runs. */
static void add_peers(struct bootstrap *b, const struct bootstrap_config *config)
{
    for (size_t i = 0; i < config->peer_count; i++)
        if (add_peer(b, &config->peers[i]) == NULL)
            log_debug("bootstrap peer %s: given twice", config->peers[i].endpoint.host);
    for (size_t i = 0; i < config->saved_count; i++) {
        struct initial_peer initial = {.is_tracker = false};
        endpoint_from_address(&initial.endpoint, (const struct sockaddr *)&config->saved[i].sa);
        struct peer *p = add_peer(b, &initial);
        if (p != NULL)
            p->saved = true;
    }
    for (size_t i = 0; i < b->peer_count; i++) {
        struct peer *p = &b->peers[i];
        contact(b, p);
        p->contact_us = after_ms(jittered(BACKOFF_FIRST_MS));
        b->expects_peers = b->expects_peers || !p->self;
    }
}

skep_status bootstrap_new(const struct bootstrap_config *config, struct bootstrap **out,
                          struct skep_error *err)
{
    *out = NULL;
    if (config->peer_count > BOOTSTRAP_MAX_PEERS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%zu initial peers, expected at most %d",
                         config->peer_count, BOOTSTRAP_MAX_PEERS);
    struct bootstrap *b = mem_calloc(1, sizeof(*b));
    if (b == NULL)
        return error_no_memory(err, "bootstrap", sizeof(*b));
    pthread_mutex_init(&b->lock, NULL);
    cond_init(&b->changed);
    b->runner = config->runner;
    b->listen = config->listen;
    b->placed = config->placed;
    b->arg = config->arg;
    b->networks = config->networks;
    b->minute_ms = config->minute_ms ? config->minute_ms : MINUTE_MS;
    b->started_us = clock_mono_us();
    b->save_us = after_ms(b->minute_ms);

    skep_status rc = resolver_new(config->network_id, wake, b, &b->resolver, err);
    if (rc != SKEP_OK)
        goto out;
    b->peers = mem_calloc(config->peer_count + config->saved_count, sizeof(*b->peers));
    b->known = mem_calloc(MAX_KNOWN, sizeof(*b->known));
    b->peers_file = config->peers_file ? mem_strdup(config->peers_file) : NULL;
    if (b->peers == NULL || b->known == NULL ||
        (config->peers_file != NULL && b->peers_file == NULL)) {
        rc = error_no_memory(err, "bootstrap peers", config->peer_count * sizeof(*b->peers));
        goto out;
    }
    add_peers(b, config);
    rc = thread_start(&b->thread, "skep-bootstrap", run, b, err);

out:
    if (rc != SKEP_OK)
        bootstrap_free(b);
    else
        *out = b;
    return rc;
}

void bootstrap_free(struct bootstrap *b)
{
    if (b == NULL)
        return;
    pthread_mutex_lock(&b->lock);
    b->closing = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    thread_join(&b->thread);
    resolver_free(b->resolver);
    mem_free(b->joined_line);
    mem_free(b->peers_file);
    mem_free(b->known);
    mem_free(b->peers);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

bool bootstrap_wait_joined(struct bootstrap *b, uint64_t deadline_us)
{
    pthread_mutex_lock(&b->lock);
    while (b->expects_peers && b->good == 0)
        if (!cond_wait_until(&b->changed, &b->lock, deadline_us))
            break;
    bool joined = !b->expects_peers || b->good > 0;
    pthread_mutex_unlock(&b->lock);
    return joined;
}

skep_status bootstrap_log_joined(struct bootstrap *b, const char *line, struct skep_error *err)
{
    char *copy = mem_strdup(line);

    if (bootstrap_wait_joined(b, 0)) {
        mem_free(copy);
        log_info("%s", line);
        return SKEP_OK;
    }
    if (copy == NULL)
        return error_no_memory(err, "log line", strlen(line) + 1);
    pthread_mutex_lock(&b->lock);
    char *before = b->joined_line;
    b->joined_line = copy;
    b->woken = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    mem_free(before);
    return SKEP_OK;
}

unsigned bootstrap_peer_count(struct bootstrap *b)
{
    pthread_mutex_lock(&b->lock);
    unsigned good = b->good;
    pthread_mutex_unlock(&b->lock);
    return good;
}
