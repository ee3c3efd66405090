/* Matrix products and row-wise operations, spread over cores. */
#include "experts/kernels.h"

#include <string.h>
#include <dnnl.h>

#include "base/error.h"
#include "experts/parallel.h"

enum {
    /* Up to so many floating point operations one thread is faster than waking a second one, which
     * costs tens of microseconds when it sleeps: 8 M of them take about 30 us. */
    SINGLE_FLOPS = 8 << 20,
    /* Elements that a thread must have at least, for the same reason: of loops at 0.15 to 0.3 ns
     * an element, and of the sum of squares at 0.05. */
    GRAIN = 64 << 10,
    SQUARES_GRAIN = 256 << 10,
    TILE = 16,
    /*
     * x weight^T, both read along rows, is the slow case of oneDNN's sgemm: 5 times slower than
     * the others with 32 rows of 4096, 1.3 times with 512, equal from 1024 on (2.6.3, AVX-512). So
     * in between we compute (weight x^T)^T, whose two transpositions cost 2% of that product.
     */
    DIRECT_BELOW_ROWS = 8,
    DIRECT_FROM_ROWS = 1024,
};

static bool is_direct(size_t rows)
{
    return rows < DIRECT_BELOW_ROWS || rows >= DIRECT_FROM_ROWS;
}

/* c[m, n] = a b + beta c; ta, tb tell whether a and b are stored transposed. */
static skep_status gemm(char ta, char tb, size_t m, size_t n, size_t k, const float *a,
                        const float *b, float beta, float *c, struct skep_error *err)
{
    size_t lda = ta == 'N' ? k : m;
    size_t ldb = tb == 'N' ? n : k;
    bool single = 2.0 * (double)m * (double)n * (double)k <= (double)SINGLE_FLOPS;
    int threads = single ? parallel_single() : 0;
    dnnl_status_t rc = dnnl_sgemm(ta, tb, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a,
                                  (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)n);

    parallel_restore(threads);
    if (rc == dnnl_success)
        return SKEP_OK;
    return error_set(err, rc == dnnl_out_of_memory ? SKEP_RESOURCE_EXHAUSTED : SKEP_INTERNAL,
                     "matrix product of [%zu, %zu] and [%zu, %zu]: oneDNN status %d", m, k, k, n,
                     (int)rc);
}

/* Rows a thread must have at least, for rows of n elements. */
static size_t grain_rows(size_t n)
{
    return n >= GRAIN ? 1 : (GRAIN + n - 1) / n;
}

struct transposition {
    const float *src;
    size_t rows;
    size_t cols;
    float *dst;
    const float *bias;
    const float *add;
};

static void transpose_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct transposition *t = arg;

    (void)part;
    simd_ops()->transpose(t->src + first * t->cols, last - first, t->cols, t->cols, t->dst + first,
                          t->rows, t->bias != NULL ? t->bias + first : NULL,
                          t->add != NULL ? t->add + first : NULL);
}

/* dst[cols, rows] = src[rows, cols]^T + bias + add, bias along src's rows. */
static void transpose(const float *src, size_t rows, size_t cols, float *dst, const float *bias,
                      const float *add)
{
    struct transposition t = {src, rows, cols, dst, bias, add};

    parallel_range(rows, grain_rows(cols), TILE, transpose_rows, &t);
}

struct bias_rows {
    float *y;
    size_t n;
    const float *bias;
    const float *add;
};

static void add_bias_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct bias_rows *b = arg;
    size_t at = first * b->n;

    (void)part;
    simd_ops()->add_bias(b->y + at, last - first, b->n, b->bias,
                         b->add != NULL ? b->add + at : NULL);
}

size_t kernel_linear_scratch(size_t rows, size_t in, size_t out)
{
    return is_direct(rows) ? 0 : rows * (in + out) + TILE;
}

skep_status kernel_linear(const float *x, const float *weight, const float *bias, const float *add,
                          float *y, size_t rows, size_t in, size_t out, float *scratch,
                          struct skep_error *err)
{
    if (is_direct(rows)) {
        struct bias_rows b = {y, out, bias, add};
        /* The residual goes in first, as it needs no other pass then. */
        if (bias == NULL && add != NULL)
            memcpy(y, add, rows * out * sizeof(*y));
        skep_status rc = gemm('N', 'T', rows, out, in, x, weight,
                              bias == NULL && add != NULL ? 1.0f : 0.0f, y, err);
        if (rc == SKEP_OK && bias != NULL)
            parallel_range(rows, grain_rows(out), 1, add_bias_rows, &b);
        return rc;
    }
    float *xt = scratch;
    float *yt = scratch + (rows * in + TILE - 1) / TILE * TILE;
    transpose(x, rows, in, xt, NULL, NULL);
    skep_status rc = gemm('N', 'N', out, rows, in, weight, xt, 0.0f, yt, err);
    if (rc == SKEP_OK)
        transpose(yt, out, rows, y, bias, add);
    return rc;
}

skep_status kernel_linear_grad_input(const float *dy, const float *weight, const float *add,
                                     float *dx, size_t rows, size_t in, size_t out,
                                     struct skep_error *err)
{
    if (add != NULL && add != dx)
        memcpy(dx, add, rows * in * sizeof(*dx));
    return gemm('N', 'N', rows, in, out, dy, weight, add != NULL ? 1.0f : 0.0f, dx, err);
}

skep_status kernel_linear_grad_weight(const float *dy, const float *x, float *dw, size_t rows,
                                      size_t in, size_t out, struct skep_error *err)
{
    return gemm('T', 'N', out, in, rows, dy, x, 0.0f, dw, err);
}

struct column_sums {
    const float *x;
    size_t rows;
    size_t n;
    float *sum;
};

/* Threads share the columns, not the rows: each sum is made by one thread, in one order. */
static void sum_columns(void *arg, size_t first, size_t last, unsigned part)
{
    const struct column_sums *c = arg;

    (void)part;
    memset(c->sum + first, 0, (last - first) * sizeof(*c->sum));
    for (size_t r = 0; r < c->rows; r++)
        simd_ops()->column_sums(c->x + r * c->n + first, 1, last - first, c->sum + first);
}

void kernel_column_sums(const float *x, size_t rows, size_t n, float *sum)
{
    struct column_sums c = {x, rows, n, sum};
    size_t grain = rows >= GRAIN ? TILE : (GRAIN + rows - 1) / rows;

    parallel_range(n, grain, TILE, sum_columns, &c);
}

struct norm_job {
    const struct simd_norm *norm;
    const float *x;
    float *y;
    float *mean;
    float *rstd;
};

static void norm_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct norm_job *j = arg;
    size_t at = first * j->norm->n;

    (void)part;
    simd_ops()->norm_forward(j->norm, j->x + at, last - first, j->y + at, j->mean + first,
                             j->rstd + first);
}

void kernel_norm(const struct simd_norm *norm, const float *x, size_t rows, float *y, float *mean,
                 float *rstd)
{
    struct norm_job j = {.norm = norm, .x = x, .y = y, .mean = mean, .rstd = rstd};

    parallel_range(rows, grain_rows(norm->n), 1, norm_rows, &j);
}

size_t kernel_norm_backward_scratch(size_t n)
{
    return (size_t)parallel_parts(PARALLEL_MAX_PARTS, 1) * 3 * n;
}

struct norm_backward_job {
    const struct simd_norm *norm;
    const float *x;
    const float *y;
    const float *mean;
    const float *rstd;
    float *grad;
    float *partial; /* for each part: weight, bias and sum gradients, n each */
};

static void norm_backward_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct norm_backward_job *j = arg;
    size_t n = j->norm->n;
    size_t at = first * n;
    float *mine = j->partial + (size_t)part * 3 * n;

    memset(mine, 0, 3 * n * sizeof(*mine));
    simd_ops()->norm_backward(j->norm, j->x + at, j->y != NULL ? j->y + at : NULL, j->mean + first,
                              j->rstd + first, last - first, j->grad + at, mine, mine + n,
                              mine + 2 * n);
}

/* Adds the parts' sums in their order, which is the same each time. */
static void merge_parts(const float *partial, unsigned parts, size_t n, float *out)
{
    memcpy(out, partial, n * sizeof(*out));
    for (unsigned p = 1; p < parts; p++)
        simd_ops()->column_sums(partial + (size_t)p * 3 * n, 1, n, out);
}

void kernel_norm_backward(const struct simd_norm *norm, const float *x, const float *y,
                          const float *mean, const float *rstd, size_t rows, float *grad,
                          const struct norm_grads *out, float *scratch)
{
    size_t n = norm->n;
    size_t grain = grain_rows(n);
    /* Each part is a whole number of rows, at least one. */
    unsigned parts = parallel_parts(rows, grain);
    struct norm_backward_job j = {norm, x, y, mean, rstd, grad, scratch};

    parallel_range(rows, grain, 1, norm_backward_rows, &j);
    merge_parts(scratch, parts, n, out->weight);
    merge_parts(scratch + n, parts, n, out->bias);
    if (out->sum != NULL)
        merge_parts(scratch + 2 * n, parts, n, out->sum);
}

struct map_job {
    simd_map fn;
    const float *a;
    const float *b;
    float *c;
    float *d;
};

static void map_range(void *arg, size_t first, size_t last, unsigned part)
{
    const struct map_job *j = arg;

    (void)part;
    j->fn(j->a + first, j->b != NULL ? j->b + first : NULL, j->c + first,
          j->d != NULL ? j->d + first : NULL, last - first);
}

void kernel_map(simd_map fn, const float *a, const float *b, float *c, float *d, size_t n)
{
    struct map_job j = {fn, a, b, c, d};

    parallel_range(n, GRAIN, TILE, map_range, &j);
}

struct squares_job {
    const float *x;
    double partial[PARALLEL_MAX_PARTS];
};

static void sum_squares_part(void *arg, size_t first, size_t last, unsigned part)
{
    struct squares_job *j = arg;

    j->partial[part] = simd_ops()->sum_squares(j->x + first, last - first);
}

double kernel_sum_squares(const float *x, size_t n)
{
    struct squares_job j = {.x = x};
    unsigned parts = parallel_parts(n, SQUARES_GRAIN);
    double sum = 0.0;

    parallel_range(n, SQUARES_GRAIN, TILE, sum_squares_part, &j);
    for (unsigned p = 0; p < parts; p++)
        sum += j.partial[p];
    return sum;
}
