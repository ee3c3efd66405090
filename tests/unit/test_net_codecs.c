/* Encoded tensors between server and pool: decoded on arrival, and never for a peer that does not
 * take them. */
#include "net_fixture.h"

#include <math.h>

#include "net/pool_internal.h"
#include "wire/tensor_codec.h"

enum { NUMBERS = 10000 };

struct exchange {
    struct fixture f;
    struct waiter w;
    DLManagedTensor *plain;   /* owned */
    DLManagedTensor *encoded; /* owned */
    struct server_counters counters;
};

static void exchange_init(struct exchange *x)
{
    fixture_init(&x->f);
    x->plain = floats(NUMBERS, -5000.0f);
    x->encoded = NULL;
}

/* Sends the tensor in one encoding and asks for it back in another (ENCODING_COUNT: does not ask).
 */
static void exchange_run(struct exchange *x, const char *method, enum tensor_encoding encoding,
                         enum tensor_encoding wished)
{
    struct call_headers headers = {.tensor_count = 1};
    struct pool_target target;
    enum tensor_encoded how;

    fixture_start(&x->f);
    target = target_of(&x->f);
    waiter_init(&x->w);
    snprintf(headers.method, sizeof(headers.method), "%s", method);
    headers.has_reply_encoding = wished != ENCODING_COUNT;
    headers.reply_encoding = wished;
    assert_int_equal(
        tensor_encode(&x->plain->dl_tensor, encoding, &headers.tensors[0], &how, &x->encoded, NULL),
        SKEP_OK);
    const DLTensor *plain = &x->plain->dl_tensor;
    const DLTensor *sent = x->encoded != NULL ? &x->encoded->dl_tensor : plain;
    assert_int_equal(pool_call_encoded(x->f.pool, &target, &headers, &sent, &plain, CLOCK_NEVER,
                                       NULL, on_done, &x->w, NULL, NULL),
                     SKEP_OK);
    waiter_wait(&x->w);
    server_stop(x->f.server); /* what has been sent has been counted then */
    server_counters(x->f.server, &x->counters);
}

static void exchange_end(struct exchange *x)
{
    waiter_fini(&x->w);
    skep_tensor_free(x->plain);
    skep_tensor_free(x->encoded);
    fixture_end(&x->f);
}

/* The reply is the tensor that was sent, F32 again, with errors up to the bound. */
static void expect_back(const struct exchange *x, double bound)
{
    assert_int_equal(x->w.status, SKEP_OK);
    assert_int_equal(x->w.tensor_count, 1);
    const DLTensor *back = &x->w.tensors[0]->dl_tensor;
    assert_true(dtype_equal(back->dtype, DTYPE_F32));
    assert_int_equal(back->ndim, 1);
    assert_int_equal(back->shape[0], NUMBERS);
    const float *got = skep_tensor_data(back);
    const float *want = skep_tensor_data(&x->plain->dl_tensor);
    for (size_t i = 0; i < NUMBERS; i++)
        if (!(fabs((double)got[i] - (double)want[i]) <= bound) &&
            !(bound == 0.0 && memcmp(&got[i], &want[i], sizeof(float)) == 0))
            fail_msg("[%zu]: %g, expected %g", i, (double)got[i], (double)want[i]);
}

static void encoded_tensors_arrive_decoded_both_ways(void **state)
{
    (void)state;
    for (int e = ENCODING_FLOAT16; e < ENCODING_COUNT; e++)
        for (int direct = 0; direct < 2; direct++) {
            struct exchange x;
            exchange_init(&x);
            exchange_run(&x, direct != 0 ? "inline" : "echo", (enum tensor_encoding)e,
                         (enum tensor_encoding)e);
            expect_back(&x, 60.0);
            assert_true(x.counters.bytes_in < NUMBERS * 3);
            assert_true(x.counters.bytes_out < NUMBERS * 3);
            assert_int_equal(x.counters.not_encoded, 0);
            exchange_end(&x);
        }
}

static void the_two_ways_may_differ(void **state)
{
    struct exchange x;

    (void)state;
    exchange_init(&x);
    exchange_run(&x, "echo", ENCODING_NONE, ENCODING_BLOCKWISE8);
    expect_back(&x, 5000.0 / 254 + 1e-2);
    assert_true(x.counters.bytes_in > NUMBERS * 4);
    assert_true(x.counters.bytes_out < NUMBERS * 2);
    exchange_end(&x);
    exchange_init(&x);
    exchange_run(&x, "echo", ENCODING_FLOAT16, ENCODING_NONE);
    expect_back(&x, 2.0);
    assert_true(x.counters.bytes_in < NUMBERS * 3);
    assert_true(x.counters.bytes_out > NUMBERS * 4);
    exchange_end(&x);
}

static void a_server_that_takes_no_encodings_gets_plain_tensors(void **state)
{
    struct exchange x;

    (void)state;
    exchange_init(&x);
    x.f.config.limits.message.refused_encodings = PROTOCOL_FEATURES;
    exchange_run(&x, "echo", ENCODING_QUANTILE8, ENCODING_COUNT);
    expect_back(&x, 0.0);
    assert_true(x.counters.bytes_in > NUMBERS * 4);
    exchange_end(&x);
}

static void a_caller_that_takes_no_encodings_gets_plain_tensors(void **state)
{
    struct exchange x;

    (void)state;
    exchange_init(&x);
    x.f.pool_config.limits.message.refused_encodings = PROTOCOL_FEATURES;
    exchange_run(&x, "echo", ENCODING_NONE, ENCODING_UNIFORM8);
    expect_back(&x, 0.0);
    exchange_end(&x);
}

static void replies_that_are_not_finite_travel_as_float32_and_are_counted(void **state)
{
    struct exchange x;

    (void)state;
    exchange_init(&x);
    ((float *)x.plain->dl_tensor.data)[NUMBERS / 2] = NAN;
    exchange_run(&x, "echo", ENCODING_MEANSTD16, ENCODING_MEANSTD16);
    assert_null(x.encoded);
    expect_back(&x, 0.0);
    assert_int_equal(x.counters.not_encoded, 1);
    exchange_end(&x);
}

static void limits_hold_for_what_it_decodes_to(void **state)
{
    struct exchange x;

    (void)state;
    exchange_init(&x);
    x.f.config.limits.message.max_message_bytes = NUMBERS * 4 - 1;
    exchange_run(&x, "echo", ENCODING_BLOCKWISE8, ENCODING_COUNT);
    assert_int_equal(x.w.status, SKEP_INVALID_ARGUMENT);
    exchange_end(&x);
    exchange_init(&x);
    x.f.pool_config.limits.message.max_message_bytes = NUMBERS * 4 - 1;
    exchange_run(&x, "echo", ENCODING_BLOCKWISE8, ENCODING_COUNT);
    assert_int_equal(x.w.status, SKEP_INVALID_ARGUMENT);
    assert_false(x.w.got_reply);
    exchange_end(&x);
}

/* ---- Large replies, which other threads decode ---- */

/* Holds the thread that decodes large replies, until release_decoding(). */
struct blocker {
    struct offload_job job;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    bool begun, released;
};

static void block(struct offload_job *job)
{
    struct blocker *b = (struct blocker *)((char *)job - offsetof(struct blocker, job));

    pthread_mutex_lock(&b->lock);
    b->begun = true;
    pthread_cond_broadcast(&b->changed);
    while (!b->released)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void hold_decoding(struct blocker *b, struct pool *pool)
{
    *b = (struct blocker){.job = {.run = block, .bytes = OFFLOAD_SMALL_BYTES + 1}};
    pthread_mutex_init(&b->lock, NULL);
    cond_init(&b->changed);
    offload_post(pool->offload, &b->job);
    pthread_mutex_lock(&b->lock);
    while (!b->begun)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void release_decoding(struct blocker *b)
{
    pthread_mutex_lock(&b->lock);
    b->released = true;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* A call whose whole reply has come and waits to be decoded. */
struct late {
    struct fixture f;
    struct blocker blocker;
    struct waiter w;
    struct pool_call *call;
    DLManagedTensor *large; /* owned */
};

enum { LARGE_NUMBERS = 2 << 20 };

/* Asks for the tensor back in 8 bits. */
static skep_status call_encoded(struct fixture *f, const DLManagedTensor *tensor,
                                uint64_t deadline_us, struct waiter *w, struct pool_call **out)
{
    struct call_headers headers = {.method = "echo", .tensor_count = 1};
    struct pool_target target = target_of(f);
    const DLTensor *sent = &tensor->dl_tensor;
    uint8_t params[] = {0x92, 0x07, 0x08}; /* msgpack: [7, 8] */

    headers.params = (struct bytes){.data = params, .len = sizeof(params), .cap = sizeof(params)};
    headers.has_reply_encoding = true;
    headers.reply_encoding = ENCODING_UNIFORM8;
    assert_int_equal(tensor_descriptor_of(&headers.tensors[0], sent, NULL), SKEP_OK);
    waiter_init(w);
    return pool_call(f->pool, &target, &headers, &sent, deadline_us, on_done, w, out, NULL);
}

static void late_call(struct late *late, uint64_t deadline_us)
{
    assert_int_equal(call_encoded(&late->f, late->large, deadline_us, &late->w, &late->call),
                     SKEP_OK);
}

static void expect_large_reply(struct late *late)
{
    waiter_wait(&late->w);
    assert_int_equal(late->w.status, SKEP_OK);
    assert_int_equal(late->w.tensor_count, 1);
    assert_int_equal(late->w.result_len, 3);
    const DLTensor *back = &late->w.tensors[0]->dl_tensor;
    assert_true(dtype_equal(back->dtype, DTYPE_F32));
    assert_int_equal(back->shape[0], LARGE_NUMBERS);
    const float *got = skep_tensor_data(back);
    for (size_t i = 0; i < LARGE_NUMBERS; i += 1000)
        assert_true(fabs((double)got[i] - (double)i) < LARGE_NUMBERS / 50.0);
}

static void late_init(struct late *late, uint64_t deadline_ms)
{
    fixture_init(&late->f);
    fixture_start(&late->f);
    late->large = floats(LARGE_NUMBERS, 0.0f);
    assert_serves(&late->f);
    assert_null(late->f.pool->offload); /* small replies need no threads */
    late_call(late, CLOCK_NEVER);
    expect_large_reply(late);
    waiter_fini(&late->w);

    hold_decoding(&late->blocker, late->f.pool);
    late_call(late, deadline_ms > 0 ? clock_deadline_us(deadline_ms) : CLOCK_NEVER);
    if (deadline_ms > 0)
        return;
    /* All of the reply has been handed out, and on the same connection a small one comes behind. */
    wait_count(&late->f, &late->f.finished, 3);
    assert_serves(&late->f);
    assert_int_equal(waiter_done(&late->w), 0);
}

static void late_end(struct late *late)
{
    fixture_end(&late->f);
    waiter_fini(&late->w);
    skep_tensor_free(late->large);
    pthread_cond_destroy(&late->blocker.changed);
    pthread_mutex_destroy(&late->blocker.lock);
}

static void small_calls_pass_a_large_reply_that_is_decoded(void **state)
{
    struct late late;

    (void)state;
    late_init(&late, 0);
    for (int i = 0; i < 10; i++)
        assert_serves(&late.f);
    assert_int_equal(waiter_done(&late.w), 0);
    release_decoding(&late.blocker);
    expect_large_reply(&late);
    late_end(&late);
}

static void call_is_cancelled_while_its_reply_is_decoded(void **state)
{
    struct late late;

    (void)state;
    late_init(&late, 0);
    pool_cancel(late.f.pool, late.call);
    waiter_wait(&late.w);
    assert_int_equal(late.w.status, SKEP_CANCELLED);
    assert_false(late.w.got_reply);
    assert_true(late.w.sent);
    assert_serves(&late.f);
    release_decoding(&late.blocker);
    late_end(&late);
}

static void call_whose_reply_is_decoded_counts_as_sent(void **state)
{
    struct late late;

    (void)state;
    late_init(&late, 0);
    pool_withdraw(late.f.pool, late.call);
    assert_serves(&late.f);
    assert_int_equal(waiter_done(&late.w), 0);
    release_decoding(&late.blocker);
    expect_large_reply(&late);
    late_end(&late);
}

static void deadline_holds_while_a_reply_is_decoded(void **state)
{
    struct late late;

    (void)state;
    late_init(&late, 2000);
    waiter_wait(&late.w);
    assert_int_equal(late.w.status, SKEP_DEADLINE_EXCEEDED);
    assert_true(late.w.sent);
    assert_serves(&late.f);
    release_decoding(&late.blocker);
    late_end(&late);
}

static void lost_connection_leaves_the_reply_that_has_come(void **state)
{
    struct late late;
    struct waiter w;

    (void)state;
    late_init(&late, 0);
    server_stop(late.f.server);
    struct pool_target target = target_of(&late.f);
    call_target(late.f.pool, &target, "echo", CLOCK_NEVER, &w);
    assert_int_equal(w.status, SKEP_UNAVAILABLE);
    waiter_fini(&w);
    assert_int_equal(waiter_done(&late.w), 0);
    release_decoding(&late.blocker);
    expect_large_reply(&late);
    late_end(&late);
}

static void release_when_done(void *arg)
{
    struct late *late = arg;

    waiter_wait(&late->w);
    release_decoding(&late->blocker);
}

/* pool_free() ends the call first, and then waits for the thread that is held. */
static void pool_is_freed_while_a_reply_is_decoded(void **state)
{
    struct late late;
    struct thread releaser;

    (void)state;
    late_init(&late, 0);
    assert_int_equal(thread_start(&releaser, "releaser", release_when_done, &late, NULL), SKEP_OK);
    pool_free(late.f.pool);
    late.f.pool = NULL;
    thread_join(&releaser);
    assert_int_equal(late.w.status, SKEP_CANCELLED);
    assert_true(late.w.sent);
    late_end(&late);
}

/* Where memory for the threads or for a reply's copy is short, the loop decodes; else the call says
 * so. Each call ends once, and the next one works. */
static void failing_allocation_of_a_large_reply_ends_one_call_at_most(void **state)
{
    enum { SWEEP = 100, FLOATS = OFFLOAD_FROM_BYTES / 4 + 1000 };
    struct fixture f;
    DLManagedTensor *tensor = floats(FLOATS, 0);

    (void)state;
    fixture_init(&f);
    fixture_start(&f);
    for (long nth = 1; nth <= SWEEP; nth++) {
        struct waiter w;
        mem_fail_at(nth);
        skep_status rc = call_encoded(&f, tensor, clock_deadline_us(PATIENCE_MS), &w, NULL);
        if (rc == SKEP_OK)
            waiter_wait(&w);
        else
            assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        mem_fail_at(0);
        if (rc == SKEP_OK && w.status == SKEP_OK) {
            assert_int_equal(w.tensor_count, 1);
            assert_true(dtype_equal(w.tensors[0]->dl_tensor.dtype, DTYPE_F32));
        }
        waiter_fini(&w);
        assert_serves(&f);
        if (nth % 2 == 0) { /* with threads to be started, too */
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
        cmocka_unit_test(encoded_tensors_arrive_decoded_both_ways),
        cmocka_unit_test(the_two_ways_may_differ),
        cmocka_unit_test(a_server_that_takes_no_encodings_gets_plain_tensors),
        cmocka_unit_test(a_caller_that_takes_no_encodings_gets_plain_tensors),
        cmocka_unit_test(replies_that_are_not_finite_travel_as_float32_and_are_counted),
        cmocka_unit_test(limits_hold_for_what_it_decodes_to),
        cmocka_unit_test(small_calls_pass_a_large_reply_that_is_decoded),
        cmocka_unit_test(call_is_cancelled_while_its_reply_is_decoded),
        cmocka_unit_test(call_whose_reply_is_decoded_counts_as_sent),
        cmocka_unit_test(deadline_holds_while_a_reply_is_decoded),
        cmocka_unit_test(lost_connection_leaves_the_reply_that_has_come),
        cmocka_unit_test(pool_is_freed_while_a_reply_is_decoded),
        cmocka_unit_test(failing_allocation_of_a_large_reply_ends_one_call_at_most),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
