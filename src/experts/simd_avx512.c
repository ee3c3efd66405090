/* The inner loops for AVX-512 F, VL, DQ, BW; CMakeLists.txt has the compiler's switches. */
#define SIMD_NAME(x) x##_avx512
#define SIMD_TEXT "avx512"
#include "experts/simd_impl.h"
