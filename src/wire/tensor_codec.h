/*
 * Tensor encodings: fewer bytes for a tensor on the wire, most of them at the price of precision.
 * Only F32 tensors are encoded; others travel as they are. Layouts: docs/protocol.md,
 * "Encodings". Rules and tolerances: tests/golden/README.md, section 6. Thread: any.
 */
#ifndef SKEP_WIRE_TENSOR_CODEC_H
#define SKEP_WIRE_TENSOR_CODEC_H

#include "wire/message.h"

/* "none", "float16", ... Constant string; "unknown" for a number that is none. */
const char *tensor_encoding_name(enum tensor_encoding encoding);
/* False (and *out untouched) if there is no such encoding. */
bool tensor_encoding_from_name(const char *name, enum tensor_encoding *out);

/* What a setting of the public API means: its encoding, ENCODING_NONE for DEFAULT and NONE; and the
 * other way round, never DEFAULT. */
enum tensor_encoding tensor_encoding_of(enum skep_compression compression);
enum skep_compression tensor_encoding_setting(enum tensor_encoding encoding);
/* SKEP_INVALID_ARGUMENT, naming the option, unless it is one of enum skep_compression. */
SKEP_MUST_CHECK skep_status tensor_encoding_check(const char *option,
                                                  enum skep_compression compression,
                                                  struct skep_error *err);

/*
 * How many bytes a tensor has on the wire. False (and *out untouched) if the encoding is unknown or
 * not for this type, or a size does not fit.
 */
bool tensor_encoded_bytes(enum tensor_encoding encoding, DLDataType dtype, int ndim,
                          const int64_t *shape, uint64_t *out);

/* What became of a tensor that was to be encoded. */
enum tensor_encoded {
    TENSOR_AS_IS, /* another type than F32, or its encoding would be no smaller */
    TENSOR_ENCODED,
    TENSOR_NOT_FINITE, /* it holds NaN or infinity, for which the encoding has no place: as it is */
};

/*
 * Encodes a tensor.
 * @param descriptor  describes what is to be sent. Written on success.
 * @param out         TENSOR_ENCODED: U8 [wire_bytes], owned: skep_tensor_free(). Else NULL: the
 *                    tensor itself is to be sent.
 * @return SKEP_INVALID_ARGUMENT as skep_tensor_bytes(); SKEP_RESOURCE_EXHAUSTED if memory is short.
 */
SKEP_MUST_CHECK skep_status tensor_encode(const DLTensor *tensor, enum tensor_encoding encoding,
                                          struct tensor_descriptor *descriptor,
                                          enum tensor_encoded *how, DLManagedTensor **out,
                                          struct skep_error *err);

/*
 * Decodes what tensor_encode() made, from whomever it comes: any bytes decode to something.
 * @param descriptor  checked, as call_headers_decode() gives it, with an encoding.
 * @param encoded     U8 of descriptor->wire_bytes. Borrowed.
 * @param out         owned: skep_tensor_free(). NULL on failure.
 * @return SKEP_RESOURCE_EXHAUSTED if memory is short; SKEP_INVALID_ARGUMENT if the sizes differ.
 */
SKEP_MUST_CHECK skep_status tensor_decode(const struct tensor_descriptor *descriptor,
                                          const DLTensor *encoded, DLManagedTensor **out,
                                          struct skep_error *err);

/* Replaces each encoded tensor by what it decodes to. On failure all are freed, and count is 0. */
SKEP_MUST_CHECK skep_status tensors_decode(const struct tensor_descriptor *descriptors,
                                           DLManagedTensor **tensors, size_t *count,
                                           struct skep_error *err);

#endif
