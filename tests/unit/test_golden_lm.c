/* Every model of $SKEP_GOLDEN_DIR/lm: hidden states, routing, logits, loss, gradients and greedy
 * decoding with a cache, within the tolerances of its README; then damaged copies of one, refused
 * by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <skep/safetensors.h>
#include <skep/tensor.h>

#include "golden_dir.h"
#include "model/decoder/decoder.h"
#include "model/decoder/rotary.h"

enum { MAX_CASES = 256, MAX_ROWS = 512 };

struct model {
    struct lm_folder *folder;
    const struct lm_config *config;
    struct lm_layer *layers;
    struct lm_ends ends;
    struct decoder_cache *caches;
    struct skep_safetensors *golden;
    const char *place;
};

static size_t compared;

static const DLTensor *golden(const struct model *m, const char *name)
{
    return skep_safetensors_find(m->golden, name);
}

static size_t count_of(const DLTensor *t)
{
    size_t n = 1;

    for (int i = 0; i < t->ndim; i++)
        n *= (size_t)t->shape[i];
    return n;
}

/* |x - golden| <= 5e-5 + 1e-4 |golden| */
static void compare(const struct model *m, const char *name, const float *x, size_t n)
{
    const DLTensor *t = golden(m, name);

    if (t == NULL || count_of(t) != n || t->dtype.bits != 32)
        fail_msg("%s: %s: not there as expected", m->place, name);
    for (size_t i = 0; i < n; i++) {
        float g;
        memcpy(&g, (const char *)skep_tensor_data(t) + i * sizeof(g), sizeof(g));
        if (!(fabsf(x[i] - g) <= 5e-5f + 1e-4f * fabsf(g)))
            fail_msg("%s: %s[%zu] is %.9g, expected %.9g", m->place, name, i, (double)x[i],
                     (double)g);
    }
    compared++;
}

static int64_t golden_id(const struct model *m, const char *name, size_t i)
{
    const DLTensor *t = golden(m, name);
    int64_t id;

    if (t == NULL || t->dtype.bits != 64 || i >= count_of(t))
        fail_msg("%s: %s: not there as expected", m->place, name);
    memcpy(&id, (const char *)skep_tensor_data(t) + i * sizeof(id), sizeof(id));
    return id;
}

static void compare_ids(const struct model *m, const char *name, size_t from, const uint32_t *x,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (golden_id(m, name, from + i) != (int64_t)x[i])
            fail_msg("%s: %s[%zu] is %u, expected %lld", m->place, name, from + i, x[i],
                     (long long)golden_id(m, name, from + i));
    compared++;
}

static float *floats(size_t n)
{
    float *x = test_calloc(n + 1, sizeof(*x));

    assert_non_null(x);
    return x;
}

static const char *named(char out[static 128], size_t prompt, const char *what, size_t layer)
{
    if (layer == SIZE_MAX)
        snprintf(out, 128, "p%zu.%s", prompt, what);
    else
        snprintf(out, 128, "p%zu.%s.%zu", prompt, what, layer);
    return out;
}

/* One block over some rows. With `step` only the routing of a decoding step is compared. */
static void run_layer(const struct model *m, size_t prompt, size_t l, float *x, size_t rows,
                      size_t step)
{
    const struct lm_config *c = m->config;
    bool sparse = lm_config_is_sparse(c, l);
    size_t k = c->experts_chosen;
    char name[128];
    struct decoder_trace trace = {floats(rows * c->hidden), floats(rows * c->hidden),
                                  floats(rows * c->experts),
                                  test_calloc(rows * k + 1, sizeof(uint32_t)), floats(rows * k)};
    struct skep_error err;

    if (decoder_forward(c, &m->layers[l], &m->caches[l], x, rows, x, &trace, &err) != SKEP_OK)
        fail_msg("%s: layer %zu: %s", m->place, l, err.message);
    if (step != SIZE_MAX) {
        if (sparse)
            compare_ids(m, named(name, prompt, "decode_router_experts", l), step * k,
                        trace.router_experts, k);
    } else {
        compare(m, named(name, prompt, "layer", l), x, rows * c->hidden);
        if (sparse) {
            compare(m, named(name, prompt, "moe_input", l), trace.moe_input, rows * c->hidden);
            compare(m, named(name, prompt, "moe_output", l), trace.moe_output, rows * c->hidden);
            compare(m, named(name, prompt, "router_logits", l), trace.router_logits,
                    rows * c->experts);
            compare_ids(m, named(name, prompt, "router_experts", l), 0, trace.router_experts,
                        rows * k);
            compare(m, named(name, prompt, "router_weights", l), trace.router_weights, rows * k);
        }
    }
    test_free(trace.moe_input);
    test_free(trace.moe_output);
    test_free(trace.router_logits);
    test_free(trace.router_experts);
    test_free(trace.router_weights);
}

/* All blocks and the head; logits [rows, vocabulary] are written. */
static void run(const struct model *m, size_t prompt, const uint32_t *ids, size_t rows,
                float *logits, size_t step)
{
    const struct lm_config *c = m->config;
    float *x = floats(rows * c->hidden), *normal = floats(rows * c->hidden);
    char name[128];

    assert_int_equal(decoder_embed(c, &m->ends, ids, rows, x, NULL), SKEP_OK);
    if (step == SIZE_MAX)
        compare(m, named(name, prompt, "embed", SIZE_MAX), x, rows * c->hidden);
    for (size_t l = 0; l < c->layers; l++)
        run_layer(m, prompt, l, x, rows, step);
    assert_int_equal(decoder_head(c, &m->ends, x, rows, normal, logits, NULL), SKEP_OK);
    if (step == SIZE_MAX)
        compare(m, named(name, prompt, "final_norm", SIZE_MAX), normal, rows * c->hidden);
    test_free(normal);
    test_free(x);
}

static uint32_t best_of(const float *logits, size_t n)
{
    size_t best = 0;

    for (size_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (uint32_t)best;
}

static float loss_of(const float *logits, size_t width, const uint32_t *ids, size_t rows)
{
    double sum = 0;

    for (size_t r = 0; r + 1 < rows; r++) {
        const float *row = logits + r * width;
        double total = 0, most = row[best_of(row, width)];
        for (size_t i = 0; i < width; i++)
            total += exp(row[i] - most);
        sum += log(total) + most - row[ids[r + 1]];
    }
    return (float)(sum / (double)(rows - 1));
}

static void check_prompt(const struct model *m, size_t prompt)
{
    size_t width = m->config->vocabulary;
    char name[128];
    uint32_t ids[MAX_ROWS], greedy;

    size_t rows = count_of(golden(m, named(name, prompt, "input_ids", SIZE_MAX)));
    assert_in_range(rows, 2, MAX_ROWS);
    for (size_t i = 0; i < rows; i++)
        ids[i] = (uint32_t)golden_id(m, name, i);
    float *logits = floats(rows * width);
    run(m, prompt, ids, rows, logits, SIZE_MAX);
    compare(m, named(name, prompt, "logits64", SIZE_MAX), logits, rows * width);
    float loss = loss_of(logits, width, ids, rows);
    compare(m, named(name, prompt, "loss", SIZE_MAX), &loss, 1);

    size_t steps = count_of(golden(m, named(name, prompt, "greedy_ids", SIZE_MAX))) - 1;
    float *decoded = floats(steps * width);
    greedy = best_of(logits + (rows - 1) * width, width);
    compare_ids(m, name, 0, &greedy, 1);
    for (size_t i = 0; i < steps; i++) {
        run(m, prompt, &greedy, 1, decoded + i * width, i);
        greedy = best_of(decoded + i * width, width);
        compare_ids(m, named(name, prompt, "greedy_ids", SIZE_MAX), i + 1, &greedy, 1);
    }
    compare(m, named(name, prompt, "decode_logits", SIZE_MAX), decoded, steps * width);
    test_free(decoded);
    test_free(logits);
    for (size_t l = 0; l < m->config->layers; l++)
        decoder_cache_free(&m->caches[l]);
}

/* ---- gradients ---- */

/* The largest error is at most 1e-4 of the tensor's largest absolute value. */
static void compare_grad(const struct model *m, const char *name, const float *x, size_t n)
{
    const DLTensor *t = golden(m, name);
    double most = 0, worst = 0;

    if (t == NULL || count_of(t) != n || t->dtype.bits != 32 || x == NULL)
        fail_msg("%s: %s: not there as expected", m->place, name);
    const float *g = skep_tensor_data(t);
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)g[i]));
        worst = fmax(worst, isnan(x[i]) ? INFINITY : fabs((double)x[i] - g[i]));
    }
    if (!(worst <= 1e-4 * most))
        fail_msg("%s: %s: largest error %.3g, largest value %.3g", m->place, name, worst, most);
    compared++;
}

/* @param part  "down_proj.weight", "w2.bias"... */
static void mlp_part(const struct lm_mlp *g, const char *part, const float **out, size_t *n)
{
    const struct {
        const char *name, *mixtral;
        const struct lm_linear *linear;
    } linears[] = {
        {"gate_proj", "w1", &g->gate}, {"up_proj", "w3", &g->up}, {"down_proj", "w2", &g->down}};
    const char *dot = strchr(part, '.');

    assert_non_null(dot);
    for (size_t i = 0; i < 3; i++) {
        const struct lm_linear *l = linears[i].linear;
        size_t len = (size_t)(dot - part);
        if (strncmp(part, linears[i].name, len) != 0 && strncmp(part, linears[i].mixtral, len) != 0)
            continue;
        bool bias = strcmp(dot, ".bias") == 0;
        *out = bias ? l->bias : l->weight;
        *n = bias ? l->out : l->in * l->out;
    }
}

/* The gradient of a parameter by its name in the files. */
static void check_parameter(const struct model *m, const struct lm_layer *grads,
                            const float *final_norm, const char *name)
{
    const char *part = name + strlen("grad.param.model.");
    const float *x = NULL;
    size_t n = 0, expert = 0;
    unsigned layer = 0;
    int at = 0;

    if (strcmp(part, "norm.weight") == 0) {
        compare_grad(m, name, final_norm, m->config->hidden);
        return;
    }
    assert_int_equal(sscanf(part, "layers.%u.%n", &layer, &at), 1);
    assert_true(layer < m->config->layers);
    part += at;
    const struct lm_layer *g = &grads[layer];
    if (strcmp(part, "input_layernorm.weight") == 0) {
        x = g->input_norm;
        n = m->config->hidden;
    } else if (strcmp(part, "self_attn.k_proj.weight") == 0) {
        x = g->k.weight;
        n = g->k.in * g->k.out;
    } else if (strcmp(part, "self_attn.k_proj.bias") == 0) {
        x = g->k.bias;
        n = g->k.out;
    } else if (strcmp(part, "self_attn.k_norm.weight") == 0) {
        x = g->k_norm;
        n = m->config->head_dim * (m->config->qk_norm == LM_NORM_ALL ? m->config->kv_heads : 1);
    } else if (strcmp(part, "mlp.gate.weight") == 0 ||
               strcmp(part, "block_sparse_moe.gate.weight") == 0) {
        x = g->router.weight;
        n = g->router.in * g->router.out;
    } else if (strcmp(part, "mlp.shared_expert_gate.weight") == 0) {
        x = g->shared_gate.weight;
        n = g->shared_gate.in;
    } else if ((sscanf(part, "mlp.experts.%zu.%n", &expert, &at) == 1 ||
                sscanf(part, "block_sparse_moe.experts.%zu.%n", &expert, &at) == 1) &&
               expert < g->expert_count) {
        mlp_part(&g->experts[expert], part + at, &x, &n);
    } else if (strncmp(part, "mlp.", 4) == 0) {
        mlp_part(&g->mlp, part + 4, &x, &n);
    }
    compare_grad(m, name, x, n);
}

static void check_expert(const struct model *m)
{
    const DLTensor *in = golden(m, "expert.input");
    const char *layer = skep_safetensors_metadata(m->golden, "layer");
    const char *expert = skep_safetensors_metadata(m->golden, "expert");
    struct lm_layer grads;

    if (in == NULL)
        return;
    const struct lm_layer *l = &m->layers[strtoul(layer, NULL, 10)];
    const struct lm_mlp *mlp = &l->experts[strtoul(expert, NULL, 10)];
    size_t n = (size_t)in->shape[0];
    float *y = floats(count_of(in)), *dx = floats(count_of(in));
    assert_int_equal(decoder_grads_new(m->config, l, &grads, NULL), SKEP_OK);
    assert_int_equal(decoder_mlp(mlp, n, skep_tensor_data(in), NULL, y, NULL), SKEP_OK);
    compare_grad(m, "expert.output_unweighted", y, count_of(in));
    assert_int_equal(decoder_mlp_backward(mlp, &grads.experts[0], n, skep_tensor_data(in),
                                          skep_tensor_data(golden(m, "expert.grad_output")), dx,
                                          NULL),
                     SKEP_OK);
    compare_grad(m, "expert.grad_input", dx, count_of(in));
    lm_layer_free(&grads);
    test_free(y);
    test_free(dx);
}

/* d loss / d logits of the mean cross entropy. */
static void loss_backward(float *logits, size_t width, const uint32_t *ids, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        float *row = logits + r * width;
        double total = 0, most = row[best_of(row, width)];
        for (size_t i = 0; i < width; i++)
            total += exp(row[i] - most);
        for (size_t i = 0; i < width; i++)
            row[i] = r + 1 < rows
                         ? (float)((exp(row[i] - most) / total - (i == ids[r + 1] ? 1 : 0)) /
                                   (double)(rows - 1))
                         : 0;
    }
}

static void check_gradients(const struct model *m)
{
    const struct lm_config *c = m->config;
    size_t rows = count_of(golden(m, "input_ids")), n = rows * c->hidden;
    float **x = test_calloc(c->layers + 1, sizeof(*x)), *grad = floats(n);
    float *logits = floats(rows * c->vocabulary), *normal = floats(n);
    float *final_norm = floats(c->hidden);
    struct lm_layer *grads = test_calloc(c->layers, sizeof(*grads));
    uint32_t ids[MAX_ROWS];
    char name[64];

    assert_in_range(rows, 2, MAX_ROWS);
    for (size_t i = 0; i < rows; i++)
        ids[i] = (uint32_t)golden_id(m, "input_ids", i);
    for (size_t l = 0; l <= c->layers; l++)
        x[l] = floats(n);
    assert_int_equal(decoder_embed(c, &m->ends, ids, rows, x[0], NULL), SKEP_OK);
    for (size_t l = 0; l < c->layers; l++)
        assert_int_equal(
            decoder_forward(c, &m->layers[l], &m->caches[l], x[l], rows, x[l + 1], NULL, NULL),
            SKEP_OK);
    assert_int_equal(decoder_head(c, &m->ends, x[c->layers], rows, normal, logits, NULL), SKEP_OK);
    loss_backward(logits, c->vocabulary, ids, rows);
    assert_int_equal(
        decoder_head_backward(c, &m->ends, x[c->layers], rows, logits, grad, final_norm, NULL),
        SKEP_OK);
    for (size_t l = c->layers; l-- > 0;) {
        snprintf(name, sizeof(name), "grad.layer.%zu", l);
        compare_grad(m, name, grad, n);
        snprintf(name, sizeof(name), "grad.moe_output.%zu", l);
        if (golden(m, name) != NULL) /* the residual hands the block's own gradient on */
            compare_grad(m, name, grad, n);
        assert_int_equal(decoder_grads_new(c, &m->layers[l], &grads[l], NULL), SKEP_OK);
        assert_int_equal(
            decoder_backward(c, &m->layers[l], x[l], rows, grad, grad, &grads[l], NULL), SKEP_OK);
    }
    compare_grad(m, "grad.inputs_embeds", grad, n);
    for (size_t i = 0; i < skep_safetensors_count(m->golden); i++)
        if (strncmp(skep_safetensors_name(m->golden, i), "grad.param.", 11) == 0)
            check_parameter(m, grads, final_norm, skep_safetensors_name(m->golden, i));
    check_expert(m);
    for (size_t l = 0; l < c->layers; l++) {
        lm_layer_free(&grads[l]);
        decoder_cache_free(&m->caches[l]);
    }
    for (size_t l = 0; l <= c->layers; l++)
        test_free(x[l]);
    test_free(x);
    test_free(grad);
    test_free(logits);
    test_free(normal);
    test_free(final_norm);
    test_free(grads);
}

static void check_case(const char *path)
{
    struct model m = {.place = path};
    char file[3 * GOLDEN_PATH_BYTES], name[128];
    struct skep_error err;
    size_t prompts = 0;

    snprintf(file, sizeof(file), "%s/golden.safetensors", path);
    if (skep_safetensors_open(file, &m.golden, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    if (lm_folder_open(path, &m.folder, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    m.config = lm_folder_config(m.folder);
    m.layers = test_calloc(m.config->layers, sizeof(*m.layers));
    m.caches = test_calloc(m.config->layers, sizeof(*m.caches));
    assert_int_equal(lm_folder_ends(m.folder, &m.ends, &err), SKEP_OK);
    for (size_t l = 0; l < m.config->layers; l++)
        assert_int_equal(lm_folder_layer(m.folder, l, &m.layers[l], &err), SKEP_OK);
    while (golden(&m, named(name, prompts, "input_ids", SIZE_MAX)) != NULL)
        check_prompt(&m, prompts++);
    assert_true(prompts > 0);
    skep_safetensors_close(m.golden);
    snprintf(file, sizeof(file), "%s/gradients.safetensors", path);
    if (skep_safetensors_open(file, &m.golden, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    check_gradients(&m);
    for (size_t l = 0; l < m.config->layers; l++)
        lm_layer_free(&m.layers[l]);
    lm_ends_free(&m.ends);
    test_free(m.layers);
    test_free(m.caches);
    lm_folder_close(m.folder);
    skep_safetensors_close(m.golden);
}

static int is_case(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && strchr(entry->d_name, '.') == NULL &&
           strcmp(entry->d_name, "tokenizers") != 0;
}

static void models_agree_with_golden_data(void **state)
{
    char root[GOLDEN_PATH_BYTES], path[2 * GOLDEN_PATH_BYTES];
    struct dirent **cases;

    (void)state;
    size_t n = golden_list(golden_path("lm", root), is_case, MAX_CASES, &cases);
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", root, cases[i]->d_name);
        check_case(path);
        free(cases[i]);
    }
    free(cases);
    printf("%zu models, %zu tensors compared\n", n, compared);
}

/* ---- refusals ---- */

static void config_is_refused(const char *json, const char *message)
{
    struct lm_config c;
    struct skep_error err;

    assert_int_equal(lm_config_parse(json, strlen(json), &c, &err), SKEP_INVALID_ARGUMENT);
    if (strstr(err.message, message) == NULL)
        fail_msg("\"%s\", expected \"%s\"", err.message, message);
}

#define SMALL                                                                                      \
    "\"model_type\":\"llama\",\"hidden_size\":4,\"num_hidden_layers\":1,"                          \
    "\"num_attention_heads\":2,\"max_position_embeddings\":8,\"intermediate_size\":4,"             \
    "\"rms_norm_eps\":1e-5,"

static void settings_that_are_not_known_are_refused_by_name(void **state)
{
    (void)state;
    config_is_refused("{\"model_type\":\"gpt2\"}", "model_type: ");
    config_is_refused("{", "line 1: ");
    config_is_refused("{" SMALL "\"hidden_act\":\"silu\"}", "vocab_size: absent, expected 1 to");
    config_is_refused("{" SMALL "\"vocab_size\":4,\"hidden_act\":\"gelu\"}", "hidden_act: ");
    config_is_refused("{" SMALL "\"vocab_size\":4,\"hidden_act\":\"silu\","
                      "\"num_key_value_heads\":3}",
                      "num_key_value_heads: \"3\", expected a divisor");
    config_is_refused("{" SMALL "\"vocab_size\":4,\"hidden_act\":\"silu\","
                      "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}",
                      "rope_scaling: ");
    config_is_refused("{" SMALL "\"vocab_size\":4,\"hidden_act\":\"silu\","
                      "\"rope_scaling\":{\"rope_type\":\"linear\"}}",
                      "rope_scaling: factor: absent");
}

/* What golden data does not cover. The numbers are those of the reference's formula, computed apart
 * for head_dim 16, theta 10000, factor 4 and 64 original positions. */
static void linear_and_yarn_frequencies_follow_the_reference(void **state)
{
    static const double yarn[] = {1.0,    0.23717082451262847,   0.05,    0.007905694150420948,
                                  0.0025, 0.0007905694150420947, 0.00025, 7.905694150420948e-05};
    struct lm_config c = {.head_dim = 16,
                          .rope = LM_ROPE_LINEAR,
                          .rope_theta = 10000,
                          .rope_factor = 4,
                          .rope_original = 64,
                          .rope_beta_fast = 32,
                          .rope_beta_slow = 1,
                          .rope_attention = 1.138629436111989};
    double f[8];

    (void)state;
    assert_true(rotary_frequencies(&c, f) == 1);
    for (size_t i = 0; i < 8; i++)
        assert_true(fabs(f[i] * 4 / pow(10, -(double)i / 2) - 1) < 1e-12);
    c.rope = LM_ROPE_YARN;
    assert_true(rotary_frequencies(&c, f) == c.rope_attention);
    for (size_t i = 0; i < 8; i++)
        assert_true(fabs(f[i] / yarn[i] - 1) < 1e-12);
}

/* Writes the files of a folder: `count` tensors of float32 zeros. */
struct made {
    const char *name;
    int64_t rows, cols;
};

static uint16_t *made_halves; /* what the last tensor holds, as F16; NULL: zeros */

static void make_folder(const char *path, const struct made *made, size_t count)
{
    float zeros[64] = {0};
    int64_t shapes[16][2];
    DLTensor tensors[16];
    struct skep_named_tensor named_tensors[16];
    char file[GOLDEN_PATH_BYTES];
    FILE *f;

    for (size_t i = 0; i < count; i++) {
        shapes[i][0] = made[i].rows;
        shapes[i][1] = made[i].cols;
        tensors[i] = (DLTensor){.data = zeros,
                                .device = {kDLCPU, 0},
                                .ndim = made[i].cols > 0 ? 2 : 1,
                                .dtype = {kDLFloat, 32, 1},
                                .shape = shapes[i]};
        if (made_halves != NULL && i + 1 == count) {
            tensors[i].data = made_halves;
            tensors[i].dtype.bits = 16;
        }
        named_tensors[i] = (struct skep_named_tensor){made[i].name, &tensors[i]};
    }
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    assert_int_equal(skep_safetensors_save(file, named_tensors, count, NULL, NULL), SKEP_OK);
    snprintf(file, sizeof(file), "%s/config.json", path);
    f = fopen(file, "w");
    assert_non_null(f);
    fputs("{" SMALL "\"vocab_size\":8,\"hidden_act\":\"silu\",\"tie_word_embeddings\":true}", f);
    assert_int_equal(fclose(f), 0);
}

static void folder_is_refused(const char *path, skep_status status, const char *message)
{
    struct lm_folder *folder = (struct lm_folder *)1;
    struct skep_error err;

    assert_int_equal(lm_folder_open(path, &folder, &err), status);
    assert_null(folder);
    if (strstr(err.message, message) == NULL)
        fail_msg("\"%s\", expected \"%s\"", err.message, message);
}

static void damaged_folders_are_refused_by_the_tensors_name(void **state)
{
#define LAYER "model.layers.0."
    static const struct made whole[] = {
        {"model.embed_tokens.weight", 8, 4},     {"model.norm.weight", 4, 0},
        {LAYER "input_layernorm.weight", 4, 0},  {LAYER "post_attention_layernorm.weight", 4, 0},
        {LAYER "self_attn.q_proj.weight", 4, 4}, {LAYER "self_attn.k_proj.weight", 4, 4},
        {LAYER "self_attn.v_proj.weight", 4, 4}, {LAYER "self_attn.o_proj.weight", 4, 4},
        {LAYER "mlp.gate_proj.weight", 4, 4},    {LAYER "mlp.up_proj.weight", 4, 4},
        {LAYER "mlp.down_proj.weight", 4, 4},    {LAYER "mlp.surprise.weight", 4, 4},
    };
#undef LAYER
    enum { COUNT = sizeof(whole) / sizeof(whole[0]) - 1 };
    char path[] = "/tmp/test_golden_lm.XXXXXX", file[GOLDEN_PATH_BYTES];
    struct lm_folder *folder = NULL;
    struct made changed[COUNT];

    (void)state;
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    folder_is_refused(path, SKEP_NOT_FOUND, "config.json");
    make_folder(path, whole, COUNT);
    assert_int_equal(lm_folder_open(path, &folder, NULL), SKEP_OK);
    lm_folder_close(folder);
    make_folder(path, whole, COUNT + 1);
    folder_is_refused(path, SKEP_INVALID_ARGUMENT,
                      "surprise.weight\" is not part of this architecture");
    make_folder(path, whole, COUNT - 1);
    folder_is_refused(path, SKEP_INVALID_ARGUMENT,
                      "tensor model.layers.0.mlp.down_proj.weight is missing");
    memcpy(changed, whole, sizeof(changed));
    changed[5].rows = 2;
    make_folder(path, changed, COUNT);
    folder_is_refused(path, SKEP_INVALID_ARGUMENT, "k_proj.weight: shape [2, 4], expected [4, 4]");
    memcpy(changed, whole, sizeof(changed));
    changed[0].rows = 7; /* a vocabulary of another size */
    make_folder(path, changed, COUNT);
    folder_is_refused(path, SKEP_INVALID_ARGUMENT,
                      "model.embed_tokens.weight: shape [7, 4], expected [8, 4]");
    make_folder(path, whole, COUNT);
    assert_int_equal(truncate(file, 900), 0);
    folder_is_refused(path, SKEP_DATA_LOSS, "model.safetensors");
    assert_int_equal(unlink(file), 0);
    folder_is_refused(path, SKEP_NOT_FOUND, "model.safetensors");
    snprintf(file, sizeof(file), "%s/config.json", path);
    unlink(file);
    rmdir(path);
}

static void half_precision_is_widened_exactly(void **state)
{
#define LAYER "model.layers.0."
    static const struct made rest[] = {
        {"model.embed_tokens.weight", 8, 4},
        {LAYER "post_attention_layernorm.weight", 4, 0},
        {LAYER "input_layernorm.weight", 4, 0},
        {LAYER "self_attn.q_proj.weight", 4, 4},
        {LAYER "self_attn.k_proj.weight", 4, 4},
        {LAYER "self_attn.v_proj.weight", 4, 4},
        {LAYER "self_attn.o_proj.weight", 4, 4},
        {LAYER "mlp.gate_proj.weight", 4, 4},
        {LAYER "mlp.up_proj.weight", 4, 4},
        {LAYER "mlp.down_proj.weight", 4, 4},
        {"model.norm.weight", 4, 0},
    };
#undef LAYER
    static const float expected[] = {-2.5f, 0x1p-24f, 65504, 0x1p-14f};
    uint16_t halves[] = {0xc100, 0x0001, 0x7bff, 0x0400};
    char path[] = "/tmp/test_golden_lm.XXXXXX", file[GOLDEN_PATH_BYTES];
    struct lm_folder *folder = NULL;
    struct lm_ends ends;

    (void)state;
    assert_non_null(mkdtemp(path));
    made_halves = halves;
    make_folder(path, rest, sizeof(rest) / sizeof(rest[0]));
    made_halves = NULL;
    assert_int_equal(lm_folder_open(path, &folder, NULL), SKEP_OK);
    assert_int_equal(lm_folder_ends(folder, &ends, NULL), SKEP_OK);
    assert_memory_equal(ends.norm, expected, sizeof(expected));
    assert_ptr_equal(ends.head, ends.embed);
    lm_ends_free(&ends);
    lm_folder_close(folder);
    snprintf(file, sizeof(file), "%s/model.safetensors", path);
    unlink(file);
    snprintf(file, sizeof(file), "%s/config.json", path);
    unlink(file);
    rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_agree_with_golden_data),
        cmocka_unit_test(linear_and_yarn_frequencies_follow_the_reference),
        cmocka_unit_test(half_precision_is_widened_exactly),
        cmocka_unit_test(settings_that_are_not_known_are_refused_by_name),
        cmocka_unit_test(damaged_folders_are_refused_by_the_tensors_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
