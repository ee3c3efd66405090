/* Bytes that arrive in pieces, given out as whole UTF-8 characters. Zeroed memory is a fresh one.
 */
#ifndef SKEP_MODEL_TOKENIZER_UTF8_STREAM_H
#define SKEP_MODEL_TOKENIZER_UTF8_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct utf8_stream {
    uint8_t held[4]; /* the beginning of a character whose rest has not arrived */
    size_t held_len; /* 0 to 3 */
};

/*
 * Appends to `out` all characters that are whole by now; the beginning of one stays held. A part
 * that can begin no character becomes U+FFFD, one for each maximal part (Unicode, 3.9).
 * False if memory is short; the stream is unchanged then.
 */
bool utf8_stream_push(struct utf8_stream *stream, const void *bytes, size_t len, struct bytes *out);

/* The end: what is still held becomes one U+FFFD. False if memory is short. */
bool utf8_stream_end(struct utf8_stream *stream, struct bytes *out);

#endif
