/* Encoded tensors between server and pool: decoded on arrival, and never for a peer that does not
 * take them. */
#include "net_fixture.h"

#include <math.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoded_tensors_arrive_decoded_both_ways),
        cmocka_unit_test(the_two_ways_may_differ),
        cmocka_unit_test(a_server_that_takes_no_encodings_gets_plain_tensors),
        cmocka_unit_test(a_caller_that_takes_no_encodings_gets_plain_tensors),
        cmocka_unit_test(replies_that_are_not_finite_travel_as_float32_and_are_counted),
        cmocka_unit_test(limits_hold_for_what_it_decodes_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
