/* Rotary position embedding: the frequencies of a configuration and their use. Thread: any. */
#ifndef SKEP_MODEL_DECODER_ROTARY_H
#define SKEP_MODEL_DECODER_ROTARY_H

#include <stddef.h>

#include "model/checkpoint/lm_config.h"

/* Radians per position of each pair of elements; `out` has head_dim / 2.
 * Returns what cosine and sine are multiplied with (yarn; else 1). */
double rotary_frequencies(const struct lm_config *config, double *out);

/* Turns the heads of one position, in place: element i pairs with element i + head_dim / 2. */
void rotary_apply(const double *frequencies, double scale, size_t position, float *x, size_t heads,
                  size_t head_dim);

#endif
