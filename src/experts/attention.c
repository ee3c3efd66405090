/* Attention, one head of one sequence after the other, these shared out to threads. */
#include "experts/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <dnnl.h>

#include "base/error.h"
#include "experts/parallel.h"
#include "experts/simd.h"

enum {
    QUERY_BLOCK = 64, /* its scores with 1024 keys fill a quarter of a 1 MiB second-level cache */
    ALIGN = 16,
    GRAIN_FLOPS = 2 << 20, /* a thread must have at least so much to do */
};

static size_t score_floats(size_t seq)
{
    return (QUERY_BLOCK * seq + ALIGN - 1) / ALIGN * ALIGN;
}

/* Two blocks of scores for each thread: weights and their gradients. */
size_t attention_scratch(size_t seq)
{
    return (size_t)parallel_parts(PARALLEL_MAX_PARTS, 1) * 2 * score_floats(seq);
}

struct job {
    const struct attention *a;
    const float *grad; /* backward only */
    float *out;        /* out, or d_qkv */
    float scale;
    _Atomic int failed; /* a dnnl_status_t other than success */
};

/* One head of one sequence. Rows of q, k, v lie 3 * width floats apart, those of out width. */
struct head {
    struct job *job;
    const float *q;
    const float *k;
    const float *v;
    const uint8_t *ignored;
    size_t seq;
    size_t dim;
    size_t stride; /* of q, k, v */
    float *weights;
    float *grads;
};

/* A matrix with the distance of its rows. */
struct rows {
    const float *at;
    size_t stride;
};

/* c[m, n] = alpha a b + beta c; the letters of `form` tell whether a and b are transposed. */
struct matmul {
    const char *form; /* "NT" */
    size_t m, n, k;
    float alpha, beta;
};

static void product(struct job *job, struct matmul p, struct rows a, struct rows b, float *c,
                    size_t c_stride)
{
    dnnl_status_t rc = dnnl_sgemm(p.form[0], p.form[1], (dnnl_dim_t)p.m, (dnnl_dim_t)p.n,
                                  (dnnl_dim_t)p.k, p.alpha, a.at, (dnnl_dim_t)a.stride, b.at,
                                  (dnnl_dim_t)b.stride, p.beta, c, (dnnl_dim_t)c_stride);

    /* Relaxed: read after the loop's end, which orders everything. */
    if (rc != dnnl_success)
        atomic_store_explicit(&job->failed, (int)rc, memory_order_relaxed);
}

static struct head head_of(struct job *job, size_t index, unsigned part)
{
    const struct attention *a = job->a;
    size_t sequence = index / a->heads;
    size_t dim = a->width / a->heads;
    size_t stride = 3 * a->width;
    const float *q = a->qkv + sequence * a->seq * stride + index % a->heads * dim;
    float *scratch = a->scratch + (size_t)part * 2 * score_floats(a->seq);

    return (struct head){
        .job = job,
        .q = q,
        .k = q + a->width,
        .v = q + 2 * a->width,
        .ignored = a->ignored != NULL ? a->ignored + sequence * a->seq : NULL,
        .seq = a->seq,
        .dim = dim,
        .stride = stride,
        .weights = scratch,
        .grads = scratch + score_floats(a->seq),
    };
}

/* weights[n, seq] of the queries from `first`. */
static void make_weights(const struct head *h, size_t first, size_t n)
{
    product(h->job, (struct matmul){"NT", n, h->seq, h->dim, h->job->scale, 0.0f},
            (struct rows){h->q + first * h->stride, h->stride}, (struct rows){h->k, h->stride},
            h->weights, h->seq);
    simd_ops()->softmax(h->weights, n, h->seq, h->ignored);
}

static size_t block_rows(const struct head *h, size_t first)
{
    return h->seq - first < QUERY_BLOCK ? h->seq - first : QUERY_BLOCK;
}

static void forward_heads(void *arg, size_t first, size_t last, unsigned part)
{
    struct job *job = arg;
    const struct attention *a = job->a;

    for (size_t i = first; i < last; i++) {
        struct head h = head_of(job, i, part);
        float *out = job->out + i / a->heads * a->seq * a->width + i % a->heads * h.dim;
        for (size_t r = 0; r < h.seq; r += QUERY_BLOCK) {
            size_t n = block_rows(&h, r);
            make_weights(&h, r, n);
            product(job, (struct matmul){"NN", n, h.dim, h.seq, 1.0f, 0.0f},
                    (struct rows){h.weights, h.seq}, (struct rows){h.v, h.stride},
                    out + r * a->width, a->width);
        }
    }
}

/* Gradients of one head; those of k and v add up over the blocks of queries. */
static void backward_head(const struct head *h, const float *grad, size_t grad_stride, float *dq,
                          float *dk, float *dv)
{
    const struct rows weights = {h->weights, h->seq}, grads = {h->grads, h->seq};
    struct job *job = h->job;

    for (size_t r = 0; r < h->seq; r += QUERY_BLOCK) {
        const size_t n = block_rows(h, r);
        const struct rows g = {grad + r * grad_stride, grad_stride};
        const float beta = r == 0 ? 0.0f : 1.0f;
        make_weights(h, r, n);
        product(job, (struct matmul){"TN", h->seq, h->dim, n, 1.0f, beta}, weights, g, dv,
                h->stride);
        product(job, (struct matmul){"NT", n, h->seq, h->dim, 1.0f, 0.0f}, g,
                (struct rows){h->v, h->stride}, h->grads, h->seq);
        simd_ops()->softmax_backward(h->weights, n, h->seq, job->scale, h->grads);
        product(job, (struct matmul){"NN", n, h->dim, h->seq, 1.0f, 0.0f}, grads,
                (struct rows){h->k, h->stride}, dq + r * h->stride, h->stride);
        product(job, (struct matmul){"TN", h->seq, h->dim, n, 1.0f, beta}, grads,
                (struct rows){h->q + r * h->stride, h->stride}, dk, h->stride);
    }
}

static void backward_heads(void *arg, size_t first, size_t last, unsigned part)
{
    struct job *job = arg;
    const struct attention *a = job->a;

    for (size_t i = first; i < last; i++) {
        struct head h = head_of(job, i, part);
        const float *grad = job->grad + i / a->heads * a->seq * a->width + i % a->heads * h.dim;
        float *dq = job->out + (h.q - a->qkv);
        backward_head(&h, grad, a->width, dq, dq + a->width, dq + 2 * a->width);
    }
}

/* Heads are independent, so any split gives the same bits; oneDNN's products inside a loop of
 * ours use one thread. A single range still must not fork for each small product. */
static skep_status run(struct job *job, parallel_fn fn, struct skep_error *err)
{
    const struct attention *a = job->a;
    size_t flops = 4 * a->seq * a->seq * (a->width / a->heads) + 1;
    size_t grain = GRAIN_FLOPS / flops + 1;
    size_t count = a->batch * a->heads;
    bool single = parallel_parts(count, grain) == 1;
    int threads = single ? parallel_single() : 0;

    parallel_range(count, grain, 1, fn, job);
    parallel_restore(threads);
    int failed = atomic_load_explicit(&job->failed, memory_order_relaxed);
    if (failed == (int)dnnl_success)
        return SKEP_OK;
    return error_set(err,
                     failed == (int)dnnl_out_of_memory ? SKEP_RESOURCE_EXHAUSTED : SKEP_INTERNAL,
                     "attention over %zu positions: oneDNN status %d", a->seq, failed);
}

static struct job job_of(const struct attention *a, const float *grad, float *out)
{
    return (struct job){
        .a = a,
        .grad = grad,
        .out = out,
        .scale = (float)(1.0 / sqrt((double)a->width / (double)a->heads)),
        .failed = (int)dnnl_success,
    };
}

skep_status attention_forward(const struct attention *a, float *out, struct skep_error *err)
{
    struct job job = job_of(a, NULL, out);

    return run(&job, forward_heads, err);
}

skep_status attention_backward(const struct attention *a, const float *grad, float *d_qkv,
                               struct skep_error *err)
{
    struct job job = job_of(a, grad, d_qkv);

    return run(&job, backward_heads, err);
}
