/*
 * Leases of nodes (docs/methods.md, "lease"): begin, hold, renew, end.
 *
 * The hold is a call that the node answers when the lease ends; a lost connection ends it too. So
 * its callback is all there is to watch.
 */
#include <msgpack.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/thread.h"
#include "client/client_internal.h"

enum { LEASE_ID_BYTES = 16, END_MS = 1000 };

struct skep_client_lease {
    struct skep_client *client;
    struct pool_target target;
    char endpoint[ENDPOINT_TEXT_BYTES];
    char peer_id[PEER_ID_HEX_BYTES]; /* "": whoever answers */
    uint8_t id[LEASE_ID_BYTES];

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    uint64_t duration_ms;
    struct pool_call *hold; /* valid until `ended` */
    bool holding;           /* its callback is still to come */
    bool ended;
};

/* ---- one call, waiting ---- */

struct exchange {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool done;
    skep_status status;
    struct skep_error err;
    struct bytes result; /* owned */
};

static void free_tensors(const struct reply_headers *reply, DLManagedTensor **tensors)
{
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
}

static void on_exchanged(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                         bool sent, const struct skep_error *err)
{
    struct exchange *x = arg;

    (void)sent;
    free_tensors(reply, tensors);
    pthread_mutex_lock(&x->lock);
    if (reply == NULL) {
        x->status = err->status;
        x->err = *err;
    } else if (reply->status != SKEP_OK) {
        x->status = error_set(&x->err, reply->status, "%s", reply->message);
    } else if (!bytes_append(&x->result, reply->result.data, reply->result.len)) {
        x->status = error_no_memory(&x->err, "reply", reply->result.len);
    }
    x->done = true;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

/* @param params  taken. @param result  owned: bytes_free(), empty on failure. */
static skep_status call_node(struct skep_client_lease *lease, msgpack_sbuffer *params, int bad,
                             uint64_t deadline_us, struct bytes *result, struct skep_error *err)
{
    struct call_headers headers = {.method = "lease"};
    struct exchange x = {.status = SKEP_OK};
    skep_status rc;

    pthread_mutex_init(&x.lock, NULL);
    cond_init(&x.changed);
    if (bad != 0 || !bytes_append(&headers.params, params->data, params->size))
        rc = error_no_memory(err, "lease", params->size);
    else
        rc = pool_call(lease->client->pool, &lease->target, &headers, NULL, deadline_us,
                       on_exchanged, &x, NULL, err);
    if (rc == SKEP_OK) {
        pthread_mutex_lock(&x.lock);
        while (!x.done) /* the call has a deadline of its own */
            pthread_cond_wait(&x.changed, &x.lock);
        pthread_mutex_unlock(&x.lock);
        rc = x.status;
        if (rc != SKEP_OK && err != NULL) {
            *err = x.err;
            error_prefix(err, "node at %s", lease->endpoint);
        }
    }
    if (rc == SKEP_OK)
        *result = x.result;
    else
        bytes_free(&x.result);
    call_headers_free(&headers);
    msgpack_sbuffer_destroy(params);
    pthread_cond_destroy(&x.changed);
    pthread_mutex_destroy(&x.lock);
    return rc;
}

static uint64_t deadline_of(const struct skep_client_lease *lease, uint32_t timeout_ms)
{
    return clock_deadline_us(timeout_ms != 0 ? timeout_ms : lease->client->timeout_ms);
}

/* ---- what is sent ---- */

static int pack_id(msgpack_packer *pk, const struct skep_client_lease *lease)
{
    return mp_pack_str(pk, "lease") | mp_pack_bin(pk, lease->id, sizeof(lease->id));
}

static int pack_true(msgpack_packer *pk, const char *name)
{
    return mp_pack_str(pk, name) | msgpack_pack_true(pk);
}

static int pack_duration(msgpack_packer *pk, uint32_t duration_ms)
{
    return mp_pack_str(pk, "duration_ms") | msgpack_pack_uint32(pk, duration_ms);
}

/* Takes over what the node granted. */
static skep_status read_grant(struct skep_client_lease *lease, const struct bytes *result,
                              struct skep_error *err)
{
    struct mp mp = {0};
    uint64_t duration_ms;
    uint8_t id[LEASE_ID_BYTES];
    skep_status rc = mp_parse(&mp, result->data, result->len, "lease", err);

    if (rc == SKEP_OK && (!mp_bin_exact(mp_get(mp.root, "lease"), id, sizeof(id)) ||
                          !mp_u64(mp_get(mp.root, "duration_ms"), &duration_ms)))
        rc = error_set(err, SKEP_DATA_LOSS, "node at %s: its answer is no lease", lease->endpoint);
    if (rc == SKEP_OK) {
        pthread_mutex_lock(&lease->lock);
        memcpy(lease->id, id, sizeof(id));
        lease->duration_ms = duration_ms;
        pthread_mutex_unlock(&lease->lock);
    }
    mp_free(&mp);
    return rc;
}

static skep_status begin(struct skep_client_lease *lease, const char *match_key,
                         uint32_t duration_ms, uint64_t deadline_us, struct skep_error *err)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    struct bytes result = {0};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2) | mp_pack_str(&pk, "match_key");
    bad |= mp_pack_str(&pk, match_key) | pack_duration(&pk, duration_ms);
    skep_status rc = call_node(lease, &buffer, bad, deadline_us, &result, err);
    if (rc == SKEP_OK)
        rc = read_grant(lease, &result, err);
    bytes_free(&result);
    return rc;
}

/* ---- the hold ---- */

static void on_hold_ended(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                          bool sent, const struct skep_error *err)
{
    struct skep_client_lease *lease = arg;

    (void)sent;
    (void)err;
    free_tensors(reply, tensors);
    pthread_mutex_lock(&lease->lock);
    lease->hold = NULL;
    lease->holding = false;
    lease->ended = true;
    pthread_cond_broadcast(&lease->changed);
    pthread_mutex_unlock(&lease->lock);
}

static skep_status start_hold(struct skep_client_lease *lease, struct skep_error *err)
{
    struct call_headers headers = {.method = "lease"};
    struct pool_call *call = NULL;
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    skep_status rc;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2) | pack_id(&pk, lease) | pack_true(&pk, "hold");
    lease->holding = true; /* before its end can be told */
    if (bad != 0 || !bytes_append(&headers.params, buffer.data, buffer.size))
        rc = error_no_memory(err, "lease", buffer.size);
    else
        rc = pool_call(lease->client->pool, &lease->target, &headers, NULL, CLOCK_NEVER,
                       on_hold_ended, lease, &call, err);
    pthread_mutex_lock(&lease->lock);
    if (rc != SKEP_OK)
        lease->holding = false;
    else if (lease->holding)
        lease->hold = call;
    pthread_mutex_unlock(&lease->lock);
    call_headers_free(&headers);
    msgpack_sbuffer_destroy(&buffer);
    return rc;
}

static void tell_end(struct skep_client_lease *lease)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    struct bytes result = {0};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2) | pack_id(&pk, lease) | pack_true(&pk, "end");
    /* If it is not told, the node learns it from the end of the hold. */
    (void)!call_node(lease, &buffer, bad, clock_deadline_us(END_MS), &result, NULL);
    bytes_free(&result);
}

/* ---- the interface ---- */

static skep_status lease_new(struct skep_client *client, const char *endpoint, const char *peer_id,
                             struct skep_client_lease **out, struct skep_error *err)
{
    struct skep_client_lease *lease = mem_calloc(1, sizeof(*lease));
    skep_status rc;

    if (lease == NULL)
        return error_no_memory(err, "lease", sizeof(*lease));
    pthread_mutex_init(&lease->lock, NULL);
    cond_init(&lease->changed);
    lease->client = client;
    lease->target.endpoint_count = 1;
    rc = endpoint_parse(&lease->target.endpoints[0], endpoint, false, err);
    if (rc == SKEP_OK && peer_id != NULL) {
        lease->target.has_peer_id = true;
        if (peer_id_parse(lease->target.peer_id, peer_id))
            peer_id_hex(lease->target.peer_id, lease->peer_id);
        else
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "peer id \"%.80s\": expected 64 hex digits",
                           peer_id);
    }
    if (rc == SKEP_OK) {
        endpoint_format(&lease->target.endpoints[0], lease->endpoint);
        *out = lease;
    } else {
        skep_client_lease_free(lease);
    }
    return rc;
}

skep_status skep_client_lease_begin(struct skep_client *client, const char *endpoint,
                                    const char *peer_id, const char *match_key,
                                    uint32_t duration_ms, uint32_t timeout_ms,
                                    struct skep_client_lease **out, struct skep_error *err)
{
    struct skep_client_lease *lease = NULL;
    skep_status rc;

    *out = NULL;
    rc = error_if_null(match_key, "match_key", err);
    if (rc != SKEP_OK)
        return rc;
    if (strlen(match_key) > MESSAGE_MAX_PARAMS / 2)
        return error_set(err, SKEP_INVALID_ARGUMENT, "match key: %zu bytes, expected at most %d",
                         strlen(match_key), MESSAGE_MAX_PARAMS / 2);
    rc = lease_new(client, endpoint, peer_id, &lease, err);
    if (rc != SKEP_OK)
        return rc;
    rc = begin(lease, match_key, duration_ms, deadline_of(lease, timeout_ms), err);
    if (rc == SKEP_OK)
        rc = start_hold(lease, err);
    if (rc != SKEP_OK) {
        skep_client_lease_free(lease);
        return rc;
    }
    *out = lease;
    return SKEP_OK;
}

skep_status skep_client_lease_expert(struct skep_client_lease *lease, const char *uid,
                                     struct skep_remote_expert **out, struct skep_error *err)
{
    return skep_client_expert_at(lease->client, uid, lease->endpoint,
                                 lease->peer_id[0] != '\0' ? lease->peer_id : NULL, out, err);
}

uint64_t skep_client_lease_duration_ms(struct skep_client_lease *lease)
{
    pthread_mutex_lock(&lease->lock);
    uint64_t duration_ms = lease->duration_ms;
    pthread_mutex_unlock(&lease->lock);
    return duration_ms;
}

skep_status skep_client_lease_renew(struct skep_client_lease *lease, uint32_t duration_ms,
                                    uint32_t timeout_ms, struct skep_error *err)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    struct bytes result = {0};

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2) | pack_id(&pk, lease) | pack_duration(&pk, duration_ms);
    skep_status rc = call_node(lease, &buffer, bad, deadline_of(lease, timeout_ms), &result, err);
    if (rc == SKEP_OK)
        rc = read_grant(lease, &result, err);
    bytes_free(&result);
    return rc;
}

bool skep_client_lease_wait_ended(struct skep_client_lease *lease, uint32_t timeout_ms)
{
    uint64_t deadline = timeout_ms == UINT32_MAX ? CLOCK_NEVER : clock_deadline_us(timeout_ms);

    pthread_mutex_lock(&lease->lock);
    while (!lease->ended && cond_wait_until(&lease->changed, &lease->lock, deadline))
        continue;
    bool ended = lease->ended;
    pthread_mutex_unlock(&lease->lock);
    return ended;
}

void skep_client_lease_free(struct skep_client_lease *lease)
{
    if (lease == NULL)
        return;
    pthread_mutex_lock(&lease->lock);
    bool held = lease->holding;
    pthread_mutex_unlock(&lease->lock);
    if (held)
        tell_end(lease);
    pthread_mutex_lock(&lease->lock);
    if (lease->hold != NULL) /* valid while we hold the lock: its callback takes it first of all */
        pool_cancel(lease->client->pool, lease->hold);
    while (lease->holding)
        pthread_cond_wait(&lease->changed, &lease->lock);
    pthread_mutex_unlock(&lease->lock);
    pthread_cond_destroy(&lease->changed);
    pthread_mutex_destroy(&lease->lock);
    mem_free(lease);
}
