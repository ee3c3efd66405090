/*
 * The threads: one that works ("skep-runtime") and one that watches it ("skep-watchdog").
 *
 * When a batch is overdue, the watchdog takes compute away from the thread that is stuck in it and
 * lets another one go on with the other pools. The stuck thread answers its batch if it ever comes
 * back, and ends.
 */
#include "runtime/internal.h"

#include <assert.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

enum {
    SCRATCH_KEEP_BYTES = 16 << 20, /* larger join buffers are given back after each batch */
    RESPAWN_PERIOD_US = 1000000,   /* between two tries to start a thread */
};

/* --- batches ------------------------------------------------------------------------------- */

static void count_waits(struct task_pool *pool, const struct batch *batch, uint64_t now_us)
{
    for (const struct task *task = batch->tasks.head; task != NULL; task = task->next) {
        uint64_t wait = now_us > task->submitted_us ? now_us - task->submitted_us : 0;
        unsigned bucket = wait == 0 ? 0 : 64u - (unsigned)__builtin_clzll(wait);
        unsigned last = sizeof(pool->stats.wait_histogram) / sizeof(uint64_t) - 1;

        pool->stats.wait_us_sum += wait;
        pool->stats.wait_histogram[bucket < last ? bucket : last]++;
    }
}

void runtime_begin(struct runtime *runtime, struct batch *batch, uint64_t now_us)
{
    assert(runtime->current == NULL);
    batch->started_us = now_us;
    batch->scratch = runtime->scratch;
    batch->scratch_cap = runtime->scratch_cap;
    runtime->scratch = NULL;
    runtime->scratch_cap = 0;
    batch->next_running = runtime->running;
    runtime->running = batch;
    runtime->current = batch;
    count_waits(batch->pool, batch, now_us);
    if (runtime->watchdog_sleeps) {
        runtime->watchdog_sleeps = false;
        pthread_cond_signal(&runtime->watch);
    }
}

/* A moving mean that a single preempted batch does not throw off. */
static float mean(float old, float sample)
{
    if (sample < 0.1f)
        sample = 0.1f; /* 0 stands for "not measured" */
    if (old <= 0)
        return sample;
    if (sample > 4 * old + INLINE_WORK_MAX_US)
        sample = 4 * old + INLINE_WORK_MAX_US;
    return old + (sample - old) / 8;
}

static void measure(struct task_pool *pool, const struct batch *batch, uint64_t elapsed_us)
{
    unsigned bucket = 63u - (unsigned)__builtin_clzll((unsigned long long)batch->rows | 1u);
    float us = (float)elapsed_us;

    if (bucket >= ESTIMATE_BUCKETS)
        bucket = ESTIMATE_BUCKETS - 1;
    pool->estimate_us[bucket] = mean(pool->estimate_us[bucket], us);
    pool->us_per_row = mean(pool->us_per_row, us / (float)batch->rows);
}

static void count_batch(struct runtime *runtime, const struct batch *batch, uint64_t elapsed_us)
{
    struct task_pool *pool = batch->pool;

    pool->stats.batches++;
    pool->stats.tasks += batch->task_count;
    pool->stats.examples += (uint64_t)batch->rows;
    pool->stats.busy_us += elapsed_us;
    pool->stats.work_us_sum += elapsed_us * batch->task_count;
    if (batch->status != SKEP_OK)
        pool->stats.failed += batch->task_count;
    runtime->stats.batches++;
    runtime->stats.busy_us += elapsed_us;
    if (batch->is_inline)
        runtime->stats.inline_batches++;
}

static bool same_group(const struct task_pool *a, const struct task_pool *b)
{
    return a == b || (a->config.exclusive != NULL && a->config.exclusive == b->config.exclusive);
}

static void set_group_stalled(struct runtime *runtime, const struct task_pool *of, bool is_stalled,
                              struct task_list *failed)
{
    for (struct task_pool *pool = runtime->pools; pool != NULL; pool = pool->next_pool)
        if (same_group(pool, of)) {
            pool->is_stalled = is_stalled;
            if (is_stalled)
                queue_take_all(pool, failed);
        }
}

/* Leaves `running`; gives compute and scratch memory back unless another thread has compute. */
static void leave(struct runtime *runtime, struct batch *batch)
{
    struct batch **at = &runtime->running;

    while (*at != batch)
        at = &(*at)->next_running;
    *at = batch->next_running;
    if (batch->overdue) {
        runtime->stats.stalled_batches--;
        set_group_stalled(runtime, batch->pool, false, NULL);
        batch->pool->tell_recovered = true;
        runtime->watchdog_news = true;
        pthread_cond_signal(&runtime->watch);
        return;
    }
    runtime->current = NULL;
    if (batch->scratch_cap <= SCRATCH_KEEP_BYTES) {
        runtime->scratch = batch->scratch;
        runtime->scratch_cap = batch->scratch_cap;
        batch->scratch = NULL;
        batch->scratch_cap = 0;
    }
}

bool runtime_run(struct runtime *runtime, struct batch *batch)
{
    bool overdue;

    batch_work(batch);
    uint64_t now = clock_mono_us();
    pthread_mutex_lock(&runtime->lock);
    uint64_t elapsed = now > batch->started_us ? now - batch->started_us : 0;
    if (!batch->overdue)
        measure(batch->pool, batch, elapsed);
    count_batch(runtime, batch, elapsed);
    leave(runtime, batch);
    overdue = batch->overdue;
    pthread_mutex_unlock(&runtime->lock);

    mem_free(batch->scratch);
    batch->scratch = NULL;
    batch_answer(batch);
    return overdue;
}

/* --- the working thread -------------------------------------------------------------------- */

/* Waits for something to look at. The lock is held. */
static void worker_wait(struct runtime *runtime, uint64_t until_us)
{
    runtime->worker_waits = true;
    cond_wait_until(&runtime->wake, &runtime->lock, until_us);
    runtime->worker_waits = false;
}

/* One look at the queues; false if the thread has to end. The lock is held, and released for work.
 */
static bool worker_turn(struct runtime *runtime)
{
    struct batch batch = {0};
    struct task_list expired = {0};
    struct task_list gone = {0};
    uint64_t ready_at = CLOCK_NEVER;
    uint64_t now = clock_mono_us();
    bool overdue = false;
    bool work = runtime->current == NULL &&
                queue_next_batch(runtime, now, &batch, &expired, &gone, &ready_at);

    if (!work && expired.head == NULL && gone.head == NULL) {
        worker_wait(runtime, ready_at);
        return true;
    }
    if (work)
        runtime_begin(runtime, &batch, now);
    pthread_mutex_unlock(&runtime->lock);
    tasks_drop(&expired, &gone);
    if (work)
        overdue = runtime_run(runtime, &batch);
    pthread_mutex_lock(&runtime->lock);
    if (!overdue)
        return true;
    /* Another thread took over, unless none could be started: then this one goes on. */
    bool needed = runtime->worker_missing;
    runtime->worker_missing = false;
    return needed;
}

static void worker_main(void *arg)
{
    struct worker *worker = arg;
    struct runtime *runtime = worker->runtime;

    pthread_mutex_lock(&runtime->lock);
    while (!runtime->stopping && worker_turn(runtime))
        continue;
    worker->ended = true;
    runtime->workers_alive--;
    pthread_cond_broadcast(&runtime->ended);
    pthread_mutex_unlock(&runtime->lock);
}

/* Joins and frees the threads that have ended. The lock is held; they no longer need it. */
static void reap_workers(struct runtime *runtime)
{
    struct worker **at = &runtime->workers;

    while (*at != NULL) {
        struct worker *worker = *at;

        if (!worker->ended) {
            at = &worker->next;
            continue;
        }
        *at = worker->next;
        thread_join(&worker->thread);
        mem_free(worker);
    }
}

/* The lock is held. */
static skep_status add_worker(struct runtime *runtime, struct skep_error *err)
{
    struct worker *worker = mem_calloc(1, sizeof(*worker));
    skep_status rc;

    if (worker == NULL)
        return error_no_memory(err, "runtime thread", sizeof(*worker));
    worker->runtime = runtime;
    rc = thread_start(&worker->thread, "skep-runtime", worker_main, worker, err);
    if (rc != SKEP_OK) {
        mem_free(worker);
        return rc;
    }
    worker->next = runtime->workers;
    runtime->workers = worker;
    runtime->workers_alive++;
    return SKEP_OK;
}

/* --- the watchdog -------------------------------------------------------------------------- */

static bool is_overdue(const struct batch *batch, uint64_t now_us)
{
    uint64_t limit = batch->pool->config.stall_timeout_us;

    return limit > 0 && now_us >= batch->started_us + limit;
}

/* Takes compute away from the current batch. The lock is held. */
static void take_over(struct runtime *runtime, struct task_list *failed)
{
    struct batch *batch = runtime->current;

    batch->overdue = true;
    runtime->current = NULL;
    runtime->stats.stalls++;
    runtime->stats.stalled_batches++;
    set_group_stalled(runtime, batch->pool, true, failed);
    batch->pool->tell_stalled = true;
    runtime->watchdog_news = true;
    if (!batch->is_inline)
        runtime->worker_missing = true;
    else if (runtime->worker_waits)
        pthread_cond_signal(&runtime->wake);
}

static void replace_worker(struct runtime *runtime)
{
    struct skep_error err;

    reap_workers(runtime);
    if (add_worker(runtime, &err) == SKEP_OK)
        runtime->worker_missing = false;
    else
        log_error("runtime: no thread to go on with: %s", err.message);
}

/* The next pool that has something to be told; its flags are cleared. The lock is held. */
static struct task_pool *next_news(struct runtime *runtime, bool *stalled, bool *recovered)
{
    for (struct task_pool *pool = runtime->pools; pool != NULL; pool = pool->next_pool)
        if (pool->tell_stalled || pool->tell_recovered) {
            *stalled = pool->tell_stalled;
            *recovered = pool->tell_recovered;
            pool->tell_stalled = pool->tell_recovered = false;
            return pool;
        }
    runtime->watchdog_news = false;
    return NULL;
}

/* The lock is held, and released for the callbacks. */
static void tell_news(struct runtime *runtime)
{
    struct task_pool *pool;
    bool stalled;
    bool recovered;

    while ((pool = next_news(runtime, &stalled, &recovered)) != NULL) {
        const struct task_pool_config *config = &pool->config;

        pthread_mutex_unlock(&runtime->lock);
        if (stalled) {
            log_error("%s: a batch takes longer than %" PRIu64
                      " ms: its queue is failed, the others go on",
                      config->name, config->stall_timeout_us / 1000);
            if (config->stalled != NULL)
                config->stalled(config->arg, true);
        }
        if (recovered) {
            log_warn("%s: the overdue batch has ended, serving again", config->name);
            if (config->stalled != NULL)
                config->stalled(config->arg, false);
        }
        pthread_mutex_lock(&runtime->lock);
    }
}

/*
 * When to look again. While batches come and go, that is one look per stall timeout instead of one
 * wake-up per batch; after a period without any batch it sleeps until runtime_begin() wakes it.
 */
static uint64_t next_look(struct runtime *runtime, uint64_t now_us, uint64_t *seen_batches)
{
    const struct batch *batch = runtime->current;
    bool active = batch != NULL || runtime->stats.batches != *seen_batches;

    *seen_batches = runtime->stats.batches;
    if (runtime->worker_missing)
        return now_us + RESPAWN_PERIOD_US;
    if (runtime->shortest_stall_us == 0)
        return CLOCK_NEVER;
    if (!active) {
        runtime->watchdog_sleeps = true;
        return CLOCK_NEVER;
    }
    /* The next batch may be of a pool with less patience than the current one's. */
    uint64_t until = now_us + runtime->shortest_stall_us;
    uint64_t limit = batch != NULL ? batch->pool->config.stall_timeout_us : 0;
    return limit > 0 && batch->started_us + limit < until ? batch->started_us + limit : until;
}

static void watchdog_look(struct runtime *runtime)
{
    struct task_list failed = {0};

    if (runtime->current != NULL && is_overdue(runtime->current, clock_mono_us())) {
        const char *name = runtime->current->pool->config.name;

        take_over(runtime, &failed);
        pthread_mutex_unlock(&runtime->lock);
        tasks_fail(&failed, SKEP_UNAVAILABLE, name, "stalled: its last batch takes too long");
        pthread_mutex_lock(&runtime->lock);
    }
    if (runtime->worker_missing && !runtime->stopping)
        replace_worker(runtime);
    if (runtime->watchdog_news)
        tell_news(runtime);
}

static void watchdog_main(void *arg)
{
    struct runtime *runtime = arg;
    uint64_t seen_batches = 0;

    pthread_mutex_lock(&runtime->lock);
    while (!runtime->stopping) {
        watchdog_look(runtime);
        if (runtime->stopping || runtime->watchdog_news)
            continue;
        uint64_t until = next_look(runtime, clock_mono_us(), &seen_batches);
        cond_wait_until(&runtime->watch, &runtime->lock, until);
        runtime->watchdog_sleeps = false;
    }
    pthread_mutex_unlock(&runtime->lock);
}

/* --- lifecycle ----------------------------------------------------------------------------- */

skep_status runtime_new(struct runtime **out, struct skep_error *err)
{
    struct runtime *runtime = mem_calloc(1, sizeof(*runtime));

    *out = runtime;
    if (runtime == NULL)
        return error_no_memory(err, "runtime", sizeof(*runtime));
    pthread_mutex_init(&runtime->lock, NULL);
    cond_init(&runtime->wake);
    cond_init(&runtime->watch);
    cond_init(&runtime->ended);
    return SKEP_OK;
}

/* Takes back a watchdog that has nobody to watch. The lock is held, and released for waiting: for
 * so long tasks are refused, as if the runtime were stopping. */
static void end_watchdog(struct runtime *runtime)
{
    runtime->stopping = true;
    pthread_cond_broadcast(&runtime->watch);
    pthread_mutex_unlock(&runtime->lock);
    thread_join(&runtime->watchdog);
    pthread_mutex_lock(&runtime->lock);
    runtime->stopping = false;
}

skep_status runtime_start(struct runtime *runtime, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&runtime->lock);
    if (runtime->started || runtime->stopping)
        rc = error_set(err, SKEP_FAILED_PRECONDITION, "runtime: started before");
    else
        rc = thread_start(&runtime->watchdog, "skep-watchdog", watchdog_main, runtime, err);
    if (rc == SKEP_OK) {
        rc = add_worker(runtime, err);
        if (rc == SKEP_OK)
            runtime->started = true;
        else
            end_watchdog(runtime);
    }
    pthread_mutex_unlock(&runtime->lock);
    return rc;
}

bool runtime_is_idle(struct runtime *runtime)
{
    pthread_mutex_lock(&runtime->lock);
    bool idle = runtime->stats.queued_tasks == 0 && runtime->running == NULL;
    pthread_mutex_unlock(&runtime->lock);
    return idle;
}

void runtime_limit_queue(struct runtime *runtime, size_t max_bytes)
{
    pthread_mutex_lock(&runtime->lock);
    runtime->queue_limit_bytes = max_bytes;
    pthread_mutex_unlock(&runtime->lock);
}

void runtime_stats(struct runtime *runtime, struct runtime_stats *out)
{
    pthread_mutex_lock(&runtime->lock);
    *out = runtime->stats;
    pthread_mutex_unlock(&runtime->lock);
}

void runtime_drain(struct runtime *runtime)
{
    pthread_mutex_lock(&runtime->lock);
    runtime->draining = true;
    pthread_cond_broadcast(&runtime->wake);
    pthread_mutex_unlock(&runtime->lock);
}

bool runtime_stop(struct runtime *runtime, uint64_t deadline_us)
{
    struct task_list failed = {0};
    bool ended;

    pthread_mutex_lock(&runtime->lock);
    runtime->stopping = true;
    while (runtime->active.first != NULL)
        queue_take_all(task_pool_in_active(runtime->active.first), &failed);
    pthread_cond_broadcast(&runtime->wake);
    pthread_cond_broadcast(&runtime->watch);
    pthread_mutex_unlock(&runtime->lock);
    tasks_fail(&failed, SKEP_UNAVAILABLE, "runtime", "the node is stopping");
    thread_join(&runtime->watchdog);

    pthread_mutex_lock(&runtime->lock);
    while ((runtime->workers_alive > 0 || runtime->inline_threads > 0) &&
           cond_wait_until(&runtime->ended, &runtime->lock, deadline_us))
        continue;
    ended = runtime->workers_alive == 0 && runtime->inline_threads == 0;
    if (ended)
        reap_workers(runtime);
    pthread_mutex_unlock(&runtime->lock);
    return ended;
}

void runtime_free(struct runtime *runtime)
{
    if (runtime == NULL)
        return;
    runtime_stop(runtime, CLOCK_NEVER);
    while (runtime->pools != NULL) {
        struct task_pool *pool = runtime->pools;

        runtime->pools = pool->next_pool;
        mem_free((char *)pool->config.name);
        mem_free(pool);
    }
    mem_free(runtime->scratch);
    pthread_cond_destroy(&runtime->wake);
    pthread_cond_destroy(&runtime->watch);
    pthread_cond_destroy(&runtime->ended);
    pthread_mutex_destroy(&runtime->lock);
    mem_free(runtime);
}
