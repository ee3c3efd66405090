/* Encoding the tensors of a call. */
#include "client/compress.h"

#include "base/alloc.h"
#include "base/error.h"

skep_status compressed_make(struct compressed *out, const DLTensor *const *tensors, size_t count,
                            size_t gradients, enum tensor_encoding encoding,
                            enum tensor_encoding gradient_encoding,
                            struct tensor_descriptor *descriptors, size_t *not_finite,
                            struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    *out = (struct compressed){0};
    *not_finite = 0;
    if (count == 0 ||
        (encoding == ENCODING_NONE && (gradients == 0 || gradient_encoding == ENCODING_NONE)))
        return SKEP_OK;
    void **memory = mem_calloc(count, 2 * sizeof(*memory));
    if (memory == NULL)
        return error_no_memory(err, "compression", count * 2 * sizeof(*memory));
    out->tensors = (const DLTensor **)memory;
    out->owned = (DLManagedTensor **)(memory + count);
    out->count = count;
    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        enum tensor_encoded how;
        rc = tensor_encode(tensors[i], i < count - gradients ? encoding : gradient_encoding,
                           &descriptors[i], &how, &out->owned[i], err);
        *not_finite += how == TENSOR_NOT_FINITE;
        out->tensors[i] = out->owned[i] != NULL ? &out->owned[i]->dl_tensor : tensors[i];
    }
    if (rc != SKEP_OK)
        compressed_free(out);
    return rc;
}

void compressed_free(struct compressed *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->count; i++)
        skep_tensor_free(c->owned[i]);
    mem_free(c->tensors);
    *c = (struct compressed){0};
}
