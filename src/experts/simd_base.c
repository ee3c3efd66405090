/* The inner loops for the instruction set every CPU of the architecture has. */
#define SIMD_NAME(x) x##_base
#define SIMD_TEXT "base"
#include "experts/simd_impl.h"
