/*
 * Calls to experts: making them, waiting for them, their results. Whom a call asks is in
 * call_choose.c and call_engine.c.
 */
#include "client/call_internal.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"
#include "base/thread.h"

void call_unref(struct skep_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (size_t i = 0; i < call->output_count; i++)
        skep_tensor_free(call->outputs[i]);
    bytes_free(&call->result);
    mem_free(call->candidates.items);
    mem_free(call->states);
    compressed_free(&call->compressed);
    mem_free(call->tensors);
    mem_free(call->headers);
    remote_expert_unref(call->expert);
    pthread_cond_destroy(&call->ended_cond);
    pthread_mutex_destroy(&call->lock);
    mem_free(call);
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

/* With neither word from the caller: what the node that is asked first has recommended or, where
 * that is not decided yet, the first of those that serve the expert of which it is known. */
static enum skep_compression recommendation(struct skep_call *call, bool of_gradients)
{
    struct skep_client *client = call->client;
    const char *uid = call->expert->uid;
    enum skep_compression found = SKEP_COMPRESSION_DEFAULT;

    if (call->expert->any_peer)
        return found;
    pthread_mutex_lock(&client->lock);
    if (call->has_preferred)
        found = recommended_find(&client->recommended, call->preferred, uid, of_gradients);
    for (size_t i = 0; i < call->candidates.count && found == SKEP_COMPRESSION_DEFAULT; i++)
        found = recommended_find(&client->recommended, call->candidates.items[i].peer_id, uid,
                                 of_gradients);
    pthread_mutex_unlock(&client->lock);
    return found;
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
    if (request->by_answers && plain == SKEP_COMPRESSION_DEFAULT)
        plain = recommendation(call, false);
    if (request->by_answers && request->gradient_count > 0 && grad == SKEP_COMPRESSION_DEFAULT)
        grad = recommendation(call, true);
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

static skep_status count_call(struct skep_call *call, struct skep_error *err)
{
    struct skep_client *client = call->client;
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&client->lock);
    if (client->in_flight >= client->max_in_flight) {
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED,
                       "expert %s: %u calls are under way already, "
                       "max_in_flight is %u",
                       call->expert->uid, client->in_flight, client->max_in_flight);
    } else {
        client->in_flight++;
        call->failures_before = client->backoff.failures;
        client->stats.calls++;
    }
    pthread_mutex_unlock(&client->lock);
    return rc;
}

/* Who is asked first, and when another one as well. */
static skep_status take_reservations(struct skep_call *call, const struct call_request *request,
                                     struct skep_error *err)
{
    const char *peer_id = request->peer_id != NULL ? request->peer_id : "";
    uint32_t hedge_after_ms =
        request->hedge_after_ms != 0 ? request->hedge_after_ms : call->client->hedge_after_ms;

    if (!request->changes_weights)
        call->hedge_after_us = hedge_after_ms * (uint64_t)1000;
    call->has_preferred = peer_id[0] != '\0';
    if (call->has_preferred && !peer_id_parse(call->preferred, peer_id))
        return error_set(err, SKEP_INVALID_ARGUMENT, "peer id \"%.80s\": expected 64 hex digits",
                         peer_id);
    return SKEP_OK;
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
    call->judged_by_caller = request->judged_by_caller;
    call->timeout_ms = timeout_ms;
    call->deadline_us = clock_deadline_us(timeout_ms);
    call->done = done;
    call->searching = request->searching;
    call->arg = arg;
    skep_status rc = take_reservations(call, request, err);
    if (rc == SKEP_OK)
        rc = fill_headers(call, request, err);
    if (rc == SKEP_OK)
        rc = copy_tensors(call, request->tensors, request->tensor_count, err);
    if (rc == SKEP_OK) {
        struct provider_list known;
        bool ok = remote_expert_snapshot(expert, &known);
        ok = ok && call_add_candidates(call, known.items, known.count);
        mem_free(known.items);
        if (!ok)
            rc = error_no_memory(err, expert->uid, sizeof(struct provider));
    }
    if (rc == SKEP_OK)
        rc = compress(call, request, err);
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
    rc = count_call(call, err);
    if (rc != SKEP_OK) {
        call_unref(call);
        return rc;
    }
    /* The engine's, and one for here: `done` may free the call before call_advance() returns. */
    atomic_fetch_add_explicit(&call->refs, 2, memory_order_relaxed);
    *out = call;
    call_advance(call);
    call_unref(call);
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

enum skep_compression skep_call_compression(const struct skep_call *call)
{
    return tensor_encoding_setting(call->encoding);
}

void skep_call_cancel(struct skep_call *call)
{
    pthread_mutex_lock(&call->lock);
    call->cancelled = true;
    /* Handles are valid while we hold the lock: the pool's callback takes it first of all. */
    call_stop_attempts(call);
    bool looking_up = call->looking_up;
    pthread_mutex_unlock(&call->lock);
    if (looking_up)
        directory_get_cancel(swarm_directory(call->client->swarm), call);
}

/* Whether the node hangs or only this expert does nobody knows: any answer of the node clears the
 * node. With the lock and the client's held. */
static void note_gave_up(struct skep_call *call, const uint8_t *peer_id)
{
    backoff_node_failed(&call->client->backoff, peer_id);
    backoff_expert_failed(&call->client->backoff, peer_id, call->expert->uid);
}

void call_give_up(struct skep_call *call)
{
    pthread_mutex_lock(&call->lock);
    pthread_mutex_lock(&call->client->lock);
    for (size_t i = 0; i < CALL_ATTEMPTS && !call->expert->any_peer; i++)
        if (call->attempts[i].open)
            note_gave_up(call, call->candidates.items[call->attempts[i].candidate].peer_id);
    pthread_mutex_unlock(&call->client->lock);
    pthread_mutex_unlock(&call->lock);
    skep_call_cancel(call);
}

bool call_is_searching(struct skep_call *call, struct skep_error *why)
{
    pthread_mutex_lock(&call->lock);
    bool searching = call->looking_up && call_open_attempts(call) == 0;
    if (searching && call->last_error.status != SKEP_OK)
        *why = call->last_error;
    pthread_mutex_unlock(&call->lock);
    return searching;
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
