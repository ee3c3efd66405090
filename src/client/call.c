/*
 * One call to an expert, wherever it is served: candidates in order, fail-over, one fresh look-up,
 * a single deadline over all of it.
 *
 * A call has at most one operation under way, in the directory or in the pool; its callback takes
 * the next step. So the steps need no lock among themselves; the lock is for cancelling and
 * waiting.
 */
#include "client/client_internal.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"
#include "base/thread.h"

enum {
    /* How often a call looks its expert up in vain: a node that moved publishes again in moments.
     * Of many who claim to serve it an answer has room for some, and the next one names others
     * (dht/peer_memory.h): so each that brings somebody new is followed by as many again. */
    LOOKUP_ROUNDS = 3,
    LOOKUP_MOST_ROUNDS = 256, /* in all */
};

struct skep_call {
    atomic_uint refs; /* the user's, and the engine's until the call has ended */
    struct skep_client *client;
    struct skep_remote_expert *expert; /* shared */
    bool changes_weights;
    uint64_t deadline_us;
    skep_call_fn done;
    void *arg;
    struct call_headers *headers; /* owned: mem_free(); method, uid, request id and descriptors */
    size_t tensor_count;
    DLTensor *tensors; /* owned: mem_free(); their shapes are behind them in the same memory */
    const DLTensor **tensor_pointers; /* the same memory */
    struct compressed compressed;     /* of them */

    /* Of the engine's current step alone. */
    struct provider_list candidates; /* owned */
    bool *tried;                     /* owned: one for each candidate */
    size_t current;
    unsigned lookups;
    unsigned barren; /* the last of them, that brought no new candidate */
    struct skep_error last_error;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended_cond;
    bool cancelled;
    bool ended;
    unsigned attempt;                  /* counts pool calls, so that a late handle is not stored */
    unsigned attempt_done;             /* of the last one whose callback has come */
    struct pool_call *in_pool;         /* valid while set */
    uint8_t asked_peer[PEER_ID_BYTES]; /* of the current attempt */
    struct skep_error error;
    DLManagedTensor *outputs[MESSAGE_MAX_TENSORS]; /* owned until taken */
    size_t output_count;
    struct bytes result; /* owned */
    char peer_id[PEER_ID_HEX_BYTES];
};

static void next_step(struct skep_call *call);

static void call_unref(struct skep_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < call->output_count; i++)
        skep_tensor_free(call->outputs[i]);
    bytes_free(&call->result);
    mem_free(call->candidates.items);
    mem_free(call->tried);
    compressed_free(&call->compressed);
    mem_free(call->tensors);
    mem_free(call->headers);
    remote_expert_unref(call->expert);
    pthread_cond_destroy(&call->ended_cond);
    pthread_mutex_destroy(&call->lock);
    mem_free(call);
}

/* The last step: wakes who waits, tells who asked, gives the engine's reference back. */
static void finish(struct skep_call *call, const struct skep_error *error)
{
    pthread_mutex_lock(&call->client->lock);
    call->client->in_flight--;
    pthread_mutex_unlock(&call->client->lock);

    pthread_mutex_lock(&call->lock);
    call->error = *error;
    call->ended = true;
    pthread_cond_broadcast(&call->ended_cond);
    pthread_mutex_unlock(&call->lock);
    if (call->done != NULL)
        call->done(call, call->arg);
    call_unref(call);
}

static void fail(struct skep_call *call, skep_status status, const char *sentence)
{
    struct skep_error error;

    error_set(&error, status, "expert %s: %s", call->expert->uid, sentence);
    finish(call, &error);
}

static bool is_cancelled(struct skep_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool cancelled = call->cancelled;
    pthread_mutex_unlock(&call->lock);
    return cancelled;
}

/* Adds providers that were not candidates before: another peer, or the same at another endpoint. */
static bool add_candidates(struct skep_call *call, const struct provider *items, size_t count)
{
    size_t total = call->candidates.count + count;
    struct provider *list = mem_realloc(call->candidates.items, total * sizeof(*list));

    if (list == NULL)
        return false;
    call->candidates.items = list;
    bool *tried = mem_realloc(call->tried, total * sizeof(*tried));
    if (tried == NULL)
        return false;
    call->tried = tried;
    for (size_t i = 0; i < count; i++) {
        bool known = items[i].endpoint_count == 0;
        for (size_t k = 0; k < call->candidates.count && !known; k++)
            known = memcmp(list[k].peer_id, items[i].peer_id, PEER_ID_BYTES) == 0 &&
                    endpoint_equal(&list[k].endpoints[0], &items[i].endpoints[0]);
        if (known)
            continue;
        list[call->candidates.count] = items[i];
        tried[call->candidates.count] = false;
        call->candidates.count++;
        call->barren = 0;
    }
    return true;
}

static bool may_look_up(const struct skep_call *call)
{
    return !call->expert->fixed && call->client->swarm != NULL;
}

/* More claim to serve it than an answer of the directory has room for. */
static bool is_crowd(const struct skep_call *call)
{
    return call->candidates.count >= DIRECTORY_MAX_PROVIDERS && may_look_up(call);
}

/* In a crowd, the untried one that is most likely to answer, as far as this client remembers. */
static bool pick_from_crowd(struct skep_call *call)
{
    struct directory *directory = swarm_directory(call->client->swarm);
    uint64_t lowest = UINT64_MAX;

    for (size_t i = 0; i < call->candidates.count; i++) {
        if (call->tried[i])
            continue;
        uint64_t place = directory_peer_place(directory, call->candidates.items[i].peer_id);
        if (place > lowest)
            continue;
        lowest = place;
        call->current = i;
    }
    return lowest != UINT64_MAX;
}

/* The first untried candidate that has not failed lately; else the first untried one. */
static bool pick(struct skep_call *call)
{
    uint64_t now = clock_mono_us();
    bool found = false;

    if (is_crowd(call))
        return pick_from_crowd(call);

    pthread_mutex_lock(&call->client->lock);
    for (size_t i = 0; i < call->candidates.count; i++) {
        if (call->tried[i])
            continue;
        bool avoided =
            avoid_is_avoided(&call->client->avoid, call->candidates.items[i].peer_id, now);
        if (!found || !avoided)
            call->current = i;
        found = true;
        if (!avoided)
            break;
    }
    pthread_mutex_unlock(&call->client->lock);
    return found;
}

static void note_peer(struct skep_call *call, bool failed)
{
    const struct provider *provider = &call->candidates.items[call->current];
    const uint8_t *peer_id = provider->peer_id;

    if (call->expert->any_peer)
        return;
    pthread_mutex_lock(&call->client->lock);
    if (failed)
        avoid_failed(&call->client->avoid, peer_id, clock_mono_us());
    else
        avoid_succeeded(&call->client->avoid, peer_id);
    pthread_mutex_unlock(&call->client->lock);
    if (!may_look_up(call))
        return;
    if (failed)
        directory_forget_peer(swarm_directory(call->client->swarm), peer_id);
    else if (is_crowd(call))
        directory_keep(swarm_directory(call->client->swarm), call->expert->uid, provider);
    else
        directory_peer_answered(swarm_directory(call->client->swarm), peer_id);
}

static void lookup_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct skep_call *call = arg;
    struct skep_error error;

    (void)count;
    if (is_cancelled(call)) {
        fail(call, SKEP_CANCELLED, "cancelled by the caller");
        return;
    }
    if (results->status == SKEP_OK) {
        remote_expert_update(call->expert, results->providers, results->provider_count);
        if (!add_candidates(call, results->providers, results->provider_count)) {
            fail(call, SKEP_RESOURCE_EXHAUSTED, "no memory for its providers");
            return;
        }
        next_step(call);
        return;
    }
    /* What a node answered says more than that it has gone from the DHT since. */
    if (call->last_error.status != SKEP_OK)
        error = call->last_error;
    else
        lookup_error(&error, results->status, call->expert->uid, call->client);
    finish(call, &error);
}

static void look_up(struct skep_call *call)
{
    const char *uid = call->expert->uid;
    /* If those that were known have failed, it takes all others. */
    unsigned flags = call->candidates.count > 0 ? DIRECTORY_FRESH | DIRECTORY_ALL : 0;
    struct skep_error error;

    call->lookups++;
    call->barren++;
    if (directory_get(swarm_directory(call->client->swarm), &uid, 1, flags, call->deadline_us,
                      lookup_found, call, &error) != SKEP_OK)
        finish(call, &error);
}

/* Whether another node may be asked after this one has answered with a refusal. */
static bool may_go_elsewhere(skep_status status)
{
    return status == SKEP_UNAVAILABLE || status == SKEP_RESOURCE_EXHAUSTED ||
           status == SKEP_NOT_FOUND;
}

static void succeed(struct skep_call *call, const struct reply_headers *reply,
                    DLManagedTensor **tensors)
{
    struct skep_error none = {0};

    note_peer(call, false);
    pthread_mutex_lock(&call->lock);
    if (!call->expert->any_peer)
        peer_id_hex(call->candidates.items[call->current].peer_id, call->peer_id);
    for (size_t i = 0; i < reply->tensor_count; i++)
        call->outputs[i] = tensors[i];
    call->output_count = reply->tensor_count;
    bool copied = bytes_append(&call->result, reply->result.data, reply->result.len);
    pthread_mutex_unlock(&call->lock);
    if (copied)
        finish(call, &none);
    else
        fail(call, SKEP_RESOURCE_EXHAUSTED, "no memory for the reply");
}

static void answered(struct skep_call *call, const struct reply_headers *reply,
                     DLManagedTensor **tensors)
{
    if (reply->status == SKEP_OK) {
        succeed(call, reply, tensors);
        return;
    }
    for (size_t i = 0; i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    error_set(&call->last_error, reply->status, "%s", reply->message);
    call->last_error.retry_after_ms = reply->retry_after_ms;
    if (may_go_elsewhere(reply->status)) {
        /* A full queue is no fault of the peer's: the others are tried, it is not avoided. */
        if (reply->status != SKEP_RESOURCE_EXHAUSTED)
            note_peer(call, true);
        next_step(call);
        return;
    }
    finish(call, &call->last_error);
}

/* Says which expert it was and, unless the sentence does, where. */
static void name_attempt(const struct skep_call *call, struct skep_error *err)
{
    const struct provider *p = &call->candidates.items[call->current];
    char endpoint[ENDPOINT_TEXT_BYTES];

    endpoint_format(&p->endpoints[0], endpoint);
    if (strstr(err->message, endpoint) != NULL)
        error_prefix(err, "expert %s", call->expert->uid);
    else
        error_prefix(err, "expert %s at %s", call->expert->uid, endpoint);
}

static void not_answered(struct skep_call *call, bool sent, const struct skep_error *err)
{
    call->last_error = *err;
    name_attempt(call, &call->last_error);
    switch (err->status) {
    case SKEP_UNAVAILABLE:
    case SKEP_UNAUTHENTICATED:
    case SKEP_DATA_LOSS:
    case SKEP_PERMISSION_DENIED:
    case SKEP_FAILED_PRECONDITION:
        note_peer(call, true);
        if (!(call->changes_weights && sent)) {
            next_step(call);
            return;
        }
        break;
    case SKEP_DEADLINE_EXCEEDED:
        note_peer(call, true);
        break;
    default:
        break;
    }
    call->last_error.outcome_unknown = call->changes_weights && sent;
    finish(call, &call->last_error);
}

static void pool_done(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                      bool sent, const struct skep_error *err)
{
    struct skep_call *call = arg;

    pthread_mutex_lock(&call->lock);
    call->in_pool = NULL;
    call->attempt_done = call->attempt;
    pthread_mutex_unlock(&call->lock);
    if (reply != NULL)
        answered(call, reply, tensors);
    else
        not_answered(call, sent, err);
}

static void fill_target(const struct skep_call *call, struct pool_target *target)
{
    const struct provider *p = &call->candidates.items[call->current];

    *target = (struct pool_target){
        .has_peer_id = !call->expert->any_peer,
        .aes_gcm = (p->features & RECORD_FEATURE_AES_GCM) != 0,
        /* Whoever wrote the record could make us call services of this machine. */
        .no_loopback = !call->expert->fixed && call->client->swarm != NULL &&
                       !swarm_record(call->client->swarm)->loopback,
    };
    memcpy(target->peer_id, p->peer_id, PEER_ID_BYTES);
    for (size_t i = 0; i < p->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        target->endpoints[target->endpoint_count++] = p->endpoints[i];
}

/* Hands the call to the pool. False if it could not be started (last_error says why). */
static bool try_current(struct skep_call *call)
{
    struct pool_target target;
    struct pool_call *handle = NULL;
    bool is_compressed = call->compressed.tensors != NULL;

    call->tried[call->current] = true;
    fill_target(call, &target);
    pthread_mutex_lock(&call->lock);
    unsigned attempt = ++call->attempt;
    memcpy(call->asked_peer, call->candidates.items[call->current].peer_id, PEER_ID_BYTES);
    pthread_mutex_unlock(&call->lock);
    /* Once started, the call may have ended before the next line runs: our reference keeps it. */
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    bool started =
        pool_call_encoded(call->client->pool, &target, call->headers,
                          is_compressed ? call->compressed.tensors : call->tensor_pointers,
                          is_compressed ? call->tensor_pointers : NULL, call->deadline_us,
                          pool_done, call, &handle, &call->last_error) == SKEP_OK;
    if (started) {
        pthread_mutex_lock(&call->lock);
        if (call->attempt == attempt && call->attempt_done != attempt) {
            call->in_pool = handle;
            if (call->cancelled)
                pool_cancel(call->client->pool, handle);
        }
        pthread_mutex_unlock(&call->lock);
    }
    call_unref(call);
    return started;
}

static void out_of_time(struct skep_call *call)
{
    if (call->last_error.status == SKEP_OK) {
        fail(call, SKEP_DEADLINE_EXCEEDED, "no node answered in time");
        return;
    }
    call->last_error.status = SKEP_DEADLINE_EXCEEDED; /* the sentence says what took the time */
    finish(call, &call->last_error);
}

static void next_step(struct skep_call *call)
{
    while (!is_cancelled(call)) {
        if (clock_mono_us() >= call->deadline_us) {
            out_of_time(call);
            return;
        }
        if (pick(call)) {
            if (try_current(call))
                return;
            if (call->last_error.status == SKEP_INVALID_ARGUMENT)
                break;
            continue;
        }
        if (call->barren < LOOKUP_ROUNDS && call->lookups < LOOKUP_MOST_ROUNDS &&
            may_look_up(call)) {
            look_up(call);
            return;
        }
        break;
    }
    if (is_cancelled(call))
        fail(call, SKEP_CANCELLED, "cancelled by the caller");
    else if (call->last_error.status != SKEP_OK)
        finish(call, &call->last_error);
    else
        fail(call, SKEP_UNAVAILABLE, "no node that serves it is known");
}

/* Tensor structures and shapes in one piece of memory, their data still the caller's. */
static skep_status copy_tensors(struct skep_call *call, const DLTensor *const *tensors,
                                size_t count, struct skep_error *err)
{
    size_t shape_bytes = SKEP_TENSOR_MAX_DIMS * sizeof(int64_t);
    size_t each = sizeof(DLTensor) + sizeof(DLTensor *) + shape_bytes;
    uint8_t *memory = mem_calloc(count, each);

    if (memory == NULL)
        return error_no_memory(err, call->expert->uid, count * each);
    call->tensors = (DLTensor *)(void *)memory;
    int64_t *shapes = (int64_t *)(void *)(call->tensors + count);
    call->tensor_pointers = (const DLTensor **)(void *)(shapes + count * SKEP_TENSOR_MAX_DIMS);
    call->tensor_count = count;
    for (size_t i = 0; i < count; i++) {
        skep_status rc = tensor_descriptor_of(&call->headers->tensors[i], tensors[i], err);
        if (rc != SKEP_OK) {
            error_prefix(err, "expert %s: tensor %zu", call->expert->uid, i);
            return rc;
        }
        int64_t *shape = shapes + i * SKEP_TENSOR_MAX_DIMS;
        memcpy(shape, tensors[i]->shape, (size_t)tensors[i]->ndim * sizeof(*shape));
        call->tensors[i] = *tensors[i];
        call->tensors[i].shape = shape;
        call->tensors[i].strides = NULL;
        call->tensor_pointers[i] = &call->tensors[i];
    }
    call->headers->tensor_count = count;
    return SKEP_OK;
}

/* The first that says anything. */
static enum skep_compression choose(enum skep_compression call, enum skep_compression client)
{
    return call != SKEP_COMPRESSION_DEFAULT ? call : client;
}

static skep_status compress(struct skep_call *call, const struct call_request *request,
                            struct skep_error *err)
{
    struct skep_client *client = call->client;
    enum skep_compression plain = choose(request->compression, client->compression);
    enum skep_compression grad = choose(request->grad_compression, client->grad_compression);
    enum skep_compression back = request->gradient_count > 0 ? grad : plain;
    size_t not_finite;

    skep_status rc = tensor_encoding_check("compression", plain, err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("grad_compression", grad, err);
    if (rc != SKEP_OK || request->tensor_count == 0)
        return rc;
    /* Nobody here has said: for the reply the node decides, requests go by the expert's schema. */
    call->headers->has_reply_encoding = back != SKEP_COMPRESSION_DEFAULT;
    call->headers->reply_encoding = tensor_encoding_of(back);
    plain = choose(plain, (enum skep_compression)atomic_load_explicit(&call->expert->compression,
                                                                      memory_order_relaxed));
    grad = choose(grad, (enum skep_compression)atomic_load_explicit(&call->expert->grad_compression,
                                                                    memory_order_relaxed));
    rc = compressed_make(&call->compressed, call->tensor_pointers, call->tensor_count,
                         request->gradient_count, tensor_encoding_of(plain),
                         tensor_encoding_of(grad), call->headers->tensors, &not_finite, err);
    atomic_fetch_add_explicit(&client->not_compressed, not_finite, memory_order_relaxed);
    if (rc != SKEP_OK)
        error_prefix(err, "expert %s", call->expert->uid);
    return rc;
}

static skep_status fill_headers(struct skep_call *call, const struct call_request *request,
                                struct skep_error *err)
{
    /* Only what is sent is cleared: the descriptors behind it are 5 KB. */
    call->headers = mem_alloc(sizeof(*call->headers));
    if (call->headers == NULL)
        return error_no_memory(err, call->expert->uid, sizeof(*call->headers));
    memset(call->headers, 0, offsetof(struct call_headers, tensors));
    snprintf(call->headers->method, sizeof(call->headers->method), "%s", request->method);
    snprintf(call->headers->uid, sizeof(call->headers->uid), "%s", call->expert->uid);
    if (request->changes_weights) {
        call->headers->has_request_id = true;
        if (request->request_id != NULL)
            memcpy(call->headers->request_id, request->request_id, SKEP_REQUEST_ID_BYTES);
        else
            randombytes_buf(call->headers->request_id, SKEP_REQUEST_ID_BYTES);
    }
    return SKEP_OK;
}

static skep_status count_call(struct skep_client *client, const char *uid, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&client->lock);
    if (client->in_flight >= client->max_in_flight)
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED,
                       "expert %s: %u calls are under way already, "
                       "max_in_flight is %u",
                       uid, client->in_flight, client->max_in_flight);
    else
        client->in_flight++;
    pthread_mutex_unlock(&client->lock);
    return rc;
}

static skep_status call_new(struct skep_remote_expert *expert, const struct call_request *request,
                            skep_call_fn done, void *arg, struct skep_call **out,
                            struct skep_error *err)
{
    uint32_t timeout_ms =
        request->timeout_ms != 0 ? request->timeout_ms : expert->client->timeout_ms;
    struct skep_call *call = mem_calloc(1, sizeof(*call));

    if (call == NULL)
        return error_no_memory(err, expert->uid, sizeof(*call));
    atomic_init(&call->refs, 1);
    pthread_mutex_init(&call->lock, NULL);
    cond_init(&call->ended_cond);
    call->client = expert->client;
    call->expert = expert;
    remote_expert_ref(expert);
    call->changes_weights = request->changes_weights;
    call->deadline_us = clock_deadline_us(timeout_ms);
    call->done = done;
    call->arg = arg;
    skep_status rc = fill_headers(call, request, err);
    if (rc == SKEP_OK)
        rc = copy_tensors(call, request->tensors, request->tensor_count, err);
    if (rc == SKEP_OK)
        rc = compress(call, request, err);
    if (rc == SKEP_OK) {
        struct provider_list known;
        bool ok = remote_expert_snapshot(expert, &known);
        ok = ok && (known.count == 0 || add_candidates(call, known.items, known.count));
        mem_free(known.items);
        if (!ok)
            rc = error_no_memory(err, expert->uid, sizeof(struct provider));
    }
    if (rc != SKEP_OK)
        call_unref(call);
    else
        *out = call;
    return rc;
}

skep_status call_start(struct skep_remote_expert *expert, const struct call_request *request,
                       skep_call_fn done, void *arg, struct skep_call **out, struct skep_error *err)
{
    struct skep_call *call = NULL;

    *out = NULL;
    if (request->tensor_count > MESSAGE_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "expert %s: %zu tensors, expected at most %d",
                         expert->uid, request->tensor_count, MESSAGE_MAX_TENSORS);
    skep_status rc = call_new(expert, request, done, arg, &call, err);
    if (rc != SKEP_OK)
        return rc;
    rc = count_call(expert->client, expert->uid, err);
    if (rc != SKEP_OK) {
        call_unref(call);
        return rc;
    }
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed); /* the engine's */
    *out = call;
    next_step(call);
    return SKEP_OK;
}

bool skep_call_wait(struct skep_call *call, uint32_t timeout_ms)
{
    uint64_t deadline_us = clock_deadline_us(timeout_ms);

    pthread_mutex_lock(&call->lock);
    while (!call->ended && cond_wait_until(&call->ended_cond, &call->lock, deadline_us))
        continue;
    bool ended = call->ended;
    pthread_mutex_unlock(&call->lock);
    return ended;
}

skep_status skep_call_result(struct skep_call *call, DLManagedTensor **outputs, size_t output_cap,
                             size_t *output_count, struct skep_error *err)
{
    skep_status rc;

    pthread_mutex_lock(&call->lock);
    rc = call->error.status;
    if (!call->ended) {
        rc = error_set(err, SKEP_FAILED_PRECONDITION, "expert %s: the call has not ended yet",
                       call->expert->uid);
    } else if (rc != SKEP_OK) {
        if (err != NULL)
            *err = call->error;
    } else if (call->output_count > output_cap) {
        rc = error_set(
            err, SKEP_INVALID_ARGUMENT, "expert %s: %zu tensor%s came back, there is room for %zu",
            call->expert->uid, call->output_count, text_plural(call->output_count), output_cap);
    } else {
        for (size_t i = 0; i < call->output_count; i++)
            outputs[i] = call->outputs[i];
        *output_count = call->output_count;
        call->output_count = 0;
    }
    pthread_mutex_unlock(&call->lock);
    return rc;
}

const struct bytes *call_result_bytes(const struct skep_call *call)
{
    return &call->result;
}

const char *skep_call_peer_id(const struct skep_call *call)
{
    return call->peer_id;
}

void skep_call_cancel(struct skep_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->cancelled = true;
    /* The handle is valid while we hold the lock: the pool's callback takes it first of all. */
    if (call->in_pool != NULL)
        pool_cancel(call->client->pool, call->in_pool);
    pthread_mutex_unlock(&call->lock);
}

void call_give_up(struct skep_call *call)
{
    uint8_t peer_id[PEER_ID_BYTES];

    pthread_mutex_lock(&call->lock);
    bool asked = call->in_pool != NULL && !call->expert->any_peer;
    memcpy(peer_id, call->asked_peer, sizeof(peer_id));
    pthread_mutex_unlock(&call->lock);
    if (asked) {
        pthread_mutex_lock(&call->client->lock);
        avoid_failed(&call->client->avoid, peer_id, clock_mono_us());
        pthread_mutex_unlock(&call->client->lock);
    }
    skep_call_cancel(call);
}

void skep_call_free(struct skep_call *call)
{
    if (call == NULL)
        return;
    pthread_mutex_lock(&call->lock);
    bool ended = call->ended;
    pthread_mutex_unlock(&call->lock);
    if (!ended) {
        skep_call_cancel(call);
        skep_call_wait(call, UINT32_MAX); /* bounded by the call's own deadline */
    }
    call_unref(call);
}
