/*
 * What `skep call` does to tensors besides sending them: NumPy's defaults (float64, Fortran order)
 * become what an expert takes, NaN is noticed, and a result that goes to no file is summed up. Each
 * such thing goes into a note: a line on standard error, and an element of "notes" with --json.
 */
#ifndef SKEP_CLI_CALL_TENSORS_H
#define SKEP_CLI_CALL_TENSORS_H

#include <jansson.h>
#include <skep/client.h>
#include "cli/tensor_files.h"

/* A file of tensors, and what is sent in place of some of them. Zeroed memory is empty. */
struct call_tensors {
    struct tensor_file file;
    const char *path;                       /* view of the options */
    DLManagedTensor *cast[TENSOR_FILE_MAX]; /* owned; NULL: as it is in the file */
    const DLTensor *sent[TENSOR_FILE_MAX];  /* views of the file and of cast */
};

/*
 * Opens a file and notes what is odd in it.
 * @param role     "input" or "grad_output".
 * @param no_cast  elements in Fortran order are refused.
 * @param notes    borrowed: an array.
 * @return errors of tensor_file_open(); SKEP_INVALID_ARGUMENT with no_cast.
 */
SKEP_MUST_CHECK skep_status call_tensors_open(struct call_tensors *out, const char *path,
                                              const char *role, bool no_cast, json_t *notes,
                                              struct skep_error *err);
void call_tensors_close(struct call_tensors *t); /* zeroed is allowed */

/* Whether some tensor is of floating point, but not float32: its expert's schema decides. */
bool call_tensors_may_need_cast(const struct call_tensors *t);
/* Casts those for which the schema says F32. What fits it in no way is left to the expert. */
SKEP_MUST_CHECK skep_status call_tensors_cast(struct call_tensors *t, const char *role,
                                              const struct skep_tensor_spec *specs, size_t count,
                                              json_t *notes, struct skep_error *err);

/* What a result holds: shape, dtype, and min, mean and max of its finite elements (null if there is
 * none), how many are not finite. @return owned; NULL if memory is short. */
json_t *call_tensor_summary(const char *role, size_t index, const DLTensor *t);
/* A line of it, for people. */
void call_tensor_print(const json_t *summary);

#endif
