/* Computing in bfloat16: rounding, weights that follow the parameters, the bounded cache. */
#include "expert_fixture.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "experts/product.h"
#include "experts/simd.h"

enum { PACKING_PASSES = 16 }; /* more than a packed copy is waited for */

static struct expert *half_expert(const char *cls)
{
    struct skep_expert_options o = default_options(cls);

    o.precision = "bfloat16";
    o.optimizer = "sgd";
    o.learning_rate = 0.1;
    return create(&o);
}

static void forward(struct expert *e, DLManagedTensor *x, DLManagedTensor *y)
{
    struct skep_error err;

    if (expert_forward(e, &x->dl_tensor, &y->dl_tensor, &err) != SKEP_OK)
        fail_msg("%s", err.message);
}

static void backward(struct expert *e, DLManagedTensor *x, DLManagedTensor *dy, DLManagedTensor *dx)
{
    struct skep_error err;

    if (expert_backward(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, &err) != SKEP_OK)
        fail_msg("%s", err.message);
}

static double largest_difference(DLManagedTensor *a, DLManagedTensor *b, size_t n)
{
    double max = 0.0;

    for (size_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)data_of(a)[i] - (double)data_of(b)[i]));
    return max;
}

/* By the definition: the two neighbours, and the nearer one, or the even one. */
static uint16_t slow_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    uint32_t low = bits & 0xffffu;
    uint32_t down = bits >> 16;
    if (low > 0x8000u || (low == 0x8000u && (down & 1u) == 1u))
        down++;
    return (uint16_t)down;
}

static const struct simd_ops *const all_ops[] = {
    &simd_ops_base,
#if defined(__x86_64__)
    &simd_ops_avx2,
    &simd_ops_avx512,
#endif
};

/* Whether this CPU runs it: the chosen one and all before it in the list. */
static bool runs(const struct simd_ops *ops)
{
    size_t chosen = 0;

    while (all_ops[chosen] != simd_ops())
        chosen++;
    for (size_t i = 0; i <= chosen; i++)
        if (all_ops[i] == ops)
            return true;
    return false;
}

static void rounding_is_to_nearest_even(void **state)
{
    enum { N = 70001 };
    static float x[N];
    static float y[N];
    static uint16_t h[N];

    (void)state;
    for (size_t i = 0; i < N; i++) {
        /* Walks over all exponents but those of infinity and NaN, with ties often. */
        uint32_t bits = (uint32_t)(i * 2654435761u);
        bits = i % 3 == 0 ? (bits & 0xffff0000u) | 0x8000u : bits;
        bits = (bits & 0x7f800000u) == 0x7f800000u ? bits & 0xbfffffffu : bits;
        memcpy(&x[i], &bits, sizeof(bits));
    }
    for (size_t v = 0; v < sizeof(all_ops) / sizeof(all_ops[0]); v++) {
        if (!runs(all_ops[v]))
            continue;
        all_ops[v]->to_bf16(x, h, N);
        all_ops[v]->round_bf16(x, y, N);
        for (size_t i = 0; i < N; i++) {
            uint32_t bits = (uint32_t)slow_bf16(x[i]) << 16;
            assert_int_equal(h[i], bits >> 16);
            assert_memory_equal(&y[i], &bits, sizeof(bits));
        }
    }
}

static void infinity_and_nan_stay_what_they_are(void **state)
{
    const float x[4] = {INFINITY, -INFINITY, NAN, 3.4e38f};
    float y[4];

    (void)state;
    simd_ops()->round_bf16(x, y, 4);
    assert_true(isinf(y[0]) && y[0] > 0.0f);
    assert_true(isinf(y[1]) && y[1] < 0.0f);
    assert_true(isnan(y[2]));
    assert_true(isinf(y[3])); /* above the largest bfloat16, as IEEE rounds */
}

static void unknown_precision_is_refused_with_the_known_ones(void **state)
{
    struct skep_expert_options o = default_options("ffn");
    struct expert *e = NULL;
    struct skep_error err;

    (void)state;
    o.precision = "float8";
    assert_int_equal(expert_new(&o, &e, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "float8"));
    assert_non_null(strstr(err.message, "float32, bfloat16"));
    assert_null(e);
}

static void float32_is_the_default(void **state)
{
    struct expert *e = create_default(1);

    (void)state;
    assert_string_equal(expert_precision_name(e), "float32");
    assert_string_equal(expert_settings(e)->precision, "float32");
    expert_free(e);
}

static void memory_counts_the_copies(void **state)
{
    struct skep_expert_options o = default_options("ffn");
    uint64_t single = 0;
    uint64_t half = 0;

    (void)state;
    assert_int_equal(expert_memory(&o, &single, NULL), SKEP_OK);
    o.precision = "bfloat16";
    assert_int_equal(expert_memory(&o, &half, NULL), SKEP_OK);
    assert_true(half > single);
    assert_true(half < 2 * single);
}

static void repeated_small_passes_change_nothing(void **state)
{
    struct expert *e = half_expert("ffn");
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *first = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *later = tensor_of(ROWS, HIDDEN, 3);

    (void)state;
    forward(e, x, first);
    for (int i = 0; i < PACKING_PASSES; i++)
        forward(e, x, later);
    /* Sums may be added in another order by then. */
    assert_true(largest_difference(first, later, ROWS * HIDDEN) < 1e-2);
    skep_tensor_free(x);
    skep_tensor_free(first);
    skep_tensor_free(later);
    expert_free(e);
}

static void packed_weights_follow_a_step(void **state)
{
    struct expert *e = half_expert("ffn");
    struct expert *other = half_expert("ffn");
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dy = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *before = tensor_of(ROWS, HIDDEN, 3);
    DLManagedTensor *after = tensor_of(ROWS, HIDDEN, 3);
    DLManagedTensor *fresh = tensor_of(ROWS, HIDDEN, 3);

    (void)state;
    for (int i = 0; i < PACKING_PASSES; i++)
        forward(e, x, before);
    backward(e, x, dy, after);
    backward(other, x, dy, after);
    forward(e, x, after);
    forward(other, x, fresh); /* it never had packed weights */
    assert_true(largest_difference(before, after, ROWS * HIDDEN) > 1e-2);
    assert_memory_equal(data_of(after), data_of(fresh), ROWS * HIDDEN * sizeof(float));
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(before);
    skep_tensor_free(after);
    skep_tensor_free(fresh);
    expert_free(e);
    expert_free(other);
}

static void a_set_parameter_is_computed_with(void **state)
{
    struct expert *e = half_expert("swiglu");
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *y = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *zeros = tensor_of(HIDDEN, 4 * HIDDEN, 3);

    (void)state;
    memset(data_of(zeros), 0, HIDDEN * 4 * HIDDEN * sizeof(float));
    forward(e, x, y);
    assert_int_equal(expert_set_parameter(e, "down_proj.weight", &zeros->dl_tensor, NULL), SKEP_OK);
    forward(e, x, y);
    for (size_t i = 0; i < ROWS * HIDDEN; i++)
        assert_true(data_of(y)[i] == 0.0f);
    skep_tensor_free(x);
    skep_tensor_free(y);
    skep_tensor_free(zeros);
    expert_free(e);
}

static void primitives_of_many_sizes_stay_bounded(void **state)
{
    struct expert *e = half_expert("swiglu");

    (void)state;
    for (int64_t rows = 1; rows <= PRODUCT_CACHE_MAX; rows++) {
        DLManagedTensor *x = tensor_of(rows, HIDDEN, 1);
        DLManagedTensor *y = tensor_of(rows, HIDDEN, 2);
        forward(e, x, y);
        skep_tensor_free(x);
        skep_tensor_free(y);
        assert_true(product_cached() <= PRODUCT_CACHE_MAX);
    }
    if (product_available())
        assert_int_equal(product_cached(), PRODUCT_CACHE_MAX);
    expert_free(e);
}

/* Passes of many sizes, whose primitives come and go in the cache that both threads share. */
struct passes {
    bool ok; /* cmocka may only be asked by the main thread */
};

static void *run_passes(void *arg)
{
    struct passes *p = arg;
    struct expert *e = half_expert("swiglu");

    p->ok = true;
    for (int64_t rows = 1; rows <= 2 * PRODUCT_CACHE_MAX / 3; rows++) {
        DLManagedTensor *x = tensor_of(rows, HIDDEN, 1);
        DLManagedTensor *y = tensor_of(rows, HIDDEN, 2);
        p->ok = expert_forward(e, &x->dl_tensor, &y->dl_tensor, NULL) == SKEP_OK &&
                isfinite(data_of(y)[rows * HIDDEN - 1]) && p->ok;
        skep_tensor_free(x);
        skep_tensor_free(y);
    }
    expert_free(e);
    return NULL;
}

static void experts_in_two_threads_share_the_primitives(void **state)
{
    struct passes passes[2];
    pthread_t threads[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_passes, &passes[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_true(passes[0].ok && passes[1].ok);
    assert_true(product_cached() <= PRODUCT_CACHE_MAX);
}

static void every_failed_allocation_is_reported(void **state)
{
    struct skep_expert_options o = default_options("ffn");

    (void)state;
    o.precision = "bfloat16";
    for (long nth = 1;; nth++) {
        struct expert *e = NULL;
        mem_fail_at(nth);
        skep_status rc = expert_new(&o, &e, NULL);
        bool is_over = mem_fail_pending();
        mem_fail_at(0);
        expert_free(e);
        if (is_over) {
            assert_int_equal(rc, SKEP_OK);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(infinity_and_nan_stay_what_they_are),
        cmocka_unit_test(unknown_precision_is_refused_with_the_known_ones),
        cmocka_unit_test(float32_is_the_default),
        cmocka_unit_test(memory_counts_the_copies),
        cmocka_unit_test(repeated_small_passes_change_nothing),
        cmocka_unit_test(packed_weights_follow_a_step),
        cmocka_unit_test(a_set_parameter_is_computed_with),
        cmocka_unit_test(primitives_of_many_sizes_stay_bounded),
        cmocka_unit_test(experts_in_two_threads_share_the_primitives),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };

    return cmocka_run_group_tests_name("experts in bfloat16", tests, NULL, NULL);
}
