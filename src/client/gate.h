/*
 * The projection of a mixture layer: features to the scores of every coordinate of a grid, and
 * back. All arithmetic is in double.
 */
#ifndef SKEP_CLIENT_GATE_H
#define SKEP_CLIENT_GATE_H

#include <skep/moe.h>
#include "client/grid.h"

struct gate {
    int64_t in_features;            /* 0: there is no projection */
    DLManagedTensor *weight, *bias; /* owned */
};
/* Random values, uniform in +-1/sqrt(in_features). @param seed 0: a random one. */
skep_status gate_init(struct gate *g, const struct skep_grid *grid, int64_t in_features,
                      DLDataType dtype, uint64_t seed, struct skep_error *err);
void gate_fini(struct gate *g); /* zeroed is allowed */

/* Random factors of 1 +- eps. */
struct gate_jitter {
    double eps;
    double (*uniform)(void *arg); /* in [0, 1) */
    void *arg;
};

/* What was read in one pass. Zeroed: nothing. */
struct gate_input {
    size_t samples;
    double *features; /* owned: samples times in_features, averaged over the dimensions between */
    double *factors;  /* owned: of the jitter; NULL: all 1 */
    size_t between;   /* over how many rows each was averaged */
};
void gate_input_fini(struct gate_input *input);

/* Scores of x, whose last dimension is in_features. @param scores owned, on success. */
skep_status gate_forward(const struct gate *g, const struct skep_grid *grid, const DLTensor *x,
                         const struct gate_jitter *jitter, struct gate_input *input,
                         struct score_lines *scores, struct skep_error *err);
/* Gradients of weight and bias (owned), and adds that of x to grad_x. */
skep_status gate_backward(const struct gate *g, const struct skep_grid *grid,
                          const struct gate_input *input, const struct score_lines *grad_scores,
                          DLManagedTensor **weight, DLManagedTensor **bias, DLTensor *grad_x,
                          struct skep_error *err);

#endif
