/* The directory: life cycle, its thread, timers and clock. directory_internal.h has the map. */
#include "dht/directory/directory_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

enum {
    DEFAULT_IN_FLIGHT = 64,
    DEFAULT_MISS_TTL_MS = 2000,
    DEFAULT_CACHE_ENTRIES = 65536,
    DEFAULT_CLOCK_SKEW_S = 60,
    /* Records may expire at most an hour ahead of a storing node's clock; half of that is left for
     * their own lifetime. */
    MAX_CLOCK_LEAD_MS = 30 * 60 * 1000,
    OWN_RECORD_LOG_MS = 60 * 1000,
};

void directory_due(struct directory *d, uint64_t at_us)
{
    if (at_us < CLOCK_NEVER - TIMER_GRAIN_US)
        at_us |= TIMER_GRAIN_US - 1;
    if (at_us < d->due_us)
        d->due_us = at_us;
}

bool directory_may_ask(const struct directory *d)
{
    return d->outstanding < d->max_in_flight * OUTSTANDING_FACTOR;
}

struct dht_request *directory_ask(struct directory *d, void *owner, size_t index, uint64_t now_us)
{
    struct dht_request *ask = dht_request_new(d->inbox);

    if (ask == NULL)
        return NULL;
    ask->owner = owner;
    ask->index = index;
    ask->started_us = now_us;
    ask->older = d->newest_ask;
    *(d->newest_ask != NULL ? &d->newest_ask->newer : &d->oldest_ask) = ask;
    d->newest_ask = ask;
    d->outstanding++;
    return ask;
}

void directory_ask_over(struct directory *d, struct dht_request *ask)
{
    *(ask->older != NULL ? &ask->older->newer : &d->oldest_ask) = ask->newer;
    *(ask->newer != NULL ? &ask->newer->older : &d->newest_ask) = ask->older;
    ask->older = ask->newer = NULL;
    ask->owner = NULL;
    d->outstanding--;
    dht_request_unref(ask); /* the list's count */
}

/* Whether an ask is still in the directory's list. */
static bool is_listed(const struct directory *d, const struct dht_request *ask)
{
    return ask->older != NULL || ask->newer != NULL || d->oldest_ask == ask;
}

/* Stops counting what OpenDHT has had for so long that it must have lost it. */
static void drop_lost_asks(struct directory *d, uint64_t now_us)
{
    while (d->oldest_ask != NULL && d->oldest_ask->started_us + ASK_LOST_US <= now_us) {
        struct dht_request *ask = d->oldest_ask;
        if (ask->owner != NULL) {
            /* Its owner has a shorter time limit and lets go of it first. */
            directory_due(d, now_us + UINT64_C(1000000));
            return;
        }
        directory_ask_over(d, ask);
    }
    if (d->oldest_ask != NULL)
        directory_due(d, d->oldest_ask->started_us + ASK_LOST_US);
}

int64_t directory_clock(const struct directory *d)
{
    int64_t wall = d->wall_ms();

    if (d->own_ms == 0)
        return wall;
    int64_t own = d->own_ms + (int64_t)((clock_mono_us() - d->own_mono_us) / 1000);
    if (own <= wall)
        return wall;
    return own - wall > MAX_CLOCK_LEAD_MS ? wall + MAX_CLOCK_LEAD_MS : own;
}

int64_t directory_now_ms(struct directory *d)
{
    pthread_mutex_lock(&d->lock);
    int64_t now = directory_clock(d);
    pthread_mutex_unlock(&d->lock);
    return now;
}

void directory_saw_own(struct directory *d, uint64_t seq)
{
    static struct log_limit gate;
    unsigned long suppressed;
    uint64_t now_us = clock_mono_us();
    enum own_sequence kind = own_sequences_saw(&d->own_sequences, seq, now_us);

    if (kind == OWN_SEQUENCE_NEWER || kind == OWN_SEQUENCE_NEWER_FOREIGN) {
        d->own_ms = (int64_t)seq;
        d->own_mono_us = now_us;
    }
    if ((kind == OWN_SEQUENCE_FOREIGN || kind == OWN_SEQUENCE_NEWER_FOREIGN) &&
        log_limit_passes(&gate, OWN_RECORD_LOG_MS, &suppressed))
        log_warn("directory: records that are not ours appear under our own identity: is another "
                 "node running with a copy of the key file?");
}

bool directory_has_peers(struct directory *d)
{
    struct runner_status status;

    runner_status(d->runner, &status);
    return status.good_nodes + status.dubious_nodes > 0;
}

static void timers(struct directory *d)
{
    uint64_t now = clock_mono_us();

    if (now < d->due_us)
        return;
    d->due_us = CLOCK_NEVER;
    requests_timers(d, now);
    queries_timers(d, now);
    batches_timers(d, now);
    drop_lost_asks(d, now);
}

/* A "done": who waited for it, and one count less. With the lock held. */
static void handle_done(struct directory *d, struct inbox_event *event)
{
    struct dht_request *ask = event->request;
    bool is_put = ask->index != SIZE_MAX;

    if (!is_listed(d, ask))
        return;
    if (ask->owner != NULL && is_put)
        batch_done(d, ask, event->ok);
    else if (ask->owner != NULL)
        query_done(d, ask, event->ok);
    directory_ask_over(d, ask);
}

/* Gives a value to its query, to be checked with the others of this round. With the lock held. */
static void handle_value(struct inbox_event *event, struct query **touched)
{
    struct query *q = event->request->owner;

    if (q == NULL) {
        inbox_event_free(event);
        return;
    }
    event->next = q->candidates;
    q->candidates = event;
    q->candidate_count++;
    if (!q->is_touched) {
        q->is_touched = true;
        q->touched = *touched;
        *touched = q;
    }
}

/*
 * All that arrived: first the values of every query, so that the replicas of one packet are all in
 * the answer, then what ended.
 */
static void handle_events(struct directory *d, struct inbox_event *events)
{
    struct query *touched = NULL;
    struct inbox_event *ends = NULL, **last = &ends;

    pthread_mutex_lock(&d->lock);
    while (events != NULL) {
        struct inbox_event *event = events;
        events = event->next;
        if (event->done) {
            event->next = NULL;
            *last = event;
            last = &event->next;
        } else {
            handle_value(event, &touched);
        }
    }
    pthread_mutex_unlock(&d->lock);

    for (struct query *q = touched; q != NULL; q = q->touched)
        query_check_candidates(d, q);

    pthread_mutex_lock(&d->lock);
    while (touched != NULL) {
        struct query *q = touched;
        touched = q->touched;
        q->is_touched = false;
        if (q->state == QUERY_LINGERING || q->state == QUERY_ENDED)
            continue;
        if (q->collects)
            query_collected(d, q);
        else
            query_found(d, q);
    }
    while (ends != NULL) {
        struct inbox_event *event = ends;
        ends = event->next;
        handle_done(d, event);
        inbox_event_free(event);
    }
    pthread_mutex_unlock(&d->lock);
}

/* What needs to know whether there are peers: looked up once, outside the lock. */
static void conclude(struct directory *d)
{
    uint64_t now = clock_mono_us();

    pthread_mutex_lock(&d->lock);
    bool needed = d->ended != NULL || d->check_peers;
    pthread_mutex_unlock(&d->lock);
    if (!needed)
        return;
    bool has_peers = directory_has_peers(d);
    pthread_mutex_lock(&d->lock);
    queries_conclude(d, has_peers, now);
    pthread_mutex_unlock(&d->lock);
}

void directory_work(struct directory *d)
{
    pthread_mutex_lock(&d->worker);
    struct inbox_event *events = inbox_take(d->inbox);
    if (events != NULL)
        handle_events(d, events);
    pthread_mutex_lock(&d->lock);
    timers(d);
    pthread_mutex_unlock(&d->lock);
    batches_push(d);
    conclude(d);

    pthread_mutex_lock(&d->lock);
    queries_start(d, clock_mono_us());
    batches_start(d, clock_mono_us());
    bool wake = d->completed != NULL || d->batches_done != NULL || d->due_us < d->sleep_us;
    if (wake)
        d->sleep_us = 0; /* once is enough */
    pthread_mutex_unlock(&d->lock);
    pthread_mutex_unlock(&d->worker);
    if (wake)
        inbox_wake(d->inbox);
}

static void run(void *arg)
{
    struct directory *d = arg;
    bool closing = false;

    while (!closing) {
        pthread_mutex_lock(&d->lock);
        d->sleep_us = d->due_us;
        uint64_t until_us = d->sleep_us;
        pthread_mutex_unlock(&d->lock);
        inbox_wait(d->inbox, until_us);

        pthread_mutex_lock(&d->lock);
        d->sleep_us = 0;
        pthread_mutex_unlock(&d->lock);
        directory_work(d);

        pthread_mutex_lock(&d->lock);
        closing = d->closing;
        if (closing) {
            requests_cancel_all(d);
            batches_cancel_all(d);
        }
        pthread_mutex_unlock(&d->lock);
        requests_run_completed(d);
        batches_run_done(d);
    }
}

skep_status directory_new(const struct directory_config *config, struct directory **out,
                          struct skep_error *err)
{
    *out = NULL;
    struct directory *d = mem_calloc(1, sizeof(*d));
    if (d == NULL)
        return error_no_memory(err, "directory", sizeof(*d));

    d->runner = config->runner;
    d->identity = config->identity;
    d->swarm = config->swarm;
    d->max_in_flight = config->max_in_flight ? config->max_in_flight : DEFAULT_IN_FLIGHT;
    d->miss_ttl_us =
        1000u * (uint64_t)(config->miss_ttl_ms ? config->miss_ttl_ms : DEFAULT_MISS_TTL_MS);
    d->clock_skew_s =
        config->swarm->clock_skew_s ? config->swarm->clock_skew_s : DEFAULT_CLOCK_SKEW_S;
    d->wall_ms = config->wall_ms != NULL ? config->wall_ms : clock_wall_ms;
    d->due_us = CLOCK_NEVER;
    d->waiting_last = &d->waiting;
    d->batches_last = &d->batches;
    pthread_mutex_init(&d->worker, NULL);
    pthread_mutex_init(&d->lock, NULL);
    live_views_init(&d->live_views);
    cond_init(&d->no_waiting);

    skep_status rc = lookup_cache_init(
        &d->cache, config->cache_entries ? config->cache_entries : DEFAULT_CACHE_ENTRIES, err);
    if (rc == SKEP_OK && !hash_table_init(&d->table, EXPECTED_QUERIES))
        rc = error_no_memory(err, "lookups", EXPECTED_QUERIES * sizeof(struct hash_node *));
    if (rc == SKEP_OK)
        rc = peer_memory_new(&d->memory, err);
    if (rc == SKEP_OK)
        rc = inbox_new(&d->inbox, err);
    if (rc == SKEP_OK)
        rc = thread_start(&d->thread, "skep-directory", run, d, err);
    if (rc != SKEP_OK) {
        directory_free(d);
        return rc;
    }
    *out = d;
    return SKEP_OK;
}

void directory_free(struct directory *d)
{
    if (d == NULL)
        return;
    pthread_mutex_lock(&d->lock);
    d->closing = true;
    pthread_mutex_unlock(&d->lock);
    if (d->inbox != NULL)
        inbox_wake(d->inbox);
    thread_join(&d->thread);

    pthread_mutex_lock(&d->lock);
    while (d->sync_waiters > 0)
        pthread_cond_wait(&d->no_waiting, &d->lock);
    queries_free_all(d);
    pthread_mutex_unlock(&d->lock);

    if (d->inbox != NULL)
        inbox_close(d->inbox);
    while (d->oldest_ask != NULL)
        directory_ask_over(d, d->oldest_ask);
    inbox_unref(d->inbox);
    hash_table_fini(&d->table);
    lookup_cache_fini(&d->cache);
    overflow_fini(&d->overflow);
    peer_memory_free(d->memory);
    mem_free(d->locals);
    pthread_cond_destroy(&d->no_waiting);
    live_views_fini(&d->live_views);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->worker);
    mem_free(d);
}

static int compare_locals(const void *a, const void *b)
{
    return strcmp(((const struct local *)a)->uid, ((const struct local *)b)->uid);
}

skep_status directory_set_local(struct directory *d, const struct record_expert *experts,
                                size_t count, struct skep_error *err)
{
    struct local *locals = mem_calloc(count, sizeof(*locals));
    size_t n = 0;

    if (locals == NULL)
        return error_no_memory(err, "local experts", count * sizeof(*locals));
    for (size_t i = 0; i < count; i++) {
        if (experts[i].offline)
            continue;
        struct local *l = &locals[n++];
        memcpy(l->uid, experts[i].uid, sizeof(l->uid));
        memcpy(l->provider.peer_id, d->identity->peer_id, PEER_ID_BYTES);
        l->provider.expires_at = INT64_MAX;
        l->provider.endpoint_count = experts[i].endpoint_count;
        memcpy(l->provider.endpoints, experts[i].endpoints, sizeof(l->provider.endpoints));
        memcpy(l->provider.cls, experts[i].cls, sizeof(l->provider.cls));
        memcpy(l->provider.schema_digest, experts[i].schema_digest,
               sizeof(l->provider.schema_digest));
        l->provider.features = experts[i].features;
        l->provider.load = experts[i].load;
        l->provider.local = true;
    }
    qsort(locals, n, sizeof(*locals), compare_locals);

    pthread_mutex_lock(&d->lock);
    struct local *old = d->locals;
    d->locals = locals;
    d->local_count = n;
    d->locals_set = true;
    pthread_mutex_unlock(&d->lock);
    mem_free(old);
    return SKEP_OK;
}

void directory_forget_peer(struct directory *d, const uint8_t peer_id[static PEER_ID_BYTES])
{
    const struct ranking ranking = {d->memory, 0, clock_mono_us()};

    peer_memory_failed(d->memory, peer_id, ranking.now_us);
    pthread_mutex_lock(&d->lock);
    lookup_cache_forget(&d->cache, peer_id, &ranking);
    pthread_mutex_unlock(&d->lock);
}

void directory_peer_answered(struct directory *d, const uint8_t peer_id[static PEER_ID_BYTES])
{
    peer_memory_answered(d->memory, peer_id, clock_mono_us());
}

void directory_keep(struct directory *d, const char *uid, const struct provider *p)
{
    struct record record = {
        .kind = RECORD_EXPERT,
        .seq = p->seq,
        .expires_at = p->expires_at,
        .expert = {.endpoint_count = p->endpoint_count, .features = p->features, .load = p->load},
    };
    const struct ranking ranking = {d->memory, 0, clock_mono_us()};
    uint8_t key[RECORD_KEY_BYTES];

    directory_peer_answered(d, p->peer_id);
    if (p->local || p->cls[0] == '\0')
        return; /* ourselves, or from a prefix record, which says less */
    memcpy(record.peer_id, p->peer_id, sizeof(record.peer_id));
    memcpy(record.expert.endpoints, p->endpoints, sizeof(record.expert.endpoints));
    memcpy(record.expert.cls, p->cls, sizeof(record.expert.cls));
    memcpy(record.expert.schema_digest, p->schema_digest, sizeof(record.expert.schema_digest));
    record_key_expert(d->swarm, uid, key);
    pthread_mutex_lock(&d->lock);
    struct cache_entry *e = lookup_cache_touch(&d->cache, key);
    if (e != NULL)
        provider_set_merge(&e->found, &record, d->wall_ms() / 1000, &ranking);
    pthread_mutex_unlock(&d->lock);
}

uint64_t directory_peer_rank(struct directory *d, const uint8_t peer_id[static PEER_ID_BYTES])
{
    return peer_memory_rank(d->memory, peer_id, 0, clock_mono_us());
}

void directory_stats(struct directory *d, struct directory_stats *out)
{
    uint64_t dropped = inbox_dropped(d->inbox);

    pthread_mutex_lock(&d->lock);
    *out = d->stats;
    pthread_mutex_unlock(&d->lock);
    out->records_refused += dropped;
}
