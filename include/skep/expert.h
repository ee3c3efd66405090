/**
 * @file skep/expert.h
 * Experts: their schema, and the settings from which a node creates them.
 */
#ifndef SKEP_EXPERT_H
#define SKEP_EXPERT_H

#include <skep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKEP_EXPERT_MAX_TENSORS 8
#define SKEP_EXPERT_NAME_BYTES 32

/**
 * One input or output. Dimension 0 is the batch (`shape[0]` is -1); any other -1 means "any size,
 * the same for all tasks of a batch". `ndim` counts all of them.
 */
struct skep_tensor_spec {
    char name[SKEP_EXPERT_NAME_BYTES];
    DLDataType dtype;
    int ndim;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
};

/** What an expert takes and gives. Gradients have the shapes and types of what they belong to. */
struct skep_expert_schema {
    size_t input_count;
    struct skep_tensor_spec inputs[SKEP_EXPERT_MAX_TENSORS];
    size_t output_count;
    struct skep_tensor_spec outputs[SKEP_EXPERT_MAX_TENSORS];
};

/** Settings of one expert. Fill with skep_expert_options_init(), then change what differs. */
struct skep_expert_options {
    size_t size;           /**< sizeof of this struct, set by _init: for later versions. */
    const char *cls;       /**< class name: "ffn", "nop". Borrowed for the call. */
    int64_t hidden_dim;    /**< width of inputs and outputs; 1 to 65536. Default 1024. */
    uint64_t seed;         /**< of the initial parameters: equal seeds give equal experts. */
    const char *optimizer; /**< "adam" (default), or "none". */
    double learning_rate;  /**< default 1e-3 */
    double beta1;          /**< default 0.9 */
    double beta2;          /**< default 0.999 */
    double eps;            /**< default 1e-8 */
};

SKEP_API void skep_expert_options_init(struct skep_expert_options *options);

#ifdef __cplusplus
}
#endif
#endif
