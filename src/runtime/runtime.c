/*
 * The threads that work: "skep-runtime" has the main lane, "skep-side" the side lanes. The policy
 * of lanes is in task_pool.h, the thread that watches them in watchdog.c.
 */
#include "runtime/internal.h"

#include <assert.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "experts/parallel.h"

enum {
    SCRATCH_KEEP_BYTES = 16 << 20, /* larger join buffers are given back after each batch */
    SIDE_LANES = 3,                /* more would only share what the cores can do */
    SIDE_SHARE = 4,                /* a side lane has one thread for so many of the main lane's */
};

/* --- who is woken, and when ---------------------------------------------------------------- */

/* The lock is held in all of these. */
static void plan_look(struct runtime *runtime, uint64_t at_us)
{
    if (at_us >= runtime->watch_at_us)
        return;
    runtime->watch_at_us = at_us;
    pthread_cond_signal(&runtime->watch);
}

static void wake_lane(struct lane_state *lane)
{
    if (lane->signalled || lane->waiting == 0)
        return;
    lane->signalled = true;
    pthread_cond_signal(&lane->wake);
}

/* A side worker also does the main lane's work while no thread could be started for that. */
static void wake_main(struct runtime *runtime)
{
    struct lane_state *lanes = runtime->lanes;

    wake_lane(&lanes[lanes[LANE_MAIN].serving > 0 ? LANE_MAIN : LANE_SIDE]);
}

void runtime_notice(struct runtime *runtime, const struct task_pool *pool, uint64_t now_us)
{
    plan_look(runtime, pool->first_deadline_us);
    if (runtime->main == NULL) {
        wake_main(runtime);
    } else if (runtime->lanes[LANE_SIDE].wanted > 0) {
        uint64_t at = queue_pass_at(pool, now_us);

        if (at <= now_us)
            wake_lane(&runtime->lanes[LANE_SIDE]);
        else
            plan_look(runtime, at);
    }
}

/* When a waiting pool may pass the batches that run. */
uint64_t runtime_next_pass(const struct runtime *runtime, uint64_t now_us)
{
    uint64_t next = CLOCK_NEVER;

    if (runtime->main == NULL || runtime->lanes[LANE_SIDE].wanted == 0)
        return CLOCK_NEVER;
    for (struct list_link *l = runtime->active.first; l != NULL; l = l->next) {
        uint64_t at = queue_pass_at(task_pool_in_active(l), now_us);
        next = at < next ? at : next;
    }
    return next;
}

void runtime_wake_workers(struct runtime *runtime, uint64_t now_us)
{
    if (runtime->active.first == NULL)
        return;
    if (runtime->main == NULL) {
        wake_main(runtime);
        return;
    }
    uint64_t at = runtime_next_pass(runtime, now_us);
    if (at <= now_us)
        wake_lane(&runtime->lanes[LANE_SIDE]);
    else
        plan_look(runtime, at);
}

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

static void take_main(struct runtime *runtime, struct batch *batch)
{
    assert(runtime->main == NULL);
    runtime->main = batch;
    batch->scratch = runtime->scratch;
    batch->scratch_cap = runtime->scratch_cap;
    runtime->scratch = NULL;
    runtime->scratch_cap = 0;
}

void runtime_begin(struct runtime *runtime, struct batch *batch, uint64_t now_us)
{
    uint64_t limit = batch->pool->config.stall_timeout_us;

    batch->started_us = now_us;
    batch->estimate_us = pool_estimate_us(batch->pool, batch->rows);
    if (batch->lane == LANE_MAIN)
        take_main(runtime, batch);
    else
        runtime->stats.side_batches++;
    batch->next_running = runtime->running;
    runtime->running = batch;
    count_waits(batch->pool, batch, now_us);
    if (limit > 0)
        plan_look(runtime, now_us + limit);
    runtime_wake_workers(runtime, now_us);
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

void runtime_set_group_stalled(struct runtime *runtime, const struct task_pool *of, bool is_stalled,
                               struct task_list *failed)
{
    for (struct task_pool *pool = runtime->pools; pool != NULL; pool = pool->next_pool)
        if (pool_same_group(pool, of)) {
            pool->is_stalled = is_stalled;
            if (is_stalled)
                queue_take_all(pool, failed);
        }
}

/* Leaves `running`; gives lane and scratch memory back unless another thread has the lane. */
static void leave(struct runtime *runtime, struct batch *batch)
{
    struct batch **at = &runtime->running;

    while (*at != batch)
        at = &(*at)->next_running;
    *at = batch->next_running;
    if (batch->overdue) {
        runtime->stats.stalled_batches--;
        runtime_set_group_stalled(runtime, batch->pool, false, NULL);
        batch->pool->tell_recovered = true;
        runtime->watchdog_news = true;
        plan_look(runtime, 0);
        return;
    }
    if (batch->lane != LANE_MAIN)
        return;
    runtime->main = NULL;
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

/* --- the working threads ------------------------------------------------------------------- */

/* Waits for something to look at. The lock is held. */
static void worker_wait(struct runtime *runtime, enum lane lane, uint64_t until_us)
{
    struct lane_state *state = &runtime->lanes[lane];

    state->waiting++;
    cond_wait_until(&state->wake, &runtime->lock, until_us);
    state->waiting--;
    state->signalled = false;
}

/* The lane in which a worker may start a batch now; LANE_COUNT: none. */
static enum lane open_lane(const struct runtime *runtime, const struct worker *worker)
{
    bool main_is_free = runtime->main == NULL;

    if (worker->lane == LANE_MAIN || runtime->lanes[LANE_MAIN].serving == 0)
        return main_is_free ? LANE_MAIN : worker->lane == LANE_SIDE ? LANE_SIDE : LANE_COUNT;
    return main_is_free ? LANE_COUNT : LANE_SIDE; /* its own worker is on the way to it */
}

/* Whether the thread goes on after its batch was taken for overdue: another one took over, unless
 * none could be started. The lock is held. */
static bool is_needed_still(struct runtime *runtime, const struct worker *worker)
{
    struct lane_state *lane = &runtime->lanes[worker->lane];

    if (lane->serving >= lane->wanted)
        return false;
    lane->serving++;
    return true;
}

/* One look at the queues; false if the thread has to end. The lock is held, and released for work.
 */
static bool worker_turn(struct runtime *runtime, struct worker *worker)
{
    struct batch batch = {.lane = open_lane(runtime, worker), .worker = worker};
    struct task_list expired = {0};
    struct task_list gone = {0};
    uint64_t ready_at = CLOCK_NEVER;
    uint64_t now = clock_mono_us();
    bool overdue = false;
    bool work = batch.lane != LANE_COUNT &&
                queue_next_batch(runtime, now, &batch, &expired, &gone, &ready_at);

    if (!work && expired.head == NULL && gone.head == NULL) {
        worker_wait(runtime, worker->lane, batch.lane == LANE_MAIN ? ready_at : CLOCK_NEVER);
        return true;
    }
    if (work)
        runtime_begin(runtime, &batch, now);
    pthread_mutex_unlock(&runtime->lock);
    tasks_drop(&expired, &gone);
    if (work) {
        parallel_team_check();
        overdue = runtime_run(runtime, &batch);
    }
    pthread_mutex_lock(&runtime->lock);
    if (work && batch.lane == LANE_SIDE)
        runtime_wake_workers(runtime, clock_mono_us()); /* its group may go on in the main lane */
    return !overdue || is_needed_still(runtime, worker);
}

/* The worker that is needed at once computes with what there is; one of the first must have all. */
static void make_team(struct runtime *runtime, struct worker *worker)
{
    struct skep_error err;
    skep_status rc = parallel_team_make(runtime->lanes[worker->lane].threads, &err);

    if (rc != SKEP_OK && !worker->is_first)
        log_warn("runtime: a thread goes on alone: %s", err.message);
    pthread_mutex_lock(&runtime->lock);
    worker->ready = true;
    worker->status = rc;
    if (rc != SKEP_OK)
        worker->err = err;
    pthread_cond_broadcast(&runtime->ended);
    pthread_mutex_unlock(&runtime->lock);
}

static void worker_main(void *arg)
{
    struct worker *worker = arg;
    struct runtime *runtime = worker->runtime;

    make_team(runtime, worker);
    pthread_mutex_lock(&runtime->lock);
    while (!runtime->started && !runtime->stopping)
        worker_wait(runtime, worker->lane, CLOCK_NEVER);
    while (!runtime->stopping && worker_turn(runtime, worker))
        continue;
    worker->ended = true;
    runtime->workers_alive--;
    pthread_cond_broadcast(&runtime->ended);
    pthread_mutex_unlock(&runtime->lock);
}

/* Joins and frees the threads that have ended. The lock is held; they no longer need it. */
void runtime_reap_workers(struct runtime *runtime)
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
skep_status runtime_add_worker(struct runtime *runtime, enum lane lane, struct worker **out,
                               struct skep_error *err)
{
    struct worker *worker = mem_calloc(1, sizeof(*worker));
    skep_status rc;

    if (worker == NULL)
        return error_no_memory(err, "runtime thread", sizeof(*worker));
    worker->runtime = runtime;
    worker->lane = lane;
    worker->is_first = out != NULL;
    rc = thread_start(&worker->thread, lane == LANE_MAIN ? "skep-runtime" : "skep-side",
                      worker_main, worker, err);
    if (rc != SKEP_OK) {
        mem_free(worker);
        return rc;
    }
    worker->next = runtime->workers;
    runtime->workers = worker;
    runtime->workers_alive++;
    runtime->lanes[lane].serving++;
    if (out != NULL)
        *out = worker;
    return SKEP_OK;
}

/* One of the first workers, with its whole team. The lock is held, and released for waiting. */
static skep_status start_worker(struct runtime *runtime, enum lane lane, struct skep_error *err)
{
    struct worker *worker = NULL;
    skep_status rc = runtime_add_worker(runtime, lane, &worker, err);

    if (rc != SKEP_OK)
        return rc;
    while (!worker->ready)
        pthread_cond_wait(&runtime->ended, &runtime->lock);
    if (worker->status != SKEP_OK)
        return error_set(err, worker->status, "runtime: %s", worker->err.message);
    return SKEP_OK;
}

/* --- lifecycle ----------------------------------------------------------------------------- */

skep_status runtime_new(struct runtime **out, struct skep_error *err)
{
    struct runtime *runtime = mem_calloc(1, sizeof(*runtime));

    *out = runtime;
    if (runtime == NULL)
        return error_no_memory(err, "runtime", sizeof(*runtime));
    pthread_mutex_init(&runtime->lock, NULL);
    cond_init(&runtime->watch);
    cond_init(&runtime->ended);
    for (int l = 0; l < LANE_COUNT; l++)
        cond_init(&runtime->lanes[l].wake);
    runtime_set_lanes(runtime, parallel_default(), SIDE_LANES);
    return SKEP_OK;
}

void runtime_set_lanes(struct runtime *runtime, unsigned threads, unsigned side_lanes)
{
    pthread_mutex_lock(&runtime->lock);
    assert(!runtime->started);
    runtime->lanes[LANE_MAIN].threads = threads;
    runtime->lanes[LANE_MAIN].wanted = 1;
    runtime->lanes[LANE_SIDE].threads = threads / SIDE_SHARE > 1 ? threads / SIDE_SHARE : 1;
    runtime->lanes[LANE_SIDE].wanted = side_lanes;
    pthread_mutex_unlock(&runtime->lock);
}

static void wake_all(struct runtime *runtime)
{
    for (int l = 0; l < LANE_COUNT; l++)
        pthread_cond_broadcast(&runtime->lanes[l].wake);
    pthread_cond_broadcast(&runtime->watch);
}

/* Takes back the threads of a start that failed. The lock is held, and released for waiting: for so
 * long tasks are refused, as if the runtime were stopping. */
static void end_threads(struct runtime *runtime)
{
    runtime->stopping = true;
    wake_all(runtime);
    while (runtime->workers_alive > 0)
        pthread_cond_wait(&runtime->ended, &runtime->lock);
    runtime_reap_workers(runtime);
    for (int l = 0; l < LANE_COUNT; l++)
        runtime->lanes[l].serving = 0;
    pthread_mutex_unlock(&runtime->lock);
    thread_join(&runtime->watchdog);
    pthread_mutex_lock(&runtime->lock);
    runtime->stopping = false;
}

skep_status runtime_start(struct runtime *runtime, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&runtime->lock);
    if (runtime->started || runtime->stopping || runtime->watchdog.started) {
        rc = error_set(err, SKEP_FAILED_PRECONDITION, "runtime: started before");
        pthread_mutex_unlock(&runtime->lock);
        return rc;
    }
    rc = thread_start(&runtime->watchdog, "skep-watchdog", runtime_watch, runtime, err);
    for (int l = 0; l < LANE_COUNT && rc == SKEP_OK; l++)
        for (unsigned i = 0; i < runtime->lanes[l].wanted && rc == SKEP_OK; i++)
            rc = start_worker(runtime, (enum lane)l, err);
    if (rc == SKEP_OK) {
        runtime->started = true;
        wake_all(runtime);
    } else {
        end_threads(runtime);
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
    wake_all(runtime);
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
    wake_all(runtime);
    pthread_mutex_unlock(&runtime->lock);
    tasks_fail(&failed, SKEP_UNAVAILABLE, "runtime", "the node is stopping");
    thread_join(&runtime->watchdog);

    pthread_mutex_lock(&runtime->lock);
    while ((runtime->workers_alive > 0 || runtime->inline_threads > 0) &&
           cond_wait_until(&runtime->ended, &runtime->lock, deadline_us))
        continue;
    ended = runtime->workers_alive == 0 && runtime->inline_threads == 0;
    if (ended)
        runtime_reap_workers(runtime);
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
    for (int l = 0; l < LANE_COUNT; l++)
        pthread_cond_destroy(&runtime->lanes[l].wake);
    pthread_cond_destroy(&runtime->watch);
    pthread_cond_destroy(&runtime->ended);
    pthread_mutex_destroy(&runtime->lock);
    mem_free(runtime);
}
