/*
 * See federation.h. A wish is a request that waits here; an attempt is one call to another tracker
 * on its behalf. A wish has one attempt at most; both go by the request's id, as either may end
 * first.
 */
#include "node/federation.h"

#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mp.h"
#include "base/text.h"
#include "base/thread.h"
#include "dht/directory_list.h"
#include "net/pool.h"

enum {
    MAX_WISHES = 16384, /* more are served from here alone */
    BUCKETS = 1024,
    MAX_AVOIDED = 256,
    KEYS_AT_ONCE = DIRECTORY_MAX_LIST_KEYS,
    MAX_ATTEMPTS = 256, /* under way */

    /* A resource that comes free here within this time spares us asking around. */
    FIRST_LOOK_MS = 10,
    LOOKUP_MS = 2000, /* most time for the DHT */
    CALL_MS = 2000,   /* the same for another tracker */
    AGAIN_MS = 500,   /* pause before asking around again, and how it grows */
    AGAIN_MAX_MS = 2000,
    AVOID_MS = 5000, /* one that did not answer, and how it grows */
    AVOID_MAX_MS = 60000,
    CONNECTIONS = 256,
    IDLE_MS = 60000,
};

struct wish {
    struct wish *next, **link; /* in federation.wishes */
    struct wish *chain;        /* in its bucket */
    uint64_t id;
    uint64_t look_us; /* when to ask around next */
    unsigned tries;
    bool busy; /* an attempt is under way */
    char key[RECORD_RESOURCE_KEY_BYTES];
};

struct avoided {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t until_us;
    unsigned times;
};

struct federation {
    struct federation_config config;
    struct thread thread;
    struct pool *pool; /* owned; made by the thread when needed, freed by federation_close() */
    struct tracker_server *tracker; /* written once, under the lock, before anything is asked */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct wish *wishes;
    struct wish *buckets[BUCKETS];
    size_t wish_count;
    uint64_t sleep_us; /* until when the thread sleeps; 0: it does not */
    bool started;      /* the thread was, or could not be */
    unsigned attempts;
    unsigned calling; /* threads inside pool_call(), which pool_free() must wait for */
    struct avoided avoided[MAX_AVOIDED];
    size_t avoided_count;
    struct federation_stats stats;
};

struct attempt {
    struct loop_job job; /* first, so that the pointers convert */
    struct federation *federation;
    uint64_t id; /* of the wish */
    struct pool_target target;
    uint64_t taken;      /* the other tracker's id of what it gave */
    struct bytes result; /* owned: its answer */
    bool used;
};

/* ---- wishes; the lock is held ---- */

static struct wish **bucket_of(struct federation *f, uint64_t id)
{
    return &f->buckets[id % BUCKETS];
}

static struct wish *find(struct federation *f, uint64_t id)
{
    struct wish *w = *bucket_of(f, id);

    while (w != NULL && w->id != id)
        w = w->chain;
    return w;
}

static void drop(struct federation *f, struct wish *w)
{
    struct wish **link = bucket_of(f, w->id);

    while (*link != w)
        link = &(*link)->chain;
    *link = w->chain;
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    f->wish_count--;
    mem_free(w);
}

static void wake_by(struct federation *f, uint64_t at_us)
{
    if (f->sleep_us <= at_us)
        return;
    f->sleep_us = 0;
    pthread_cond_broadcast(&f->changed);
}

/* The attempt for a wish is over; it is looked at again at this time. */
static void release_wish(struct federation *f, uint64_t id, uint64_t look_us)
{
    struct wish *w = find(f, id);

    if (w == NULL)
        return;
    w->busy = false;
    w->look_us = look_us;
    wake_by(f, look_us);
}

static uint64_t again_us(struct wish *w)
{
    uint64_t ms = (uint64_t)AGAIN_MS << (w->tries < 3 ? w->tries : 3);

    w->tries++;
    return clock_deadline_us(ms < AGAIN_MAX_MS ? ms : AGAIN_MAX_MS);
}

/* ---- trackers that do not answer; the lock is held ---- */

static struct avoided *find_avoided(struct federation *f, const uint8_t *peer_id)
{
    for (size_t i = 0; i < f->avoided_count; i++)
        if (memcmp(f->avoided[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &f->avoided[i];
    return NULL;
}

static void avoid(struct federation *f, const uint8_t *peer_id)
{
    struct avoided *a = find_avoided(f, peer_id);

    if (a == NULL) {
        a = &f->avoided[f->avoided_count < MAX_AVOIDED ? f->avoided_count++
                                                       : randombytes_uniform(MAX_AVOIDED)];
        *a = (struct avoided){0};
        memcpy(a->peer_id, peer_id, PEER_ID_BYTES);
    }
    uint64_t ms = (uint64_t)AVOID_MS << (a->times < 4 ? a->times : 4);
    a->times++;
    a->until_us = clock_deadline_us(ms < AVOID_MAX_MS ? ms : AVOID_MAX_MS);
}

static void forgive(struct federation *f, const uint8_t *peer_id)
{
    struct avoided *a = find_avoided(f, peer_id);

    if (a != NULL)
        *a = f->avoided[--f->avoided_count];
}

/* ---- attempts ---- */

static void end_attempt(struct attempt *a)
{
    struct federation *f = a->federation;

    bytes_free(&a->result);
    mem_free(a);
    pthread_mutex_lock(&f->lock);
    f->attempts--;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

/* Starts a call unless it is too late. */
static skep_status call(struct federation *f, const struct pool_target *target,
                        msgpack_sbuffer *params, int bad, pool_done_fn done, void *arg)
{
    struct call_headers headers = {.method = "tracker.request"};
    struct skep_error err;
    skep_status rc = SKEP_CANCELLED;

    pthread_mutex_lock(&f->lock);
    bool may = !f->closing && f->pool != NULL;
    f->calling += may;
    pthread_mutex_unlock(&f->lock);
    if (may && (bad != 0 || !bytes_append(&headers.params, params->data, params->size)))
        rc = SKEP_RESOURCE_EXHAUSTED;
    else if (may)
        rc = pool_call(f->pool, target, &headers, NULL, clock_deadline_us(CALL_MS), done, arg, NULL,
                       &err);
    call_headers_free(&headers);
    msgpack_sbuffer_destroy(params);
    pthread_mutex_lock(&f->lock);
    f->calling -= may;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return rc;
}

static void free_tensors(const struct reply_headers *reply, DLManagedTensor **tensors)
{
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
}

/* Whatever it says: if it was not told, it counts the resource as handed on after a while. */
static void on_settled(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                       bool sent, const struct skep_error *err)
{
    (void)sent;
    (void)err;
    free_tensors(reply, tensors);
    end_attempt(arg);
}

/* Tells the other tracker what came of its resource, and ends the attempt. */
static void settle(struct attempt *a)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2) | mp_pack_str(&pk, "taken");
    bad |= msgpack_pack_uint64(&pk, a->taken) | mp_pack_str(&pk, "used");
    bad |= a->used ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk);
    if (call(a->federation, &a->target, &buffer, bad, on_settled, a) != SKEP_OK)
        end_attempt(a);
}

/* What another tracker gave. Views of the attempt's result, through `mp`. */
static bool read_resource(const struct attempt *a, struct mp *mp, struct tracker_resource *out,
                          uint64_t *taken)
{
    const uint8_t *address, *match_key;
    uint64_t port;

    if (mp_parse(mp, a->result.data, a->result.len, "tracker.request", NULL) != SKEP_OK)
        return false;
    if (!mp_bin(mp_get(mp->root, "address"), &address, &out->address.len) ||
        !mp_bin(mp_get(mp->root, "match_key"), &match_key, &out->match_key.len) ||
        !mp_u64(mp_get(mp->root, "port"), &port) || port > UINT16_MAX ||
        !mp_u64(mp_get(mp->root, "taken"), taken))
        return false;
    out->address.data = (const char *)address;
    out->match_key.data = (const char *)match_key;
    out->port = (uint16_t)port;
    return text_is_utf8(out->address.data, out->address.len) &&
           text_is_utf8(out->match_key.data, out->match_key.len);
}

/* "127.0.0.1" of a server beside the other tracker is that tracker's machine for everybody else. */
static void correct_address(const struct attempt *a, struct tracker_resource *resource)
{
    struct endpoint e = {.port = 1};

    if (resource->address.len >= sizeof(e.host))
        return;
    memcpy(e.host, resource->address.data, resource->address.len);
    if ((endpoint_is_loopback(&e) || endpoint_is_unspecified(&e)) &&
        !endpoint_is_loopback(&a->target.endpoints[0]))
        resource->address = tracker_text(a->target.endpoints[0].host);
}

/* On the tracker's loop. */
static void deliver(struct loop_job *job)
{
    struct attempt *a = (struct attempt *)job;
    struct federation *f = a->federation;
    struct tracker_resource resource = {0};
    struct mp mp = {0};

    if (read_resource(a, &mp, &resource, &a->taken)) {
        correct_address(a, &resource);
        a->used = tracker_server_answer(f->tracker, a->id, &resource);
    }
    mp_free(&mp);
    pthread_mutex_lock(&f->lock);
    *(a->used ? &f->stats.served : &f->stats.returned) += 1;
    release_wish(f, a->id, clock_deadline_us(AGAIN_MS)); /* if it waits still */
    pthread_mutex_unlock(&f->lock);
    settle(a);
}

/* Another tracker has answered, or not. On the pool's thread. */
static void on_answer(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                      bool sent, const struct skep_error *err)
{
    struct attempt *a = arg;
    struct federation *f = a->federation;
    bool ok = reply != NULL && reply->status == SKEP_OK;
    char peer[PEER_ID_SHORT_BYTES];

    (void)sent;
    free_tensors(reply, tensors);
    ok = ok && bytes_append(&a->result, reply->result.data, reply->result.len);
    pthread_mutex_lock(&f->lock);
    bool silent = reply == NULL && err->status != SKEP_CANCELLED;
    if (silent) {
        avoid(f, a->target.peer_id);
        f->stats.failed++;
    } else {
        forgive(f, a->target.peer_id);
    }
    if (!ok) {
        struct wish *w = find(f, a->id);
        /* If it did not answer, others may at once; if it had nothing, they had not either. */
        if (w != NULL)
            release_wish(f, a->id, silent ? clock_mono_us() : again_us(w));
    }
    pthread_mutex_unlock(&f->lock);
    if (silent) {
        peer_id_short(a->target.peer_id, peer);
        log_info("tracker: peer %s does not answer for its tracker: %s", peer, err->message);
    }
    if (ok) /* the loop lives until federation_close() has seen the last attempt end */
        loop_post(tracker_server_loop(f->tracker), &a->job);
    else
        end_attempt(a);
}

static struct attempt *new_attempt(struct federation *f, uint64_t id, const struct record *record)
{
    const struct record_resource *r = &record->resource;
    struct attempt *a = mem_calloc(1, sizeof(*a));

    if (a == NULL)
        return NULL;
    a->job.run = deliver;
    a->federation = f;
    a->id = id;
    a->target.has_peer_id = true;
    memcpy(a->target.peer_id, record->peer_id, PEER_ID_BYTES);
    a->target.aes_gcm = (r->features & RECORD_FEATURE_AES_GCM) != 0;
    a->target.no_loopback = !swarm_record(f->config.swarm)->loopback;
    for (size_t i = 0; i < r->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        a->target.endpoints[a->target.endpoint_count++] = r->endpoints[i];
    return a;
}

static void start_attempt(struct federation *f, uint64_t id, const struct record *record)
{
    struct attempt *a = new_attempt(f, id, record);
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    pthread_mutex_lock(&f->lock);
    if (a == NULL)
        release_wish(f, id, clock_deadline_us(AGAIN_MS));
    f->attempts += a != NULL;
    f->stats.asked += a != NULL;
    pthread_mutex_unlock(&f->lock);
    if (a == NULL)
        return;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 1) | mp_pack_str(&pk, "key");
    bad |= mp_pack_bin(&pk, record->resource.key, strlen(record->resource.key));
    if (call(f, &a->target, &buffer, bad, on_answer, a) == SKEP_OK)
        return;
    pthread_mutex_lock(&f->lock);
    release_wish(f, id, clock_deadline_us(AGAIN_MS));
    pthread_mutex_unlock(&f->lock);
    end_attempt(a);
}

/* ---- asking around: the thread ---- */

/* Keys of the wishes that are due, each once. The lock is held. */
static size_t due_keys(struct federation *f, uint64_t now_us,
                       char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES])
{
    size_t count = 0;

    for (const struct wish *w = f->wishes; w != NULL && count < KEYS_AT_ONCE; w = w->next) {
        bool known = w->busy || w->look_us > now_us;
        for (size_t i = 0; i < count && !known; i++)
            known = strcmp(keys[i], w->key) == 0;
        if (!known)
            memcpy(keys[count++], w->key, sizeof(w->key));
    }
    return count;
}

/* The id of the oldest wish for a key that is due, marked as busy; 0: none. The lock is held. */
static uint64_t take_wish(struct federation *f, const char *key, uint64_t now_us)
{
    struct wish *oldest = NULL;

    for (struct wish *w = f->wishes; w != NULL; w = w->next) /* the newest comes first */
        if (!w->busy && w->look_us <= now_us && strcmp(w->key, key) == 0)
            oldest = w;
    if (oldest == NULL)
        return 0;
    oldest->busy = true;
    return oldest->id;
}

/* Hands wishes for the key of a record to its tracker, as many as it has resources. */
static void use_record(struct federation *f, const struct record *record, uint64_t now_us)
{
    for (uint32_t i = 0; i < record->resource.free; i++) {
        uint64_t id = 0;
        pthread_mutex_lock(&f->lock);
        const struct avoided *a = find_avoided(f, record->peer_id);
        bool may = !f->closing && f->attempts < MAX_ATTEMPTS &&
                   (a == NULL || a->until_us <= clock_mono_us());
        if (may)
            id = take_wish(f, record->resource.key, now_us);
        pthread_mutex_unlock(&f->lock);
        if (id == 0)
            return;
        start_attempt(f, id, record);
    }
}

/* Those that nobody could be asked for wait for the next time. */
static void put_off(struct federation *f, char keys[KEYS_AT_ONCE][RECORD_RESOURCE_KEY_BYTES],
                    size_t count, uint64_t now_us)
{
    pthread_mutex_lock(&f->lock);
    for (struct wish *w = f->wishes; w != NULL; w = w->next)
        for (size_t i = 0; i < count; i++)
            if (!w->busy && w->look_us <= now_us && strcmp(w->key, keys[i]) == 0) {
                w->look_us = again_us(w);
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
        .connect_timeout_ms = CALL_MS,
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
    skep_status rc = directory_list(swarm_directory(f->config.swarm), RECORD_RESOURCE, hashes,
                                    count, true, clock_deadline_us(LOOKUP_MS), &list, &err);
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

    for (const struct wish *w = f->wishes; w != NULL; w = w->next)
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
    struct wish *w;

    if (len == 0 || len >= RECORD_RESOURCE_KEY_BYTES || memchr(key, '\0', len) != NULL)
        return; /* no tracker can have published it */
    pthread_mutex_lock(&f->lock);
    w = f->wish_count < MAX_WISHES && !f->closing ? mem_calloc(1, sizeof(*w)) : NULL;
    if (w != NULL) {
        w->id = request->id;
        w->look_us = clock_deadline_us(FIRST_LOOK_MS);
        memcpy(w->key, key, len);
        w->chain = *bucket_of(f, w->id);
        *bucket_of(f, w->id) = w;
        w->next = f->wishes;
        w->link = &f->wishes;
        if (w->next != NULL)
            w->next->link = &w->next;
        f->wishes = w;
        f->wish_count++;
        if (!f->started)
            start_thread(f);
        wake_by(f, w->look_us);
    }
    pthread_mutex_unlock(&f->lock);
}

void federation_ended(struct federation *f, uint64_t id)
{
    pthread_mutex_lock(&f->lock);
    struct wish *w = find(f, id);
    if (w != NULL)
        drop(f, w);
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

    *out = f;
    if (f == NULL)
        return error_no_memory(err, "federation", sizeof(*f));
    f->config = *config;
    pthread_mutex_init(&f->lock, NULL);
    cond_init(&f->changed);
    return SKEP_OK;
}

void federation_begin(struct federation *f, struct tracker_server *tracker)
{
    pthread_mutex_lock(&f->lock);
    f->tracker = tracker;
    wake_by(f, 0);
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
    while (f->wishes != NULL)
        drop(f, f->wishes);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    mem_free(f);
}
