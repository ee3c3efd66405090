/* Batches of several experts at the same time: who may pass whom, and what waiting tasks see. */
#include "runtime_fixture.h"

#include <stdio.h>
#include <string.h>

#include <skep/log.h>

enum {
    SIDES = 3,
    HOUR_US_LOW = 3600000, /* times 1000: longer than any test */
};

static struct runtime *new_lanes(unsigned side_lanes)
{
    struct runtime *runtime = new_runtime();

    runtime_set_lanes(runtime, 2, side_lanes);
    return runtime;
}

static bool is_done(struct call *call)
{
    pthread_mutex_lock(&lock);
    bool done = call->done > 0;
    pthread_mutex_unlock(&lock);
    return done;
}

static void blocked_batches_let_others_pass(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(SIDES);
    struct fake blocked[SIDES] = {
        {.id = 1, .hold = true}, {.id = 2, .hold = true}, {.id = 3, .hold = true}};
    struct fake other = {.id = 9};
    struct call calls[SIDES + 1];

    start(runtime);
    for (size_t i = 0; i < SIDES; i++) {
        call_init(&calls[i], 1, (float)i);
        submit(new_pool(runtime, &blocked[i], (struct task_pool_config){0}), &calls[i]);
        WAIT_FOR(blocked[i].held == 1);
    }
    call_init(&calls[SIDES], 1, 5);
    submit(new_pool(runtime, &other, (struct task_pool_config){0}), &calls[SIDES]);
    WAIT_FOR(calls[SIDES].done == 1);
    assert_true(calls[SIDES].correct);
    for (size_t i = 0; i < SIDES; i++) {
        assert_false(is_done(&calls[i]));
        set_hold(&blocked[i], false);
        WAIT_FOR(calls[i].done == 1);
        assert_true(calls[i].correct);
    }
    runtime_free(runtime);
    for (size_t i = 0; i <= SIDES; i++)
        call_fini(&calls[i]);
}

static void pools_of_one_group_never_work_at_once(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(SIDES);
    struct fake first = {.id = 1, .hold = true};
    struct fake sibling = {.id = 2};
    struct fake other = {.id = 3};
    struct task_pool_config group = {.exclusive = &first};
    struct call calls[3];

    for (size_t i = 0; i < 3; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(new_pool(runtime, &first, group), &calls[0]);
    WAIT_FOR(first.held == 1);
    submit(new_pool(runtime, &sibling, group), &calls[1]);
    submit(new_pool(runtime, &other, (struct task_pool_config){0}), &calls[2]);
    WAIT_FOR(calls[2].done == 1);
    assert_false(is_done(&calls[1]));
    assert_int_equal(sibling.batches, 0);
    set_hold(&first, false);
    WAIT_FOR(calls[0].done == 1 && calls[1].done == 1);
    assert_true(sibling.started_us >= first.ended_us);
    runtime_free(runtime);
    for (size_t i = 0; i < 3; i++)
        call_fini(&calls[i]);
}

/* A group whose one pool works in a side lane goes on when that ends, though the main lane was free
 * all the time. */
static void group_goes_on_when_its_side_batch_ends(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(1);
    struct fake main_lane = {.id = 1, .hold = true};
    struct fake side = {.id = 2, .hold = true};
    struct fake sibling = {.id = 3};
    struct task_pool_config group = {.exclusive = &side};
    struct call calls[3];

    for (size_t i = 0; i < 3; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(new_pool(runtime, &main_lane, (struct task_pool_config){0}), &calls[0]);
    WAIT_FOR(main_lane.held == 1);
    submit(new_pool(runtime, &side, group), &calls[1]);
    WAIT_FOR(side.held == 1);
    set_hold(&main_lane, false);
    WAIT_FOR(calls[0].done == 1);
    submit(new_pool(runtime, &sibling, group), &calls[2]);
    set_hold(&side, false);
    WAIT_FOR(calls[1].done == 1 && calls[2].done == 1);
    assert_true(sibling.started_us >= side.ended_us);
    runtime_free(runtime);
    for (size_t i = 0; i < 3; i++)
        call_fini(&calls[i]);
}

/* Long batches follow one another, whatever the machine's load makes of their times. */
static void long_batches_do_not_pass_long_ones(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(SIDES);
    struct fake fakes[2] = {{.id = 1, .work_us = 20000}, {.id = 2, .work_us = 20000}};
    struct task_pool *pools[2];
    struct call calls[4];

    start(runtime);
    for (size_t i = 0; i < 2; i++) {
        pools[i] = new_pool(runtime, &fakes[i], (struct task_pool_config){0});
        call_init(&calls[i], 1, (float)i);
        submit(pools[i], &calls[i]);
        WAIT_FOR(calls[i].done == 1); /* measured: 20 ms or more */
    }
    for (size_t i = 0; i < 2; i++) {
        call_init(&calls[2 + i], 1, (float)i);
        submit(pools[i], &calls[2 + i]);
    }
    WAIT_FOR(calls[2].done == 1 && calls[3].done == 1);
    assert_true(fakes[1].started_us >= fakes[0].ended_us ||
                fakes[1].started_us - fakes[0].started_us >= 8 * fakes[1].work_us);
    runtime_free(runtime);
    for (size_t i = 0; i < 4; i++)
        call_fini(&calls[i]);
}

static void short_work_passes_on_the_submitting_thread(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(SIDES);
    struct fake blocked = {.id = 1, .hold = true};
    struct fake quick = {.id = 2};
    struct task_pool *pool =
        new_pool(runtime, &quick, (struct task_pool_config){.may_run_inline = true});
    struct call call;
    struct call long_call;
    struct runtime_stats stats;
    uint64_t deadline = clock_deadline_us(WAIT_MS);
    bool was_here = false;

    start(runtime);
    call_init(&long_call, 1, 1);
    submit(new_pool(runtime, &blocked, (struct task_pool_config){0}), &long_call);
    WAIT_FOR(blocked.held == 1);
    while (!was_here && clock_mono_us() < deadline) {
        call_init(&call, 1, 2);
        submit(pool, &call);
        WAIT_FOR(call.done == 1);
        was_here = pthread_equal(call.thread, pthread_self());
        call_fini(&call);
    }
    assert_true(was_here);
    runtime_stats(runtime, &stats);
    assert_true(stats.inline_batches > 0 && stats.side_batches > 0);
    set_hold(&blocked, false);
    runtime_free(runtime);
    call_fini(&long_call);
}

static void deadline_passes_behind_a_running_batch(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(0);
    struct fake blocked = {.id = 1, .hold = true};
    struct task_pool *pool = new_pool(runtime, &blocked, (struct task_pool_config){0});
    struct call calls[3];
    struct task_pool_stats stats;

    for (size_t i = 0; i < 3; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(pool, &calls[0]);
    WAIT_FOR(blocked.held == 1);
    submit(pool, &calls[1]);
    calls[2].task.deadline_us = clock_deadline_us(20);
    submit(pool, &calls[2]);
    WAIT_FOR(calls[2].done == 1);
    assert_int_equal(calls[2].status, SKEP_DEADLINE_EXCEEDED);
    assert_false(calls[2].task.was_worked);
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.queued_tasks, 1);
    assert_int_equal(stats.expired, 1);
    assert_false(is_done(&calls[0]));
    set_hold(&blocked, false);
    WAIT_FOR(calls[0].done == 1 && calls[1].done == 1);
    assert_true(calls[1].correct);
    runtime_free(runtime);
    for (size_t i = 0; i < 3; i++)
        call_fini(&calls[i]);
}

static void deadline_passes_while_rows_are_missing(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(SIDES);
    struct fake fake = {.id = 1};
    struct task_pool *pool =
        new_pool(runtime, &fake,
                 (struct task_pool_config){.min_batch_size = 2,
                                           .batch_timeout_us = HOUR_US_LOW * UINT64_C(1000)});
    struct call call;

    start(runtime);
    call_init(&call, 1, 1);
    call.task.deadline_us = clock_deadline_us(20);
    submit(pool, &call);
    WAIT_FOR(call.done == 1);
    assert_int_equal(call.status, SKEP_DEADLINE_EXCEEDED);
    assert_int_equal(fake.batches, 0);
    runtime_free(runtime);
    call_fini(&call);
}

static void caller_that_leaves_frees_its_place(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(0);
    struct fake blocked = {.id = 1, .hold = true};
    struct task_pool *pool =
        new_pool(runtime, &blocked, (struct task_pool_config){.max_queued_tasks = 3});
    struct call calls[5];
    struct task_pool_stats stats;
    struct skep_error err;

    for (size_t i = 0; i < 5; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(pool, &calls[0]);
    WAIT_FOR(blocked.held == 1);
    for (size_t i = 1; i < 4; i++)
        submit(pool, &calls[i]);
    assert_int_equal(task_pool_submit(pool, &calls[4].task, &err), SKEP_RESOURCE_EXHAUSTED);

    task_pool_withdraw(pool, &calls[3].task); /* the last, the first, one at work */
    task_pool_withdraw(pool, &calls[1].task);
    task_pool_withdraw(pool, &calls[0].task);
    for (size_t i = 1; i < 4; i += 2) {
        assert_int_equal(calls[i].done, 1);
        assert_int_equal(calls[i].status, SKEP_CANCELLED);
    }
    assert_false(is_done(&calls[0]));
    task_pool_stats(pool, &stats);
    assert_int_equal(stats.queued_tasks, 1);
    assert_int_equal(stats.cancelled, 2);
    submit(pool, &calls[4]);

    set_hold(&blocked, false);
    WAIT_FOR(calls[0].done == 1 && calls[2].done == 1 && calls[4].done == 1);
    assert_true(calls[0].correct && calls[2].correct && calls[4].correct);
    task_pool_withdraw(pool, &calls[0].task); /* nothing happens to one that is done */
    assert_int_equal(calls[0].done, 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 5; i++)
        call_fini(&calls[i]);
}

static void stalled_side_batch_gives_its_lane_to_another(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(1);
    struct fake patient = {.id = 1, .hold = true};
    struct fake stuck = {.id = 2, .hold = true};
    struct fake other = {.id = 3};
    struct task_pool *stuck_pool;
    struct call calls[4];
    struct runtime_stats stats;

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    for (size_t i = 0; i < 4; i++)
        call_init(&calls[i], 1, (float)i);
    start(runtime);
    submit(new_pool(runtime, &patient, (struct task_pool_config){0}), &calls[0]);
    WAIT_FOR(patient.held == 1);
    stuck_pool = new_pool(runtime, &stuck, (struct task_pool_config){.stall_timeout_us = 200000});
    submit(stuck_pool, &calls[1]);
    WAIT_FOR(stuck.stalled == 1);
    submit(new_pool(runtime, &other, (struct task_pool_config){0}), &calls[2]);
    WAIT_FOR(calls[2].done == 1);
    assert_true(calls[2].correct);
    runtime_stats(runtime, &stats);
    assert_int_equal(stats.stalled_batches, 1);

    set_hold(&stuck, false);
    WAIT_FOR(stuck.recovered == 1 && calls[1].done == 1);
    submit(stuck_pool, &calls[3]);
    WAIT_FOR(calls[3].done == 1);
    assert_true(calls[3].correct);
    assert_false(is_done(&calls[0]));
    set_hold(&patient, false);
    WAIT_FOR(calls[0].done == 1);
    runtime_free(runtime);
    for (size_t i = 0; i < 4; i++)
        call_fini(&calls[i]);
}

static void stop_waits_for_side_batches(void **state)
{
    (void)state;
    struct runtime *runtime = new_lanes(1);
    struct fake fakes[2] = {{.id = 1, .hold = true}, {.id = 2, .hold = true}};
    struct call calls[2];

    start(runtime);
    for (size_t i = 0; i < 2; i++) {
        call_init(&calls[i], 1, (float)i);
        submit(new_pool(runtime, &fakes[i], (struct task_pool_config){0}), &calls[i]);
        WAIT_FOR(fakes[i].held == 1);
    }
    assert_false(runtime_is_idle(runtime));
    set_hold(&fakes[0], false);
    assert_false(runtime_stop(runtime, clock_deadline_us(50)));
    assert_false(is_done(&calls[1]));
    set_hold(&fakes[1], false);
    assert_true(runtime_stop(runtime, CLOCK_NEVER));
    assert_true(is_done(&calls[0]) && is_done(&calls[1]));
    assert_true(runtime_is_idle(runtime));
    runtime_free(runtime);
    for (size_t i = 0; i < 2; i++)
        call_fini(&calls[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocked_batches_let_others_pass),
        cmocka_unit_test(pools_of_one_group_never_work_at_once),
        cmocka_unit_test(group_goes_on_when_its_side_batch_ends),
        cmocka_unit_test(long_batches_do_not_pass_long_ones),
        cmocka_unit_test(short_work_passes_on_the_submitting_thread),
        cmocka_unit_test(deadline_passes_behind_a_running_batch),
        cmocka_unit_test(deadline_passes_while_rows_are_missing),
        cmocka_unit_test(caller_that_leaves_frees_its_place),
        cmocka_unit_test(stalled_side_batch_gives_its_lane_to_another),
        cmocka_unit_test(stop_waits_for_side_batches),
    };

    cond_init(&changed);
    return cmocka_run_group_tests_name("lanes", tests, NULL, NULL);
}
