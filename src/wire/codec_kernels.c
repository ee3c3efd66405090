/* Choice of the instruction set, once per process. */
#include "wire/codec_kernels.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdbool.h>

/* Compilers differ in whether __builtin_cpu_supports() knows of it. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

size_t codec_kernels_all(const struct codec_kernels *out[static CODEC_KERNEL_SETS])
{
    size_t n = 0;

    out[n++] = &codec_kernels_base;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return n;
    out[n++] = &codec_kernels_avx2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
        out[n++] = &codec_kernels_avx512;
#endif
    return n;
}

/* Relaxed: the pointed-to tables are constant, and two threads detect the same one. */
static _Atomic(const struct codec_kernels *) chosen;

void codec_kernels_force(const struct codec_kernels *kernels)
{
    atomic_store_explicit(&chosen, kernels, memory_order_relaxed);
}

const struct codec_kernels *codec_kernels(void)
{
    const struct codec_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
    const struct codec_kernels *all[CODEC_KERNEL_SETS] = {NULL};

    if (k == NULL) {
        k = all[codec_kernels_all(all) - 1];
        atomic_store_explicit(&chosen, k, memory_order_relaxed);
    }
    return k;
}
