/* What the tests of experts share: small experts and tensors to feed them. */
#ifndef SKEP_TESTS_EXPERT_FIXTURE_H
#define SKEP_TESTS_EXPERT_FIXTURE_H

#include <string.h>

#include "base/tensor.h"
#include "experts/class.h"
#include "experts/expert.h"
#include "unit.h"

enum { HIDDEN = 24, ROWS = 5 };

static inline struct skep_expert_options default_options(const char *cls)
{
    struct skep_expert_options o;

    skep_expert_options_init(&o);
    o.cls = cls;
    o.hidden_dim = HIDDEN;
    return o;
}

static inline struct expert *create(const struct skep_expert_options *o)
{
    struct expert *e;
    struct skep_error err;

    if (expert_new(o, &e, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return e;
}

static inline struct expert *create_default(uint64_t seed)
{
    struct skep_expert_options o = default_options("ffn");

    o.seed = seed;
    return create(&o);
}

/* Values between -1 and 1 that differ by position and seed. */
static inline DLManagedTensor *tensor_of(int64_t rows, int64_t cols, unsigned seed)
{
    const int64_t shape[2] = {rows, cols};
    DLManagedTensor *t;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &t, NULL), SKEP_OK);
    float *x = skep_tensor_data(&t->dl_tensor);
    for (int64_t i = 0; i < rows * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
    }
    return t;
}

static inline float *data_of(DLManagedTensor *t)
{
    return skep_tensor_data(&t->dl_tensor);
}

/* Parameters of equal experts are equal bit by bit, of others they are not. */
static inline bool same_parameters(struct expert *a, struct expert *b)
{
    DLTensor x[EXPERT_MAX_PARAMETERS];
    DLTensor y[EXPERT_MAX_PARAMETERS];
    size_t n = expert_parameters(a, NULL, x, EXPERT_MAX_PARAMETERS);

    assert_int_equal(expert_parameters(b, NULL, y, EXPERT_MAX_PARAMETERS), n);
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        assert_int_equal(skep_tensor_bytes(&x[i], &bytes, NULL), SKEP_OK);
        if (memcmp(skep_tensor_data(&x[i]), skep_tensor_data(&y[i]), bytes) != 0)
            return false;
    }
    return true;
}

#endif
