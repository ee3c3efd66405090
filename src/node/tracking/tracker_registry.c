/* See tracker_registry.h. The publisher (dht/publish/publisher.h) says when; what is here says
 * what: the tracker's own record, and one for each key. */
#include "node/tracking/tracker_registry.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/hash_table.h"
#include "base/list.h"
#include "base/log.h"
#include "base/text.h"
#include "crypto/keyed_hash.h"
#include "dht/publish/publisher.h"

enum {
    ROUND_MS = 10 * 1000,  /* most that a round may take */
    CHANGE_PAUSE_MS = 500, /* between rounds of what has changed */
    MAX_ROUNDS = 4,        /* under way */
    FULL_LOG_MS = 10 * 60 * 1000,
    MAX_ADDRESS_TEXT_BYTES = 360, /* of a record, which has room for 1,024 */
};

struct entry {
    struct hash_node by_key;
    struct list_link of_all;
    char *key; /* owned */
    size_t free, pending, servers;
    struct statement statement;
    bool published_free; /* free > 0 in the last record */
};

/* Lock order: publisher.lock and registry.lock are never held together. */
struct tracker_registry {
    struct tracker_registry_config config;
    char version[32];
    struct publisher *publisher;

    pthread_mutex_t lock; /* guards all below */
    struct hash_table table;
    struct linked_list entries; /* owned */
    bool urgent;                /* some entry differs from its record in a way that matters */
    struct statement tracker;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct endpoint tvm;
    struct tracker_registry_stats stats;
};

/* ---- entries; the lock is held ---- */

static struct entry *find(const struct tracker_registry *r, const char *key, size_t len,
                          uint64_t hash)
{
    for (struct hash_node *n = hash_table_first(&r->table, hash); n != NULL;
         n = hash_table_next(n)) {
        struct entry *e = HASH_HOLDER(n, struct entry, by_key);
        if (strncmp(e->key, key, len) == 0 && e->key[len] == '\0')
            return e;
    }
    return NULL;
}

static struct entry *first_entry(const struct tracker_registry *r)
{
    return LIST_HOLDER(r->entries.first, struct entry, of_all);
}

static struct entry *next_entry(const struct entry *e)
{
    return LIST_HOLDER(e->of_all.next, struct entry, of_all);
}

static struct entry *add(struct tracker_registry *r, const char *key, size_t len, uint64_t hash)
{
    static struct log_limit gate;
    unsigned long suppressed;
    struct entry *e;

    if (r->table.count >= REGISTRY_MAX_KEYS) {
        if (log_limit_passes(&gate, FULL_LOG_MS, &suppressed))
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
    e->statement.failed = true;
    list_prepend(&r->entries, &e->of_all);
    hash_table_add(&r->table, &e->by_key, hash);
    return e;
}

static void drop(struct tracker_registry *r, struct entry *e)
{
    hash_table_remove(&r->table, &e->by_key);
    list_remove(&r->entries, &e->of_all);
    mem_free(e->key);
    mem_free(e);
}

static bool is_alive(const struct entry *e)
{
    return e->free > 0 || e->pending > 0 || e->servers > 0;
}

/* Whether others must learn of it before the period is over. */
static bool is_urgent(const struct entry *e)
{
    bool is_published = e->statement.until_s != 0;

    if (!is_alive(e))
        return is_published && !e->statement.gone;
    return !is_published || e->statement.gone || (e->free > 0) != e->published_free;
}

void tracker_registry_changed(struct tracker_registry *r,
                              const struct scheduler_key_counters *counters)
{
    const char *key = counters->key.data;
    size_t len = counters->key.len;
    bool became_urgent = false;

    /* What no record can carry; and such a key is for no shell either. */
    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || memchr(key, '\0', len) != NULL ||
        !text_is_utf8(key, len))
        return;
    uint64_t hash = keyed_hash(key, len);
    pthread_mutex_lock(&r->lock);
    struct entry *e = find(r, key, len, hash);
    if (e == NULL && counters->free + counters->pending + counters->servers > 0)
        e = add(r, key, len, hash);
    if (e != NULL) {
        e->free = counters->free;
        e->pending = counters->pending;
        e->servers = counters->servers;
        if (!is_alive(e) && e->statement.until_s == 0 && e->statement.under_way == 0) {
            drop(r, e); /* it came and went between two rounds */
        } else if (is_urgent(e) && !r->urgent) {
            r->urgent = became_urgent = true;
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (became_urgent)
        publisher_changed(r->publisher);
}

void tracker_registry_set_endpoints(struct tracker_registry *r, const struct endpoint *endpoints,
                                    size_t count, const struct endpoint *tvm)
{
    pthread_mutex_lock(&r->lock);
    r->endpoint_count = count < RECORD_MAX_ENDPOINTS ? count : RECORD_MAX_ENDPOINTS;
    for (size_t i = 0; i < r->endpoint_count; i++)
        r->endpoints[i] = endpoints[i];
    r->tvm = *tvm;
    pthread_mutex_unlock(&r->lock);
    publisher_refresh(r->publisher);
}

void tracker_registry_stats(struct tracker_registry *r, struct tracker_registry_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    out->keys = r->table.count;
    pthread_mutex_unlock(&r->lock);
}

/* ---- filling a round; the lock is held ---- */

static void say_tracker(struct tracker_registry *r, struct publisher_round *round)
{
    bool alive = round->scope != PUBLISH_OFFLINE;
    uint8_t key[RECORD_KEY_BYTES];

    if (!statement_is_due(&r->tracker, round, alive, false))
        return;
    struct record *record = publisher_round_next(round);
    struct record_tracker *out = &record->tracker;
    record->kind = RECORD_TRACKER;
    out->endpoint_count = r->endpoint_count;
    memcpy(out->endpoints, r->endpoints, sizeof(out->endpoints));
    out->features = r->config.features;
    out->tvm = r->tvm;
    snprintf(out->version, sizeof(out->version), "%s", r->version);
    out->key_count = (uint32_t)r->table.count;
    out->offline = !alive;
    record_key_trackers_shard(swarm_record(r->config.swarm),
                              record_shard(swarm_identity(r->config.swarm)->peer_id), key);
    publisher_round_say(round, &r->tracker, alive, key);
}

static uint32_t clamp(size_t n)
{
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static void say_entry(struct tracker_registry *r, struct publisher_round *round, struct entry *e)
{
    bool alive = is_alive(e) && round->scope != PUBLISH_OFFLINE;
    uint8_t key[RECORD_KEY_BYTES];

    if (!statement_is_due(&e->statement, round, alive, is_urgent(e)))
        return;
    struct record *record = publisher_round_next(round);
    struct record_resource *out = &record->resource;
    record->kind = RECORD_RESOURCE;
    snprintf(out->key, sizeof(out->key), "%s", e->key);
    out->endpoint_count = r->endpoint_count;
    memcpy(out->endpoints, r->endpoints, sizeof(out->endpoints));
    out->features = r->config.features;
    out->tvm = r->tvm;
    out->free = alive ? clamp(e->free) : 0;
    out->pending = alive ? clamp(e->pending) : 0;
    out->offline = !alive;
    record_key_resource(swarm_record(r->config.swarm), e->key, key);
    e->published_free = out->free > 0;
    publisher_round_say(round, &e->statement, alive, key);
}

static void say_all(struct tracker_registry *r, struct publisher_round *round)
{
    r->urgent = false;
    /* If memory is short, the next round tries again. */
    if (r->endpoint_count == 0 || !publisher_round_reserve(round, r->table.count + 1))
        return;
    say_tracker(r, round);
    for (struct entry *e = first_entry(r), *next; e != NULL; e = next) {
        next = next_entry(e);
        if (!is_alive(e) && !statement_is_known(&e->statement, round) &&
            e->statement.under_way == 0)
            drop(r, e); /* nobody can find it */
        else
            say_entry(r, round, e);
    }
}

/* ---- addresses, without the lock ---- */

static bool may_be_told(const struct tracker_registry *r, const struct endpoint *e, size_t *room)
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

/* Addresses of what is free, as far as they help others and fit. */
static void fill_addresses(struct tracker_registry *r, struct record_resource *out)
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

/* ---- rounds, on the publisher's thread ---- */

static void fill(void *arg, struct publisher_round *round)
{
    struct tracker_registry *r = arg;

    pthread_mutex_lock(&r->lock);
    say_all(r, round);
    pthread_mutex_unlock(&r->lock);
    for (size_t i = 0; i < round->count; i++)
        if (round->records[i].kind == RECORD_RESOURCE && round->records[i].resource.free > 0)
            fill_addresses(r, &round->records[i].resource);
}

static void drop_withdrawn(struct tracker_registry *r)
{
    for (struct entry *e = first_entry(r), *next; e != NULL; e = next) {
        next = next_entry(e);
        if (!is_alive(e) && e->statement.gone && !e->statement.failed &&
            e->statement.under_way == 0)
            drop(r, e);
    }
}

static void ended(void *arg, struct publisher_round *round)
{
    struct tracker_registry *r = arg;

    pthread_mutex_lock(&r->lock);
    publisher_round_note(round);
    r->stats.records_failed += round->failed;
    r->stats.records_published += round->said - round->failed;
    drop_withdrawn(r);
    pthread_mutex_unlock(&r->lock);
}

/* ---- life ---- */

skep_status tracker_registry_new(const struct tracker_registry_config *config,
                                 struct tracker_registry **out, struct skep_error *err)
{
    struct tracker_registry *r = mem_calloc(1, sizeof(*r));
    skep_status rc = SKEP_OK;

    *out = NULL;
    if (r == NULL)
        return error_no_memory(err, "registry", sizeof(*r));
    r->config = *config;
    snprintf(r->version, sizeof(r->version), "%s", config->version != NULL ? config->version : "");
    pthread_mutex_init(&r->lock, NULL);
    r->tracker.failed = true;
    const struct publisher_config rounds = {
        .swarm = config->swarm,
        .thread_name = "skep-registry",
        .log_name = "tracker",
        .update_period_s = config->update_period_s,
        .round_ms = ROUND_MS,
        .change_pause_ms = CHANGE_PAUSE_MS,
        .max_rounds = MAX_ROUNDS,
        .fill = fill,
        .ended = ended,
        .arg = r,
    };
    rc = hash_table_init(&r->table, 0) ? publisher_new(&rounds, &r->publisher, err)
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
    publisher_stop(r->publisher, deadline_us);
    publisher_free(r->publisher);
    while (first_entry(r) != NULL)
        drop(r, first_entry(r));
    hash_table_fini(&r->table);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
