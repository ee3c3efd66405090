/*
 * Inner loops over plain float arrays, each for one thread and a range of the data. They are
 * compiled several times for different instruction sets; simd_ops() gives the best set the CPU
 * has. All arrays may have any length and the alignment of a float, and do not overlap unless a
 * function says so.
 */
#ifndef SKEP_EXPERTS_SIMD_H
#define SKEP_EXPERTS_SIMD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One layer norm over rows of n: y = (x - mean) * rstd * weight + bias, then ReLU if asked. */
struct simd_norm {
    const float *weight;
    const float *bias;
    size_t n;
    float eps;
    bool relu;
};

/* Coefficients of one Adam or AdamW step, the same for every element. */
struct simd_adam {
    float grad_scale; /* of clipping; 1 without */
    float l2;         /* this times the parameter is added to the gradient */
    float decay;      /* parameters are multiplied by this first; 1 for Adam */
    float beta1;
    float beta2;
    float step_size; /* learning rate / (1 - beta1^t) */
    float root_bias; /* sqrt(1 - beta2^t) */
    float eps;
};

/* Coefficients of one step of SGD. */
struct simd_sgd {
    float grad_scale;
    float l2;
    float momentum;
    float step_size;
};

/*
 * Elementwise functions of n elements: what a, b, c and d are is said with each. Inputs are a, b;
 * outputs c, d; c may be an input too, and unused ones are NULL.
 */
typedef void (*simd_map)(const float *a, const float *b, float *c, float *d, size_t n);

/* dst[c][r] = src[r][c] for r < rows, c < cols; plus bias[r] and add[c][r] where not NULL. add has
 * dst's layout and may be dst. Strides are in elements. */
struct simd_transpose {
    const float *src;
    size_t rows, cols, src_stride;
    float *dst;
    size_t dst_stride;
    const float *bias, *add;
};

/*
 * grad holds dL/dy and becomes dL/dx in place. y, the forward result, tells where ReLU was open
 * (unused without ReLU); half_y is read in its place where not NULL. half_grad, where not NULL,
 * gets dL/dx as bfloat16. Adds to d_weight, d_bias and, where not NULL, the column sums of dL/dx to
 * d_sum.
 */
struct simd_norm_backward {
    const struct simd_norm *norm;
    const float *x, *y;
    const uint16_t *half_y;
    const float *mean, *rstd;
    size_t rows;
    float *grad;
    uint16_t *half_grad;
    float *d_weight, *d_bias, *d_sum;
};

struct simd_ops {
    const char *name;
    void (*transpose)(const struct simd_transpose *t);
    /* y[r] += bias, and += add[r] where not NULL, for rows of n. */
    void (*add_bias)(float *y, size_t rows, size_t n, const float *bias, const float *add);
    /* mean and rstd (one a row) are written; y may be x. Both or one of y and half, the same as
     * bfloat16, may be NULL. */
    void (*norm_forward)(const struct simd_norm *norm, const float *x, size_t rows, float *y,
                         uint16_t *half, float *mean, float *rstd);
    void (*norm_backward)(const struct simd_norm_backward *b);
    /* sum[j] += x[r][j] over rows of n. */
    void (*column_sums)(const float *x, size_t rows, size_t n, float *sum);
    /* Sum of squares in double: not finite exactly if an element is not. */
    double (*sum_squares)(const float *x, size_t n);
    void (*adam)(float *p, float *m, float *v, const float *g, size_t n, const struct simd_adam *c);
    /* m may be NULL: no momentum. */
    void (*sgd)(float *p, float *m, const float *g, size_t n, const struct simd_sgd *c);
    /*
     * Rows of n scores become weights that add up to 1, in place. Keys whose byte in `ignored`
     * (n of them, for all rows; NULL: none) is not 0 get weight 0; if all are, all get 0.
     */
    void (*softmax)(float *x, size_t rows, size_t n, const uint8_t *ignored);
    /* grad, dL/dweights, becomes scale * dL/dscores in place. */
    void (*softmax_backward)(const float *weights, size_t rows, size_t n, float scale, float *grad);
    /* Rounded to nearest even, as bfloat16 or, with the same values, as floats; y may be x then.
     * A NaN stays a NaN. */
    void (*to_bf16)(const float *x, uint16_t *y, size_t n);
    void (*round_bf16)(const float *x, float *y, size_t n);
    simd_map relu;              /* c = max(a, 0) */
    simd_map relu_backward;     /* c = c where a > 0, else 0 */
    simd_map gelu;              /* c = a/2 (1 + erf(a / sqrt 2)) */
    simd_map gelu_backward;     /* c *= gelu'(a) */
    simd_map silu_mul;          /* c = silu(a) b */
    simd_map silu_mul_backward; /* of silu(a) b, c being its gradient: c = da, d = db */
};

const struct simd_ops *simd_ops(void);

/* The variants, for simd.c and tests: call only what the CPU has. */
extern const struct simd_ops simd_ops_base;
#if defined(__x86_64__)
extern const struct simd_ops simd_ops_avx2;
extern const struct simd_ops simd_ops_avx512;
#endif

#endif
