/* Matrix products and row-wise operations, spread over cores. */
#include "experts/kernels.h"

#include <string.h>
#include <dnnl.h>

#include "base/error.h"
#include "experts/parallel.h"
#include "experts/product.h"

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
    PACKED_BELOW_ROWS = 512, /* from where on a packed weight is no faster */
};

static bool is_direct(size_t rows)
{
    return rows < DIRECT_BELOW_ROWS || rows >= DIRECT_FROM_ROWS;
}

static bool is_single(size_t m, size_t n, size_t k)
{
    return 2.0 * (double)m * (double)n * (double)k <= (double)SINGLE_FLOPS;
}

/* c[m, n] = a b + beta c; ta, tb tell whether a and b are stored transposed. */
struct gemm {
    char ta, tb;
    size_t m, n, k;
    const float *a, *b;
    float beta;
    float *c;
};

static skep_status gemm(const struct gemm *g, struct skep_error *err)
{
    size_t lda = g->ta == 'N' ? g->k : g->m;
    size_t ldb = g->tb == 'N' ? g->n : g->k;
    int threads = is_single(g->m, g->n, g->k) ? parallel_single() : 0;

    parallel_prepare();
    dnnl_status_t rc =
        dnnl_sgemm(g->ta, g->tb, (dnnl_dim_t)g->m, (dnnl_dim_t)g->n, (dnnl_dim_t)g->k, 1.0f, g->a,
                   (dnnl_dim_t)lda, g->b, (dnnl_dim_t)ldb, g->beta, g->c, (dnnl_dim_t)g->n);

    parallel_restore(threads);
    if (rc == dnnl_success)
        return SKEP_OK;
    return error_set(err, rc == dnnl_out_of_memory ? SKEP_RESOURCE_EXHAUSTED : SKEP_INTERNAL,
                     "matrix product of [%zu, %zu] and [%zu, %zu]: oneDNN status %d", g->m, g->k,
                     g->k, g->n, (int)rc);
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
    simd_ops()->transpose(&(struct simd_transpose){
        .src = t->src + first * t->cols,
        .rows = last - first,
        .cols = t->cols,
        .src_stride = t->cols,
        .dst = t->dst + first,
        .dst_stride = t->rows,
        .bias = t->bias != NULL ? t->bias + first : NULL,
        .add = t->add != NULL ? t->add + first : NULL,
    });
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

/* --- in bfloat16 --------------------------------------------------------------------------- */

struct rounding {
    const float *from;
    void *to;
};

static void to_bf16_range(void *arg, size_t first, size_t last, unsigned part)
{
    const struct rounding *r = arg;

    (void)part;
    simd_ops()->to_bf16(r->from + first, (uint16_t *)r->to + first, last - first);
}

static void round_range(void *arg, size_t first, size_t last, unsigned part)
{
    const struct rounding *r = arg;

    (void)part;
    simd_ops()->round_bf16(r->from + first, (float *)r->to + first, last - first);
}

/* n values rounded into scratch, as what this CPU multiplies: bfloat16, or rounded floats. */
static void *rounded(const float *x, size_t n, float *scratch)
{
    struct rounding r = {x, scratch};

    parallel_range(n, GRAIN, TILE, product_available() ? to_bf16_range : round_range, &r);
    return scratch;
}

/* Floats that n rounded values take, with what follows them aligned. */
static size_t rounded_floats(size_t n)
{
    size_t floats = product_available() ? n / 2 + 1 : n;

    return (floats + TILE - 1) / TILE * TILE;
}

/* The n values of an operand as bfloat16. */
static const uint16_t *half_values(struct kernel_input x, size_t n, float *scratch)
{
    return x.half != NULL ? x.half : rounded(x.full, n, scratch);
}

static skep_status half_forward(const struct kernel_linear *l, struct kernel_input x,
                                const float *add, float *y, struct skep_error *err)
{
    const bool is_packed = l->half->packed != NULL && l->rows < PACKED_BELOW_ROWS;
    const struct product p = {
        .kind = is_packed ? PRODUCT_PACKED : PRODUCT_NT,
        .m = l->rows,
        .n = l->out,
        .k = l->in,
        .accumulate = add != NULL,
        .bias = l->bias,
        .single = is_single(l->rows, l->out, l->in),
    };
    const uint16_t *xh = half_values(x, l->rows * l->in, l->scratch);

    if (add != NULL)
        memcpy(y, add, l->rows * l->out * sizeof(*y));
    return product_run(&p, xh, is_packed ? l->half->packed : l->half->plain, y, err);
}

static skep_status half_grad_input(const struct kernel_linear *l, struct kernel_input dy,
                                   const float *add, float *dx, struct skep_error *err)
{
    const struct product p = {
        .kind = PRODUCT_NN,
        .m = l->rows,
        .n = l->in,
        .k = l->out,
        .accumulate = add != NULL,
        .single = is_single(l->rows, l->in, l->out),
    };
    const uint16_t *dyh = half_values(dy, l->rows * l->out, l->scratch);

    return product_run(&p, dyh, l->half->plain, dx, err);
}

static skep_status half_grad_weight(const struct kernel_linear *l, struct kernel_input dy,
                                    struct kernel_input x, float *dw, struct skep_error *err)
{
    const struct product p = {
        .kind = PRODUCT_TN,
        .m = l->out,
        .n = l->in,
        .k = l->rows,
        .single = is_single(l->out, l->in, l->rows),
    };
    const size_t dy_count = l->rows * l->out;
    const uint16_t *dyh = half_values(dy, dy_count, l->scratch);
    const uint16_t *xh = half_values(x, l->rows * l->in, l->scratch + rounded_floats(dy_count));

    return product_run(&p, dyh, xh, dw, err);
}

/* --- linear layers ------------------------------------------------------------------------- */

size_t kernel_linear_scratch(size_t rows, size_t in, size_t out, bool is_half)
{
    size_t floats = is_direct(rows) ? 0 : rows * (in + out) + TILE;

    if (!is_half)
        return floats;
    size_t rounding = rounded_floats(rows * in) + rounded_floats(rows * out);
    return product_available() ? rounding : rounding + floats;
}

/* The layer as float32's functions compute it where the CPU has no bfloat16: the weight rounded,
 * and scratch left over beside the rounded operands. */
static struct kernel_linear rounded_layer(const struct kernel_linear *l)
{
    struct kernel_linear out = *l;

    out.weight = l->half->plain;
    out.half = NULL;
    out.scratch = l->scratch + rounded_floats(l->rows * l->in) + rounded_floats(l->rows * l->out);
    return out;
}

static skep_status forward_direct(const struct kernel_linear *l, const float *x, const float *add,
                                  float *y, struct skep_error *err)
{
    struct bias_rows b = {y, l->out, l->bias, add};
    /* A residual without a bias goes in first, as it needs no other pass then. */
    bool is_first = l->bias == NULL && add != NULL;

    if (is_first)
        memcpy(y, add, l->rows * l->out * sizeof(*y));
    skep_status rc = gemm(
        &(struct gemm){'N', 'T', l->rows, l->out, l->in, x, l->weight, is_first ? 1.0f : 0.0f, y},
        err);
    if (rc == SKEP_OK && l->bias != NULL)
        parallel_range(l->rows, grain_rows(l->out), 1, add_bias_rows, &b);
    return rc;
}

static skep_status forward_float(const struct kernel_linear *l, const float *x, const float *add,
                                 float *y, struct skep_error *err)
{
    float *xt = l->scratch;
    float *yt = l->scratch + (l->rows * l->in + TILE - 1) / TILE * TILE;

    if (is_direct(l->rows))
        return forward_direct(l, x, add, y, err);
    transpose(x, l->rows, l->in, xt, NULL, NULL);
    skep_status rc =
        gemm(&(struct gemm){'N', 'N', l->out, l->rows, l->in, l->weight, xt, 0.0f, yt}, err);
    if (rc == SKEP_OK)
        transpose(yt, l->out, l->rows, y, l->bias, add);
    return rc;
}

bool kernel_takes_half(void)
{
    return product_available();
}

skep_status kernel_linear(const struct kernel_linear *l, struct kernel_input x, const float *add,
                          float *y, struct skep_error *err)
{
    if (l->half == NULL)
        return forward_float(l, x.full, add, y, err);
    if (product_available())
        return half_forward(l, x, add, y, err);
    const struct kernel_linear r = rounded_layer(l);
    return forward_float(&r, rounded(x.full, l->rows * l->in, l->scratch), add, y, err);
}

skep_status kernel_linear_grad_input(const struct kernel_linear *l, struct kernel_input dy,
                                     const float *add, float *dx, struct skep_error *err)
{
    const float *weight = l->weight;
    const float *full = dy.full;

    if (add != NULL && add != dx)
        memcpy(dx, add, l->rows * l->in * sizeof(*dx));
    if (l->half != NULL && product_available())
        return half_grad_input(l, dy, add, dx, err);
    if (l->half != NULL) {
        weight = l->half->plain;
        full = rounded(full, l->rows * l->out, l->scratch);
    }
    return gemm(&(struct gemm){'N', 'N', l->rows, l->in, l->out, full, weight,
                               add != NULL ? 1.0f : 0.0f, dx},
                err);
}

skep_status kernel_linear_grad_weight(const struct kernel_linear *l, struct kernel_input dy,
                                      struct kernel_input x, float *dw, struct skep_error *err)
{
    const float *dy_full = dy.full;
    const float *x_full = x.full;

    if (l->half != NULL && product_available())
        return half_grad_weight(l, dy, x, dw, err);
    if (l->half != NULL) {
        dy_full = rounded(dy_full, l->rows * l->out, l->scratch);
        x_full = rounded(x_full, l->rows * l->in, l->scratch + rounded_floats(l->rows * l->out));
    }
    return gemm(&(struct gemm){'T', 'N', l->out, l->in, l->rows, dy_full, x_full, 0.0f, dw}, err);
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
    struct kernel_values y;
    float *mean;
    float *rstd;
};

static void norm_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct norm_job *j = arg;
    size_t at = first * j->norm->n;

    (void)part;
    simd_ops()->norm_forward(
        j->norm, j->x + at, last - first, j->y.full != NULL ? j->y.full + at : NULL,
        j->y.half != NULL ? j->y.half + at : NULL, j->mean + first, j->rstd + first);
}

void kernel_norm(const struct simd_norm *norm, const float *x, size_t rows, struct kernel_values y,
                 float *mean, float *rstd)
{
    struct norm_job j = {.norm = norm, .x = x, .y = y, .mean = mean, .rstd = rstd};

    parallel_range(rows, grain_rows(norm->n), 1, norm_rows, &j);
}

size_t kernel_norm_backward_scratch(size_t n)
{
    return (size_t)parallel_parts(PARALLEL_MAX_PARTS, 1) * 3 * n;
}

static void norm_backward_rows(void *arg, size_t first, size_t last, unsigned part)
{
    const struct kernel_norm_back *b = arg;
    size_t n = b->norm->n;
    size_t at = first * n;
    /* For each part: weight, bias and sum gradients, n each. */
    float *mine = b->scratch + (size_t)part * 3 * n;

    memset(mine, 0, 3 * n * sizeof(*mine));
    simd_ops()->norm_backward(&(struct simd_norm_backward){
        .norm = b->norm,
        .x = b->x + at,
        .y = b->y.full != NULL ? b->y.full + at : NULL,
        .half_y = b->y.half != NULL ? b->y.half + at : NULL,
        .mean = b->mean + first,
        .rstd = b->rstd + first,
        .rows = last - first,
        .grad = b->grad.full + at,
        .half_grad = b->grad.half != NULL ? b->grad.half + at : NULL,
        .d_weight = mine,
        .d_bias = mine + n,
        .d_sum = mine + 2 * n,
    });
}

/* Adds the parts' sums in their order, which is the same each time. */
static void merge_parts(const float *partial, unsigned parts, size_t n, float *out)
{
    memcpy(out, partial, n * sizeof(*out));
    for (unsigned p = 1; p < parts; p++)
        simd_ops()->column_sums(partial + (size_t)p * 3 * n, 1, n, out);
}

void kernel_norm_backward(const struct kernel_norm_back *b)
{
    size_t n = b->norm->n;
    size_t grain = grain_rows(n);
    /* Each part is a whole number of rows, at least one. */
    unsigned parts = parallel_parts(b->rows, grain);

    parallel_range(b->rows, grain, 1, norm_backward_rows, (void *)(uintptr_t)b);
    merge_parts(b->scratch, parts, n, b->d_weight);
    merge_parts(b->scratch + n, parts, n, b->d_bias);
    if (b->d_sum != NULL)
        merge_parts(b->scratch + 2 * n, parts, n, b->d_sum);
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

struct map_to_job {
    simd_map fn;
    const float *a;
    const float *b;
    uint16_t *c;
};

static void map_to_half_range(void *arg, size_t first, size_t last, unsigned part)
{
    enum { BLOCK = 1024 };
    const struct map_to_job *j = arg;
    float block[BLOCK];

    (void)part;
    for (size_t at = first; at < last; at += BLOCK) {
        size_t n = last - at < BLOCK ? last - at : BLOCK;
        j->fn(j->a + at, j->b != NULL ? j->b + at : NULL, block, NULL, n);
        simd_ops()->to_bf16(block, j->c + at, n);
    }
}

void kernel_map_to(simd_map fn, const float *a, const float *b, struct kernel_values c, size_t n)
{
    struct map_to_job j = {fn, a, b, c.half};

    if (c.half != NULL)
        parallel_range(n, GRAIN, TILE, map_to_half_range, &j);
    else
        kernel_map(fn, a, b, c.full, NULL, n);
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
