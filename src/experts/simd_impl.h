/*
 * The inner loops of simd.h, written once with the compilers' vector types of 16 floats, which
 * become one, two or four registers. Included by simd_<set>.c, which define SIMD_NAME and
 * SIMD_TEXT; everything here is static, so that no function compiled for a newer CPU can be
 * picked by the linker for an older one.
 */
#include "experts/simd.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

/* Unaligned loads and stores. */
typedef float vec __attribute__((vector_size(64), aligned(4), may_alias));
typedef float vec_half __attribute__((vector_size(32), aligned(4), may_alias));
typedef double vec_double __attribute__((vector_size(64)));

#define LOAD(p) (*(const vec *)(p))
#define STORE(p, value) (*(vec *)(p) = (value))

/* Added pairwise, so that every instruction set adds in the same order. */
static inline float add_lanes(const vec *v)
{
    float t[LANES];

    memcpy(t, v, sizeof(t));
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            t[i] += t[i + half];
    return t[0];
}

/* A full tile is read and written in whole cache lines: with row strides that are powers of two,
 * 16 lines share one cache set, so reading single columns of it would miss every time. */
static inline void transpose_tile(struct simd_transpose t, size_t rows, size_t cols)
{
    float in[LANES][LANES];

    for (size_t r = 0; r < rows; r++) {
        float b = t.bias != NULL ? t.bias[r] : 0.0f;
        for (size_t c = 0; c < cols; c++)
            in[r][c] = t.src[r * t.src_stride + c] + b;
    }
    for (size_t c = 0; c < cols; c++) {
        float out[LANES];
        for (size_t r = 0; r < rows; r++)
            out[r] = in[r][c];
        if (t.add != NULL)
            for (size_t r = 0; r < rows; r++)
                out[r] += t.add[c * t.dst_stride + r];
        memcpy(t.dst + c * t.dst_stride, out, rows * sizeof(*out));
    }
}

static void SIMD_NAME(transpose)(const struct simd_transpose *whole)
{
    const struct simd_transpose w = *whole;

    for (size_t r = 0; r < w.rows; r += LANES) {
        size_t rows = w.rows - r < LANES ? w.rows - r : LANES;
        for (size_t c = 0; c < w.cols; c += LANES) {
            const struct simd_transpose tile = {
                .src = w.src + r * w.src_stride + c,
                .src_stride = w.src_stride,
                .dst = w.dst + c * w.dst_stride + r,
                .dst_stride = w.dst_stride,
                .bias = w.bias != NULL ? w.bias + r : NULL,
                .add = w.add != NULL ? w.add + c * w.dst_stride + r : NULL,
            };
            /* Constant bounds let the compiler unroll and vectorize the common case. */
            if (rows == LANES && w.cols - c >= LANES)
                transpose_tile(tile, LANES, LANES);
            else
                transpose_tile(tile, rows, w.cols - c < LANES ? w.cols - c : LANES);
        }
    }
}

static void SIMD_NAME(add_bias)(float *y, size_t rows, size_t n, const float *bias,
                                const float *add)
{
    for (size_t r = 0; r < rows; r++) {
        float *row = y + r * n;
        if (add == NULL) {
            for (size_t j = 0; j < n; j++)
                row[j] += bias[j];
        } else {
            const float *more = add + r * n;
            for (size_t j = 0; j < n; j++)
                row[j] = row[j] + bias[j] + more[j];
        }
    }
}

static inline float sum_row(const float *x, size_t n)
{
    vec a = {0};
    vec b = {0};
    size_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        a += LOAD(x + j);
        b += LOAD(x + j + LANES);
    }
    a += b;
    float sum = add_lanes(&a);
    for (; j < n; j++)
        sum += x[j];
    return sum;
}

/* Around the mean, in a second pass: squares minus the squared mean would cancel. */
static inline float sum_squared_distance(const float *x, size_t n, float mean)
{
    vec a = {0};
    vec b = {0};
    size_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        vec d = LOAD(x + j) - mean;
        vec e = LOAD(x + j + LANES) - mean;
        a += d * d;
        b += e * e;
    }
    a += b;
    float sum = add_lanes(&a);
    for (; j < n; j++)
        sum += (x[j] - mean) * (x[j] - mean);
    return sum;
}

/* Without branches but a selection, so that compilers vectorize the loops around it. */
static inline uint32_t bf16_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof(bits));
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

static void SIMD_NAME(to_bf16)(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (uint16_t)bf16_bits(x[i]);
}

static void SIMD_NAME(round_bf16)(const float *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bf16_bits(x[i]) << 16;
        memcpy(&y[i], &bits, sizeof(bits));
    }
}

/* n elements of a row, from where x and y point, by the parameters from `at` on. */
static inline void normalize(const struct simd_norm *norm, size_t at, const float *x, size_t n,
                             float m, float s, float *y)
{
    const float *weight = norm->weight + at, *bias = norm->bias + at;

    for (size_t j = 0; j < n; j++)
        y[j] = (x[j] - m) * s * weight[j] + bias[j];
    /* Not fmaxf: a NaN must stay a NaN. */
    if (norm->relu)
        for (size_t j = 0; j < n; j++)
            y[j] = y[j] < 0.0f ? 0.0f : y[j];
}

static void SIMD_NAME(norm_forward)(const struct simd_norm *norm, const float *x, size_t rows,
                                    float *y, uint16_t *half, float *mean, float *rstd)
{
    enum { BLOCK = 1024 };
    float block[BLOCK];
    size_t n = norm->n;

    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * n;
        float m = sum_row(in, n) / (float)n;
        float s = 1.0f / sqrtf(sum_squared_distance(in, n, m) / (float)n + norm->eps);
        mean[r] = m;
        rstd[r] = s;
        for (size_t j = 0; j < n; j += BLOCK) {
            size_t count = n - j < BLOCK ? n - j : BLOCK;
            float *out = y != NULL ? y + r * n + j : block;
            normalize(norm, j, in + j, count, m, s, out);
            if (half != NULL)
                SIMD_NAME(to_bf16)(out, half + r * n + j, count);
        }
    }
}

/* First sweep over a row: closes the ReLU, adds up the parameters' gradients, and gives the sums
 * of g*w and g*w*xhat that the second one needs. */
struct norm_sums {
    float g, gx;
};

static inline struct norm_sums norm_backward_sums(const struct simd_norm_backward *of,
                                                  const float *x, const float *g, float m, float s)
{
    const float *w = of->norm->weight;
    float *d_weight = of->d_weight, *d_bias = of->d_bias;
    size_t n = of->norm->n;
    struct norm_sums sums;
    vec a = {0};
    vec b = {0};
    size_t j = 0;

    for (; j + LANES <= n; j += LANES) {
        vec gj = LOAD(g + j);
        vec xhat = (LOAD(x + j) - m) * s;
        vec gw = gj * LOAD(w + j);
        STORE(d_weight + j, LOAD(d_weight + j) + gj * xhat);
        STORE(d_bias + j, LOAD(d_bias + j) + gj);
        a += gw;
        b += gw * xhat;
    }
    sums.g = add_lanes(&a);
    sums.gx = add_lanes(&b);
    for (; j < n; j++) {
        float xhat = (x[j] - m) * s;
        d_weight[j] += g[j] * xhat;
        d_bias[j] += g[j];
        sums.g += g[j] * w[j];
        sums.gx += g[j] * w[j] * xhat;
    }
    return sums;
}

/* A positive bfloat16 is a positive integer. */
static inline void close_relu(const float *y, const uint16_t *half, size_t n, float *g)
{
    if (half != NULL)
        for (size_t j = 0; j < n; j++)
            g[j] = (int16_t)half[j] > 0 ? g[j] : 0.0f;
    else
        for (size_t j = 0; j < n; j++)
            g[j] = y[j] > 0.0f ? g[j] : 0.0f;
}

static void SIMD_NAME(norm_backward)(const struct simd_norm_backward *of)
{
    size_t n = of->norm->n;
    const float *w = of->norm->weight;
    float *d_sum = of->d_sum;

    for (size_t r = 0; r < of->rows; r++) {
        const float *in = of->x + r * n;
        float *g = of->grad + r * n;
        float m = of->mean[r];
        float s = of->rstd[r];

        if (of->norm->relu)
            close_relu(of->y != NULL ? of->y + r * n : NULL,
                       of->half_y != NULL ? of->half_y + r * n : NULL, n, g);
        struct norm_sums sums = norm_backward_sums(of, in, g, m, s);
        float mean_g = sums.g / (float)n;
        float mean_gx = sums.gx / (float)n;
        for (size_t j = 0; j < n; j++)
            g[j] = s * (g[j] * w[j] - mean_g - (in[j] - m) * s * mean_gx);
        if (of->half_grad != NULL)
            SIMD_NAME(to_bf16)(g, of->half_grad + r * n, n);
        if (d_sum != NULL)
            for (size_t j = 0; j < n; j++)
                d_sum[j] += g[j];
    }
}

static void SIMD_NAME(column_sums)(const float *x, size_t rows, size_t n, float *sum)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t j = 0; j < n; j++)
            sum[j] += x[r * n + j];
}

static double SIMD_NAME(sum_squares)(const float *x, size_t n)
{
    vec_double sums[4] = {{0}};
    double t[LANES / 2];
    double sum = 0.0;
    size_t j = 0;

    /* Four sums, so that an addition need not wait for the one before. */
    for (; j + 2 * LANES <= n; j += 2 * LANES)
        for (int k = 0; k < 4; k++) {
            vec_half h = *(const vec_half *)(x + j + k * (LANES / 2));
            vec_double d = __builtin_convertvector(h, vec_double);
            sums[k] += d * d;
        }
    sums[0] += sums[1];
    sums[2] += sums[3];
    sums[0] += sums[2];
    memcpy(t, &sums[0], sizeof(t));
    for (int i = 0; i < LANES / 2; i++)
        sum += t[i];
    for (; j < n; j++)
        sum += (double)x[j] * (double)x[j];
    return sum;
}

static void SIMD_NAME(adam)(float *restrict p, float *restrict m, float *restrict v,
                            const float *restrict g, size_t n, const struct simd_adam *c)
{
    const struct simd_adam k = *c;
    const float rest1 = 1.0f - k.beta1;
    const float rest2 = 1.0f - k.beta2;

    for (size_t i = 0; i < n; i++) {
        float gi = g[i] * k.grad_scale + k.l2 * p[i];
        float mi = k.beta1 * m[i] + rest1 * gi;
        float vi = k.beta2 * v[i] + rest2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * k.decay - k.step_size * (mi / (sqrtf(vi) / k.root_bias + k.eps));
    }
}

static void SIMD_NAME(sgd)(float *restrict p, float *restrict m, const float *restrict g, size_t n,
                           const struct simd_sgd *c)
{
    const struct simd_sgd k = *c;

    if (m == NULL) {
        for (size_t i = 0; i < n; i++)
            p[i] -= k.step_size * (g[i] * k.grad_scale + k.l2 * p[i]);
        return;
    }
    /* The first step's momentum is the gradient itself, as m starts at zero. */
    for (size_t i = 0; i < n; i++) {
        m[i] = k.momentum * m[i] + (g[i] * k.grad_scale + k.l2 * p[i]);
        p[i] -= k.step_size * m[i];
    }
}

#include "experts/simd_math.h"

const struct simd_ops SIMD_NAME(simd_ops) = {
    .name = SIMD_TEXT,
    .transpose = SIMD_NAME(transpose),
    .add_bias = SIMD_NAME(add_bias),
    .norm_forward = SIMD_NAME(norm_forward),
    .norm_backward = SIMD_NAME(norm_backward),
    .column_sums = SIMD_NAME(column_sums),
    .sum_squares = SIMD_NAME(sum_squares),
    .adam = SIMD_NAME(adam),
    .sgd = SIMD_NAME(sgd),
    .softmax = SIMD_NAME(softmax),
    .softmax_backward = SIMD_NAME(softmax_backward),
    .to_bf16 = SIMD_NAME(to_bf16),
    .round_bf16 = SIMD_NAME(round_bf16),
    .relu = SIMD_NAME(relu),
    .relu_backward = SIMD_NAME(relu_backward),
    .gelu = SIMD_NAME(gelu),
    .gelu_backward = SIMD_NAME(gelu_backward),
    .silu_mul = SIMD_NAME(silu_mul),
    .silu_mul_backward = SIMD_NAME(silu_mul_backward),
};
