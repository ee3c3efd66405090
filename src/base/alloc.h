/*
 * All memory of Skep comes through here, so that a test can make any allocation fail.
 * Each function returns NULL when memory is short or the size overflows. Thread: any.
 */
#ifndef SKEP_BASE_ALLOC_H
#define SKEP_BASE_ALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);                /* owned: mem_free() */
void *mem_calloc(size_t count, size_t bytes); /* zeroed; owned: mem_free() */
void *mem_realloc(void *old, size_t bytes);   /* old stays valid on failure; owned: mem_free() */
void *mem_aligned(size_t alignment, size_t bytes); /* owned: mem_free(); alignment a power of two */
char *mem_strdup(const char *text);                /* owned: mem_free() */
void mem_free(void *memory);                       /* NULL is allowed */

/*
 * Test hook: the nth allocation from now (1 is the next) fails, once; 0 switches it off.
 * mem_fail_pending() tells whether that failure has not happened yet. Process-wide.
 */
void mem_fail_at(long nth);
bool mem_fail_pending(void);

/* Checked arithmetic on sizes: false (and *out untouched) on overflow. */
static inline bool size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

#endif
