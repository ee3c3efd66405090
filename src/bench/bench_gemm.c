/* Bare matrix products. */
#include "bench/bench_gemm.h"

#include <dnnl.h>

#include "base/alloc.h"
#include "base/error.h"
#include "bench/bench_stats.h"
#include "experts/parallel.h"
#include "experts/workspace.h"

struct bench_gemm {
    size_t rows, in, out;
    bool bf16;
    float *x, *w, *y; /* owned; bfloat16 in x and w is half as large */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t primitive;
    dnnl_exec_arg_t args[3];
};

static skep_status translate(dnnl_status_t rc, const struct bench_gemm *g, struct skep_error *err)
{
    if (rc == dnnl_success)
        return SKEP_OK;
    return error_set(err, rc == dnnl_out_of_memory ? SKEP_RESOURCE_EXHAUSTED : SKEP_UNIMPLEMENTED,
                     "bare product [%zu, %zu] by [%zu, %zu] in %s: oneDNN status %d", g->rows,
                     g->in, g->in, g->out, g->bf16 ? "bfloat16" : "float32", (int)rc);
}

/* Numbers of about 1, in either type: as bfloat16, two of them are one float here. */
static float *numbers(size_t floats)
{
    float *x = floats_new(floats);

    for (size_t i = 0; x != NULL && i < floats; i++)
        x[i] = 0.5f + (float)((i * 2654435761u) % 1024) / 1024.0f;
    return x;
}

static dnnl_status_t describe(dnnl_memory_desc_t *out, size_t rows, size_t cols,
                              dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    const dnnl_dims_t dims = {(dnnl_dim_t)rows, (dnnl_dim_t)cols};

    return dnnl_memory_desc_init_by_tag(out, 2, dims, type, tag);
}

static dnnl_status_t add_argument(struct bench_gemm *g, int i, int arg,
                                  const dnnl_memory_desc_t *desc, void *data)
{
    g->args[i].arg = arg;
    return dnnl_memory_create(&g->args[i].memory, desc, g->engine, data);
}

static dnnl_status_t make_primitive(struct bench_gemm *g, bool *has_memory)
{
    const dnnl_data_type_t type = g->bf16 ? dnnl_bf16 : dnnl_f32;
    dnnl_memory_desc_t x, w, y;
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t rc = describe(&x, g->rows, g->in, type, dnnl_ab);

    if (rc == dnnl_success)
        rc = describe(&w, g->in, g->out, type, dnnl_format_tag_any);
    if (rc == dnnl_success)
        rc = describe(&y, g->rows, g->out, dnnl_f32, dnnl_ab);
    if (rc == dnnl_success)
        rc = dnnl_matmul_desc_init(&desc, &x, &w, NULL, &y);
    if (rc == dnnl_success)
        rc = dnnl_primitive_desc_create(&pd, &desc, NULL, g->engine, NULL);
    if (rc != dnnl_success)
        return rc;
    const dnnl_memory_desc_t *best = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    g->w = numbers(dnnl_memory_desc_get_size(best) / sizeof(float) + 1);
    *has_memory = g->w != NULL;
    rc = g->w != NULL ? dnnl_primitive_create(&g->primitive, pd) : dnnl_out_of_memory;
    if (rc == dnnl_success)
        rc = add_argument(g, 0, DNNL_ARG_SRC, &x, g->x);
    if (rc == dnnl_success)
        rc = add_argument(g, 1, DNNL_ARG_WEIGHTS, best, g->w);
    if (rc == dnnl_success)
        rc = add_argument(g, 2, DNNL_ARG_DST, &y, g->y);
    dnnl_primitive_desc_destroy(pd);
    return rc;
}

skep_status bench_gemm_new(size_t rows, size_t in, size_t out, bool bf16,
                           struct bench_gemm **result, struct skep_error *err)
{
    struct bench_gemm *g = mem_calloc(1, sizeof(*g));
    bool has_memory = true;

    *result = NULL;
    if (g == NULL)
        return error_no_memory(err, "benchmark", sizeof(*g));
    *g = (struct bench_gemm){.rows = rows, .in = in, .out = out, .bf16 = bf16};
    parallel_prepare(); /* the threads that experts compute with */
    g->x = numbers(bf16 ? rows * in / 2 + 1 : rows * in);
    g->y = floats_new(rows * out);
    dnnl_status_t rc = g->x != NULL && g->y != NULL ? dnnl_success : dnnl_out_of_memory;
    if (rc == dnnl_success)
        rc = dnnl_engine_create(&g->engine, dnnl_cpu, 0);
    if (rc == dnnl_success)
        rc = dnnl_stream_create(&g->stream, g->engine, dnnl_stream_default_flags);
    if (rc == dnnl_success)
        rc = make_primitive(g, &has_memory);
    skep_status status = translate(has_memory ? rc : dnnl_out_of_memory, g, err);
    if (status != SKEP_OK) {
        bench_gemm_free(g);
        return status;
    }
    *result = g;
    return SKEP_OK;
}

void bench_gemm_free(struct bench_gemm *g)
{
    if (g == NULL)
        return;
    for (int i = 0; i < 3; i++)
        if (g->args[i].memory != NULL)
            dnnl_memory_destroy(g->args[i].memory);
    if (g->primitive != NULL)
        dnnl_primitive_destroy(g->primitive);
    if (g->stream != NULL)
        dnnl_stream_destroy(g->stream);
    if (g->engine != NULL)
        dnnl_engine_destroy(g->engine);
    mem_free(g->x);
    mem_free(g->w);
    mem_free(g->y);
    mem_free(g);
}

skep_status bench_gemm_run(struct bench_gemm *g, double *ns, struct skep_error *err)
{
    uint64_t start = bench_now_ns();
    dnnl_status_t rc = dnnl_primitive_execute(g->primitive, g->stream, 3, g->args);
    uint64_t middle = bench_now_ns();

    *ns = (double)(middle - start);
    if (rc == dnnl_success && !g->bf16) {
        /* The weights' memory is at least as large as a plain matrix. */
        rc = dnnl_sgemm('N', 'N', (dnnl_dim_t)g->rows, (dnnl_dim_t)g->out, (dnnl_dim_t)g->in, 1.0f,
                        g->x, (dnnl_dim_t)g->in, g->w, (dnnl_dim_t)g->out, 0.0f, g->y,
                        (dnnl_dim_t)g->out);
        double sgemm_ns = (double)(bench_now_ns() - middle);
        *ns = sgemm_ns < *ns ? sgemm_ns : *ns;
    }
    return translate(rc, g, err);
}
