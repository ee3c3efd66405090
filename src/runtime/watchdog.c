/*
 * The thread that watches the others ("skep-watchdog"), and the clock of all that waits: it drops
 * tasks whose deadline has passed, and wakes a side lane when a batch has run so long that others
 * may pass it. It sleeps until the next such moment; whoever makes one that is earlier wakes it
 * (runtime.c:plan_look()).
 *
 * When a batch is overdue, the watchdog takes its lane away from the thread that is stuck in it and
 * lets another one go on with the other pools. The stuck thread answers its batch if it ever comes
 * back, and ends.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "runtime/internal.h"

enum { RESPAWN_PERIOD_US = 1000000 }; /* between two tries to start a thread */

static bool is_overdue(const struct batch *batch, uint64_t now_us)
{
    uint64_t limit = batch->pool->config.stall_timeout_us;

    return limit > 0 && now_us >= batch->started_us + limit;
}

/* Takes its lane away from a batch. The lock is held. */
static void take_over(struct runtime *runtime, struct batch *batch, struct task_list *failed)
{
    batch->overdue = true;
    if (runtime->main == batch)
        runtime->main = NULL;
    if (batch->worker != NULL)
        runtime->lanes[batch->worker->lane].serving--;
    runtime->stats.stalls++;
    runtime->stats.stalled_batches++;
    runtime_set_group_stalled(runtime, batch->pool, true, failed);
    batch->pool->report_stalled = true;
    runtime->watchdog_news = true;
}

static bool is_worker_missing(const struct runtime *runtime)
{
    for (int l = 0; l < LANE_COUNT; l++)
        if (runtime->lanes[l].serving < runtime->lanes[l].wanted)
            return true;
    return false;
}

static void replace_workers(struct runtime *runtime)
{
    struct skep_error err;
    skep_status rc = SKEP_OK;

    runtime_reap_workers(runtime);
    for (int l = 0; l < LANE_COUNT && rc == SKEP_OK; l++)
        while (runtime->lanes[l].serving < runtime->lanes[l].wanted && rc == SKEP_OK)
            rc = runtime_add_worker(runtime, (enum lane)l, NULL, &err);
    if (rc != SKEP_OK)
        log_error("runtime: a thread is missing, %u go on: %s",
                  runtime->lanes[LANE_MAIN].serving + runtime->lanes[LANE_SIDE].serving,
                  err.message);
}

/* The next pool that has something to be told; its flags are cleared. The lock is held. */
static struct task_pool *next_news(struct runtime *runtime, bool *stalled, bool *recovered)
{
    for (struct task_pool *pool = runtime->pools; pool != NULL; pool = pool->next_pool)
        if (pool->report_stalled || pool->tell_recovered) {
            *stalled = pool->report_stalled;
            *recovered = pool->tell_recovered;
            pool->report_stalled = pool->tell_recovered = false;
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
 * Until when nothing of the running batches is to be seen. While batches come and go, that is one
 * look per stall timeout instead of one wake-up per batch; after a period without any batch it is
 * for ever: runtime_begin() plans the next look.
 */
static uint64_t next_stall(const struct runtime *runtime, uint64_t now_us, uint64_t *seen_batches)
{
    bool active = runtime->running != NULL || runtime->stats.batches != *seen_batches;
    uint64_t until = CLOCK_NEVER;

    *seen_batches = runtime->stats.batches;
    /* The next batch may be of a pool with less patience than those that run. */
    if (active && runtime->shortest_stall_us > 0)
        until = now_us + runtime->shortest_stall_us;
    for (const struct batch *b = runtime->running; b != NULL; b = b->next_running) {
        uint64_t limit = b->pool->config.stall_timeout_us;

        if (!b->overdue && limit > 0 && b->started_us + limit < until)
            until = b->started_us + limit;
    }
    return until;
}

static uint64_t next_deadline(const struct runtime *runtime)
{
    uint64_t next = CLOCK_NEVER;

    for (struct list_link *l = runtime->active.first; l != NULL; l = l->next) {
        uint64_t at = task_pool_in_active(l)->first_deadline_us;
        next = at < next ? at : next;
    }
    return next;
}

static uint64_t next_look(const struct runtime *runtime, uint64_t now_us, uint64_t *seen_batches)
{
    uint64_t until = next_stall(runtime, now_us, seen_batches);
    uint64_t others[] = {next_deadline(runtime), runtime_next_pass(runtime, now_us),
                         is_worker_missing(runtime) ? now_us + RESPAWN_PERIOD_US : CLOCK_NEVER};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        until = others[i] < until ? others[i] : until;
    /* A pool may pass by now but no side lane is free: one that becomes free looks by itself. */
    return until > now_us ? until : now_us + LONG_WORK_US;
}

/* The lock is held, and released for the callbacks. */
static void fail_overdue(struct runtime *runtime)
{
    struct batch *batch = runtime->running;
    uint64_t now = clock_mono_us();

    while (batch != NULL) {
        struct task_list failed = {0};
        const char *name = batch->pool->config.name;

        if (batch->overdue || !is_overdue(batch, now)) {
            batch = batch->next_running;
            continue;
        }
        take_over(runtime, batch, &failed);
        pthread_mutex_unlock(&runtime->lock);
        tasks_fail(&failed, SKEP_UNAVAILABLE, name, "stalled: its last batch takes too long");
        pthread_mutex_lock(&runtime->lock);
        batch = runtime->running; /* the list may have changed */
    }
}

/* A task whose deadline passes is answered then, not when its turn would have come. The lock is
 * held, and released for the callbacks. */
static void drop_expired(struct runtime *runtime)
{
    struct task_list expired = {0};
    struct task_list gone = {0};
    uint64_t now = clock_mono_us();
    struct list_link *next;

    for (struct list_link *l = runtime->active.first; l != NULL; l = next) {
        struct task_pool *pool = task_pool_in_active(l);

        next = l->next; /* an emptied pool leaves the list */
        if (pool->first_deadline_us <= now)
            queue_purge(pool, now, &expired, &gone);
    }
    if (expired.head == NULL && gone.head == NULL)
        return;
    pthread_mutex_unlock(&runtime->lock);
    tasks_drop(&expired, &gone);
    pthread_mutex_lock(&runtime->lock);
}

static void look(struct runtime *runtime)
{
    fail_overdue(runtime);
    drop_expired(runtime);
    if (is_worker_missing(runtime) && !runtime->stopping)
        replace_workers(runtime);
    runtime_wake_workers(runtime, clock_mono_us());
    if (runtime->watchdog_news)
        tell_news(runtime);
}

void runtime_watch(void *arg)
{
    struct runtime *runtime = arg;
    uint64_t seen_batches = 0;

    pthread_mutex_lock(&runtime->lock);
    while (!runtime->stopping) {
        runtime->watch_at_us = 0;
        if (runtime->started)
            look(runtime);
        if (runtime->stopping || runtime->watchdog_news)
            continue;
        runtime->watch_at_us =
            runtime->started ? next_look(runtime, clock_mono_us(), &seen_batches) : CLOCK_NEVER;
        cond_wait_until(&runtime->watch, &runtime->lock, runtime->watch_at_us);
    }
    pthread_mutex_unlock(&runtime->lock);
}
