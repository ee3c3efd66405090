/*
 * The tensors of a call in the encodings that were chosen for it: made once, on the thread that
 * starts the call, for all nodes it may be sent to.
 */
#ifndef SKEP_CLIENT_COMPRESS_H
#define SKEP_CLIENT_COMPRESS_H

#include "wire/tensor_codec.h"

/* Zeroed: nothing is encoded. */
struct compressed {
    size_t count;
    const DLTensor **tensors; /* what to send: encoded or as given. Owned; NULL: all as given */
    DLManagedTensor **owned;  /* the encoded ones, NULL elsewhere; in the same memory */
};

/*
 * @param tensors      borrowed as long as the result lives; `count` of them.
 * @param gradients    the last so many are gradients.
 * @param descriptors  of the tensors; changed to those of what is to be sent.
 * @param not_finite   how many had no place in the encoding.
 * @return SKEP_INVALID_ARGUMENT, SKEP_RESOURCE_EXHAUSTED as tensor_encode(); *out is empty then.
 */
SKEP_MUST_CHECK skep_status compressed_make(struct compressed *out, const DLTensor *const *tensors,
                                            size_t count, size_t gradients,
                                            enum tensor_encoding encoding,
                                            enum tensor_encoding gradient_encoding,
                                            struct tensor_descriptor *descriptors,
                                            size_t *not_finite, struct skep_error *err);
void compressed_free(struct compressed *c); /* NULL and zeroed are allowed */

#endif
