/*
 * Requests and queries. A request is what a caller asked: any number of UIDs, one deadline, one
 * callback. A query is one key being asked of the DHT, for every request that waits for it.
 *
 *   WAITING -> ASKED -> answered at the first record that verifies -> LINGERING -> freed
 *              ASKED -> came back empty -> PAUSED -> WAITING -> ASKED -> miss
 */
#include "dht/directory_internal.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum { MAX_OWN_KEYS = 256, MAX_ATTEMPTS = 2 };

/* ---- waiters and requests ---- */

static void detach(struct waiter *w)
{
    if (w->query == NULL)
        return;
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    w->query = NULL;
}

static void attach(struct waiter *w, struct query *q)
{
    w->query = q;
    w->next = q->waiters;
    w->link = &q->waiters;
    if (w->next != NULL)
        w->next->link = &w->next;
    q->waiters = w;
}

static void link_request(struct request **list, struct request *r)
{
    r->next = *list;
    r->link = list;
    if (r->next != NULL)
        r->next->link = &r->next;
    *list = r;
}

static void unlink_request(struct request *r)
{
    *r->link = r->next;
    if (r->next != NULL)
        r->next->link = r->link;
}

/* One UID of the request has its result. */
static void count_down(struct directory *d, struct request *r)
{
    if (--r->remaining > 0)
        return;
    unlink_request(r);
    r->finished = true;
    if (r->helper != NULL)
        inbox_help_finish(d->inbox, r->helper);
    else
        link_request(&d->completed, r);
}

static void set_result(struct waiter *w, skep_status status)
{
    struct request *r = w->request;

    if (r->results == NULL)
        return;
    struct lookup_result *result = &r->results[w - r->waiters];
    result->status = status;
    result->provider_count = 0;
}

/* Ends what is open of a request with one status; it is completed then. */
static void end_request(struct directory *d, struct request *r, skep_status status)
{
    for (size_t i = 0; i < r->count && !r->finished; i++) {
        struct waiter *w = &r->waiters[i];
        if (w->query == NULL)
            continue;
        detach(w);
        set_result(w, status);
        count_down(d, r);
    }
}

void requests_timers(struct directory *d, uint64_t now_us)
{
    for (struct request *r = d->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (r->deadline_us <= now_us)
            end_request(d, r, SKEP_DEADLINE_EXCEEDED);
        else
            directory_due(d, r->deadline_us);
    }
}

void requests_cancel_all(struct directory *d)
{
    while (d->requests != NULL)
        end_request(d, d->requests, SKEP_CANCELLED);
}

static void free_request(struct request *r)
{
    mem_free(r->results);
    mem_free(r);
}

void requests_run_completed(struct directory *d)
{
    pthread_mutex_lock(&d->lock);
    struct request *r = d->completed;
    d->completed = NULL;
    pthread_mutex_unlock(&d->lock);

    while (r != NULL) {
        struct request *next = r->next;
        if (r->found_own != NULL)
            r->found_own(r->arg, r->own_seq);
        else
            r->found(r->arg, r->results, r->count);
        free_request(r);
        r = next;
    }
}

/* ---- queries ---- */

static struct query **table_slot(struct directory *d, const uint8_t *key)
{
    return &d->table[load_u32(key) % QUERY_BUCKETS];
}

static struct query *find_query(struct directory *d, const uint8_t *key)
{
    struct query *q = *table_slot(d, key);

    while (q != NULL && memcmp(q->key, key, RECORD_KEY_BYTES) != 0)
        q = q->chain;
    return q;
}

static void leave_table(struct directory *d, struct query *q)
{
    if (!q->in_table)
        return;
    struct query **link = table_slot(d, q->key);
    while (*link != q)
        link = &(*link)->chain;
    *link = q->chain;
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
static struct query *new_query(struct directory *d, const uint8_t *key, const char *uid)
{
    if (d->query_count >= MAX_QUERIES)
        return NULL;
    struct query *q = mem_calloc(1, sizeof(*q));
    if (q == NULL)
        return NULL;
    memcpy(q->key, key, RECORD_KEY_BYTES);
    if (uid != NULL) {
        memcpy(q->uid, uid, strlen(uid) + 1); /* uid_is_valid() bounds it by UID_BYTES */
        q->chain = *table_slot(d, key);
        *table_slot(d, key) = q;
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
    for (struct ask *ask = d->oldest_ask; q->asks > 0 && ask != NULL; ask = ask->newer)
        if (ask->owner == q) {
            ask->owner = NULL;
            q->asks--;
        }
    provider_set_free(&q->found);
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

void query_answer(struct directory *d, struct query *q, skep_status status)
{
    struct lookup_result *first = NULL;

    while (q->waiters != NULL) {
        struct waiter *w = q->waiters;
        struct request *r = w->request;
        detach(w);
        set_result(w, status);
        if (r->results != NULL && status == SKEP_OK) {
            struct lookup_result *result = &r->results[w - r->waiters];
            if (first == NULL)
                result->provider_count =
                    provider_set_list(&q->found, result->providers, DIRECTORY_MAX_PROVIDERS);
            else
                *result = *first;
            first = result;
        }
        count_down(d, r);
    }
    if (status == SKEP_NOT_FOUND && !q->own) {
        struct cache_entry *e = lookup_cache_touch(&d->cache, q->key);
        if (e != NULL)
            e->miss_until_us = clock_mono_us() + d->miss_ttl_us;
        d->stats.get_misses++;
    }
    linger(d, q);
}

static void ask_dht(struct directory *d, struct query *q, uint64_t now_us)
{
    struct ask *ask = directory_ask(d, q, SIZE_MAX, now_us);

    if (ask == NULL) {
        query_answer(d, q, SKEP_RESOURCE_EXHAUSTED);
        return;
    }
    leave_fifo(d, q);
    q->state = QUERY_ASKED;
    q->ask = ask;
    q->asks++;
    q->attempts++;
    q->asked_us = now_us;
    q->holds_slot = true;
    d->gets_in_flight++;
    d->stats.gets++;
    directory_due(d, now_us + SLOT_HOLD_US);
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

void query_done(struct directory *d, struct ask *ask, bool ok)
{
    struct query *q = ask->owner;

    q->asks--;
    if (q->ask == ask) {
        q->ask = NULL;
        release_slot(d, q);
        if (q->state == QUERY_ASKED) {
            q->state = QUERY_ENDED;
            q->ended_ok = ok;
            q->fifo = d->ended;
            d->ended = q;
        }
    }
    if (q->state == QUERY_LINGERING && q->asks == 0)
        free_query(d, q);
}

/* An attempt came back without a record that verifies. */
static void conclude_query(struct directory *d, struct query *q, bool has_peers, uint64_t now_us)
{
    bool last = q->attempts >= MAX_ATTEMPTS || (q->own && q->verifications > 0);

    if (q->found.withdrawn > 0) {
        query_answer(d, q, SKEP_NOT_FOUND); /* whoever served it said so: nothing to doubt */
    } else if (!has_peers) {
        query_answer(d, q, SKEP_UNAVAILABLE);
    } else if (last) {
        query_answer(d, q, q->ended_ok ? SKEP_NOT_FOUND : SKEP_UNAVAILABLE);
    } else {
        q->state = QUERY_PAUSED;
        q->again_us = now_us + RETRY_PAUSE_US + randombytes_uniform(RETRY_PAUSE_US);
        directory_due(d, q->again_us);
        d->stats.get_retries++;
    }
}

/* Nobody to ask, and OpenDHT holds gets back then. Those in our own FIFO stay there without
 * waiters, and are dropped at their turn. */
static void answer_unavailable(struct directory *d)
{
    for (struct query *q = d->queries; q != NULL; q = q->next) {
        while (q->state == QUERY_WAITING && q->waiters != NULL) {
            struct waiter *w = q->waiters;
            detach(w);
            set_result(w, SKEP_UNAVAILABLE);
            count_down(d, w->request);
        }
        if (q->state == QUERY_ASKED || q->state == QUERY_PAUSED)
            query_answer(d, q, SKEP_UNAVAILABLE);
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
    uint64_t limit = q->asked_us + (q->attempts < MAX_ATTEMPTS ? ATTEMPT_US : LAST_ATTEMPT_US);

    if (q->holds_slot && q->asked_us + SLOT_HOLD_US <= now_us)
        release_slot(d, q);
    if (q->holds_slot)
        directory_due(d, q->asked_us + SLOT_HOLD_US);
    if (q->waiters == NULL) {
        linger(d, q);
    } else if (limit > now_us) {
        directory_due(d, limit);
    } else if (q->attempts < MAX_ATTEMPTS) {
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

/* ---- what callers call ---- */

static const struct local *find_local(const struct directory *d, const char *uid)
{
    size_t first = 0, end = d->local_count;

    while (first < end) {
        size_t middle = first + (end - first) / 2;
        int order = strcmp(uid, d->locals[middle].uid);
        if (order == 0)
            return &d->locals[middle];
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return NULL;
}

/* Answers from what is known here; false if the DHT has to be asked. */
static bool answer_locally(struct directory *d, const char *uid, const uint8_t *key, unsigned flags,
                           struct lookup_result *result)
{
    const struct local *local = find_local(d, uid);

    result->provider_count = 0;
    if (local != NULL) {
        result->status = SKEP_OK;
        result->provider_count = 1;
        result->providers[0] = local->provider;
        result->providers[0].seq = d->last_seq;
        return true;
    }
    struct cache_entry *e = flags & DIRECTORY_FRESH ? NULL : lookup_cache_find(&d->cache, key);
    if (e == NULL)
        return false;
    provider_set_expire(&e->found, d->wall_ms() / 1000);
    if (e->found.live > 0) {
        result->status = SKEP_OK;
        result->provider_count =
            provider_set_list(&e->found, result->providers, DIRECTORY_MAX_PROVIDERS);
        d->stats.get_hits++;
        return true;
    }
    result->status = SKEP_NOT_FOUND;
    return e->miss_until_us > clock_mono_us();
}

/* One UID of a request: its result, or a query to wait for. */
static void look_up(struct directory *d, struct request *r, size_t i, const char *uid,
                    unsigned flags)
{
    struct waiter *w = &r->waiters[i];
    uint8_t key[RECORD_KEY_BYTES];

    if (uid == NULL || !uid_is_valid(uid, strnlen(uid, UID_BYTES))) {
        set_result(w, SKEP_INVALID_ARGUMENT);
        return;
    }
    record_key_expert(d->swarm, uid, key);
    if (answer_locally(d, uid, key, flags, &r->results[i]))
        return;
    struct query *q = find_query(d, key);
    if (q == NULL)
        q = new_query(d, key, uid);
    if (q == NULL) {
        set_result(w, SKEP_RESOURCE_EXHAUSTED);
        return;
    }
    attach(w, q);
    r->remaining++;
}

/* NULL with err filled in if memory is short. Results are the caller's to set. */
static struct request *new_request(size_t count, uint64_t deadline_us, struct skep_error *err)
{
    size_t bytes;
    struct request *r = NULL;

    if (size_mul(count, sizeof(struct waiter), &bytes) && size_add(bytes, sizeof(*r), &bytes))
        r = mem_calloc(1, bytes);
    if (r == NULL) {
        error_no_memory(err, "directory lookup", count * sizeof(struct waiter));
        return NULL;
    }
    r->count = count;
    r->deadline_us = deadline_us;
    for (size_t i = 0; i < count; i++)
        r->waiters[i].request = r;
    return r;
}

/* Looks up everything and starts what there are slots for. With the lock held. */
static void begin(struct directory *d, struct request *r, const char *const *uids, unsigned flags)
{
    for (size_t i = 0; i < r->count; i++)
        look_up(d, r, i, uids[i], flags);
    if (r->remaining == 0) {
        r->finished = true;
        if (r->helper == NULL)
            link_request(&d->completed, r);
        return;
    }
    link_request(&d->requests, r);
    directory_due(d, r->deadline_us);
    /* From the caller's own thread: one hop less on the way to the first value. */
    queries_start(d, clock_mono_us());
}

static skep_status refuse_closing(struct skep_error *err)
{
    return error_set(err, SKEP_CANCELLED, "directory: is being closed");
}

skep_status directory_get(struct directory *d, const char *const *uids, size_t count,
                          unsigned flags, uint64_t deadline_us, directory_found_fn found, void *arg,
                          struct skep_error *err)
{
    struct request *r = new_request(count, deadline_us, err);

    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->results = mem_calloc(count, sizeof(*r->results));
    if (r->results == NULL) {
        free_request(r);
        return error_no_memory(err, "lookup results", count * sizeof(struct lookup_result));
    }
    r->found = found;
    r->arg = arg;
    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    if (!closing)
        begin(d, r, uids, flags);
    pthread_mutex_unlock(&d->lock);
    if (closing) {
        free_request(r);
        return refuse_closing(err);
    }
    inbox_wake(d->inbox); /* timers, or the callback */
    return SKEP_OK;
}

/*
 * Waits, and does the work as it comes in. In the usual case a value comes within milliseconds;
 * only when none does must the directory's thread hear of the timers that were set.
 */
static void wait_request(struct directory *d, struct request *r)
{
    uint64_t until = clock_mono_us() + PEER_CHECK_FIRST_US;

    for (;;) {
        uint64_t wait_us = until < r->deadline_us ? until : r->deadline_us;
        enum inbox_call call = inbox_help_wait(d->inbox, r->helper, wait_us);
        if (call == INBOX_FINISHED)
            return;
        if (call == INBOX_WORK) {
            directory_work(d);
            continue;
        }
        if (r->deadline_us <= clock_mono_us()) {
            pthread_mutex_lock(&d->lock);
            if (!r->finished)
                end_request(d, r, SKEP_DEADLINE_EXCEEDED);
            pthread_mutex_unlock(&d->lock);
        }
        until = CLOCK_NEVER;
        inbox_wake(d->inbox);
    }
}

/* False if the directory is being closed. */
static bool get_wait(struct directory *d, struct request *r, const char *const *uids,
                     unsigned flags)
{
    struct inbox_helper helper;

    r->helper = &helper;
    inbox_help_begin(d->inbox, &helper);
    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    d->sync_waiters++;
    if (!closing)
        begin(d, r, uids, flags);
    bool wait = !closing && !r->finished;
    pthread_mutex_unlock(&d->lock);
    if (wait)
        wait_request(d, r);
    inbox_help_end(d->inbox, &helper);

    pthread_mutex_lock(&d->lock);
    if (--d->sync_waiters == 0)
        pthread_cond_broadcast(&d->no_waiting);
    pthread_mutex_unlock(&d->lock);
    return !closing;
}

skep_status directory_get_wait(struct directory *d, const char *const *uids, size_t count,
                               unsigned flags, uint64_t deadline_us, struct lookup_result *results,
                               struct skep_error *err)
{
    for (size_t i = 0; i < count; i++) {
        results[i].status = SKEP_RESOURCE_EXHAUSTED;
        results[i].provider_count = 0;
    }
    struct request *r = new_request(count, deadline_us, err);
    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->results = results;
    bool asked = get_wait(d, r, uids, flags);
    mem_free(r);
    if (asked)
        return SKEP_OK;
    for (size_t i = 0; i < count; i++)
        results[i].status = SKEP_CANCELLED;
    return refuse_closing(err);
}

void directory_get_cancel(struct directory *d, const void *arg)
{
    pthread_mutex_lock(&d->lock);
    for (struct request *r = d->requests, *next; r != NULL; r = next) {
        next = r->next;
        if (r->helper == NULL && r->arg == arg)
            end_request(d, r, SKEP_CANCELLED);
    }
    pthread_mutex_unlock(&d->lock);
    inbox_wake(d->inbox);
}

skep_status directory_find_own(struct directory *d, const uint8_t *keys, size_t count,
                               uint64_t deadline_us, directory_own_fn found, void *arg,
                               struct skep_error *err)
{
    if (count == 0 || count > MAX_OWN_KEYS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "directory: %zu own keys, expected 1 to %d",
                         count, MAX_OWN_KEYS);
    struct request *r = new_request(count, deadline_us, err);
    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->found_own = found;
    r->arg = arg;

    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    for (size_t i = 0; i < count && !closing; i++) {
        struct query *q = new_query(d, keys + i * RECORD_KEY_BYTES, NULL);
        if (q == NULL)
            continue;
        attach(&r->waiters[i], q);
        r->remaining++;
    }
    bool failed = r->remaining == 0;
    if (!failed) {
        link_request(&d->requests, r);
        directory_due(d, deadline_us);
        queries_start(d, clock_mono_us());
    }
    pthread_mutex_unlock(&d->lock);
    if (closing || failed) {
        free_request(r);
        return closing ? refuse_closing(err) : error_no_memory(err, "own records", count);
    }
    inbox_wake(d->inbox);
    return SKEP_OK;
}
