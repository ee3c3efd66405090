/* Inside helpers over skep/tensor.h: views, slices that share memory, comparison of shapes. */
#ifndef SKEP_BASE_TENSOR_H
#define SKEP_BASE_TENSOR_H

#include <skep/tensor.h>

#define DTYPE_F32 ((DLDataType){.code = kDLFloat, .bits = 32, .lanes = 1})
#define DTYPE_I64 ((DLDataType){.code = kDLInt, .bits = 64, .lanes = 1})

/* Bytes of one element of a type that skep_dtype_name() knows. */
size_t dtype_bytes(DLDataType dtype);
bool dtype_equal(DLDataType a, DLDataType b);

/* Elements of a shape; false on a negative dimension or overflow of size_t (or int64_t). */
bool shape_count(int ndim, const int64_t *shape, size_t *out);

/*
 * A view of rows [first, first + rows) along dimension 0 that keeps `base` alive: the memory is
 * shared and counted, freed when the last of base and its slices is freed, in any order and on any
 * thread.
 * @param out  owned: skep_tensor_free().
 * @return SKEP_INVALID_ARGUMENT if base has no such rows or is not tensor_is_sliceable().
 */
SKEP_MUST_CHECK skep_status tensor_slice(DLManagedTensor *base, int64_t first, int64_t rows,
                                         DLManagedTensor **out, struct skep_error *err);

/* Whether it comes from skep_tensor_new() or tensor_slice(). The memory of others is not counted; a
 * plugin may hand one out, whatever it was told. */
bool tensor_is_sliceable(const DLManagedTensor *tensor);

/* Writes "[3, 64] F32" (cut to cap) for messages; returns text. */
const char *tensor_describe(const DLTensor *t, char *text, size_t cap);

/* True if every element of an F32/F64/F16/BF16 tensor is finite; true for other types. */
bool tensor_is_finite(const DLTensor *t);

#endif
