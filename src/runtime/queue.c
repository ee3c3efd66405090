/* The waiting side: queues, which batch comes next, what it consists of. The lock is held here. */
#include "runtime/internal.h"

#include <assert.h>
#include <float.h>

#include "base/clock.h"
#include "base/tensor.h"

void task_list_push(struct task_list *list, struct task *task)
{
    task->next = NULL;
    if (list->tail != NULL)
        list->tail->next = task;
    else
        list->head = task;
    list->tail = task;
}

struct task *task_list_pop(struct task_list *list)
{
    struct task *task = list->head;

    if (task == NULL)
        return NULL;
    list->head = task->next;
    if (list->head == NULL)
        list->tail = NULL;
    task->next = NULL;
    return task;
}

static void activate(struct task_pool *pool)
{
    if (pool->is_active)
        return;
    pool->is_active = true;
    list_append(&pool->runtime->active, &pool->in_active);
}

static void deactivate(struct task_pool *pool)
{
    if (!pool->is_active)
        return;
    pool->is_active = false;
    pool->first_deadline_us = CLOCK_NEVER;
    list_remove(&pool->runtime->active, &pool->in_active);
}

static void count(struct task_pool *pool, struct task *task, bool added)
{
    struct runtime *runtime = pool->runtime;

    task->is_queued = added;
    if (added) {
        pool->stats.queued_tasks++;
        pool->stats.queued_rows += task->rows;
        runtime->stats.queued_tasks++;
        runtime->stats.queued_bytes += task->bytes;
    } else {
        pool->stats.queued_tasks--;
        pool->stats.queued_rows -= task->rows;
        runtime->stats.queued_tasks--;
        runtime->stats.queued_bytes -= task->bytes;
    }
}

/* Behind all of at least its priority. Those with one are few, and they are in front. */
static void insert(struct task_list *list, struct task *task)
{
    struct task **link = &list->head;

    if (list->tail == NULL || list->tail->priority >= task->priority) {
        task_list_push(list, task);
        return;
    }
    while ((*link)->priority >= task->priority)
        link = &(*link)->next;
    task->next = *link;
    *link = task;
}

void queue_add(struct task_pool *pool, struct task *task)
{
    insert(&pool->queue, task);
    count(pool, task, true);
    activate(pool);
    if (task->deadline_us < pool->first_deadline_us)
        pool->first_deadline_us = task->deadline_us;
}

void queue_take_all(struct task_pool *pool, struct task_list *out)
{
    for (struct task *task; (task = task_list_pop(&pool->queue)) != NULL;) {
        count(pool, task, false);
        task_list_push(out, task);
    }
    deactivate(pool);
}

/* Moves a task out if it is not worth working on any more. */
static bool drop(struct task_pool *pool, struct task *task, uint64_t now_us,
                 struct task_list *expired, struct task_list *gone)
{
    if (now_us >= task->deadline_us) {
        pool->stats.expired++;
        task_list_push(expired, task);
    } else if (task->is_gone != NULL && task->is_gone(task)) {
        pool->stats.cancelled++;
        task_list_push(gone, task);
    } else {
        return false;
    }
    count(pool, task, false);
    return true;
}

void queue_purge(struct task_pool *pool, uint64_t now_us, struct task_list *expired,
                 struct task_list *gone)
{
    struct task_list kept = {0};

    pool->first_deadline_us = CLOCK_NEVER;
    for (struct task *task; (task = task_list_pop(&pool->queue)) != NULL;) {
        if (drop(pool, task, now_us, expired, gone))
            continue;
        task_list_push(&kept, task);
        if (task->deadline_us < pool->first_deadline_us)
            pool->first_deadline_us = task->deadline_us;
    }
    pool->queue = kept;
    if (kept.head == NULL)
        deactivate(pool);
}

bool queue_withdraw(struct task_pool *pool, struct task *task)
{
    struct task *before = NULL;

    if (!task->is_queued)
        return false;
    for (struct task *at = pool->queue.head; at != task; at = at->next)
        before = at;
    if (before != NULL)
        before->next = task->next;
    else
        pool->queue.head = task->next;
    if (pool->queue.tail == task)
        pool->queue.tail = before;
    task->next = NULL;
    pool->stats.cancelled++;
    count(pool, task, false);
    if (pool->queue.head == NULL)
        deactivate(pool);
    return true;
}

static bool shapes_agree(const struct task *a, const struct task *b)
{
    if (a->tensor_count != b->tensor_count)
        return false;
    for (size_t i = 0; i < a->tensor_count; i++) {
        const DLTensor *x = a->tensors[i];
        const DLTensor *y = b->tensors[i];

        if (x->ndim != y->ndim || !dtype_equal(x->dtype, y->dtype))
            return false;
        for (int d = 1; d < x->ndim; d++)
            if (x->shape[d] != y->shape[d])
                return false;
    }
    return true;
}

/*
 * Takes the first task and those that go with it, in their order. The first one of its shape that
 * does not fit closes the batch: a smaller one behind it must not overtake it for ever.
 */
static void fill(struct task_pool *pool, uint64_t now_us, struct batch *batch,
                 struct task_list *expired, struct task_list *gone)
{
    int64_t max_rows = batch->max_rows > 0 ? batch->max_rows : pool->config.max_batch_size;
    struct task_list kept = {0};
    bool closed = false;

    while (!closed && pool->queue.head != NULL) {
        struct task *task = task_list_pop(&pool->queue);
        const struct task *first = batch->tasks.head;

        if (drop(pool, task, now_us, expired, gone))
            continue;
        if (first != NULL && !shapes_agree(first, task)) {
            task_list_push(&kept, task);
        } else if (first != NULL && task->rows > max_rows - batch->rows) {
            task_list_push(&kept, task);
            closed = true;
        } else {
            count(pool, task, false);
            task_list_push(&batch->tasks, task);
            batch->task_count++;
            batch->rows += task->rows;
            closed = batch->rows >= max_rows;
        }
    }
    /* What was passed over goes back in front of what was not looked at. */
    if (kept.head != NULL) {
        kept.tail->next = pool->queue.head;
        if (pool->queue.tail == NULL)
            pool->queue.tail = kept.tail;
        pool->queue.head = kept.head;
    }
    if (pool->queue.head == NULL)
        deactivate(pool);
}

/* When the pool's first task may go: now if enough rows wait that can go with it. */
static uint64_t ready_at(const struct task_pool *pool)
{
    const struct task *first = pool->queue.head;
    const struct task_pool_config *config = &pool->config;
    int64_t rows = 0;

    assert(first != NULL);
    if (config->min_batch_size <= 1 || config->batch_timeout_us == 0 || pool->runtime->draining)
        return 0;
    for (const struct task *t = first; t != NULL && rows < config->min_batch_size; t = t->next)
        if (shapes_agree(first, t))
            rows += t->rows;
    return rows >= config->min_batch_size ? 0 : first->submitted_us + config->batch_timeout_us;
}

static bool goes_before(const struct task *a, const struct task *b)
{
    return a->priority != b->priority ? a->priority > b->priority
                                      : a->submitted_us < b->submitted_us;
}

/* --- lanes --------------------------------------------------------------------------------- */

bool pool_same_group(const struct task_pool *a, const struct task_pool *b)
{
    return a == b || (a->config.exclusive != NULL && a->config.exclusive == b->config.exclusive);
}

bool queue_is_group_busy(const struct task_pool *pool)
{
    for (const struct batch *b = pool->runtime->running; b != NULL; b = b->next_running)
        if (pool_same_group(b->pool, pool))
            return true;
    return false;
}

/* Whether a batch of the pool has its place in memory beside those in the side lanes. */
static bool has_side_memory(const struct task_pool *pool)
{
    for (const struct batch *b = pool->runtime->running; b != NULL; b = b->next_running)
        if (pool->config.is_heavy && b->pool->config.is_heavy && b->lane == LANE_SIDE)
            return false;
    return true;
}

static float longer(float a, float b)
{
    return a > b ? a : b;
}

/* A batch of which nothing is known is expected to last for as long again as it has lasted. */
static float room_beside(const struct batch *batch, uint64_t now_us)
{
    float elapsed = now_us > batch->started_us ? (float)(now_us - batch->started_us) : 0;

    if (longer(batch->estimate_us, elapsed) < LONG_WORK_US)
        return 0;
    float left = batch->estimate_us - elapsed;
    return (left > 0 ? left : elapsed) / PASS_RATIO;
}

float queue_side_room_us(const struct runtime *runtime, uint64_t now_us)
{
    float room = FLT_MAX;

    for (const struct batch *b = runtime->running; b != NULL; b = b->next_running)
        if (!b->overdue) {
            float beside = room_beside(b, now_us);
            room = beside < room ? beside : room;
        }
    return room;
}

/* How long a batch of the pool's first task is expected to take. */
static float passing_us(const struct task_pool *pool)
{
    int64_t rows = pool->queue.head->rows;
    float us = pool_estimate_us(pool, rows);

    if (us >= 0)
        return us;
    return pool->us_per_row > 0 ? pool->us_per_row * (float)rows : UNKNOWN_WORK_US;
}

uint64_t queue_pass_at(const struct task_pool *pool, uint64_t now_us)
{
    uint64_t at = ready_at(pool);
    float needed_us = passing_us(pool);

    if (queue_is_group_busy(pool) || !has_side_memory(pool))
        return CLOCK_NEVER;
    for (const struct batch *b = pool->runtime->running; b != NULL; b = b->next_running) {
        if (b->overdue || room_beside(b, now_us) >= needed_us)
            continue;
        float after_us = longer(longer(LONG_WORK_US, needed_us * PASS_RATIO), b->estimate_us);
        uint64_t then = b->started_us + (uint64_t)after_us + 1;
        at = then > at ? then : at;
    }
    return at;
}

static struct task_pool *first_ready(struct runtime *runtime, uint64_t now_us, enum lane lane,
                                     float room_us, uint64_t *next)
{
    struct task_pool *best = NULL;

    *next = CLOCK_NEVER;
    for (struct list_link *l = runtime->active.first; l != NULL; l = l->next) {
        struct task_pool *pool = task_pool_in_active(l);
        uint64_t at = ready_at(pool);

        if (at > now_us) {
            *next = at < *next ? at : *next;
            continue;
        }
        if (best != NULL && !goes_before(pool->queue.head, best->queue.head))
            continue;
        if (runtime->running != NULL && queue_is_group_busy(pool))
            continue;
        if (lane == LANE_MAIN || (has_side_memory(pool) && passing_us(pool) <= room_us))
            best = pool;
    }
    return best;
}

/* The most rows that are expected to fit the room: as many as an estimate vouches for. */
static int64_t rows_within(const struct task_pool *pool, float room_us)
{
    for (unsigned i = ESTIMATE_BUCKETS; i-- > 0;)
        if (pool->estimate_us[i] > 0 && pool->estimate_us[i] <= room_us) {
            int64_t rows = ((int64_t)2 << i) - 1;
            return rows < pool->config.max_batch_size ? rows : pool->config.max_batch_size;
        }
    return pool->queue.head->rows;
}

bool queue_next_batch(struct runtime *runtime, uint64_t now_us, struct batch *batch,
                      struct task_list *expired, struct task_list *gone, uint64_t *next)
{
    float room_us = batch->lane == LANE_SIDE ? queue_side_room_us(runtime, now_us) : 0;
    struct task_pool *pool;

    while ((pool = first_ready(runtime, now_us, batch->lane, room_us, next)) != NULL) {
        batch->pool = pool;
        batch->max_rows = batch->lane == LANE_SIDE ? rows_within(pool, room_us) : 0;
        fill(pool, now_us, batch, expired, gone);
        if (batch->task_count > 0)
            return true;
    }
    return false;
}

static unsigned bucket_of(int64_t rows)
{
    return 63u - (unsigned)__builtin_clzll((unsigned long long)rows | 1u);
}

/* A batch of more rows takes longer, so a larger bucket's mean is an upper bound for a smaller. */
float pool_estimate_us(const struct task_pool *pool, int64_t rows)
{
    for (unsigned i = bucket_of(rows); i < ESTIMATE_BUCKETS; i++)
        if (pool->estimate_us[i] > 0)
            return pool->estimate_us[i];
    return -1;
}
