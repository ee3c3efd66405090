/*
 * In which encodings nodes would have the tensors of their experts: what their schemas recommend,
 * as `info` tells it and as every answer shows whose caller did not say. Kept for each expert of a
 * node; of one that was not asked yet, what the node said last of any other is a good guess, and
 * every node takes every encoding. Bounded: in a set, the entry that was used longest ago makes
 * room. Not thread-safe.
 */
#ifndef SKEP_CLIENT_RECOMMENDED_H
#define SKEP_CLIENT_RECOMMENDED_H

#include <stdbool.h>
#include <stdint.h>
#include "crypto/identity.h"
#include "wire/tensor_codec.h"

enum {
    RECOMMENDED_SETS = 1024, /* a power of two */
    RECOMMENDED_WAYS = 4,
};

struct recommended {
    uint64_t uses;
    struct recommended_entry {
        uint64_t key; /* 0: unused */
        uint64_t used;
        /* enum skep_compression of activations and gradients; DEFAULT: unknown. */
        uint8_t settings[2];
    } entries[RECOMMENDED_SETS][RECOMMENDED_WAYS];
};

void recommended_learn(struct recommended *r, const uint8_t peer_id[static PEER_ID_BYTES],
                       const char *uid, bool of_gradients, enum tensor_encoding encoding);
/* SKEP_COMPRESSION_DEFAULT if nothing is known. */
enum skep_compression recommended_find(struct recommended *r,
                                       const uint8_t peer_id[static PEER_ID_BYTES], const char *uid,
                                       bool of_gradients);

#endif
