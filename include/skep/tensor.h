/**
 * @file skep/tensor.h
 * Tensors in Skep's API are DLPack's: inputs are `DLTensor` views that the caller keeps, results
 * are `DLManagedTensor` objects that the caller frees with skep_tensor_free() (their own
 * `deleter`). So PyTorch, NumPy and TVM exchange buffers with Skep without a copy.
 *
 * All tensors here live in CPU memory, are contiguous and row-major (`strides` NULL or the compact
 * strides), little-endian, and have at most SKEP_TENSOR_MAX_DIMS dimensions. An empty tensor (some
 * dimension 0) is allowed and may have `data` NULL.
 */
#ifndef SKEP_TENSOR_H
#define SKEP_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <dlpack/dlpack.h>
#include <skep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SKEP_TENSOR_MAX_DIMS 8

/** DLPack 0.6 has no code for booleans; later DLPack calls this kDLBool. One byte, 0 or 1. */
#define SKEP_DL_BOOL 6

/** X(name, code, bits): the element types Skep stores and sends; names are safetensors'. */
#define SKEP_DTYPE_MAP(X)                                                                          \
    X(F64, kDLFloat, 64)                                                                           \
    X(F32, kDLFloat, 32)                                                                           \
    X(F16, kDLFloat, 16)                                                                           \
    X(BF16, kDLBfloat, 16)                                                                         \
    X(I64, kDLInt, 64)                                                                             \
    X(I32, kDLInt, 32)                                                                             \
    X(I16, kDLInt, 16)                                                                             \
    X(I8, kDLInt, 8)                                                                               \
    X(U8, kDLUInt, 8)                                                                              \
    X(BOOL, SKEP_DL_BOOL, 8)

/** The DLPack type of a safetensors name such as "F32". False (and nothing written) if unknown. */
SKEP_API bool skep_dtype_from_name(const char *name, DLDataType *out);

/** The safetensors name of a DLPack type; NULL if Skep does not know the type. Constant string. */
SKEP_API const char *skep_dtype_name(DLDataType dtype);

/**
 * X(NAME, "name"): how F32 tensors may travel. Others travel as they are, and so does a tensor that
 * would not become smaller. Formulas: docs/protocol.md, "Encodings".
 *
 * float16, bfloat16, meanstd16: half the bytes. uniform8, quantile8, blockwise8: a quarter.
 * NaN and infinity have a place in float16 (which makes infinity 65504) and bfloat16 alone: in the
 * other schemes a tensor that holds one travels as float32, and is counted.
 */
#define SKEP_COMPRESSION_MAP(X)                                                                    \
    X(DEFAULT, "default") /* what is set one level up, see where it is used */                     \
    X(NONE, "none")       /* bit for bit */                                                        \
    X(FLOAT16, "float16")                                                                          \
    X(BFLOAT16, "bfloat16")                                                                        \
    X(MEANSTD16, "meanstd16") /* float16 around the mean of each row, in units of its deviation */ \
    X(UNIFORM8, "uniform8")   /* 256 equal buckets over mean +- 3 standard deviations */           \
    X(QUANTILE8, "quantile8") /* 256 buckets of equally many elements; slower to encode */         \
    X(BLOCKWISE8, "blockwise8") /* 127 steps either way, by the largest of each 4,096 */

enum skep_compression {
#define SKEP_COMPRESSION_ROW(NAME, name) SKEP_COMPRESSION_##NAME,
    SKEP_COMPRESSION_MAP(SKEP_COMPRESSION_ROW)
#undef SKEP_COMPRESSION_ROW
};

/** Its name, such as "float16"; "unknown" for a number that is none. Constant string. */
SKEP_API const char *skep_compression_name(enum skep_compression compression);

/** By name. False (and nothing written) if unknown. */
SKEP_API bool skep_compression_from_name(const char *name, enum skep_compression *out);

/**
 * A new tensor with memory of its own, aligned to 64 bytes, not initialized.
 * @param shape  `ndim` entries, each >= 0. Borrowed.
 * @param out    owned: skep_tensor_free(). NULL on failure.
 * @return SKEP_INVALID_ARGUMENT for an unknown type, a negative or overflowing shape or too many
 *         dimensions; SKEP_RESOURCE_EXHAUSTED if memory is short.
 * Thread: any.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_tensor_new(DLDataType dtype, int ndim,
                                                     const int64_t *shape, DLManagedTensor **out,
                                                     struct skep_error *err);

/** Frees a tensor through its own deleter. NULL is allowed. Thread: any. */
SKEP_API void skep_tensor_free(DLManagedTensor *tensor);

/**
 * The number of bytes of a tensor's elements.
 * @param out  written on success only.
 * @return SKEP_INVALID_ARGUMENT if the tensor is not on the CPU, not contiguous, of an unknown
 * type, or its size does not fit size_t.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_tensor_bytes(const DLTensor *tensor, size_t *out,
                                                       struct skep_error *err);

/** First element of a tensor (`data` + `byte_offset`). */
SKEP_API void *skep_tensor_data(const DLTensor *tensor);

#ifdef __cplusplus
}
#endif
#endif
