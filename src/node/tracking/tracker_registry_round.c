/*
 * Rounds of publishing. What a round says is copied out under the lock; it is then declared, and
 * the thread goes on: with dead nodes near a key an outcome takes seconds, and what changes
 * meanwhile is not to wait for it. So several rounds may be under way at once, a few at most.
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "crypto/keyed_hash.h"
#include "node/tracking/tracker_registry_internal.h"

enum {
    MIN_LIFETIME_S = 60,
    MAX_ADDRESS_TEXT_BYTES = 360, /* of a record, which has room for 1,024 */
};

struct item {
    char *key; /* owned; NULL: the tracker's own record */
    bool gone;
};

struct round {
    struct round *next, **link;
    struct tracker_registry *registry;
    size_t count;
    struct item *items;               /* owned */
    struct record *records;           /* owned, and what is in them */
    struct declaration *declarations; /* owned */
};

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

static struct round *new_round(struct tracker_registry *r, size_t cap)
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
static void note(struct tracker_registry *r, const struct item *item, skep_status outcome)
{
    bool failed = outcome != SKEP_OK;

    r->stats.records_failed += failed;
    r->stats.records_published += !failed;
    r->failed = r->failed || failed;
    if (item->key == NULL)
        return;
    size_t len = strlen(item->key);
    struct entry *e = tracker_registry_find(r, item->key, len, keyed_hash(item->key, len));
    if (e == NULL)
        return;
    e->failed = failed;
    if (item->gone && !failed && entry_is_gone(e) && e->told_gone)
        tracker_registry_drop(r, e);
}

/* On the directory's thread, or the registry's if nothing could be declared. */
static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct round *round = arg;
    struct tracker_registry *r = round->registry;

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

static uint32_t lifetime_s(const struct tracker_registry *r)
{
    uint32_t lifetime = 2 * r->config.update_period_s;

    return lifetime > MIN_LIFETIME_S ? lifetime : MIN_LIFETIME_S;
}

/* As the DHT handler's: a withdrawal outlives what it contradicts. */
static int64_t expiry(const struct tracker_registry *r, int64_t now_s, bool gone,
                      int64_t told_until_s)
{
    int64_t until = told_until_s + swarm_record(r->config.swarm)->clock_skew_s;
    int64_t least = now_s + RECORD_MIN_LIFETIME_S, most = now_s + RECORD_MAX_LIFETIME_S;

    if (!gone)
        return now_s + lifetime_s(r);
    until = until > least ? until : least;
    return until < most ? until : most;
}

static void fill_tracker(struct tracker_registry *r, bool gone, struct record_tracker *out)
{
    out->endpoint_count = r->endpoint_count;
    memcpy(out->endpoints, r->endpoints, sizeof(out->endpoints));
    out->features = r->config.features;
    out->tvm = r->tvm;
    snprintf(out->version, sizeof(out->version), "%s", r->version);
    out->key_count = (uint32_t)r->table.count;
    out->offline = gone;
}

static void add_tracker(struct tracker_registry *r, struct round *round, int64_t now_s, bool gone)
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

static void add_entry(struct tracker_registry *r, struct round *round, int64_t now_s,
                      struct entry *e, bool gone)
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

static bool belongs(const struct entry *e, enum round_scope scope)
{
    if (scope == SCOPE_OFFLINE)
        return e->told && !e->told_gone;
    if (entry_is_gone(e))
        return e->told && (!e->told_gone || e->failed);
    return scope == SCOPE_ALL || e->failed || entry_is_urgent(e);
}

/* Everything that is to be said now; NULL: nothing, or memory is short. */
static struct round *make_round(struct tracker_registry *r, enum round_scope scope)
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
            if (entry_is_gone(e) && (!e->told || e->told_until_s + skew_s < now_s))
                tracker_registry_drop(r, e); /* nobody can find it */
            else if (belongs(e, scope))
                add_entry(r, round, now_s, e, entry_is_gone(e) || scope == SCOPE_OFFLINE);
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

/* Addresses of what is free, as far as they help others and fit. Without the lock. */
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

void tracker_registry_publish(struct tracker_registry *r, enum round_scope scope,
                              uint64_t deadline_us)
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

void tracker_registry_wait_rounds(struct tracker_registry *r, bool cut)
{
    pthread_mutex_lock(&r->lock);
    for (struct round *round = r->rounds; cut && round != NULL; round = round->next)
        directory_declare_cancel(swarm_directory(r->config.swarm), round->declarations);
    while (r->rounds != NULL)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}
