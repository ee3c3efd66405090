/*
 * The stream of the TVM RPC tracker's protocol (docs/tracker.md): bytes <-> messages. The tracker,
 * its clients and the question for bootstrap peers (code 100) share it. No sockets, no clock, and
 * no view of what a message holds.
 *
 *     client                                   tracker
 *       [u32 0x2F271]                 ->
 *                                     <-       [u32 0x2F271]
 *       [i32 length][UTF-8 JSON]      ->                        any number of them
 *                                     <-       [i32 length][JSON]
 *
 * All numbers are little-endian. Messages are not aligned to packets in any way.
 *
 * Thread: any, each object by one at a time.
 */
#ifndef SKEP_WIRE_TRACKER_FRAME_H
#define SKEP_WIRE_TRACKER_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/bytes.h"

enum { TRACKER_MAGIC = 0x2F271, TRACKER_MAGIC_BYTES = 4 };

enum tracker_code {
    TRACKER_FAIL = -1,
    TRACKER_SUCCESS = 0,
    TRACKER_PING = 1,
    TRACKER_STOP = 2,
    TRACKER_PUT = 3,
    TRACKER_REQUEST = 4,
    TRACKER_UPDATE_INFO = 5,
    TRACKER_SUMMARY = 6,
    TRACKER_GET_PENDING_MATCHKEYS = 7,
    TRACKER_DHT_PEERS = 100, /* ours: the bootstrap peers of the swarm */
};

/* Text with a length: keys hold any characters, NUL included. Not terminated. */
struct tracker_text {
    const char *data; /* NULL: absent (JSON's null) */
    size_t len;
};
struct tracker_text tracker_text(const char *text); /* NULL is allowed */
bool tracker_text_equal(struct tracker_text a, struct tracker_text b);

/* ---- bytes in ---- */

/* Cuts a stream into messages. Zeroed memory is a new stream, before the magic. */
struct tracker_input {
    struct bytes kept;    /* owned: tracker_input_free(); what could not be used up yet */
    const uint8_t *chunk; /* borrowed, see tracker_input_push() */
    size_t chunk_len;
    size_t used;  /* of kept, if it holds anything, else of chunk */
    bool greeted; /* the magic has come */
};

enum tracker_input_result {
    TRACKER_INPUT_MORE,     /* nothing whole is left */
    TRACKER_INPUT_GREETING, /* the magic, once, before all messages */
    TRACKER_INPUT_MESSAGE,
    TRACKER_INPUT_BAD, /* wrong magic, length not in 1 to max_bytes, or out of memory */
};

/* Gives the stream its next bytes. @param data  borrowed until tracker_input_settle().
 * @return false if memory is short. */
SKEP_MUST_CHECK bool tracker_input_push(struct tracker_input *in, const uint8_t *data, size_t len);
/* @param message    view of the stream or of what was pushed, until the next call.
 * @param max_bytes  of one message. @param err  filled on TRACKER_INPUT_BAD. */
enum tracker_input_result tracker_input_next(struct tracker_input *in, size_t max_bytes,
                                             struct tracker_text *message, struct skep_error *err);
/* Keeps what is left of the bytes pushed: they are borrowed no more. False if memory is short. */
SKEP_MUST_CHECK bool tracker_input_settle(struct tracker_input *in);
/* Whether the beginning of a message (or of the magic) is there and its end is awaited. Right
 * after tracker_input_next() has said TRACKER_INPUT_MORE. */
bool tracker_input_is_partial(const struct tracker_input *in);
void tracker_input_free(struct tracker_input *in); /* NULL and zeroed are allowed */

/* ---- bytes out ---- */

/*
 * Messages are appended to a buffer. Each of these returns false if memory is short; the buffer is
 * then as it was.
 */
bool tracker_write_magic(struct bytes *out);
/* A whole message: text that is JSON already. */
bool tracker_write_message(struct bytes *out, const char *json, size_t len);

/* For messages made of pieces: begin, append, end. A message that is not ended is taken back by
 * setting out->len to `start`. */
bool tracker_message_begin(struct bytes *out, size_t *start);
bool tracker_message_end(struct bytes *out, size_t start); /* false if over 2^31 - 1 bytes */
/* Ends a message that went well so far, else takes it back. */
bool tracker_message_finish(struct bytes *out, size_t start, bool ok);

#endif
