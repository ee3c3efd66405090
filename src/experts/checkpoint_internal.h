/* What checkpoint.c and checkpoint_header.c share: the metadata of a checkpoint as texts. */
#ifndef SKEP_EXPERTS_CHECKPOINT_INTERNAL_H
#define SKEP_EXPERTS_CHECKPOINT_INTERNAL_H

#include "experts/checkpoint.h"

enum {
    HEADER_MAX_FIELDS = 32,
    HEADER_TEXT_BYTES = 32, /* "%.17g" of a double has 24 */
};

/* The metadata as pairs of key and value, in the order that the checksum takes them. */
struct header_texts {
    const char *pairs[2 * HEADER_MAX_FIELDS + 1]; /* NULL at the end */
    char numbers[HEADER_MAX_FIELDS][HEADER_TEXT_BYTES];
};

void header_write(const struct checkpoint_header *header, struct header_texts *out);

/*
 * Reads the metadata of a file; texts are views of it. SKEP_DATA_LOSS names the key that is missing
 * or wrong.
 */
SKEP_MUST_CHECK skep_status header_read(const struct skep_safetensors *file,
                                        struct checkpoint_header *header,
                                        struct header_texts *texts, struct skep_error *err);

/* checkpoint_parse() that takes any checksum, so that a fuzzer gets behind it. */
SKEP_MUST_CHECK skep_status checkpoint_parse_unsummed(const void *data, size_t len,
                                                      struct checkpoint **out,
                                                      struct skep_error *err);

#endif
