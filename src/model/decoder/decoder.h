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

/* down(silu(gate(x)) * up(x)) + add; one expert or a dense MLP. add may be NULL. */
SKEP_MUST_CHECK skep_status decoder_mlp(const struct lm_mlp *mlp, size_t rows, const float *x,
                                        const float *add, float *out, struct skep_error *err);

/* Zeroed gradients for all weights of a layer. Owned: lm_layer_free(). Zeroed on failure. */
SKEP_MUST_CHECK skep_status decoder_grads_new(const struct lm_config *config,
                                              const struct lm_layer *layer, struct lm_layer *out,
                                              struct skep_error *err);

/* dx[rows, in] is written; grads are written. */
SKEP_MUST_CHECK skep_status decoder_mlp_backward(const struct lm_mlp *mlp, struct lm_mlp *grads,
                                                 size_t rows, const float *x, const float *dy,
                                                 float *dx, struct skep_error *err);

/*
 * The gradients of a block over one sequence that begins at position 0; the forward pass is
 * computed again.
 * @param x         [rows, hidden]: what the block received.
 * @param grad_out  [rows, hidden]: of its output. @param grad_x  the same of x; written.
 * @param grads     fresh from decoder_grads_new().
 */
SKEP_MUST_CHECK skep_status decoder_backward(const struct lm_config *config,
                                             const struct lm_layer *layer, const float *x,
                                             size_t rows, const float *grad_out, float *grad_x,
                                             struct lm_layer *grads, struct skep_error *err);

/* @param grad_logits  [rows, vocabulary]. @param grad_x  [rows, hidden]; written.
 * @param grad_norm  [hidden]; added to. The head's own gradient is not computed. */
SKEP_MUST_CHECK skep_status decoder_head_backward(const struct lm_config *config,
                                                  const struct lm_ends *ends, const float *x,
                                                  size_t rows, const float *grad_logits,
                                                  float *grad_x, float *grad_norm,
                                                  struct skep_error *err);

#endif
