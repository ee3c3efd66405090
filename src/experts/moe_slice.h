/*
 * Where in a layer's tensors the three matrices of one expert are. Shapes in, offsets out; then the
 * values. Thread: any.
 */
#ifndef SKEP_EXPERTS_MOE_SLICE_H
#define SKEP_EXPERTS_MOE_SLICE_H

#include "experts/expert.h"
#include "experts/moe_index.h"

/* A matrix in a tensor: element (row, column) is at first + row * row_step + column * column_step,
 * counted in elements. One of the steps is 1. */
struct moe_slice {
    const DLTensor *tensor; /* view of the caller's */
    int64_t rows, columns;
    size_t first, row_step, column_step;
};

struct moe_slices {
    struct moe_slice role[3]; /* gate, up and down, as nn.Linear has them: [out, in] */
    int64_t hidden, wide;
};

/*
 * Finds expert `number` of a layer.
 * @param tensors      by role; NULL for those that the layer has not. Of floats.
 * @param experts      how many the layer has.
 * @param hidden_size  as the config has it; 0: not known.
 * @return SKEP_INVALID_ARGUMENT naming shapes that do not fit each other, or do not tell.
 */
SKEP_MUST_CHECK skep_status moe_slice(const struct moe_layer *layer,
                                      const DLTensor *const tensors[static 4], uint64_t experts,
                                      uint64_t number, uint64_t hidden_size, struct moe_slices *out,
                                      struct skep_error *err);

/* Puts a slice into a parameter of an expert, converted and turned round as need be. Errors as
 * weights_set(). */
SKEP_MUST_CHECK skep_status moe_slice_set(const struct moe_slice *slice, struct expert *expert,
                                          const char *parameter, struct skep_error *err);

#endif
