/*
 * What the files of this folder share. Nobody else includes it.
 *
 * One lock (runtime.lock) guards all queues, counters and the lanes. It is held for bookkeeping
 * only: joining, working, splitting and callbacks go on without it.
 */
#ifndef SKEP_RUNTIME_INTERNAL_H
#define SKEP_RUNTIME_INTERNAL_H

#include <pthread.h>

#include "base/list.h"
#include "base/thread.h"
#include "runtime/task_pool.h"

enum {
    ESTIMATE_BUCKETS = 32,   /* bucket i: batches of 2^i rows and more, below 2^(i+1) */
    INLINE_WORK_MAX_US = 50, /* longer work would hold up the other calls of an I/O thread */
    INLINE_BATCHES_MAX = 4,  /* that an I/O thread does in a row before the runtime's takes over */
    UNKNOWN_WORK_US = 12500, /* might be anything: it passes what has run for 100 ms */
    LONG_WORK_US = 5000,     /* a batch that takes longer lets short ones pass */
    PASS_RATIO = 8,          /* passing: at most this part of what each running one still needs */
};

enum lane { LANE_MAIN, LANE_SIDE, LANE_COUNT };

struct task_list {
    struct task *head, *tail;
};

struct task_pool {
    struct runtime *runtime;        /* outlives the pool */
    struct task_pool_config config; /* name owned */
    struct task_pool *next_pool;    /* of all pools of the runtime */

    /* Guarded by runtime->lock. */
    struct task_list queue;     /* highest priority first, then oldest */
    uint64_t first_deadline_us; /* no queued task has an earlier one; CLOCK_NEVER: none has any */
    struct list_link in_active;
    bool is_active;                      /* in runtime->active: the queue is not empty */
    bool is_stalled;                     /* this pool's or an exclusive one's batch is overdue */
    bool report_stalled, tell_recovered; /* callbacks that the watchdog owes */
    struct task_pool_stats stats;
    float estimate_us[ESTIMATE_BUCKETS]; /* moving mean of the work time; 0: not measured */
    float us_per_row;
};

/* A batch lives on the stack of the thread that works on it. */
struct batch {
    struct task_pool *pool;
    struct task_list tasks;
    size_t task_count;
    int64_t rows;
    int64_t max_rows; /* the most that it may have; 0: the pool's max_batch_size */
    enum lane lane;
    bool is_inline;
    struct worker *worker; /* NULL if inline */
    struct batch *next_running;
    /* Guarded by runtime->lock. */
    uint64_t started_us;
    float estimate_us; /* when it started; negative: unknown */
    bool overdue;      /* the watchdog gave its lane to another thread */
    /* Of the working thread alone. */
    uint8_t *scratch; /* owned while the batch runs: the runtime's, or NULL */
    size_t scratch_cap;
    DLManagedTensor *outputs[SKEP_EXPERT_MAX_TENSORS];
    skep_status status;
    struct skep_error err;
};

struct worker {
    struct runtime *runtime;
    enum lane lane;
    bool is_first; /* its start fails unless its team is whole */
    struct thread thread;
    struct worker *next;
    /* Guarded by runtime->lock. */
    bool ready; /* its team was made, or could not be: `status` */
    skep_status status;
    struct skep_error err;
    bool ended;
};

struct lane_state {
    pthread_cond_t wake; /* for its workers: something to look at, or stopping */
    unsigned threads;    /* of each worker's team */
    unsigned wanted;     /* workers */
    unsigned serving;    /* workers but those stuck in an overdue batch */
    unsigned waiting;    /* workers in `wake` */
    bool signalled;      /* one of them was woken and has not looked yet */
};

struct runtime {
    pthread_mutex_t lock;
    pthread_cond_t watch; /* for the watchdog */
    pthread_cond_t ended; /* for runtime_start() and runtime_stop(): a worker is ready, a batch or
                             a worker ended */
    struct thread watchdog;

    /* All below guarded by lock. */
    struct lane_state lanes[LANE_COUNT];
    struct task_pool *pools;
    struct linked_list active; /* pools with waiting tasks */
    struct batch *main;        /* has the main lane; NULL: it is free */
    struct batch *running;     /* all of them, the overdue ones too */
    struct worker *workers;    /* owned */
    unsigned workers_alive;
    unsigned inline_threads; /* submitters that work now */
    uint64_t watch_at_us;    /* when the watchdog looks next; 0: it is awake */
    bool watchdog_news;      /* a stall or recovery to tell */
    bool started, stopping;
    bool draining; /* no more tasks come: those that wait for company go alone */
    size_t queue_limit_bytes;
    uint64_t shortest_stall_us; /* of the watched pools; 0: none */
    struct runtime_stats stats;
    uint8_t *scratch; /* owned; lent to the batch of the main lane */
    size_t scratch_cap;
};

static inline struct task_pool *task_pool_in_active(struct list_link *link)
{
    return LIST_HOLDER(link, struct task_pool, in_active);
}

/* queue.c: the lock is held in all of these. */
void task_list_push(struct task_list *list, struct task *task);
struct task *task_list_pop(struct task_list *list);
void queue_add(struct task_pool *pool, struct task *task);
/* Moves every waiting task to `out`. */
void queue_take_all(struct task_pool *pool, struct task_list *out);
/* Takes a task out because its caller has left; false if it is not queued any more. */
bool queue_withdraw(struct task_pool *pool, struct task *task);
/* Moves expired and gone tasks out of the queue. */
void queue_purge(struct task_pool *pool, uint64_t now_us, struct task_list *expired,
                 struct task_list *gone);
/* Fills a batch for batch->lane from the pool whose first task goes before the others that may go
 * now. False if there is none; *ready_at is then when one will be (CLOCK_NEVER: none waits).
 * Expired and gone tasks met on the way are moved out. */
bool queue_next_batch(struct runtime *runtime, uint64_t now_us, struct batch *batch,
                      struct task_list *expired, struct task_list *gone, uint64_t *ready_at);
/* When the first task of a pool with waiting tasks may start beside the batches that run, if they
 * last so long; CLOCK_NEVER: not before one of its own group, or another heavy one, ends. */
uint64_t queue_pass_at(const struct task_pool *pool, uint64_t now_us);
/* Whether a batch of the pool's group is running. */
bool queue_is_group_busy(const struct task_pool *pool);
/* How long a batch may take that starts beside all that run now; 0: none may. */
float queue_side_room_us(const struct runtime *runtime, uint64_t now_us);
/* Estimated work time, or a negative number while it is unknown. */
float pool_estimate_us(const struct task_pool *pool, int64_t rows);
bool pool_same_group(const struct task_pool *a, const struct task_pool *b);

/* batch.c: no lock held. */
/* Joins, works and checks the outputs; fills batch->status. */
void batch_work(struct batch *batch);
/* Hands outputs or the error to the tasks. */
void batch_answer(struct batch *batch);
/* Ends tasks that were not worked on. */
void tasks_fail(struct task_list *tasks, skep_status status, const char *pool_name,
                const char *why);
void tasks_drop(struct task_list *expired, struct task_list *gone);

/* runtime.c */
/* Enters a batch into its lane: the lock is held, and the main lane is free if it is that. */
void runtime_begin(struct runtime *runtime, struct batch *batch, uint64_t now_us);
/* Works on a batch that was entered, frees its lane, answers. No lock held. Returns true if the
 * batch had become overdue: its lane belongs to another thread. */
bool runtime_run(struct runtime *runtime, struct batch *batch);
/* A task was added to a pool: wakes whoever may work on it now, or plans when to look again. The
 * lock is held. */
void runtime_notice(struct runtime *runtime, const struct task_pool *pool, uint64_t now_us);
/* Tasks wait and something has ended: the same for all of them. The lock is held. */
void runtime_wake_workers(struct runtime *runtime, uint64_t now_us);
/* The rest is for the watchdog; the lock is held. */
/* When a pool with waiting tasks may pass the batches that run; CLOCK_NEVER: none. */
uint64_t runtime_next_pass(const struct runtime *runtime, uint64_t now_us);
/* A pool of the group has stalled, or not any more; a stalled one's tasks move to `failed`. */
void runtime_set_group_stalled(struct runtime *runtime, const struct task_pool *of, bool is_stalled,
                               struct task_list *failed);
/* Joins and frees the threads that have ended. */
void runtime_reap_workers(struct runtime *runtime);
/* @param out  not NULL: one of the first workers. */
skep_status runtime_add_worker(struct runtime *runtime, enum lane lane, struct worker **out,
                               struct skep_error *err);

/* watchdog.c: the thread. @param arg  the runtime. */
void runtime_watch(void *arg);

#endif
