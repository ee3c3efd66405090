/*
 * Tensors in and out of `skep call`: a safetensors file, or a .npy file with one tensor. Inputs are
 * told apart by how they begin, outputs by their name's end.
 */
#ifndef SKEP_CLI_TENSOR_FILES_H
#define SKEP_CLI_TENSOR_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <skep/safetensors.h>

enum { TENSOR_FILE_MAX = 64 };

struct tensor_file {
    struct skep_safetensors *file; /* owned, or NULL for .npy */
    DLManagedTensor *npy;          /* owned, or NULL for safetensors */
    bool is_reordered;             /* the file has its elements in Fortran order */
    size_t count;
    const DLTensor *tensors[TENSOR_FILE_MAX]; /* views of the two above */
};

/*
 * Opens a file and picks its tensors: `<role>.0`, `<role>.1`, ... if there is a `<role>.N`, else
 * all of them in the file's order. So a file that holds more (a golden file, say) can be given as
 * it is.
 * @param role  "input" or "grad_output".
 * @return errors of skep_safetensors_open() and skep_npy_load(); SKEP_INVALID_ARGUMENT for a file
 *         without tensors, with too many, or with a gap in the numbers; SKEP_DATA_LOSS for one of
 *         neither kind.
 */
SKEP_MUST_CHECK skep_status tensor_file_open(struct tensor_file *out, const char *path,
                                             const char *role, struct skep_error *err);
void tensor_file_close(struct tensor_file *file); /* zeroed is allowed */

/* Whether a name has this ending, and something before it. */
bool file_name_ends_in(const char *path, const char *ending);
/* Whether a name ends in .npy or .safetensors. */
bool tensor_file_name_is_known(const char *path);

/*
 * Whether a file can be written there, for saying so before the work: it is no folder, and the
 * folder it is to be in takes files.
 */
SKEP_MUST_CHECK skep_status output_file_check(const char *path, struct skep_error *err);

/*
 * Writes tensors as `<role>.0`, ...: to safetensors, or to .npy if there is exactly one.
 */
SKEP_MUST_CHECK skep_status tensor_file_save(const char *path, const char *role,
                                             DLManagedTensor *const *tensors, size_t count,
                                             struct skep_error *err);

#endif
