/*
 * Loops on GNU OpenMP, by its calls instead of its pragmas: under clang a pragma would bring in
 * LLVM's OpenMP as a second runtime beside the one oneDNN uses, and ThreadSanitizer, which cannot
 * see through libgomp's barriers, needs to be told of them.
 */
#include "experts/parallel.h"

#include <stdbool.h>

/* libgomp's ABI, stable since GCC 4.9, and OpenMP's own functions (omp.h comes with GCC only). */
extern void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int threads);
extern int omp_in_parallel(void);

#if defined(__SANITIZE_THREAD__)
#define HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAVE_TSAN 1
#endif
#endif

#ifdef HAVE_TSAN
extern void __tsan_acquire(void *addr);
extern void __tsan_release(void *addr);
#define tsan_acquire(addr) __tsan_acquire(addr)
#define tsan_release(addr) __tsan_release(addr)
#else
#define tsan_acquire(addr) ((void)(addr))
#define tsan_release(addr) ((void)(addr))
#endif

struct loop {
    size_t count;
    size_t align;
    unsigned parts;
    parallel_fn fn;
    void *arg;
    char started; /* only addresses, for ThreadSanitizer */
    char ended;
};

unsigned parallel_parts(size_t count, size_t grain)
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    size_t parts = grain > 0 ? count / grain : count;

    if (threads > PARALLEL_MAX_PARTS)
        threads = PARALLEL_MAX_PARTS;
    if (parts > (size_t)threads)
        parts = (size_t)threads;
    return parts > 1 ? (unsigned)parts : 1;
}

static void run_part(const struct loop *loop, unsigned part)
{
    size_t blocks = (loop->count + loop->align - 1) / loop->align;
    size_t first = blocks / loop->parts * part + blocks % loop->parts * part / loop->parts;
    size_t next =
        blocks / loop->parts * (part + 1) + blocks % loop->parts * (part + 1) / loop->parts;

    first *= loop->align;
    next *= loop->align;
    if (next > loop->count)
        next = loop->count;
    if (first < next)
        loop->fn(loop->arg, first, next, part);
}

static void run_thread(void *data)
{
    struct loop *loop = data;

    tsan_acquire(&loop->started);
    /* OpenMP may start fewer threads than asked for. */
    for (unsigned part = (unsigned)omp_get_thread_num(); part < loop->parts;
         part += (unsigned)omp_get_num_threads())
        run_part(loop, part);
    tsan_release(&loop->ended);
}

void parallel_range(size_t count, size_t grain, size_t align, parallel_fn fn, void *arg)
{
    struct loop loop = {
        .count = count,
        .align = align > 0 ? align : 1,
        .parts = parallel_parts(count, grain),
        .fn = fn,
        .arg = arg,
    };

    if (count == 0)
        return;
    if (loop.parts == 1) {
        fn(arg, 0, count, 0);
        return;
    }
    tsan_release(&loop.started);
    GOMP_parallel(run_thread, &loop, loop.parts, 0);
    tsan_acquire(&loop.ended);
}

int parallel_single(void)
{
    int threads = omp_get_max_threads();

    if (threads > 1)
        omp_set_num_threads(1);
    return threads;
}

void parallel_restore(int threads)
{
    if (threads > 1)
        omp_set_num_threads(threads);
}
