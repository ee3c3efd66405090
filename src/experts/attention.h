/*
 * Multi-head attention over packed projections, without its linear layers: for every sequence and
 * head, out = softmax(q k^T / sqrt(d)) v. Scores are made for a block of queries at a time, so
 * that memory grows with the length of a sequence, not with its square.
 */
#ifndef SKEP_EXPERTS_ATTENTION_H
#define SKEP_EXPERTS_ATTENTION_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

struct attention {
    size_t batch;
    size_t seq;
    size_t heads;
    size_t width;           /* of all heads together; heads divides it */
    const float *qkv;       /* [batch * seq, 3 * width]: q, k, v side by side */
    const uint8_t *ignored; /* [batch, seq]: keys that are not seen where not 0; NULL: all are */
    float *scratch;         /* attention_scratch() floats */
};

size_t attention_scratch(size_t seq);

/* out[batch * seq, width] is written. A query that may see no key at all gets zeros. */
SKEP_MUST_CHECK skep_status attention_forward(const struct attention *a, float *out,
                                              struct skep_error *err);

/* d_qkv[batch * seq, 3 * width] is written, from grad[batch * seq, width], the gradient of out. */
SKEP_MUST_CHECK skep_status attention_backward(const struct attention *a, const float *grad,
                                               float *d_qkv, struct skep_error *err);

#endif
