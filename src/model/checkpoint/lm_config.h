/* What a causal language model's config.json says. Settings that change the arithmetic and are not
 * known are refused by name. Thread: any. */
#ifndef SKEP_MODEL_CHECKPOINT_LM_CONFIG_H
#define SKEP_MODEL_CHECKPOINT_LM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <skep/status.h>

enum {
    LM_MAX_LAYERS = 1024,
    LM_MAX_EXPERTS = 4096,
    LM_MAX_WIDTH = 1 << 20, /* of any dimension but the vocabulary */
    LM_MAX_VOCABULARY = 1 << 24,
};

enum lm_architecture { LM_LLAMA, LM_MIXTRAL, LM_OLMOE, LM_QWEN2_MOE, LM_QWEN3, LM_QWEN3_MOE };
enum lm_norm { LM_NORM_NONE, LM_NORM_HEAD, LM_NORM_ALL }; /* of queries and keys */
enum lm_rope { LM_ROPE_PLAIN, LM_ROPE_LINEAR, LM_ROPE_LLAMA3, LM_ROPE_YARN };

struct lm_config {
    enum lm_architecture architecture;
    size_t hidden, layers, heads, kv_heads, head_dim, vocabulary, max_positions;
    size_t intermediate; /* width of a dense MLP */
    double eps;
    bool tied; /* the embedding is the output head too */
    enum lm_norm qk_norm;
    double clip_qkv; /* 0: none */

    size_t experts, experts_chosen; /* 0: dense */
    size_t expert_width;
    size_t shared_width; /* of Qwen2-MoE's shared expert; 0: none */
    bool norm_topk;
    bool dense[LM_MAX_LAYERS]; /* layers of a mixture model that are dense */

    enum lm_rope rope;
    double rope_theta, rope_factor, rope_low, rope_high; /* low, high: llama3's frequency factors */
    double rope_original;                                /* positions of the first training */
    double rope_beta_fast, rope_beta_slow, rope_attention; /* yarn */
};

/* @return SKEP_INVALID_ARGUMENT with the setting's name and value. `out` is zeroed then. */
SKEP_MUST_CHECK skep_status lm_config_parse(const void *json, size_t len, struct lm_config *out,
                                            struct skep_error *err);

static inline bool lm_config_is_sparse(const struct lm_config *c, size_t layer)
{
    return c->experts > 0 && !c->dense[layer];
}

#endif
