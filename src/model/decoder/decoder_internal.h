/* The forward pass's parts that the backward pass computes again. */
#ifndef SKEP_MODEL_DECODER_DECODER_INTERNAL_H
#define SKEP_MODEL_DECODER_DECODER_INTERNAL_H

#include "model/decoder/decoder.h"

float *decoder_floats(size_t rows, size_t cols); /* aligned; owned: mem_free() */
skep_status decoder_no_memory(struct skep_error *err, size_t rows);

/* y = x weight^T + bias + add; add may be NULL. */
SKEP_MUST_CHECK skep_status decoder_linear(const struct lm_linear *l, size_t rows, const float *x,
                                           const float *add, float *y, struct skep_error *err);
/* x / sqrt(mean(x^2) + eps) * weight, row by row; y may be x. */
void decoder_rms_norm(const float *x, const float *weight, double eps, size_t rows, size_t width,
                      float *y);
void decoder_softmax(float *x, size_t n);

/* Queries as attention reads them in q, keys and values behind the cache's end, and the heads'
 * outputs in `mixed`. The cache's length stays. */
SKEP_MUST_CHECK skep_status decoder_mix(const struct lm_config *c, const struct lm_layer *l,
                                        struct decoder_cache *cache, const float *normal,
                                        size_t rows, float *q, float *mixed,
                                        struct skep_error *err);
/* out = x + attention(norm(x)) */
SKEP_MUST_CHECK skep_status decoder_attention(const struct lm_config *c, const struct lm_layer *l,
                                              struct decoder_cache *cache, const float *x,
                                              size_t rows, float *out, struct skep_error *err);
/* Routes every row: the chosen experts and their weights, best first. */
SKEP_MUST_CHECK skep_status decoder_route(const struct lm_config *c, const struct lm_layer *l,
                                          const float *x, size_t rows,
                                          const struct decoder_trace *trace, uint32_t *experts,
                                          float *weights, struct skep_error *err);

#endif
