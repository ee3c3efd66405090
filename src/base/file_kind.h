/* What a file is by its first bytes, for who expected another kind. Thread: any. */
#ifndef SKEP_BASE_FILE_KIND_H
#define SKEP_BASE_FILE_KIND_H

#include <stddef.h>

/* "a NumPy .npy file", "a text file"; NULL if it is none that is known. A safetensors file, whole
 * or not, is none of them. The text is constant. */
const char *file_kind(const void *data, size_t len);

#endif
