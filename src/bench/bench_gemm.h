/* A bare matrix product by oneDNN: what `skep bench experts` compares an expert's layers with. */
#ifndef SKEP_BENCH_BENCH_GEMM_H
#define SKEP_BENCH_BENCH_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <skep/status.h>

struct bench_gemm;

/*
 * y[rows, out] = x[rows, in] W, with memory of its own. The weights are in whatever layout oneDNN
 * likes best, which no weight that is also trained could always be in.
 * @param bf16  x and W are bfloat16, y float32; else all are float32.
 * @return SKEP_RESOURCE_EXHAUSTED; SKEP_UNIMPLEMENTED if oneDNN has no such product.
 */
SKEP_MUST_CHECK skep_status bench_gemm_new(size_t rows, size_t in, size_t out, bool bf16,
                                           struct bench_gemm **result, struct skep_error *err);
void bench_gemm_free(struct bench_gemm *gemm); /* NULL is allowed */

/* One product, by each call of oneDNN that does it; the nanoseconds of the fastest. */
SKEP_MUST_CHECK skep_status bench_gemm_run(struct bench_gemm *gemm, double *ns,
                                           struct skep_error *err);

#endif
