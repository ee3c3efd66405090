/**
 * @file skep/safetensors.h
 * Named tensors in files: the safetensors layout, and NumPy's .npy for one tensor.
 *
 * Source: safetensors format (8 byte little-endian header length, JSON header, data), NumPy format
 * specification (NEP 1, versions 1.0 to 3.0; C order, little-endian, the types of SKEP_DTYPE_MAP).
 *
 * A file object is immutable after opening: any number of threads may read it.
 */
#ifndef SKEP_SAFETENSORS_H
#define SKEP_SAFETENSORS_H

#include <skep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skep_safetensors;

/**
 * Opens a safetensors file, memory-mapped, and checks all of its header: sizes against the file's,
 * overlaps, gaps, types and shapes. A file that shrinks while it is open is not protected against.
 * The header may have 16 MiB; JSON keys may not repeat. A tensor of a type that skep/tensor.h does
 * not have (such as F8_E8M0 or C64), or of more dimensions, does not make the file unusable: it is
 * listed with the type kDLOpaqueHandle and without data, and skep_tensor_bytes() refuses it.
 * @param out  owned: skep_safetensors_close(). NULL on failure.
 * @return SKEP_NOT_FOUND, SKEP_PERMISSION_DENIED or SKEP_INTERNAL if it cannot be opened, by the
 *         system's reason; SKEP_INVALID_ARGUMENT if it is a folder, pipe or device; SKEP_DATA_LOSS,
 *         with what is wrong, if it is not a whole safetensors file; SKEP_RESOURCE_EXHAUSTED if
 *         memory is short.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_safetensors_open(const char *path,
                                                           struct skep_safetensors **out,
                                                           struct skep_error *err);

/** The same over bytes in memory. @param data borrowed until skep_safetensors_close(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_safetensors_parse(const void *data, size_t len,
                                                            struct skep_safetensors **out,
                                                            struct skep_error *err);

/** Closes it; every view of it ends. NULL is allowed. */
SKEP_API void skep_safetensors_close(struct skep_safetensors *file);

/** How many tensors it holds. */
SKEP_API size_t skep_safetensors_count(const struct skep_safetensors *file);

/** Name of tensor i, in the order of their data; NULL if i is out of range. View of the file. */
SKEP_API const char *skep_safetensors_name(const struct skep_safetensors *file, size_t i);

/** Tensor i; NULL if i is out of range. View of the file; its data are read-only. */
SKEP_API const DLTensor *skep_safetensors_tensor(const struct skep_safetensors *file, size_t i);

/** The tensor of that name; NULL if there is none. View of the file; its data are read-only. */
SKEP_API const DLTensor *skep_safetensors_find(const struct skep_safetensors *file,
                                               const char *name);

/** The string under `key` in the file's `__metadata__`; NULL if there is none. View of the file. */
SKEP_API const char *skep_safetensors_metadata(const struct skep_safetensors *file,
                                               const char *key);

/** One tensor to write. Both pointers are borrowed for the call. */
struct skep_named_tensor {
    const char *name;
    const DLTensor *tensor;
};

/**
 * Writes a safetensors file: to a temporary name beside it, fsynced, then renamed and the folder
 * fsynced, so that the path holds the old file or the whole new one. Tensors are written widest
 * element type first, otherwise in the order given.
 * @param metadata  NULL-terminated list of key, value, key, value...; may be NULL. Borrowed.
 * @return SKEP_INVALID_ARGUMENT for a duplicate, empty or reserved name, text that is not UTF-8, an
 *         unusable tensor, or a path that is there and is no regular file;
 *         SKEP_RESOURCE_EXHAUSTED if the disk is full; SKEP_PERMISSION_DENIED, SKEP_NOT_FOUND or
 *         SKEP_INTERNAL for other failures of the file system, named. No file is left behind then.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_safetensors_save(const char *path,
                                                           const struct skep_named_tensor *tensors,
                                                           size_t count,
                                                           const char *const *metadata,
                                                           struct skep_error *err);

/** Reads a .npy file; elements in Fortran order are put into C order, as all tensors here are.
 * @param out owned: skep_tensor_free(). Errors as skep_safetensors_open(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_npy_load(const char *path, DLManagedTensor **out,
                                                   struct skep_error *err);

/** The same from bytes in memory; they are borrowed for the call. */
SKEP_API SKEP_MUST_CHECK skep_status skep_npy_parse(const void *data, size_t len,
                                                    DLManagedTensor **out, struct skep_error *err);

/** Writes a .npy file, whole or not at all. BF16 has no .npy type: SKEP_INVALID_ARGUMENT. */
SKEP_API SKEP_MUST_CHECK skep_status skep_npy_save(const char *path, const DLTensor *tensor,
                                                   struct skep_error *err);

#ifdef __cplusplus
}
#endif
#endif
