/*
 * Bytes from the peer: decrypted, cut into frames, handed to streams.
 *
 * DATA goes to its tensor with as few copies as the bytes allow. Encrypted: a Noise message that is
 * all payload of one DATA frame is decrypted straight into the tensor; any other is decrypted where
 * it lies and its payload copied. Plaintext: while a large DATA frame is under way the tensor's own
 * memory is the receive buffer.
 */
#include "net/session_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "base/error.h"

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* ---- Where bytes go ---- */

static void skip_full_tensors(struct session_stream *stream)
{
    const struct tensor_descriptor *d =
        stream->call != NULL ? stream->call->tensors : stream->reply->tensors;

    while (stream->tensor_at < stream->tensor_count &&
           stream->tensor_offset == d[stream->tensor_at].wire_bytes) {
        stream->tensor_at++;
        stream->tensor_offset = 0;
    }
}

/* The place of the next bytes of the current DATA frame that lie together in one tensor: how many,
 * 0 if there is none. */
static uint64_t intake_room(struct session *s, uint8_t **where)
{
    struct session_stream *stream = s->intake.stream;

    if (!s->intake.in_payload || stream == NULL)
        return 0;
    skip_full_tensors(stream);
    if (stream->tensor_at >= stream->tensor_count)
        return 0;
    const struct tensor_descriptor *d =
        stream->call != NULL ? stream->call->tensors : stream->reply->tensors;
    *where = (uint8_t *)stream->tensors[stream->tensor_at]->dl_tensor.data + stream->tensor_offset;
    return least(s->intake.left, d[stream->tensor_at].wire_bytes - stream->tensor_offset);
}

static void advance_stream(struct session_stream *stream, uint64_t n)
{
    stream->tensor_offset += n;
    stream->receive_left -= n;
}

/* ---- Credit ---- */

/* Gives the peer credit for n bytes that are out of the way. Half a window at a time: few frames,
 * and the sender need not wait for them. */
static void credit_connection(struct session *s, uint64_t n)
{
    uint8_t payload[4];

    s->receive_credit += n;
    if (s->receive_credit < s->limits.connection_window / 2)
        return;
    store_u32(payload, (uint32_t)s->receive_credit);
    if (session_control(s, FRAME_WINDOW, 0, payload, sizeof(payload))) {
        s->receive_window += s->receive_credit;
        s->receive_credit = 0;
    }
}

static void credit_stream(struct session *s, struct session_stream *stream, uint64_t n)
{
    uint8_t payload[4];

    stream->receive_credit += n;
    /* Nothing to credit for once the rest fits the window: the usual case. */
    if (stream->receive_left <= stream->receive_window ||
        stream->receive_credit < s->limits.stream_window / 2)
        return;
    store_u32(payload, (uint32_t)stream->receive_credit);
    if (session_control(s, FRAME_WINDOW, stream->id, payload, sizeof(payload))) {
        stream->receive_window += stream->receive_credit;
        stream->receive_credit = 0;
    }
}

/* ---- Streams ---- */

/* Whether this id has been in use: frames may cross with the end of their stream. */
static bool was_open(const struct session *s, uint32_t id)
{
    return s->config.initiator ? id < s->next_stream : id <= s->last_peer_stream;
}

/* The stream of a frame; NULL if it has ended (the frame is dropped) or never was (failure). */
static struct session_stream *stream_of_frame(struct session *s, const struct frame_header *f)
{
    struct session_stream *stream = stream_find(s, f->stream);

    if (stream == NULL && !was_open(s, f->stream))
        session_fail(s, SKEP_DATA_LOSS, "frame: %s on stream %" PRIu32 ", which was never opened",
                     frame_type_name(f->type), f->stream);
    return stream;
}

/* Whether a call may begin at all; what it may not is answered, and costs the connection nothing.
 */
static skep_status may_start(const struct session *s, const struct call_headers *headers,
                             struct skep_error *err)
{
    uint64_t total = 0;

    for (size_t i = 0; i < headers->tensor_count; i++)
        total += tensor_descriptor_memory(&headers->tensors[i]);
    if (s->draining)
        return error_set(err, SKEP_UNAVAILABLE, "this node takes no more calls (draining)");
    if (s->stream_backlog > s->limits.max_reply_backlog) {
        error_set(err, SKEP_RESOURCE_EXHAUSTED,
                  "%" PRIu64
                  " bytes of replies wait to be read on this connection, at most %" PRIu64
                  " (max_reply_backlog)",
                  s->stream_backlog, s->limits.max_reply_backlog);
        err->retry_after_ms = 100;
        return err->status;
    }
    if (total > s->limits.message.max_message_bytes - s->declared_bytes) {
        error_set(err, SKEP_RESOURCE_EXHAUSTED,
                  "calls with %" PRIu64
                  " bytes of tensors are open on this connection and this one "
                  "has %" PRIu64 ": at most %" PRIu64 " together (max_message_bytes)",
                  s->declared_bytes, total, s->limits.message.max_message_bytes);
        err->retry_after_ms = 100;
        return err->status;
    }
    return SKEP_OK;
}

/* Hands a decoded call up and makes room for its tensors. Other than SKEP_OK: to be answered so. */
static skep_status begin_call(struct session *s, struct session_stream *stream,
                              struct call_headers *headers, struct skep_error *err)
{
    skep_status rc = may_start(s, headers, err);

    if (rc == SKEP_OK)
        rc = stream_take_call(stream, headers, err);
    if (rc != SKEP_OK)
        return rc;
    stream_set_intake(s, stream, INTAKE_DATA);
    *err = (struct skep_error){0};
    rc = s->events->call_started(s->arg, stream, stream->call, &stream->user, err);
    if (rc != SKEP_OK) {
        if (err->status != rc)
            error_set(err, rc, "%s", skep_status_text(rc));
        return rc;
    }
    stream->started = true;
    if (stream->answered)
        return SKEP_OK;
    rc = stream_make_tensors(s, stream, err);
    if (rc != SKEP_OK) {
        stream->started = false;
        s->events->call_gone(s->arg, stream, stream->user);
    }
    return rc;
}

static skep_status receive_call(struct session *s, const struct frame_header *f,
                                const uint8_t *payload)
{
    struct call_headers headers; /* 6 KB: only what is used of it is written, and kept */
    struct skep_error err;

    if (f->stream <= s->last_peer_stream)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: HEADERS on stream %" PRIu32 ", expected one above %" PRIu32,
                            f->stream, s->last_peer_stream);
    s->last_peer_stream = f->stream;
    if (s->open_streams >= s->limits.max_streams)
        return session_fail(s, SKEP_RESOURCE_EXHAUSTED,
                            "frame: HEADERS while %zu calls are open, at most %" PRIu32
                            " (max_streams)",
                            s->open_streams, s->limits.max_streams);
    struct session_stream *stream = stream_new(s, f->stream);
    if (stream == NULL)
        return session_fail(s, SKEP_RESOURCE_EXHAUSTED, "no memory for a call");
    skep_status rc = call_headers_decode(&headers, payload, f->length, &s->limits.message, &err);
    if (rc == SKEP_OK) {
        rc = begin_call(s, stream, &headers, &err);
        call_headers_free(&headers);
    }
    if (rc != SKEP_OK)
        stream_refuse(s, stream, &err);
    return s->failed ? s->failure.status : SKEP_OK;
}

static skep_status take_reply(struct session *s, struct session_stream *stream,
                              struct reply_headers *headers, struct skep_error *err)
{
    uint64_t total = 0;

    for (size_t i = 0; i < headers->tensor_count; i++)
        total += tensor_descriptor_memory(&headers->tensors[i]);
    if (total > s->limits.message.max_message_bytes - s->declared_bytes)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "replies with %" PRIu64 " bytes of tensors are under way on this "
                         "connection and this one has %" PRIu64 ": at most %" PRIu64
                         " together (max_message_bytes)",
                         s->declared_bytes, total, s->limits.message.max_message_bytes);
    skep_status rc = stream_take_reply(stream, headers, err);
    if (rc == SKEP_OK)
        rc = stream_make_tensors(s, stream, err);
    return rc;
}

static skep_status receive_reply(struct session *s, const struct frame_header *f,
                                 const uint8_t *payload)
{
    struct reply_headers headers;
    struct skep_error err;
    struct session_stream *stream = stream_of_frame(s, f);

    if (stream == NULL)
        return s->failed ? s->failure.status : SKEP_OK;
    if (stream->intake != INTAKE_HEADERS || !stream->head_sent)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: HEADERS on stream %" PRIu32 ", expected none %s", f->stream,
                            stream->head_sent ? "any more" : "yet");
    skep_status rc = reply_headers_decode(&headers, payload, f->length, &s->limits.message, &err);
    if (rc == SKEP_OK) {
        rc = take_reply(s, stream, &headers, &err);
        reply_headers_free(&headers);
    }
    if (rc != SKEP_OK)
        stream_abandon(s, stream, &err);
    return s->failed ? s->failure.status : SKEP_OK;
}

static skep_status receive_end(struct session *s, const struct frame_header *f)
{
    struct session_stream *stream = stream_of_frame(s, f);

    if (stream == NULL)
        return s->failed ? s->failure.status : SKEP_OK;
    if (stream->intake == INTAKE_DISCARD) {
        stream_set_intake(s, stream, INTAKE_DONE);
        return SKEP_OK;
    }
    if (stream->intake != INTAKE_DATA || stream->receive_left > 0)
        return session_fail(s, SKEP_DATA_LOSS, "frame: END on stream %" PRIu32 ", %s", f->stream,
                            stream->intake == INTAKE_DATA ? "but tensor bytes are missing"
                                                          : "expected none there");
    stream_set_intake(s, stream, INTAKE_DONE);
    if (s->config.initiator) {
        stream_done(s, stream, NULL);
    } else {
        stream->tensor_count = 0; /* taken by the callee */
        s->events->call_complete(s->arg, stream, stream->call, stream->tensors, stream->user);
    }
    return s->failed ? s->failure.status : SKEP_OK;
}

static skep_status receive_cancel(struct session *s, const struct frame_header *f, uint8_t status)
{
    struct session_stream *stream = stream_of_frame(s, f);
    struct skep_error err;

    if (stream == NULL)
        return s->failed ? s->failure.status : SKEP_OK;
    if (!s->config.initiator) {
        stream_gone(s, stream);
        return SKEP_OK;
    }
    skep_status given = status_from_wire(status);
    error_set(&err, given != SKEP_OK ? given : SKEP_CANCELLED,
              "the peer gave the call up without a reply");
    stream_done(s, stream, &err);
    return s->failed ? s->failure.status : SKEP_OK;
}

/* ---- The connection's own frames ---- */

static skep_status receive_window(struct session *s, const struct frame_header *f, uint32_t more)
{
    struct session_stream *stream = NULL;
    uint64_t *window = &s->send_window;

    if (f->stream != 0) {
        stream = stream_of_frame(s, f);
        if (stream == NULL)
            return s->failed ? s->failure.status : SKEP_OK;
        window = &stream->send_window;
    }
    if (more == 0 || *window + more > UINT32_MAX)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: WINDOW of %" PRIu32 " on stream %" PRIu32 " above %" PRIu64
                            ", expected more than 0 and together less than 2^32",
                            more, f->stream, *window);
    *window += more;
    if (stream == NULL)
        stream_unblock(s);
    else if (stream->queue == QUEUE_NONE)
        stream_requeue(s, stream, false);
    return SKEP_OK;
}

static skep_status receive_pong(struct session *s, const uint8_t *payload)
{
    if (s->ping_out && load_u64(payload) == s->ping_number) {
        s->ping_out = false;
        s->rtt_us = s->now_us > s->ping_us ? s->now_us - s->ping_us : 1;
        if (s->events->pong != NULL)
            s->events->pong(s->arg);
    }
    return SKEP_OK;
}

/* The peer has not seen these calls, so they may be made elsewhere. */
static void end_unsent(struct session *s, const char *reason)
{
    struct skep_error err;

    error_set(&err, SKEP_UNAVAILABLE, "the peer takes no more calls: %s", reason);
    /* HEADERS leave in the order of opening: the unsent ones are the latest. */
    while (s->all.last != NULL && !stream_in_all(s->all.last)->head_sent)
        stream_done(s, stream_in_all(s->all.last), &err);
}

static skep_status receive_goaway(struct session *s, const uint8_t *payload, size_t len)
{
    struct goaway g;

    if (!goaway_decode(&g, payload, len))
        return session_fail(s, SKEP_DATA_LOSS, "frame: GOAWAY of %zu bytes", len);
    if (g.status != SKEP_OK && s->phase != PHASE_OPEN)
        return session_fail_silently(s, g.status, "refused by the peer: %s", g.text);
    if (g.status != SKEP_OK)
        return session_fail_silently(s, SKEP_UNAVAILABLE, "the peer ended the connection: %s (%s)",
                                     g.text, skep_status_name(g.status));
    if (s->peer_draining)
        return SKEP_OK;
    s->peer_draining = true;
    if (s->config.initiator)
        end_unsent(s, g.text);
    if (s->events->goaway != NULL)
        s->events->goaway(s->arg, g.text);
    return s->failed ? s->failure.status : SKEP_OK;
}

/* ---- Frames ---- */

/* A whole frame other than DATA. */
static skep_status dispatch(struct session *s, const struct frame_header *f, const uint8_t *payload)
{
    if (s->phase != PHASE_OPEN && f->type != FRAME_READY && f->type != FRAME_GOAWAY)
        return session_fail(s, SKEP_DATA_LOSS, "frame: %s, expected READY",
                            frame_type_name(f->type));
    switch (f->type) {
    case FRAME_HEADERS:
        return s->config.initiator ? receive_reply(s, f, payload) : receive_call(s, f, payload);
    case FRAME_END:
        return receive_end(s, f);
    case FRAME_CANCEL:
        return receive_cancel(s, f, payload[0]);
    case FRAME_PING:
        session_control(s, FRAME_PONG, 0, payload, f->length);
        return s->failed ? s->failure.status : SKEP_OK;
    case FRAME_PONG:
        return receive_pong(s, payload);
    case FRAME_GOAWAY:
        return receive_goaway(s, payload, f->length);
    case FRAME_WINDOW:
        return receive_window(s, f, load_u32(payload));
    case FRAME_READY:
        return session_handshake_ready(s);
    default:
        return SKEP_OK; /* optional */
    }
}

/* A DATA header: may it come, and where does it go? */
static skep_status begin_data(struct session *s, const struct frame_header *f)
{
    if (s->phase != PHASE_OPEN)
        return session_fail(s, SKEP_DATA_LOSS, "frame: DATA, expected READY");
    if (f->length > s->receive_window)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: DATA of %" PRIu32
                            " bytes, but the connection's window is %" PRIu64,
                            f->length, s->receive_window);
    struct session_stream *stream = stream_of_frame(s, f);
    if (s->failed)
        return s->failure.status;
    s->receive_window -= f->length;
    s->intake.stream = NULL;
    if (stream == NULL || stream->intake == INTAKE_DISCARD)
        return SKEP_OK;
    if (stream->intake != INTAKE_DATA || f->length > stream->receive_left)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: DATA of %" PRIu32 " bytes on stream %" PRIu32
                            ", expected at most %" PRIu64,
                            f->length, f->stream, stream->receive_left);
    if (f->length > stream->receive_window)
        return session_fail(s, SKEP_DATA_LOSS,
                            "frame: DATA of %" PRIu32 " bytes on stream %" PRIu32
                            ", but its window is %" PRIu64,
                            f->length, f->stream, stream->receive_window);
    stream->receive_window -= f->length;
    s->intake.stream = stream;
    return SKEP_OK;
}

/* n bytes of the current DATA frame are where they belong. */
static void finish_data(struct session *s, uint32_t n)
{
    struct frame_intake *in = &s->intake;

    in->left -= n;
    if (in->left > 0)
        return;
    in->in_payload = false;
    if (in->stream != NULL)
        credit_stream(s, in->stream, in->frame.length);
    in->stream = NULL;
    credit_connection(s, in->frame.length);
}

/* Takes what there is of a DATA frame's payload. Returns how much that was. */
static size_t take_data(struct session *s, const uint8_t *data, size_t len)
{
    size_t n = (size_t)least(len, s->intake.left);
    size_t done = 0;
    uint8_t *where;

    while (done < n) {
        size_t piece = (size_t)least(n - done, intake_room(s, &where));
        if (piece == 0)
            break; /* nobody wants it */
        memcpy(where, data + done, piece);
        advance_stream(s->intake.stream, piece);
        done += piece;
    }
    finish_data(s, (uint32_t)n);
    return n;
}

static skep_status begin_frame(struct session *s, const uint8_t *header)
{
    struct frame_intake *in = &s->intake;
    struct skep_error err;
    skep_status rc = frame_header_decode(&in->frame, header, &err);

    if (rc != SKEP_OK)
        return session_fail(s, rc, "%s", err.message);
    in->header_len = 0;
    in->in_payload = true;
    in->left = in->frame.length;
    in->gathered.len = 0;
    return in->frame.type == FRAME_DATA ? begin_data(s, &in->frame) : SKEP_OK;
}

/* Takes header bytes; *used tells how many. */
static skep_status take_header(struct session *s, const uint8_t *data, size_t len, size_t *used)
{
    struct frame_intake *in = &s->intake;

    if (in->header_len == 0 && len >= FRAME_HEADER_BYTES) { /* the usual case: no copy */
        *used = FRAME_HEADER_BYTES;
        return begin_frame(s, data);
    }
    *used = (size_t)least(len, FRAME_HEADER_BYTES - in->header_len);
    memcpy(in->header_bytes + in->header_len, data, *used);
    in->header_len += *used;
    return in->header_len == FRAME_HEADER_BYTES ? begin_frame(s, in->header_bytes) : SKEP_OK;
}

/* Takes payload of a frame other than DATA, and dispatches it when it is whole. */
static skep_status take_payload(struct session *s, const uint8_t *data, size_t len, size_t *used)
{
    struct frame_intake *in = &s->intake;
    const uint8_t *payload = data;

    *used = (size_t)least(len, in->left);
    if (in->gathered.len > 0 || *used < in->left) {
        if (!bytes_append(&in->gathered, data, *used))
            return session_fail(s, SKEP_RESOURCE_EXHAUSTED,
                                "no memory for a frame of %" PRIu32 " bytes", in->frame.length);
        payload = in->gathered.data;
    }
    in->left -= (uint32_t)*used;
    if (in->left > 0)
        return SKEP_OK;
    in->in_payload = false;
    struct frame_header frame = in->frame;
    return dispatch(s, &frame, payload);
}

/* Bytes of the frame stream. */
static skep_status take_plain(struct session *s, const uint8_t *data, size_t len)
{
    while (!s->failed && (len > 0 || (s->intake.in_payload && s->intake.left == 0))) {
        size_t used = 0;
        if (!s->intake.in_payload)
            take_header(s, data, len, &used);
        else if (s->intake.frame.type == FRAME_DATA)
            used = take_data(s, data, len);
        else
            take_payload(s, data, len, &used);
        data += used;
        len -= used;
    }
    return s->failed ? s->failure.status : SKEP_OK;
}

/* ---- Noise messages ---- */

/* Opens one message. Payload of a tensor goes there without a stop on the way. */
static skep_status take_sealed(struct session *s, uint8_t *sealed, size_t len)
{
    uint8_t *where = NULL;
    size_t plain = len - NOISE_TAG_BYTES;

    if (len < NOISE_TAG_BYTES)
        return session_fail(s, SKEP_DATA_LOSS, "message of %zu bytes, expected at least %d", len,
                            NOISE_TAG_BYTES);
    bool direct = plain > 0 && intake_room(s, &where) >= plain;
    if (!direct)
        where = sealed;
    if (noise_channel_decrypt(&s->receive_channel, sealed, len, where) != SKEP_OK) {
        if (s->phase == PHASE_READY) /* ours, too: what the peer thinks of it cannot be read */
            return session_fail(s, SKEP_UNAUTHENTICATED,
                                "handshake: the peer's first message does not verify");
        return session_fail(s, SKEP_DATA_LOSS,
                            "a message does not verify: damaged, replayed or forged");
    }
    s->received_sealed = true;
    if (!direct)
        return take_plain(s, where, plain);
    advance_stream(s->intake.stream, plain);
    finish_data(s, (uint32_t)plain);
    return s->failed ? s->failure.status : SKEP_OK;
}

/* Takes one message from the buffer; *used is 0 if it is not whole. */
static skep_status take_message(struct session *s, size_t *used)
{
    uint8_t *data = s->in + s->in_start;
    size_t len = s->in_end - s->in_start;

    *used = 0;
    if (!s->sealed) {
        *used = len;
        return take_plain(s, data, len);
    }
    if (len < 2)
        return SKEP_OK;
    size_t n = load_u16(data);
    if (n == 0 && s->config.initiator && !s->received_sealed)
        return session_refused(s, data, len);
    if (len < 2 + n)
        return SKEP_OK;
    *used = 2 + n;
    return take_sealed(s, data + 2, n);
}

/* ---- The interface ---- */

void session_receive_buffer(struct session *s, uint8_t **data, size_t *cap)
{
    uint8_t *where;

    if (s->in_start == s->in_end)
        s->in_start = s->in_end = 0;
    s->direct = false;
    if (!s->sealed && s->in_end == 0 && s->phase == PHASE_OPEN && !s->failed) {
        uint64_t n = intake_room(s, &where);
        if (n >= LEAST_RECEIVE_BYTES) {
            s->direct = true;
            *data = where;
            *cap = (size_t)n;
            return;
        }
    }
    /* A message that has begun needs room for its end; moving it is rare with larger reads. */
    if (s->in_cap - s->in_end < LEAST_RECEIVE_BYTES ||
        s->in_cap - s->in_start < 2 + NOISE_MAX_MESSAGE) {
        memmove(s->in, s->in + s->in_start, s->in_end - s->in_start);
        s->in_end -= s->in_start;
        s->in_start = 0;
    }
    *data = s->in + s->in_end;
    *cap = s->in_cap - s->in_end;
}

static skep_status take_buffered(struct session *s)
{
    while (!s->failed && s->in_end > s->in_start) {
        size_t used = 0;
        if (s->phase < PHASE_READY)
            session_handshake_received(s, s->in + s->in_start, s->in_end - s->in_start, &used);
        else
            take_message(s, &used);
        if (used == 0)
            break;
        s->in_start += used;
    }
    return s->failed ? s->failure.status : SKEP_OK;
}

skep_status session_received(struct session *s, size_t len, uint64_t now_us, struct skep_error *err)
{
    session_see_time(s, now_us);
    if (len > 0)
        s->last_receive_us = s->now_us;
    if (s->failed) {
        /* nothing more is taken */
    } else if (s->direct) {
        assert(len <= s->intake.left);
        if (s->intake.stream != NULL)
            advance_stream(s->intake.stream, len);
        finish_data(s, (uint32_t)len);
    } else {
        assert(len <= s->in_cap - s->in_end);
        s->in_end += len;
        take_buffered(s);
    }
    s->direct = false;
    session_note_output(s);
    if (!s->failed)
        return SKEP_OK;
    s->failure_told = true;
    return error_set(err, s->failure.status, "%s", s->failure.message);
}
