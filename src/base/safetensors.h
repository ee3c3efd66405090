/* Inside helper over skep/safetensors.h, for files larger than memory. */
#ifndef SKEP_BASE_SAFETENSORS_H
#define SKEP_BASE_SAFETENSORS_H

#include <skep/safetensors.h>

/* Takes the pages of a tensor of a mapped file out of this process's memory; they are read again
 * when they are used again. Does nothing for tensors that are not mapped. */
void safetensors_release(const struct skep_safetensors *file, const char *name);

#endif
