/*
 * Experts of mixture-of-experts language models, in the layout that Hugging Face's tools write:
 * `model-00001-of-0000n.safetensors` files with `model.safetensors.index.json` beside them, or one
 * `model.safetensors`. An expert is three matrices without biases, which is what "swiglu" computes,
 * unless a `config.json` beside them names another activation than SiLU: that is refused.
 * Behind `model.layers.L.` expert E has the names of one of these columns:
 *
 *   mlp.experts.E.gate_proj.weight  block_sparse_moe.experts.E.w1.weight
 *   mlp.experts.E.up_proj.weight    block_sparse_moe.experts.E.w3.weight
 *   mlp.experts.E.down_proj.weight  block_sparse_moe.experts.E.w2.weight
 *
 * Routers, shared experts and everything else are left alone. Files are mapped, and one expert's
 * bytes at a time are in memory. Thread: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_MOE_H
#define SKEP_EXPERTS_MOE_H

#include "experts/expert.h"

struct moe;

/*
 * Opens a model's folder and lists its experts, sorted by layer and number.
 * @param out  owned: moe_close(). NULL on failure.
 * @return SKEP_NOT_FOUND without an index or a model.safetensors; SKEP_DATA_LOSS, with what is
 *         wrong, for a bad index, an expert that lacks a matrix or names one twice;
 *         SKEP_FAILED_PRECONDITION if it has no experts of either layout, or of another activation.
 */
SKEP_MUST_CHECK skep_status moe_open(const char *dir, struct moe **out, struct skep_error *err);
void moe_close(struct moe *moe); /* NULL is allowed */

size_t moe_count(const struct moe *moe);
/* Where expert i (i < count) was: its layer, and its number there. */
void moe_place(const struct moe *moe, size_t i, uint64_t *layer, uint64_t *number);

/*
 * Makes expert i: class "swiglu", sizes from its matrices, without an optimizer.
 * @param out  owned: expert_free(). NULL on failure.
 * @return SKEP_NOT_FOUND if a file is missing; SKEP_DATA_LOSS if it is damaged or lacks a tensor;
 *         SKEP_INVALID_ARGUMENT if matrices do not fit each other; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_load(struct moe *moe, size_t i, struct expert **out,
                                     struct skep_error *err);

#endif
