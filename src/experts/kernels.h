/*
 * The heavy operations of experts, each spread over the cores when that pays: matrix products by
 * oneDNN, the rest by simd.h. Matrices are row-major float32; a weight is PyTorch's [out, in].
 *
 * Which product of oneDNN is called, and with how many threads, follows from the shapes alone, so
 * equal calls give equal bits.
 */
#ifndef SKEP_EXPERTS_KERNELS_H
#define SKEP_EXPERTS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#include "experts/half.h"
#include "experts/simd.h"

/*
 * A linear layer with all that its products need. With `half` they are computed in bfloat16: the
 * operands are rounded to it, sums and results stay float32.
 */
struct kernel_linear {
    const float *weight;            /* [out, in] */
    const float *bias;              /* [out]; NULL: none */
    const struct half_matrix *half; /* of weight; NULL: float32 */
    size_t rows;
    size_t in;
    size_t out;
    float *scratch; /* kernel_linear_scratch() floats */
};

/* Whether products in bfloat16 read activations that are bfloat16 already, so that what is between
 * two layers need not be float32: where the CPU has no bfloat16 they are rounded floats. */
bool kernel_takes_half(void);

/* Numbers between two operations, written once: bfloat16 where half is not NULL, else float32. */
struct kernel_values {
    float *full;
    uint16_t *half;
};

/* What a product reads: half where it is not NULL, else full, which is rounded if need be. */
struct kernel_input {
    const float *full;
    const uint16_t *half;
};

static inline struct kernel_input kernel_floats(const float *x)
{
    return (struct kernel_input){.full = x};
}

static inline struct kernel_values kernel_to(float *x)
{
    return (struct kernel_values){.full = x};
}

static inline struct kernel_input kernel_input(struct kernel_values v)
{
    return (struct kernel_input){v.full, v.half};
}

/* Floats of scratch that the products of a linear layer want; may be 0. */
size_t kernel_linear_scratch(size_t rows, size_t in, size_t out, bool is_half);

/*
 * y[rows, out] = x[rows, in] weight^T + bias + add.
 * @param add  [rows, out], or NULL: a residual.
 * @return SKEP_RESOURCE_EXHAUSTED or SKEP_INTERNAL if oneDNN fails; so for all below.
 */
SKEP_MUST_CHECK skep_status kernel_linear(const struct kernel_linear *l, struct kernel_input x,
                                          const float *add, float *y, struct skep_error *err);

/* dx[rows, in] = dy[rows, out] weight + add. add may be NULL, or dx itself. */
SKEP_MUST_CHECK skep_status kernel_linear_grad_input(const struct kernel_linear *l,
                                                     struct kernel_input dy, const float *add,
                                                     float *dx, struct skep_error *err);

/* dw[out, in] = dy^T x. */
SKEP_MUST_CHECK skep_status kernel_linear_grad_weight(const struct kernel_linear *l,
                                                      struct kernel_input dy, struct kernel_input x,
                                                      float *dw, struct skep_error *err);

/* sum[n] = column sums of x[rows, n]. */
void kernel_column_sums(const float *x, size_t rows, size_t n, float *sum);

/* simd.h's norm_forward over all rows. */
void kernel_norm(const struct simd_norm *norm, const float *x, size_t rows, struct kernel_values y,
                 float *mean, float *rstd);

/* What the threads of kernel_norm_backward() add up in before it is merged: floats of scratch. */
size_t kernel_norm_backward_scratch(size_t n);

/* simd.h's norm_backward over all rows; grad.half, where not NULL, gets what grad.full becomes. */
struct kernel_norm_back {
    const struct simd_norm *norm;
    const float *x;
    struct kernel_input y;
    const float *mean, *rstd;
    size_t rows;
    struct kernel_values grad;
    float *scratch;
    float *d_weight; /* [n], written */
    float *d_bias;   /* [n], written */
    float *d_sum;    /* [n], written: column sums of dL/dx; NULL if not wanted */
};
void kernel_norm_backward(const struct kernel_norm_back *b);

/* An elementwise function over large arrays; arguments as in simd.h. */
void kernel_map(simd_map fn, const float *a, const float *b, float *c, float *d, size_t n);
/* The same with one output, which is not an input. */
void kernel_map_to(simd_map fn, const float *a, const float *b, struct kernel_values c, size_t n);

/* Sum of squares of a large array; not finite exactly if an element is not. */
double kernel_sum_squares(const float *x, size_t n);

#endif
