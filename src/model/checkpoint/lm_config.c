/* One table says what each architecture adds; readers of single settings name what they refuse. */
#include "model/checkpoint/lm_config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

struct architecture {
    const char *model_type;
    enum lm_architecture id;
    enum lm_norm qk_norm;
    const char *experts;      /* the setting that counts them; NULL: dense */
    const char *expert_width; /* the setting of their width */
    bool always_norm_topk;
};

static const struct architecture architectures[] = {
    {"llama", LM_LLAMA, LM_NORM_NONE, NULL, NULL, false},
    {"mixtral", LM_MIXTRAL, LM_NORM_NONE, "num_local_experts", "intermediate_size", true},
    {"olmoe", LM_OLMOE, LM_NORM_ALL, "num_experts", "intermediate_size", false},
    {"qwen2_moe", LM_QWEN2_MOE, LM_NORM_NONE, "num_experts", "moe_intermediate_size", false},
    {"qwen3", LM_QWEN3, LM_NORM_HEAD, NULL, NULL, false},
    {"qwen3_moe", LM_QWEN3_MOE, LM_NORM_HEAD, "num_experts", "moe_intermediate_size", false},
};

/* Collects the first failure, so that settings are read line by line. */
struct reader {
    const json_t *root;
    skep_status rc;
    struct skep_error *err;
};

static void refuse(struct reader *r, const char *name, const char *expected)
{
    char *value;

    if (r->rc != SKEP_OK)
        return;
    value = json_dumps(json_object_get(r->root, name), JSON_ENCODE_ANY | JSON_COMPACT);
    char quote[TEXT_QUOTE_BYTES];
    const char *seen = value != NULL ? text_quote(value, strlen(value), quote) : "absent";
    r->rc = error_set(r->err, SKEP_INVALID_ARGUMENT, "%s: %s, expected %s", name, seen, expected);
    free(value); /* jansson's */
}

static bool is_set(const json_t *value)
{
    return value != NULL && !json_is_null(value);
}

static size_t read_size(struct reader *r, const char *name, size_t absent, size_t most)
{
    const json_t *value = json_object_get(r->root, name);
    json_int_t n = json_integer_value(value);
    char expected[64];

    if (!is_set(value) && absent > 0)
        return absent;
    if (json_is_integer(value) && n >= 1 && n <= (json_int_t)most)
        return (size_t)n;
    snprintf(expected, sizeof(expected), "1 to %zu", most);
    refuse(r, name, expected);
    return 1;
}

/* A positive number. @param absent  0: it must be there. */
static double read_number(struct reader *r, const char *name, double absent)
{
    const json_t *value = json_object_get(r->root, name);
    double x = json_number_value(value);

    if (!is_set(value) && absent > 0)
        return absent;
    if (json_is_number(value) && isfinite(x) && x > 0)
        return x;
    refuse(r, name, "a number above 0");
    return 1;
}

static bool read_bool(struct reader *r, const char *name, bool absent)
{
    const json_t *value = json_object_get(r->root, name);

    if (is_set(value) && !json_is_boolean(value))
        refuse(r, name, "true or false");
    return is_set(value) ? json_is_true(value) : absent;
}

static void read_yarn(struct reader *r, struct lm_config *c)
{
    c->rope = LM_ROPE_YARN;
    c->rope_factor = read_number(r, "factor", 0);
    c->rope_original = read_number(r, "original_max_position_embeddings", (double)c->max_positions);
    c->rope_beta_fast = read_number(r, "beta_fast", 32);
    c->rope_beta_slow = read_number(r, "beta_slow", 1);
    c->rope_attention = read_number(r, "attention_factor", 0.1 * log(c->rope_factor) + 1);
    for (size_t i = 0; i < 2; i++) {
        const char *name = i == 0 ? "mscale" : "mscale_all_dim";
        if (is_set(json_object_get(r->root, name)))
            refuse(r, name, "none: this form of yarn is not supported");
    }
}

static void read_rope(struct reader *r, struct lm_config *c)
{
    const json_t *scaling = json_object_get(r->root, "rope_scaling");
    struct reader s = {scaling, r->rc, r->err};
    const char *type = json_string_value(json_object_get(scaling, "rope_type"));

    if (!is_set(scaling))
        return;
    if (type == NULL)
        type = json_string_value(json_object_get(scaling, "type")); /* the older name */
    if (type != NULL && strcmp(type, "default") == 0)
        return;
    if (type != NULL && strcmp(type, "linear") == 0) {
        c->rope = LM_ROPE_LINEAR;
        c->rope_factor = read_number(&s, "factor", 0);
    } else if (type != NULL && strcmp(type, "llama3") == 0) {
        c->rope = LM_ROPE_LLAMA3;
        c->rope_factor = read_number(&s, "factor", 0);
        c->rope_low = read_number(&s, "low_freq_factor", 0);
        c->rope_high = read_number(&s, "high_freq_factor", 0);
        c->rope_original = read_number(&s, "original_max_position_embeddings", 0);
        if (c->rope_high <= c->rope_low)
            refuse(&s, "high_freq_factor", "more than low_freq_factor");
    } else if (type != NULL && strcmp(type, "yarn") == 0) {
        read_yarn(&s, c);
    } else {
        refuse(r, "rope_scaling", "type linear, llama3 or yarn");
        return;
    }
    if (s.rc != SKEP_OK && r->rc == SKEP_OK)
        error_prefix(r->err, "rope_scaling");
    r->rc = s.rc;
}

/* Which layers of a mixture model are dense: mlp_only_layers and decoder_sparse_step. */
static void read_dense_layers(struct reader *r, struct lm_config *c)
{
    const json_t *list = json_object_get(r->root, "mlp_only_layers");
    size_t step = read_size(r, "decoder_sparse_step", 1, LM_MAX_LAYERS);

    for (size_t layer = 0; layer < c->layers; layer++)
        c->dense[layer] = (layer + 1) % step != 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t layer = json_integer_value(json_array_get(list, i));
        if (!json_is_integer(json_array_get(list, i)) || layer < 0)
            refuse(r, "mlp_only_layers", "numbers of layers");
        else if ((size_t)layer < c->layers)
            c->dense[layer] = true;
    }
}

static void read_mixture(struct reader *r, const struct architecture *a, struct lm_config *c)
{
    if (a->experts == NULL)
        return;
    c->experts = read_size(r, a->experts, 0, LM_MAX_EXPERTS);
    c->experts_chosen = read_size(r, "num_experts_per_tok", 0, c->experts);
    c->expert_width = read_size(r, a->expert_width, 0, LM_MAX_WIDTH);
    c->norm_topk = a->always_norm_topk || read_bool(r, "norm_topk_prob", false);
    if (a->id == LM_QWEN2_MOE)
        c->shared_width = read_size(r, "shared_expert_intermediate_size", 0, LM_MAX_WIDTH);
    if (a->id == LM_QWEN2_MOE || a->id == LM_QWEN3_MOE)
        read_dense_layers(r, c);
}

/* A window that never closes is no window. */
static void check_window(struct reader *r, const struct lm_config *c)
{
    const json_t *window = json_object_get(r->root, "sliding_window");
    bool used = c->architecture == LM_MIXTRAL || read_bool(r, "use_sliding_window", false);

    if (is_set(window) && used && json_integer_value(window) < (json_int_t)c->max_positions)
        refuse(r, "sliding_window", "null: windows of attention are not supported");
}

static void read_all(struct reader *r, const struct architecture *a, struct lm_config *c)
{
    const char *activation = json_string_value(json_object_get(r->root, "hidden_act"));

    c->architecture = a->id;
    c->qk_norm = a->qk_norm;
    c->hidden = read_size(r, "hidden_size", 0, LM_MAX_WIDTH);
    c->layers = read_size(r, "num_hidden_layers", 0, LM_MAX_LAYERS);
    c->heads = read_size(r, "num_attention_heads", 0, LM_MAX_WIDTH);
    c->kv_heads = read_size(r, "num_key_value_heads", c->heads, LM_MAX_WIDTH);
    if (c->heads % c->kv_heads != 0)
        refuse(r, "num_key_value_heads", "a divisor of num_attention_heads");
    if (!is_set(json_object_get(r->root, "head_dim")) && c->hidden % c->heads != 0)
        refuse(r, "num_attention_heads", "a divisor of hidden_size");
    c->head_dim =
        read_size(r, "head_dim", c->hidden >= c->heads ? c->hidden / c->heads : 1, LM_MAX_WIDTH);
    if (c->head_dim % 2 != 0)
        refuse(r, "head_dim", "an even number");
    c->vocabulary = read_size(r, "vocab_size", 0, LM_MAX_VOCABULARY);
    c->max_positions = read_size(r, "max_position_embeddings", 0, 1 << 30);
    c->intermediate = read_size(r, "intermediate_size", 0, LM_MAX_WIDTH);
    c->eps = read_number(r, "rms_norm_eps", 0);
    c->rope_theta = read_number(r, "rope_theta", a->id == LM_LLAMA ? 10000 : 0);
    c->tied = read_bool(r, "tie_word_embeddings", false);
    if (activation == NULL || strcmp(activation, "silu") != 0)
        refuse(r, "hidden_act", "\"silu\"");
    if (a->id == LM_OLMOE && is_set(json_object_get(r->root, "clip_qkv")))
        c->clip_qkv = read_number(r, "clip_qkv", 0);
    read_mixture(r, a, c);
    check_window(r, c);
    read_rope(r, c);
}

skep_status lm_config_parse(const void *json, size_t len, struct lm_config *out,
                            struct skep_error *err)
{
    const struct architecture *found = NULL;
    struct reader r = {.err = err};
    json_error_t reason;
    json_t *root = json_loadb(len > 0 ? json : "", len, 0, &reason);

    memset(out, 0, sizeof(*out));
    if (root == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "line %d: %s", reason.line, reason.text);
    r.root = root;
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (size_t i = 0; i < sizeof(architectures) / sizeof(architectures[0]); i++)
        if (type != NULL && strcmp(type, architectures[i].model_type) == 0)
            found = &architectures[i];
    if (found == NULL)
        refuse(&r, "model_type", "llama, mixtral, olmoe, qwen2_moe, qwen3 or qwen3_moe");
    else
        read_all(&r, found, out);
    json_decref(root);
    if (r.rc != SKEP_OK)
        memset(out, 0, sizeof(*out));
    return r.rc;
}
