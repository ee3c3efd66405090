/*
 * A hash for tables whose keys strangers choose: SipHash-2-4 (libsodium's crypto_shorthash) under a
 * secret of this process, so that nobody can aim at one bucket. Its values mean nothing to other
 * processes: never store or send them. Thread: any.
 */
#ifndef SKEP_CRYPTO_KEYED_HASH_H
#define SKEP_CRYPTO_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

/* @param data  borrowed; NULL is allowed if len is 0. */
uint64_t keyed_hash(const void *data, size_t len);

#endif
