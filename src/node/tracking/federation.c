/* See federation.h: the thread that asks around, the tracker's events, and life. */
#include "node/tracking/federation.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "node/tracking/federation_internal.h"

enum {
    KEYS_AT_ONCE = DIRECTORY_MAX_LIST_KEYS,
    /* A resource that comes free here within this time spares us asking around. */
    FIRST_LOOK_MS = 10,
    LOOKUP_MS = 2000, /* most time for the DHT */
    CONNECTIONS = 256,
    IDLE_MS = 60000,
};

/* ---- asking around: the thread ---- */

/* Keys of the pending requests that are due, each once. The lock is held. */
static size_t due_keys(struct federation *f, uint64_t now_us,
                       char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES])
{
    size_t count = 0;

    for (const struct pending_request *w = f->pending; w != NULL && count < KEYS_AT_ONCE;
         w = w->next) {
        bool known = w->busy || w->look_us > now_us;
        for (size_t i = 0; i < count && !known; i++)
            known = strcmp(keys[i], w->key) == 0;
        if (!known)
            memcpy(keys[count++], w->key, sizeof(w->key));
    }
    return count;
}

/* The id of the oldest request for a key that is due, marked as busy; 0: none. The lock is held. */
static uint64_t take_pending(struct federation *f, const char *key, uint64_t now_us)
{
    struct pending_request *oldest = NULL;

    for (struct pending_request *w = f->pending; w != NULL;
         w = w->next) /* the newest comes first */
        if (!w->busy && w->look_us <= now_us && strcmp(w->key, key) == 0)
            oldest = w;
    if (oldest == NULL)
        return 0;
    oldest->busy = true;
    return oldest->id;
}

/* Hands pending requests for the key of a record to its tracker, as many as it has resources. */
static void use_record(struct federation *f, const struct record *record, uint64_t now_us)
{
    for (uint32_t i = 0; i < record->resource.free; i++) {
        uint64_t id = 0;
        pthread_mutex_lock(&f->lock);
        bool may = !f->closing && f->attempts < FEDERATION_MAX_ATTEMPTS &&
                   !tracker_is_backed_off(f, record->peer_id);
        if (may)
            id = take_pending(f, record->resource.key, now_us);
        pthread_mutex_unlock(&f->lock);
        if (id == 0)
            return;
        attempt_start(f, id, record);
    }
}

/* Those that nobody could be asked for wait for the next time. */
static void put_off(struct federation *f, char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES],
                    size_t count, uint64_t now_us)
{
    pthread_mutex_lock(&f->lock);
    for (struct pending_request *w = f->pending; w != NULL; w = w->next)
        for (size_t i = 0; i < count; i++)
            if (!w->busy && w->look_us <= now_us && strcmp(w->key, keys[i]) == 0) {
                w->look_us = pending_again_us(w);
                break;
            }
    pthread_mutex_unlock(&f->lock);
}

static bool make_pool(struct federation *f)
{
    const struct pool_config config = {
        .identity = swarm_identity(f->config.swarm),
        .psk = f->config.psk,
        .plaintext = f->config.plaintext,
        .swarm = f->config.swarm_name,
        .limits = session_default_limits,
        .max_connections = CONNECTIONS,
        .connect_timeout_ms = FEDERATION_CALL_MS,
        .idle_timeout_ms = IDLE_MS,
    };
    struct skep_error err;
    struct pool *pool;

    if (f->pool != NULL)
        return true;
    if (pool_new(&config, &pool, &err) != SKEP_OK) {
        log_warn("tracker: cannot ask other trackers: %s", err.message);
        return false;
    }
    pthread_mutex_lock(&f->lock);
    f->pool = pool;
    pthread_mutex_unlock(&f->lock);
    return true;
}

static void ask_around(struct federation *f, char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES],
                       size_t count, uint64_t now_us)
{
    uint8_t hashes[KEYS_AT_ONCE * RECORD_KEY_BYTES];
    struct record_list list = {0};
    struct skep_error err;

    for (size_t i = 0; i < count; i++)
        record_key_resource(swarm_record(f->config.swarm), keys[i], hashes + i * RECORD_KEY_BYTES);
    const struct list_question question = {RECORD_RESOURCE, hashes, count, true};
    skep_status rc = directory_list(swarm_directory(f->config.swarm), &question,
                                    clock_deadline_us(LOOKUP_MS), &list, &err);
    log_debug("tracker: %zu keys looked up for requests that wait: %zu records, %s", count,
              list.count, rc == SKEP_OK ? "OK" : err.message);
    if (rc == SKEP_OK && make_pool(f))
        for (size_t i = 0; i < list.count; i++)
            use_record(f, &list.items[i], now_us);
    put_off(f, keys, count, now_us);
    record_list_free(&list);
}

/* When there is something to do; CLOCK_NEVER: nothing waits. The lock is held. */
static uint64_t next_look_us(const struct federation *f)
{
    uint64_t next = CLOCK_NEVER;

    for (const struct pending_request *w = f->pending; w != NULL; w = w->next)
        if (!w->busy && w->look_us < next)
            next = w->look_us;
    return next;
}

static void run(void *arg)
{
    struct federation *f = arg;
    char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES];

    pthread_mutex_lock(&f->lock);
    while (!f->closing) {
        uint64_t now = clock_mono_us();
        size_t count = due_keys(f, now, keys);
        if (count == 0 || f->tracker == NULL) {
            f->sleep_us = f->tracker != NULL ? next_look_us(f) : CLOCK_NEVER;
            uint64_t until_us = f->sleep_us;
            while (!f->closing && f->sleep_us != 0)
                if (!cond_wait_until(&f->changed, &f->lock, until_us))
                    break;
            f->sleep_us = 0;
            continue;
        }
        pthread_mutex_unlock(&f->lock);
        ask_around(f, keys, count, now);
        pthread_mutex_lock(&f->lock);
    }
    pthread_mutex_unlock(&f->lock);
}

/* ---- the tracker's events ---- */

/* The lock is held. */
static void start_thread(struct federation *f)
{
    struct skep_error err;

    f->started = true;
    if (thread_start(&f->thread, "skep-federation", run, f, &err) != SKEP_OK)
        log_warn("tracker: other trackers are not asked: %s", err.message);
}

void federation_waiting(struct federation *f, const struct scheduler_request *request)
{
    const char *key = request->key.data;
    size_t len = request->key.len;
    struct pending_request *w;

    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || memchr(key, '\0', len) != NULL)
        return; /* no tracker can have published it */
    pthread_mutex_lock(&f->lock);
    w = f->closing ? NULL : pending_add(f, request->id, key, len, clock_deadline_us(FIRST_LOOK_MS));
    if (w != NULL) {
        if (!f->started)
            start_thread(f);
        federation_wake_by(f, w->look_us);
    }
    pthread_mutex_unlock(&f->lock);
}

void federation_ended(struct federation *f, uint64_t id)
{
    pthread_mutex_lock(&f->lock);
    struct pending_request *w = pending_find(f, id);
    if (w != NULL)
        pending_drop(f, w);
    pthread_mutex_unlock(&f->lock);
}

void federation_stats(struct federation *f, struct federation_stats *out)
{
    pthread_mutex_lock(&f->lock);
    *out = f->stats;
    pthread_mutex_unlock(&f->lock);
}

/* ---- life ---- */

skep_status federation_new(const struct federation_config *config, struct federation **out,
                           struct skep_error *err)
{
    struct federation *f = mem_calloc(1, sizeof(*f));

    *out = NULL;
    if (f == NULL || !hash_table_init(&f->by_id, 0)) {
        mem_free(f);
        return error_no_memory(err, "federation", sizeof(*f));
    }
    f->config = *config;
    pthread_mutex_init(&f->lock, NULL);
    cond_init(&f->changed);
    *out = f;
    return SKEP_OK;
}

void federation_begin(struct federation *f, struct tracker_server *tracker)
{
    pthread_mutex_lock(&f->lock);
    f->tracker = tracker;
    federation_wake_by(f, 0);
    pthread_mutex_unlock(&f->lock);
}

void federation_close(struct federation *f)
{
    if (f == NULL)
        return;
    pthread_mutex_lock(&f->lock);
    f->closing = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    thread_join(&f->thread);

    pthread_mutex_lock(&f->lock);
    while (f->calling > 0)
        pthread_cond_wait(&f->changed, &f->lock);
    struct pool *pool = f->pool;
    f->pool = NULL;
    pthread_mutex_unlock(&f->lock);
    pool_free(pool); /* every call has had its answer when it returns */

    pthread_mutex_lock(&f->lock);
    while (f->attempts > 0) /* those on the tracker's loop */
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

void federation_free(struct federation *f)
{
    if (f == NULL)
        return;
    while (f->pending != NULL)
        pending_drop(f, f->pending);
    hash_table_fini(&f->by_id);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}
