/*
 * Large blocks of memory, kept for reuse. A tensor of megabytes that is allocated and freed for
 * every message costs more in page faults than in copying: a block that was used before has its
 * pages (docs/decisions/transport.md). Bounded; the oldest blocks go first. Thread: any.
 */
#ifndef SKEP_BASE_BLOCK_CACHE_H
#define SKEP_BASE_BLOCK_CACHE_H

#include <stddef.h>

enum {
    BLOCK_CACHE_SMALLEST = 256 << 10, /* smaller ones are left to malloc */
    BLOCK_CACHE_LARGEST = 64 << 20, /* larger ones are rare, and their faults hide behind compute */
    BLOCK_CACHE_LIMIT_BYTES = 96 << 20, /* kept in all */
    BLOCK_CACHE_LIMIT_BLOCKS = 64,
};

/*
 * At least `bytes` of memory, not initialized, aligned to `alignment` (a power of two, at most
 * 4096).
 * @param capacity  what it really has; to be given back to block_free().
 * @return owned: block_free(); NULL if memory is short.
 */
void *block_alloc(size_t alignment, size_t bytes, size_t *capacity);
void block_free(void *block, size_t capacity); /* NULL is allowed */

/* Gives all that is kept back to the system. Returns how many bytes that was. */
size_t block_cache_trim(void);

#endif
