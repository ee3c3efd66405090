/* Scratch memory that is kept between calls, within bounds. */
#include "experts/workspace.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"
#include "base/error.h"

enum {
    ALIGNMENT = 64,
    HUGE_PAGE_BYTES = 2 << 20,
    IDLE_PIECES = 2,       /* one forward and one backward size alternate in training */
    WINDOW_TAKES = 256,    /* how far back "lately" reaches */
    KEEP_RATIO = 4,        /* pieces over so many times the recent maximum are given back ... */
    SMALL_BYTES = 4 << 20, /* ... unless they are smaller than this anyway */
};

static struct {
    pthread_mutex_t lock; /* guards all below */
    struct workspace idle[IDLE_PIECES];
    size_t takes;
    size_t window_max;   /* largest request of the current window ... */
    size_t previous_max; /* ... and of the one before */
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *large_new(size_t bytes)
{
    size_t rounded;

    if (bytes < 2 * (size_t)HUGE_PAGE_BYTES)
        return mem_aligned(ALIGNMENT, bytes);
    if (!size_add(bytes, HUGE_PAGE_BYTES - 1, &rounded))
        return NULL;
    rounded &= ~((size_t)HUGE_PAGE_BYTES - 1);
    void *data = mem_aligned(HUGE_PAGE_BYTES, rounded);
    /* A hint: without it the same memory is slower, so its failure is no failure. */
    if (data != NULL)
        (void)madvise(data, rounded, MADV_HUGEPAGE);
    return data;
}

float *floats_new_zeroed(size_t count)
{
    float *x = mem_calloc(count, sizeof(*x));
    const uintptr_t mask = HUGE_PAGE_BYTES - 1;
    uintptr_t first = ((uintptr_t)x + mask) & ~mask;
    uintptr_t end = ((uintptr_t)x + count * sizeof(*x)) & ~mask;

    /* Zeroed pages come from the system, untouched: no alignment can be asked for. */
    if (x != NULL && first < end)
        (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
    return x;
}

float *floats_new(size_t count)
{
    size_t bytes;

    return size_mul(count, sizeof(float), &bytes) ? large_new(bytes) : NULL;
}

static void note_request(size_t bytes)
{
    if (++cache.takes % WINDOW_TAKES == 0) {
        cache.previous_max = cache.window_max;
        cache.window_max = 0;
    }
    if (bytes > cache.window_max)
        cache.window_max = bytes;
}

/* The smallest idle piece that is large enough, else the largest one, which is too small and is
 * worth less than the memory it holds; else an empty one. */
static struct workspace pick_idle(size_t bytes)
{
    struct workspace *best = &cache.idle[0];

    for (int i = 1; i < IDLE_PIECES; i++) {
        struct workspace *w = &cache.idle[i];
        bool fits = w->cap >= bytes;
        bool best_fits = best->cap >= bytes;
        if (fits == best_fits ? (fits ? w->cap < best->cap : w->cap > best->cap) : fits)
            best = w;
    }
    struct workspace found = *best;
    *best = (struct workspace){0};
    return found;
}

skep_status workspace_take(size_t bytes, struct workspace *out, struct skep_error *err)
{
    pthread_mutex_lock(&cache.lock);
    note_request(bytes);
    *out = pick_idle(bytes);
    pthread_mutex_unlock(&cache.lock);

    if (out->data != NULL && out->cap >= bytes)
        return SKEP_OK;
    mem_free(out->data);
    *out = (struct workspace){0};
    void *data = large_new(bytes);
    if (data == NULL)
        return error_no_memory(err, "activations and gradients", bytes);
    *out = (struct workspace){.data = data, .cap = bytes};
    return SKEP_OK;
}

static bool worth_keeping(const struct workspace *ws)
{
    size_t recent = cache.window_max > cache.previous_max ? cache.window_max : cache.previous_max;

    return ws->cap <= SMALL_BYTES || ws->cap / KEEP_RATIO <= recent;
}

void workspace_give(struct workspace *ws)
{
    struct workspace drop = *ws;

    *ws = (struct workspace){0};
    if (drop.data == NULL)
        return;
    drop.used = 0;
    pthread_mutex_lock(&cache.lock);
    if (worth_keeping(&drop)) {
        struct workspace *smallest = &cache.idle[0];
        for (int i = 1; i < IDLE_PIECES; i++)
            if (cache.idle[i].cap < smallest->cap)
                smallest = &cache.idle[i];
        if (smallest->cap < drop.cap) {
            struct workspace old = *smallest;
            *smallest = drop;
            drop = old;
        }
    }
    pthread_mutex_unlock(&cache.lock);
    mem_free(drop.data);
}

void workspace_trim(void)
{
    struct workspace drop[IDLE_PIECES];

    pthread_mutex_lock(&cache.lock);
    memcpy(drop, cache.idle, sizeof(drop));
    memset(cache.idle, 0, sizeof(cache.idle));
    pthread_mutex_unlock(&cache.lock);
    for (int i = 0; i < IDLE_PIECES; i++)
        mem_free(drop[i].data);
}

size_t workspace_idle_bytes(void)
{
    size_t sum = 0;

    pthread_mutex_lock(&cache.lock);
    for (int i = 0; i < IDLE_PIECES; i++)
        sum += cache.idle[i].cap;
    pthread_mutex_unlock(&cache.lock);
    return sum;
}

float *workspace_cut(struct workspace *ws, size_t count)
{
    size_t bytes = (count * sizeof(float) + ALIGNMENT - 1) & ~((size_t)ALIGNMENT - 1);
    size_t at = ws->used;

    ws->used += bytes;
    if (ws->data == NULL)
        return NULL;
    assert(ws->used <= ws->cap);
    return (float *)(void *)(ws->data + at);
}
