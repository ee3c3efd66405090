/* Choice of the instruction set, once per process. */
#include "experts/simd.h"

#include <stdatomic.h>

static const struct simd_ops *detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        return &simd_ops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &simd_ops_avx2;
#endif
    return &simd_ops_base;
}

const struct simd_ops *simd_ops(void)
{
    /* Relaxed: the pointed-to tables are constant, and two threads detect the same one. */
    static _Atomic(const struct simd_ops *) chosen;
    const struct simd_ops *ops = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (ops == NULL) {
        ops = detect();
        atomic_store_explicit(&chosen, ops, memory_order_relaxed);
    }
    return ops;
}
