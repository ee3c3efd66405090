/* Inside helper over skep/safetensors.h, for files larger than memory. */
#ifndef SKEP_BASE_SAFETENSORS_H
#define SKEP_BASE_SAFETENSORS_H

#include <skep/safetensors.h>

/*
 * skep_safetensors_find() that says why a tensor cannot be used.
 * @param out  view of the file; NULL on failure.
 * @return SKEP_NOT_FOUND; SKEP_INVALID_ARGUMENT, with the file's name for it, if it is of a type or
 *         of more dimensions than Skep has.
 */
SKEP_MUST_CHECK skep_status safetensors_get(const struct skep_safetensors *file, const char *name,
                                            const DLTensor **out, struct skep_error *err);

/* Takes the pages of a tensor of a mapped file out of this process's memory; they are read again
 * when they are used again. Does nothing for tensors that are not mapped. */
void safetensors_release(const struct skep_safetensors *file, const char *name);

#endif
