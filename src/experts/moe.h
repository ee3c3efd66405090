/*
 * Experts of mixture-of-experts language models, in the layouts that Hugging Face's tools write:
 * `model-00001-of-0000n.safetensors` files with `model.safetensors.index.json` beside them, or one
 * file. An expert is three matrices without biases, which is what "swiglu" computes; a tensor or a
 * setting of `config.json` by which it would compute something else is refused by its name. Behind
 * a stack of layers, such as `model.layers.L.`, and a block, such as `mlp.`, names are those of one
 * row (E: an expert's number):
 *
 *   experts.E.gate_proj.weight    experts.E.up_proj.weight   experts.E.down_proj.weight
 *   experts.E.w1.weight           experts.E.w3.weight        experts.E.w2.weight
 *   experts.gate_up_proj (or fc1.weight): gate, then up      experts.down_proj (or fc2.weight)
 *   experts.gate_proj (or w1)     experts.up_proj (or w3)    experts.down_proj (or w2)
 *   moe.gate_proj.weight          moe.up_proj.weight         moe.down_proj.weight
 *   input_linear.weight: gate, then up                       output_linear.weight
 *   experts.mlp.w1                experts.mlp.v1             experts.mlp.w2
 *
 * All but the first two rows hold all experts of a layer in one tensor: of three dimensions,
 * [experts, out, in] or, as shapes tell, [experts, in, out]; in the last row (DBRX) of two.
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
 * @param stack  which layers, where a model has experts in several stacks: moe_index_check().
 * @param out    owned: moe_close(). NULL on failure.
 * @return SKEP_NOT_FOUND without an index or a model.safetensors, naming what is there instead;
 *         SKEP_DATA_LOSS, with what is wrong, for a bad index or config, an expert that lacks a
 *         matrix or names one twice, layers or experts that the config has and the model has not;
 *         SKEP_FAILED_PRECONDITION if it has no experts of a known layout, or for what class swiglu
 *         does not compute.
 */
SKEP_MUST_CHECK skep_status moe_open(const char *dir, const char *stack, struct moe **out,
                                     struct skep_error *err);
void moe_close(struct moe *moe); /* NULL is allowed */

size_t moe_count(const struct moe *moe);
/* Where expert i (i < count) was: its layer, and its number there. */
void moe_place(const struct moe *moe, size_t i, uint64_t *layer, uint64_t *number);
/* Other stacks of layers that have experts and are not listed; "" if there are none. View. */
const char *moe_left_out(const struct moe *moe);

/*
 * Checks that moe_load() of expert i can only fail for want of memory: its files are there and
 * whole, name no other tensor of experts, and its matrices fit each other and the config.
 * @return as moe_load().
 */
SKEP_MUST_CHECK skep_status moe_check(struct moe *moe, size_t i, struct skep_error *err);

/*
 * Makes expert i: class "swiglu", sizes from its matrices, without an optimizer.
 * @param out  owned: expert_free(). NULL on failure.
 * @return SKEP_NOT_FOUND if a file is missing; SKEP_DATA_LOSS if it is damaged or lacks a tensor;
 *         SKEP_INVALID_ARGUMENT if matrices do not fit each other; SKEP_FAILED_PRECONDITION if the
 *         layer computes something else; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_load(struct moe *moe, size_t i, struct expert **out,
                                     struct skep_error *err);

#endif
