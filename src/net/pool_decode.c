/*
 * The decoding of replies. A large one would hold the pool's loop, and with it all other calls, for
 * longer than a millisecond: a thread of its own decodes it (offload.h). The call is off its
 * connection then, and ends when the loop has the tensors back, or before that: cancelled, out of
 * time or with the pool. What nobody waits for any more is not decoded, so that the queue holds
 * little beyond the replies of open calls.
 *
 * The two threads start with the first large reply; a pool that never sees one has none. Where they
 * cannot start, the loop decodes.
 */
#include "net/pool_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/log.h"
#include "wire/tensor_codec.h"

/* Owned by the loop but for the time between offload_post() and loop_post(), in which the other
 * thread has `tensors`, `count` and `err`. */
struct decoding {
    struct offload_job work;
    struct loop_job back;
    struct pool *pool;
    struct pool_call *call; /* the loop's; NULL: it has ended meanwhile */
    atomic_bool abandoned;  /* the same, for the other thread: a hint */
    struct list_link in_decoding;
    bool sent;
    struct skep_error err;
    size_t count; /* 0 if err says why */
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];
    struct reply_headers reply; /* last: only as many descriptors as there are get touched */
};

static void finish(struct pool_call *call, const struct reply_headers *reply,
                   DLManagedTensor **tensors, bool sent, struct skep_error *err)
{
    if (err->status == SKEP_OK) {
        pool_call_finish(call, reply, tensors, sent, NULL);
        return;
    }
    error_prefix(err, "reply");
    pool_call_finish(call, NULL, NULL, sent, err);
}

static void free_tensors(DLManagedTensor **tensors, size_t *count)
{
    for (size_t i = 0; i < *count; i++)
        skep_tensor_free(tensors[i]);
    *count = 0;
}

static bool is_abandoned(const struct decoding *d)
{
    return atomic_load_explicit(&d->abandoned, memory_order_relaxed); /* orders nothing */
}

static void back_on_loop(struct loop_job *job)
{
    struct decoding *d = (struct decoding *)((char *)job - offsetof(struct decoding, back));
    struct pool_call *call = d->call;

    if (call != NULL) {
        call->decoding = NULL;
        list_remove(&d->pool->decoding, &d->in_decoding);
        finish(call, &d->reply, d->tensors, d->sent, &d->err);
    } else {
        free_tensors(d->tensors, &d->count);
    }
    reply_headers_free(&d->reply);
    mem_free(d);
}

static void decode(struct offload_job *work)
{
    struct decoding *d = (struct decoding *)((char *)work - offsetof(struct decoding, work));

    if (!is_abandoned(d) &&
        tensors_decode(d->reply.tensors, d->tensors, &d->count, &d->err) == SKEP_OK)
        d->err.status = SKEP_OK;
    if (is_abandoned(d))
        free_tensors(d->tensors, &d->count); /* rather here than on the loop */
    loop_post(d->pool->loop, &d->back);
}

/* A copy of our own: the session's reply is a view. NULL: memory is short. */
static struct decoding *decoding_new(struct pool_call *call, const struct reply_headers *reply,
                                     DLManagedTensor **tensors, bool sent)
{
    struct decoding *d = mem_alloc(sizeof(*d));

    if (d == NULL)
        return NULL;
    memset(d, 0, offsetof(struct decoding, reply));
    memcpy(&d->reply, reply,
           offsetof(struct reply_headers, tensors) +
               reply->tensor_count * sizeof(reply->tensors[0]));
    d->reply.result = (struct bytes){0};
    if (reply->result.len > 0 &&
        !bytes_append(&d->reply.result, reply->result.data, reply->result.len)) {
        mem_free(d);
        return NULL;
    }
    d->work.run = decode;
    d->back.run = back_on_loop;
    d->pool = call->pool;
    d->call = call;
    atomic_init(&d->abandoned, false);
    d->sent = sent;
    d->count = reply->tensor_count;
    for (size_t i = 0; i < reply->tensor_count; i++)
        d->tensors[i] = tensors[i];
    return d;
}

/* What there is to decode; plain tensors are not touched. */
static uint64_t encoded_bytes(const struct reply_headers *reply)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < reply->tensor_count; i++)
        if (reply->tensors[i].encoding != ENCODING_NONE)
            sum += tensor_descriptor_memory(&reply->tensors[i]); /* up to max_message_bytes */
    return sum;
}

static bool has_threads(struct pool *pool)
{
    struct skep_error err;

    if (pool->offload == NULL && offload_new(&pool->offload, &err) != SKEP_OK)
        log_debug("a large reply is decoded on the I/O thread: %s", err.message);
    return pool->offload != NULL;
}

/* False: it is to be decoded here. */
static bool decode_elsewhere(struct pool_call *call, const struct reply_headers *reply,
                             DLManagedTensor **tensors, bool sent)
{
    struct pool *pool = call->pool;
    uint64_t bytes = encoded_bytes(reply);

    if (bytes <= OFFLOAD_FROM_BYTES || !has_threads(pool))
        return false;
    struct decoding *d = decoding_new(call, reply, tensors, sent);
    if (d == NULL)
        return false;
    call->state = CALL_DECODING;
    call->decoding = d;
    deadline_heap_remove(&pool->alarms, &call->alarm); /* its node has answered */
    list_append(&pool->decoding, &d->in_decoding);
    d->work.bytes = (size_t)bytes;
    offload_post(pool->offload, &d->work);
    return true;
}

void pool_decode_reply(struct pool_call *call, const struct reply_headers *reply,
                       DLManagedTensor **tensors, bool sent)
{
    struct skep_error err = {0};
    size_t count = reply->tensor_count;

    if (decode_elsewhere(call, reply, tensors, sent))
        return;
    if (tensors_decode(reply->tensors, tensors, &count, &err) == SKEP_OK)
        err.status = SKEP_OK;
    finish(call, reply, tensors, sent, &err);
}

void pool_decode_abandon(struct pool_call *call, const struct skep_error *why)
{
    struct decoding *d = call->decoding;

    call->decoding = NULL;
    d->call = NULL;
    atomic_store_explicit(&d->abandoned, true, memory_order_relaxed);
    list_remove(&d->pool->decoding, &d->in_decoding);
    pool_call_finish(call, NULL, NULL, d->sent, why);
}

void pool_decode_abandon_all(struct pool *pool, const struct skep_error *why)
{
    while (pool->decoding.first != NULL)
        pool_decode_abandon(LIST_HOLDER(pool->decoding.first, struct decoding, in_decoding)->call,
                            why);
}
