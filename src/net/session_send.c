/*
 * What is due, as bytes. Encrypted, `out` fills with Noise messages that are composed in place:
 *
 *     [u16 length][ frames, copied .......... ][tag]      small frames share a message
 *     [u16 length][ payload, from the tensor ][tag]       large payload has one of its own
 *
 * In plaintext the frames stand there alone. Control frames go first; then the streams take turns,
 * a DATA frame at a time.
 */
#include "net/session_internal.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"

enum {
    SEND_LEAST_CAP = 70000,
    LENGTH_BYTES = 2,
    /* Around one frame: it may close a message, open one, and put payload into a third. */
    FRAME_OVERHEAD = FRAME_HEADER_BYTES + 3 * (LENGTH_BYTES + NOISE_TAG_BYTES),
    GATHER_BYTES = 32 * 1024, /* the most that is copied together out of small tensors */
};
_Static_assert(SEND_LEAST_CAP >= FRAME_MAX_PAYLOAD + FRAME_OVERHEAD,
               "an empty buffer always takes a frame");

struct writer {
    struct session *s;
    uint8_t *at, *end;
    uint8_t *message; /* length field of the message being composed; NULL: none is */
};

bool session_control(struct session *s, uint8_t type, uint32_t stream, const void *payload,
                     size_t len)
{
    uint8_t header[FRAME_HEADER_BYTES];

    if (s->failed)
        return false;
    /* Each open stream may have its CANCEL and its WINDOW here. */
    size_t max = MAX_CONTROL_BYTES + (size_t)s->limits.max_streams * 32;
    if (s->control.len - s->control_at > max) {
        session_fail(s, SKEP_RESOURCE_EXHAUSTED,
                     "the peer asks but does not read: %zu bytes of answers wait", s->control.len);
        return false;
    }
    if (s->control_at > s->control.len / 2) {
        bytes_consume(&s->control, s->control_at);
        s->control_at = 0;
    }
    frame_header_encode(header, (uint32_t)len, type, stream);
    if (!bytes_reserve(&s->control, sizeof(header) + len)) {
        session_fail_silently(s, SKEP_RESOURCE_EXHAUSTED, "no memory for a control frame");
        return false;
    }
    bytes_append(&s->control, header, sizeof(header));
    bytes_append(&s->control, payload, len);
    return true;
}

/* ---- Messages ---- */

static size_t room(const struct writer *w)
{
    return (size_t)(w->end - w->at);
}

/* Encrypts the message being composed. False if the session has failed. */
static bool close_message(struct writer *w)
{
    if (w->message == NULL)
        return true;
    uint8_t *plain = w->message + LENGTH_BYTES;
    size_t len = (size_t)(w->at - plain);

    if (noise_channel_encrypt(&w->s->send_channel, plain, len, plain) != SKEP_OK) {
        session_fail_silently(w->s, SKEP_RESOURCE_EXHAUSTED, "the cipher's nonces are used up");
        return false;
    }
    store_u16(w->message, (uint16_t)(len + NOISE_TAG_BYTES));
    w->at += NOISE_TAG_BYTES;
    w->message = NULL;
    return true;
}

/* A place for n more bytes in the message being composed; NULL if the session has failed. The
 * caller has made sure of the room. */
static uint8_t *compose(struct writer *w, size_t n)
{
    if (w->s->sealed) {
        if (w->message != NULL &&
            (size_t)(w->at - w->message) - LENGTH_BYTES + n > NOISE_MAX_PLAIN && !close_message(w))
            return NULL;
        if (w->message == NULL) {
            w->message = w->at;
            w->at += LENGTH_BYTES;
        }
    }
    uint8_t *place = w->at;
    w->at += n;
    return place;
}

/* Payload as a message of its own, encrypted from where it lies. */
static bool put_direct(struct writer *w, const uint8_t *data, size_t n)
{
    if (!w->s->sealed) {
        memcpy(w->at, data, n);
        w->at += n;
        return true;
    }
    if (!close_message(w))
        return false;
    if (noise_channel_encrypt(&w->s->send_channel, data, n, w->at + LENGTH_BYTES) != SKEP_OK) {
        session_fail_silently(w->s, SKEP_RESOURCE_EXHAUSTED, "the cipher's nonces are used up");
        return false;
    }
    store_u16(w->at, (uint16_t)(n + NOISE_TAG_BYTES));
    w->at += LENGTH_BYTES + n + NOISE_TAG_BYTES;
    return true;
}

static bool put_frame(struct writer *w, uint8_t type, uint32_t stream, const void *payload,
                      size_t n)
{
    uint8_t *place = compose(w, FRAME_HEADER_BYTES + n);

    if (place == NULL)
        return false;
    frame_header_encode(place, (uint32_t)n, type, stream);
    if (n > 0)
        memcpy(place + FRAME_HEADER_BYTES, payload, n);
    return true;
}

/* ---- Control ---- */

static void write_handshake(struct writer *w)
{
    struct bytes *out = &w->s->handshake_out;
    size_t n = out->len < room(w) ? out->len : room(w);

    if (n == 0)
        return;
    memcpy(w->at, out->data, n);
    w->at += n;
    bytes_consume(out, n);
    w->s->asked_us = w->s->now_us;
    if (out->len == 0 && w->s->phase >= PHASE_READY)
        bytes_free(out); /* nothing comes here any more */
}

static void write_control(struct writer *w)
{
    struct session *s = w->s;

    while (s->control_at < s->control.len && room(w) > FRAME_OVERHEAD) {
        size_t n = s->control.len - s->control_at;
        if (n > room(w) - FRAME_OVERHEAD)
            n = room(w) - FRAME_OVERHEAD;
        if (n > NOISE_MAX_PLAIN / 2)
            n = NOISE_MAX_PLAIN / 2; /* boundaries of messages mean nothing */
        uint8_t *place = compose(w, n);
        if (place == NULL)
            return;
        memcpy(place, s->control.data + s->control_at, n);
        s->control_at += n;
    }
    if (s->control_at == s->control.len)
        s->control.len = s->control_at = 0;
}

/* ---- Streams ---- */

enum turn { TURN_GOES_ON, TURN_DONE, TURN_NO_ROOM, TURN_FAILED };

static enum turn write_head(struct writer *w, struct session_stream *stream)
{
    struct session *s = w->s;

    if (stream->head_sent)
        return TURN_GOES_ON;
    if (room(w) < stream->head.len + FRAME_OVERHEAD)
        return TURN_NO_ROOM;
    if (stream->timeout_ms > 0 && s->now_us > stream->opened_us) {
        uint64_t passed_ms = (s->now_us - stream->opened_us) / 1000;
        /* 0 would mean that there is no timeout. */
        call_headers_set_timeout(
            stream->head.data, passed_ms < stream->timeout_ms ? stream->timeout_ms - passed_ms : 1);
    }
    if (!put_frame(w, FRAME_HEADERS, stream->id, stream->head.data, stream->head.len))
        return TURN_FAILED;
    stream->head_sent = true;
    s->stream_backlog -= stream->head.len;
    return TURN_GOES_ON;
}

static void skip_finished_parts(struct session_stream *stream)
{
    while (stream->part_at < stream->part_count &&
           stream->part_offset == stream->parts[stream->part_at].bytes) {
        stream->part_at++;
        stream->part_offset = 0;
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Copies n bytes out of the next parts. */
static void copy_parts(struct session_stream *stream, uint8_t *to, size_t n)
{
    while (n > 0) {
        skip_finished_parts(stream);
        const struct part *part = &stream->parts[stream->part_at];
        size_t piece = (size_t)least(n, part->bytes - stream->part_offset);
        memcpy(to, part->data + stream->part_offset, piece);
        stream->part_offset += piece;
        to += piece;
        n -= piece;
    }
}

static bool put_data(struct writer *w, struct session_stream *stream, size_t n, bool direct)
{
    uint8_t *place = compose(w, direct ? FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + n);

    if (place == NULL)
        return false;
    frame_header_encode(place, (uint32_t)n, FRAME_DATA, stream->id);
    if (!direct) {
        copy_parts(stream, place + FRAME_HEADER_BYTES, n);
        return true;
    }
    if (!put_direct(w, stream->parts[stream->part_at].data + stream->part_offset, n))
        return false;
    stream->part_offset += n;
    return true;
}

static enum turn write_data(struct writer *w, struct session_stream *stream)
{
    struct session *s = w->s;
    uint64_t n = least(stream->send_left, least(stream->send_window, s->send_window));

    if (stream->send_left == 0)
        return TURN_GOES_ON;
    if (n == 0)
        return TURN_DONE; /* for want of credit */
    skip_finished_parts(stream);
    uint64_t contiguous = stream->parts[stream->part_at].bytes - stream->part_offset;
    bool direct = least(n, contiguous) >= DIRECT_BYTES;
    n = direct ? least(least(n, contiguous), DATA_CHUNK_BYTES) : least(n, GATHER_BYTES);
    if (room(w) < n + FRAME_OVERHEAD)
        return TURN_NO_ROOM;
    if (!put_data(w, stream, (size_t)n, direct))
        return TURN_FAILED;
    stream->send_left -= n;
    stream->send_window -= n;
    s->send_window -= n;
    s->stream_backlog -= n;
    return stream->send_left == 0 ? TURN_GOES_ON : TURN_DONE;
}

static enum turn write_give_up(struct writer *w, struct session_stream *stream)
{
    const uint8_t status = SKEP_RESOURCE_EXHAUSTED;

    if (room(w) < 1 + FRAME_OVERHEAD)
        return TURN_NO_ROOM;
    if (!put_frame(w, FRAME_CANCEL, stream->id, &status, 1))
        return TURN_FAILED;
    stream->end_sent = true;
    return TURN_DONE;
}

/* HEADERS if they are due, one DATA frame, and END if that was the last. */
static enum turn take_turn(struct writer *w, struct session_stream *stream)
{
    enum turn turn;

    if (stream->give_up)
        return write_give_up(w, stream);
    turn = write_head(w, stream);
    if (turn == TURN_GOES_ON)
        turn = write_data(w, stream);
    if (turn != TURN_GOES_ON)
        return turn;
    if (room(w) < FRAME_OVERHEAD)
        return TURN_NO_ROOM;
    if (!put_frame(w, FRAME_END, stream->id, NULL, 0))
        return TURN_FAILED;
    stream->end_sent = true;
    return TURN_DONE;
}

/* A reply is out: its call has ended. The event waits until the bytes are complete. */
static void retire(struct session *s, struct session_stream *stream)
{
    stream_detach(s, stream);
    stream->hash_next = s->answered;
    s->answered = stream;
}

static void write_streams(struct writer *w)
{
    struct session *s = w->s;

    while (s->ready.first != NULL && !s->failed) {
        struct session_stream *stream = stream_in_queue(s->ready.first);
        enum turn turn = take_turn(w, stream);
        if (turn == TURN_NO_ROOM || turn == TURN_FAILED)
            return; /* it is first again next time */
        if (stream->end_sent && !s->config.initiator)
            retire(s, stream);
        else
            stream_requeue(s, stream, false);
    }
}

static void tell_answered(struct session *s)
{
    while (s->answered != NULL) {
        struct session_stream *stream = s->answered;
        s->answered = stream->hash_next;
        if (stream->started) {
            stream->started = false;
            s->events->call_answered(s->arg, stream, stream->user);
        }
        stream_recycle(s, stream);
    }
}

size_t session_send(struct session *s, uint8_t *out, size_t cap, uint64_t now_us)
{
    struct writer w = {.s = s, .at = out, .end = out + cap};

    assert(cap >= SEND_LEAST_CAP);
    session_see_time(s, now_us);
    write_handshake(&w);
    if (s->handshake_out.len == 0 && s->phase >= PHASE_READY) {
        if (s->phase == PHASE_OPEN || s->failed)
            write_control(&w);
        if (s->phase == PHASE_OPEN && !s->failed)
            write_streams(&w);
        if (!close_message(&w))
            w.at = w.message; /* what could not be encrypted is not sent */
    }
    size_t n = (size_t)(w.at - out);
    if (n > 0)
        s->last_send_us = s->now_us;
    tell_answered(s);
    return n;
}
