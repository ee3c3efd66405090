/* Formulas and names are those of tests/golden/lm/README.md, section 5. */
#include "model/decoder/decoder.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "experts/kernels.h"
#include "model/decoder/decoder_internal.h"
#include "model/decoder/rotary.h"

float *decoder_floats(size_t rows, size_t cols)
{
    size_t n, bytes;

    if (!size_mul(rows, cols, &n) || !size_mul(n + 1, sizeof(float), &bytes))
        return NULL;
    return mem_aligned(64, (bytes + 63) & ~(size_t)63);
}

skep_status decoder_no_memory(struct skep_error *err, size_t rows)
{
    return error_no_memory(err, "a causal block's activations", rows);
}

/* y = x weight^T + bias + add */
skep_status decoder_linear(const struct lm_linear *l, size_t rows, const float *x, const float *add,
                           float *y, struct skep_error *err)
{
    size_t count = kernel_linear_scratch(rows, l->in, l->out, false);
    struct kernel_linear k = {
        .weight = l->weight, .bias = l->bias, .rows = rows, .in = l->in, .out = l->out};
    skep_status rc;

    k.scratch = decoder_floats(count, 1);
    if (k.scratch == NULL)
        return decoder_no_memory(err, rows);
    rc = kernel_linear(&k, kernel_floats(x), add, y, err);
    mem_free(k.scratch);
    return rc;
}

/* x / sqrt(mean(x^2) + eps) * weight, row by row; y may be x. */
void decoder_rms_norm(const float *x, const float *weight, double eps, size_t rows, size_t width,
                      float *y)
{
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * width;
        double sum = 0;
        for (size_t i = 0; i < width; i++)
            sum += (double)in[i] * in[i];
        float scale = (float)(1 / sqrt(sum / (double)width + eps));
        for (size_t i = 0; i < width; i++)
            y[r * width + i] = in[i] * scale * weight[i];
    }
}

/* ---- attention ---- */

void decoder_cache_free(struct decoder_cache *cache)
{
    if (cache == NULL)
        return;
    mem_free(cache->keys);
    mem_free(cache->values);
    memset(cache, 0, sizeof(*cache));
}

static skep_status reserve(struct decoder_cache *cache, size_t more, size_t width,
                           struct skep_error *err)
{
    size_t capacity = cache->capacity > 0 ? cache->capacity : 16;
    float *keys, *values;

    if (cache->len + more <= cache->capacity)
        return SKEP_OK;
    while (capacity < cache->len + more)
        capacity *= 2;
    keys = decoder_floats(capacity, width);
    values = decoder_floats(capacity, width);
    if (keys == NULL || values == NULL) {
        mem_free(keys);
        mem_free(values);
        return error_no_memory(err, "a key/value cache", capacity * width * sizeof(float));
    }
    if (cache->len > 0) {
        memcpy(keys, cache->keys, cache->len * width * sizeof(float));
        memcpy(values, cache->values, cache->len * width * sizeof(float));
    }
    mem_free(cache->keys);
    mem_free(cache->values);
    cache->keys = keys;
    cache->values = values;
    cache->capacity = capacity;
    return SKEP_OK;
}

static void clip(float *x, size_t n, double limit)
{
    for (size_t i = 0; i < n && limit > 0; i++)
        x[i] = fminf(fmaxf(x[i], (float)-limit), (float)limit);
}

static void norm_heads(const struct lm_config *c, const float *weight, float *x, size_t rows,
                       size_t heads)
{
    if (c->qk_norm == LM_NORM_ALL)
        decoder_rms_norm(x, weight, c->eps, rows, heads * c->head_dim, x);
    else if (c->qk_norm == LM_NORM_HEAD)
        decoder_rms_norm(x, weight, c->eps, rows * heads, c->head_dim, x);
}

/* Queries in q; keys and values behind the cache's end. */
static skep_status project(const struct lm_config *c, const struct lm_layer *l, const float *x,
                           size_t rows, struct decoder_cache *cache, float *q,
                           struct skep_error *err)
{
    size_t width = c->kv_heads * c->head_dim;
    float *k = cache->keys + cache->len * width, *v = cache->values + cache->len * width;
    double *frequencies = mem_alloc(c->head_dim / 2 * sizeof(*frequencies));
    skep_status rc = frequencies != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = decoder_linear(&l->q, rows, x, NULL, q, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&l->k, rows, x, NULL, k, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&l->v, rows, x, NULL, v, err);
    if (rc == SKEP_OK) {
        norm_heads(c, l->q_norm, q, rows, c->heads);
        norm_heads(c, l->k_norm, k, rows, c->kv_heads);
        clip(q, rows * c->heads * c->head_dim, c->clip_qkv);
        clip(k, rows * width, c->clip_qkv);
        clip(v, rows * width, c->clip_qkv);
        double scale = rotary_frequencies(c, frequencies);
        for (size_t r = 0; r < rows; r++) {
            size_t position = cache->len + r;
            rotary_apply(frequencies, scale, position, q + r * c->heads * c->head_dim, c->heads,
                         c->head_dim);
            rotary_apply(frequencies, scale, position, k + r * width, c->kv_heads, c->head_dim);
        }
    }
    mem_free(frequencies);
    return rc;
}

void decoder_softmax(float *x, size_t n)
{
    float most = x[0];
    double sum = 0;

    for (size_t i = 1; i < n; i++)
        most = fmaxf(most, x[i]);
    for (size_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - most);
        sum += x[i];
    }
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(x[i] / sum);
}

/* One query head over the first `seen` positions. */
static void attend(const struct decoder_cache *cache, size_t seen, size_t width, size_t offset,
                   size_t head_dim, const float *q, float *scores, float *out)
{
    float scale = 1 / sqrtf((float)head_dim);

    for (size_t s = 0; s < seen; s++) {
        const float *k = cache->keys + s * width + offset;
        float dot = 0;
        for (size_t i = 0; i < head_dim; i++)
            dot += q[i] * k[i];
        scores[s] = dot * scale;
    }
    decoder_softmax(scores, seen);
    memset(out, 0, head_dim * sizeof(*out));
    for (size_t s = 0; s < seen; s++) {
        const float *v = cache->values + s * width + offset;
        for (size_t i = 0; i < head_dim; i++)
            out[i] += scores[s] * v[i];
    }
}

skep_status decoder_mix(const struct lm_config *c, const struct lm_layer *l,
                        struct decoder_cache *cache, const float *normal, size_t rows, float *q,
                        float *mixed, struct skep_error *err)
{
    size_t width = c->kv_heads * c->head_dim, group = c->heads / c->kv_heads;
    size_t q_width = c->heads * c->head_dim;
    float *scores = decoder_floats(cache->len + rows, 1);
    skep_status rc = scores != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = reserve(cache, rows, width, err);
    if (rc == SKEP_OK)
        rc = project(c, l, normal, rows, cache, q, err);
    for (size_t r = 0; r < rows && rc == SKEP_OK; r++)
        for (size_t h = 0; h < c->heads; h++) {
            size_t at = r * q_width + h * c->head_dim;
            attend(cache, cache->len + r + 1, width, h / group * c->head_dim, c->head_dim, q + at,
                   scores, mixed + at);
        }
    mem_free(scores);
    return rc;
}

skep_status decoder_attention(const struct lm_config *c, const struct lm_layer *l,
                              struct decoder_cache *cache, const float *x, size_t rows, float *out,
                              struct skep_error *err)
{
    size_t q_width = c->heads * c->head_dim;
    float *normal = decoder_floats(rows, c->hidden);
    float *q = decoder_floats(rows, q_width), *mixed = decoder_floats(rows, q_width);
    skep_status rc = SKEP_OK;

    if (normal == NULL || q == NULL || mixed == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    decoder_rms_norm(x, l->input_norm, c->eps, rows, c->hidden, normal);
    rc = decoder_mix(c, l, cache, normal, rows, q, mixed, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&l->o, rows, mixed, x, out, err);

out:
    mem_free(mixed);
    mem_free(q);
    mem_free(normal);
    return rc;
}

/* ---- MLP and mixture ---- */

skep_status decoder_mlp(const struct lm_mlp *m, size_t rows, const float *x, const float *add,
                        float *out, struct skep_error *err)
{
    float *gate = decoder_floats(rows, m->gate.out), *up = decoder_floats(rows, m->up.out);
    skep_status rc = gate != NULL && up != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = decoder_linear(&m->gate, rows, x, NULL, gate, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&m->up, rows, x, NULL, up, err);
    if (rc == SKEP_OK) {
        for (size_t i = 0; i < rows * m->gate.out; i++)
            up[i] *= gate[i] / (1 + expf(-gate[i]));
        rc = decoder_linear(&m->down, rows, up, add, out, err);
    }
    mem_free(gate);
    mem_free(up);
    return rc;
}

/* The best k of a row of probabilities, best first, the lower index of equals; they are used up. */
static void choose(const struct lm_config *c, float *row, uint32_t *experts, float *weights)
{
    double sum = 0;

    for (size_t j = 0; j < c->experts_chosen; j++) {
        size_t best = 0;
        for (size_t e = 1; e < c->experts; e++)
            if (row[e] > row[best])
                best = e;
        experts[j] = (uint32_t)best;
        weights[j] = row[best];
        sum += row[best];
        row[best] = -1;
    }
    for (size_t j = 0; j < c->experts_chosen && c->norm_topk; j++)
        weights[j] = (float)(weights[j] / sum);
}

/* Routes every row: logits, then the chosen experts and weights. */
skep_status decoder_route(const struct lm_config *c, const struct lm_layer *l, const float *x,
                          size_t rows, const struct decoder_trace *trace, uint32_t *experts,
                          float *weights, struct skep_error *err)
{
    float *logits = decoder_floats(rows, c->experts);
    skep_status rc = logits != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = decoder_linear(&l->router, rows, x, NULL, logits, err);
    if (rc == SKEP_OK && trace != NULL && trace->router_logits != NULL)
        memcpy(trace->router_logits, logits, rows * c->experts * sizeof(*logits));
    for (size_t r = 0; r < rows && rc == SKEP_OK; r++) {
        decoder_softmax(logits + r * c->experts, c->experts);
        choose(c, logits + r * c->experts, experts + r * c->experts_chosen,
               weights + r * c->experts_chosen);
    }
    mem_free(logits);
    return rc;
}

/* Adds one expert's weighted output for the rows that chose it. in, part: [rows, hidden] scratch */
static skep_status add_expert(const struct lm_config *c, const struct lm_layer *l, size_t expert,
                              const float *x, size_t rows, const uint32_t *experts,
                              const float *weights, float *in, float *part, float *out,
                              struct skep_error *err)
{
    size_t k = c->experts_chosen, hidden = c->hidden, n = 0;
    skep_status rc;

    for (size_t i = 0; i < rows * k; i++)
        if (experts[i] == expert)
            memcpy(in + n++ * hidden, x + i / k * hidden, hidden * sizeof(*in));
    if (n == 0)
        return SKEP_OK;
    rc = decoder_mlp(&l->experts[expert], n, in, NULL, part, err);
    n = 0;
    for (size_t i = 0; i < rows * k && rc == SKEP_OK; i++) {
        if (experts[i] != expert)
            continue;
        for (size_t j = 0; j < hidden; j++)
            out[i / k * hidden + j] += weights[i] * part[n * hidden + j];
        n++;
    }
    return rc;
}

static skep_status add_shared(const struct lm_config *c, const struct lm_layer *l, const float *x,
                              size_t rows, float *part, float *out, struct skep_error *err)
{
    float *gate = decoder_floats(rows, 1);
    skep_status rc = gate != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = decoder_mlp(&l->shared, rows, x, NULL, part, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&l->shared_gate, rows, x, NULL, gate, err);
    for (size_t r = 0; r < rows && rc == SKEP_OK; r++) {
        float weight = 1 / (1 + expf(-gate[r]));
        for (size_t j = 0; j < c->hidden; j++)
            out[r * c->hidden + j] += weight * part[r * c->hidden + j];
    }
    mem_free(gate);
    return rc;
}

/* out = mixture(x), without the residual. */
static skep_status mixture(const struct lm_config *c, const struct lm_layer *l, const float *x,
                           size_t rows, const struct decoder_trace *trace, float *out,
                           struct skep_error *err)
{
    size_t choices = rows * c->experts_chosen;
    uint32_t *experts = mem_alloc(choices * sizeof(*experts));
    float *weights = decoder_floats(choices, 1);
    float *in = decoder_floats(rows, c->hidden), *part = decoder_floats(rows, c->hidden);
    skep_status rc = SKEP_OK;

    if (experts == NULL || weights == NULL || in == NULL || part == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    memset(out, 0, rows * c->hidden * sizeof(*out));
    rc = decoder_route(c, l, x, rows, trace, experts, weights, err);
    for (size_t e = 0; e < c->experts && rc == SKEP_OK; e++)
        rc = add_expert(c, l, e, x, rows, experts, weights, in, part, out, err);
    if (rc == SKEP_OK && c->shared_width > 0)
        rc = add_shared(c, l, x, rows, part, out, err);
    if (rc != SKEP_OK || trace == NULL)
        goto out;
    if (trace->router_experts != NULL)
        memcpy(trace->router_experts, experts, choices * sizeof(*experts));
    if (trace->router_weights != NULL)
        memcpy(trace->router_weights, weights, choices * sizeof(*weights));
    if (trace->moe_input != NULL)
        memcpy(trace->moe_input, x, rows * c->hidden * sizeof(*x));
    if (trace->moe_output != NULL)
        memcpy(trace->moe_output, out, rows * c->hidden * sizeof(*out));

out:
    mem_free(part);
    mem_free(in);
    mem_free(weights);
    mem_free(experts);
    return rc;
}

/* ---- a block ---- */

skep_status decoder_forward(const struct lm_config *config, const struct lm_layer *layer,
                            struct decoder_cache *cache, const float *x, size_t rows, float *out,
                            const struct decoder_trace *trace, struct skep_error *err)
{
    size_t n = rows * config->hidden;
    float *middle = NULL, *normal = NULL, *mixed = NULL;
    skep_status rc = SKEP_OK;

    if (cache->len > config->max_positions || rows > config->max_positions - cache->len)
        return error_set(err, SKEP_INVALID_ARGUMENT, "position %zu: the model has %zu",
                         cache->len + rows - 1, config->max_positions);
    middle = decoder_floats(rows, config->hidden);
    normal = decoder_floats(rows, config->hidden);
    mixed = decoder_floats(rows, config->hidden);
    if (middle == NULL || normal == NULL || mixed == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    rc = decoder_attention(config, layer, cache, x, rows, middle, err);
    if (rc != SKEP_OK)
        goto out;
    decoder_rms_norm(middle, layer->post_norm, config->eps, rows, config->hidden, normal);
    if (layer->experts != NULL) {
        rc = mixture(config, layer, normal, rows, trace, mixed, err);
        for (size_t i = 0; i < n && rc == SKEP_OK; i++)
            out[i] = middle[i] + mixed[i];
    } else {
        rc = decoder_mlp(&layer->mlp, rows, normal, middle, out, err);
    }
    if (rc == SKEP_OK)
        cache->len += rows;

out:
    mem_free(mixed);
    mem_free(normal);
    mem_free(middle);
    return rc;
}

skep_status decoder_embed(const struct lm_config *config, const struct lm_ends *ends,
                          const uint32_t *ids, size_t count, float *out, struct skep_error *err)
{
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= config->vocabulary)
            return error_set(err, SKEP_INVALID_ARGUMENT, "token id %u: the model has %zu", ids[i],
                             config->vocabulary);
        memcpy(out + i * config->hidden, ends->embed + ids[i] * config->hidden,
               config->hidden * sizeof(*out));
    }
    return SKEP_OK;
}

skep_status decoder_head(const struct lm_config *config, const struct lm_ends *ends, const float *x,
                         size_t rows, float *normalized, float *logits, struct skep_error *err)
{
    const struct lm_linear head = {ends->head, NULL, config->hidden, config->vocabulary};

    decoder_rms_norm(x, ends->norm, config->eps, rows, config->hidden, normalized);
    return decoder_linear(&head, rows, normalized, NULL, logits, err);
}
