/* Requests: what a caller asked, with any number of UIDs, one deadline and one callback. */
#include "dht/directory/directory_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum { MAX_OWN_KEYS = 256 };

/* ---- waiters and requests ---- */

void waiter_detach(struct waiter *w)
{
    if (w->query == NULL)
        return;
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    w->query = NULL;
}

void waiter_attach(struct waiter *w, struct query *q)
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
void request_count_down(struct directory *d, struct request *r)
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

void waiter_set_result(struct waiter *w, skep_status status)
{
    struct request *r = w->request;

    if (r->collections != NULL)
        r->collections[w - r->waiters].status = status;
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
        if (status == SKEP_DEADLINE_EXCEEDED && w->query->settle_us != 0) {
            query_answer(d, w->query, SKEP_OK); /* not all of it, but some */
            continue;
        }
        waiter_detach(w);
        waiter_set_result(w, status);
        request_count_down(d, r);
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
            r->found_own(r->arg, r->own_sequence);
        else
            r->found(r->arg, r->results, r->count);
        free_request(r);
        r = next;
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

/* Those of an overflow that was read just now whose turn has not come yet: as fresh as asking for
 * all of it again, which would bring the same. */
static bool answer_from_overflow(struct directory *d, const uint8_t *key,
                                 struct lookup_result *result)
{
    const struct ranking ranking = {d->memory, 0, clock_mono_us()};

    const struct cache_entry *e = lookup_cache_find(&d->cache, key);
    result->provider_count =
        overflow_list(&d->overflow, key, e != NULL ? &e->found : NULL, d->wall_ms() / 1000,
                      &ranking, result->providers, DIRECTORY_MAX_PROVIDERS);
    result->status = SKEP_OK;
    d->stats.get_hits += result->provider_count > 0;
    return result->provider_count > 0;
}

/* False: no live view that is in step covers it. */
static bool answer_from_view(struct directory *d, const char *uid, struct lookup_result *out)
{
    const char *dot = strrchr(uid, '.');
    struct prefix_view *view = NULL;

    if (dot == NULL || !live_views_find(&d->live_views, uid, (size_t)(dot - uid) + 1, &view))
        return false;
    out->status = SKEP_NOT_FOUND;
    out->provider_count = 0;
    size_t at = view != NULL ? prefix_view_find(view, strtoll(dot + 1, NULL, 10)) : SIZE_MAX;
    if (at != SIZE_MAX)
        out->provider_count = prefix_view_providers(view, at, d->wall_ms() / 1000, out->providers,
                                                    DIRECTORY_MAX_PROVIDERS);
    if (out->provider_count > 0)
        out->status = SKEP_OK;
    prefix_view_unref(view);
    return true;
}

/* Answers from what is known here; false if the DHT has to be asked. */
static bool answer_locally(struct directory *d, const char *uid, const uint8_t *key, unsigned flags,
                           struct lookup_result *result)
{
    const struct local *local = find_local(d, uid);

    result->provider_count = 0;
    if (local != NULL && !(flags & DIRECTORY_OTHERS)) {
        result->status = SKEP_OK;
        result->provider_count = 1;
        result->providers[0] = local->provider;
        result->providers[0].seq = d->own_sequences.last;
        return true;
    }
    if (!(flags & DIRECTORY_FRESH) && answer_from_view(d, uid, result))
        return true;
    /* Whoever wants all of it anew could not use what was named before. */
    if (flags & DIRECTORY_ALL && flags & DIRECTORY_FRESH && answer_from_overflow(d, key, result))
        return true;
    struct cache_entry *e = flags & DIRECTORY_FRESH ? NULL : lookup_cache_find(&d->cache, key);
    if (e == NULL)
        return false;
    provider_set_expire(&e->found, d->wall_ms() / 1000);
    if (e->found.live > 0) {
        if (flags & DIRECTORY_ALL && e->whole_until_us <= clock_mono_us())
            return false;
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
        waiter_set_result(w, SKEP_INVALID_ARGUMENT);
        return;
    }
    record_key_expert(d->swarm, uid, key);
    if (answer_locally(d, uid, key, flags, &r->results[i]))
        return;
    struct query *q = query_find(d, key);
    if (q == NULL)
        q = query_new(d, key, uid);
    if (q == NULL) {
        waiter_set_result(w, SKEP_RESOURCE_EXHAUSTED);
        return;
    }
    w->wants_all = (flags & DIRECTORY_ALL) != 0;
    waiter_attach(w, q);
    r->remaining++;
}

/* Results are the caller's to set. */
struct request *request_new(size_t count, uint64_t deadline_us, struct skep_error *err)
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

/* Lists a request whose waiters are set up, and starts what there are slots for. */
void request_enter(struct directory *d, struct request *r)
{
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

struct wanted {
    const char *const *uids;
    unsigned flags;
};

static void look_all_up(struct directory *d, struct request *r, const void *what)
{
    const struct wanted *wanted = what;

    for (size_t i = 0; i < r->count; i++)
        look_up(d, r, i, wanted->uids[i], wanted->flags);
    request_enter(d, r);
}

skep_status request_refuse_closing(struct skep_error *err)
{
    return error_set(err, SKEP_CANCELLED, "directory: is being closed");
}

skep_status directory_get(struct directory *d, const char *const *uids, size_t count,
                          unsigned flags, uint64_t deadline_us, directory_found_fn found, void *arg,
                          struct skep_error *err)
{
    const struct wanted wanted = {uids, flags};
    struct request *r = request_new(count, deadline_us, err);

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
        look_all_up(d, r, &wanted);
    pthread_mutex_unlock(&d->lock);
    if (closing) {
        free_request(r);
        return request_refuse_closing(err);
    }
    inbox_wake(d->inbox); /* timers, or the callback */
    return SKEP_OK;
}

/*
 * Waits, and does the work as it comes in. In the usual case a value comes within milliseconds;
 * only when none does must the directory's thread hear of the timers that were set.
 */
static void wait_end(struct directory *d, struct request *r)
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

bool request_wait(struct directory *d, struct request *r, request_enter_fn enter, const void *what)
{
    struct inbox_worker helper;

    /* The request ends, or is taken back by wait_end(), before this returns. */
    /* cppcheck-suppress autoVariables */
    r->helper = &helper;
    inbox_help_begin(d->inbox, &helper);
    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    d->sync_waiters++;
    if (!closing)
        enter(d, r, what);
    bool wait = !closing && !r->finished;
    pthread_mutex_unlock(&d->lock);
    if (wait)
        wait_end(d, r);
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
    const struct wanted wanted = {uids, flags};
    struct request *r = request_new(count, deadline_us, err);
    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->results = results;
    bool asked = request_wait(d, r, look_all_up, &wanted);
    mem_free(r);
    if (asked)
        return SKEP_OK;
    for (size_t i = 0; i < count; i++)
        results[i].status = SKEP_CANCELLED;
    return request_refuse_closing(err);
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
    struct request *r = request_new(count, deadline_us, err);
    if (r == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    r->found_own = found;
    r->arg = arg;

    pthread_mutex_lock(&d->lock);
    bool closing = d->closing;
    for (size_t i = 0; i < count && !closing; i++) {
        struct query *q = query_new(d, keys + i * RECORD_KEY_BYTES, NULL);
        if (q == NULL)
            continue;
        waiter_attach(&r->waiters[i], q);
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
        return closing ? request_refuse_closing(err) : error_no_memory(err, "own records", count);
    }
    inbox_wake(d->inbox);
    return SKEP_OK;
}
