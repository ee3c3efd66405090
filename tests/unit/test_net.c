/* Server and pool over real loopback sockets: what works, and how things end. */
#include "net_fixture.h"
#include "until.h"

static void call_without_tensors_is_echoed(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
    assert_true(w.got_reply);
    assert_true(w.sent);
    assert_int_equal(w.status, SKEP_OK);
    assert_int_equal(w.tensor_count, 0);
    assert_int_equal(w.result_len, 3); /* the params came back */
    assert_int_equal(w.result[1], 7);
    waiter_fini(&w);
    assert_true(pool_peer_rtt_us(f.pool, f.server_id.peer_id) > 0);
    assert_int_equal(pool_peer_rtt_us(f.pool, f.client_id.peer_id), 0);
    fixture_end(&f);
}

static void tensors_come_back_bit_for_bit(void **state, const char *method, size_t count)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    for (size_t i = 0; i < count; i++)
        tensors[i] = floats((int64_t)(i * i * 37), (float)i); /* the first one is empty */
    assert_int_equal(start_call_to(f.pool, &target, method, tensors, count, CLOCK_NEVER, &w, NULL),
                     SKEP_OK);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_OK);
    assert_int_equal(w.tensor_count, count);
    for (size_t i = 0; i < count; i++) {
        size_t bytes, came;
        assert_int_equal(skep_tensor_bytes(&tensors[i]->dl_tensor, &bytes, NULL), SKEP_OK);
        assert_int_equal(skep_tensor_bytes(&w.tensors[i]->dl_tensor, &came, NULL), SKEP_OK);
        assert_int_equal(came, bytes);
        if (bytes > 0)
            assert_memory_equal(skep_tensor_data(&w.tensors[i]->dl_tensor),
                                skep_tensor_data(&tensors[i]->dl_tensor), bytes);
        skep_tensor_free(tensors[i]);
    }
    waiter_fini(&w);
    fixture_end(&f);
}

static void tensors_are_echoed_from_another_thread(void **state)
{
    tensors_come_back_bit_for_bit(state, "echo", MESSAGE_MAX_TENSORS);
}

static void tensors_are_echoed_on_the_loop(void **state)
{
    tensors_come_back_bit_for_bit(state, "inline", 3);
}

static void large_and_small_calls_interleave(void **state)
{
    (void)state;
    enum { SMALL = 200, LARGE_FLOATS = 8 << 20 };
    struct fixture f;
    struct waiter large;
    static struct waiter small[SMALL];
    DLManagedTensor *tensor = floats(LARGE_FLOATS, 0);

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&large);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "echo", &tensor, 1, CLOCK_NEVER, &large, NULL),
                     SKEP_OK);
    for (int i = 0; i < SMALL; i++) {
        waiter_init(&small[i]);
        start_plain(&f, i % 2 == 0 ? "echo" : "inline", &small[i]);
    }
    for (int i = 0; i < SMALL; i++) {
        waiter_wait(&small[i]);
        assert_int_equal(small[i].status, SKEP_OK);
        waiter_fini(&small[i]);
    }
    waiter_wait(&large);
    assert_int_equal(large.status, SKEP_OK);
    assert_memory_equal(skep_tensor_data(&large.tensors[0]->dl_tensor),
                        skep_tensor_data(&tensor->dl_tensor), LARGE_FLOATS * sizeof(float));
    waiter_fini(&large);
    skep_tensor_free(tensor);

    struct server_counters c;
    server_counters(f.server, &c);
    assert_int_equal(c.connections_open, 1); /* all of it went over one */
    assert_int_equal(c.calls, SMALL + 1);
    assert_true(c.bytes_in > LARGE_FLOATS * sizeof(float));
    assert_true(c.bytes_out > LARGE_FLOATS * sizeof(float));
    fixture_end(&f);
}

static void refusal_and_failure_carry_status_sentence_and_hint(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    call_target(f.pool, &target, "refuse", CLOCK_NEVER, &w);
    assert_true(w.got_reply);
    assert_int_equal(w.status, SKEP_RESOURCE_EXHAUSTED);
    assert_string_equal(w.message, "the queue is full");
    assert_int_equal(w.retry_after_ms, 70);
    waiter_fini(&w);
    call_target(f.pool, &target, "fail", CLOCK_NEVER, &w);
    assert_int_equal(w.status, SKEP_NOT_FOUND);
    assert_string_equal(w.message, "expert ffn.9: not here");
    waiter_fini(&w);
    fixture_end(&f);
    assert_int_equal(f.started, 1); /* the refused call never became one */
}

static void message_over_our_own_limits_is_refused_unsent(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    DLManagedTensor *tensor = floats(1000, 0);

    fixture_init(&f);
    f.pool_config.limits.message.max_message_bytes = 3999;
    fixture_start(&f);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "echo", &tensor, 1, CLOCK_NEVER, &w, NULL),
                     SKEP_OK);
    waiter_wait(&w);
    assert_false(w.got_reply);
    assert_false(w.sent);
    assert_int_equal(w.status, SKEP_INVALID_ARGUMENT);
    waiter_fini(&w);
    skep_tensor_free(tensor);
    assert_serves(&f);
    fixture_end(&f);
}

static void cancelled_call_ends_at_once_and_tells_the_server(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct pool_call *call;

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "hold", NULL, 0, CLOCK_NEVER, &w, &call),
                     SKEP_OK);
    wait_count(&f, &f.held_count, 1);
    pool_cancel(f.pool, call);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_CANCELLED);
    assert_true(w.sent);
    wait_count(&f, &f.finished, 1);
    release_held(&f); /* a late answer: only frees */
    wait_count(&f, &f.gone_seen, 1);
    assert_serves(&f);
    assert_int_equal(waiter_done(&w), 1);
    waiter_fini(&w);
    fixture_end(&f);
}

/* What prepares a request, and waits while told so. */
static struct {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool hold;
    unsigned begun;
    char thread[16];
} preparing = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void prepare_slowly(void *arg, struct server_call *call)
{
    (void)arg;
    pthread_mutex_lock(&preparing.lock);
    preparing.begun++;
    snprintf(preparing.thread, sizeof(preparing.thread), "%s", thread_name());
    pthread_cond_broadcast(&preparing.changed);
    while (preparing.hold && server_call_headers(call)->tensor_count > 0)
        pthread_cond_wait(&preparing.changed, &preparing.lock);
    pthread_mutex_unlock(&preparing.lock);
}

static void hold_preparing(bool hold)
{
    pthread_mutex_lock(&preparing.lock);
    preparing.hold = hold;
    preparing.begun = 0;
    pthread_cond_broadcast(&preparing.changed);
    pthread_mutex_unlock(&preparing.lock);
}

static void await_preparing(void)
{
    pthread_mutex_lock(&preparing.lock);
    while (preparing.begun == 0)
        pthread_cond_wait(&preparing.changed, &preparing.lock);
    pthread_mutex_unlock(&preparing.lock);
}

/* The thread that prepared last. */
static void read_preparer(char thread[static 16])
{
    pthread_mutex_lock(&preparing.lock);
    memcpy(thread, preparing.thread, sizeof(preparing.thread));
    pthread_mutex_unlock(&preparing.lock);
}

static void large_request_is_prepared_off_the_loop(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    char thread[16];
    DLManagedTensor *large = floats(1 << 20, 1);

    fixture_init(&f);
    f.config.io_threads = 1;
    f.config.handlers.prepare = prepare_slowly;
    fixture_start(&f);
    hold_preparing(false);
    assert_serves(&f);
    read_preparer(thread);
    assert_string_equal(thread, "skep-io-0"); /* a small one, where it arrives */

    hold_preparing(true);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "echo", &large, 1, CLOCK_NEVER, &w, NULL),
                     SKEP_OK);
    await_preparing();
    read_preparer(thread);
    assert_int_equal(strncmp(thread, "skep-codec", 10), 0);
    assert_int_equal(read_count(&f, &f.completed), 1);
    assert_serves(&f); /* the loop is free */
    assert_int_equal(waiter_done(&w), 0);
    hold_preparing(false);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_OK);
    assert_int_equal(w.tensor_count, 1);
    assert_memory_equal(skep_tensor_data(&w.tensors[0]->dl_tensor),
                        skep_tensor_data(&large->dl_tensor), sizeof(float) << 20);
    waiter_fini(&w);
    fixture_end(&f);
    skep_tensor_free(large);
}

static void caller_that_leaves_while_its_request_is_prepared_is_gone(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    struct pool_call *call;
    DLManagedTensor *large = floats(1 << 20, 1);

    fixture_init(&f);
    f.config.io_threads = 1;
    f.config.handlers.prepare = prepare_slowly;
    fixture_start(&f);
    hold_preparing(true);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "echo", &large, 1, CLOCK_NEVER, &w, &call),
                     SKEP_OK);
    await_preparing();
    pool_cancel(f.pool, call);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_CANCELLED);
    assert_serves(&f); /* over the same connection, behind the cancellation */
    wait_count(&f, &f.finished, 1);
    assert_int_equal(read_count(&f, &f.finished), 1); /* the other's: never beside `prepare` */
    hold_preparing(false);
    wait_count(&f, &f.finished, 2);
    assert_int_equal(read_count(&f, &f.completed), 1);
    waiter_fini(&w);
    fixture_end(&f);
    skep_tensor_free(large);
}

static void request_whose_caller_has_left_is_not_prepared(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w[2];
    struct pool_call *second;
    struct server_counters counters;
    DLManagedTensor *large = floats(2 << 20, 1); /* only one thread takes such ones */

    fixture_init(&f);
    f.config.io_threads = 1;
    f.config.handlers.prepare = prepare_slowly;
    fixture_start(&f);
    hold_preparing(true);
    struct pool_target target = target_of(&f);
    waiter_init(&w[0]);
    assert_int_equal(start_call_to(f.pool, &target, "echo", &large, 1, CLOCK_NEVER, &w[0], NULL),
                     SKEP_OK);
    await_preparing();
    waiter_init(&w[1]);
    assert_int_equal(start_call_to(f.pool, &target, "hold", &large, 1, CLOCK_NEVER, &w[1], &second),
                     SKEP_OK);
    do { /* until all of it has come */
        assert_serves(&f);
        server_counters(f.server, &counters);
    } while (counters.bytes_in < 2 * sizeof(float) * (2 << 20));
    pool_cancel(f.pool, second);
    waiter_wait(&w[1]);
    assert_int_equal(w[1].status, SKEP_CANCELLED);
    assert_serves(&f); /* behind the cancellation */
    hold_preparing(false);
    waiter_wait(&w[0]);
    assert_int_equal(w[0].status, SKEP_OK);
    waiter_fini(&w[0]);
    waiter_fini(&w[1]);
    fixture_end(&f);
    skep_tensor_free(large);
    assert_int_equal(preparing.begun, 0); /* since it was held: not the one that was cancelled */
    assert_int_equal(f.held_count, 0);
}

static void deadline_ends_the_call_and_frees_the_server(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    fixture_start(&f);
    assert_serves(&f);
    struct pool_target target = target_of(&f);
    call_target(f.pool, &target, "hold", clock_deadline_us(50), &w);
    assert_false(w.got_reply);
    assert_int_equal(w.status, SKEP_DEADLINE_EXCEEDED);
    assert_true(w.sent);
    assert_non_null(strstr(w.message, "hold"));
    waiter_fini(&w);
    wait_count(&f, &f.finished, 2);
    assert_serves(&f);
    call_target(f.pool, &target, "echo", clock_mono_us(), &w); /* over before it began */
    assert_int_equal(w.status, SKEP_DEADLINE_EXCEEDED);
    assert_false(w.sent);
    waiter_fini(&w);
    fixture_end(&f);
}

static void server_death_ends_calls_as_unavailable_and_sent(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&w);
    start_plain(&f, "hold", &w);
    wait_count(&f, &f.held_count, 1);
    server_stop(f.server);
    waiter_wait(&w);
    assert_false(w.got_reply);
    assert_int_equal(w.status, SKEP_UNAVAILABLE);
    assert_true(w.sent);
    waiter_fini(&w);
    assert_int_equal(read_count(&f, &f.finished), 1); /* before server_stop() returned, in fact */
    fixture_end(&f);
}

static void pool_free_cancels_what_is_open(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter open, waiting;

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&open);
    waiter_init(&waiting);
    start_plain(&f, "hold", &open);
    wait_count(&f, &f.held_count, 1);
    start_plain(&f, "echo", &waiting);
    pool_free(f.pool);
    f.pool = NULL;
    assert_int_equal(open.done, 1);
    assert_int_equal(open.status, SKEP_CANCELLED);
    assert_int_equal(waiting.done, 1); /* with whatever came first */
    waiter_fini(&open);
    waiter_fini(&waiting);
    fixture_end(&f);
}

static void drain_lets_open_calls_end_and_takes_no_new_ones(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter open, late;

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&open);
    start_plain(&f, "hold", &open);
    wait_count(&f, &f.held_count, 1);
    assert_false(server_wait_idle(f.server, clock_mono_us()));
    server_drain(f.server, "going home");
    server_drain(f.server, "twice is once");

    /* The loops take it up in their own time; calls that are there first are still served. */
    struct pool_target target = target_of(&f);
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    do {
        call_target(f.pool, &target, "echo", CLOCK_NEVER, &late);
        waiter_fini(&late);
    } while (late.status == SKEP_OK && clock_mono_us() < deadline);
    assert_int_equal(late.status, SKEP_UNAVAILABLE);
    assert_int_equal(waiter_done(&open), 0);
    release_held(&f);
    assert_true(server_wait_idle(f.server, clock_deadline_us(PATIENCE_MS)));
    server_stop(f.server);
    waiter_wait(&open);
    assert_true(open.got_reply); /* not lost by stopping right after */
    assert_int_equal(open.status, SKEP_OK);
    waiter_fini(&open);
    fixture_end(&f);
}

static void large_reply_is_whole_when_the_server_has_become_idle(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;
    DLManagedTensor *tensor = floats(4 << 20, 1);

    fixture_init(&f);
    fixture_start(&f);
    waiter_init(&w);
    struct pool_target target = target_of(&f);
    assert_int_equal(start_call_to(f.pool, &target, "hold", &tensor, 1, CLOCK_NEVER, &w, NULL),
                     SKEP_OK);
    wait_count(&f, &f.held_count, 1);
    server_drain(f.server, NULL);
    release_held(&f);
    assert_true(server_wait_idle(f.server, clock_deadline_us(PATIENCE_MS)));
    server_stop(f.server);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_OK);
    assert_int_equal(w.tensor_count, 1);
    waiter_fini(&w);
    skep_tensor_free(tensor);
    fixture_end(&f);
}

static void restarted_server_is_reached_again(void **state)
{
    (void)state;
    struct fixture f;

    fixture_init(&f);
    fixture_start(&f);
    assert_serves(&f);
    for (int i = 0; i < 5; i++) {
        struct waiter w;
        struct pool_target target = target_of(&f);
        server_free(f.server);
        f.config.listen.port = f.endpoint.port; /* at once, though connections were open */
        start_server(&f);
        /* What goes out before the end of the connection is known is lost with it, and told. */
        call_target(f.pool, &target, "echo", CLOCK_NEVER, &w);
        if (w.status != SKEP_OK)
            assert_true(w.status == SKEP_UNAVAILABLE && w.sent);
        waiter_fini(&w);
        assert_serves(&f);
    }
    fixture_end(&f);
}

static void server_counts_each_call_once_under_parallel_load(void **state)
{
    (void)state;
    enum { CALLS = 3000 };
    struct fixture f;
    static struct waiter w[CALLS];
    DLManagedTensor *tensor = floats(256, 0);

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    for (int i = 0; i < CALLS; i++) {
        waiter_init(&w[i]);
        /* More than max_streams are allowed to wait, not without limit: so keep below. */
        if (i >= 1000)
            waiter_wait(&w[i - 1000]);
        assert_int_equal(start_call_to(f.pool, &target, i % 3 == 0 ? "inline" : "echo", &tensor, 1,
                                       clock_deadline_us(PATIENCE_MS), &w[i], NULL),
                         SKEP_OK);
    }
    for (int i = 0; i < CALLS; i++) {
        waiter_wait(&w[i]);
        assert_int_equal(w[i].status, SKEP_OK);
        waiter_fini(&w[i]);
    }
    skep_tensor_free(tensor);
    fixture_end(&f);
    assert_int_equal(f.started, CALLS);
    assert_int_equal(f.completed, CALLS);
    assert_int_equal(f.finished, CALLS);
}

static void starts_and_stops_leave_no_thread_or_descriptor(void **state)
{
    (void)state;
    enum { CYCLES = 50 };
    struct fixture f;
    unsigned fds = 0, threads = 0;

    for (int i = 0; i < CYCLES; i++) {
        fixture_init(&f);
        fixture_start(&f);
        assert_serves(&f);
        fixture_end(&f);
        if (i == 0) { /* libuv and the C library keep a few of their own after the first use */
            fds = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
        }
    }
    assert_int_equal(count_entries("/proc/self/fd"), fds);
    /* A thread that has been joined may be listed for a moment longer, also when first counted. */
    assert_true(UNTIL(count_entries("/proc/self/task") <= threads, 20000));
}

/* Each construction either succeeds or says that memory is short, and leaves nothing behind. */
static void failing_allocations_are_errors(void **state)
{
    (void)state;
    struct fixture f;
    long nth = 0;
    bool failed;

    fixture_init(&f);
    do {
        mem_fail_at(++nth);
        skep_status rc = server_new(&f.config, &f.server, NULL);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, failed ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK);
    } while (failed);
    server_endpoint(f.server, &f.endpoint);
    nth = 0;
    do {
        mem_fail_at(++nth);
        skep_status rc = pool_new(&f.pool_config, &f.pool, NULL);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, failed ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK);
    } while (failed);
    assert_int_equal(thread_start(&f.worker, "worker", work, &f, NULL), SKEP_OK);
    assert_serves(&f);
    fixture_end(&f);
}

/* Any allocation of a call may fail, on either side: the call ends, once, and the next one works.
 */
static void failing_allocation_ends_one_call_at_most(void **state)
{
    (void)state;
    enum { SWEEP = 120 };
    struct fixture f;
    DLManagedTensor *tensor = floats(100, 0);

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    for (long nth = 1; nth <= SWEEP; nth++) {
        struct waiter w;
        waiter_init(&w);
        mem_fail_at(nth);
        skep_status rc = start_call_to(f.pool, &target, nth % 2 == 0 ? "echo" : "inline", &tensor,
                                       1, clock_deadline_us(PATIENCE_MS), &w, NULL);
        if (rc == SKEP_OK)
            waiter_wait(&w);
        else
            assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        mem_fail_at(0);
        waiter_fini(&w);
        assert_serves(&f);
        if (nth % 10 == 0) { /* with a connection to be made, too */
            pool_free(f.pool);
            assert_int_equal(pool_new(&f.pool_config, &f.pool, NULL), SKEP_OK);
        }
    }
    skep_tensor_free(tensor);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(call_without_tensors_is_echoed),
        cmocka_unit_test(tensors_are_echoed_from_another_thread),
        cmocka_unit_test(tensors_are_echoed_on_the_loop),
        cmocka_unit_test(large_and_small_calls_interleave),
        cmocka_unit_test(refusal_and_failure_carry_status_sentence_and_hint),
        cmocka_unit_test(message_over_our_own_limits_is_refused_unsent),
        cmocka_unit_test(cancelled_call_ends_at_once_and_tells_the_server),
        cmocka_unit_test(large_request_is_prepared_off_the_loop),
        cmocka_unit_test(caller_that_leaves_while_its_request_is_prepared_is_gone),
        cmocka_unit_test(request_whose_caller_has_left_is_not_prepared),
        cmocka_unit_test(deadline_ends_the_call_and_frees_the_server),
        cmocka_unit_test(server_death_ends_calls_as_unavailable_and_sent),
        cmocka_unit_test(pool_free_cancels_what_is_open),
        cmocka_unit_test(drain_lets_open_calls_end_and_takes_no_new_ones),
        cmocka_unit_test(large_reply_is_whole_when_the_server_has_become_idle),
        cmocka_unit_test(restarted_server_is_reached_again),
        cmocka_unit_test(server_counts_each_call_once_under_parallel_load),
        cmocka_unit_test(starts_and_stops_leave_no_thread_or_descriptor),
        cmocka_unit_test(failing_allocations_are_errors),
        cmocka_unit_test(failing_allocation_ends_one_call_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
