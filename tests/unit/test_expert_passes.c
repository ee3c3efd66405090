/* Forward and backward passes: for any rows, and what a step must never do. Numbers of PyTorch:
 * test_golden_experts.c. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "expert_fixture.h"
#include "experts/kernels.h"
#include "experts/workspace.h"

/* One forward into a new tensor. */
static DLManagedTensor *run_forward(struct expert *e, DLManagedTensor *x)
{
    DLManagedTensor *y = tensor_of(x->dl_tensor.shape[0], x->dl_tensor.shape[1], 99);
    struct skep_error err;

    if (expert_forward(e, &x->dl_tensor, &y->dl_tensor, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return y;
}

static skep_status run_backward(struct expert *e, DLManagedTensor *x, DLManagedTensor *dy,
                                DLManagedTensor *dx, struct skep_error *err)
{
    return expert_backward(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, err);
}

static void steps_with_bad_gradients_change_nothing(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY, 1e30f};
    struct expert *a = create_default(3);
    struct expert *b = create_default(3);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dy = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *bad_dy = tensor_of(ROWS, HIDDEN, 2);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 3);
    struct skep_error err;

    assert_int_equal(run_backward(a, x, dy, dx, &err), SKEP_OK);
    assert_int_equal(run_backward(b, x, dy, dx, &err), SKEP_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        data_of(bad_dy)[HIDDEN + 3] = bad[i];
        assert_int_equal(run_backward(a, x, bad_dy, dx, &err), SKEP_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "no step was done"));
        assert_true(same_parameters(a, b));
    }
    assert_int_equal(expert_update_count(a), 1);
    assert_int_equal(expert_skipped_count(a), 4);
    /* The optimizer's state is the same too: the next step gives the same parameters. */
    assert_int_equal(run_backward(a, x, dy, dx, &err), SKEP_OK);
    assert_int_equal(run_backward(b, x, dy, dx, &err), SKEP_OK);
    assert_true(same_parameters(a, b));
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(bad_dy);
    skep_tensor_free(dx);
    expert_free(a);
    expert_free(b);
}

static void optimizer_none_leaves_parameters_alone(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 3);

    o.optimizer = "none";
    struct expert *a = create(&o);
    struct expert *b = create(&o);
    assert_int_equal(run_backward(a, x, x, dx, NULL), SKEP_OK);
    assert_true(same_parameters(a, b));
    assert_int_equal(expert_update_count(a), 1);
    skep_tensor_free(x);
    skep_tensor_free(dx);
    expert_free(a);
    expert_free(b);
}

/* y = x + ..., in double, one row at a time: a slow, obvious ffn for any number of rows. */
static void slow_linear(const DLTensor *w, const DLTensor *b, const double *x, double *y)
{
    const float *weight = skep_tensor_data(w);
    const float *bias = skep_tensor_data(b);

    for (int64_t o = 0; o < w->shape[0]; o++) {
        y[o] = (double)bias[o];
        for (int64_t i = 0; i < w->shape[1]; i++)
            y[o] += (double)weight[o * w->shape[1] + i] * x[i];
    }
}

static void slow_norm_relu(const DLTensor *w, const DLTensor *b, double *x)
{
    const float *weight = skep_tensor_data(w);
    const float *bias = skep_tensor_data(b);
    int64_t n = w->shape[0];
    double mean = 0.0;
    double var = 0.0;

    for (int64_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        var += (x[i] - mean) * (x[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        x[i] = fmax(0.0, (x[i] - mean) / sqrt(var + 1e-5) * (double)weight[i] + (double)bias[i]);
}

static void slow_ffn(const DLTensor *p, const float *x, double *y)
{
    enum { WIDE = 4 * HIDDEN };
    double in[HIDDEN];
    double a[WIDE];
    double b[WIDE];

    for (int i = 0; i < HIDDEN; i++)
        in[i] = (double)x[i];
    slow_linear(&p[0], &p[1], in, a);
    slow_norm_relu(&p[2], &p[3], a);
    slow_linear(&p[4], &p[5], a, b);
    slow_norm_relu(&p[6], &p[7], b);
    slow_linear(&p[8], &p[9], b, y);
    for (int i = 0; i < HIDDEN; i++)
        y[i] += in[i];
}

/* The row counts lie around every change of method in kernels.c. */
static void any_number_of_rows_gives_the_same_function(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 7, 8, 9, 16, 31, 33, 100, 1023, 1024, 1500};
    struct expert *e = create_default(11);
    DLTensor p[EXPERT_MAX_PARAMETERS];

    assert_int_equal(expert_parameters(e, NULL, p, EXPERT_MAX_PARAMETERS), 10);
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        DLManagedTensor *x = tensor_of(counts[k], HIDDEN, (unsigned)k);
        DLManagedTensor *y = run_forward(e, x);
        for (int64_t r = 0; r < counts[k]; r++) {
            double want[HIDDEN];
            slow_ffn(p, data_of(x) + r * HIDDEN, want);
            for (int64_t i = 0; i < HIDDEN; i++)
                if (!(fabs((double)data_of(y)[r * HIDDEN + i] - want[i]) < 5e-6))
                    fail_msg("%lld rows: row %lld is wrong", (long long)counts[k], (long long)r);
        }
        skep_tensor_free(x);
        skep_tensor_free(y);
    }
    expert_free(e);
}

/* Gradients of a batch are the sums of its rows' gradients, whatever way each is computed. */
static void gradients_of_a_batch_are_sums_over_rows(void **state)
{
    (void)state;
    enum { BATCH = 1100 };
    struct expert *e = create_default(12);
    DLTensor p[EXPERT_MAX_PARAMETERS];
    float *whole[EXPERT_MAX_PARAMETERS];
    float *part[EXPERT_MAX_PARAMETERS];
    double *sum[EXPERT_MAX_PARAMETERS];
    size_t count[EXPERT_MAX_PARAMETERS];
    DLManagedTensor *x = tensor_of(BATCH, HIDDEN, 5);
    DLManagedTensor *dy = tensor_of(BATCH, HIDDEN, 6);
    DLManagedTensor *dx = tensor_of(BATCH, HIDDEN, 7);
    DLManagedTensor *dx_part = tensor_of(BATCH, HIDDEN, 8);
    size_t n = expert_parameters(e, NULL, p, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < n; i++) {
        assert_true(shape_count(p[i].ndim, p[i].shape, &count[i]));
        whole[i] = mem_alloc(count[i] * sizeof(float));
        part[i] = mem_alloc(count[i] * sizeof(float));
        sum[i] = mem_calloc(count[i], sizeof(double));
    }
    assert_int_equal(
        expert_gradients(e, &x->dl_tensor, &dy->dl_tensor, &dx->dl_tensor, whole, NULL), SKEP_OK);
    for (int64_t first = 0, rows = 1; first < BATCH; first += rows, rows = 1 + first % 97) {
        DLManagedTensor *slices[3];
        if (rows > BATCH - first)
            rows = BATCH - first;
        assert_int_equal(tensor_slice(x, first, rows, &slices[0], NULL), SKEP_OK);
        assert_int_equal(tensor_slice(dy, first, rows, &slices[1], NULL), SKEP_OK);
        assert_int_equal(tensor_slice(dx_part, first, rows, &slices[2], NULL), SKEP_OK);
        assert_int_equal(expert_gradients(e, &slices[0]->dl_tensor, &slices[1]->dl_tensor,
                                          &slices[2]->dl_tensor, part, NULL),
                         SKEP_OK);
        for (size_t i = 0; i < n; i++)
            for (size_t k = 0; k < count[i]; k++)
                sum[i][k] += (double)part[i][k];
        for (int i = 0; i < 3; i++)
            skep_tensor_free(slices[i]);
    }
    for (size_t i = 0; i < n; i++) {
        double max = 0.0;
        for (size_t k = 0; k < count[i]; k++)
            max = fmax(max, fabs(sum[i][k]));
        for (size_t k = 0; k < count[i]; k++)
            assert_true(fabs((double)whole[i][k] - sum[i][k]) <= 1e-5 * max);
        mem_free(whole[i]);
        mem_free(part[i]);
        mem_free(sum[i]);
    }
    for (int64_t i = 0; i < BATCH * HIDDEN; i++)
        assert_true(fabsf(data_of(dx)[i] - data_of(dx_part)[i]) < 1e-5f);
    skep_tensor_free(x);
    skep_tensor_free(dy);
    skep_tensor_free(dx);
    skep_tensor_free(dx_part);
    expert_free(e);
}

static void equal_calls_give_equal_bits(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("ffn");

    o.hidden_dim = 160; /* enough work for several threads */
    struct expert *a = create(&o);
    struct expert *b = create(&o);
    DLManagedTensor *x = tensor_of(300, 160, 1);
    DLManagedTensor *dy = tensor_of(300, 160, 2);
    for (int step = 0; step < 3; step++) {
        DLManagedTensor *dx_a = tensor_of(300, 160, 3);
        DLManagedTensor *dx_b = tensor_of(300, 160, 4);
        assert_int_equal(run_backward(a, x, dy, dx_a, NULL), SKEP_OK);
        assert_int_equal(run_backward(b, x, dy, dx_b, NULL), SKEP_OK);
        assert_memory_equal(data_of(dx_a), data_of(dx_b), 300 * 160 * sizeof(float));
        assert_true(same_parameters(a, b));
        skep_tensor_free(dx_a);
        skep_tensor_free(dx_b);
    }
    skep_tensor_free(x);
    skep_tensor_free(dy);
    expert_free(a);
    expert_free(b);
}

static void nop_passes_everything_through(void **state)
{
    (void)state;
    struct skep_expert_options o = default_options("nop");
    struct expert *e = create(&o);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *dx = tensor_of(ROWS, HIDDEN, 2);
    DLTensor w;
    const char *name;

    data_of(x)[3] = NAN;
    DLManagedTensor *y = run_forward(e, x);
    assert_memory_equal(data_of(x), data_of(y), ROWS * HIDDEN * sizeof(float));
    assert_int_equal(run_backward(e, x, x, dx, NULL), SKEP_OK);
    assert_memory_equal(data_of(x), data_of(dx), ROWS * HIDDEN * sizeof(float));
    assert_int_equal(expert_parameters(e, &name, &w, 1), 1);
    assert_string_equal(name, "w");
    assert_int_equal(w.ndim, 1);
    assert_int_equal(w.shape[0], 0);
    assert_int_equal(expert_parameter_count(e), 0);
    skep_tensor_free(x);
    skep_tensor_free(y);
    skep_tensor_free(dx);
    expert_free(e);
}

static void a_pass_without_memory_fails_and_changes_nothing(void **state)
{
    (void)state;
    struct expert *a = create_default(1);
    struct expert *b = create_default(1);
    DLManagedTensor *x = tensor_of(ROWS, HIDDEN, 1);
    DLManagedTensor *y = tensor_of(ROWS, HIDDEN, 1);

    workspace_trim();
    mem_fail_at(1);
    assert_int_equal(run_backward(a, x, x, y, NULL), SKEP_RESOURCE_EXHAUSTED);
    mem_fail_at(1);
    assert_int_equal(expert_forward(a, &x->dl_tensor, &y->dl_tensor, NULL),
                     SKEP_RESOURCE_EXHAUSTED);
    mem_fail_at(0);
    assert_int_equal(expert_update_count(a), 0);
    assert_true(same_parameters(a, b));
    assert_int_equal(run_backward(a, x, x, y, NULL), SKEP_OK);
    skep_tensor_free(x);
    skep_tensor_free(y);
    expert_free(a);
    expert_free(b);
}

static void idle_scratch_memory_shrinks_after_a_peak(void **state)
{
    (void)state;
    const size_t mib = 1 << 20;
    struct workspace ws;

    workspace_trim();
    assert_int_equal(workspace_idle_bytes(), 0);
    assert_int_equal(workspace_take(64 * mib, &ws, NULL), SKEP_OK);
    workspace_give(&ws);
    assert_int_equal(workspace_idle_bytes(), 64 * mib);
    for (int i = 0; i < 600; i++) {
        assert_int_equal(workspace_take(mib, &ws, NULL), SKEP_OK);
        workspace_give(&ws);
    }
    assert_true(workspace_idle_bytes() <= 8 * mib);
    workspace_trim();
}

/* Every instruction set the CPU has computes what the plain one computes. */
static void check_simd(const struct simd_ops *ops)
{
    enum { N = 53, R = 19 };
    static float x[R * N];
    static float y[2][R * N];
    static float t[2][R * N];
    static float g[2][R * N];
    float w[N];
    float b[N];
    float mean[2][R];
    float rstd[2][R];
    float sums[2][3 * N];
    const struct simd_ops *both[2] = {&simd_ops_base, ops};
    struct simd_norm norm = {w, b, N, 1e-5f, true};

    for (int i = 0; i < R * N; i++)
        x[i] = sinf((float)i);
    for (int i = 0; i < N; i++) {
        w[i] = 1.0f + 0.1f * cosf((float)i);
        b[i] = 0.1f * sinf((float)(7 * i));
    }
    for (int k = 0; k < 2; k++) {
        memset(sums[k], 0, sizeof(sums[k]));
        memcpy(g[k], x, sizeof(x));
        both[k]->norm_forward(&norm, x, R, y[k], mean[k], rstd[k]);
        both[k]->norm_backward(&norm, x, y[k], mean[k], rstd[k], R, g[k], sums[k], sums[k] + N,
                               sums[k] + 2 * N);
        both[k]->transpose(x, R, N, N, t[k], R, w, NULL);
    }
    for (int i = 0; i < R * N; i++) {
        assert_true(fabsf(y[0][i] - y[1][i]) < 2e-6f);
        assert_true(fabsf(g[0][i] - g[1][i]) < 2e-6f);
        assert_true(t[0][i] == t[1][i]);
        assert_true(t[1][(i % N) * R + i / N] == x[i] + w[i / N]);
    }
    for (int i = 0; i < 3 * N; i++)
        assert_true(fabsf(sums[0][i] - sums[1][i]) < 1e-5f);
    double squares = both[0]->sum_squares(x, R * N);
    assert_true(fabs(both[1]->sum_squares(x, R * N) / squares - 1.0) < 1e-12);
    x[R * N - 1] = INFINITY;
    assert_true(!isfinite(both[1]->sum_squares(x, R * N)));
    x[R * N - 1] = 0.0f;
    x[5] = NAN;
    assert_true(!isfinite(both[1]->sum_squares(x, R * N)));
}

static void instruction_sets_agree(void **state)
{
    (void)state;
    check_simd(&simd_ops_base);
    check_simd(simd_ops());
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        check_simd(&simd_ops_avx2);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_with_bad_gradients_change_nothing),
        cmocka_unit_test(optimizer_none_leaves_parameters_alone),
        cmocka_unit_test(any_number_of_rows_gives_the_same_function),
        cmocka_unit_test(gradients_of_a_batch_are_sums_over_rows),
        cmocka_unit_test(equal_calls_give_equal_bits),
        cmocka_unit_test(nop_passes_everything_through),
        cmocka_unit_test(a_pass_without_memory_fails_and_changes_nothing),
        cmocka_unit_test(idle_scratch_memory_shrinks_after_a_peak),
        cmocka_unit_test(instruction_sets_agree),
    };
    return cmocka_run_group_tests_name("expert passes", tests, NULL, NULL);
}
