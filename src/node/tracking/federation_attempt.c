/* One call to another tracker for one request that waits here: see federation_internal.h. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mp.h"
#include "base/text.h"
#include "node/tracking/federation_internal.h"

struct attempt {
    struct loop_job job; /* first, so that the pointers convert */
    struct federation *federation;
    uint64_t id; /* of the request */
    char key[RECORD_RESOURCE_KEY_BYTES];
    struct pool_target target;
    uint64_t taken;      /* the other tracker's id of what it gave */
    struct bytes result; /* owned: its answer */
    bool used;
};

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
        rc = pool_call(f->pool, target, &headers, NULL, clock_deadline_us(FEDERATION_CALL_MS), done,
                       arg, NULL, &err);
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
        /* Not to the request that asked, but to who is first now: one of a higher priority may have
         * come since, or wait beside it. */
        a->used = tracker_server_answer(f->tracker, tracker_text(a->key), &resource);
    }
    mp_free(&mp);
    pthread_mutex_lock(&f->lock);
    *(a->used ? &f->stats.served : &f->stats.returned) += 1;
    pending_release(f, a->id, clock_deadline_us(FEDERATION_AGAIN_MS)); /* if it waits still */
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
        tracker_back_off(f, a->target.peer_id);
        f->stats.failed++;
    } else {
        tracker_backoff_end(f, a->target.peer_id);
    }
    if (!ok) {
        struct pending_request *w = pending_find(f, a->id);
        /* If it did not answer, others may at once; if it had nothing, they had not either. */
        if (w != NULL)
            pending_release(f, a->id, silent ? clock_mono_us() : pending_again_us(w));
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
    memcpy(a->key, r->key, sizeof(a->key));
    memcpy(a->target.peer_id, record->peer_id, PEER_ID_BYTES);
    a->target.aes_gcm = (r->features & RECORD_FEATURE_AES_GCM) != 0;
    a->target.no_loopback = !swarm_record(f->config.swarm)->loopback;
    for (size_t i = 0; i < r->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        a->target.endpoints[a->target.endpoint_count++] = r->endpoints[i];
    return a;
}

void attempt_start(struct federation *f, uint64_t id, const struct record *record)
{
    struct attempt *a = new_attempt(f, id, record);
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    pthread_mutex_lock(&f->lock);
    if (a == NULL)
        pending_release(f, id, clock_deadline_us(FEDERATION_AGAIN_MS));
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
    pending_release(f, id, clock_deadline_us(FEDERATION_AGAIN_MS));
    pthread_mutex_unlock(&f->lock);
    end_attempt(a);
}
