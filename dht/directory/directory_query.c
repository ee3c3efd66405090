/*
 * Queries: one key being asked of the DHT, for every request that waits for it.
 *
 *   WAITING -> ASKED -> answered at the first record that verifies -> LINGERING -> freed
 *              (for those who want all: when it is done, or a moment after the first record)
 *              ASKED -> came back empty -> PAUSED -> WAITING -> ASKED -> miss
 *
 * It is asked twice at most: first for short records (runner_get_short()), then by a plain get.
 */
#include "dht/directory/directory_internal.h"

#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "crypto/keyed_hash.h"

enum {
    MAX_ATTEMPTS = 2,
    FULL_LOG_MS = 60 * 1000,
};

struct query *query_find(struct directory *d, const uint8_t *key)
{
    for (struct hash_node *n = hash_table_first(&d->table, keyed_hash(key, RECORD_KEY_BYTES));
         n != NULL; n = hash_table_next(n)) {
        struct query *q = HASH_HOLDER(n, struct query, by_key);
        if (memcmp(q->key, key, RECORD_KEY_BYTES) == 0)
            return q;
    }
    return NULL;
}

static void leave_table(struct directory *d, struct query *q)
{
    if (!q->in_table)
        return;
    hash_table_remove(&d->table, &q->by_key);
    q->in_table = false;
}

static void wait_for_slot(struct directory *d, struct query *q)
{
    q->state = QUERY_WAITING;
    q->fifo = NULL;
    *d->waiting_last = q;
    d->waiting_last = &q->fifo;
}

/* uid NULL: records of our own under this key. NULL: memory is short or too many are open. */
struct query *query_new(struct directory *d, const uint8_t *key, const char *uid)
{
    if (d->query_count >= MAX_QUERIES)
        return NULL;
    struct query *q = mem_calloc(1, sizeof(*q));
    if (q == NULL)
        return NULL;
    memcpy(q->key, key, RECORD_KEY_BYTES);
    randombytes_buf(&q->order_seed, sizeof(q->order_seed));
    if (uid != NULL) {
        memcpy(q->uid, uid, strlen(uid) + 1); /* uid_is_valid() bounds it by UID_BYTES */
        hash_table_add(&d->table, &q->by_key, keyed_hash(key, RECORD_KEY_BYTES));
        q->in_table = true;
    } else {
        q->own = true;
    }
    q->next = d->queries;
    q->link = &d->queries;
    if (q->next != NULL)
        q->next->link = &q->next;
    d->queries = q;
    d->query_count++;
    q->check_us = clock_mono_us() + PEER_CHECK_FIRST_US;
    directory_due(d, q->check_us);
    wait_for_slot(d, q);
    return q;
}

static void release_slot(struct directory *d, struct query *q)
{
    if (q->holds_slot)
        d->gets_in_flight--;
    q->holds_slot = false;
}

/* Only on the directory's thread, and not while q is in the FIFO. */
static void free_query(struct directory *d, struct query *q)
{
    leave_table(d, q);
    release_slot(d, q);
    *q->link = q->next;
    if (q->next != NULL)
        q->next->link = q->link;
    d->query_count--;
    for (struct dht_request *ask = d->oldest_ask; q->asks > 0 && ask != NULL; ask = ask->newer)
        if (ask->owner == q) {
            ask->owner = NULL;
            q->asks--;
        }
    provider_set_free(&q->found);
    collection_unref(q->records);
    mem_free(q);
}

void queries_free_all(struct directory *d)
{
    d->waiting = d->ended = NULL;
    d->waiting_last = &d->waiting;
    while (d->queries != NULL)
        free_query(d, d->queries);
}

static void leave_fifo(struct directory *d, struct query *q)
{
    struct query **link = &d->waiting;

    while (*link != q)
        link = &(*link)->fifo;
    *link = q->fifo;
    if (d->waiting_last == &q->fifo)
        d->waiting_last = link;
}

static void linger(struct directory *d, struct query *q)
{
    if (q->state == QUERY_WAITING)
        leave_fifo(d, q);
    leave_table(d, q);
    release_slot(d, q);
    q->state = QUERY_LINGERING;
    q->linger_until_us = clock_mono_us() + LINGER_US;
    directory_due(d, q->linger_until_us);
}

/* In an overflow those that have answered before may come late, or not at all in time. */
static void add_answered(struct directory *d, struct query *q)
{
    const struct ranking ranking = {d->memory, q->order_seed, clock_mono_us()};
    const struct cache_entry *e = lookup_cache_find(&d->cache, q->key);

    if (e != NULL && q->found.live >= DIRECTORY_MAX_PROVIDERS)
        provider_set_add_answered(&q->found, &e->found, d->wall_ms() / 1000, &ranking);
}

/* Gives those who wait their results; `patient` are also those who want all. */
static void answer_waiters(struct directory *d, struct query *q, skep_status status, bool patient)
{
    struct lookup_result *first = NULL;

    add_answered(d, q);
    for (struct waiter *w = q->waiters, *next; w != NULL; w = next) {
        struct request *r = w->request;
        next = w->next;
        if (w->wants_all && !patient)
            continue;
        waiter_detach(w);
        waiter_set_result(w, status);
        if (r->collections != NULL && status == SKEP_OK) {
            collection_ref(q->records);
            r->collections[w - r->waiters].records = q->records;
        }
        if (r->results != NULL && status == SKEP_OK) {
            struct lookup_result *result = &r->results[w - r->waiters];
            if (first == NULL)
                result->provider_count =
                    provider_set_list(&q->found, result->providers, DIRECTORY_MAX_PROVIDERS);
            else
                *result = *first;
            first = result;
        }
        request_count_down(d, r);
    }
}

/* What the cache has of this expert is all there is, until others come. */
static void note_whole(struct directory *d, const struct query *q)
{
    struct cache_entry *e = q->own || q->collects ? NULL : lookup_cache_find(&d->cache, q->key);

    if (e != NULL && e->found.live > 0)
        e->whole_until_us = clock_mono_us() + WHOLE_FRESH_US;
}

void query_answer(struct directory *d, struct query *q, skep_status status)
{
    if (status == SKEP_OK && q->settle_us != 0 && !q->collects && q->found.live == 0)
        status = SKEP_NOT_FOUND; /* it has been withdrawn meanwhile */
    if (status == SKEP_OK && q->short_failed)
        d->no_short_until_us = clock_mono_us() + NO_SHORT_US;
    answer_waiters(d, q, status, true);
    if (status == SKEP_NOT_FOUND && !q->own) {
        struct cache_entry *e = lookup_cache_touch(&d->cache, q->key);
        if (e != NULL)
            e->miss_until_us = clock_mono_us() + d->miss_ttl_us;
        d->stats.get_misses++;
    }
    /* What has been handed out must not change any more. */
    collection_unref(q->records);
    q->records = NULL;
    q->settle_us = 0;
    linger(d, q);
}

void query_collected(struct directory *d, struct query *q)
{
    if (q->records == NULL || q->records->count == 0)
        return;
    if (q->state != QUERY_ASKED) {
        query_answer(d, q, SKEP_OK); /* late, after the "done" of an attempt */
    } else if (q->settle_us == 0) {
        q->settle_us = clock_mono_us() + SETTLE_US;
        directory_due(d, q->settle_us);
    }
}

/* Gives what has not come yet as long as the first record took. */
static void settle(struct directory *d, struct query *q)
{
    uint64_t now_us = clock_mono_us();
    uint64_t grace_us = now_us - q->asked_us;

    if (grace_us < GRACE_MIN_US)
        grace_us = GRACE_MIN_US;
    q->settle_us = now_us + (grace_us < GRACE_MAX_US ? grace_us : GRACE_MAX_US);
    directory_due(d, q->settle_us);
}

void query_found(struct directory *d, struct query *q)
{
    if (q->found.live > 0)
        answer_waiters(d, q, SKEP_OK, false);
    if (q->found.live > 0 && (q->waiters == NULL || q->state != QUERY_ASKED))
        query_answer(d, q, SKEP_OK);
    else if (q->found.live + q->found.withdrawn > 0 && q->state == QUERY_ASKED && q->settle_us == 0)
        settle(d, q);
}

static void ask_dht(struct directory *d, struct query *q, uint64_t now_us)
{
    struct dht_request *ask = directory_ask(d, q, SIZE_MAX, now_us);

    if (ask == NULL) {
        query_answer(d, q, SKEP_RESOURCE_EXHAUSTED);
        return;
    }
    leave_fifo(d, q);
    ask->takes_long = q->own || (q->collects && q->record_kind == RECORD_PREFIX);
    q->state = QUERY_ASKED;
    q->ask = ask;
    q->asks++;
    q->attempts++;
    q->asked_us = now_us;
    q->holds_slot = true;
    d->gets_in_flight++;
    d->stats.gets++;
    directory_due(d, now_us + SLOT_HOLD_US);
    q->is_short = !q->own && q->attempts == 1 && d->no_short_until_us <= now_us;
    if (q->is_short)
        runner_get_short(d->runner, q->key, inbox_on_value, inbox_on_reply, inbox_on_done, ask);
    else
        runner_get_replies(d->runner, q->key, inbox_on_value, inbox_on_reply, inbox_on_done, ask);
}

void queries_start(struct directory *d, uint64_t now_us)
{
    while (d->waiting != NULL && d->gets_in_flight < d->max_in_flight && directory_may_ask(d)) {
        struct query *q = d->waiting;
        if (q->waiters == NULL) /* its callers gave up meanwhile */
            linger(d, q);
        else
            ask_dht(d, q, now_us);
    }
}

/* A key that holds more than is read of it: whose records are left out cannot be told. */
static void log_full(const struct query *q)
{
    static struct log_limit gate;
    unsigned long suppressed;

    if (log_limit_passes(&gate, FULL_LOG_MS, &suppressed))
        log_warn("directory: %s: more is stored under this key than the %d values, or %d MiB, that "
                 "are read of it: the rest is left out",
                 q->own ? "own records" : q->uid, INBOX_MAX_ASK_VALUES, INBOX_MAX_ASK_BYTES >> 20);
}

void query_done(struct directory *d, struct dht_request *ask, bool ok)
{
    struct query *q = ask->owner;

    if (atomic_load(&ask->full))
        log_full(q);
    q->asks--;
    if (q->ask == ask) {
        q->ask = NULL;
        release_slot(d, q);
        if (q->state == QUERY_ASKED && q->settle_us != 0) {
            note_whole(d, q);
            query_answer(d, q, SKEP_OK); /* all that there is */
        } else if (q->state == QUERY_ASKED) {
            q->state = QUERY_ENDED;
            q->ended_ok = ok;
            q->fifo = d->ended;
            d->ended = q;
        }
    }
    if (q->state == QUERY_LINGERING && q->asks == 0) {
        if (ok && q->found.live > 0)
            note_whole(d, q);
        free_query(d, q);
    }
}

/* It is asked once more, soon. */
static void pause_query(struct directory *d, struct query *q, uint64_t now_us)
{
    release_slot(d, q);
    q->settle_us = 0;
    q->state = QUERY_PAUSED;
    q->again_us = now_us + RETRY_PAUSE_US + randombytes_uniform(RETRY_PAUSE_US);
    directory_due(d, q->again_us);
    d->stats.get_retries++;
}

/*
 * What is there has to do. If that is only that somebody has withdrawn it, dead nodes hold up the
 * end: it is asked for once more, for whoever left may be back under a new address.
 */
static void conclude_settled(struct directory *d, struct query *q, uint64_t now_us)
{
    const struct ranking ranking = {d->memory, q->order_seed, now_us};

    /* Of an overflow, those that have failed came first: others are on the way. */
    if (!q->collects && now_us < q->asked_us + OVERFLOW_WAIT_US &&
        provider_set_is_spent(&q->found, &ranking)) {
        settle(d, q);
        return;
    }
    note_whole(d, q);
    if (q->collects || q->found.live > 0)
        query_answer(d, q, SKEP_OK);
    else if (q->attempts < MAX_ATTEMPTS)
        pause_query(d, q, now_us);
    else
        query_answer(d, q, SKEP_NOT_FOUND);
}

/* An attempt came back without a record that verifies. */
static void conclude_query(struct directory *d, struct query *q, bool has_peers, uint64_t now_us)
{
    bool last = q->attempts >= MAX_ATTEMPTS || (q->own && q->verifications > 0);

    if (q->collects && q->records != NULL && q->records->count > 0) {
        query_answer(d, q, SKEP_OK); /* it came after the "done" */
    } else if (q->found.withdrawn > 0) {
        query_answer(d, q, SKEP_NOT_FOUND); /* whoever served it said so: nothing to doubt */
    } else if (!has_peers) {
        query_answer(d, q, SKEP_UNAVAILABLE);
    } else if (last) {
        query_answer(d, q, q->ended_ok ? SKEP_NOT_FOUND : SKEP_UNAVAILABLE);
    } else {
        pause_query(d, q, now_us);
    }
}

/* Nobody to ask, and OpenDHT holds gets back then. Those in our own FIFO stay there without
 * waiters, and are dropped at their turn. */
static void answer_unavailable(struct directory *d)
{
    for (struct query *q = d->queries; q != NULL; q = q->next) {
        while (q->state == QUERY_WAITING && q->waiters != NULL) {
            struct waiter *w = q->waiters;
            waiter_detach(w);
            waiter_set_result(w, SKEP_UNAVAILABLE);
            request_count_down(d, w->request);
        }
        if (q->state == QUERY_ASKED || q->state == QUERY_PAUSED)
            query_answer(d, q, q->settle_us != 0 ? SKEP_OK : SKEP_UNAVAILABLE);
    }
}

void queries_conclude(struct directory *d, bool has_peers, uint64_t now_us)
{
    while (d->ended != NULL) {
        struct query *q = d->ended;
        d->ended = q->fifo;
        conclude_query(d, q, has_peers, now_us);
    }
    if (d->check_peers && !has_peers)
        answer_unavailable(d);
    d->check_peers = false;
}

/* Timers of a query that OpenDHT has. */
static void asked_timers(struct directory *d, struct query *q, uint64_t now_us)
{
    uint64_t limit = q->asked_us + (q->is_short                  ? SHORT_ATTEMPT_US
                                    : q->attempts < MAX_ATTEMPTS ? ATTEMPT_US
                                                                 : LAST_ATTEMPT_US);

    if (q->holds_slot && q->asked_us + SLOT_HOLD_US <= now_us)
        release_slot(d, q);
    if (q->holds_slot)
        directory_due(d, q->asked_us + SLOT_HOLD_US);
    if (q->waiters == NULL) {
        linger(d, q);
    } else if (q->settle_us != 0 && q->settle_us <= now_us) {
        conclude_settled(d, q, now_us);
    } else if (q->settle_us != 0) {
        directory_due(d, q->settle_us);
    } else if (limit > now_us) {
        directory_due(d, limit);
    } else if (q->attempts < MAX_ATTEMPTS) {
        q->short_failed = q->is_short;
        d->stats.get_retries++;
        release_slot(d, q);
        wait_for_slot(d, q);
    } else {
        query_answer(d, q, SKEP_DEADLINE_EXCEEDED);
    }
}

void queries_timers(struct directory *d, uint64_t now_us)
{
    for (struct query *q = d->queries, *next; q != NULL; q = next) {
        next = q->next;
        if (q->state == QUERY_PAUSED && q->waiters == NULL)
            linger(d, q);
        if (q->state == QUERY_PAUSED && q->again_us <= now_us)
            wait_for_slot(d, q);
        if (q->state == QUERY_PAUSED)
            directory_due(d, q->again_us);
        if (q->state == QUERY_ASKED)
            asked_timers(d, q, now_us);
        if (q->state != QUERY_LINGERING && q->check_us <= now_us) {
            q->check_us = now_us + PEER_CHECK_US;
            d->check_peers = true;
        }
        if (q->state == QUERY_LINGERING && (q->asks == 0 || q->linger_until_us <= now_us)) {
            free_query(d, q);
            continue;
        }
        directory_due(d, q->state == QUERY_LINGERING ? q->linger_until_us : q->check_us);
    }
}
