/*
 * What an expert costs over the bare work it can't do without: forward over its matrix
 * products by oneDNN (the fastest bare call for each, of those tried), backward over the same
 * bound and one optimizer pass, the Adam sweep over a plain copy of as many bytes. Runs of the two
 * sides alternate; the fastest of each is printed, as other processes can only add to a time.
 * usage: bench_experts [hidden_dim]
 */
#include <dnnl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/tensor.h"
#include "experts/expert.h"
#include "experts/optimizer.h"
#include "experts/parallel.h"
#include "experts/workspace.h"

enum { MIN_RUNS = 7, RUN_US = 2500000 };

static void die(const char *what, const struct skep_error *err)
{
    fprintf(stderr, "bench_experts: %s: %s\n", what, err != NULL ? err->message : "failed");
    exit(1);
}

/* A thing to time. */
struct work {
    const char *name;
    void (*run)(void *arg);
    void *arg;
    double best_us;
};

/* The fastest run of each work, all of them in turn in every round. */
static void measure(struct work *works, size_t count)
{
    uint64_t start = clock_mono_us();

    for (size_t i = 0; i < count; i++) {
        works[i].run(works[i].arg);
        works[i].best_us = 1e12;
    }
    for (int runs = 0; runs < MIN_RUNS || clock_mono_us() - start < RUN_US; runs++) {
        for (size_t i = 0; i < count; i++) {
            struct timespec a;
            struct timespec b;
            clock_gettime(CLOCK_MONOTONIC, &a);
            works[i].run(works[i].arg);
            clock_gettime(CLOCK_MONOTONIC, &b);
            double us =
                (double)(b.tv_sec - a.tv_sec) * 1e6 + (double)(b.tv_nsec - a.tv_nsec) * 1e-3;
            if (us < works[i].best_us)
                works[i].best_us = us;
        }
    }
}

static float *random_floats(size_t n)
{
    float *x = floats_new(n);

    if (x == NULL)
        die("memory", NULL);
    uint32_t s = 1;
    for (size_t i = 0; i < n; i++) {
        s = s * 1664525u + 1013904223u;
        x[i] = (float)(s >> 8) * 0x1p-23f - 1.0f;
    }
    return x;
}

/* One bare product y[rows, out] = x[rows, in] W^T. */
struct product {
    size_t rows;
    size_t in;
    size_t out;
    float *x;
    float *w;
    float *y;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
};

static dnnl_engine_t engine;
static dnnl_stream_t stream;

static void check(dnnl_status_t rc, const char *what)
{
    if (rc != dnnl_success)
        die(what, NULL);
}

/* sgemm with W as PyTorch stores it, and with W transposed (no expert is that lucky). */
static void product_nt(void *arg)
{
    struct product *p = arg;

    check(dnnl_sgemm('N', 'T', (dnnl_dim_t)p->rows, (dnnl_dim_t)p->out, (dnnl_dim_t)p->in, 1.0f,
                     p->x, (dnnl_dim_t)p->in, p->w, (dnnl_dim_t)p->in, 0.0f, p->y,
                     (dnnl_dim_t)p->out),
          "sgemm");
}

static void product_nn(void *arg)
{
    struct product *p = arg;

    check(dnnl_sgemm('N', 'N', (dnnl_dim_t)p->rows, (dnnl_dim_t)p->out, (dnnl_dim_t)p->in, 1.0f,
                     p->x, (dnnl_dim_t)p->in, p->w, (dnnl_dim_t)p->out, 0.0f, p->y,
                     (dnnl_dim_t)p->out),
          "sgemm");
}

/* oneDNN's inner product with the weights in the layout it likes best. */
static void product_ip(void *arg)
{
    struct product *p = arg;

    check(dnnl_primitive_execute(p->primitive, stream, 3, p->args), "inner product");
}

static void make_ip(struct product *p)
{
    dnnl_dims_t x = {(dnnl_dim_t)p->rows, (dnnl_dim_t)p->in};
    dnnl_dims_t w = {(dnnl_dim_t)p->out, (dnnl_dim_t)p->in};
    dnnl_dims_t y = {(dnnl_dim_t)p->rows, (dnnl_dim_t)p->out};
    dnnl_memory_desc_t xd;
    dnnl_memory_desc_t wd;
    dnnl_memory_desc_t yd;
    dnnl_inner_product_desc_t desc;
    dnnl_primitive_desc_t pd;

    check(dnnl_memory_desc_init_by_tag(&xd, 2, x, dnnl_f32, dnnl_ab), "x");
    check(dnnl_memory_desc_init_by_tag(&wd, 2, w, dnnl_f32, dnnl_format_tag_any), "w");
    check(dnnl_memory_desc_init_by_tag(&yd, 2, y, dnnl_f32, dnnl_ab), "y");
    check(dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_inference, &xd, &wd, NULL, &yd),
          "inner product");
    check(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL), "inner product");
    check(dnnl_primitive_create(&p->primitive, pd), "inner product");
    const dnnl_memory_desc_t *best = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    p->args[0].arg = DNNL_ARG_SRC;
    check(dnnl_memory_create(&p->args[0].memory, &xd, engine, p->x), "x");
    p->args[1].arg = DNNL_ARG_WEIGHTS;
    check(dnnl_memory_create(&p->args[1].memory, best, engine, p->w), "w");
    p->args[2].arg = DNNL_ARG_DST;
    check(dnnl_memory_create(&p->args[2].memory, &yd, engine, p->y), "y");
    dnnl_primitive_desc_destroy(pd);
}

static struct product make_product(size_t rows, size_t in, size_t out)
{
    struct product p = {.rows = rows, .in = in, .out = out};

    p.x = random_floats(rows * in);
    /* Blocked layouts are padded to blocks of 64. */
    p.w = random_floats((in + 64) * (out + 64));
    p.y = random_floats(rows * out);
    make_ip(&p);
    return p;
}

static void free_product(struct product *p)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->args[i].memory);
    dnnl_primitive_destroy(p->primitive);
    free(p->x);
    free(p->w);
    free(p->y);
}

struct passes {
    struct expert *expert;
    DLManagedTensor *x;
    DLManagedTensor *dy;
    DLManagedTensor *out;
};

static void forward(void *arg)
{
    struct passes *p = arg;
    struct skep_error err;

    if (expert_forward(p->expert, &p->x->dl_tensor, &p->out->dl_tensor, &err) != SKEP_OK)
        die("forward", &err);
}

static void backward(void *arg)
{
    struct passes *p = arg;
    struct skep_error err;

    if (expert_backward(p->expert, &p->x->dl_tensor, &p->dy->dl_tensor, &p->out->dl_tensor, &err) !=
        SKEP_OK)
        die("backward", &err);
}

struct adam {
    struct optimizer opt;
    float *params;
    float *grads;
    float *other; /* for the copy */
    size_t n;
};

static void adam_step(void *arg)
{
    struct adam *a = arg;
    struct skep_error err;

    if (optimizer_step(&a->opt, a->params, a->grads, &err) != SKEP_OK)
        die("adam", &err);
}

static void copy_range(void *arg, size_t first, size_t last, unsigned part)
{
    struct adam *a = arg;

    (void)part;
    memcpy(a->other + first, a->grads + first, (last - first) * sizeof(float));
}

static void copy_threaded(void *arg)
{
    struct adam *a = arg;

    parallel_range(a->n, 65536, 16, copy_range, a);
}

static DLManagedTensor *matrix(size_t rows, size_t cols)
{
    const int64_t shape[2] = {(int64_t)rows, (int64_t)cols};
    DLManagedTensor *t;
    struct skep_error err;

    if (skep_tensor_new(DTYPE_F32, 2, shape, &t, &err) != SKEP_OK)
        die("tensor", &err);
    float *x = skep_tensor_data(&t->dl_tensor);
    for (size_t i = 0; i < rows * cols; i++)
        x[i] = (float)((i * 2654435761u) % 1000) * 2e-3f - 1.0f;
    return t;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* A bandwidth of read and written bytes, for both. Returns the time of one sweep. */
static double bench_adam(const struct skep_expert_options *o, size_t n)
{
    struct adam a = {.n = n};
    struct skep_error err;

    if (optimizer_init(&a.opt, o, n, &err) != SKEP_OK)
        die("optimizer", &err);
    a.params = random_floats(n);
    a.grads = random_floats(n);
    a.other = random_floats(n);
    struct work works[2] = {{"adam", adam_step, &a, 0}, {"copy", copy_threaded, &a, 0}};
    measure(works, 2);
    /* Adam reads p, m, v, g and writes p, m, v; its check reads g once more. */
    double adam = (double)n * 28 / works[0].best_us * 1e-3;
    double with_check = (double)n * 32 / works[0].best_us * 1e-3;
    double copy = (double)n * 8 / works[1].best_us * 1e-3;
    printf("adam   %6.1f M params %8.0f us  %5.1f GB/s (%5.1f with its check)  copy %5.1f GB/s  "
           "ratio %.2f\n",
           (double)n * 1e-6, works[0].best_us, adam, with_check, copy, adam / copy);
    optimizer_fini(&a.opt);
    free(a.params);
    free(a.grads);
    free(a.other);
    return works[0].best_us;
}

enum { MAX_PRODUCTS = 4 };

/* One expert class at one size, and the products it cannot do without. */
struct subject {
    struct expert *expert;
    const char *name;
    size_t rows;
    size_t seq; /* of a transformer; else 1 */
    size_t hidden;
    struct product products[MAX_PRODUCTS];
    size_t product_count;
    double other_flops; /* products inside attention: counted at the speed of the others */
};

static void bench_subject(struct subject *s, double adam_us)
{
    const size_t positions = s->rows * s->seq;
    const int64_t shape[3] = {(int64_t)s->rows, (int64_t)s->seq, (int64_t)s->hidden};
    struct passes p = {s->expert, matrix(positions, s->hidden), matrix(positions, s->hidden),
                       matrix(positions, s->hidden)};
    DLManagedTensor *tensors[3] = {p.x, p.dy, p.out};
    int64_t shapes[3][3];
    struct work works[2 + 3 * MAX_PRODUCTS] = {{"forward", forward, &p, 0},
                                               {"backward", backward, &p, 0}};
    double bound = 0;
    double native = 0;
    double flops = 0;

    for (int i = 0; i < 3 && s->seq > 1; i++) {
        memcpy(shapes[i], shape, sizeof(shape));
        tensors[i]->dl_tensor.shape = shapes[i];
        tensors[i]->dl_tensor.ndim = 3;
    }
    for (size_t i = 0; i < s->product_count; i++) {
        works[2 + 3 * i] = (struct work){"nt", product_nt, &s->products[i], 0};
        works[3 + 3 * i] = (struct work){"nn", product_nn, &s->products[i], 0};
        works[4 + 3 * i] = (struct work){"ip", product_ip, &s->products[i], 0};
    }
    measure(works, 2 + 3 * s->product_count);
    for (size_t i = 0; i < s->product_count; i++) {
        const struct work *w = &works[2 + 3 * i];
        const struct product *m = &s->products[i];
        bound += least(w[0].best_us, least(w[1].best_us, w[2].best_us));
        native += w[0].best_us;
        flops += 2.0 * (double)m->rows * (double)m->in * (double)m->out;
    }
    bound *= 1.0 + s->other_flops / flops;
    flops += s->other_flops;
    double f = works[0].best_us;
    double b = works[1].best_us;
    printf("%-11s rows %5zu  forward %9.1f us %5.0f GFLOP/s  bound %9.1f us  share %.2f  (sgemm NT "
           "%9.1f us)  backward %9.1f us = adam + %.2f bounds\n",
           s->name, positions, f, flops / f * 1e-3, bound, bound / f, native, b,
           (b - adam_us) / bound);
    for (size_t i = 0; i < s->product_count; i++)
        free_product(&s->products[i]);
    for (int i = 0; i < 3; i++)
        skep_tensor_free(tensors[i]);
}

static void bench_ffn(struct expert *expert, size_t hidden, size_t rows, double adam_us)
{
    struct subject s = {
        .expert = expert,
        .name = "ffn",
        .rows = rows,
        .seq = 1,
        .hidden = hidden,
        .products = {make_product(rows, hidden, 4 * hidden),
                     make_product(rows, 4 * hidden, 4 * hidden),
                     make_product(rows, 4 * hidden, hidden)},
        .product_count = 3,
    };

    bench_subject(&s, adam_us);
}

static void bench_swiglu(struct expert *expert, size_t hidden, size_t rows, double adam_us)
{
    struct subject s = {
        .expert = expert,
        .name = "swiglu",
        .rows = rows,
        .seq = 1,
        .hidden = hidden,
        .products = {make_product(rows, hidden, 4 * hidden), make_product(rows, hidden, 4 * hidden),
                     make_product(rows, 4 * hidden, hidden)},
        .product_count = 3,
    };

    bench_subject(&s, adam_us);
}

static void bench_transformer(struct expert *expert, size_t hidden, size_t batch, size_t seq,
                              double adam_us)
{
    const size_t n = batch * seq;
    struct subject s = {
        .expert = expert,
        .name = "transformer",
        .rows = batch,
        .seq = seq,
        .hidden = hidden,
        .products = {make_product(n, hidden, 3 * hidden), make_product(n, hidden, hidden),
                     make_product(n, hidden, 4 * hidden), make_product(n, 4 * hidden, hidden)},
        .product_count = 4,
        .other_flops = 4.0 * (double)n * (double)seq * (double)hidden,
    };

    bench_subject(&s, adam_us);
}

static struct expert *create(const char *cls, int64_t hidden, double *adam_us)
{
    struct skep_expert_options o;
    struct expert *expert;
    struct skep_error err;

    skep_expert_options_init(&o);
    o.cls = cls;
    o.hidden_dim = hidden;
    o.learning_rate = 1e-6;
    uint64_t start = clock_mono_us();
    if (expert_new(&o, &expert, &err) != SKEP_OK)
        die("expert", &err);
    printf("%s hidden %lld: %" PRIu64 " parameters, created in %.1f ms\n", cls, (long long)hidden,
           expert_parameter_count(expert), (double)(clock_mono_us() - start) * 1e-3);
    *adam_us = bench_adam(&o, (size_t)expert_parameter_count(expert));
    return expert;
}

int main(int argc, char **argv)
{
    static const size_t rows[] = {1, 8, 32, 128, 512, 2048};
    const int64_t hidden = argc > 1 ? strtol(argv[1], NULL, 10) : 1024;
    double adam_us;

    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    struct expert *expert = create("ffn", hidden, &adam_us);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        bench_ffn(expert, (size_t)hidden, rows[i], adam_us);
    expert_free(expert);
    expert = create("swiglu", hidden, &adam_us);
    bench_swiglu(expert, (size_t)hidden, 512, adam_us);
    expert_free(expert);
    expert = create("transformer", hidden / 2, &adam_us);
    bench_transformer(expert, (size_t)hidden / 2, 8, 128, adam_us);
    expert_free(expert);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
