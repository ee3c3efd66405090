/*
 * Matrix products of bfloat16 operands, summed in float32, by oneDNN's primitives. Only for CPUs
 * that compute with bfloat16; on others kernels.c multiplies rounded numbers in float32.
 *
 * A primitive is made for one set of sizes, which takes tenths of a millisecond, so the latest are
 * kept, a bounded number of them.
 *
 * Thread: any.
 */
#ifndef SKEP_EXPERTS_PRODUCT_H
#define SKEP_EXPERTS_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

/* Whether this CPU multiplies bfloat16 (AVX-512 BF16 or AMX) and oneDNN uses it; the environment
 * variable ONEDNN_MAX_CPU_ISA is respected. */
bool product_available(void);

enum product_kind {
    PRODUCT_NT,     /* c[m, n] = a[m, k] b[n, k]^T */
    PRODUCT_PACKED, /* the same, b being a result of product_pack() */
    PRODUCT_NN,     /* c[m, n] = a[m, k] b[k, n] */
    PRODUCT_TN,     /* c[m, n] = a[k, m]^T b[k, n] */
};

struct product {
    enum product_kind kind;
    size_t m;
    size_t n;
    size_t k;
    bool accumulate;   /* c += instead of c = */
    const float *bias; /* [n], added; NULL: none */
    bool single;       /* on one thread */
};

/* @return SKEP_RESOURCE_EXHAUSTED or SKEP_INTERNAL if oneDNN fails. */
SKEP_MUST_CHECK skep_status product_run(const struct product *p, const uint16_t *a, const void *b,
                                        float *c, struct skep_error *err);

/* Bytes of product_pack()'s result; 0 if oneDNN has no such layout for these sizes. */
size_t product_packed_bytes(size_t n, size_t k);
/* Brings b[n, k] into the layout in which small products read it fastest. */
SKEP_MUST_CHECK skep_status product_pack(const uint16_t *b, size_t n, size_t k, void *packed,
                                         struct skep_error *err);

/* How many primitives are kept now, and at most. */
size_t product_cached(void);
enum { PRODUCT_CACHE_MAX = 128 };

#endif
