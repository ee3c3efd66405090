/* Pools as their users see them: making, submitting, counting. */
#include "runtime/internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "experts/parallel.h"

enum {
    DEFAULT_MAX_BATCH = 4096,
    DEFAULT_MAX_TASKS = 1024,
    QUEUED_BATCHES = 16, /* rows queued by default, in full batches */
    RETRY_HINT_MAX_MS = 60000,
    RETRY_HINT_UNKNOWN_MS = 100, /* before anything was measured */
};

static skep_status check_config(const struct task_pool_config *config, struct skep_error *err)
{
    if (config->output_count > SKEP_EXPERT_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu outputs, expected at most %d",
                         config->name, config->output_count, SKEP_EXPERT_MAX_TENSORS);
    if (config->max_batch_size < 0 || config->min_batch_size < 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: batches of %" PRId64 " to %" PRId64 " rows, expected 1 or more",
                         config->name, config->min_batch_size, config->max_batch_size);
    if (config->max_batch_size > 0 && config->min_batch_size > config->max_batch_size)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: min_batch_size %" PRId64 ", expected at most max_batch_size %" PRId64,
                         config->name, config->min_batch_size, config->max_batch_size);
    return SKEP_OK;
}

static void set_defaults(struct task_pool_config *config)
{
    if (config->max_batch_size == 0)
        config->max_batch_size = DEFAULT_MAX_BATCH;
    if (config->min_batch_size == 0)
        config->min_batch_size = 1;
    if (config->max_queued_tasks == 0)
        config->max_queued_tasks = DEFAULT_MAX_TASKS;
    if (config->max_queued_rows > 0)
        return;
    if (__builtin_mul_overflow(config->max_batch_size, (int64_t)QUEUED_BATCHES,
                               &config->max_queued_rows))
        config->max_queued_rows = INT64_MAX;
    if (config->max_queued_tasks < INT64_MAX &&
        config->max_queued_rows < (int64_t)config->max_queued_tasks)
        config->max_queued_rows = (int64_t)config->max_queued_tasks;
}

skep_status task_pool_new(struct runtime *runtime, const struct task_pool_config *config,
                          struct task_pool **out, struct skep_error *err)
{
    struct task_pool *pool;
    skep_status rc = check_config(config, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    pool = mem_calloc(1, sizeof(*pool));
    if (pool == NULL)
        return error_no_memory(err, config->name, sizeof(*pool));
    pool->runtime = runtime;
    pool->config = *config;
    pool->first_deadline_us = CLOCK_NEVER;
    set_defaults(&pool->config);
    pool->config.name = mem_strdup(config->name);
    if (pool->config.name == NULL) {
        mem_free(pool);
        return error_no_memory(err, config->name, strlen(config->name));
    }
    pthread_mutex_lock(&runtime->lock);
    if (config->stall_timeout_us > 0 && (runtime->shortest_stall_us == 0 ||
                                         config->stall_timeout_us < runtime->shortest_stall_us)) {
        runtime->shortest_stall_us = config->stall_timeout_us;
        runtime->watch_at_us = 0; /* it sleeps for as long as the others allow */
        pthread_cond_signal(&runtime->watch);
    }
    pool->next_pool = runtime->pools;
    runtime->pools = pool;
    pthread_mutex_unlock(&runtime->lock);
    *out = pool;
    return SKEP_OK;
}

void task_pool_stats(struct task_pool *pool, struct task_pool_stats *out)
{
    pthread_mutex_lock(&pool->runtime->lock);
    *out = pool->stats;
    out->stalled = pool->is_stalled;
    pthread_mutex_unlock(&pool->runtime->lock);
}

static skep_status inspect(const struct task_pool *pool, struct task *task, struct skep_error *err)
{
    const char *name = pool->config.name;

    if (task->rows < 1 || task->rows > pool->config.max_batch_size)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %" PRId64 " rows, expected 1 to max_batch_size %" PRId64, name,
                         task->rows, pool->config.max_batch_size);
    if (task->tensor_count < 1 || task->tensor_count > TASK_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensors, expected 1 to %d", name,
                         task->tensor_count, TASK_MAX_TENSORS);
    task->bytes = 0;
    for (size_t i = 0; i < task->tensor_count; i++) {
        const DLTensor *t = task->tensors[i];
        size_t bytes;
        skep_status rc = skep_tensor_bytes(t, &bytes, err);

        if (rc != SKEP_OK)
            return rc;
        if (t->ndim < 1 || t->shape[0] != task->rows)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s: tensor %zu has %" PRId64 " rows, expected %" PRId64, name, i,
                             t->ndim < 1 ? (int64_t)0 : t->shape[0], task->rows);
        if (!size_add(task->bytes, bytes, &task->bytes))
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: tensors too large", name);
    }
    return SKEP_OK;
}

static bool is_full(const struct task_pool *pool, const struct task *task)
{
    const struct runtime *runtime = pool->runtime;
    const struct task_pool_stats *stats = &pool->stats;
    size_t limit = runtime->queue_limit_bytes;

    return stats->queued_tasks >= pool->config.max_queued_tasks ||
           task->rows > pool->config.max_queued_rows - stats->queued_rows ||
           (limit > 0 &&
            (task->bytes > limit || runtime->stats.queued_bytes > limit - task->bytes));
}

static skep_status refuse_full(struct task_pool *pool, struct skep_error *err)
{
    const struct task_pool_stats *stats = &pool->stats;
    double drain_ms = (double)stats->queued_rows * (double)pool->us_per_row / 1000.0;
    uint32_t hint = RETRY_HINT_UNKNOWN_MS;

    if (drain_ms > RETRY_HINT_MAX_MS)
        hint = RETRY_HINT_MAX_MS;
    else if (pool->us_per_row > 0)
        hint = (uint32_t)drain_ms + 1;
    pool->stats.refused++;
    error_set(err, SKEP_RESOURCE_EXHAUSTED,
              "%s: queue full: %zu tasks of at most %zu, %" PRId64 " rows of at most %" PRId64
              ", %zu bytes in all queues",
              pool->config.name, stats->queued_tasks, pool->config.max_queued_tasks,
              stats->queued_rows, pool->config.max_queued_rows, pool->runtime->stats.queued_bytes);
    if (err != NULL)
        err->retry_after_ms = hint;
    return SKEP_RESOURCE_EXHAUSTED;
}

static skep_status refuse_closed(struct task_pool *pool, struct skep_error *err)
{
    pool->stats.refused++;
    return error_set(err, SKEP_UNAVAILABLE, "%s: %s", pool->config.name,
                     pool->runtime->stopping ? "the node is stopping"
                                             : "stalled: its last batch takes too long");
}

/*
 * The lane in which the submitting thread may do the work itself, since the way over another thread
 * costs more than short work does; LANE_COUNT: it may not. The main lane while nothing waits;
 * beside a long batch a side lane.
 */
static enum lane inline_lane(const struct task_pool *pool, const struct task *task)
{
    const struct runtime *runtime = pool->runtime;

    if (!pool->config.may_run_inline || !runtime->started ||
        task->rows < pool->config.min_batch_size || pool->is_active)
        return LANE_COUNT;
    float us = pool_estimate_us(pool, task->rows);
    if (us < 0 || us >= INLINE_WORK_MAX_US)
        return LANE_COUNT;
    if (runtime->running == NULL)
        return runtime->stats.queued_tasks == 0 ? LANE_MAIN : LANE_COUNT;
    if (queue_is_group_busy(pool))
        return LANE_COUNT;
    if (runtime->main == NULL)
        return runtime->stats.queued_tasks == 0 ? LANE_MAIN : LANE_COUNT;
    /* A side worker that was woken has a task that came first. */
    return !runtime->lanes[LANE_SIDE].signalled && runtime->lanes[LANE_SIDE].wanted > 0 &&
                   queue_side_room_us(runtime, task->submitted_us) >= us
               ? LANE_SIDE
               : LANE_COUNT;
}

/* Whether short work of a single pool came in meanwhile: then no thread need be woken for it. */
static bool short_work_waits(const struct runtime *runtime)
{
    const struct task_pool *only = task_pool_in_active(runtime->active.first);

    if (runtime->main != NULL || runtime->stopping || only == NULL ||
        only->in_active.next != NULL || !only->config.may_run_inline)
        return false;
    float us = pool_estimate_us(only, only->stats.queued_rows);
    return us >= 0 && us < INLINE_WORK_MAX_US;
}

/* Takes the next batch of an inline thread, or ends its turn. */
static bool next_inline(struct runtime *runtime, struct batch *batch, bool may_go_on)
{
    struct task_list expired = {0};
    struct task_list gone = {0};
    uint64_t ready_at;
    uint64_t now = clock_mono_us();
    bool more;

    *batch = (struct batch){.is_inline = true, .lane = LANE_MAIN};
    pthread_mutex_lock(&runtime->lock);
    more = may_go_on && short_work_waits(runtime) &&
           queue_next_batch(runtime, now, batch, &expired, &gone, &ready_at);
    if (more) {
        runtime_begin(runtime, batch, now);
    } else {
        runtime->inline_threads--;
        runtime_wake_workers(runtime, now);
        if (runtime->stopping)
            pthread_cond_broadcast(&runtime->ended);
    }
    pthread_mutex_unlock(&runtime->lock);
    tasks_drop(&expired, &gone);
    return more;
}

/* With one thread: a team of the submitter's own would cost more than such work takes. */
static void run_inline(struct runtime *runtime, struct batch *batch)
{
    bool may_go_on = batch->lane == LANE_MAIN;
    int single = parallel_single();
    bool overdue;
    unsigned batches = 0;

    do
        overdue = runtime_run(runtime, batch);
    while (next_inline(runtime, batch, may_go_on && !overdue && ++batches < INLINE_BATCHES_MAX));
    parallel_restore(single);
}

/* Puts a task where it belongs. The lock is held; *inline_batch is entered if it may run here. */
static skep_status place(struct task_pool *pool, struct task *task, struct batch *inline_batch,
                         struct task_list *expired, struct task_list *gone, struct skep_error *err)
{
    struct runtime *runtime = pool->runtime;

    if (runtime->stopping || pool->is_stalled)
        return refuse_closed(pool, err);
    if (is_full(pool, task))
        queue_purge(pool, task->submitted_us, expired, gone);
    if (is_full(pool, task))
        return refuse_full(pool, err);
    enum lane lane = inline_lane(pool, task);
    if (lane == LANE_COUNT) {
        queue_add(pool, task);
        runtime_notice(runtime, pool, task->submitted_us);
        return SKEP_OK;
    }
    task_list_push(&inline_batch->tasks, task);
    inline_batch->pool = pool;
    inline_batch->task_count = 1;
    inline_batch->rows = task->rows;
    inline_batch->is_inline = true;
    inline_batch->lane = lane;
    runtime->inline_threads++;
    runtime_begin(runtime, inline_batch, task->submitted_us);
    return SKEP_OK;
}

void task_pool_withdraw(struct task_pool *pool, struct task *task)
{
    struct task_list expired = {0};
    struct task_list gone = {0};

    pthread_mutex_lock(&pool->runtime->lock);
    if (queue_withdraw(pool, task))
        task_list_push(&gone, task);
    pthread_mutex_unlock(&pool->runtime->lock);
    tasks_drop(&expired, &gone);
}

skep_status task_pool_submit(struct task_pool *pool, struct task *task, struct skep_error *err)
{
    struct runtime *runtime = pool->runtime;
    struct batch batch = {0};
    struct task_list expired = {0};
    struct task_list gone = {0};
    skep_status rc = inspect(pool, task, err);

    if (rc != SKEP_OK)
        return rc;
    task->was_worked = false;
    task->is_queued = false;
    task->next = NULL;
    task->submitted_us = clock_mono_us();

    pthread_mutex_lock(&runtime->lock);
    rc = place(pool, task, &batch, &expired, &gone, err);
    pthread_mutex_unlock(&runtime->lock);
    tasks_drop(&expired, &gone);
    if (batch.task_count > 0)
        run_inline(runtime, &batch);
    return rc;
}
