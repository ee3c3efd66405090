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
    BLOCK_CACHE_SLOW = 1 << 20, /* to give so much back to the system takes 0.1 ms and more */
};

/*
 * At least `bytes` of memory, not initialized, aligned to `alignment` (a power of two, at most
 * 4096).
 * @param capacity  what it really has; to be given back to block_free().
 * @return owned: block_free(); NULL if memory is short.
 */
void *block_alloc(size_t alignment, size_t bytes, size_t *capacity);
void block_free(void *block, size_t capacity); /* NULL is allowed */

/*
 * For a thread that must not be held up: what it frees of BLOCK_CACHE_SLOW bytes or more and is not
 * kept goes to `taker`, which calls block_give_back() on another thread. 64 MB take 7 to 30 ms.
 * @param taker  NULL: the calling thread gives its blocks back itself again.
 */
void block_cache_set_taker(void (*taker)(void *arg, void *block, size_t capacity), void *arg);
void block_give_back(void *block);

/* Gives all that is kept back to the system. Returns how many bytes that was. */
size_t block_cache_trim(void);

#endif
