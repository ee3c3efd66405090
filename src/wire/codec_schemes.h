/*
 * The codec of each scheme over plain arrays of float: tests/golden/README.md, section 6, has the
 * rules, docs/protocol.md the layout of the encoded bytes. Encoding writes exactly the bytes that
 * codec_bytes() tells. One thread for one array; no state.
 */
#ifndef SKEP_WIRE_CODEC_SCHEMES_H
#define SKEP_WIRE_CODEC_SCHEMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/message.h"

enum codec_result {
    CODEC_DONE,
    CODEC_NOT_FINITE, /* an element is NaN or infinite, which the scheme has no place for */
    CODEC_NO_MEMORY,
};

enum {
    CODEC_BLOCK = 4096, /* of blockwise8 */
    CODEC_CODEBOOK_BYTES = 256 * sizeof(float),
};

/* What is encoded: rows * columns elements, at least one. */
struct codec_array {
    size_t rows;
    size_t columns; /* of the last axis */
    size_t count;
};

/*
 * @param out  aligned for float; not initialized. Undefined unless the result is CODEC_DONE.
 */
typedef enum codec_result (*codec_encode_fn)(const struct codec_array *a, const float *x,
                                             uint8_t *out);
/* Any encoded bytes decode to something, NaN included. @param in aligned for float. */
typedef void (*codec_decode_fn)(const struct codec_array *a, const uint8_t *in, float *out);

/* tensor_codec.c */
/* False if the number of elements does not fit. Rows without elements are none. */
bool codec_measure(int ndim, const int64_t *shape, struct codec_array *out);
/* False if a size does not fit. */
bool codec_bytes(enum tensor_encoding encoding, const struct codec_array *a, uint64_t *out);
/* Not of ENCODING_NONE. */
codec_encode_fn codec_encoder(enum tensor_encoding encoding);
codec_decode_fn codec_decoder(enum tensor_encoding encoding);

/* codec_mean.c */
enum codec_result meanstd16_encode(const struct codec_array *a, const float *x, uint8_t *out);
void meanstd16_decode(const struct codec_array *a, const uint8_t *in, float *out);

/* codec_book.c */
enum codec_result uniform8_encode(const struct codec_array *a, const float *x, uint8_t *out);
enum codec_result quantile8_encode(const struct codec_array *a, const float *x, uint8_t *out);
void codebook_decode(const struct codec_array *a, const uint8_t *in, float *out);

/* codec_block.c */
enum codec_result blockwise8_encode(const struct codec_array *a, const float *x, uint8_t *out);
void blockwise8_decode(const struct codec_array *a, const uint8_t *in, float *out);

#endif
