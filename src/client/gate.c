/* The projection of a mixture layer. */
#include "client/gate.h"

#include <inttypes.h>
#include <math.h>
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "client/random.h"
#include "client/rows.h"

static struct rows rows_of(const DLTensor *t, size_t count, size_t width)
{
    return (struct rows){skep_tensor_data(t), count, width, t->dtype.bits == 64};
}

static void fill(DLManagedTensor *t, size_t count, struct random *random, double bound)
{
    struct rows r = rows_of(&t->dl_tensor, 1, count);

    memset(r.data, 0, rows_bytes(&r));
    for (size_t i = 0; i < count; i++)
        rows_accumulate(&r, 0, i, (2 * random_uniform(random) - 1) * bound);
}

skep_status gate_init(struct gate *g, const struct skep_grid *grid, int64_t in_features,
                      DLDataType dtype, uint64_t seed, struct skep_error *err)
{
    int64_t shape[2] = {grid_total(grid), in_features};
    struct random random = {.state = seed};

    *g = (struct gate){.in_features = in_features};
    if (in_features == 0)
        return SKEP_OK;
    while (random.state == 0)
        randombytes_buf(&random.state, sizeof(random.state));
    skep_status rc = skep_tensor_new(dtype, 2, shape, &g->weight, err);
    if (rc == SKEP_OK)
        rc = skep_tensor_new(dtype, 1, shape, &g->bias, err);
    if (rc != SKEP_OK) {
        gate_fini(g);
        return rc;
    }
    double bound = 1 / sqrt((double)in_features);
    fill(g->weight, (size_t)(shape[0] * shape[1]), &random, bound);
    fill(g->bias, (size_t)shape[0], &random, bound);
    return SKEP_OK;
}

void gate_fini(struct gate *g)
{
    skep_tensor_free(g->weight);
    skep_tensor_free(g->bias);
    *g = (struct gate){0};
}

void gate_input_fini(struct gate_input *input)
{
    mem_free(input->features);
    mem_free(input->factors);
    *input = (struct gate_input){0};
}

/* Averages x over the dimensions between the batch and the features, times the jitter. */
static skep_status read_features(struct gate_input *in, size_t features, const DLTensor *x,
                                 const struct gate_jitter *jitter, struct skep_error *err)
{
    size_t count = in->samples * features;

    in->between = 1;
    for (int i = 1; i + 1 < x->ndim; i++)
        in->between *= (size_t)x->shape[i];
    in->features = mem_calloc(count + 1, sizeof(double));
    in->factors = jitter != NULL ? mem_calloc(count + 1, sizeof(double)) : NULL;
    if (in->features == NULL || (jitter != NULL && in->factors == NULL)) {
        gate_input_fini(in);
        return error_no_memory(err, "features", count * sizeof(double));
    }
    struct rows r = rows_of(x, in->samples * in->between, features);
    for (size_t i = 0; i < in->samples * in->between; i++)
        for (size_t n = 0; n < features; n++)
            in->features[i / in->between * features + n] +=
                rows_get(&r, i, n) / (double)in->between;
    for (size_t i = 0; in->factors != NULL && i < count; i++) {
        in->factors[i] = 1 + (2 * jitter->uniform(jitter->arg) - 1) * jitter->eps;
        in->features[i] *= in->factors[i];
    }
    return SKEP_OK;
}

skep_status gate_forward(const struct gate *g, const struct skep_grid *grid, const DLTensor *x,
                         const struct gate_jitter *jitter, struct gate_input *input,
                         struct score_lines *scores, struct skep_error *err)
{
    size_t features = (size_t)g->in_features;
    char text[128];

    *input = (struct gate_input){.samples = (size_t)x->shape[0]};
    if (x->ndim < 2 || x->shape[x->ndim - 1] != g->in_features)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "inputs: %s, expected %" PRId64 " features in the last dimension",
                         tensor_describe(x, text, sizeof(text)), g->in_features);
    skep_status rc = read_features(input, features, x, jitter, err);
    if (rc == SKEP_OK)
        rc = score_lines_init(scores, grid, input->samples, err);
    if (rc != SKEP_OK) {
        gate_input_fini(input);
        return rc;
    }
    struct rows w = rows_of(&g->weight->dl_tensor, (size_t)grid_total(grid), features);
    struct rows b = rows_of(&g->bias->dl_tensor, 1, (size_t)grid_total(grid));
    scores->wide = w.wide;
    for (size_t s = 0; s < input->samples; s++) {
        const double *from = input->features + s * features;
        size_t at = 0;
        for (int d = 0; d < grid->dims; d++)
            for (int64_t c = 0; c < grid->sizes[d]; c++, at++) {
                double sum = rows_get(&b, 0, at);
                for (size_t n = 0; n < features; n++)
                    sum += from[n] * rows_get(&w, at, n);
                scores->lines[d][s * (size_t)grid->sizes[d] + (size_t)c] = sum;
            }
    }
    return SKEP_OK;
}

/* What one score's gradient adds to everything. */
static void add_score(const struct gate *g, const struct gate_input *in, size_t s, size_t at,
                      double grad, const struct rows *grad_w, const struct rows *grad_x,
                      const struct rows *w)
{
    size_t features = (size_t)g->in_features;

    for (size_t n = 0; n < features; n++) {
        double factor = in->factors != NULL ? in->factors[s * features + n] : 1;
        double through = grad * rows_get(w, at, n) * factor / (double)in->between;
        rows_accumulate(grad_w, at, n, grad * in->features[s * features + n]);
        for (size_t i = 0; i < in->between; i++)
            rows_accumulate(grad_x, s * in->between + i, n, through);
    }
}

skep_status gate_backward(const struct gate *g, const struct skep_grid *grid,
                          const struct gate_input *input, const struct score_lines *grad_scores,
                          DLManagedTensor **weight, DLManagedTensor **bias, DLTensor *grad_x,
                          struct skep_error *err)
{
    const DLTensor *w = &g->weight->dl_tensor, *b = &g->bias->dl_tensor;
    size_t total = (size_t)grid_total(grid), features = (size_t)g->in_features;

    skep_status rc = skep_tensor_new(w->dtype, 2, w->shape, weight, err);
    if (rc == SKEP_OK)
        rc = skep_tensor_new(b->dtype, 1, b->shape, bias, err);
    if (rc != SKEP_OK)
        return rc; /* what was made is the caller's to free */
    struct rows weights = rows_of(w, total, features);
    struct rows grad_w = rows_of(&(*weight)->dl_tensor, total, features);
    struct rows grad_b = rows_of(&(*bias)->dl_tensor, 1, total);
    struct rows to_x = rows_of(grad_x, input->samples * input->between, features);
    memset(grad_w.data, 0, total * rows_bytes(&grad_w));
    memset(grad_b.data, 0, rows_bytes(&grad_b));
    for (size_t s = 0; s < input->samples; s++) {
        size_t at = 0;
        for (int d = 0; d < grid->dims; d++)
            for (int64_t c = 0; c < grid->sizes[d]; c++, at++) {
                double grad = grad_scores->lines[d][s * (size_t)grid->sizes[d] + (size_t)c];
                if (grad == 0)
                    continue;
                rows_accumulate(&grad_b, 0, at, grad);
                add_score(g, input, s, at, grad, &grad_w, &to_x, &weights);
            }
    }
    return SKEP_OK;
}
