/* The inner loops for AVX2, FMA and F16C; CMakeLists.txt has the compiler's switches. */
#define CODEC_NAME(x) x##_avx2
#define CODEC_TEXT "avx2"
#include "wire/codec_impl.h"
