/*
 * Two sessions and the bytes between them, without sockets or clocks: what the session tests play
 * with. Bytes travel in pieces of any size, may be cut off at any place, changed or held back.
 */
#ifndef SKEP_TESTS_SESSION_PAIR_H
#define SKEP_TESTS_SESSION_PAIR_H

#include "unit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/tensor.h"
#include "net/session.h"
#include "wire/frame.h"

enum { PAIR_MAX_CALLS = 256, PAIR_SEND_CAP = 200 * 1024 };

/* One call as the initiator sees it; given as `user`. */
struct call_log {
    struct session_stream *stream; /* NULL once done */
    unsigned done;
    unsigned order; /* which one to end, from 1 */
    bool sent, replied;
    skep_status status; /* of the reply, or why there was none */
    char message[SKEP_ERROR_MESSAGE_BYTES];
    uint32_t retry_after_ms;
    size_t result_len;
    size_t tensor_count;
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];
};

/* One call as the responder sees it. */
struct serve_log {
    struct session_stream *stream;
    const struct call_headers *headers;
    unsigned complete, gone, answered;
    size_t tensor_count;
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];
};

/* Bytes on their way. Not of mem_alloc(): tests that fail allocations mean the sessions'. */
struct wire {
    uint8_t *memory;
    size_t at, end, cap;
};

static inline void wire_add(struct wire *w, const void *data, size_t len)
{
    if (w->at == w->end)
        w->at = w->end = 0;
    if (w->cap - w->end < len) {
        w->cap = (w->end + len) * 2;
        w->memory = realloc(w->memory, w->cap);
        assert_non_null(w->memory);
    }
    if (len > 0)
        memcpy(w->memory + w->end, data, len);
    w->end += len;
}

static inline size_t wire_len(const struct wire *w)
{
    return w->end - w->at;
}

struct side {
    struct session *session;
    struct wire wire; /* from this side */
    bool ended;       /* its session said that the connection must end */
    struct skep_error end;
    unsigned established;
    unsigned goaways;
    char goaway[FRAME_MAX_TEXT + 1];
    bool deaf; /* takes nothing from the wire */
    bool mute; /* its socket takes nothing */
    uint64_t received;
};

struct pair {
    struct side a, b; /* initiator, responder */
    struct identity ida, idb;
    struct session_limits limits; /* of both */
    struct session_config ca, cb;
    uint64_t now;
    size_t piece;       /* bytes a delivery carries at most */
    uint64_t cut_after; /* the wire a -> b or b -> a breaks after so many bytes together */
    uint64_t carried;
    bool hold;          /* the responder does not answer by itself */
    skep_status refuse; /* the responder's call_started says this */
    bool reply_early;   /* call_started answers at once */
    struct call_log calls[PAIR_MAX_CALLS];
    size_t call_count;
    struct serve_log served[PAIR_MAX_CALLS];
    size_t served_count;
    unsigned done_count;
    void (*tamper)(struct pair *p, struct side *from, uint8_t *data, size_t len);
    uint64_t tamper_at;
};

static inline uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state;

    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* ---- Replies ---- */

static inline void pair_reply(struct pair *p, struct serve_log *served, skep_status status)
{
    struct reply_headers reply = {.status = status, .tensor_count = served->tensor_count};

    for (size_t i = 0; i < served->tensor_count; i++)
        assert_int_equal(
            tensor_descriptor_of(&reply.tensors[i], &served->tensors[i]->dl_tensor, NULL), SKEP_OK);
    served->tensor_count = 0;
    session_reply(p->b.session, served->stream, &reply, served->tensors);
}

/* ---- Events ---- */

static inline void pair_established_a(void *arg, const struct session_peer *peer)
{
    struct pair *p = arg;

    p->a.established++;
    assert_memory_equal(peer->peer_id, p->idb.peer_id, PEER_ID_BYTES);
}

static inline void pair_established_b(void *arg, const struct session_peer *peer)
{
    struct pair *p = arg;

    p->b.established++;
    assert_memory_equal(peer->peer_id, p->ida.peer_id, PEER_ID_BYTES);
    assert_string_equal(peer->agent, "skep/0.1.0");
}

static inline skep_status pair_started(void *arg, struct session_stream *stream,
                                       const struct call_headers *headers, void **user,
                                       struct skep_error *err)
{
    struct pair *p = arg;

    if (p->refuse != SKEP_OK) {
        error_set(err, p->refuse, "refused by the test");
        err->retry_after_ms = 7;
        return err->status;
    }
    assert_true(p->served_count < PAIR_MAX_CALLS);
    struct serve_log *served = &p->served[p->served_count++];
    served->stream = stream;
    served->headers = headers;
    *user = served;
    if (p->reply_early)
        pair_reply(p, served, SKEP_NOT_FOUND);
    return SKEP_OK;
}

static inline void pair_complete(void *arg, struct session_stream *stream,
                                 const struct call_headers *headers, DLManagedTensor **tensors,
                                 void *user)
{
    struct pair *p = arg;
    struct serve_log *served = user;

    assert_ptr_equal(served->stream, stream);
    assert_ptr_equal(served->headers, headers);
    served->complete++;
    served->tensor_count = headers->tensor_count;
    for (size_t i = 0; i < headers->tensor_count; i++)
        served->tensors[i] = tensors[i];
    if (!p->hold)
        pair_reply(p, served, SKEP_OK);
}

static inline void free_served(struct serve_log *served)
{
    for (size_t i = 0; i < served->tensor_count; i++)
        skep_tensor_free(served->tensors[i]);
    served->tensor_count = 0;
    served->stream = NULL;
}

static inline void pair_gone(void *arg, struct session_stream *stream, void *user)
{
    struct serve_log *served = user;

    (void)arg;
    assert_ptr_equal(served->stream, stream);
    served->gone++;
    free_served(served);
}

static inline void pair_answered(void *arg, struct session_stream *stream, void *user)
{
    struct serve_log *served = user;

    (void)arg;
    assert_ptr_equal(served->stream, stream);
    served->answered++;
    served->stream = NULL;
}

static inline void pair_done(void *arg, struct session_stream *stream, void *user,
                             const struct reply_headers *reply, DLManagedTensor **tensors,
                             bool sent, const struct skep_error *err)
{
    struct pair *p = arg;
    struct call_log *call = user;

    assert_true(call->stream == NULL || call->stream == stream);
    call->stream = NULL;
    call->done++;
    call->order = ++p->done_count;
    call->sent = sent;
    call->replied = reply != NULL;
    call->status = reply != NULL ? reply->status : err->status;
    snprintf(call->message, sizeof(call->message), "%s",
             reply != NULL ? reply->message : err->message);
    if (reply == NULL)
        return;
    call->retry_after_ms = reply->retry_after_ms;
    call->result_len = reply->result.len;
    call->tensor_count = reply->tensor_count;
    for (size_t i = 0; i < reply->tensor_count; i++)
        call->tensors[i] = tensors[i];
}

static inline void pair_goaway_a(void *arg, const char *reason)
{
    struct pair *p = arg;

    p->a.goaways++;
    snprintf(p->a.goaway, sizeof(p->a.goaway), "%s", reason);
}

static inline void pair_goaway_b(void *arg, const char *reason)
{
    struct pair *p = arg;

    p->b.goaways++;
    snprintf(p->b.goaway, sizeof(p->b.goaway), "%s", reason);
}

static const struct session_events pair_events_a = {
    .established = pair_established_a,
    .call_done = pair_done,
    .goaway = pair_goaway_a,
};
static const struct session_events pair_events_b = {
    .established = pair_established_b,
    .call_started = pair_started,
    .call_complete = pair_complete,
    .call_gone = pair_gone,
    .call_answered = pair_answered,
    .goaway = pair_goaway_b,
};

/* ---- Life ---- */

static inline void pair_run(struct pair *p);

/* Everything but the sessions, so that a test can change what it wants to. */
static inline struct pair *pair_prepare(void)
{
    struct pair *p = calloc(1, sizeof(*p));
    uint8_t seed[32] = {1};

    assert_non_null(p);
    assert_int_equal(identity_system_init(NULL), SKEP_OK);
    assert_int_equal(identity_from_seed(&p->ida, seed, NULL), SKEP_OK);
    seed[0] = 2;
    assert_int_equal(identity_from_seed(&p->idb, seed, NULL), SKEP_OK);
    p->limits = session_default_limits;
    p->now = 1000000;
    p->piece = SIZE_MAX;
    p->cut_after = UINT64_MAX;
    p->ca = (struct session_config){.initiator = true,
                                    .identity = &p->ida,
                                    .cipher = NOISE_CHACHAPOLY,
                                    .swarm = "test",
                                    .limits = &p->limits};
    p->cb = (struct session_config){.identity = &p->idb, .swarm = "test", .limits = &p->limits};
    return p;
}

static inline void pair_open(struct pair *p)
{
    struct skep_error err;

    assert_int_equal(session_new(&p->ca, &pair_events_a, p, p->now, &p->a.session, &err), SKEP_OK);
    assert_int_equal(session_new(&p->cb, &pair_events_b, p, p->now, &p->b.session, &err), SKEP_OK);
}

static inline void pair_close(struct pair *p, const struct skep_error *why)
{
    session_free(p->a.session, why);
    session_free(p->b.session, why);
    p->a.session = p->b.session = NULL;
}

/* Every call has ended exactly once at both ends; frees all. */
static inline void pair_free(struct pair *p)
{
    pair_close(p, NULL);
    for (size_t i = 0; i < p->call_count; i++) {
        assert_int_equal(p->calls[i].done, 1);
        for (size_t t = 0; t < p->calls[i].tensor_count; t++)
            skep_tensor_free(p->calls[i].tensors[t]);
    }
    for (size_t i = 0; i < p->served_count; i++) {
        assert_int_equal(p->served[i].gone + p->served[i].answered, 1);
        assert_int_equal(p->served[i].tensor_count, 0);
    }
    free(p->a.wire.memory);
    free(p->b.wire.memory);
    free(p);
}

static inline struct pair *pair_opened(enum noise_cipher cipher, bool plaintext)
{
    struct pair *p = pair_prepare();

    p->ca.cipher = cipher;
    p->ca.plaintext = p->cb.plaintext = plaintext;
    pair_open(p);
    pair_run(p);
    assert_int_equal(p->a.established, 1);
    assert_int_equal(p->b.established, 1);
    return p;
}

/* ---- Moving bytes ---- */

/* Lets a side speak. Returns whether it had something to say. */
static inline bool pair_speak(struct pair *p, struct side *from)
{
    static uint8_t out[PAIR_SEND_CAP];

    if (from->session == NULL || from->mute)
        return false;
    size_t n = session_send(from->session, out, sizeof(out), p->now);
    if (n > 0 && p->tamper != NULL)
        p->tamper(p, from, out, n);
    wire_add(&from->wire, out, n);
    return n > 0;
}

static inline void pair_end(struct pair *p, struct side *side)
{
    side->ended = true;
    while (pair_speak(p, side))
        ;
}

/* Delivers at most one piece. Returns whether something was delivered. */
static inline bool pair_deliver(struct pair *p, struct side *from, struct side *to)
{
    uint8_t *data;
    size_t cap;

    if (to->session == NULL || to->ended || to->deaf || wire_len(&from->wire) == 0)
        return false;
    session_receive_buffer(to->session, &data, &cap);
    assert_true(cap >= 16 * 1024);
    size_t n = wire_len(&from->wire) < p->piece ? wire_len(&from->wire) : p->piece;
    n = n < cap ? n : cap;
    if (n > p->cut_after - p->carried)
        n = (size_t)(p->cut_after - p->carried);
    if (n == 0)
        return false;
    memcpy(data, from->wire.memory + from->wire.at, n);
    from->wire.at += n;
    p->carried += n;
    to->received += n;
    if (session_received(to->session, n, p->now, &to->end) != SKEP_OK)
        pair_end(p, to);
    return true;
}

/* Until nothing moves any more. */
static inline void pair_run(struct pair *p)
{
    bool moved;

    do {
        moved = pair_speak(p, &p->a);
        moved |= pair_speak(p, &p->b);
        while (pair_deliver(p, &p->a, &p->b))
            moved = true;
        while (pair_deliver(p, &p->b, &p->a))
            moved = true;
    } while (moved);
}

/* Moves time on and ticks both sides when they want it. */
static inline void pair_wait(struct pair *p, uint64_t us)
{
    uint64_t until = p->now + us;
    struct side *sides[] = {&p->a, &p->b};

    while (p->now < until) {
        uint64_t next = until;
        for (int i = 0; i < 2; i++)
            if (sides[i]->session != NULL && !sides[i]->ended &&
                session_next_tick(sides[i]->session) < next)
                next = session_next_tick(sides[i]->session);
        p->now = next > p->now ? next : p->now;
        for (int i = 0; i < 2; i++)
            if (sides[i]->session != NULL && !sides[i]->ended &&
                session_next_tick(sides[i]->session) <= p->now &&
                session_tick(sides[i]->session, p->now, &sides[i]->end) != SKEP_OK)
                pair_end(p, sides[i]);
        pair_run(p);
        if (next == until)
            break;
    }
}

/* ---- Calls ---- */

static inline DLManagedTensor *make_tensor(DLDataType dtype, int ndim, const int64_t *shape,
                                           uint64_t seed)
{
    DLManagedTensor *t;
    size_t bytes;

    assert_int_equal(skep_tensor_new(dtype, ndim, shape, &t, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0)
            next_random(&seed);
        ((uint8_t *)t->dl_tensor.data)[i] = (uint8_t)(seed >> 8 * (i % 8));
    }
    return t;
}

static inline DLManagedTensor *make_bytes(int64_t n, uint64_t seed)
{
    return make_tensor((DLDataType){.code = kDLUInt, .bits = 8, .lanes = 1}, 1, &n, seed | 1);
}

/* Starts a call; tensors stay the caller's. Asserts only that the log has room. */
static inline skep_status pair_try_call(struct pair *p, DLManagedTensor *const *tensors,
                                        size_t count, struct skep_error *err)
{
    struct call_headers headers = {.method = "forward", .uid = "ffn.1.2", .tensor_count = count};
    const DLTensor *views[MESSAGE_MAX_TENSORS + 1];

    assert_true(p->call_count < PAIR_MAX_CALLS);
    for (size_t i = 0; i < count; i++) {
        views[i] = &tensors[i]->dl_tensor;
        if (i < MESSAGE_MAX_TENSORS)
            assert_int_equal(tensor_descriptor_of(&headers.tensors[i], views[i], NULL), SKEP_OK);
    }
    struct call_log *call = &p->calls[p->call_count];
    skep_status rc = session_call(p->a.session, &headers, views, call, &call->stream, err);
    p->call_count += rc == SKEP_OK;
    return rc;
}

static inline struct call_log *pair_call(struct pair *p, DLManagedTensor *const *tensors,
                                         size_t count)
{
    struct skep_error err = {0};

    if (pair_try_call(p, tensors, count, &err) != SKEP_OK)
        fail_msg("call: %s", err.message);
    return &p->calls[p->call_count - 1];
}

static inline void assert_same_tensor(const DLManagedTensor *x, const DLManagedTensor *y)
{
    size_t bytes, other;

    assert_true(dtype_equal(x->dl_tensor.dtype, y->dl_tensor.dtype));
    assert_int_equal(x->dl_tensor.ndim, y->dl_tensor.ndim);
    for (int i = 0; i < x->dl_tensor.ndim; i++)
        assert_int_equal(x->dl_tensor.shape[i], y->dl_tensor.shape[i]);
    assert_int_equal(skep_tensor_bytes(&x->dl_tensor, &bytes, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&y->dl_tensor, &other, NULL), SKEP_OK);
    assert_int_equal(bytes, other);
    if (bytes > 0)
        assert_memory_equal(x->dl_tensor.data, y->dl_tensor.data, bytes);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

/* A frame of a test's own, for peers that misbehave. */
static inline void append_frame(struct wire *out, uint8_t type, uint32_t stream,
                                const void *payload, size_t len)
{
    uint8_t header[FRAME_HEADER_BYTES];

    frame_header_encode(header, (uint32_t)len, type, stream);
    wire_add(out, header, sizeof(header));
    wire_add(out, payload, len);
}

#endif
