/* Calls as streams: the tables they are in, what they hold, how they begin and end. */
#include "net/session_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum {
    FIRST_TABLE_SIZE = 16,
    MAX_SPARE_HEAD_BYTES = 1024, /* a spare stream keeps a buffer of the usual size */
};

/* ---- Tables ---- */

static struct session_stream **slot_of(const struct session *s, uint32_t id)
{
    return &s->table[id & (s->table_size - 1)]; /* ids are consecutive: chains stay short */
}

struct session_stream *stream_find(const struct session *s, uint32_t id)
{
    if (s->table_size == 0)
        return NULL;
    struct session_stream *stream = *slot_of(s, id);
    while (stream != NULL && stream->id != id)
        stream = stream->hash_next;
    return stream;
}

static bool grow_table(struct session *s)
{
    size_t size = s->table_size == 0 ? FIRST_TABLE_SIZE : s->table_size * 2;
    struct session_stream **table = mem_calloc(size, sizeof(struct session_stream *));

    if (table == NULL)
        return false;
    mem_free(s->table);
    s->table = table;
    s->table_size = size;
    for (struct list_link *l = s->all.first; l != NULL; l = l->next) {
        struct session_stream *st = stream_in_all(l);
        struct session_stream **slot = slot_of(s, st->id);
        st->hash_next = *slot;
        *slot = st;
    }
    return true;
}

static struct session_stream *take_spare(struct session *s)
{
    struct session_stream *stream = s->spare;
    struct bytes head;

    if (stream == NULL)
        return mem_calloc(1, sizeof(*stream));
    s->spare = stream->hash_next;
    s->spare_count--;
    head = stream->head;
    *stream = (struct session_stream){.head = head};
    return stream;
}

struct session_stream *stream_new(struct session *s, uint32_t id)
{
    if (s->open_streams >= s->table_size && !grow_table(s))
        return NULL;
    struct session_stream *stream = take_spare(s);
    if (stream == NULL)
        return NULL;
    stream->id = id;
    stream->parts = stream->inline_parts;
    stream->send_window = s->peer_stream_window;
    stream->receive_window = s->limits.stream_window;
    struct session_stream **slot = slot_of(s, id);
    stream->hash_next = *slot;
    *slot = stream;
    list_append(&s->all, &stream->in_all);
    if (s->unstamped == NULL)
        s->unstamped = stream;
    s->open_streams++;
    return stream;
}

void stream_detach(struct session *s, struct session_stream *stream)
{
    struct session_stream **link = slot_of(s, stream->id);

    assert(!stream->detached);
    while (*link != stream)
        link = &(*link)->hash_next;
    *link = stream->hash_next;
    stream_unqueue(s, stream);
    if (s->unstamped == stream)
        s->unstamped = stream_in_all(stream->in_all.next);
    list_remove(&s->all, &stream->in_all);
    stream_set_intake(s, stream, INTAKE_DISCARD);
    if (s->intake.stream == stream)
        s->intake.stream = NULL; /* what still comes of its current frame is dropped */
    s->stream_backlog -= stream->send_left + (stream->head_sent ? 0 : stream->head.len);
    s->declared_bytes -= stream->declared;
    stream->declared = 0;
    s->open_streams--;
    s->watched -= stream->watched;
    stream->watched = false;
    stream->detached = true;
}

static void drop_parts(struct session_stream *stream)
{
    for (size_t i = 0; i < stream->part_count; i++)
        skep_tensor_free(stream->parts[i].owned);
    if (stream->parts != stream->inline_parts)
        mem_free(stream->parts);
    stream->parts = stream->inline_parts;
    stream->part_count = 0;
}

void stream_drop_tensors(struct session_stream *stream)
{
    for (size_t i = 0; i < stream->tensor_count; i++)
        skep_tensor_free(stream->tensors[i]);
    stream->tensor_count = 0;
}

void stream_recycle(struct session *s, struct session_stream *stream)
{
    drop_parts(stream);
    stream_drop_tensors(stream);
    call_headers_free(stream->call);
    reply_headers_free(stream->reply);
    mem_free(stream->intake_block);
    if (s->spare_count < MAX_SPARE_STREAMS && !s->freeing) {
        if (stream->head.cap > MAX_SPARE_HEAD_BYTES)
            bytes_free(&stream->head);
        stream->head.len = 0;
        stream->hash_next = s->spare;
        s->spare = stream;
        s->spare_count++;
        return;
    }
    bytes_free(&stream->head);
    mem_free(stream);
}

void stream_free_spares(struct session *s)
{
    while (s->spare != NULL) {
        struct session_stream *stream = s->spare;
        s->spare = stream->hash_next;
        bytes_free(&stream->head);
        mem_free(stream);
    }
    s->spare_count = 0;
}

/* ---- Queues ---- */

static struct linked_list *queue_list(struct session *s, enum stream_queue queue)
{
    return queue == QUEUE_READY ? &s->ready : &s->blocked;
}

void stream_unqueue(struct session *s, struct session_stream *stream)
{
    if (stream->queue == QUEUE_NONE)
        return;
    list_remove(queue_list(s, stream->queue), &stream->in_queue);
    stream->queue = QUEUE_NONE;
}

static enum stream_queue queue_of(const struct session *s, const struct session_stream *stream)
{
    if (!s->config.initiator && !stream->answered)
        return QUEUE_NONE;
    if (stream->head_sent && stream->send_left > 0) {
        if (stream->send_window == 0)
            return QUEUE_NONE;
        return s->send_window == 0 ? QUEUE_BLOCKED : QUEUE_READY;
    }
    return stream->end_sent ? QUEUE_NONE : QUEUE_READY;
}

void stream_requeue(struct session *s, struct session_stream *stream, bool front)
{
    enum stream_queue queue = queue_of(s, stream);

    stream_unqueue(s, stream);
    if (queue == QUEUE_NONE)
        return;
    stream->queue = queue;
    if (front)
        list_prepend(queue_list(s, queue), &stream->in_queue);
    else
        list_append(queue_list(s, queue), &stream->in_queue);
}

void stream_unblock(struct session *s)
{
    while (s->send_window > 0 && s->blocked.first != NULL)
        stream_requeue(s, stream_in_queue(s->blocked.first), false);
}

void stream_set_intake(struct session *s, struct session_stream *stream, enum stream_intake intake)
{
    s->receiving -= stream->intake == INTAKE_DATA;
    s->receiving += intake == INTAKE_DATA;
    stream->intake = intake;
}

/* ---- What comes in ---- */

/* A copy of headers of `fixed` bytes that end in `count` descriptors, with room for the tensors
 * behind. Headers are several KB with room for 64 descriptors; a stream keeps what is used. */
static void *compact(struct session_stream *stream, const void *headers, size_t fixed, size_t count)
{
    size_t used = fixed + count * sizeof(struct tensor_descriptor);
    size_t bytes = used + count * sizeof(DLManagedTensor *);
    uint8_t *block = mem_alloc(bytes);

    if (block == NULL)
        return NULL;
    memcpy(block, headers, used);
    stream->intake_block = block;
    stream->tensors = (DLManagedTensor **)(void *)(block + used);
    return block;
}
_Static_assert(offsetof(struct call_headers, tensors) % _Alignof(void *) == 0 &&
                   offsetof(struct reply_headers, tensors) % _Alignof(void *) == 0 &&
                   sizeof(struct tensor_descriptor) % _Alignof(void *) == 0,
               "tensors behind the descriptors are aligned");

static skep_status no_room(struct skep_error *err)
{
    return error_no_memory(err, "call", sizeof(struct call_headers));
}

skep_status stream_take_call(struct session_stream *stream, struct call_headers *headers,
                             struct skep_error *err)
{
    stream->call =
        compact(stream, headers, offsetof(struct call_headers, tensors), headers->tensor_count);
    if (stream->call == NULL)
        return no_room(err);
    headers->params = (struct bytes){0};
    return SKEP_OK;
}

skep_status stream_take_reply(struct session_stream *stream, struct reply_headers *headers,
                              struct skep_error *err)
{
    stream->reply =
        compact(stream, headers, offsetof(struct reply_headers, tensors), headers->tensor_count);
    if (stream->reply == NULL)
        return no_room(err);
    headers->result = (struct bytes){0};
    return SKEP_OK;
}

/* As it travels: what is encoded stays so here, see session.h. */
static skep_status make_tensor(const struct tensor_descriptor *d, DLManagedTensor **out,
                               struct skep_error *err)
{
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};
    int64_t bytes[1] = {(int64_t)d->wire_bytes};

    if (d->encoding != ENCODING_NONE)
        return skep_tensor_new(u8, 1, bytes, out, err);
    return skep_tensor_new(d->dtype, d->ndim, d->shape, out, err);
}

skep_status stream_make_tensors(struct session *s, struct session_stream *stream,
                                struct skep_error *err)
{
    const struct tensor_descriptor *d =
        stream->call != NULL ? stream->call->tensors : stream->reply->tensors;
    size_t count = stream->call != NULL ? stream->call->tensor_count : stream->reply->tensor_count;

    for (size_t i = 0; i < count; i++) {
        skep_status rc = make_tensor(&d[i], &stream->tensors[i], err);
        if (rc != SKEP_OK)
            return rc;
        stream->tensor_count++;
        stream->receive_left += d[i].wire_bytes;
        stream->declared += tensor_descriptor_memory(&d[i]);
        s->declared_bytes += tensor_descriptor_memory(&d[i]);
    }
    stream_set_intake(s, stream, INTAKE_DATA);
    return SKEP_OK;
}

/* ---- What goes out ---- */

/* Compares what is announced with what is there, and with our own limits. */
static skep_status check_outgoing(const struct session *s, const char *what,
                                  const struct tensor_descriptor *announced, const DLTensor *tensor,
                                  size_t i, uint64_t *total, struct skep_error *err)
{
    const struct message_limits *limits = &s->limits.message;
    uint64_t memory = tensor_descriptor_memory(announced);
    size_t bytes;
    skep_status rc = skep_tensor_bytes(tensor, &bytes, err);

    if (rc != SKEP_OK)
        return rc;
    if ((unsigned)announced->ndim > limits->max_dims)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: tensor %zu: %d dimensions, expected at most %u (max_dims)", what, i,
                         announced->ndim, limits->max_dims);
    if (bytes != announced->wire_bytes)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: tensor %zu: %zu bytes, but %" PRIu64 " announced", what, i, bytes,
                         announced->wire_bytes);
    if (memory > limits->max_message_bytes - *total)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: more than %" PRIu64 " bytes of tensors (max_message_bytes)", what,
                         limits->max_message_bytes);
    *total += memory;
    return SKEP_OK;
}

static skep_status make_parts(const struct session *s, struct session_stream *stream, size_t count,
                              const char *what, struct skep_error *err)
{
    if (count > s->limits.message.max_tensors || count > MESSAGE_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %zu tensors, expected at most %u (max_tensors)", what, count,
                         s->limits.message.max_tensors);
    if (count <= INLINE_PARTS)
        return SKEP_OK;
    struct part *parts = mem_calloc(count, sizeof(*parts));
    if (parts == NULL)
        return error_no_memory(err, what, count * sizeof(*parts));
    stream->parts = parts;
    return SKEP_OK;
}

static void add_part(struct session_stream *stream, const DLTensor *tensor, uint64_t bytes,
                     DLManagedTensor *owned)
{
    stream->parts[stream->part_count++] =
        (struct part){.data = skep_tensor_data(tensor), .bytes = bytes, .owned = owned};
    stream->send_left += bytes;
}

static void queue_first(struct session *s, struct session_stream *stream)
{
    s->stream_backlog += stream->head.len + stream->send_left;
    stream_requeue(s, stream, false);
}

/* ---- Initiator ---- */

static skep_status may_call(const struct session *s, struct skep_error *err)
{
    uint32_t max = s->limits.max_streams;

    if (!s->config.initiator)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "the responder of a connection cannot call");
    if (s->failed || s->freeing)
        return error_set(err, SKEP_UNAVAILABLE, "the connection has ended%s%s",
                         s->failed ? ": " : "", s->failed ? s->failure.message : "");
    if (s->draining || s->peer_draining)
        return error_set(err, SKEP_UNAVAILABLE, "%s takes no more calls (draining)",
                         s->peer_draining ? "the peer" : "this connection");
    if (s->next_stream == UINT32_MAX)
        return error_set(err, SKEP_UNAVAILABLE, "the connection has used up its stream numbers");
    if (s->phase == PHASE_OPEN && s->peer_max_streams < max)
        max = s->peer_max_streams;
    if (s->open_streams >= max)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "%zu calls are open, expected at most %" PRIu32 " (max_streams)",
                         s->open_streams, max);
    return SKEP_OK;
}

static skep_status fill_call(struct session *s, struct session_stream *stream,
                             const struct call_headers *headers, const DLTensor *const *tensors,
                             struct skep_error *err)
{
    uint64_t total = 0;
    skep_status rc = make_parts(s, stream, headers->tensor_count, "call", err);

    for (size_t i = 0; rc == SKEP_OK && i < headers->tensor_count; i++) {
        rc = check_outgoing(s, "call", &headers->tensors[i], tensors[i], i, &total, err);
        if (rc == SKEP_OK)
            add_part(stream, tensors[i], headers->tensors[i].wire_bytes, NULL);
    }
    if (rc == SKEP_OK)
        rc = call_headers_encode(headers, &stream->head, err);
    return rc;
}

skep_status session_call(struct session *s, const struct call_headers *headers,
                         const DLTensor *const *tensors, void *user, struct session_stream **out,
                         struct skep_error *err)
{
    skep_status rc = may_call(s, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    struct session_stream *stream = stream_new(s, s->next_stream);
    if (stream == NULL)
        return error_no_memory(err, "call", sizeof(*stream));
    rc = fill_call(s, stream, headers, tensors, err);
    if (rc != SKEP_OK) {
        stream->send_left = 0; /* nothing of it was counted as backlog */
        stream->head.len = 0;
        stream_detach(s, stream);
        stream_recycle(s, stream);
        return rc;
    }
    s->next_stream++;
    stream->user = user;
    stream->timeout_ms = headers->timeout_ms;
    queue_first(s, stream);
    *out = stream;
    if (s->next_stream == UINT32_MAX && s->events->goaway != NULL)
        s->events->goaway(s->arg, "the connection has used up its stream numbers");
    return SKEP_OK;
}

void stream_done(struct session *s, struct session_stream *stream, const struct skep_error *why)
{
    stream_detach(s, stream);
    if (why != NULL) {
        s->events->call_done(s->arg, stream, stream->user, NULL, NULL, stream->head_sent, why);
    } else {
        stream->tensor_count = 0; /* taken by the callee */
        s->events->call_done(s->arg, stream, stream->user, stream->reply, stream->tensors,
                             stream->head_sent, NULL);
    }
    stream_recycle(s, stream);
}

void session_cancel(struct session *s, struct session_stream *stream, const struct skep_error *why)
{
    struct skep_error err;

    if (stream->detached)
        return; /* its call_done is running */
    if (why != NULL)
        err = *why;
    else
        error_set(&err, SKEP_CANCELLED, "the call was cancelled");
    stream_abandon(s, stream, &err);
}

void stream_abandon(struct session *s, struct session_stream *stream, const struct skep_error *why)
{
    uint8_t status = (uint8_t)why->status;

    if (stream->head_sent && !s->failed && !s->freeing)
        session_control(s, FRAME_CANCEL, stream->id, &status, 1);
    stream_done(s, stream, why);
}

/* ---- Responder ---- */

static skep_status fill_reply(struct session *s, struct session_stream *stream,
                              const struct reply_headers *headers, DLManagedTensor **tensors,
                              struct skep_error *err)
{
    uint64_t total = 0;
    skep_status rc = make_parts(s, stream, headers->tensor_count, "reply", err);

    for (size_t i = 0; rc == SKEP_OK && i < headers->tensor_count; i++)
        rc = check_outgoing(s, "reply", &headers->tensors[i], &tensors[i]->dl_tensor, i, &total,
                            err);
    if (rc == SKEP_OK)
        rc = reply_headers_encode(headers, &stream->head, err);
    if (rc != SKEP_OK)
        return rc;
    for (size_t i = 0; i < headers->tensor_count; i++)
        add_part(stream, &tensors[i]->dl_tensor, headers->tensors[i].wire_bytes, tensors[i]);
    return SKEP_OK;
}

/* What is still to come of the request is of no use any more. */
static void mark_answered(struct session *s, struct session_stream *stream)
{
    stream->answered = true;
    if (stream->intake != INTAKE_DONE) {
        stream_set_intake(s, stream, INTAKE_DISCARD);
        stream_drop_tensors(stream);
        if (s->intake.stream == stream)
            s->intake.stream = NULL;
    }
}

void stream_refuse(struct session *s, struct session_stream *stream, const struct skep_error *why)
{
    struct reply_headers reply; /* only what encoding reads is filled: descriptors are 5 KB */

    reply.status = why->status != SKEP_OK ? why->status : SKEP_INTERNAL;
    memcpy(reply.message, why->message, sizeof(reply.message));
    reply.retry_after_ms = why->retry_after_ms;
    reply.result = (struct bytes){0};
    reply.tensor_count = 0;
    stream->head.len = 0;
    mark_answered(s, stream);
    /* Without memory for a reply there is still CANCEL, which needs none. */
    stream->give_up = reply_headers_encode(&reply, &stream->head, NULL) != SKEP_OK;
    queue_first(s, stream);
}

void session_reply(struct session *s, struct session_stream *stream,
                   const struct reply_headers *headers, DLManagedTensor **tensors)
{
    struct skep_error err;
    skep_status rc;

    assert(!s->config.initiator);
    assert(!stream->answered && !stream->detached);
    rc = fill_reply(s, stream, headers, tensors, &err);
    if (rc == SKEP_OK) {
        mark_answered(s, stream);
        queue_first(s, stream);
        return;
    }
    for (size_t i = 0; i < headers->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    err.retry_after_ms = 0;
    err.status = rc == SKEP_RESOURCE_EXHAUSTED ? rc : SKEP_INTERNAL;
    stream_refuse(s, stream, &err);
}

void stream_gone(struct session *s, struct session_stream *stream)
{
    stream_detach(s, stream);
    if (stream->started) {
        stream->started = false;
        s->events->call_gone(s->arg, stream, stream->user);
    }
    stream_recycle(s, stream);
}
