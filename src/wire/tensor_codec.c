/* Encodings by number: their names, sizes and codecs. */
#include "wire/tensor_codec.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "wire/codec_kernels.h"
#include "wire/codec_schemes.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "encoded numbers are little-endian");

static enum codec_result float16_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    codec_kernels()->to_f16(x, (uint16_t *)(void *)out, a->count);
    return CODEC_DONE;
}

static void float16_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    codec_kernels()->from_f16((const uint16_t *)(const void *)in, out, a->count);
}

static enum codec_result bfloat16_encode(const struct codec_array *a, const float *x, uint8_t *out)
{
    codec_kernels()->to_bf16(x, (uint16_t *)(void *)out, a->count);
    return CODEC_DONE;
}

static void bfloat16_decode(const struct codec_array *a, const uint8_t *in, float *out)
{
    codec_kernels()->from_bf16((const uint16_t *)(const void *)in, out, a->count);
}

/* Side data, of which there is some for each array, row or block, and then the codes. */
struct scheme {
    const char *name;
    size_t code_bytes;
    size_t array_bytes, row_bytes, block_bytes;
    codec_encode_fn encode;
    codec_decode_fn decode;
};

static const struct scheme schemes[ENCODING_COUNT] = {
    [ENCODING_NONE] = {.name = "none", .code_bytes = sizeof(float)},
    [ENCODING_FLOAT16] = {.name = "float16",
                          .code_bytes = 2,
                          .encode = float16_encode,
                          .decode = float16_decode},
    [ENCODING_BFLOAT16] = {.name = "bfloat16",
                           .code_bytes = 2,
                           .encode = bfloat16_encode,
                           .decode = bfloat16_decode},
    [ENCODING_MEANSTD16] = {.name = "meanstd16",
                            .code_bytes = 2,
                            .row_bytes = 2 * sizeof(float),
                            .encode = meanstd16_encode,
                            .decode = meanstd16_decode},
    [ENCODING_UNIFORM8] = {.name = "uniform8",
                           .code_bytes = 1,
                           .array_bytes = CODEC_CODEBOOK_BYTES,
                           .encode = uniform8_encode,
                           .decode = codebook_decode},
    [ENCODING_QUANTILE8] = {.name = "quantile8",
                            .code_bytes = 1,
                            .array_bytes = CODEC_CODEBOOK_BYTES,
                            .encode = quantile8_encode,
                            .decode = codebook_decode},
    [ENCODING_BLOCKWISE8] = {.name = "blockwise8",
                             .code_bytes = 1,
                             .block_bytes = sizeof(float),
                             .encode = blockwise8_encode,
                             .decode = blockwise8_decode},
};

static bool is_known(enum tensor_encoding encoding)
{
    return (unsigned)encoding < ENCODING_COUNT;
}

const char *tensor_encoding_name(enum tensor_encoding encoding)
{
    return is_known(encoding) ? schemes[encoding].name : "unknown";
}

bool tensor_encoding_from_name(const char *name, enum tensor_encoding *out)
{
    for (int e = 0; e < ENCODING_COUNT; e++)
        if (strcmp(schemes[e].name, name) == 0) {
            *out = (enum tensor_encoding)e;
            return true;
        }
    return false;
}

/* ---- Settings of the public API ---- */

static const char *const setting_names[] = {
#define SETTING_NAME(NAME, name) name,
    SKEP_COMPRESSION_MAP(SETTING_NAME)
#undef SETTING_NAME
};
enum { SETTING_COUNT = sizeof(setting_names) / sizeof(setting_names[0]) };

_Static_assert((int)SKEP_COMPRESSION_NONE == (int)ENCODING_NONE + 1 &&
                   (int)SKEP_COMPRESSION_BLOCKWISE8 == (int)ENCODING_BLOCKWISE8 + 1 &&
                   (int)SETTING_COUNT == (int)ENCODING_COUNT + 1,
               "settings are encodings in the same order, behind DEFAULT");

const char *skep_compression_name(enum skep_compression compression)
{
    return (unsigned)compression < SETTING_COUNT ? setting_names[compression] : "unknown";
}

bool skep_compression_from_name(const char *name, enum skep_compression *out)
{
    for (int i = 0; i < SETTING_COUNT; i++)
        if (strcmp(setting_names[i], name) == 0) {
            *out = (enum skep_compression)i;
            return true;
        }
    return false;
}

enum tensor_encoding tensor_encoding_of(enum skep_compression compression)
{
    if (compression == SKEP_COMPRESSION_DEFAULT || (unsigned)compression >= SETTING_COUNT)
        return ENCODING_NONE;
    return (enum tensor_encoding)(compression - SKEP_COMPRESSION_NONE);
}

enum skep_compression tensor_encoding_setting(enum tensor_encoding encoding)
{
    return (enum skep_compression)((unsigned)encoding + SKEP_COMPRESSION_NONE);
}

skep_status tensor_encoding_check(const char *option, enum skep_compression compression,
                                  struct skep_error *err)
{
    if ((unsigned)compression < SETTING_COUNT)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %u, expected 0 to %d", option,
                     (unsigned)compression, SETTING_COUNT - 1);
}

/* ---- Sizes ---- */

bool codec_measure(int ndim, const int64_t *shape, struct codec_array *out)
{
    if (!shape_count(ndim, shape, &out->count))
        return false;
    out->columns = out->count == 0 || ndim == 0 ? 1 : (size_t)shape[ndim - 1];
    out->rows = out->count / out->columns;
    return true;
}

bool codec_bytes(enum tensor_encoding encoding, const struct codec_array *a, uint64_t *out)
{
    const struct scheme *s = &schemes[encoding];
    size_t blocks = a->count / CODEC_BLOCK + (a->count % CODEC_BLOCK != 0);
    size_t sum, part;

    if (a->count == 0) {
        *out = 0;
        return true;
    }
    if (!size_mul(a->count, s->code_bytes, &sum) || !size_add(sum, s->array_bytes, &sum) ||
        !size_mul(a->rows, s->row_bytes, &part) || !size_add(sum, part, &sum) ||
        !size_mul(blocks, s->block_bytes, &part) || !size_add(sum, part, &sum))
        return false;
    *out = sum;
    return true;
}

codec_encode_fn codec_encoder(enum tensor_encoding encoding)
{
    return schemes[encoding].encode;
}

codec_decode_fn codec_decoder(enum tensor_encoding encoding)
{
    return schemes[encoding].decode;
}

bool tensor_encoded_bytes(enum tensor_encoding encoding, DLDataType dtype, int ndim,
                          const int64_t *shape, uint64_t *out)
{
    struct codec_array a;
    size_t bytes;

    if (!is_known(encoding) || !codec_measure(ndim, shape, &a))
        return false;
    if (encoding != ENCODING_NONE)
        return dtype_equal(dtype, DTYPE_F32) && codec_bytes(encoding, &a, out);
    if (!size_mul(a.count, dtype_bytes(dtype), &bytes))
        return false;
    *out = bytes;
    return true;
}

static skep_status new_bytes(uint64_t bytes, DLManagedTensor **out, struct skep_error *err)
{
    int64_t shape[1] = {(int64_t)bytes};
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};

    return skep_tensor_new(u8, 1, shape, out, err);
}

skep_status tensor_encode(const DLTensor *tensor, enum tensor_encoding encoding,
                          struct tensor_descriptor *descriptor, enum tensor_encoded *how,
                          DLManagedTensor **out, struct skep_error *err)
{
    struct tensor_descriptor d;
    struct codec_array a;
    DLManagedTensor *made = NULL;
    uint64_t bytes;
    skep_status rc = tensor_descriptor_of(&d, tensor, err);

    *out = NULL;
    *how = TENSOR_AS_IS;
    if (rc != SKEP_OK)
        return rc;
    *descriptor = d;
    if (encoding == ENCODING_NONE ||
        !tensor_encoded_bytes(encoding, d.dtype, d.ndim, d.shape, &bytes) || bytes >= d.wire_bytes)
        return SKEP_OK;
    rc = new_bytes(bytes, &made, err);
    if (rc != SKEP_OK || !codec_measure(d.ndim, d.shape, &a))
        return rc;
    switch (schemes[encoding].encode(&a, skep_tensor_data(tensor), made->dl_tensor.data)) {
    case CODEC_DONE:
        descriptor->encoding = encoding;
        descriptor->wire_bytes = bytes;
        *how = TENSOR_ENCODED;
        *out = made;
        return SKEP_OK;
    case CODEC_NOT_FINITE:
        *how = TENSOR_NOT_FINITE;
        break;
    case CODEC_NO_MEMORY:
        rc = error_no_memory(err, tensor_encoding_name(encoding), 2 * (size_t)d.wire_bytes);
        break;
    }
    skep_tensor_free(made);
    return rc;
}

skep_status tensor_decode(const struct tensor_descriptor *d, const DLTensor *encoded,
                          DLManagedTensor **out, struct skep_error *err)
{
    struct codec_array a;
    uint64_t expected;
    size_t bytes;
    skep_status rc = skep_tensor_bytes(encoded, &bytes, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    if (d->encoding == ENCODING_NONE ||
        !tensor_encoded_bytes(d->encoding, d->dtype, d->ndim, d->shape, &expected) ||
        expected != bytes || !codec_measure(d->ndim, d->shape, &a))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %zu bytes, which no tensor of the announced shape has",
                         tensor_encoding_name(d->encoding), bytes);
    rc = skep_tensor_new(d->dtype, d->ndim, d->shape, out, err);
    if (rc == SKEP_OK && a.count > 0)
        schemes[d->encoding].decode(&a, skep_tensor_data(encoded), (*out)->dl_tensor.data);
    return rc;
}

skep_status tensors_decode(const struct tensor_descriptor *descriptors, DLManagedTensor **tensors,
                           size_t *count, struct skep_error *err)
{
    for (size_t i = 0; i < *count; i++) {
        DLManagedTensor *decoded;

        if (descriptors[i].encoding == ENCODING_NONE)
            continue;
        skep_status rc = tensor_decode(&descriptors[i], &tensors[i]->dl_tensor, &decoded, err);
        if (rc != SKEP_OK) {
            error_prefix(err, "tensor %zu", i);
            for (size_t k = 0; k < *count; k++)
                skep_tensor_free(tensors[k]);
            *count = 0;
            return rc;
        }
        skep_tensor_free(tensors[i]);
        tensors[i] = decoded;
    }
    return SKEP_OK;
}
