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

/* Floats of scratch that the products of a linear layer want; may be 0. */
size_t kernel_linear_scratch(size_t rows, size_t in, size_t out, bool is_half);

/*
 * y[rows, out] = x[rows, in] weight^T + bias + add.
 * @param add  [rows, out], or NULL: a residual.
 * @return SKEP_RESOURCE_EXHAUSTED or SKEP_INTERNAL if oneDNN fails; so for all below.
 */
SKEP_MUST_CHECK skep_status kernel_linear(const struct kernel_linear *l, const float *x,
                                          const float *add, float *y, struct skep_error *err);

/* dx[rows, in] = dy[rows, out] weight + add. add may be NULL, or dx itself. */
SKEP_MUST_CHECK skep_status kernel_linear_grad_input(const struct kernel_linear *l, const float *dy,
                                                     const float *add, float *dx,
                                                     struct skep_error *err);

/* dw[out, in] = dy^T x. */
SKEP_MUST_CHECK skep_status kernel_linear_grad_weight(const struct kernel_linear *l,
                                                      const float *dy, const float *x, float *dw,
                                                      struct skep_error *err);

/* sum[n] = column sums of x[rows, n]. */
void kernel_column_sums(const float *x, size_t rows, size_t n, float *sum);

/* simd.h's norm_forward over all rows. */
void kernel_norm(const struct simd_norm *norm, const float *x, size_t rows, float *y, float *mean,
                 float *rstd);

/* What the threads of kernel_norm_backward() add up in before it is merged: floats of scratch. */
size_t kernel_norm_backward_scratch(size_t n);

struct norm_grads {
    float *weight; /* [n], written */
    float *bias;   /* [n], written */
    float *sum;    /* [n], written: column sums of dL/dx; NULL if not wanted */
};
/* simd.h's norm_backward over all rows. */
void kernel_norm_backward(const struct simd_norm *norm, const float *x, const float *y,
                          const float *mean, const float *rstd, size_t rows, float *grad,
                          const struct norm_grads *out, float *scratch);

/* An elementwise function over large arrays; arguments as in simd.h. */
void kernel_map(simd_map fn, const float *a, const float *b, float *c, float *d, size_t n);

/* Sum of squares of a large array; not finite exactly if an element is not. */
double kernel_sum_squares(const float *x, size_t n);

#endif
