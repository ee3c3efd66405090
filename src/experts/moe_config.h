/*
 * What a mixture-of-experts model's `config.json` says of its experts: their arithmetic, how many
 * there are, how wide. Families keep it at the top or in parts such as `text_config` or
 * `ffn_config`; parts of other towers (vision, audio...) are left out. Bytes in, facts out; no
 * files are touched. Thread: any.
 */
#ifndef SKEP_EXPERTS_MOE_CONFIG_H
#define SKEP_EXPERTS_MOE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum {
    MOE_CONFIG_LIMIT_BYTES = 4 << 20, /* published ones have a few KiB */
    MOE_CONFIG_KEY_BYTES = 64,
    MOE_CONFIG_COUNTS = 8,
    MOE_CONFIG_LAYERS = 1024,
};

/* A setting that says how many experts a layer has: for all layers, or for each. */
struct moe_count {
    char key[MOE_CONFIG_KEY_BYTES];
    uint64_t all; /* 0: a list */
    uint64_t sum; /* of a list: some families count groups of experts */
    uint64_t length;
    uint32_t each[MOE_CONFIG_LAYERS];
};

struct moe_config {
    uint64_t hidden_size; /* 0: not said */
    uint64_t layers;      /* 0: not said */
    size_t count_total;
    struct moe_count counts[MOE_CONFIG_COUNTS];
    char limit_key[MOE_CONFIG_KEY_BYTES]; /* empty: no layer clamps */
    double limits[MOE_CONFIG_LAYERS];     /* of its experts' activations; 0: none */
};

/*
 * Reads it, and checks that experts compute what "swiglu" does: SiLU, no biases, no clamp or factor
 * in any layer but those of `limits`. Python's NaN, Infinity and -Infinity are taken as what they
 * are. What it does not say is not checked.
 * @param stack  what the experts' names begin with: "model.layers". It says which tower is theirs.
 * @param out    zeroed on failure.
 * @return SKEP_FAILED_PRECONDITION naming the setting that class swiglu does not have;
 *         SKEP_DATA_LOSS, with what is wrong, if it is no JSON object, too long, nested too deeply,
 *         or a setting is of the wrong type; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_config_parse(struct moe_config *out, const void *data, size_t len,
                                             const char *stack, struct skep_error *err);

/* The number of experts that it gives a layer; 0 if it says none, or several. */
uint64_t moe_config_experts(const struct moe_config *config, uint64_t layer);

/* SKEP_DATA_LOSS if it gives numbers of experts for a layer, and not this one. */
SKEP_MUST_CHECK skep_status moe_config_check_count(const struct moe_config *config, uint64_t layer,
                                                   uint64_t experts, struct skep_error *err);

/* SKEP_FAILED_PRECONDITION if the experts of that layer clamp what they compute. */
SKEP_MUST_CHECK skep_status moe_config_check_layer(const struct moe_config *config, uint64_t layer,
                                                   struct skep_error *err);

#endif
