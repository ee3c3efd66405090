/* The inner loops: every instruction set the CPU has against the plain one and against libm. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "experts/simd.h"

/* Every instruction set the CPU has computes what the plain one computes. */
static void check_simd(const struct simd_ops *ops)
{
    enum { N = 53, R = 19 };
    static float x[R * N];
    static float y[2][R * N];
    static float t[2][R * N];
    static float g[2][R * N];
    static uint16_t half_y[R * N], half_g[R * N], rounded[R * N];
    static float other_g[R * N];
    float other_sums[3 * N] = {0};
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
        both[k]->norm_forward(&norm, x, R, y[k], NULL, mean[k], rstd[k]);
        both[k]->norm_backward(&(struct simd_norm_backward){
            .norm = &norm,
            .x = x,
            .y = y[k],
            .mean = mean[k],
            .rstd = rstd[k],
            .rows = R,
            .grad = g[k],
            .d_weight = sums[k],
            .d_bias = sums[k] + N,
            .d_sum = sums[k] + 2 * N,
        });
        both[k]->transpose(&(struct simd_transpose){x, R, N, N, t[k], R, w, NULL});
    }
    for (int i = 0; i < R * N; i++) {
        assert_true(fabsf(y[0][i] - y[1][i]) < 2e-6f);
        assert_true(fabsf(g[0][i] - g[1][i]) < 2e-6f);
        assert_true(t[0][i] == t[1][i]);
        assert_true(t[1][(i % N) * R + i / N] == x[i] + w[i / N]);
    }
    for (int i = 0; i < 3 * N; i++)
        assert_true(fabsf(sums[0][i] - sums[1][i]) < 1e-5f);
    /* With bfloat16 between the layers: the same numbers, rounded. */
    ops->norm_forward(&norm, x, R, NULL, half_y, mean[1], rstd[1]);
    ops->to_bf16(y[1], rounded, R * N);
    assert_memory_equal(half_y, rounded, sizeof(rounded));
    memcpy(other_g, x, sizeof(x));
    ops->norm_backward(&(struct simd_norm_backward){
        .norm = &norm,
        .x = x,
        .half_y = half_y,
        .mean = mean[1],
        .rstd = rstd[1],
        .rows = R,
        .grad = other_g,
        .half_grad = half_g,
        .d_weight = other_sums,
        .d_bias = other_sums + N,
        .d_sum = other_sums + 2 * N,
    });
    assert_memory_equal(other_g, g[1], sizeof(other_g));
    assert_memory_equal(other_sums, sums[1], sizeof(other_sums));
    ops->to_bf16(g[1], rounded, R * N);
    assert_memory_equal(half_g, rounded, sizeof(rounded));
    double squares = both[0]->sum_squares(x, R * N);
    assert_true(fabs(both[1]->sum_squares(x, R * N) / squares - 1.0) < 1e-12);
    x[R * N - 1] = INFINITY;
    assert_true(!isfinite(both[1]->sum_squares(x, R * N)));
    x[R * N - 1] = 0.0f;
    x[5] = NAN;
    assert_true(!isfinite(both[1]->sum_squares(x, R * N)));
}

/* The error of `got` in units of the last place of a float near max(|want|, least). */
static double error_of(float got, double want, double least)
{
    return fabs((double)got - want) / (fmax(fabs(want), least) * 0x1p-23);
}

static double gelu_of(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2.0));
}

static double gelu_slope(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2.0 * acos(-1.0));
}

/* 401 points from -20 to 20, at an odd length, so that vector and tail loops both run. */
static void check_functions(const struct simd_ops *ops)
{
    enum { N = 401 };
    float x[N];
    float up[N];
    float y[N];
    float slope[N];
    float da[N];
    float db[N];

    for (int i = 0; i < N; i++) {
        x[i] = (float)(i - 200) / 10.0f;
        up[i] = cosf((float)i);
        slope[i] = 1.0f;
        da[i] = 1.0f;
    }
    ops->gelu(x, NULL, y, NULL, N);
    ops->gelu_backward(x, NULL, slope, NULL, N);
    for (int i = 0; i < N; i++) {
        assert_true(error_of(y[i], gelu_of((double)x[i]), 0.1) < 4.0);
        assert_true(error_of(slope[i], gelu_slope((double)x[i]), 0.1) < 8.0);
    }
    ops->silu_mul(x, up, y, NULL, N);
    ops->silu_mul_backward(x, up, da, db, N);
    for (int i = 0; i < N; i++) {
        double s = 1.0 / (1.0 + exp(-(double)x[i]));
        double silu = (double)x[i] * s;
        assert_true(error_of(y[i], silu * (double)up[i], 0.1) < 4.0);
        assert_true(error_of(db[i], silu, 0.1) < 4.0);
        assert_true(error_of(da[i], (double)up[i] * (s + silu * (1.0 - s)), 0.1) < 8.0);
    }
}

static void check_extremes(const struct simd_ops *ops)
{
    float x[4] = {-1e30f, 1e30f, -INFINITY, NAN};
    float one[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    float y[4];

    ops->silu_mul(x, one, y, NULL, 2);
    assert_true(fabsf(y[0]) < 1e-6f && y[1] == 1e30f);
    ops->gelu(x, NULL, y, NULL, 2);
    assert_true(y[0] == 0.0f && y[1] == 1e30f);
    ops->silu_mul(x + 3, one, y, NULL, 1);
    assert_true(isnan(y[0]));
    ops->gelu(x + 3, NULL, y, NULL, 1);
    assert_true(isnan(y[0]));
    ops->relu(x + 3, NULL, y, NULL, 1);
    assert_true(isnan(y[0]));
}

static void check_softmax(const struct simd_ops *ops)
{
    enum { N = 37 };
    float x[2 * N];
    float nothing[N] = {0};
    uint8_t ignored[N] = {[3] = 1, [20] = 1};
    uint8_t all[N];

    for (int i = 0; i < 2 * N; i++)
        x[i] = 30.0f * sinf((float)i);
    ops->softmax(x, 2, N, ignored);
    for (int r = 0; r < 2; r++) {
        double sum = 0.0;
        for (int i = 0; i < N; i++)
            if (ignored[i] == 0)
                sum += exp(30.0 * sin(r * N + i));
        for (int i = 0; i < N; i++) {
            double want = ignored[i] == 0 ? exp(30.0 * sin(r * N + i)) / sum : 0.0;
            assert_true(fabs((double)x[r * N + i] - want) < 3e-6);
        }
    }
    memset(all, 1, sizeof(all));
    ops->softmax(x, 1, N, all);
    assert_memory_equal(x, nothing, sizeof(nothing));
    x[5] = NAN;
    ops->softmax(x, 1, N, NULL);
    assert_true(isnan(x[0]));
}

static void check_everything(const struct simd_ops *ops)
{
    check_simd(ops);
    check_functions(ops);
    check_extremes(ops);
    check_softmax(ops);
}

static void plain_loops_are_right(void **state)
{
    (void)state;
    check_everything(&simd_ops_base);
}

static void avx2_loops_are_right(void **state)
{
    (void)state;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        check_everything(&simd_ops_avx2);
        return;
    }
#endif
    skip();
}

static void chosen_loops_are_right(void **state)
{
    (void)state;
    check_everything(simd_ops());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_loops_are_right),
        cmocka_unit_test(avx2_loops_are_right),
        cmocka_unit_test(chosen_loops_are_right),
    };
    return cmocka_run_group_tests_name("expert math", tests, NULL, NULL);
}
