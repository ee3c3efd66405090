/* See tracker_registry.h: what is known of each key, when to say it, and life. */
#include "node/tracking/tracker_registry.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "crypto/keyed_hash.h"
#include "node/tracking/tracker_registry_internal.h"

enum {
    ROUND_MS = 10 * 1000,       /* most that a round may take */
    CHANGE_PAUSE_MS = 500,      /* between rounds of what has changed */
    RETRY_MS = 2000,            /* before what failed is said again */
    SECOND_ROUND_MS = 5 * 1000, /* after the first among peers: see the DHT handler */
    LOOK_FOR_PEERS_MS = 250,    /* while there are none */
    MAX_ROUNDS = 4,             /* under way */
    FULL_LOG_MS = 10 * 60 * 1000,
};

/* ---- entries; the lock is held ---- */

struct entry *tracker_registry_find(struct tracker_registry *r, const char *key, size_t len,
                                    uint64_t hash)
{
    struct hash_node *n = hash_table_first(&r->table, hash);

    for (; n != NULL; n = hash_table_next(n)) {
        struct entry *e = HASH_HOLDER(n, struct entry, node);
        if (strncmp(e->key, key, len) == 0 && e->key[len] == '\0')
            return e;
    }
    return NULL;
}

static struct entry *add(struct tracker_registry *r, const char *key, size_t len, uint64_t hash)
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

void tracker_registry_drop(struct tracker_registry *r, struct entry *e)
{
    hash_table_remove(&r->table, &e->node);
    *e->link = e->next;
    if (e->next != NULL)
        e->next->link = e->link;
    mem_free(e->key);
    mem_free(e);
}

bool entry_is_gone(const struct entry *e)
{
    return e->free == 0 && e->pending == 0 && e->servers == 0;
}

bool entry_is_urgent(const struct entry *e)
{
    if (entry_is_gone(e))
        return e->told && !e->told_gone;
    return !e->told || e->told_gone || (e->free > 0) != e->told_free;
}

void tracker_registry_changed(struct tracker_registry *r,
                              const struct scheduler_key_counters *counters)
{
    const char *key = counters->key.data;
    size_t len = counters->key.len;

    /* What no record can carry; and such a key is for no shell either. */
    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || memchr(key, '\0', len) != NULL ||
        !text_is_utf8(key, len))
        return;
    uint64_t hash = keyed_hash(key, len);
    pthread_mutex_lock(&r->lock);
    struct entry *e = tracker_registry_find(r, key, len, hash);
    if (e == NULL && counters->free + counters->pending + counters->servers > 0)
        e = add(r, key, len, hash);
    if (e != NULL) {
        e->free = counters->free;
        e->pending = counters->pending;
        e->servers = counters->servers;
        if (entry_is_gone(e) && !e->told && r->round_count == 0) {
            tracker_registry_drop(r, e); /* it came and went between two rounds */
        } else if (entry_is_urgent(e) && !r->urgent) {
            r->urgent = true;
            pthread_cond_signal(&r->changed);
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void tracker_registry_set_endpoints(struct tracker_registry *r, const struct endpoint *endpoints,
                                    size_t count, const struct endpoint *tvm)
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

void tracker_registry_stats(struct tracker_registry *r, struct tracker_registry_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    out->keys = r->table.count;
    pthread_mutex_unlock(&r->lock);
}

/* ---- the thread ---- */

static uint64_t next_full_us(struct tracker_registry *r, bool has_peers)
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
static bool wait_turn(struct tracker_registry *r, uint64_t full_us, uint64_t pause_us,
                      enum round_scope *scope)
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
    struct tracker_registry *r = arg;
    enum round_scope scope = SCOPE_ALL;
    uint64_t full_us = 0;

    do {
        if (scope == SCOPE_ALL) {
            r->had_peers = swarm_peer_count(r->config.swarm) > 0;
            full_us = next_full_us(r, r->had_peers);
        }
        tracker_registry_publish(r, scope, clock_deadline_us(ROUND_MS));
    } while (wait_turn(r, full_us, clock_deadline_us(CHANGE_PAUSE_MS), &scope));
}

/* ---- life ---- */

skep_status tracker_registry_new(const struct tracker_registry_config *config,
                                 struct tracker_registry **out, struct skep_error *err)
{
    struct tracker_registry *r = mem_calloc(1, sizeof(*r));
    skep_status rc;

    *out = NULL;
    if (r == NULL)
        return error_no_memory(err, "registry", sizeof(*r));
    r->config = *config;
    snprintf(r->version, sizeof(r->version), "%s", config->version != NULL ? config->version : "");
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    rc = hash_table_init(&r->table, 0) ? thread_start(&r->thread, "skep-registry", run, r, err)
                                       : error_no_memory(err, "registry", sizeof(*r));
    if (rc == SKEP_OK)
        *out = r;
    else
        tracker_registry_free(r, 0);
    return rc;
}

void tracker_registry_free(struct tracker_registry *r, uint64_t deadline_us)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->thread.started) {
        thread_join(&r->thread);
        tracker_registry_wait_rounds(r, true);
        tracker_registry_publish(r, SCOPE_OFFLINE, deadline_us);
        tracker_registry_wait_rounds(r, false);
    }
    while (r->entries != NULL)
        tracker_registry_drop(r, r->entries);
    hash_table_fini(&r->table);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
