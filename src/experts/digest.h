/*
 * The checksum of a checkpoint: BLAKE2b over its settings and tensors as they are understood, not
 * over the bytes of the file, so that rewriting the header in another order changes nothing. A
 * tree, so that several cores share a large file:
 *
 *     leaf = BLAKE2b-256 of 4 MiB of one tensor's data (its last one may be shorter)
 *     root = BLAKE2b-256 of, each text ending with a NUL and each number as a little-endian u64,
 *            for each setting that is there, in the order given: key, value;
 *            a NUL;
 *            for each tensor, in the order of the bytes of its name: name, type, number of
 *            dimensions, dimensions, its leaves
 *
 * Thread: any.
 */
#ifndef SKEP_EXPERTS_DIGEST_H
#define SKEP_EXPERTS_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/safetensors.h>

enum { DIGEST_BYTES = 32, DIGEST_LEAF_BYTES = 4 << 20 };

/*
 * @param settings   key, value, key, value, ..., NULL.
 * @param tensors    sorted by name by this function.
 * @param is_shared  whether other cores may help (see parallel.h).
 * @return SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status digest_make(const char *const *settings,
                                        struct skep_named_tensor *tensors, size_t count,
                                        bool is_shared, uint8_t out[static DIGEST_BYTES],
                                        struct skep_error *err);

#endif
