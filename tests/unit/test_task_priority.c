/* Tasks of a lease go before others, and nothing else changes. */
#include "unit.h"

#include <string.h>

#include "base/clock.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "runtime/task_pool.h"

enum { MAX_SEEN = 32, WAIT_MS = 60000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards seen and seen_count */
static pthread_cond_t changed;
static float seen[MAX_SEEN]; /* first element of each row, in the order of work */
static size_t seen_count;

struct call {
    struct task task; /* first, so that pointers convert */
    DLTensor tensor;
    const DLTensor *view;
    int64_t shape[2];
    float data[8];
};

static skep_status work(void *arg, const DLTensor *inputs, size_t count, DLManagedTensor **outputs,
                        struct skep_error *err)
{
    const float *rows = skep_tensor_data(&inputs[0]);

    (void)arg;
    (void)count;
    pthread_mutex_lock(&lock);
    for (int64_t i = 0; i < inputs[0].shape[0] && seen_count < MAX_SEEN; i++)
        seen[seen_count++] = rows[i * inputs[0].shape[1]];
    pthread_mutex_unlock(&lock);
    return skep_tensor_new(DTYPE_F32, 2, inputs[0].shape, &outputs[0], err);
}

static void done(struct task *task, DLManagedTensor **outputs, size_t count,
                 const struct skep_error *err)
{
    (void)task;
    (void)err;
    for (size_t i = 0; i < count; i++)
        skep_tensor_free(outputs[i]);
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static struct task_pool *new_pool(struct runtime *runtime, int64_t max_rows)
{
    struct task_pool_config config = {
        .name = "pool", .max_batch_size = max_rows, .work = work, .output_count = 1};
    struct task_pool *pool;

    assert_int_equal(task_pool_new(runtime, &config, &pool, NULL), SKEP_OK);
    return pool;
}

/* Calls of different width cannot share a batch. */
static void submit(struct task_pool *pool, struct call *call, float value, int64_t width,
                   unsigned priority)
{
    memset(call, 0, sizeof(*call));
    call->shape[0] = 1;
    call->shape[1] = width;
    call->data[0] = value;
    call->tensor = (DLTensor){.data = call->data,
                              .device = {.device_type = kDLCPU},
                              .ndim = 2,
                              .dtype = DTYPE_F32,
                              .shape = call->shape};
    call->view = &call->tensor;
    call->task = (struct task){.tensors = &call->view,
                               .tensor_count = 1,
                               .rows = 1,
                               .priority = priority,
                               .deadline_us = CLOCK_NEVER,
                               .done = done};
    assert_int_equal(task_pool_submit(pool, &call->task, NULL), SKEP_OK);
}

static void run_and_expect(struct runtime *runtime, const float *expected, size_t count)
{
    uint64_t deadline = clock_deadline_us(WAIT_MS);

    assert_int_equal(runtime_start(runtime, NULL), SKEP_OK);
    pthread_mutex_lock(&lock);
    while (seen_count < count && cond_wait_until(&changed, &lock, deadline))
        continue;
    size_t got = seen_count;
    pthread_mutex_unlock(&lock);
    assert_int_equal(got, count);
    assert_true(runtime_stop(runtime, clock_deadline_us(WAIT_MS)));
    for (size_t i = 0; i < count; i++)
        assert_true(seen[i] == expected[i]);
    runtime_free(runtime);
}

static int set_up(void **state)
{
    (void)state;
    seen_count = 0;
    cond_init(&changed);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    pthread_cond_destroy(&changed);
    return 0;
}

static void higher_priority_goes_first_and_equal_in_order_of_coming(void **state)
{
    (void)state;
    static const unsigned priorities[] = {0, 1, 0, 2, 1, 0, 2, 0};
    static const float expected[] = {3, 6, 1, 4, 0, 2, 5, 7};
    struct call calls[8];
    struct runtime *runtime;

    assert_int_equal(runtime_new(&runtime, NULL), SKEP_OK);
    runtime_set_lanes(runtime, 1, 0);
    struct task_pool *pool = new_pool(runtime, 1);
    for (int i = 0; i < 8; i++)
        submit(pool, &calls[i], (float)i, 2, priorities[i]);
    run_and_expect(runtime, expected, 8);
}

static void pools_with_priority_go_before_older_ones(void **state)
{
    (void)state;
    static const float expected[] = {2, 0, 1};
    struct call calls[3];
    struct runtime *runtime;

    assert_int_equal(runtime_new(&runtime, NULL), SKEP_OK);
    runtime_set_lanes(runtime, 1, 0);
    struct task_pool *first = new_pool(runtime, 1), *second = new_pool(runtime, 1);
    submit(first, &calls[0], 0, 2, 0);
    submit(first, &calls[1], 1, 2, 0);
    submit(second, &calls[2], 2, 2, 1);
    run_and_expect(runtime, expected, 3);
}

static void others_of_the_same_shape_share_the_batch(void **state)
{
    (void)state;
    static const float expected[] = {3, 0, 2, 1};
    struct call calls[4];
    struct runtime *runtime;

    assert_int_equal(runtime_new(&runtime, NULL), SKEP_OK);
    runtime_set_lanes(runtime, 1, 0);
    struct task_pool *pool = new_pool(runtime, 8);
    submit(pool, &calls[0], 0, 2, 0);
    submit(pool, &calls[1], 1, 4, 0);
    submit(pool, &calls[2], 2, 2, 0);
    submit(pool, &calls[3], 3, 2, 1);
    run_and_expect(runtime, expected, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(higher_priority_goes_first_and_equal_in_order_of_coming,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(pools_with_priority_go_before_older_ones, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(others_of_the_same_shape_share_the_batch, set_up,
                                        tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
