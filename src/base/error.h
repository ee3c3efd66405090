/* Filling in `struct skep_error`: the sentence is made where the failure is seen. */
#ifndef SKEP_BASE_ERROR_H
#define SKEP_BASE_ERROR_H

#include <stddef.h>
#include <skep/status.h>

/*
 * Writes status and sentence into err, if there is one, clearing its other fields, and returns the
 * status, so that code and sentence cannot part:
 *     return error_set(err, SKEP_NOT_FOUND, "%s: cannot open: %s", path, strerror(errno));
 */
skep_status error_set(struct skep_error *err, skep_status status, const char *format, ...)
    SKEP_PRINTF(3, 4);

/* Puts a prefix such as "expert ffn.3" and ": " before the sentence already there. */
void error_prefix(struct skep_error *err, const char *format, ...) SKEP_PRINTF(2, 3);

/* The usual sentence for a failed allocation. Returns SKEP_RESOURCE_EXHAUSTED. */
skep_status error_no_memory(struct skep_error *err, const char *what, size_t bytes);

/* For what a caller must give: SKEP_INVALID_ARGUMENT, with the argument's name, if it is NULL. */
SKEP_MUST_CHECK skep_status error_if_null(const void *given, const char *name,
                                          struct skep_error *err);
/* The same for a list of pointers and each of its entries ("inputs[2]"); of none, it may be NULL.
 */
SKEP_MUST_CHECK skep_status error_if_null_in(const void *list, size_t count, const char *name,
                                             struct skep_error *err);

#ifdef __clang_analyzer__
/* The analyzer sees no further than one file, and would follow "and if this returned SKEP_OK?". */
#define error_set(err, status, ...) (error_set(err, status, __VA_ARGS__), (status))
#define error_no_memory(err, what, bytes)                                                          \
    (error_no_memory(err, what, bytes), SKEP_RESOURCE_EXHAUSTED)
#endif

/* Maps an errno of a file operation by meaning: ENOENT NOT_FOUND, EACCES/EPERM/EROFS
 * PERMISSION_DENIED, ENOSPC/EDQUOT/EMFILE/ENFILE/ENOMEM RESOURCE_EXHAUSTED, others INTERNAL. */
skep_status status_from_errno(int error_number);

#endif
