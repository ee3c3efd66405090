/* Experts: creation, parameters, and checking of tensors. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "expert_fixture.h"

static void expect_refused(const struct skep_expert_options *o, skep_status status,
                           const char *part)
{
    struct expert *e = (struct expert *)(uintptr_t)1;
    struct skep_error err = {0};

    assert_int_equal(expert_new(o, &e, &err), status);
    assert_null(e);
    assert_int_equal(err.status, status);
    if (strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not name \"%s\"", err.message, part);
}

static void unknown_names_are_refused_with_the_known_ones(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("resnet");

    expect_refused(&o, SKEP_INVALID_ARGUMENT, "resnet");
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "ffn, transformer, det_dropout, swiglu, nop");
    o.cls = NULL;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "ffn");
    o = default_options("ffn");
    o.optimizer = "lion";
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "lion");
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "adam");
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "none");
    o.optimizer = NULL;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "optimizer");
}

static void hidden_dim_out_of_range_is_refused(void **state)
{
    (void)state;
    static const int64_t bad[] = {0, -1, 65537, INT64_MAX, INT64_MIN};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct skep_expert_options o = default_options("ffn");
        o.hidden_dim = bad[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "1 to 65536");
        o.cls = "nop";
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "hidden_dim");
    }
    struct skep_expert_options o = default_options("transformer");
    o.hidden_dim = 22;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "22, expected a multiple of 4");
    o = default_options("transformer");
    o.max_sequence = 0;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "max_sequence");
    o = default_options("swiglu");
    o.intermediate_dim = -1;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "intermediate_dim: -1, expected 1 to");
}

static void experts_larger_than_the_machine_are_refused(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");
    uint64_t bytes = 0;

    o.hidden_dim = 65536;
    expect_refused(&o, SKEP_RESOURCE_EXHAUSTED, "MiB");
    assert_int_equal(expert_memory(&o, &bytes, NULL), SKEP_OK);
    assert_true(bytes > (uint64_t)1 << 40);
    o.cls = "nop";
    struct expert *e = create(&o);
    expert_free(e);
}

static void hyper_parameters_out_of_range_are_refused(void **state)
{
    (void)state;
    static const double bad_beta[] = {-0.1, 1.0, 2.0, NAN};
    static const double bad_rate[] = {-1e-3, NAN, INFINITY};
    static const double bad_eps[] = {0.0, -1e-8, NAN, INFINITY};
    struct skep_expert_options o;

    for (size_t i = 0; i < 4; i++) {
        o = default_options("ffn");
        o.beta1 = bad_beta[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "beta1");
        o = default_options("ffn");
        o.beta2 = bad_beta[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "beta2");
        o = default_options("ffn");
        o.eps = bad_eps[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "eps");
    }
    for (size_t i = 0; i < 3; i++) {
        o = default_options("ffn");
        o.learning_rate = bad_rate[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "learning rate");
    }
    for (size_t i = 0; i < 2; i++) {
        o = default_options("ffn");
        o.weight_decay = bad_rate[i + 1];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "weight decay");
        o = default_options("ffn");
        o.momentum = bad_beta[i + 2];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "momentum");
        o = default_options("ffn");
        o.clip_grad_norm = bad_rate[i];
        expect_refused(&o, SKEP_INVALID_ARGUMENT, "clip_grad_norm");
    }
    o = default_options("ffn");
    o.schedule = "cosine";
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "cosine");
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "constant-with-warmup, linear-with-warmup");
    o.schedule = "linear-with-warmup";
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "training steps");
    o = default_options("ffn");
    o.size = 0;
    expect_refused(&o, SKEP_INVALID_ARGUMENT, "skep_expert_options_init");
}

/* A caller compiled before the newer settings existed. */
static void options_of_an_older_version_are_read(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");

    o.size = offsetof(struct skep_expert_options, weight_decay);
    o.weight_decay = NAN;
    o.schedule = "cosine";
    expert_free(create(&o));
}

static void equal_seeds_give_equal_experts(void **state)
{
    (void)state;
    struct expert *a = create_default(7);
    struct expert *b = create_default(7);
    struct expert *c = create_default(8);

    assert_true(same_parameters(a, b));
    assert_false(same_parameters(a, c));
    expert_free(a);
    expert_free(b);
    expert_free(c);
}

static void linear_parameters_start_uniform_and_norms_neutral(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");
    DLTensor p[EXPERT_MAX_PARAMETERS];
    const char *names[EXPERT_MAX_PARAMETERS];

    o.hidden_dim = 64;
    struct expert *e = create(&o);
    assert_int_equal(expert_parameters(e, names, p, EXPERT_MAX_PARAMETERS), 10);
    assert_int_equal(expert_parameter_count(e),
                     64 * 256 + 256 + 512 + 256 * 256 + 256 + 512 + 256 * 64 + 64);
    assert_string_equal(names[4], "layers.3.weight");
    const float *w = skep_tensor_data(&p[4]);
    double sum = 0.0;
    double squares = 0.0;
    double max = 0.0;
    for (size_t i = 0; i < 65536; i++) {
        sum += (double)w[i];
        squares += (double)w[i] * (double)w[i];
        max = fmax(max, fabs((double)w[i]));
    }
    /* Uniform in +-1/16: five standard errors of mean and variance. */
    double variance = 1.0 / (256.0 * 3.0);
    assert_true(fabs(sum / 65536.0) < 5.0 * sqrt(variance / 65536.0));
    assert_true(fabs(squares / 65536.0 / variance - 1.0) < 5.0 * 0.9 / 256.0);
    assert_true(max <= 1.0 / 16.0 && max > 0.99 / 16.0);
    const float *norm_weight = skep_tensor_data(&p[2]);
    const float *norm_bias = skep_tensor_data(&p[3]);
    for (size_t i = 0; i < 256; i++)
        assert_true(norm_weight[i] == 1.0f && norm_bias[i] == 0.0f);
    expert_free(e);
}

static void expect_mismatch(const struct skep_tensor_spec *spec, const DLTensor *t,
                            const char *part)
{
    struct skep_error err = {0};
    int64_t rows = -7;

    assert_int_equal(schema_check(spec, 1, &t, 1, "input", &rows, &err), SKEP_INVALID_ARGUMENT);
    assert_int_equal(rows, -7);
    if (strstr(err.message, part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.message, part);
}

static void schema_mismatches_name_both_sides(void **state)
{
    (void)state;
    struct expert *e = create_default(1);
    const struct skep_tensor_spec *spec = &expert_schema(e)->inputs[0];
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLTensor t = x->dl_tensor;
    int64_t shape[3] = {ROWS, HIDDEN, 1};
    const DLTensor *two[2] = {&t, &t};
    struct skep_error err;
    int64_t rows;

    assert_int_equal(schema_check(spec, 1, two, 1, "input", &rows, &err), SKEP_OK);
    assert_int_equal(rows, ROWS);
    assert_int_equal(schema_check(spec, 1, two, 2, "input", &rows, &err), SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, "2 input tensors, expected 1");
    assert_int_equal(schema_check(spec, 1, two, 0, "grad_output", &rows, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, "0 grad_output tensors, expected 1");

    t.shape = shape;
    t.dtype = (DLDataType){kDLFloat, 16, 1};
    expect_mismatch(spec, &t, "[5, 24] F16, expected [any, 24] F32");
    t.dtype = DTYPE_F32;
    shape[1] = HIDDEN - 1;
    expect_mismatch(spec, &t, "[5, 23] F32, expected [any, 24] F32");
    shape[1] = HIDDEN;
    t.ndim = 3;
    expect_mismatch(spec, &t, "[5, 24, 1] F32, expected");
    t.ndim = 1;
    expect_mismatch(spec, &t, "[5] F32, expected");
    t.ndim = 2;
    shape[0] = 0;
    expect_mismatch(spec, &t, "0 rows");
    shape[0] = -1;
    expect_mismatch(spec, &t, "input 0 (x)");
    shape[0] = ROWS;
    t.byte_offset = 2;
    expect_mismatch(spec, &t, "aligned");
    skep_tensor_free(x);
    expert_free(e);
}

static void tensors_of_one_task_have_equal_rows(void **state)
{
    (void)state;
    struct expert *e = create_default(1);
    const struct skep_tensor_spec specs[2] = {expert_schema(e)->inputs[0],
                                              expert_schema(e)->inputs[0]};
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *y = tensor_of(ROWS + 1, HIDDEN, 2);
    const DLTensor *both[2] = {&x->dl_tensor, &y->dl_tensor};
    struct skep_error err;
    int64_t rows;

    assert_int_equal(schema_check(specs, 2, both, 2, "input", &rows, &err), SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, "input 1 (x): 6 rows, expected 5 as in input 0");
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(e);
}

static void digests_are_stable_and_tell_schemas_apart(void **state)
{
    (void)state;
    /* By another implementation of BLAKE2b. A change would make published records disagree. */
    static const uint8_t expected[16] = {0xfa, 0x00, 0x91, 0xd5, 0x12, 0x33, 0x21, 0x45,
                                         0x65, 0x75, 0x83, 0xda, 0x37, 0x6c, 0x97, 0x6b};
    struct skep_expert_options o = default_options("ffn");
    uint8_t a[16];
    uint8_t b[16];

    struct expert *e = create(&o);
    schema_digest(expert_schema(e), a);
    assert_memory_equal(a, expected, sizeof(expected));
    expert_free(e);
    o.hidden_dim = HIDDEN + 1;
    e = create(&o);
    schema_digest(expert_schema(e), b);
    assert_memory_not_equal(a, b, sizeof(a));
    expert_free(e);
    o = default_options("nop");
    e = create(&o);
    schema_digest(expert_schema(e), b);
    assert_memory_equal(a, b, sizeof(a)); /* the same tensors under the same names */
    expert_free(e);
}

static void parameters_are_set_by_name_and_shape(void **state)
{
    (void)state;
    struct expert *e = create_default(1);
    DLManagedTensor *w = tensor_of(4 * HIDDEN, HIDDEN, 1);
    DLManagedTensor *turned = tensor_of(HIDDEN, 4 * HIDDEN, 1);
    DLTensor p[1];
    struct skep_error err;

    assert_int_equal(expert_set_parameter(e, "layers.0.weight", &w->dl_tensor, &err), SKEP_OK);
    assert_int_equal(expert_parameters(e, NULL, p, 1), 10);
    assert_memory_equal(skep_tensor_data(&p[0]), data_of(w), 4 * HIDDEN * HIDDEN * sizeof(float));
    assert_int_equal(expert_set_parameter(e, "layers.0.weight", &turned->dl_tensor, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message,
                        "parameter layers.0.weight: [24, 96] F32, expected [96, 24] F32");
    assert_int_equal(expert_set_parameter(e, "layers.2.weight", &w->dl_tensor, &err),
                     SKEP_NOT_FOUND);
    skep_tensor_free(w);
    skep_tensor_free(turned);
    expert_free(e);
}

static void every_failed_allocation_of_new_is_reported(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");

    for (long nth = 1;; nth++) {
        struct expert *e;
        mem_fail_at(nth);
        skep_status rc = expert_new(&o, &e, NULL);
        if (mem_fail_pending()) {
            mem_fail_at(0);
            assert_int_equal(rc, SKEP_OK);
            assert_true(nth > 3);
            expert_free(e);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        assert_null(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_names_are_refused_with_the_known_ones),
        cmocka_unit_test(hidden_dim_out_of_range_is_refused),
        cmocka_unit_test(experts_larger_than_the_machine_are_refused),
        cmocka_unit_test(hyper_parameters_out_of_range_are_refused),
        cmocka_unit_test(options_of_an_older_version_are_read),
        cmocka_unit_test(equal_seeds_give_equal_experts),
        cmocka_unit_test(linear_parameters_start_uniform_and_norms_neutral),
        cmocka_unit_test(schema_mismatches_name_both_sides),
        cmocka_unit_test(tensors_of_one_task_have_equal_rows),
        cmocka_unit_test(digests_are_stable_and_tell_schemas_apart),
        cmocka_unit_test(parameters_are_set_by_name_and_shape),
        cmocka_unit_test(every_failed_allocation_of_new_is_reported),
    };
    return cmocka_run_group_tests_name("expert", tests, NULL, NULL);
}
