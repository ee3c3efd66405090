/* Each step recomputes what it needs of the forward pass, so that nothing is kept between them. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "experts/kernels.h"
#include "model/decoder/decoder.h"
#include "model/decoder/decoder_internal.h"
#include "model/decoder/rotary.h"

/* dx = dy weight + add; the weight's gradients into g, if it has room for them. */
static skep_status linear_backward(const struct lm_linear *l, struct lm_linear *g, size_t rows,
                                   const float *x, const float *dy, const float *add, float *dx,
                                   struct skep_error *err)
{
    size_t count = kernel_linear_scratch(rows, l->in, l->out, false);
    struct kernel_linear k = {
        .weight = l->weight, .bias = l->bias, .rows = rows, .in = l->in, .out = l->out};
    skep_status rc = SKEP_OK;

    k.scratch = decoder_floats(count, 1);
    if (k.scratch == NULL)
        return decoder_no_memory(err, rows);
    rc = kernel_linear_grad_weight(&k, kernel_floats(dy), kernel_floats(x), g->weight, err);
    if (rc == SKEP_OK && g->bias != NULL)
        kernel_column_sums(dy, rows, l->out, g->bias);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&k, kernel_floats(dy), add, dx, err);
    mem_free(k.scratch);
    return rc;
}

/* dx += the gradient through the norm; dw += the weight's. */
static void norm_backward(const float *x, const float *weight, double eps, size_t rows,
                          size_t width, const float *dy, float *dx, float *dw)
{
    for (size_t r = 0; r < rows; r++) {
        const float *in = x + r * width, *grad = dy + r * width;
        double squares = 0, dot = 0;
        for (size_t i = 0; i < width; i++) {
            squares += (double)in[i] * in[i];
            dot += (double)in[i] * weight[i] * grad[i];
        }
        double scale = 1 / sqrt(squares / (double)width + eps);
        double pull = scale * scale * scale / (double)width * dot;
        for (size_t i = 0; i < width; i++) {
            dx[r * width + i] += (float)(scale * weight[i] * grad[i] - pull * in[i]);
            dw[i] += (float)(scale * grad[i] * in[i]);
        }
    }
}

/* ---- MLP and mixture ---- */

skep_status decoder_mlp_backward(const struct lm_mlp *m, struct lm_mlp *grads, size_t rows,
                                 const float *x, const float *dy, float *dx, struct skep_error *err)
{
    size_t width = m->gate.out;
    float *gate = decoder_floats(rows, width), *up = decoder_floats(rows, width);
    float *h = decoder_floats(rows, width), *dh = decoder_floats(rows, width);
    skep_status rc = SKEP_OK;

    if (gate == NULL || up == NULL || h == NULL || dh == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    rc = decoder_linear(&m->gate, rows, x, NULL, gate, err);
    if (rc == SKEP_OK)
        rc = decoder_linear(&m->up, rows, x, NULL, up, err);
    if (rc != SKEP_OK)
        goto out;
    for (size_t i = 0; i < rows * width; i++)
        h[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
    rc = linear_backward(&m->down, &grads->down, rows, h, dy, NULL, dh, err);
    if (rc != SKEP_OK)
        goto out;
    for (size_t i = 0; i < rows * width; i++) {
        float sigmoid = 1 / (1 + expf(-gate[i]));
        float d_gate = dh[i] * up[i] * sigmoid * (1 + gate[i] * (1 - sigmoid));
        up[i] = dh[i] * gate[i] * sigmoid;
        gate[i] = d_gate;
    }
    rc = linear_backward(&m->gate, &grads->gate, rows, x, gate, NULL, dx, err);
    if (rc == SKEP_OK)
        rc = linear_backward(&m->up, &grads->up, rows, x, up, dx, dx, err);

out:
    mem_free(dh);
    mem_free(h);
    mem_free(up);
    mem_free(gate);
    return rc;
}

/* What the steps of a mixture's backward pass share. */
struct mixing {
    const struct lm_config *c;
    const struct lm_layer *l;
    struct lm_layer *g;
    size_t rows;
    const float *x, *dy;
    float *dx;         /* added to */
    uint32_t *experts; /* [rows, k] */
    float *weights;    /* [rows, k] */
    float *d_weights;  /* [rows, k] */
    float *in, *out;   /* [rows, hidden] scratch */
    float *d_in;       /* the same */
};

static float dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return (float)sum;
}

static skep_status expert_backward(struct mixing *m, size_t expert, struct skep_error *err)
{
    size_t k = m->c->experts_chosen, hidden = m->c->hidden, n = 0;
    skep_status rc;

    for (size_t i = 0; i < m->rows * k; i++)
        if (m->experts[i] == expert)
            memcpy(m->in + n++ * hidden, m->x + i / k * hidden, hidden * sizeof(float));
    if (n == 0)
        return SKEP_OK;
    rc = decoder_mlp(&m->l->experts[expert], n, m->in, NULL, m->out, err);
    if (rc != SKEP_OK)
        return rc;
    n = 0;
    for (size_t i = 0; i < m->rows * k; i++) {
        const float *dy = m->dy + i / k * hidden;
        if (m->experts[i] != expert)
            continue;
        m->d_weights[i] = dot(dy, m->out + n * hidden, hidden);
        for (size_t j = 0; j < hidden; j++)
            m->out[n * hidden + j] = m->weights[i] * dy[j];
        n++;
    }
    rc = decoder_mlp_backward(&m->l->experts[expert], &m->g->experts[expert], n, m->in, m->out,
                              m->d_in, err);
    n = 0;
    for (size_t i = 0; i < m->rows * k && rc == SKEP_OK; i++) {
        if (m->experts[i] != expert)
            continue;
        for (size_t j = 0; j < hidden; j++)
            m->dx[i / k * hidden + j] += m->d_in[n * hidden + j];
        n++;
    }
    return rc;
}

/* From d_weights to the router, through the division by the sum and the softmax. */
static skep_status router_backward(struct mixing *m, struct skep_error *err)
{
    const struct lm_config *c = m->c;
    size_t k = c->experts_chosen;
    float *p = decoder_floats(m->rows, c->experts), *d = decoder_floats(m->rows, c->experts);
    skep_status rc = p != NULL && d != NULL ? SKEP_OK : decoder_no_memory(err, m->rows);

    if (rc == SKEP_OK)
        rc = decoder_linear(&m->l->router, m->rows, m->x, NULL, p, err);
    for (size_t r = 0; r < m->rows && rc == SKEP_OK; r++) {
        float *row = p + r * c->experts, *d_row = d + r * c->experts;
        const float *weights = m->weights + r * k, *d_weights = m->d_weights + r * k;
        const uint32_t *experts = m->experts + r * k;
        double sum = 0, mean = 0, pull = 0;
        decoder_softmax(row, c->experts);
        memset(d_row, 0, c->experts * sizeof(*d_row));
        for (size_t j = 0; j < k; j++) {
            sum += row[experts[j]];
            mean += (double)weights[j] * d_weights[j];
        }
        for (size_t j = 0; j < k; j++)
            d_row[experts[j]] = c->norm_topk ? (float)((d_weights[j] - mean) / sum) : d_weights[j];
        for (size_t e = 0; e < c->experts; e++)
            pull += (double)row[e] * d_row[e];
        for (size_t e = 0; e < c->experts; e++)
            d_row[e] = (float)(row[e] * (d_row[e] - pull));
    }
    if (rc == SKEP_OK)
        rc = linear_backward(&m->l->router, &m->g->router, m->rows, m->x, d, m->dx, m->dx, err);
    mem_free(d);
    mem_free(p);
    return rc;
}

static skep_status shared_backward(struct mixing *m, struct skep_error *err)
{
    size_t hidden = m->c->hidden;
    float *gate = decoder_floats(m->rows, 1);
    skep_status rc = gate != NULL ? SKEP_OK : decoder_no_memory(err, m->rows);

    if (rc == SKEP_OK)
        rc = decoder_linear(&m->l->shared_gate, m->rows, m->x, NULL, gate, err);
    if (rc == SKEP_OK)
        rc = decoder_mlp(&m->l->shared, m->rows, m->x, NULL, m->out, err);
    for (size_t r = 0; r < m->rows && rc == SKEP_OK; r++) {
        float sigmoid = 1 / (1 + expf(-gate[r]));
        const float *dy = m->dy + r * hidden;
        gate[r] = dot(dy, m->out + r * hidden, hidden) * sigmoid * (1 - sigmoid);
        for (size_t j = 0; j < hidden; j++)
            m->out[r * hidden + j] = sigmoid * dy[j];
    }
    if (rc == SKEP_OK)
        rc = linear_backward(&m->l->shared_gate, &m->g->shared_gate, m->rows, m->x, gate, m->dx,
                             m->dx, err);
    if (rc == SKEP_OK)
        rc =
            decoder_mlp_backward(&m->l->shared, &m->g->shared, m->rows, m->x, m->out, m->d_in, err);
    for (size_t i = 0; i < m->rows * hidden && rc == SKEP_OK; i++)
        m->dx[i] += m->d_in[i];
    mem_free(gate);
    return rc;
}

/* dx is written. */
static skep_status mixture_backward(const struct lm_config *c, const struct lm_layer *l,
                                    struct lm_layer *g, size_t rows, const float *x,
                                    const float *dy, float *dx, struct skep_error *err)
{
    size_t choices = rows * c->experts_chosen;
    struct mixing m = {.c = c, .l = l, .g = g, .rows = rows, .x = x, .dy = dy, .dx = dx};
    skep_status rc = SKEP_OK;

    m.experts = mem_alloc(choices * sizeof(*m.experts));
    m.weights = decoder_floats(choices, 1);
    m.d_weights = decoder_floats(choices, 1);
    m.in = decoder_floats(rows, c->hidden);
    m.out = decoder_floats(rows, c->hidden);
    m.d_in = decoder_floats(rows, c->hidden);
    if (m.experts == NULL || m.weights == NULL || m.d_weights == NULL || m.in == NULL ||
        m.out == NULL || m.d_in == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    memset(dx, 0, rows * c->hidden * sizeof(*dx));
    rc = decoder_route(c, l, x, rows, NULL, m.experts, m.weights, err);
    for (size_t e = 0; e < c->experts && rc == SKEP_OK; e++)
        rc = expert_backward(&m, e, err);
    if (rc == SKEP_OK)
        rc = router_backward(&m, err);
    if (rc == SKEP_OK && c->shared_width > 0)
        rc = shared_backward(&m, err);

out:
    mem_free(m.d_in);
    mem_free(m.out);
    mem_free(m.in);
    mem_free(m.d_weights);
    mem_free(m.weights);
    mem_free(m.experts);
    return rc;
}

/* ---- attention ---- */

/* One query head at one position: adds to dq, dk and dv. scores, d_scores: scratch. */
static void attend_backward(const struct decoder_cache *cache, size_t seen, size_t width,
                            size_t offset, size_t head_dim, const float *q, const float *d_out,
                            float *scores, float *d_scores, float *dq, float *dk, float *dv)
{
    float scale = 1 / sqrtf((float)head_dim);
    double pull = 0;

    for (size_t s = 0; s < seen; s++) {
        scores[s] = dot(q, cache->keys + s * width + offset, head_dim) * scale;
        d_scores[s] = dot(d_out, cache->values + s * width + offset, head_dim);
    }
    decoder_softmax(scores, seen);
    for (size_t s = 0; s < seen; s++)
        pull += (double)scores[s] * d_scores[s];
    for (size_t s = 0; s < seen; s++) {
        const float *k = cache->keys + s * width + offset;
        float d = (float)(scores[s] * (d_scores[s] - pull)) * scale;
        for (size_t i = 0; i < head_dim; i++) {
            dv[s * width + offset + i] += scores[s] * d_out[i];
            dk[s * width + offset + i] += d * q[i];
            dq[i] += d * k[i];
        }
    }
}

/* From queries or keys as attention reads them back to the projection's output, in place: rotation,
 * clipping, norm. */
static skep_status unturn(const struct lm_config *c, const struct lm_linear *l, const float *norm,
                          float *d_norm, const float *x, size_t rows, size_t heads, bool turned,
                          float *d, struct skep_error *err)
{
    size_t width = heads * c->head_dim;
    bool normed = turned && c->qk_norm != LM_NORM_NONE, whole = c->qk_norm == LM_NORM_ALL;
    double *frequencies = mem_alloc(c->head_dim / 2 * sizeof(*frequencies));
    float *raw = decoder_floats(rows, width), *y = decoder_floats(rows, width);
    skep_status rc = SKEP_OK;

    if (frequencies == NULL || raw == NULL || y == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    rc = decoder_linear(l, rows, x, NULL, raw, err);
    if (rc != SKEP_OK)
        goto out;
    if (turned) {
        double scale = rotary_frequencies(c, frequencies);
        for (size_t i = 0; i < c->head_dim / 2; i++)
            frequencies[i] = -frequencies[i];
        for (size_t r = 0; r < rows; r++)
            rotary_apply(frequencies, scale, r, d + r * width, heads, c->head_dim);
    }
    size_t count = whole ? rows : rows * heads, n = whole ? width : c->head_dim;
    if (normed)
        decoder_rms_norm(raw, norm, c->eps, count, n, y);
    else
        memcpy(y, raw, rows * width * sizeof(*y));
    for (size_t i = 0; i < rows * width && c->clip_qkv > 0; i++)
        if (fabs(y[i]) > c->clip_qkv)
            d[i] = 0;
    if (normed) {
        memcpy(y, d, rows * width * sizeof(*y));
        memset(d, 0, rows * width * sizeof(*d));
        norm_backward(raw, norm, c->eps, count, n, y, d, d_norm);
    }

out:
    mem_free(y);
    mem_free(raw);
    mem_free(frequencies);
    return rc;
}

/* Through the output projection and the products of attention, to queries, keys and values. */
static skep_status scores_backward(const struct lm_config *c, const struct lm_layer *l,
                                   struct lm_layer *g, const float *normal, size_t rows,
                                   const float *dy, float *dq, float *dk, float *dv,
                                   struct skep_error *err)
{
    size_t width = c->kv_heads * c->head_dim, q_width = c->heads * c->head_dim;
    struct decoder_cache cache = {0};
    float *q = decoder_floats(rows, q_width), *mixed = decoder_floats(rows, q_width);
    float *d_mixed = decoder_floats(rows, q_width), *scores = decoder_floats(rows, 2);
    skep_status rc = SKEP_OK;

    if (q == NULL || mixed == NULL || d_mixed == NULL || scores == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    rc = decoder_mix(c, l, &cache, normal, rows, q, mixed, err);
    if (rc == SKEP_OK)
        rc = linear_backward(&l->o, &g->o, rows, mixed, dy, NULL, d_mixed, err);
    if (rc != SKEP_OK)
        goto out;
    memset(dq, 0, rows * q_width * sizeof(*dq));
    memset(dk, 0, rows * width * sizeof(*dk));
    memset(dv, 0, rows * width * sizeof(*dv));
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < c->heads; h++) {
            size_t at = r * q_width + h * c->head_dim;
            attend_backward(&cache, r + 1, width, h / (c->heads / c->kv_heads) * c->head_dim,
                            c->head_dim, q + at, d_mixed + at, scores, scores + rows, dq + at, dk,
                            dv);
        }

out:
    decoder_cache_free(&cache);
    mem_free(scores);
    mem_free(d_mixed);
    mem_free(mixed);
    mem_free(q);
    return rc;
}

/* d_normal is written. */
static skep_status attention_backward_of(const struct lm_config *c, const struct lm_layer *l,
                                         struct lm_layer *g, const float *normal, size_t rows,
                                         const float *dy, float *d_normal, struct skep_error *err)
{
    float *dq = decoder_floats(rows, c->heads * c->head_dim);
    float *dk = decoder_floats(rows, c->kv_heads * c->head_dim);
    float *dv = decoder_floats(rows, c->kv_heads * c->head_dim);
    skep_status rc =
        dq != NULL && dk != NULL && dv != NULL ? SKEP_OK : decoder_no_memory(err, rows);

    if (rc == SKEP_OK)
        rc = scores_backward(c, l, g, normal, rows, dy, dq, dk, dv, err);
    if (rc == SKEP_OK)
        rc = unturn(c, &l->q, l->q_norm, g->q_norm, normal, rows, c->heads, true, dq, err);
    if (rc == SKEP_OK)
        rc = unturn(c, &l->k, l->k_norm, g->k_norm, normal, rows, c->kv_heads, true, dk, err);
    if (rc == SKEP_OK)
        rc = unturn(c, &l->v, NULL, NULL, normal, rows, c->kv_heads, false, dv, err);
    if (rc == SKEP_OK)
        rc = linear_backward(&l->q, &g->q, rows, normal, dq, NULL, d_normal, err);
    if (rc == SKEP_OK)
        rc = linear_backward(&l->k, &g->k, rows, normal, dk, d_normal, d_normal, err);
    if (rc == SKEP_OK)
        rc = linear_backward(&l->v, &g->v, rows, normal, dv, d_normal, d_normal, err);
    mem_free(dv);
    mem_free(dk);
    mem_free(dq);
    return rc;
}

/* ---- a block ---- */

static bool zero(const float *like, size_t n, float **out)
{
    *out = like != NULL ? mem_calloc(n, sizeof(**out)) : NULL;
    return like == NULL || *out != NULL;
}

static bool zero_linear(const struct lm_linear *l, struct lm_linear *out)
{
    out->in = l->in;
    out->out = l->out;
    return zero(l->weight, l->in * l->out, &out->weight) && zero(l->bias, l->out, &out->bias);
}

static bool zero_mlp(const struct lm_mlp *m, struct lm_mlp *out)
{
    return zero_linear(&m->gate, &out->gate) && zero_linear(&m->up, &out->up) &&
           zero_linear(&m->down, &out->down);
}

static bool zero_experts(const struct lm_layer *l, struct lm_layer *out)
{
    if (l->experts == NULL)
        return true;
    out->experts = mem_calloc(l->expert_count, sizeof(*out->experts));
    if (out->experts == NULL)
        return false;
    out->expert_count = l->expert_count;
    for (size_t e = 0; e < l->expert_count; e++)
        if (!zero_mlp(&l->experts[e], &out->experts[e]))
            return false;
    return true;
}

skep_status decoder_grads_new(const struct lm_config *config, const struct lm_layer *layer,
                              struct lm_layer *out, struct skep_error *err)
{
    bool all = config->qk_norm == LM_NORM_ALL;
    const struct lm_layer *l = layer;

    memset(out, 0, sizeof(*out));
    if (zero(l->input_norm, config->hidden, &out->input_norm) &&
        zero(l->post_norm, config->hidden, &out->post_norm) &&
        zero(l->q_norm, config->head_dim * (all ? config->heads : 1), &out->q_norm) &&
        zero(l->k_norm, config->head_dim * (all ? config->kv_heads : 1), &out->k_norm) &&
        zero_linear(&l->q, &out->q) && zero_linear(&l->k, &out->k) && zero_linear(&l->v, &out->v) &&
        zero_linear(&l->o, &out->o) && zero_mlp(&l->mlp, &out->mlp) &&
        zero_linear(&l->router, &out->router) && zero_experts(l, out) &&
        zero_mlp(&l->shared, &out->shared) && zero_linear(&l->shared_gate, &out->shared_gate))
        return SKEP_OK;
    lm_layer_free(out);
    return error_no_memory(err, "a block's gradients", config->hidden);
}

skep_status decoder_backward(const struct lm_config *config, const struct lm_layer *layer,
                             const float *x, size_t rows, const float *grad_out, float *grad_x,
                             struct lm_layer *grads, struct skep_error *err)
{
    size_t n = rows * config->hidden;
    struct decoder_cache cache = {0};
    float *normal = decoder_floats(rows, config->hidden);
    float *middle = decoder_floats(rows, config->hidden);
    float *second = decoder_floats(rows, config->hidden);
    float *d_middle = decoder_floats(rows, config->hidden);
    float *d = decoder_floats(rows, config->hidden);
    skep_status rc = SKEP_OK;

    if (normal == NULL || middle == NULL || second == NULL || d_middle == NULL || d == NULL) {
        rc = decoder_no_memory(err, rows);
        goto out;
    }
    rc = decoder_attention(config, layer, &cache, x, rows, middle, err);
    if (rc != SKEP_OK)
        goto out;
    decoder_rms_norm(x, layer->input_norm, config->eps, rows, config->hidden, normal);
    decoder_rms_norm(middle, layer->post_norm, config->eps, rows, config->hidden, second);
    memcpy(d_middle, grad_out, n * sizeof(*d_middle));
    if (layer->experts != NULL)
        rc = mixture_backward(config, layer, grads, rows, second, grad_out, d, err);
    else
        rc = decoder_mlp_backward(&layer->mlp, &grads->mlp, rows, second, grad_out, d, err);
    if (rc != SKEP_OK)
        goto out;
    norm_backward(middle, layer->post_norm, config->eps, rows, config->hidden, d, d_middle,
                  grads->post_norm);
    rc = attention_backward_of(config, layer, grads, normal, rows, d_middle, d, err);
    if (rc != SKEP_OK)
        goto out;
    memcpy(grad_x, d_middle, n * sizeof(*grad_x));
    norm_backward(x, layer->input_norm, config->eps, rows, config->hidden, d, grad_x,
                  grads->input_norm);

out:
    decoder_cache_free(&cache);
    mem_free(d);
    mem_free(d_middle);
    mem_free(second);
    mem_free(middle);
    mem_free(normal);
    return rc;
}

skep_status decoder_head_backward(const struct lm_config *config, const struct lm_ends *ends,
                                  const float *x, size_t rows, const float *grad_logits,
                                  float *grad_x, float *grad_norm, struct skep_error *err)
{
    float *d = decoder_floats(rows, config->hidden);
    struct kernel_linear k = {
        .weight = ends->head, .rows = rows, .in = config->hidden, .out = config->vocabulary};
    skep_status rc = SKEP_OK;

    k.scratch = decoder_floats(kernel_linear_scratch(rows, k.in, k.out, false), 1);
    if (d == NULL || k.scratch == NULL)
        rc = decoder_no_memory(err, rows);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&k, kernel_floats(grad_logits), NULL, d, err);
    if (rc == SKEP_OK) {
        memset(grad_x, 0, rows * config->hidden * sizeof(*grad_x));
        norm_backward(x, ends->norm, config->eps, rows, config->hidden, d, grad_x, grad_norm);
    }
    mem_free(k.scratch);
    mem_free(d);
    return rc;
}
