/* The inner loops for AVX-512 F, VL, DQ, BW; CMakeLists.txt has the compiler's switches. */
#define CODEC_NAME(x) x##_avx512
#define CODEC_TEXT "avx512"
#include "wire/codec_impl.h"
