/* See half.h. */
#include "experts/half.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "experts/parallel.h"
#include "experts/product.h"
#include "experts/simd.h"
#include "experts/workspace.h"

enum {
    GRAIN = 128 << 10,
    /* Packing takes as long as 10 passes over 32 rows save by it (oneDNN 2.6.3, AVX-512), and gains
     * nothing from 512 rows on. */
    PACK_AFTER_PASSES = 10,
    SMALL_ROWS = 256,
};

static size_t element_bytes(void)
{
    return product_available() ? sizeof(uint16_t) : sizeof(float);
}

uint64_t half_bytes(size_t count)
{
    /* Packed matrices are padded to blocks, which is not counted: it is little in large ones. */
    return (uint64_t)count * (product_available() ? 2 * sizeof(uint16_t) : sizeof(float));
}

skep_status half_init(struct half *half, size_t count, const struct half_matrix *matrices,
                      size_t matrix_count, struct skep_error *err)
{
    size_t floats = count * element_bytes() / sizeof(float) + 1;

    *half = (struct half){.count = count, .matrix_count = matrix_count, .is_stale = true};
    half->copy = floats_new(floats);
    half->matrices = mem_calloc(matrix_count > 0 ? matrix_count : 1, sizeof(*matrices));
    if (half->copy == NULL || half->matrices == NULL) {
        half_fini(half);
        return error_no_memory(err, "bfloat16 copies of parameters", floats * sizeof(float));
    }
    for (size_t i = 0; i < matrix_count; i++) {
        struct half_matrix *m = &half->matrices[i];
        *m = matrices[i];
        m->plain = (const uint8_t *)half->copy + m->offset * element_bytes();
        m->packed = NULL;
    }
    return SKEP_OK;
}

static void drop_packed(struct half *half)
{
    for (size_t i = 0; i < half->matrix_count && half->matrices != NULL; i++) {
        mem_free(half->matrices[i].packed);
        half->matrices[i].packed = NULL;
    }
    half->is_packed = false;
}

void half_fini(struct half *half)
{
    drop_packed(half);
    mem_free(half->matrices);
    mem_free(half->copy);
    *half = (struct half){0};
}

void half_changed(struct half *half)
{
    half->is_stale = true;
}

struct rounding {
    const float *from;
    void *to;
    bool to_bf16;
};

static void round_range(void *arg, size_t first, size_t last, unsigned part)
{
    const struct rounding *r = arg;

    (void)part;
    if (r->to_bf16)
        simd_ops()->to_bf16(r->from + first, (uint16_t *)r->to + first, last - first);
    else
        simd_ops()->round_bf16(r->from + first, (float *)r->to + first, last - first);
}

void half_follow(const struct half *half, const float *values, size_t first, size_t last)
{
    struct rounding r = {values, half->copy, product_available()};

    round_range(&r, first, last, 0);
}

void half_followed(struct half *half)
{
    drop_packed(half);
    half->is_stale = false;
    half->small_passes = 0;
}

/* Packed copies are a gain only, so it is no failure if memory for them is short. */
static void pack(struct half *half)
{
    half->is_packed = true;
    for (size_t i = 0; i < half->matrix_count; i++) {
        struct half_matrix *m = &half->matrices[i];
        size_t bytes = m->in > 0 ? product_packed_bytes(m->out, m->in) : 0;
        if (bytes == 0)
            continue;
        m->packed = floats_new(bytes / sizeof(float) + 1);
        if (m->packed != NULL &&
            product_pack(m->plain, m->out, m->in, m->packed, NULL) != SKEP_OK) {
            mem_free(m->packed);
            m->packed = NULL;
        }
    }
}

void half_refresh(struct half *half, const float *values, size_t rows)
{
    struct rounding r = {values, half->copy, product_available()};

    if (half->is_stale) {
        parallel_range(half->count, GRAIN, 64, round_range, &r);
        half_followed(half);
    }
    if (rows >= SMALL_ROWS || half->is_packed || !product_available())
        return;
    if (++half->small_passes > PACK_AFTER_PASSES)
        pack(half);
}
