/* Allocation with a switch for tests that make it fail. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Allocations left until the one that fails; 0 or less: none fails. */
static atomic_long fail_countdown;

void mem_fail_at(long nth)
{
    atomic_store(&fail_countdown, nth);
}

bool mem_fail_pending(void)
{
    return atomic_load(&fail_countdown) > 0;
}

static bool fails_now(void)
{
    /* The common case costs one relaxed load: ordering does not matter for a test switch. */
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0)
        return false;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

void *mem_alloc(size_t bytes)
{
    return fails_now() ? NULL : malloc(bytes > 0 ? bytes : 1);
}

void *mem_calloc(size_t count, size_t bytes)
{
    if (fails_now())
        return NULL;
    return count == 0 || bytes == 0 ? calloc(1, 1) : calloc(count, bytes);
}

void *mem_realloc(void *old, size_t bytes)
{
    return fails_now() ? NULL : realloc(old, bytes > 0 ? bytes : 1);
}

void *mem_aligned(size_t alignment, size_t bytes)
{
    size_t rounded;

    if (fails_now() || !size_add(bytes > 0 ? bytes : 1, alignment - 1, &rounded))
        return NULL;
    return aligned_alloc(alignment, rounded & ~(alignment - 1));
}

char *mem_strdup(const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = mem_alloc(n);

    if (copy != NULL)
        memcpy(copy, text, n);
    return copy;
}

void mem_free(void *memory)
{
    free(memory);
}
