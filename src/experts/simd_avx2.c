/* The inner loops for AVX2 and FMA; CMakeLists.txt has the compiler's switches. */
#define SIMD_NAME(x) x##_avx2
#define SIMD_TEXT "avx2"
#include "experts/simd_impl.h"
