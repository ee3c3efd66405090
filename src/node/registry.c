/*
 * Rounds of publishing. What a round says is copied out under the lock; it is then declared, and
 * the thread goes on: with dead nodes near a key an outcome takes seconds, and what changes
 * meanwhile is not to wait for it. So several rounds may be under way at once, a few at most.
 */
#include "node/registry.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "tracker/hash_table.h"

enum {
    MIN_LIFETIME_S = 60,
    ROUND_MS = 10 * 1000,         /* most that a round may take */
    CHANGE_PAUSE_MS = 500,        /* between rounds of what has changed */
    RETRY_MS = 2000,              /* before what failed is said again */
    SECOND_ROUND_MS = 5 * 1000,   /* after the first among peers: see the DHT handler */
    LOOK_FOR_PEERS_MS = 250,      /* while there are none */
    MAX_ROUNDS = 4,               /* under way */
    MAX_ADDRESS_TEXT_BYTES = 360, /* of a record, which has room for 1,024 */
    FULL_LOG_MS = 10 * 60 * 1000,
};

struct entry {
    struct hash_node node; /* first, so that the pointers convert */
    struct entry *next, **link;
    char *key; /* owned */
    size_t free, pending, servers;
    /* What the DHT was told: */
    bool told;            /* something that readers may still find */
    bool told_gone;       /* and that was a withdrawal */
    bool told_free;       /* free > 0, then */
    bool failed;          /* the last time; or never tried */
    int64_t told_until_s; /* its expiry */
};

struct item {
    char *key; /* owned; NULL: the tracker's own record */
    bool gone;
};

struct round {
    struct round *next, **link;
    struct registry *registry;
    size_t count;
    struct item *items;               /* owned */
    struct record *records;           /* owned, and what is in them */
    struct declaration *declarations; /* owned */
};

/* Lock order: registry.lock, then the directory's. */
struct registry {
    struct registry_config config;
    char version[32];
    uint8_t secret[HASH_SECRET_BYTES];
    struct thread thread;
    bool had_peers;       /* the thread's */
    unsigned among_peers; /* the thread's: full rounds since there are peers, up to 2 */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct hash_table table;
    struct entry *entries;
    bool urgent; /* some entry differs from what was told in a way that matters to others */
    bool tracker_told;
    int64_t tracker_until_s;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct endpoint tvm;
    bool refresh; /* endpoints have changed */
    struct round *rounds;
    unsigned round_count;
    bool failed; /* some record of the last rounds */
    struct registry_stats stats;
};

/* ---- entries; the lock is held ---- */

static struct entry *find(struct registry *r, const char *key, size_t len, uint64_t hash)
{
    struct hash_node *n = hash_table_first(&r->table, hash);

    while (n != NULL && (strncmp(((struct entry *)n)->key, key, len) != 0 ||
                         ((struct entry *)n)->key[len] != '\0'))
        n = hash_table_next(n);
    return (struct entry *)n;
}

static struct entry *add(struct registry *r, const char *key, size_t len, uint64_t hash)
{
    static struct log_gate gate;
    unsigned long suppressed;
    struct entry *e;

    if (r->table.count >= REGISTRY_MAX_KEYS) {
        if (log_gate_open(&gate, FULL_LOG_MS, &suppressed))
            log_warn("tracker: more than %d keys: the others are not published in the DHT",
                     REGISTRY_MAX_KEYS);
        return NULL;
    }
    e = mem_calloc(1, sizeof(*e));
    if (e != NULL)
        e->key = mem_alloc(len + 1);
    if (e == NULL || e->key == NULL) {
        mem_free(e);
        return NULL;
    }
    memcpy(e->key, key, len);
    e->key[len] = '\0';
    e->failed = true;
    e->next = r->entries;
    e->link = &r->entries;
    if (e->next != NULL)
        e->next->link = &e->next;
    r->entries = e;
    hash_table_add(&r->table, &e->node, hash);
    return e;
}

static void drop(struct registry *r, struct entry *e)
{
    hash_table_remove(&r->table, &e->node);
    *e->link = e->next;
    if (e->next != NULL)
        e->next->link = e->link;
    mem_free(e->key);
    mem_free(e);
}

static bool is_gone(const struct entry *e)
{
    return e->free == 0 && e->pending == 0 && e->servers == 0;
}

/* Whether others must hear of it before the period is over. */
static bool is_urgent(const struct entry *e)
{
    if (is_gone(e))
        return e->told && !e->told_gone;
    return !e->told || e->told_gone || (e->free > 0) != e->told_free;
}

void registry_changed(struct registry *r, const struct scheduler_key_facts *facts)
{
    const char *key = facts->key.data;
    size_t len = facts->key.len;

    /* What no record can carry; and such a key is for no shell either. */
    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || memchr(key, '\0', len) != NULL ||
        !text_is_utf8(key, len))
        return;
    uint64_t hash = hash_text(r->secret, key, len);
    pthread_mutex_lock(&r->lock);
    struct entry *e = find(r, key, len, hash);
    if (e == NULL && facts->free + facts->pending + facts->servers > 0)
        e = add(r, key, len, hash);
    if (e != NULL) {
        e->free = facts->free;
        e->pending = facts->pending;
        e->servers = facts->servers;
        if (is_gone(e) && !e->told && r->round_count == 0) {
            drop(r, e); /* it came and went between two rounds */
        } else if (is_urgent(e) && !r->urgent) {
            r->urgent = true;
            pthread_cond_signal(&r->changed);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void registry_set_endpoints(struct registry *r, const struct endpoint *endpoints, size_t count,
                            const struct endpoint *tvm)
{
    pthread_mutex_lock(&r->lock);
    r->endpoint_count = count < RECORD_MAX_ENDPOINTS ? count : RECORD_MAX_ENDPOINTS;
    for (size_t i = 0; i < r->endpoint_count; i++)
        r->endpoints[i] = endpoints[i];
    r->tvm = *tvm;
    r->refresh = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void registry_stats(struct registry *r, struct registry_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    out->keys = r->table.count;
    pthread_mutex_unlock(&r->lock);
}

/* ---- rounds ---- */

static void free_round(struct round *round)
{
    for (size_t i = 0; round->records != NULL && i < round->count; i++)
        record_free(&round->records[i]);
    for (size_t i = 0; round->items != NULL && i < round->count; i++)
        mem_free(round->items[i].key);
    mem_free(round->declarations);
    mem_free(round->records);
    mem_free(round->items);
    mem_free(round);
}

static struct round *new_round(struct registry *r, size_t cap)
{
    struct round *round = mem_calloc(1, sizeof(*round));

    if (round == NULL)
        return NULL;
    round->registry = r;
    round->items = mem_calloc(cap, sizeof(*round->items));
    round->records = mem_calloc(cap, sizeof(*round->records));
    round->declarations = mem_calloc(cap, sizeof(*round->declarations));
    if (round->items != NULL && round->records != NULL && round->declarations != NULL)
        return round;
    free_round(round);
    return NULL;
}

/* Notes the outcome of one record; the lock is held. */
static void note(struct registry *r, const struct item *item, skep_status outcome)
{
    bool failed = outcome != SKEP_OK;

    r->stats.records_failed += failed;
    r->stats.records_published += !failed;
    r->failed = r->failed || failed;
    if (item->key == NULL)
        return;
    size_t len = strlen(item->key);
    struct entry *e = find(r, item->key, len, hash_text(r->secret, item->key, len));
    if (e == NULL)
        return;
    e->failed = failed;
    if (item->gone && !failed && is_gone(e) && e->told_gone)
        drop(r, e);
}

/* On the directory's thread, or the registry's if nothing could be declared. */
static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct round *round = arg;
    struct registry *r = round->registry;

    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < count; i++)
        note(r, &round->items[i], declarations[i].outcome);
    *round->link = round->next;
    if (round->next != NULL)
        round->next->link = round->link;
    r->round_count--;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    free_round(round);
}

static uint32_t lifetime_s(const struct registry *r)
{
    uint32_t lifetime = 2 * r->config.update_period_s;

    return lifetime > MIN_LIFETIME_S ? lifetime : MIN_LIFETIME_S;
}

/* As the DHT handler's: a withdrawal outlives what it contradicts. */
static int64_t expiry(const struct registry *r, int64_t now_s, bool gone, int64_t told_until_s)
{
    int64_t until = told_until_s + swarm_record(r->config.swarm)->clock_skew_s;
    int64_t least = now_s + RECORD_MIN_LIFETIME_S, most = now_s + RECORD_MAX_LIFETIME_S;

    if (!gone)
        return now_s + lifetime_s(r);
    until = until > least ? until : least;
    return until < most ? until : most;
}

static void fill_tracker(struct registry *r, bool gone, struct record_tracker *out)
{
    out->endpoint_count = r->endpoint_count;
    memcpy(out->endpoints, r->endpoints, sizeof(out->endpoints));
    out->features = r->config.features;
    out->tvm = r->tvm;
    snprintf(out->version, sizeof(out->version), "%s", r->version);
    out->key_count = (uint32_t)r->table.count;
    out->offline = gone;
}

static void add_tracker(struct registry *r, struct round *round, int64_t now_s, bool gone)
{
    size_t i = round->count++;
    struct record *record = &round->records[i];

    record->kind = RECORD_TRACKER;
    record->expires_at = expiry(r, now_s, gone, r->tracker_until_s);
    fill_tracker(r, gone, &record->tracker);
    round->declarations[i].record = record;
    record_key_trackers_shard(swarm_record(r->config.swarm),
                              record_shard(swarm_identity(r->config.swarm)->peer_id),
                              round->declarations[i].key);
    r->tracker_told = !gone;
    r->tracker_until_s = record->expires_at;
}

static uint32_t clamp(size_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void add_entry(struct registry *r, struct round *round, int64_t now_s, struct entry *e,
                      bool gone)
{
    size_t i = round->count;
    struct record *record = &round->records[i];
    struct record_resource *out = &record->resource;

    round->items[i] = (struct item){.key = mem_strdup(e->key), .gone = gone};
    if (round->items[i].key == NULL)
        return; /* the next round tries again */
    round->count++;
    record->kind = RECORD_RESOURCE;
    record->expires_at = expiry(r, now_s, gone, e->told_until_s);
    snprintf(out->key, sizeof(out->key), "%s", e->key);
    out->endpoint_count = r->endpoint_count;
    memcpy(out->endpoints, r->endpoints, sizeof(out->endpoints));
    out->features = r->config.features;
    out->tvm = r->tvm;
    out->free = gone ? 0 : clamp(e->free);
    out->pending = gone ? 0 : clamp(e->pending);
    out->offline = gone;
    round->declarations[i].record = record;
    record_key_resource(swarm_record(r->config.swarm), e->key, round->declarations[i].key);
    e->told = true;
    e->told_gone = gone;
    e->told_free = out->free > 0;
    e->told_until_s = record->expires_at;
    e->failed = true; /* until the outcome is known */
}

enum scope { SCOPE_ALL, SCOPE_CHANGED, SCOPE_OFFLINE };

static bool belongs(const struct entry *e, enum scope scope)
{
    if (scope == SCOPE_OFFLINE)
        return e->told && !e->told_gone;
    if (is_gone(e))
        return e->told && (!e->told_gone || e->failed);
    return scope == SCOPE_ALL || e->failed || is_urgent(e);
}

/* Everything that is to be said now; NULL: nothing, or memory is short. */
static struct round *make_round(struct registry *r, enum scope scope)
{
    int64_t now_s = directory_now_ms(swarm_directory(r->config.swarm)) / 1000;
    struct round *round = NULL;
    const int64_t skew_s = swarm_record(r->config.swarm)->clock_skew_s;

    pthread_mutex_lock(&r->lock);
    if (r->endpoint_count > 0)
        round = new_round(r, r->table.count + 1);
    if (round != NULL) {
        r->urgent = false;
        if (scope == SCOPE_ALL || (scope == SCOPE_OFFLINE && r->tracker_told))
            add_tracker(r, round, now_s, scope == SCOPE_OFFLINE);
        for (struct entry *e = r->entries, *next; e != NULL; e = next) {
            next = e->next;
            if (is_gone(e) && (!e->told || e->told_until_s + skew_s < now_s))
                drop(r, e); /* nobody can find it */
            else if (belongs(e, scope))
                add_entry(r, round, now_s, e, is_gone(e) || scope == SCOPE_OFFLINE);
        }
        if (round->count == 0) {
            free_round(round);
            round = NULL;
        }
    }
    if (round != NULL) {
        round->next = r->rounds;
        round->link = &r->rounds;
        if (round->next != NULL)
            round->next->link = &round->next;
        r->rounds = round;
        r->round_count++;
    }
    pthread_mutex_unlock(&r->lock);
    return round;
}

static bool may_be_told(const struct registry *r, const struct endpoint *e, size_t *room)
{
    char text[ENDPOINT_TEXT_BYTES];
    struct endpoint again;
    size_t len = strlen(endpoint_format(e, text)) + 3; /* and msgpack's head */

    if (len > *room || !endpoint_is_usable(e) ||
        endpoint_parse(&again, text, false, NULL) != SKEP_OK ||
        (!swarm_record(r->config.swarm)->loopback && endpoint_is_loopback(e)))
        return false;
    for (const char *p = text; *p != '\0'; p++)
        if (*p < 0x21 || *p > 0x7e)
            return false;
    *room -= len;
    return true;
}

/* Addresses of what is free, as far as they help others and fit. Without the lock. */
static void fill_addresses(struct registry *r, struct record_resource *out)
{
    struct endpoint *all = mem_calloc(RECORD_MAX_ADDRESSES, sizeof(*all));
    size_t count, room = MAX_ADDRESS_TEXT_BYTES, kept = 0;

    if (all == NULL)
        return;
    count = r->config.addresses(r->config.arg, out->key, all, RECORD_MAX_ADDRESSES);
    for (size_t i = 0; i < count; i++)
        if (may_be_told(r, &all[i], &room))
            all[kept++] = all[i];
    out->addresses = all;
    out->address_count = kept;
}

static void publish(struct registry *r, enum scope scope, uint64_t deadline_us)
{
    struct skep_error err;
    struct round *round = make_round(r, scope);

    if (round == NULL)
        return;
    for (size_t i = 0; i < round->count; i++)
        if (round->records[i].kind == RECORD_RESOURCE && round->records[i].resource.free > 0)
            fill_addresses(r, &round->records[i].resource);
    if (directory_declare(swarm_directory(r->config.swarm), round->declarations, round->count,
                          deadline_us, on_declared, round, &err) == SKEP_OK)
        return;
    log_warn("tracker: %s", err.message);
    for (size_t i = 0; i < round->count; i++)
        round->declarations[i].outcome = err.status;
    on_declared(round, round->declarations, round->count);
}

/* ---- the thread ---- */

static uint64_t next_full_us(struct registry *r, bool has_peers)
{
    uint32_t ms = r->config.update_period_s * 1000;

    if (!has_peers)
        r->among_peers = 0;
    else if (r->among_peers < 2 && ++r->among_peers == 1 && ms > SECOND_ROUND_MS)
        ms = SECOND_ROUND_MS;
    return clock_deadline_us(ms - randombytes_uniform(ms / 10 + 1));
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Waits for the next thing to say. False: it is over. */
static bool wait_turn(struct registry *r, uint64_t full_us, uint64_t pause_us, enum scope *scope)
{
    uint64_t retry_us = pause_us + (RETRY_MS - CHANGE_PAUSE_MS) * 1000u;

    *scope = SCOPE_CHANGED;
    pthread_mutex_lock(&r->lock);
    while (!r->closing) {
        uint64_t now = clock_mono_us();
        bool has_peers = swarm_peer_count(r->config.swarm) > 0;
        bool joined = has_peers && !r->had_peers;
        r->had_peers = has_peers;
        if (r->refresh || joined || now >= full_us) {
            *scope = SCOPE_ALL;
            break;
        }
        bool may = r->round_count < MAX_ROUNDS && now >= pause_us;
        if (may && (r->urgent || (r->failed && has_peers && now >= retry_us)))
            break;
        uint64_t until = full_us;
        if (r->urgent && now < pause_us)
            until = earlier(until, pause_us);
        if (r->failed && has_peers && now < retry_us)
            until = earlier(until, retry_us);
        if (!has_peers)
            until = earlier(until, clock_deadline_us(LOOK_FOR_PEERS_MS));
        cond_wait_until(&r->changed, &r->lock, until);
    }
    r->refresh = false;
    r->failed = false;
    bool go_on = !r->closing;
    pthread_mutex_unlock(&r->lock);
    return go_on;
}

static void run(void *arg)
{
    struct registry *r = arg;
    enum scope scope = SCOPE_ALL;
    uint64_t full_us = 0;

    do {
        if (scope == SCOPE_ALL) {
            r->had_peers = swarm_peer_count(r->config.swarm) > 0;
            full_us = next_full_us(r, r->had_peers);
        }
        publish(r, scope, clock_deadline_us(ROUND_MS));
    } while (wait_turn(r, full_us, clock_deadline_us(CHANGE_PAUSE_MS), &scope));
}

/* Waits for the rounds that are under way; `cut` ends them now. */
static void wait_rounds(struct registry *r, bool cut)
{
    pthread_mutex_lock(&r->lock);
    for (struct round *round = r->rounds; cut && round != NULL; round = round->next)
        directory_declare_cancel(swarm_directory(r->config.swarm), round->declarations);
    while (r->rounds != NULL)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* ---- life ---- */

skep_status registry_new(const struct registry_config *config, struct registry **out,
                         struct skep_error *err)
{
    struct registry *r = mem_calloc(1, sizeof(*r));
    skep_status rc;

    *out = NULL;
    if (r == NULL)
        return error_no_memory(err, "registry", sizeof(*r));
    r->config = *config;
    snprintf(r->version, sizeof(r->version), "%s", config->version != NULL ? config->version : "");
    hash_secret_make(r->secret);
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    rc = hash_table_init(&r->table) ? thread_start(&r->thread, "skep-registry", run, r, err)
                                    : error_no_memory(err, "registry", sizeof(*r));
    if (rc == SKEP_OK)
        *out = r;
    else
        registry_free(r, 0);
    return rc;
}

void registry_free(struct registry *r, uint64_t deadline_us)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->thread.started) {
        thread_join(&r->thread);
        wait_rounds(r, true);
        publish(r, SCOPE_OFFLINE, deadline_us);
        wait_rounds(r, false);
    }
    while (r->entries != NULL)
        drop(r, r->entries);
    hash_table_fini(&r->table);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
