/*
 * Loops on GNU OpenMP, by its calls instead of its pragmas: under clang a pragma would bring in
 * LLVM's OpenMP as a second runtime beside the one oneDNN uses, and ThreadSanitizer, which cannot
 * see through libgomp's barriers, needs to be told of them.
 */
#include "experts/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu_count.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

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

/*
 * The calling thread's team. GNU OpenMP keeps the threads of a team between loops, but lets those
 * go that a smaller loop (of oneDNN's) has no use for, and ends the process when it cannot start
 * them again. So the ids are kept: parallel_team_check() sees which threads are left.
 */
static _Thread_local struct {
    unsigned wanted; /* 0: parallel_team_make() has not run on this thread */
    unsigned size;   /* of the next loop; below `wanted` after a shortage */
    bool single;     /* between parallel_single() and parallel_restore() */
    uint64_t checked_us;
    pid_t ids[PARALLEL_MAX_PARTS]; /* of the others, [1, size) */
} team;

enum {
    CHECK_PERIOD_US = 10000,
    RETRY_PERIOD_US = 1000000, /* after a shortage */
    GONE_TIMEOUT_MS = 1000,
    WARN_PERIOD_MS = 60000,
};

unsigned parallel_default(void)
{
    /* The environment is read by GNU OpenMP when the process starts; a number that an operator has
     * chosen may exceed the CPUs. */
    const char *set = getenv("OMP_NUM_THREADS");
    if (set == NULL || set[0] == '\0')
        return cpu_count() < PARALLEL_MAX_PARTS ? cpu_count() : PARALLEL_MAX_PARTS;
    static atomic_int chosen;
    int threads = atomic_load(&chosen);
    if (threads == 0) {
        threads = omp_get_max_threads(); /* of a thread that has set nothing yet */
        atomic_store(&chosen, threads);
    }
    return threads < PARALLEL_MAX_PARTS ? (unsigned)threads : PARALLEL_MAX_PARTS;
}

/* --- teams --------------------------------------------------------------------------------- */

struct probe {
    struct thread thread;
    pthread_mutex_t *gate;
    pid_t id;
};

static void run_probe(void *arg)
{
    struct probe *probe = arg;

    pthread_mutex_lock(probe->gate); /* until all are there at once */
    probe->id = gettid();
    pthread_mutex_unlock(probe->gate);
}

static bool exists(pid_t id)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/task/%d", (int)id);
    return access(path, F_OK) == 0;
}

/* A thread counts against the system's limits for a moment after it could be joined. */
static void wait_until_gone(pid_t id)
{
    uint64_t deadline = clock_deadline_us(GONE_TIMEOUT_MS);

    while (exists(id) && clock_mono_us() < deadline)
        sched_yield();
}

/* Whether the system lets so many more threads start. */
static skep_status probe_threads(unsigned count, struct skep_error *err)
{
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    skep_status rc = SKEP_OK;
    unsigned started = 0;
    struct probe *probes = mem_calloc(count, sizeof(*probes));

    if (probes == NULL)
        return error_no_memory(err, "threads", count * sizeof(*probes));
    pthread_mutex_lock(&gate);
    while (started < count && rc == SKEP_OK) {
        struct probe *probe = &probes[started];

        probe->gate = &gate;
        rc = thread_start(&probe->thread, "skep-probe", run_probe, probe, err);
        started += rc == SKEP_OK;
    }
    pthread_mutex_unlock(&gate);
    for (unsigned i = 0; i < started; i++)
        thread_join(&probes[i].thread);
    for (unsigned i = 0; i < started; i++)
        wait_until_gone(probes[i].id);
    mem_free(probes);
    return rc;
}

static void note_id(void *data)
{
    pid_t *ids = data;
    int i = omp_get_thread_num();

    tsan_acquire(&ids[0]);
    if (i > 0 && i < PARALLEL_MAX_PARTS)
        ids[i] = gettid();
    tsan_release(&ids[0]);
}

/* Runs a loop that does nothing on the whole team: its threads exist from now on. There are fewer
 * if the environment limits them (OMP_THREAD_LIMIT). */
static void form_team(unsigned size)
{
    unsigned made = 1;

    omp_set_num_threads((int)size);
    if (size > 1) {
        memset(team.ids, 0, sizeof(team.ids));
        tsan_release(&team.ids[0]);
        GOMP_parallel(note_id, team.ids, size, 0);
        tsan_acquire(&team.ids[0]);
        while (made < size && team.ids[made] != 0)
            made++;
        omp_set_num_threads((int)made);
    }
    team.size = made;
}

/* While a team of three or more changes its size, threads that end and those that follow them count
 * at the same time. */
static unsigned spare_threads(unsigned threads)
{
    return threads > 2 ? threads - 1 : 0;
}

skep_status parallel_team_make(unsigned threads, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (threads > PARALLEL_MAX_PARTS)
        threads = PARALLEL_MAX_PARTS;
    team.wanted = threads > 1 ? threads : 1;
    if (threads > 1)
        rc = probe_threads(threads - 1 + spare_threads(threads), err);
    if (rc != SKEP_OK && err != NULL)
        error_prefix(err, "%u threads to compute with", threads);
    form_team(rc == SKEP_OK ? team.wanted : 1);
    if (rc == SKEP_OK)
        team.wanted = team.size;
    team.checked_us = clock_mono_us();
    return rc;
}

static unsigned threads_left(void)
{
    unsigned left = 1;

    while (left < team.wanted && exists(team.ids[left]))
        left++;
    return left;
}

unsigned parallel_team_check(void)
{
    static struct log_limit gate;
    unsigned long suppressed;
    struct skep_error err;
    uint64_t now = clock_mono_us();
    bool is_short = team.size < team.wanted;

    /* A loop has two threads or one, and one leaves the team as it is: nobody is ever let go. */
    if (team.wanted <= 2 && !is_short)
        return team.size;
    if (now < team.checked_us + (is_short ? RETRY_PERIOD_US : CHECK_PERIOD_US))
        return team.size;
    team.checked_us = now;
    unsigned left = threads_left();
    if (left == team.wanted && !is_short)
        return team.size;
    if (left == team.wanted ||
        probe_threads(spare_threads(team.wanted) + team.wanted - left, &err) == SKEP_OK) {
        form_team(team.wanted);
        return team.size;
    }
    if (log_limit_passes(&gate, WARN_PERIOD_MS, &suppressed))
        log_warn("compute: %u of %u threads are left, goes on with these: %s", left, team.wanted,
                 err.message);
    /* One that was let go just now may still be seen. So alone at first: that starts no loop, and
     * the next look sees who has stayed. */
    form_team(is_short ? left : 1);
    return team.size;
}

void parallel_prepare(void)
{
    if (team.wanted > 0 || team.single || omp_in_parallel())
        return;
    struct skep_error err;
    if (parallel_team_make(parallel_default(), &err) != SKEP_OK)
        log_warn("compute: thread %s goes on alone: %s", thread_name(), err.message);
}

/* --- loops --------------------------------------------------------------------------------- */

unsigned parallel_parts(size_t count, size_t grain)
{
    if (team.single || omp_in_parallel())
        return 1;
    parallel_prepare();
    size_t parts = grain > 0 ? count / grain : count;

    if (parts > team.size)
        parts = team.size;
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
    /* OpenMP may start fewer threads than asked for; and there are more where parts are few. */
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
    /* The whole team, also for few parts: see above. */
    GOMP_parallel(run_thread, &loop, team.size, 0);
    tsan_acquire(&loop.ended);
}

int parallel_single(void)
{
    if (team.single || team.size == 1)
        return 0;
    team.single = true;
    omp_set_num_threads(1);
    return 1;
}

void parallel_restore(int token)
{
    if (token == 0)
        return;
    team.single = false;
    if (team.size > 0)
        omp_set_num_threads((int)team.size);
}
