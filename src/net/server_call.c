/*
 * Calls that came in: from the session's events to the handlers, and the reply back.
 *
 * A call has two sides. The session's side ends with `finished`; the handler's side ends with
 * server_call_reply() (or with `finished` if `complete` never came). The object goes when both have
 * ended. Only `gone` is looked at by both at once; the fields of the reply pass from the replying
 * thread to the loop's with the posted job.
 *
 * Replies wake the loop, which sends all that have come meanwhile together. The last one that an
 * I/O thread owes has nothing to be sent together with: if the loop sleeps, the replying thread
 * borrows it and sends by itself, which spares a lone call one of its four wake-ups.
 */
#include "net/server_internal.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "wire/tensor_codec.h"

enum {
    MAX_FREE_CALLS = 256, /* kept for reuse by an I/O thread; about 8 KB each */
    /* A larger reply is worth waking the loop for: the replying thread has other work. */
    MAX_DIRECT_BYTES = 64 * 1024,
    /* What the loop encodes itself: OFFLOAD_FROM_BYTES would take a slow scheme 0.6 ms. */
    MAX_LOOP_ENCODE_BYTES = 64 * 1024,
};

struct server_call {
    struct loop_job job;
    struct offload_job work;
    struct server_io *io;
    struct server_call *next_free;

    /* The loop's thread only. */
    struct server_conn *conn;
    struct session_stream *stream; /* NULL: the session's side has ended */
    bool complete;
    bool replied;
    bool preparing; /* its tensors are another thread's: the end of the session's side waits */

    atomic_bool gone;

    /* Set before `complete`; the handler's until it has replied. */
    void *user;
    uint64_t deadline_us;
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t peer_features;
    struct address remote;
    size_t tensor_count; /* 0 once taken over */
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];

    /* The reply, from server_call_reply() to deliver(). */
    enum tensor_encoding encoding;
    bool has_error;
    struct skep_error reply_error;
    struct bytes result;
    struct tensor_descriptor *reply_descriptors; /* owned; NULL: not encoded yet */
    size_t reply_tensor_count;
    DLManagedTensor *reply_tensors[MESSAGE_MAX_TENSORS];

    struct call_headers headers; /* last: only as many descriptors as there are get touched */
};

static void free_tensors(DLManagedTensor **tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        skep_tensor_free(tensors[i]);
}

/* Making and freeing */

static struct server_call *take_call(struct server_io *io)
{
    struct server_call *call = io->free_calls;

    if (call == NULL)
        return mem_alloc(sizeof(*call));
    io->free_calls = call->next_free;
    io->free_call_count--;
    return call;
}

static void release_call(struct server_call *call)
{
    struct server_io *io = call->io;

    free_tensors(call->tensors, call->tensor_count);
    call_headers_free(&call->headers);
    bytes_free(&call->result);
    mem_free(call->reply_descriptors);
    call->reply_descriptors = NULL;
    if (io->free_call_count >= MAX_FREE_CALLS) {
        mem_free(call);
        return;
    }
    call->next_free = io->free_calls;
    io->free_calls = call;
    io->free_call_count++;
}

void server_calls_free(struct server_io *io)
{
    while (io->free_calls != NULL) {
        struct server_call *call = io->free_calls;
        io->free_calls = call->next_free;
        mem_free(call);
    }
    io->free_call_count = 0;
}

/* A copy of our own: the session's is a view that may end while another thread still reads. */
static struct server_call *new_call(struct server_conn *c, struct session_stream *stream,
                                    const struct call_headers *headers)
{
    struct server_call *call = take_call(c->io);

    if (call == NULL)
        return NULL;
    call->io = c->io;
    call->conn = c;
    call->stream = stream;
    call->complete = false;
    call->replied = false;
    call->preparing = false;
    call->reply_descriptors = NULL;
    atomic_init(&call->gone, false);
    call->user = NULL;
    call->deadline_us =
        headers->timeout_ms > 0 ? clock_deadline_us(headers->timeout_ms) : CLOCK_NEVER;
    memcpy(call->peer_id, session_peer(c->conn.session)->peer_id, PEER_ID_BYTES);
    call->peer_features = session_peer(c->conn.session)->features;
    call->remote = c->remote;
    call->tensor_count = 0;
    call->encoding = ENCODING_NONE;
    call->has_error = false;
    call->result = (struct bytes){0};
    call->reply_tensor_count = 0;
    if (!call_headers_copy(&call->headers, headers)) {
        release_call(call);
        return NULL;
    }
    return call;
}

/* The session's side */

static skep_status on_started(void *arg, struct session_stream *stream,
                              const struct call_headers *headers, void **user,
                              struct skep_error *err)
{
    struct server_conn *c = arg;
    struct server *server = c->io->server;
    struct server_call *call = new_call(c, stream, headers);

    if (call == NULL)
        return error_no_memory(err, "call", sizeof(*call));
    skep_status rc =
        server->config.handlers.started(server->config.arg, call, &call->headers, &call->user, err);
    if (rc != SKEP_OK) {
        release_call(call);
        return rc;
    }
    server_count(&c->io->calls);
    atomic_fetch_add(&server->open_calls, 1);
    *user = call;
    return SKEP_OK;
}

/* The rest of the session's side's end: nothing of the call is another thread's but its reply. */
static void finish_session_side(struct server_call *call)
{
    struct server *server = call->io->server;
    bool is_last = !call->complete || call->replied;

    /* May reply, now that nobody waits for the work; the reply releases the call then. */
    server->config.handlers.finished(server->config.arg, call, call->user);
    if (is_last)
        release_call(call);
    if (atomic_fetch_sub(&server->open_calls, 1) == 1)
        server_check_idle(server);
}

static void end_session_side(struct server_call *call)
{
    call->stream = NULL;
    call->conn = NULL;
    if (!call->preparing)
        finish_session_side(call);
}

/* Hands a request over that is decoded, or could not be. */
static void complete(struct server_call *call, skep_status status)
{
    const struct server_handlers *handlers = &call->io->server->config.handlers;
    struct skep_error err;

    call->complete = true;
    atomic_fetch_add(&call->io->unanswered, 1);
    if (status == SKEP_OK) {
        handlers->complete(call->io->server->config.arg, call);
        return;
    }
    err = call->reply_error;
    server_call_reply(call, &err, NULL, 0, NULL, 0);
}

/* What may take time. Thread: the loop's, or one that the loop waits for (`preparing`). */
static skep_status prepare(struct server_call *call)
{
    const struct server_config *config = &call->io->server->config;
    skep_status rc = tensors_decode(call->headers.tensors, call->tensors, &call->tensor_count,
                                    &call->reply_error);

    if (rc == SKEP_OK && config->handlers.prepare != NULL)
        config->handlers.prepare(config->arg, call);
    return rc;
}

static void prepared(struct loop_job *job)
{
    struct server_call *call =
        (struct server_call *)((char *)job - offsetof(struct server_call, job));

    call->preparing = false;
    if (call->stream == NULL) /* its caller has left meanwhile */
        finish_session_side(call);
    else
        complete(call, call->has_error ? call->reply_error.status : SKEP_OK);
}

static void prepare_elsewhere(struct offload_job *work)
{
    struct server_call *call =
        (struct server_call *)((char *)work - offsetof(struct server_call, work));

    /* What nobody waits for would only keep memory and this thread from others. */
    if (!server_call_is_gone(call))
        call->has_error = prepare(call) != SKEP_OK;
    loop_post(call->io->loop, &call->job);
}

static uint64_t request_bytes(const struct call_headers *headers)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < headers->tensor_count; i++)
        sum += tensor_descriptor_memory(&headers->tensors[i]); /* bounded by max_message_bytes */
    return sum;
}

static void on_complete(void *arg, struct session_stream *stream,
                        const struct call_headers *headers, DLManagedTensor **tensors, void *user)
{
    struct server_call *call = user;
    uint64_t bytes = request_bytes(headers);

    (void)arg;
    (void)stream;
    call->tensor_count = headers->tensor_count;
    for (size_t i = 0; i < headers->tensor_count; i++)
        call->tensors[i] = tensors[i];
    if (bytes <= OFFLOAD_FROM_BYTES) {
        complete(call, prepare(call));
        return;
    }
    call->preparing = true;
    call->job.run = prepared;
    call->work.run = prepare_elsewhere;
    call->work.bytes = (size_t)bytes;
    offload_post(call->io->server->offload, &call->work);
}

static void on_gone(void *arg, struct session_stream *stream, void *user)
{
    struct server_call *call = user;

    (void)arg;
    (void)stream;
    atomic_store_explicit(&call->gone, true, memory_order_relaxed); /* a hint, orders nothing */
    end_session_side(call);
}

static void on_answered(void *arg, struct session_stream *stream, void *user)
{
    (void)arg;
    (void)stream;
    end_session_side(user);
}

const struct session_events server_session_events = {
    .established = server_conn_established,
    .call_started = on_started,
    .call_complete = on_complete,
    .call_gone = on_gone,
    .call_answered = on_answered,
};

/* The handler's side */

/* Puts a tensor into the call's encoding, if it and the peer take it; describes what is sent. */
static skep_status encode(struct server_call *call, DLManagedTensor **tensor,
                          struct tensor_descriptor *descriptor, struct skep_error *err)
{
    bool taken = hello_takes_encoding(call->peer_features, call->encoding);
    DLManagedTensor *encoded;
    enum tensor_encoded how;
    skep_status rc = tensor_encode(&(*tensor)->dl_tensor, taken ? call->encoding : ENCODING_NONE,
                                   descriptor, &how, &encoded, err);

    if (how == TENSOR_NOT_FINITE)
        atomic_fetch_add_explicit(&call->io->server->not_encoded, 1, memory_order_relaxed);
    if (encoded != NULL) {
        skep_tensor_free(*tensor);
        *tensor = encoded;
    }
    return rc;
}

static skep_status encode_all(struct server_call *call, DLManagedTensor **tensors, size_t count,
                              struct tensor_descriptor *descriptors, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count && rc == SKEP_OK; i++)
        rc = encode(call, &tensors[i], &descriptors[i], err);
    if (rc != SKEP_OK) {
        error_prefix(err, "reply");
        err->status = rc == SKEP_RESOURCE_EXHAUSTED ? rc : SKEP_INTERNAL;
    }
    return rc;
}

/* On the loop's thread, or with the loop borrowed. Takes the tensors. Returns the connection that
 * has something to send now, NULL if the caller was gone. */
static struct conn *answer(struct server_call *call, const struct skep_error *err,
                           const struct bytes *result, DLManagedTensor **tensors, size_t count)
{
    struct conn *conn;
    struct reply_headers headers; /* not cleared: it is large, and only what is used gets written */
    skep_status rc = SKEP_OK;
    struct skep_error bad;

    call->replied = true;
    if (call->stream == NULL) {
        free_tensors(tensors, count);
        release_call(call);
        return NULL;
    }
    if (call->reply_descriptors != NULL)
        memcpy(headers.tensors, call->reply_descriptors, count * sizeof(headers.tensors[0]));
    else
        rc = encode_all(call, tensors, count, headers.tensors, &bad);
    if (rc != SKEP_OK) {
        err = &bad;
        free_tensors(tensors, count);
        count = 0;
    }
    headers.status = err != NULL ? err->status : SKEP_OK;
    headers.retry_after_ms = err != NULL ? err->retry_after_ms : 0;
    headers.message[0] = '\0';
    if (err != NULL && err->status != SKEP_OK)
        memcpy(headers.message, err->message, sizeof(headers.message));
    headers.result = *result;
    headers.tensor_count = count;
    conn = &call->conn->conn;
    session_reply(conn->session, call->stream, &headers, tensors); /* the call may be gone now */
    conn_touch(conn);
    return conn;
}

static void deliver(struct loop_job *job)
{
    struct server_call *call =
        (struct server_call *)((char *)job - offsetof(struct server_call, job));
    struct bytes result = call->result;

    call->result = (struct bytes){0}; /* answer() may free the call before it returns */
    answer(call, call->has_error ? &call->reply_error : NULL, &result, call->reply_tensors,
           call->reply_tensor_count);
    bytes_free(&result);
}

/* The reply is in the call, as post_answer() has put it there. */
static void encode_elsewhere(struct offload_job *work)
{
    struct server_call *call =
        (struct server_call *)((char *)work - offsetof(struct server_call, work));
    size_t count = call->reply_tensor_count;
    struct tensor_descriptor *descriptors = NULL;
    struct skep_error *err = &call->reply_error;
    skep_status rc = SKEP_OK;

    if (!server_call_is_gone(call)) {
        descriptors = mem_alloc(count * sizeof(*descriptors));
        rc = descriptors == NULL ? error_no_memory(err, "reply", count * sizeof(*descriptors))
                                 : encode_all(call, call->reply_tensors, count, descriptors, err);
    }
    if (rc != SKEP_OK) {
        call->has_error = true;
        free_tensors(call->reply_tensors, count);
        call->reply_tensor_count = 0;
    }
    call->reply_descriptors = descriptors;
    loop_post(call->io->loop, &call->job);
}

static void post_answer(struct server_call *call, const struct skep_error *err,
                        const uint8_t *result, size_t result_len, DLManagedTensor **tensors,
                        size_t tensor_count, size_t encode_bytes)
{
    call->has_error = err != NULL;
    if (err != NULL)
        call->reply_error = *err;
    call->reply_tensor_count = tensor_count;
    for (size_t i = 0; i < tensor_count; i++)
        call->reply_tensors[i] = tensors[i];
    if (result_len > 0 && !bytes_append(&call->result, result, result_len)) {
        call->has_error = true;
        error_no_memory(&call->reply_error, "reply", result_len);
        free_tensors(call->reply_tensors, call->reply_tensor_count);
        call->reply_tensor_count = 0;
    }
    call->job.run = deliver;
    if (call->reply_tensor_count == 0 || encode_bytes <= MAX_LOOP_ENCODE_BYTES) {
        loop_post(call->io->loop, &call->job);
        return;
    }
    call->work.run = encode_elsewhere;
    call->work.bytes = encode_bytes;
    offload_post(call->io->server->offload, &call->work);
}

static size_t reply_bytes(DLManagedTensor *const *tensors, size_t count)
{
    size_t sum = 0;
    size_t bytes;

    for (size_t i = 0; i < count; i++)
        if (skep_tensor_bytes(&tensors[i]->dl_tensor, &bytes, NULL) != SKEP_OK ||
            !size_add(sum, bytes, &sum))
            return SIZE_MAX;
    return sum;
}

/* On the replying thread, if the loop sleeps. False: nothing was done. */
static bool answer_directly(struct server_call *call, const struct skep_error *err,
                            const struct bytes *result, DLManagedTensor **tensors, size_t count)
{
    struct loop *loop = call->io->loop;
    struct loop_takeover takeover;

    if (!loop_take_over(loop, &takeover))
        return false;
    struct conn *conn = answer(call, err, result, tensors, count);
    bool settled = conn == NULL || conn_send_borrowed(conn);
    loop_give_back(loop, &takeover, !settled);
    return true;
}

void server_call_reply(struct server_call *call, const struct skep_error *err,
                       const uint8_t *result, size_t result_len, DLManagedTensor **tensors,
                       size_t tensor_count)
{
    struct skep_error too_many;
    struct bytes view = {0};

    /* The request's memory goes here rather than on the loop, which has others to serve. */
    free_tensors(call->tensors, call->tensor_count);
    call->tensor_count = 0;
    if (tensor_count > MESSAGE_MAX_TENSORS) {
        error_set(&too_many, SKEP_INTERNAL, "reply: %zu tensors, at most %d can be sent",
                  tensor_count, MESSAGE_MAX_TENSORS);
        free_tensors(tensors, tensor_count);
        tensor_count = 0;
        err = &too_many;
    }
    /* Only read by session_reply(): the cast takes no constness away from anything written. */
    view.data = (uint8_t *)(uintptr_t)result;
    view.len = result_len;
    view.cap = result_len;
    bool last = atomic_fetch_sub(&call->io->unanswered, 1) == 1;
    size_t bytes = reply_bytes(tensors, tensor_count);
    size_t encode_bytes = call->encoding == ENCODING_NONE ? 0 : bytes;
    if (encode_bytes <= MAX_LOOP_ENCODE_BYTES) {
        if (loop_is_own_thread(call->io->loop)) {
            answer(call, err, &view, tensors, tensor_count);
            return;
        }
        if (last && bytes <= MAX_DIRECT_BYTES &&
            answer_directly(call, err, &view, tensors, tensor_count))
            return;
    }
    post_answer(call, err, result, result_len, tensors, tensor_count, encode_bytes);
}

void server_call_watch(struct server_call *call, uint32_t silence_ms)
{
    assert(loop_is_own_thread(call->io->loop));
    if (call->stream == NULL)
        return;
    session_watch(call->conn->conn.session, call->stream, silence_ms);
    conn_touch(&call->conn->conn); /* its next deadline may have come nearer */
}

void server_call_set_encoding(struct server_call *call, enum tensor_encoding encoding)
{
    call->encoding = encoding;
}

const struct call_headers *server_call_headers(const struct server_call *call)
{
    return &call->headers;
}

DLManagedTensor **server_call_tensors(struct server_call *call, size_t *count)
{
    *count = call->tensor_count;
    return call->tensors;
}

void server_call_take_tensors(struct server_call *call)
{
    call->tensor_count = 0;
}

const uint8_t *server_call_peer_id(const struct server_call *call)
{
    return call->peer_id;
}

void server_call_peer_address(const struct server_call *call, struct endpoint *out)
{
    endpoint_from_address(out, (const struct sockaddr *)&call->remote.sa);
}

void *server_call_user(const struct server_call *call)
{
    return call->user;
}

uint64_t server_call_deadline_us(const struct server_call *call)
{
    return call->deadline_us;
}

bool server_call_is_gone(const struct server_call *call)
{
    return atomic_load_explicit(&call->gone, memory_order_relaxed);
}
