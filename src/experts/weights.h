/*
 * Plain weights: safetensors files with parameters under PyTorch's names and nothing else, as
 * `load_state_dict` takes and gives them. Thread: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_WEIGHTS_H
#define SKEP_EXPERTS_WEIGHTS_H

#include <skep/safetensors.h>
#include "experts/checkpoint.h"

/* F32, F16, BF16 and F64 as float32 (to nearest even; F64 beyond its range becomes infinite).
 * @param out  as many floats as the tensor has elements. SKEP_INVALID_ARGUMENT for other types. */
SKEP_MUST_CHECK skep_status weights_to_f32(const DLTensor *t, float *out, struct skep_error *err);

/* Whether weights_to_f32() takes a type. */
bool weights_can_convert(DLDataType dtype);

/* Writes a checkpoint's parameters alone. Errors as skep_safetensors_save(). */
SKEP_MUST_CHECK skep_status weights_export(const struct checkpoint *checkpoint, const char *path,
                                           struct skep_error *err);

/*
 * Puts one tensor into parameter `name`, converted if need be.
 * @return SKEP_NOT_FOUND for a name the expert has not; SKEP_INVALID_ARGUMENT if shape or type do
 *         not fit.
 */
SKEP_MUST_CHECK skep_status weights_set(struct expert *expert, const char *name, const DLTensor *t,
                                        struct skep_error *err);

/*
 * Puts a file's tensors into an expert. Every parameter must be there and nothing else may, but
 * "optimizer." tensors, which are left out.
 * @return SKEP_INVALID_ARGUMENT naming the parameter and both sides.
 */
SKEP_MUST_CHECK skep_status weights_load(const struct skep_safetensors *file, struct expert *expert,
                                         struct skep_error *err);

/*
 * Whether a file has all parameters of a built-in class, whatever their shapes.
 * @return SKEP_INVALID_ARGUMENT naming the class that the file looks like, or the first parameter
 *         that it lacks and what it holds.
 */
SKEP_MUST_CHECK skep_status weights_explain(const struct skep_safetensors *file, const char *cls,
                                            struct skep_error *err);

/* hidden_dim (and, for "swiglu", intermediate_dim) of a built-in class as a file's shapes tell;
 * false if they don't. Does not change what it cannot tell. */
bool weights_infer(const struct skep_safetensors *file, const char *cls,
                   struct skep_expert_options *options);

#endif
