/* What skep_npy_load() does not tell of a file. */
#ifndef SKEP_BASE_NPY_H
#define SKEP_BASE_NPY_H

#include <skep/safetensors.h>

/* As skep_npy_load(). @param was_fortran  whether its elements were in another order in the file.
 */
SKEP_MUST_CHECK skep_status npy_load(const char *path, DLManagedTensor **out, bool *was_fortran,
                                     struct skep_error *err);

#endif
