/* A short list of freed blocks, newest last. */
#include "base/block_cache.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

enum {
    PAGE_BYTES = 4096,
    /* A block may serve a request that needs at least 3/4 of it. */
    FIT_NUMERATOR = 3,
    FIT_DENOMINATOR = 4,
};

#if defined(__SANITIZE_ADDRESS__)
#define REUSE 0 /* the sanitizer is to see every use of freed memory */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define REUSE 0
#endif
#endif
#ifndef REUSE
#define REUSE 1
#endif

struct block {
    void *data; /* owned: mem_free() */
    size_t capacity;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static struct block blocks[BLOCK_CACHE_LIMIT_BLOCKS];
static size_t block_count;
static size_t kept_bytes;

static _Thread_local struct {
    void (*take)(void *arg, void *block, size_t capacity);
    void *arg;
} taker;

void block_cache_set_taker(void (*take)(void *arg, void *block, size_t capacity), void *arg)
{
    taker.take = take;
    taker.arg = arg;
}

void block_give_back(void *block)
{
    mem_free(block);
}

static void give_back(void *block, size_t capacity)
{
    if (taker.take != NULL && capacity >= BLOCK_CACHE_SLOW)
        taker.take(taker.arg, block, capacity);
    else
        mem_free(block);
}

static bool is_cached_size(size_t bytes)
{
    return REUSE && bytes >= BLOCK_CACHE_SMALLEST && bytes <= BLOCK_CACHE_LARGEST;
}

/* Takes entry i out of the list; the lock is held. */
static struct block take(size_t i)
{
    struct block block = blocks[i];

    memmove(&blocks[i], &blocks[i + 1], (block_count - i - 1) * sizeof(block));
    block_count--;
    kept_bytes -= block.capacity;
    return block;
}

/* The newest block that fits, whose pages are the warmest. NULL data if there is none. */
static struct block take_fitting(size_t bytes)
{
    struct block found = {0};

    pthread_mutex_lock(&lock);
    for (size_t i = block_count; i-- > 0;) {
        size_t capacity = blocks[i].capacity;
        if (capacity >= bytes && capacity / FIT_DENOMINATOR * FIT_NUMERATOR <= bytes) {
            found = take(i);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *block_alloc(size_t alignment, size_t bytes, size_t *capacity)
{
    *capacity = bytes;
    if (!is_cached_size(bytes))
        return mem_aligned(alignment, bytes);
    struct block block = take_fitting(bytes);
    if (block.data != NULL) {
        *capacity = block.capacity;
        return block.data;
    }
    return mem_aligned(PAGE_BYTES, bytes);
}

void block_free(void *block, size_t capacity)
{
    struct block evicted[BLOCK_CACHE_LIMIT_BLOCKS];
    size_t evicted_count = 0;

    if (block == NULL)
        return;
    if (!is_cached_size(capacity)) {
        give_back(block, capacity);
        return;
    }
    pthread_mutex_lock(&lock);
    while (block_count == BLOCK_CACHE_LIMIT_BLOCKS ||
           (block_count > 0 && kept_bytes + capacity > BLOCK_CACHE_LIMIT_BYTES))
        evicted[evicted_count++] = take(0);
    blocks[block_count++] = (struct block){.data = block, .capacity = capacity};
    kept_bytes += capacity;
    pthread_mutex_unlock(&lock);
    while (evicted_count > 0) { /* giving pages back takes long: not under the lock */
        evicted_count--;
        give_back(evicted[evicted_count].data, evicted[evicted_count].capacity);
    }
}

size_t block_cache_trim(void)
{
    size_t bytes = 0;

    for (;;) {
        struct block block = {0};
        pthread_mutex_lock(&lock);
        if (block_count > 0)
            block = take(block_count - 1);
        pthread_mutex_unlock(&lock);
        if (block.data == NULL)
            return bytes;
        bytes += block.capacity;
        mem_free(block.data);
    }
}
