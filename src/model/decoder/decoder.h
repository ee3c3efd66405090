/*
 * Causal blocks in float32: RMSNorm, rotary grouped-query attention over a key/value cache, SwiGLU
 * or a mixture of experts. Rows are positions of one sequence, row-major.
 * Weights are only read; each cache belongs to one thread at a time.
 */
#ifndef SKEP_MODEL_DECODER_DECODER_H
#define SKEP_MODEL_DECODER_DECODER_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#include "model/checkpoint/lm_folder.h"

/* Keys and values of the positions that one block has seen. Zeroed memory is an empty cache. */
struct decoder_cache {
    float *keys, *values; /* owned: decoder_cache_free(); [capacity, kv_heads * head_dim] */
    size_t len, capacity; /* positions */
};

/* NULL and zeroed are allowed. */
void decoder_cache_free(struct decoder_cache *cache);

/* What a mixture block did, for whoever asks. Each may be NULL; k = experts_chosen. */
struct decoder_trace {
    float *moe_input, *moe_output; /* [rows, hidden] */
    float *router_logits;          /* [rows, experts] */
    uint32_t *router_experts;      /* [rows, k], best first */
    float *router_weights;         /* [rows, k] */
};

/*
 * Runs a block over positions cache->len and up, and appends them to the cache.
 * @param x      [rows, hidden]; rows >= 1. @param out  the same shape; may be x.
 * @param trace  NULL: none. A dense block leaves it alone.
 * @return SKEP_INVALID_ARGUMENT if the positions exceed the model's; SKEP_RESOURCE_EXHAUSTED;
 *         SKEP_INTERNAL if oneDNN fails. The cache keeps its length then.
 */
SKEP_MUST_CHECK skep_status decoder_forward(const struct lm_config *config,
                                            const struct lm_layer *layer,
                                            struct decoder_cache *cache, const float *x,
                                            size_t rows, float *out,
                                            const struct decoder_trace *trace,
                                            struct skep_error *err);

/* The embedding's rows. SKEP_INVALID_ARGUMENT for an id outside the vocabulary. */
SKEP_MUST_CHECK skep_status decoder_embed(const struct lm_config *config,
                                          const struct lm_ends *ends, const uint32_t *ids,
                                          size_t count, float *out, struct skep_error *err);

/* @param normalized  [rows, hidden], written: after the last norm. @param logits  [rows,
 * vocabulary]. */
SKEP_MUST_CHECK skep_status decoder_head(const struct lm_config *config, const struct lm_ends *ends,
                                         const float *x, size_t rows, float *normalized,
                                         float *logits, struct skep_error *err);

#endif
