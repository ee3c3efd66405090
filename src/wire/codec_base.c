/* The inner loops for the instruction set every CPU of the architecture has. */
#define CODEC_NAME(x) x##_base
#define CODEC_TEXT "base"
#include "wire/codec_impl.h"
