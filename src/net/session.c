/* A session's life, its clock, and what can be asked of it. */
#include "net/session_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sodium.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/number.h"

const struct session_limits session_default_limits = {
    .message =
        {
            .max_message_bytes = UINT64_C(1) << 30,
            .max_tensors = MESSAGE_MAX_TENSORS,
            .max_dims = SKEP_TENSOR_MAX_DIMS,
        },
    /* Twice the largest tensor of the common case (8 MB) on a stream and several streams at once:
     * credit then travels while data do, and a round trip of 50 ms still carries 300 MB/s. */
    .stream_window = 16 << 20,
    .connection_window = 64 << 20,
    .max_streams = 1024,
    .max_reply_backlog = 64 << 20,
    .handshake_timeout_ms = 10000,
    .idle_timeout_ms = 300000,
    .stall_timeout_ms = 30000,
    .ping_period_ms = 10000,
};

static skep_status check_config(const struct session_config *config, struct skep_error *err)
{
    const struct session_limits *limits = config->limits;
    size_t swarm_len = config->swarm != NULL ? strlen(config->swarm) : 0;

    if (swarm_len >= sizeof(((struct hello *)NULL)->swarm))
        return error_set(err, SKEP_INVALID_ARGUMENT, "swarm: %zu bytes, expected at most %zu",
                         swarm_len, sizeof(((struct hello *)NULL)->swarm) - 1);
    if (limits->stream_window < LEAST_WINDOW || limits->connection_window < LEAST_WINDOW)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "windows of %" PRIu32 " and %" PRIu32 " bytes, expected at least %d",
                         limits->stream_window, limits->connection_window, LEAST_WINDOW);
    if (limits->max_streams == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "max_streams: 0, expected at least 1");
    if (!config->plaintext && config->initiator && !noise_cipher_available(config->cipher))
        return error_set(err, SKEP_UNIMPLEMENTED, "cipher %d is not available on this CPU",
                         (int)config->cipher);
    return SKEP_OK;
}

skep_status session_new(const struct session_config *config, const struct session_events *events,
                        void *arg, uint64_t now_us, struct session **out, struct skep_error *err)
{
    struct session *s = NULL;
    skep_status rc = check_config(config, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    s = mem_calloc(1, sizeof(*s));
    if (s == NULL)
        return error_no_memory(err, "session", sizeof(*s));
    s->config = *config;
    s->limits = *config->limits;
    s->events = events;
    s->arg = arg;
    s->now_us = now_us;
    s->started_us = now_us;
    s->last_receive_us = now_us;
    s->last_send_us = now_us;
    s->next_stream = 1;
    s->receive_window = s->limits.connection_window;
    s->in = mem_alloc(SMALL_BUFFER_BYTES);
    if (s->in == NULL) {
        rc = error_no_memory(err, "receive buffer", SMALL_BUFFER_BYTES);
        goto out;
    }
    s->in_cap = SMALL_BUFFER_BYTES;
    rc = session_handshake_begin(s, err);

out:
    if (rc != SKEP_OK) {
        session_free(s, NULL);
        s = NULL;
    }
    *out = s;
    return rc;
}

/* What the streams of an ending session are told. */
static void explain_end(const struct session *s, const struct skep_error *why,
                        struct skep_error *out)
{
    if (why != NULL)
        *out = *why;
    else if (!s->failed)
        error_set(out, SKEP_UNAVAILABLE, "the connection was closed");
    else if (s->phase == PHASE_OPEN) /* how it broke is no status of the call's */
        error_set(out, SKEP_UNAVAILABLE, "connection lost: %s", s->failure.message);
    else
        *out = s->failure;
}

static void end_streams(struct session *s, const struct skep_error *why)
{
    struct skep_error err;

    if (s->all.first == NULL)
        return;
    explain_end(s, why, &err);
    while (s->all.first != NULL)
        if (s->config.initiator)
            stream_done(s, stream_in_all(s->all.first), &err);
        else
            stream_gone(s, stream_in_all(s->all.first));
}

void session_free(struct session *s, const struct skep_error *why)
{
    if (s == NULL)
        return;
    s->freeing = true;
    end_streams(s, why);
    stream_free_spares(s);
    mem_free(s->table);
    noise_handshake_free(s->noise);
    noise_channel_wipe(&s->send_channel);
    noise_channel_wipe(&s->receive_channel);
    bytes_free(&s->handshake_out);
    bytes_free(&s->control);
    bytes_free(&s->intake.gathered);
    mem_free(s->in);
    sodium_memzero(s, sizeof(*s));
    mem_free(s);
}

static skep_status record_failure(struct session *s, skep_status status, const char *format,
                                  va_list args)
{
    char message[SKEP_ERROR_MESSAGE_BYTES];

    number_vprint(message, sizeof(message), format, args);
    s->failed = true;
    return error_set(&s->failure, status, "%s", message);
}

skep_status session_fail_silently(struct session *s, skep_status status, const char *format, ...)
{
    va_list args;

    if (s->failed)
        return s->failure.status;
    va_start(args, format);
    record_failure(s, status, format, args);
    va_end(args);
    return status;
}

/* Tells the peer, in whatever way it understands by now. */
static void send_goaway(struct session *s)
{
    uint8_t payload[1 + FRAME_MAX_TEXT];

    if (s->phase < PHASE_READY) {
        /* Nothing to those who never showed the magic; and an initiator has no word for it. */
        if (!s->config.initiator && s->phase != PHASE_PREAMBLE &&
            !(s->config.plaintext && s->phase == PHASE_MESSAGE3))
            session_handshake_refuse(s, s->failure.status, s->failure.message);
        return;
    }
    size_t n = goaway_encode(payload, s->failure.status, s->failure.message);
    uint8_t header[FRAME_HEADER_BYTES];
    frame_header_encode(header, (uint32_t)n, FRAME_GOAWAY, 0);
    /* Behind what waits already, so that no frame is cut in two. If memory is short, in silence. */
    if (bytes_reserve(&s->control, sizeof(header) + n)) {
        bytes_append(&s->control, header, sizeof(header));
        bytes_append(&s->control, payload, n);
    }
}

skep_status session_fail(struct session *s, skep_status status, const char *format, ...)
{
    va_list args;

    if (s->failed)
        return s->failure.status;
    va_start(args, format);
    record_failure(s, status, format, args);
    va_end(args);
    send_goaway(s);
    return status;
}

/* ---- Time ---- */

static bool owes_bytes(const struct session *s)
{
    return s->stream_backlog > 0 || s->control.len > s->control_at || s->ready.first != NULL;
}

void session_see_time(struct session *s, uint64_t now_us)
{
    if (now_us > s->now_us)
        s->now_us = now_us;
    for (; s->unstamped != NULL; s->unstamped = stream_in_all(s->unstamped->in_all.next))
        s->unstamped->opened_us = s->now_us;
    session_note_output(s);
}

void session_note_output(struct session *s)
{
    if (!owes_bytes(s)) {
        s->has_output = false;
    } else if (!s->has_output) {
        s->has_output = true;
        s->output_since_us = s->now_us;
    }
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* When a timeout of so many milliseconds from `base` ends; 0 milliseconds: never. */
static uint64_t timeout_at(uint64_t base_us, uint32_t timeout_ms)
{
    uint64_t at;

    if (timeout_ms == 0 || __builtin_add_overflow(base_us, timeout_ms * UINT64_C(1000), &at))
        return CLOCK_NEVER;
    return at;
}

static uint64_t send_stall_at(const struct session *s)
{
    if (!owes_bytes(s))
        return CLOCK_NEVER;
    /* Not looked at since it is owed: session_see_time() will set the start. */
    uint64_t since = s->has_output ? s->output_since_us : s->now_us;
    return timeout_at(later(s->last_send_us, since), s->limits.stall_timeout_ms);
}

static uint64_t receive_stall_at(const struct session *s)
{
    bool partial = s->in_end > s->in_start || s->intake.header_len > 0 || s->intake.in_payload;

    if (!partial && s->receiving == 0 && !s->ping_out)
        return CLOCK_NEVER;
    uint64_t base = s->ping_out && !partial && s->receiving == 0
                        ? later(s->last_receive_us, s->ping_us)
                        : s->last_receive_us;
    return timeout_at(base, s->limits.stall_timeout_ms);
}

static uint64_t idle_at(const struct session *s)
{
    if (s->config.initiator || s->open_streams > 0)
        return CLOCK_NEVER;
    return timeout_at(later(s->last_receive_us, s->last_send_us), s->limits.idle_timeout_ms);
}

static uint32_t watch_ping_ms(const struct session *s)
{
    return s->silence_ms / 3 > 0 ? s->silence_ms / 3 : 1;
}

static uint64_t ping_at(const struct session *s)
{
    if (s->open_streams == 0 || s->ping_out || (!s->config.initiator && s->watched == 0))
        return CLOCK_NEVER;
    return timeout_at(later(s->last_receive_us, s->ping_us),
                      s->config.initiator ? s->limits.ping_period_ms : watch_ping_ms(s));
}

/* Only once it was asked: after a stop of our own process it is silent through no fault of its. */
static uint64_t silence_at(const struct session *s)
{
    if (s->watched == 0 || !s->ping_out)
        return CLOCK_NEVER;
    return timeout_at(later(s->last_receive_us, s->ping_us), s->silence_ms - watch_ping_ms(s));
}

uint64_t session_next_tick(const struct session *s)
{
    if (s->failed)
        return s->failure_told ? CLOCK_NEVER : 0;
    if (s->phase != PHASE_OPEN)
        return timeout_at(s->started_us, s->limits.handshake_timeout_ms);
    uint64_t times[] = {send_stall_at(s), receive_stall_at(s), idle_at(s), ping_at(s),
                        silence_at(s)};
    uint64_t first = CLOCK_NEVER;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        if (times[i] < first)
            first = times[i];
    return first;
}

static void check_times(struct session *s)
{
    uint64_t now = s->now_us;

    if (s->phase != PHASE_OPEN) {
        if (now >= timeout_at(s->started_us, s->limits.handshake_timeout_ms))
            session_fail(s, SKEP_DEADLINE_EXCEEDED, "handshake: not finished after %" PRIu32 " ms",
                         s->limits.handshake_timeout_ms);
    } else if (now >= send_stall_at(s)) {
        session_fail(s, SKEP_DEADLINE_EXCEEDED,
                     "stalled: the peer takes none of %" PRIu64 " bytes for %" PRIu32 " ms",
                     session_backlog(s), s->limits.stall_timeout_ms);
    } else if (now >= receive_stall_at(s)) {
        session_fail(s, SKEP_DEADLINE_EXCEEDED,
                     "stalled: nothing has come for %" PRIu32 " ms while %s",
                     s->limits.stall_timeout_ms,
                     s->receiving > 0 ? "a message was half received"
                     : s->ping_out    ? "a PING was unanswered"
                                      : "a frame was half received");
    } else if (now >= silence_at(s)) {
        session_fail(s, SKEP_DEADLINE_EXCEEDED,
                     "silent for %" PRIu32 " ms, PING or not, while a call needs the peer alive",
                     s->silence_ms);
    } else if (now >= idle_at(s)) {
        session_fail(s, SKEP_DEADLINE_EXCEEDED, "idle for %" PRIu32 " ms",
                     s->limits.idle_timeout_ms);
    } else if (now >= ping_at(s)) {
        session_ping(s, now);
    }
}

skep_status session_tick(struct session *s, uint64_t now_us, struct skep_error *err)
{
    session_see_time(s, now_us);
    if (!s->failed)
        check_times(s);
    if (!s->failed)
        return SKEP_OK;
    s->failure_told = true;
    return error_set(err, s->failure.status, "%s", s->failure.message);
}

/* ---- Orders and questions ---- */

void session_ping(struct session *s, uint64_t now_us)
{
    uint8_t payload[8];

    session_see_time(s, now_us);
    if (s->failed || s->phase != PHASE_OPEN || s->ping_out)
        return;
    store_u64(payload, ++s->ping_number);
    if (session_control(s, FRAME_PING, 0, payload, sizeof(payload))) {
        s->ping_out = true;
        s->ping_us = s->now_us;
    }
}

void session_watch(struct session *s, struct session_stream *stream, uint32_t silence_ms)
{
    assert(!s->config.initiator && !stream->detached && silence_ms > 1);
    if (stream->watched)
        return;
    if (s->watched == 0 || silence_ms < s->silence_ms)
        s->silence_ms = silence_ms;
    stream->watched = true;
    s->watched++;
}

void session_goaway(struct session *s, const char *reason)
{
    uint8_t payload[1 + FRAME_MAX_TEXT];

    if (s->failed || s->draining)
        return;
    s->draining = true;
    session_control(s, FRAME_GOAWAY, 0, payload, goaway_encode(payload, SKEP_OK, reason));
}

const struct session_peer *session_peer(const struct session *s)
{
    return s->phase == PHASE_OPEN ? &s->peer : NULL;
}

bool session_was_probe(const struct session *s)
{
    return s->was_question || (s->phase == PHASE_PREAMBLE && s->in_end == s->in_start);
}

size_t session_open_streams(const struct session *s)
{
    return s->open_streams;
}

uint64_t session_last_receive_us(const struct session *s)
{
    return s->last_receive_us;
}

uint64_t session_rtt_us(const struct session *s)
{
    return s->rtt_us;
}

uint64_t session_backlog(const struct session *s)
{
    return s->stream_backlog + s->handshake_out.len + (s->control.len - s->control_at);
}
