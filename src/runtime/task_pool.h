/*
 * Task pools and the runtime that empties them.
 *
 * A pool joins waiting tasks whose inner shapes and types agree into one batch along dimension 0
 * and hands it to its work function. The runtime serves the pool whose first task has the highest
 * priority, among these the one whose task has waited longest.
 *
 * Batches of one expert (of one `exclusive` group) never run at the same time. Those of others
 * share the CPUs by lanes:
 *
 *   main lane  one batch at a time, in the order above, on as many threads as there are CPUs. Alone
 *              it is as fast as the machine.
 *   side lane  a batch may start beside those that run if each of them takes longer than 5 ms, by
 *              its estimate or already, and it is expected to take at most an eighth of what each
 *              of them still needs. One that outlasts its estimate, or has none, counts as if it
 *              needed as long again as it has run. A pool that has not worked yet passes what has
 *              run for 100 ms. A batch that passes takes no more rows than are expected to fit.
 *              There are 3 side lanes, each with a quarter of the threads, at least one; at most
 * one of their batches is heavy.
 *
 * So a long batch delays short ones of other experts by some milliseconds, while long batches
 * follow one another with all CPUs each: sharing these would finish none of them sooner. Estimates
 * are moving means of each pool's own batches, by number of rows.
 *
 * A task whose deadline passes while it waits is dropped at that moment, and one whose caller
 * leaves when task_pool_withdraw() says so.
 *
 * Threads: any thread submits. Work functions run on the runtime's threads or, when the pool's work
 * is known to be short and may start at once, on the submitting thread (with one thread). `done`
 * runs on the thread that did the work, or that found the task dead, with no lock held.
 */
#ifndef SKEP_RUNTIME_TASK_POOL_H
#define SKEP_RUNTIME_TASK_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/expert.h>
#include <skep/status.h>

struct runtime;
struct task_pool;

/* Embedded in what the caller keeps; borrowed from task_pool_submit() until done has been called.
 */
struct task {
    /* Filled in by the caller. */
    const DLTensor *const *tensors; /* dimension 0 is `rows` in each */
    size_t tensor_count;
    int64_t rows;
    unsigned priority; /* goes before tasks of a lower one, in its pool and among pools; 0: none */
    uint64_t deadline_us; /* dropped unworked, SKEP_DEADLINE_EXCEEDED, once passed */
    /* Whether the caller has left; NULL: never. Gone tasks are dropped, SKEP_CANCELLED. Any thread,
     * with the runtime's lock held: it must not call back. */
    bool (*is_gone)(const struct task *task);
    /*
     * Exactly once for each submitted task. On success `outputs` (the pool's output_count) are
     * taken by the callee; they are row slices that share the batch's memory.
     */
    void (*done)(struct task *task, DLManagedTensor **outputs, size_t output_count,
                 const struct skep_error *err);
    /* Set by the pool before done: the work function was given this task, so whatever it changes
     * may have changed, also if err is set. */
    bool was_worked;
    /* The pool's. */
    struct task *next;
    bool is_queued;
    uint64_t submitted_us;
    size_t bytes;
};

enum { TASK_MAX_TENSORS = 2 * SKEP_EXPERT_MAX_TENSORS }; /* inputs and their gradients */

struct task_pool_config {
    const char *name;       /* "ffn.3.7 forward"; copied */
    int64_t max_batch_size; /* rows; default 4096 */
    int64_t min_batch_size; /* rows waited for, for at most batch_timeout_us; default 1 */
    uint64_t batch_timeout_us;
    size_t max_queued_tasks;   /* default 1024 */
    int64_t max_queued_rows;   /* default 16 * max_batch_size, at least max_queued_tasks */
    uint64_t stall_timeout_us; /* watchdog: longest a batch may take; 0: unwatched */
    bool may_run_inline;       /* work never blocks and is bounded by its rows */
    bool is_heavy; /* needs memory for gradients: at most one such batch works in a side lane */
    /* Pools with the same value never work at once, not even when one of them has stalled: a stall
     * of one fails and closes them all. NULL: the pool is alone. Only compared. */
    const void *exclusive;
    /*
     * Makes the outputs and does the work for one batch: `inputs` are views, joined along dimension
     * 0. On success outputs[0..output_count) are owned by the pool (made by skep_tensor_new(),
     * `rows` rows each); on failure none is left behind and all tasks of the batch get err.
     */
    skep_status (*work)(void *arg, const DLTensor *inputs, size_t input_count,
                        DLManagedTensor **outputs, struct skep_error *err);
    size_t output_count;
    /* Called once, on the watchdog's thread, when a batch exceeds stall_timeout_us; the pool (and
     * those exclusive with it) has failed its queue by then and refuses new tasks
     * (SKEP_UNAVAILABLE) until the batch ends; then it is called with false. The other pools are
     * served by a new thread meanwhile. The tasks of the stalled batch are answered when it ends:
     * the work function still reads their memory. */
    void (*stalled)(void *arg, bool is_stalled);
    void *arg;
};

struct task_pool_stats {
    uint64_t tasks, batches, examples, refused, expired, cancelled, failed;
    uint64_t busy_us;                  /* of the pool: each batch counts once */
    uint64_t wait_us_sum, work_us_sum; /* of tasks: in the queue, and in their whole batch */
    uint64_t wait_histogram[24];       /* bucket i: waits below 2^i us, from the one before */
    size_t queued_tasks;
    int64_t queued_rows;
    bool stalled;
};

struct runtime_stats {
    uint64_t batches, inline_batches, side_batches, busy_us, stalls;
    size_t queued_tasks, queued_bytes;
    unsigned stalled_batches; /* going on now */
};

SKEP_MUST_CHECK skep_status runtime_new(struct runtime **out, struct skep_error *err);
/* Bounds the tensors of all tasks queued in all pools; 0: no bound (the default). */
void runtime_limit_queue(struct runtime *runtime, size_t max_bytes);
void runtime_stats(struct runtime *runtime, struct runtime_stats *out);
/*
 * Sets how many threads the main lane has, and how many side lanes there are. By default the first
 * is parallel_default(), the second 3; with 0, batches run one after the other. Before
 * runtime_start().
 */
void runtime_set_lanes(struct runtime *runtime, unsigned threads, unsigned side_lanes);
/* Starts all threads that batches need, and the watchdog. Tasks submitted earlier have waited for
 * it. @return SKEP_RESOURCE_EXHAUSTED if the system refuses a thread. */
SKEP_MUST_CHECK skep_status runtime_start(struct runtime *runtime, struct skep_error *err);
/* Whether no task is queued or being worked on. */
bool runtime_is_idle(struct runtime *runtime);
/* From now on nobody waits for min_batch_size: callers are turned away, so no more rows come. */
void runtime_drain(struct runtime *runtime);
/* Finishes the batch at work, fails all that is queued (SKEP_UNAVAILABLE), joins the threads. A
 * batch that is stalled is waited for until the deadline; returns false if it never ended (its
 * thread is then left behind and nothing it uses may be freed). */
bool runtime_stop(struct runtime *runtime, uint64_t deadline_us);
void runtime_free(struct runtime *runtime); /* with all its pools; NULL is allowed */

SKEP_MUST_CHECK skep_status task_pool_new(struct runtime *runtime,
                                          const struct task_pool_config *config,
                                          struct task_pool **out, struct skep_error *err);
/*
 * Queues a task. @return SKEP_INVALID_ARGUMENT for 0 rows or more than max_batch_size (the limit is
 * named), no or too many tensors, or one whose dimension 0 is not `rows`; SKEP_RESOURCE_EXHAUSTED,
 * with retry_after_ms, if the queue is full; SKEP_UNAVAILABLE if stalled or stopped. done never
 * runs then. Otherwise it may run before this returns. Expired and gone tasks that fill a queue
 * make room: their done runs on the submitting thread.
 */
SKEP_MUST_CHECK skep_status task_pool_submit(struct task_pool *pool, struct task *task,
                                             struct skep_error *err);
/* The caller of a task that was submitted has left: unless it is worked on or done with, its `done`
 * runs now, on this thread, with SKEP_CANCELLED. The task must still exist, its `done` may have
 * run.
 */
void task_pool_withdraw(struct task_pool *pool, struct task *task);
void task_pool_stats(struct task_pool *pool, struct task_pool_stats *out);

#endif
