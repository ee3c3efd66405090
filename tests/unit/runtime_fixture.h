/* Pools whose work is made up, calls that say what became of them, and the wait for both. */
#ifndef SKEP_TESTS_RUNTIME_FIXTURE_H
#define SKEP_TESTS_RUNTIME_FIXTURE_H

#include "unit.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "runtime/task_pool.h"

enum {
    WIDTH = 4,
    MAX_BATCHES = 512,
    WAIT_MS = 60000, /* far above what anything here takes: only a bug waits so long */
};

/* Everything the tests watch, under one lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static int order_of_pools[MAX_BATCHES];
static size_t order_count;

/* What one pool's work function does, and saw. */
struct fake {
    int id;
    bool hold;         /* block in work until it is cleared */
    bool fail;         /* answer SKEP_INTERNAL */
    bool short_by_one; /* give one row too few */
    bool foreign;      /* give a tensor that is not of skep_tensor_new() */
    float poison;      /* fail if the first element of some row is this */
    size_t batches;
    int64_t rows[MAX_BATCHES];
    const void *last_data;
    size_t held;      /* calls that are blocked */
    uint64_t work_us; /* how long a batch takes, at least */
    uint64_t started_us, ended_us;
    int stalled, recovered;
    pthread_t thread;
};

static inline void changed_now(void)
{
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Waits until the condition holds; the lock is taken and kept on success. */
#define WAIT_FOR(condition)                                                                        \
    do {                                                                                           \
        uint64_t wait_deadline = clock_deadline_us(WAIT_MS);                                       \
        bool in_time = true;                                                                       \
        pthread_mutex_lock(&lock);                                                                 \
        while (!(condition) && in_time)                                                            \
            in_time = cond_wait_until(&changed, &lock, wait_deadline);                             \
        bool wait_held = (condition);                                                              \
        pthread_mutex_unlock(&lock);                                                               \
        assert_true(wait_held);                                                                    \
    } while (0)

/* What a plugin might make by itself: all in one piece of memory. */
struct foreign {
    DLManagedTensor managed;
    int64_t shape[2];
    float data[];
};

static inline void delete_foreign(DLManagedTensor *tensor)
{
    free(tensor);
}

static inline DLManagedTensor *foreign_output(int64_t rows, int64_t width)
{
    struct foreign *f = calloc(1, sizeof(*f) + (size_t)(rows * width) * sizeof(float));

    f->shape[0] = rows;
    f->shape[1] = width;
    f->managed = (DLManagedTensor){.dl_tensor = {.data = f->data,
                                                 .device = {.device_type = kDLCPU},
                                                 .ndim = 2,
                                                 .dtype = DTYPE_F32,
                                                 .shape = f->shape},
                                   .deleter = delete_foreign};
    return &f->managed;
}

static inline skep_status fake_work(void *arg, const DLTensor *inputs, size_t input_count,
                                    DLManagedTensor **outputs, struct skep_error *err)
{
    struct fake *fake = arg;
    const DLTensor *x = &inputs[0];
    const float *in = skep_tensor_data(x);
    int64_t shape[2] = {x->shape[0], x->shape[1]};
    bool poisoned = false;

    uint64_t started_us = clock_mono_us();

    pthread_mutex_lock(&lock);
    fake->started_us = started_us;
    fake->last_data = in;
    fake->thread = pthread_self();
    if (fake->batches < MAX_BATCHES)
        fake->rows[fake->batches] = x->shape[0];
    fake->batches++;
    if (order_count < MAX_BATCHES)
        order_of_pools[order_count++] = fake->id;
    fake->held++;
    pthread_cond_broadcast(&changed);
    while (fake->hold)
        pthread_cond_wait(&changed, &lock);
    fake->held--;
    uint64_t work_us = fake->work_us;
    bool fail = fake->fail;
    bool short_by_one = fake->short_by_one;
    bool foreign = fake->foreign;
    changed_now();

    while (clock_mono_us() < started_us + work_us)
        continue;
    for (int64_t r = 0; r < shape[0]; r++)
        poisoned |= fake->poison > 0 && in[r * shape[1]] == fake->poison;
    if (fail || poisoned || input_count != 1)
        return error_set(err, SKEP_INTERNAL, "fake %d failed", fake->id);
    if (short_by_one)
        shape[0]--;
    if (foreign) {
        outputs[0] = foreign_output(shape[0], shape[1]);
        return SKEP_OK;
    }
    skep_status rc = skep_tensor_new(DTYPE_F32, 2, shape, &outputs[0], err);
    if (rc != SKEP_OK)
        return rc;
    float *out = skep_tensor_data(&outputs[0]->dl_tensor);
    for (int64_t i = 0; i < shape[0] * shape[1]; i++)
        out[i] = 2 * in[i] + 1;
    pthread_mutex_lock(&lock);
    fake->ended_us = clock_mono_us();
    pthread_mutex_unlock(&lock);
    return SKEP_OK;
}

static inline void fake_stalled(void *arg, bool is_stalled)
{
    struct fake *fake = arg;

    pthread_mutex_lock(&lock);
    if (is_stalled)
        fake->stalled++;
    else
        fake->recovered++;
    changed_now();
}

/* One call: a task with its tensor and what became of it. */
struct call {
    struct task task;
    int64_t shape[2];
    DLTensor tensor;
    const DLTensor *views[1];
    float *data;
    int done; /* times */
    skep_status status;
    struct skep_error err;
    bool correct; /* the output is this call's own */
    bool gone;
    pthread_t thread;
};

static inline bool call_is_gone(const struct task *task)
{
    return ((const struct call *)task)->gone;
}

static inline void call_done(struct task *task, DLManagedTensor **outputs, size_t output_count,
                             const struct skep_error *err)
{
    struct call *call = (struct call *)task;
    bool correct = err == NULL && output_count == 1 &&
                   outputs[0]->dl_tensor.shape[0] == call->shape[0] &&
                   outputs[0]->dl_tensor.shape[1] == call->shape[1];

    if (correct) {
        const float *out = skep_tensor_data(&outputs[0]->dl_tensor);
        for (int64_t i = 0; i < call->shape[0] * call->shape[1]; i++)
            correct = correct && out[i] == 2 * call->data[i] + 1;
    }
    for (size_t i = 0; i < output_count; i++)
        skep_tensor_free(outputs[i]);
    pthread_mutex_lock(&lock);
    call->done++;
    call->correct = correct;
    call->status = err == NULL ? SKEP_OK : err->status;
    if (err != NULL)
        call->err = *err;
    call->thread = pthread_self();
    changed_now();
}

static inline void call_init_wide(struct call *call, int64_t rows, int64_t width, float first)
{
    *call = (struct call){0};
    call->shape[0] = rows;
    call->shape[1] = width;
    call->data = calloc((size_t)(rows * width) + 1, sizeof(float));
    for (int64_t i = 0; i < rows * width; i++)
        call->data[i] = first + (float)i;
    call->tensor = (DLTensor){.data = call->data,
                              .device = {.device_type = kDLCPU},
                              .ndim = 2,
                              .dtype = DTYPE_F32,
                              .shape = call->shape};
    call->views[0] = &call->tensor;
    call->task = (struct task){.tensors = call->views,
                               .tensor_count = 1,
                               .rows = rows,
                               .deadline_us = CLOCK_NEVER,
                               .is_gone = call_is_gone,
                               .done = call_done};
}

static inline void call_init(struct call *call, int64_t rows, float first)
{
    call_init_wide(call, rows, WIDTH, first);
}

static inline void call_fini(struct call *call)
{
    free(call->data);
}

static inline void submit(struct task_pool *pool, struct call *call)
{
    struct skep_error err;

    assert_int_equal(task_pool_submit(pool, &call->task, &err), SKEP_OK);
}

static inline struct task_pool *new_pool(struct runtime *runtime, struct fake *fake,
                                         struct task_pool_config config)
{
    struct task_pool *pool = NULL;

    config.name = config.name != NULL ? config.name : "fake";
    config.work = fake_work;
    config.output_count = 1;
    config.stalled = fake_stalled;
    config.arg = fake;
    assert_int_equal(task_pool_new(runtime, &config, &pool, NULL), SKEP_OK);
    return pool;
}

static inline struct runtime *new_runtime(void)
{
    struct runtime *runtime = NULL;

    order_count = 0;
    assert_int_equal(runtime_new(&runtime, NULL), SKEP_OK);
    runtime_set_lanes(runtime, 2, 0); /* one after the other; test_lanes.c sets others */
    return runtime;
}

static inline void start(struct runtime *runtime)
{
    assert_int_equal(runtime_start(runtime, NULL), SKEP_OK);
}

static inline void set_hold(struct fake *fake, bool hold)
{
    pthread_mutex_lock(&lock);
    fake->hold = hold;
    changed_now();
}

#endif
