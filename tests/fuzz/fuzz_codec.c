/*
 * Tensor encodings: foreign bytes as encoded data, which must decode to something of the right
 * shape, and any floats as a tensor, which must come back in its shape and, if finite, without NaN.
 */
#undef NDEBUG /* here assertions are the test */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/tensor.h"
#include "wire/tensor_codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEAD = 3, MAX_ROWS = 16 };

static DLManagedTensor *new_tensor(DLDataType dtype, int64_t rows, int64_t columns)
{
    int64_t shape[2] = {rows, columns};
    DLManagedTensor *t;

    if (skep_tensor_new(dtype, 2, shape, &t, NULL) != SKEP_OK)
        return NULL;
    return t;
}

/* Repeats the input's bytes until `out` is full. */
static void fill(uint8_t *out, size_t len, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i < len; i++)
        out[i] = size > 0 ? data[i % size] : 0;
}

static void decode(enum tensor_encoding encoding, int64_t rows, int64_t columns,
                   const uint8_t *data, size_t size)
{
    struct tensor_descriptor d = {
        .dtype = DTYPE_F32, .ndim = 2, .shape = {rows, columns}, .encoding = encoding};
    DLDataType u8 = {.code = kDLUInt, .bits = 8, .lanes = 1};
    DLManagedTensor *out;

    assert(tensor_encoded_bytes(encoding, d.dtype, 2, d.shape, &d.wire_bytes));
    DLManagedTensor *bytes = new_tensor(u8, 1, (int64_t)d.wire_bytes);
    assert(bytes != NULL);
    fill(bytes->dl_tensor.data, d.wire_bytes, data, size);
    assert(tensor_decode(&d, &bytes->dl_tensor, &out, NULL) == SKEP_OK);
    assert(out->dl_tensor.shape[0] == rows && out->dl_tensor.shape[1] == columns);
    skep_tensor_free(out);
    skep_tensor_free(bytes);
}

static void encode(enum tensor_encoding encoding, int64_t rows, int64_t columns,
                   const uint8_t *data, size_t size)
{
    DLManagedTensor *t = new_tensor(DTYPE_F32, rows, columns);
    DLManagedTensor *encoded, *out;
    struct tensor_descriptor d;
    enum tensor_encoded how;
    size_t count = (size_t)(rows * columns);

    assert(t != NULL);
    fill(t->dl_tensor.data, count * sizeof(float), data, size);
    bool finite = tensor_is_finite(&t->dl_tensor);
    assert(tensor_encode(&t->dl_tensor, encoding, &d, &how, &encoded, NULL) == SKEP_OK);
    assert(how != TENSOR_NOT_FINITE || !finite);
    if (how == TENSOR_ENCODED) {
        assert(tensor_decode(&d, &encoded->dl_tensor, &out, NULL) == SKEP_OK);
        for (size_t i = 0; finite && i < count; i++)
            assert(!isnan(((const float *)out->dl_tensor.data)[i]));
        skep_tensor_free(out);
    }
    skep_tensor_free(encoded);
    skep_tensor_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < HEAD)
        return 0;
    enum tensor_encoding encoding =
        (enum tensor_encoding)(1 + data[0] % (ENCODING_COUNT - 1)); /* one of those that encode */
    int64_t rows = data[1] % MAX_ROWS;
    int64_t columns = (int64_t)data[2] * 5;

    decode(encoding, rows, columns, data + HEAD, size - HEAD);
    encode(encoding, rows, columns, data + HEAD, size - HEAD);
    return 0;
}
