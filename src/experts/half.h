/*
 * Copies of an expert's weights for computing in bfloat16: the float32 parameters stay the
 * originals that the optimizer changes. The copies follow it step by step, and other changes when
 * they are next needed.
 *
 * Where the CPU has bfloat16 a copy is bfloat16; elsewhere it is float32 that has been rounded to
 * it, with the same result at float32's speed.
 *
 * Threads: one at a time, the one that computes with the expert.
 */
#ifndef SKEP_EXPERTS_HALF_H
#define SKEP_EXPERTS_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

/* One matrix [out, in] among the parameters. */
struct half_matrix {
    size_t offset; /* in the flat array of parameters */
    size_t out;
    size_t in;
    const void *plain; /* row-major; view of `half` */
    void *packed;      /* product_pack()'s; owned; NULL while there is none */
};

struct half {
    void *copy; /* of all parameters, laid out like them; owned; NULL: float32 is computed with */
    size_t count;
    struct half_matrix *matrices; /* one for each parameter; in 0: not a matrix. Owned */
    size_t matrix_count;
    bool is_stale;
    bool is_packed;
    unsigned small_passes; /* since the last change of the parameters */
};

/* Bytes of the copies of `count` parameters, packed ones included. */
uint64_t half_bytes(size_t count);

/* @param matrices  copied; offset, out and in are filled in. SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status half_init(struct half *half, size_t count,
                                      const struct half_matrix *matrices, size_t matrix_count,
                                      struct skep_error *err);
void half_fini(struct half *half); /* zeroed is allowed */

/* The parameters have changed. */
void half_changed(struct half *half);

/* For who changes all of them and has just written [first, last): copies that, while it is in the
 * cache. half_followed() once all are done. Any threads at once, on ranges apart. */
void half_follow(const struct half *half, const float *values, size_t first, size_t last);
void half_followed(struct half *half);

/*
 * Makes the copies what a pass over `rows` rows needs. Few rows take as long as it takes to read
 * the weights, so they get a layout that is read faster, once the parameters have stayed the same
 * for so many passes that making it pays.
 */
void half_refresh(struct half *half, const float *values, size_t rows);

#endif
