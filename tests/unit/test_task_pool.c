/* Task pools and the runtime, with work functions that are made up here. */
#include "unit.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include <skep/log.h>
#include "runtime/task_pool.h"
#include "runtime_fixture.h"

static void single_task_is_not_copied(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call call;

    call_init(&call, 3, 1);
    submit(pool, &call);
    start(runtime);
    WAIT_FOR(call.done == 1);
    assert_true(call.correct);
    assert_true(call.task.was_worked);
    assert_ptr_equal(fake.last_data, call.data);
    runtime_free(runtime);
    call_fini(&call);
}

static void waiting_tasks_are_joined_up_to_the_limit(void **state)
{
    (void)state;
    const int64_t sizes[] = {62, 4, 64, 1, 63, 1};
    const int64_t expected[] = {62, 4, 64, 64, 1};
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.max_batch_size = 64});
    struct call calls[6];

    for (size_t i = 0; i < 6; i++) {
        call_init(&calls[i], sizes[i], (float)(1000 * i));
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 6; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_true(calls[i].correct);
    }
    runtime_free(runtime);
    assert_int_equal(fake.batches, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(fake.rows[i], expected[i]);
    for (size_t i = 0; i < 6; i++)
        call_fini(&calls[i]);
}

static void sixty_four_single_rows_make_one_batch(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.max_batch_size = 64});
    struct call calls[64];
    struct task_pool_stats stats;

    for (size_t i = 0; i < 64; i++) {
        call_init(&calls[i], 1, (float)(10 * i));
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 64; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_true(calls[i].correct);
        call_fini(&calls[i]);
    }
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.batches, 1);
    assert_int_equal(stats.tasks, 64);
    assert_int_equal(stats.examples, 64);
    assert_int_equal(stats.queued_tasks, 0);
    assert_int_equal(stats.queued_rows, 0);
    runtime_free(runtime);
}

static void outputs_that_cannot_be_split_fail_the_batch(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {.foreign = true};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.max_batch_size = 64});
    struct call calls[2];

    for (size_t i = 0; i < 2; i++) {
        call_init(&calls[i], 2, (float)i);
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 2; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_int_equal(calls[i].status, SKEP_INTERNAL);
        assert_non_null(strstr(calls[i].err.message, "skep_tensor_new"));
        call_fini(&calls[i]);
    }
    assert_int_equal(fake.batches, 1);
    runtime_free(runtime);
}

static unsigned count_threads(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/task");

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* A thread that has been joined may be listed for a moment longer: now, or when `most` was counted.
 */
static void assert_threads(unsigned most)
{
    uint64_t deadline = clock_deadline_us(WAIT_MS);

    while (count_threads() > most && clock_mono_us() < deadline)
        sched_yield();
    assert_true(count_threads() <= most);
}

static void start_that_failed_leaves_no_thread_and_may_be_repeated(void **state)
{
    (void)state;
    bool failed = true;

    for (long n = 1; failed; n++) {
        struct runtime *runtime = new_runtime();
        struct fake fake = {0};
        struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
        struct call call;
        unsigned threads = count_threads();

        mem_fail_at(n);
        failed = runtime_start(runtime, NULL) != SKEP_OK;
        mem_fail_at(0);
        if (failed) {
            assert_threads(threads);
            start(runtime);
        }
        call_init(&call, 1, 1);
        submit(pool, &call);
        WAIT_FOR(call.done == 1);
        assert_true(call.correct);
        call_fini(&call);
        runtime_free(runtime);
        assert_threads(threads);
        assert_true(n > 1 || failed);
    }
}

static void wrong_row_counts_are_refused(void **state)
{
    (void)state;
    const int64_t wrong[] = {0, 65, (int64_t)1 << 31, -1, INT64_MAX};
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.max_batch_size = 64});
    struct call call;
    struct skep_error err;

    call_init(&call, 1, 1);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        call.task.rows = wrong[i];
        assert_int_equal(task_pool_submit(pool, &call.task, &err), SKEP_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "max_batch_size 64"));
    }
    call.task.rows = 2; /* the tensor has one */
    assert_int_equal(task_pool_submit(pool, &call.task, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "1 rows, expected 2"));
    call.task.rows = 1;
    call.task.tensor_count = 0;
    assert_int_equal(task_pool_submit(pool, &call.task, &err), SKEP_INVALID_ARGUMENT);
    runtime_free(runtime);
    assert_int_equal(call.done, 0);
    assert_int_equal(fake.batches, 0);
    call_fini(&call);
}

static void other_shapes_go_in_batches_of_their_own(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[5];

    for (size_t i = 0; i < 5; i++) {
        call_init_wide(&calls[i], 1, i % 2 == 0 ? 4 : 7, (float)(100 * i));
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 5; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_true(calls[i].correct);
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
    assert_int_equal(fake.batches, 2);
    assert_int_equal(fake.rows[0], 3);
    assert_int_equal(fake.rows[1], 2);
}

static void oldest_pool_goes_first(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fakes[3] = {{.id = 0}, {.id = 1}, {.id = 2}};
    struct task_pool *pools[3];
    const int sequence[] = {2, 0, 1, 0, 2};
    struct call calls[5];

    for (int i = 0; i < 3; i++)
        pools[i] = new_pool(runtime, &fakes[i], (struct task_pool_config){.max_batch_size = 1});
    for (size_t i = 0; i < 5; i++) {
        call_init(&calls[i], 1, 1);
        submit(pools[sequence[i]], &calls[i]);
        uint64_t now = clock_mono_us();
        while (clock_mono_us() == now) /* so that no two are equally old */
            continue;
    }
    start(runtime);
    for (size_t i = 0; i < 5; i++) {
        WAIT_FOR(calls[i].done == 1);
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(order_of_pools[i], sequence[i]);
}

static void expired_and_gone_tasks_are_not_worked_on(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[20];
    struct task_pool_stats stats;

    for (size_t i = 0; i < 20; i++) {
        call_init(&calls[i], 1, (float)i);
        if (i < 10)
            calls[i].task.deadline_us = clock_mono_us();
        else if (i < 19)
            calls[i].gone = true;
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 20; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_int_equal(calls[i].status, i < 10   ? SKEP_DEADLINE_EXCEEDED
                                          : i < 19 ? SKEP_CANCELLED
                                                   : SKEP_OK);
        assert_int_equal(calls[i].task.was_worked, i == 19);
        call_fini(&calls[i]);
    }
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.expired, 10);
    assert_int_equal(stats.cancelled, 9);
    assert_int_equal(stats.tasks, 1);
    runtime_free(runtime);
    assert_int_equal(fake.batches, 1);
    assert_int_equal(fake.rows[0], 1);
}

static void failed_batch_answers_all_and_the_next_hundred_succeed(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {.poison = 777};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[8];
    struct task_pool_stats stats;

    for (size_t i = 0; i < 8; i++) {
        call_init(&calls[i], 1, i == 5 ? 777 : (float)i);
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 8; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_int_equal(calls[i].status, SKEP_INTERNAL);
        assert_non_null(strstr(calls[i].err.message, "fake 0 failed"));
        assert_true(calls[i].task.was_worked);
        call_fini(&calls[i]);
    }
    for (size_t i = 0; i < 100; i++) {
        call_init(&calls[0], 2, (float)i);
        submit(pool, &calls[0]);
        WAIT_FOR(calls[0].done == 1);
        assert_true(calls[0].correct);
        call_fini(&calls[0]);
    }
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.failed, 8);
    runtime_free(runtime);
}

static void wrong_number_of_output_rows_is_an_error(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {.short_by_one = true};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[2];

    for (size_t i = 0; i < 2; i++) {
        call_init(&calls[i], 2, 1);
        submit(pool, &calls[i]);
    }
    start(runtime);
    for (size_t i = 0; i < 2; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_int_equal(calls[i].status, SKEP_INTERNAL);
        assert_non_null(strstr(calls[i].err.message, "3 rows, expected 4"));
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
}

static void full_queue_refuses_with_a_hint_and_dead_tasks_make_room(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.max_queued_tasks = 3});
    struct call calls[4];
    struct skep_error err;
    struct task_pool_stats stats;

    for (size_t i = 0; i < 4; i++)
        call_init(&calls[i], 1, (float)i);
    for (size_t i = 0; i < 3; i++)
        submit(pool, &calls[i]);
    assert_int_equal(task_pool_submit(pool, &calls[3].task, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_true(err.retry_after_ms > 0);
    assert_non_null(strstr(err.message, "3 tasks of at most 3"));
    calls[1].gone = true;
    submit(pool, &calls[3]);
    assert_int_equal(calls[1].done, 1);
    assert_int_equal(calls[1].status, SKEP_CANCELLED);
    start(runtime);
    WAIT_FOR(calls[3].done == 1 && calls[0].done == 1 && calls[2].done == 1);
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.refused, 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 4; i++)
        call_fini(&calls[i]);
}

static void rows_and_bytes_in_queues_are_bounded(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool = new_pool(
        runtime, &fake, (struct task_pool_config){.max_batch_size = 8, .max_queued_rows = 10});
    struct task_pool *other = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[3];

    call_init(&calls[0], 8, 1);
    call_init(&calls[1], 3, 1);
    call_init(&calls[2], 2, 1);
    submit(pool, &calls[0]);
    assert_int_equal(task_pool_submit(pool, &calls[1].task, NULL), SKEP_RESOURCE_EXHAUSTED);
    submit(pool, &calls[2]);
    runtime_limit_queue(runtime, 10 * WIDTH * sizeof(float) + 1);
    assert_int_equal(task_pool_submit(other, &calls[1].task, NULL), SKEP_RESOURCE_EXHAUSTED);
    start(runtime);
    WAIT_FOR(calls[0].done == 1 && calls[2].done == 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 3; i++)
        call_fini(&calls[i]);
}

static void calls_that_come_while_busy_make_the_next_batch(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {.hold = true};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[5];

    start(runtime);
    for (size_t i = 0; i < 5; i++)
        call_init(&calls[i], 1, (float)i);
    submit(pool, &calls[0]);
    WAIT_FOR(fake.held == 1);
    for (size_t i = 1; i < 5; i++)
        submit(pool, &calls[i]);
    set_hold(&fake, false);
    for (size_t i = 0; i < 5; i++) {
        WAIT_FOR(calls[i].done == 1);
        assert_true(calls[i].correct);
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
    assert_int_equal(fake.batches, 2);
    assert_int_equal(fake.rows[1], 4);
}

static void minimum_batch_goes_as_soon_as_it_is_full(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake,
                 (struct task_pool_config){.min_batch_size = 4, .batch_timeout_us = 3600000000u});
    struct call calls[4];

    start(runtime);
    for (size_t i = 0; i < 4; i++) {
        call_init(&calls[i], 1, (float)i);
        submit(pool, &calls[i]);
    }
    for (size_t i = 0; i < 4; i++) {
        WAIT_FOR(calls[i].done == 1);
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
    assert_int_equal(fake.batches, 1);
    assert_int_equal(fake.rows[0], 4);
}

static void minimum_batch_is_not_waited_for_longer_than_told(void **state)
{
    (void)state;
    const uint64_t timeouts[] = {30000, 0};

    for (size_t round = 0; round < 2; round++) {
        struct runtime *runtime = new_runtime();
        struct fake fake = {0};
        struct task_pool *pool = new_pool(
            runtime, &fake,
            (struct task_pool_config){.min_batch_size = 4, .batch_timeout_us = timeouts[round]});
        struct call calls[3];

        for (size_t i = 0; i < 3; i++) {
            call_init(&calls[i], 1, (float)i);
            submit(pool, &calls[i]);
        }
        start(runtime);
        for (size_t i = 0; i < 3; i++) {
            WAIT_FOR(calls[i].done == 1);
            call_fini(&calls[i]);
        }
        runtime_free(runtime);
        assert_int_equal(fake.batches, 1);
        assert_int_equal(fake.rows[0], 3);
    }
}

static void draining_ends_the_wait_for_a_minimum_batch(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake,
                 (struct task_pool_config){.min_batch_size = 4, .batch_timeout_us = 3600000000u});
    struct call calls[3];

    start(runtime);
    for (size_t i = 0; i < 3; i++)
        call_init(&calls[i], 1, (float)i);
    submit(pool, &calls[0]);
    submit(pool, &calls[1]);
    runtime_drain(runtime);
    WAIT_FOR(calls[0].done == 1 && calls[1].done == 1);
    submit(pool, &calls[2]); /* one whose tensors were still on their way */
    WAIT_FOR(calls[2].done == 1);
    for (size_t i = 0; i < 3; i++) {
        assert_true(calls[i].correct);
        call_fini(&calls[i]);
    }
    runtime_free(runtime);
    assert_int_equal(fake.batches, 2);
    assert_int_equal(fake.rows[0], 2);
}

static void short_work_runs_on_the_submitting_thread(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool =
        new_pool(runtime, &fake, (struct task_pool_config){.may_run_inline = true});
    struct runtime_stats stats = {0};
    bool here = false;

    start(runtime);
    /* How fast this machine is just now decides how many tries it takes, not whether it comes. */
    for (int i = 0; i < 100000 && !here; i++) {
        struct call call;

        call_init(&call, 1, (float)(i % 100));
        submit(pool, &call);
        WAIT_FOR(call.done == 1);
        assert_true(call.correct);
        here = pthread_equal(call.thread, pthread_self()) != 0;
        assert_true(i > 0 || !here); /* nothing was measured before the first */
        call_fini(&call);
    }
    assert_true(here);
    runtime_stats(runtime, &stats);
    assert_true(stats.inline_batches > 0);
    runtime_free(runtime);
}

static void work_that_may_block_never_runs_on_the_submitting_thread(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {0};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});

    start(runtime);
    for (int i = 0; i < 100; i++) {
        struct call call;

        call_init(&call, 1, 1);
        submit(pool, &call);
        WAIT_FOR(call.done == 1);
        assert_false(pthread_equal(fake.thread, pthread_self()));
        call_fini(&call);
    }
    runtime_free(runtime);
}

static void stalled_batch_closes_its_group_and_spares_the_rest(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake stuck = {.id = 1, .hold = true};
    struct fake sibling = {.id = 2};
    struct fake other = {.id = 3};
    struct task_pool_config watched = {.stall_timeout_us = 30000, .exclusive = &stuck};
    struct task_pool *stuck_pool = new_pool(runtime, &stuck, watched);
    struct task_pool *sibling_pool = new_pool(runtime, &sibling, watched);
    struct task_pool *other_pool = new_pool(runtime, &other, (struct task_pool_config){0});
    struct call calls[4];
    struct skep_error err;
    struct task_pool_stats stats;

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    for (size_t i = 0; i < 4; i++)
        call_init(&calls[i], 1, (float)i);
    submit(stuck_pool, &calls[0]);
    submit(sibling_pool, &calls[1]);
    start(runtime);
    WAIT_FOR(stuck.stalled == 1);

    WAIT_FOR(calls[1].done == 1);
    assert_int_equal(calls[1].status, SKEP_UNAVAILABLE);
    assert_int_equal(task_pool_submit(stuck_pool, &calls[2].task, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "stalled"));
    assert_int_equal(task_pool_submit(sibling_pool, &calls[2].task, &err), SKEP_UNAVAILABLE);
    task_pool_stats(stuck_pool, &stats);
    assert_true(stats.stalled);
    assert_int_equal(calls[0].done, 0);

    submit(other_pool, &calls[2]);
    WAIT_FOR(calls[2].done == 1);
    assert_true(calls[2].correct);

    set_hold(&stuck, false);
    WAIT_FOR(stuck.recovered == 1 && calls[0].done == 1);
    assert_true(calls[0].correct);
    submit(stuck_pool, &calls[3]);
    WAIT_FOR(calls[3].done == 1);
    assert_true(calls[3].correct);
    assert_int_equal(sibling.batches, 0);
    runtime_free(runtime);
    for (size_t i = 0; i < 4; i++)
        call_fini(&calls[i]);
}

/* The watchdog sleeps without a timeout while no pool is watched, and for long beside a patient
 * one.
 */
static void pools_made_after_the_start_are_watched(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake patient = {.id = 1};
    struct fake stuck[2] = {{.id = 2, .hold = true}, {.id = 3, .hold = true}};
    struct task_pool_config config = {0};
    struct call calls[3];

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    for (size_t i = 0; i < 3; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(new_pool(runtime, &patient, config), &calls[0]);
    WAIT_FOR(calls[0].done == 1);
    for (size_t i = 0; i < 2; i++) {
        config.stall_timeout_us = i == 0 ? 3600000000u : 30000;
        submit(new_pool(runtime, &stuck[i], config), &calls[1 + i]);
        if (i == 0) {
            WAIT_FOR(stuck[0].held == 1);
            set_hold(&stuck[0], false);
            WAIT_FOR(calls[1].done == 1);
        }
    }
    WAIT_FOR(stuck[1].stalled == 1);
    set_hold(&stuck[1], false);
    WAIT_FOR(calls[2].done == 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 3; i++)
        call_fini(&calls[i]);
}

static void an_impatient_pool_is_watched_behind_a_patient_one(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake patient = {.id = 1, .hold = true};
    struct fake stuck = {.id = 2, .hold = true};
    struct task_pool *patient_pool =
        new_pool(runtime, &patient, (struct task_pool_config){.stall_timeout_us = 3600000000u});
    struct task_pool *stuck_pool =
        new_pool(runtime, &stuck, (struct task_pool_config){.stall_timeout_us = 30000});
    struct call calls[2];

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    for (size_t i = 0; i < 2; i++)
        call_init(&calls[i], 1, (float)i);
    submit(patient_pool, &calls[0]);
    submit(stuck_pool, &calls[1]);
    start(runtime); /* the watchdog's first looks meet the patient pool's batch */
    WAIT_FOR(patient.held == 1);
    set_hold(&patient, false);
    WAIT_FOR(stuck.stalled == 1);
    set_hold(&stuck, false);
    WAIT_FOR(calls[0].done == 1 && calls[1].done == 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 2; i++)
        call_fini(&calls[i]);
}

static void stop_fails_what_is_queued_and_finishes_what_is_at_work(void **state)
{
    (void)state;
    struct runtime *runtime = new_runtime();
    struct fake fake = {.hold = true};
    struct task_pool *pool = new_pool(runtime, &fake, (struct task_pool_config){0});
    struct call calls[4];
    struct skep_error err;

    for (size_t i = 0; i < 4; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(pool, &calls[0]);
    WAIT_FOR(fake.held == 1);
    submit(pool, &calls[1]);
    submit(pool, &calls[2]);
    assert_false(runtime_is_idle(runtime));

    /* The batch at work does not end: stop gives up at its deadline. */
    assert_false(runtime_stop(runtime, clock_deadline_us(20)));
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(calls[i].done, 1);
        assert_int_equal(calls[i].status, SKEP_UNAVAILABLE);
    }
    assert_int_equal(calls[0].done, 0);
    assert_int_equal(task_pool_submit(pool, &calls[3].task, &err), SKEP_UNAVAILABLE);

    set_hold(&fake, false);
    assert_true(runtime_stop(runtime, CLOCK_NEVER));
    assert_int_equal(calls[0].done, 1);
    assert_true(calls[0].correct);
    assert_true(runtime_is_idle(runtime));
    runtime_free(runtime);
    for (size_t i = 0; i < 4; i++)
        call_fini(&calls[i]);
}

static void starts_and_stops_two_hundred_times(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct runtime *runtime = new_runtime();
        struct fake fake = {0};
        struct task_pool *pool = new_pool(
            runtime, &fake,
            (struct task_pool_config){.may_run_inline = true, .stall_timeout_us = 1000000});
        struct call call;

        call_init(&call, 1, (float)i);
        if (i % 3 != 0)
            start(runtime);
        if (i % 2 == 0)
            submit(pool, &call);
        runtime_free(runtime);
        assert_int_equal(call.done, i % 2 == 0);
        call_fini(&call);
    }
}

struct storm {
    struct task_pool **pools;
    unsigned seed;
    int wrong;
};

static void storm_main(void *arg)
{
    struct storm *storm = arg;

    for (int i = 0; i < 400; i++) {
        struct call calls[3];

        for (int k = 0; k < 3; k++) {
            call_init_wide(&calls[k], 1 + rand_r(&storm->seed) % 5, 4 + rand_r(&storm->seed) % 2,
                           (float)(rand_r(&storm->seed) % 1000));
            if (task_pool_submit(storm->pools[rand_r(&storm->seed) % 3], &calls[k].task, NULL) !=
                SKEP_OK)
                storm->wrong++;
        }
        pthread_mutex_lock(&lock);
        for (int k = 0; k < 3; k++) {
            while (calls[k].done == 0)
                pthread_cond_wait(&changed, &lock);
            if (!calls[k].correct || calls[k].done != 1)
                storm->wrong++;
        }
        pthread_mutex_unlock(&lock);
        for (int k = 0; k < 3; k++)
            call_fini(&calls[k]);
    }
}

static void many_submitters_each_get_their_own_answers(void **state)
{
    (void)state;
    unsigned seed = (unsigned)clock_mono_us();
    struct runtime *runtime = new_runtime();
    struct fake fakes[3] = {0};
    struct task_pool *pools[3];
    struct storm storms[4];
    struct thread threads[4] = {0};
    uint64_t tasks = 0;

    print_message("seed %u\n", seed);
    for (int i = 0; i < 3; i++)
        pools[i] = new_pool(runtime, &fakes[i],
                            (struct task_pool_config){.max_batch_size = 8,
                                                      .may_run_inline = i != 1,
                                                      .stall_timeout_us = 60000000});
    start(runtime);
    for (unsigned i = 0; i < 4; i++) {
        storms[i] = (struct storm){.pools = pools, .seed = seed + i};
        assert_int_equal(thread_start(&threads[i], "storm", storm_main, &storms[i], NULL), SKEP_OK);
    }
    for (int i = 0; i < 4; i++) {
        thread_join(&threads[i]);
        assert_int_equal(storms[i].wrong, 0);
    }
    for (int i = 0; i < 3; i++) {
        struct task_pool_stats stats;

        task_pool_stats(pools[i], &stats);
        assert_int_equal(stats.queued_tasks, 0);
        tasks += stats.tasks;
        for (size_t k = 0; k < fakes[i].batches && k < MAX_BATCHES; k++)
            assert_true(fakes[i].rows[k] <= 8);
    }
    assert_int_equal(tasks, 4 * 400 * 3);
    runtime_free(runtime);
}

/* Everything up to an answered batch of two; false if an allocation failed on the way. */
static bool run_once(void)
{
    struct runtime *runtime = NULL;
    struct fake fake = {0};
    struct task_pool *pool = NULL;
    struct task_pool_config config = {
        .name = "sweep", .work = fake_work, .output_count = 1, .arg = &fake};
    struct call calls[2];
    bool ok = true;

    for (int i = 0; i < 2; i++)
        call_init(&calls[i], 2, (float)i);
    if (runtime_new(&runtime, NULL) != SKEP_OK ||
        task_pool_new(runtime, &config, &pool, NULL) != SKEP_OK) {
        ok = false;
        goto out;
    }
    for (int i = 0; i < 2; i++)
        if (task_pool_submit(pool, &calls[i].task, NULL) != SKEP_OK)
            ok = false;
    if (runtime_start(runtime, NULL) != SKEP_OK) {
        ok = false;
        goto out;
    }
    for (int i = 0; i < 2; i++) {
        WAIT_FOR(calls[i].done == 1);
        ok = ok && calls[i].correct;
    }

out:
    runtime_free(runtime);
    for (int i = 0; i < 2; i++)
        call_fini(&calls[i]);
    return ok;
}

static void every_failed_allocation_is_survived(void **state)
{
    (void)state;
    long n = 1;

    for (bool more = true; more; n++) {
        mem_fail_at(n);
        bool ok = run_once();
        more = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(ok, !more);
        assert_true(n < 200);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_task_is_not_copied),
        cmocka_unit_test(waiting_tasks_are_joined_up_to_the_limit),
        cmocka_unit_test(sixty_four_single_rows_make_one_batch),
        cmocka_unit_test(outputs_that_cannot_be_split_fail_the_batch),
        cmocka_unit_test(start_that_failed_leaves_no_thread_and_may_be_repeated),
        cmocka_unit_test(wrong_row_counts_are_refused),
        cmocka_unit_test(other_shapes_go_in_batches_of_their_own),
        cmocka_unit_test(oldest_pool_goes_first),
        cmocka_unit_test(expired_and_gone_tasks_are_not_worked_on),
        cmocka_unit_test(failed_batch_answers_all_and_the_next_hundred_succeed),
        cmocka_unit_test(wrong_number_of_output_rows_is_an_error),
        cmocka_unit_test(full_queue_refuses_with_a_hint_and_dead_tasks_make_room),
        cmocka_unit_test(rows_and_bytes_in_queues_are_bounded),
        cmocka_unit_test(calls_that_come_while_busy_make_the_next_batch),
        cmocka_unit_test(minimum_batch_goes_as_soon_as_it_is_full),
        cmocka_unit_test(minimum_batch_is_not_waited_for_longer_than_told),
        cmocka_unit_test(draining_ends_the_wait_for_a_minimum_batch),
        cmocka_unit_test(short_work_runs_on_the_submitting_thread),
        cmocka_unit_test(work_that_may_block_never_runs_on_the_submitting_thread),
        cmocka_unit_test(stalled_batch_closes_its_group_and_spares_the_rest),
        cmocka_unit_test(pools_made_after_the_start_are_watched),
        cmocka_unit_test(an_impatient_pool_is_watched_behind_a_patient_one),
        cmocka_unit_test(stop_fails_what_is_queued_and_finishes_what_is_at_work),
        cmocka_unit_test(starts_and_stops_two_hundred_times),
        cmocka_unit_test(many_submitters_each_get_their_own_answers),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };

    cond_init(&changed);
    return cmocka_run_group_tests_name("task_pool", tests, NULL, NULL);
}
