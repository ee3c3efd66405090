/* DLPack tensors with counted memory. */
#include "base/tensor.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "base/error.h"

enum { TENSOR_ALIGNMENT = 64 }; /* a cache line and the widest vector */

/* The memory under one or more tensors. */
struct storage {
    atomic_size_t refs;
    void *data; /* owned: block_free() */
    size_t capacity;
};

struct owned_tensor {
    DLManagedTensor managed; /* first, so that the two pointers convert */
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
    struct storage *storage; /* shared */
};

struct dtype_row {
    const char *name;
    uint8_t code;
    uint8_t bits;
};

static const struct dtype_row dtype_rows[] = {
#define DTYPE_ROW(name, code, bits) {#name, code, bits},
    SKEP_DTYPE_MAP(DTYPE_ROW)
#undef DTYPE_ROW
};

bool skep_dtype_from_name(const char *name, DLDataType *out)
{
    for (size_t i = 0; i < sizeof(dtype_rows) / sizeof(dtype_rows[0]); i++) {
        if (strcmp(dtype_rows[i].name, name) == 0) {
            *out = (DLDataType){.code = dtype_rows[i].code, .bits = dtype_rows[i].bits, .lanes = 1};
            return true;
        }
    }
    return false;
}

const char *skep_dtype_name(DLDataType dtype)
{
    for (size_t i = 0; i < sizeof(dtype_rows) / sizeof(dtype_rows[0]); i++)
        if (dtype.lanes == 1 && dtype_rows[i].code == dtype.code &&
            dtype_rows[i].bits == dtype.bits)
            return dtype_rows[i].name;
    return NULL;
}

size_t dtype_bytes(DLDataType dtype)
{
    return dtype.bits / 8u;
}

bool dtype_equal(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

bool shape_count(int ndim, const int64_t *shape, size_t *out)
{
    size_t count = 1;

    for (int i = 0; i < ndim; i++)
        if (shape[i] < 0 || (uint64_t)shape[i] > SIZE_MAX ||
            !size_mul(count, (size_t)shape[i], &count) || count > INT64_MAX)
            return false;
    *out = count;
    return true;
}

static skep_status check_dtype_and_shape(DLDataType dtype, int ndim, const int64_t *shape,
                                         size_t *bytes, struct skep_error *err)
{
    size_t count;

    if (skep_dtype_name(dtype) == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "tensor: unknown element type (DLPack code %u, %u bits, %u lanes)",
                         dtype.code, dtype.bits, dtype.lanes);
    if (ndim < 0 || ndim > SKEP_TENSOR_MAX_DIMS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "tensor: %d dimensions, expected 0 to %d",
                         ndim, SKEP_TENSOR_MAX_DIMS);
    if (ndim > 0 && shape == NULL)
        return error_if_null(shape, "tensor: shape", err);
    if (!shape_count(ndim, shape, &count) || !size_mul(count, dtype_bytes(dtype), bytes))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "tensor: shape with a negative dimension or too many elements");
    return SKEP_OK;
}

static void storage_unref(struct storage *storage)
{
    /* Release what this thread wrote; acquire what the others wrote before the memory goes. */
    if (storage != NULL &&
        atomic_fetch_sub_explicit(&storage->refs, 1, memory_order_acq_rel) == 1) {
        block_free(storage->data, storage->capacity);
        mem_free(storage);
    }
}

static void delete_tensor(DLManagedTensor *tensor)
{
    struct owned_tensor *own = (struct owned_tensor *)tensor;

    storage_unref(own->storage);
    mem_free(own);
}

/* A tensor over storage that the caller has counted for it. */
static struct owned_tensor *wrap(struct storage *storage, void *data, DLDataType dtype, int ndim,
                                 const int64_t *shape)
{
    struct owned_tensor *own = mem_calloc(1, sizeof(*own));

    if (own == NULL)
        return NULL;
    if (ndim > 0)
        memcpy(own->shape, shape, (size_t)ndim * sizeof(*shape));
    own->storage = storage;
    own->managed = (DLManagedTensor){
        .dl_tensor =
            {
                .data = data,
                .device = {.device_type = kDLCPU},
                .ndim = ndim,
                .dtype = dtype,
                .shape = own->shape,
            },
        .manager_ctx = own,
        .deleter = delete_tensor,
    };
    return own;
}

skep_status skep_tensor_new(DLDataType dtype, int ndim, const int64_t *shape, DLManagedTensor **out,
                            struct skep_error *err)
{
    size_t bytes;
    struct storage *storage = NULL;
    struct owned_tensor *own = NULL;
    skep_status rc = check_dtype_and_shape(dtype, ndim, shape, &bytes, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    storage = mem_calloc(1, sizeof(*storage));
    if (storage == NULL)
        goto no_memory;
    atomic_init(&storage->refs, 1);
    storage->data = block_alloc(TENSOR_ALIGNMENT, bytes, &storage->capacity);
    if (storage->data == NULL)
        goto no_memory;
    own = wrap(storage, storage->data, dtype, ndim, shape);
    if (own == NULL)
        goto no_memory;
    *out = &own->managed;
    return SKEP_OK;

no_memory:
    storage_unref(storage);
    return error_no_memory(err, "tensor", bytes);
}

void skep_tensor_free(DLManagedTensor *tensor)
{
    if (tensor != NULL && tensor->deleter != NULL)
        tensor->deleter(tensor);
}

static bool is_contiguous(const DLTensor *t)
{
    int64_t expected = 1;

    if (t->strides == NULL)
        return true;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->strides[i] != expected)
            return false;
        expected *= t->shape[i];
    }
    return true;
}

skep_status skep_tensor_bytes(const DLTensor *tensor, size_t *out, struct skep_error *err)
{
    size_t bytes;
    skep_status rc = error_if_null(tensor, "tensor", err);

    if (rc != SKEP_OK)
        return rc;
    rc = check_dtype_and_shape(tensor->dtype, tensor->ndim, tensor->shape, &bytes, err);
    if (rc != SKEP_OK)
        return rc;
    if (tensor->device.device_type != kDLCPU)
        return error_set(err, SKEP_INVALID_ARGUMENT, "tensor: on device type %d, expected CPU (%d)",
                         (int)tensor->device.device_type, (int)kDLCPU);
    /* Without elements nothing is strided, and the products of the other dimensions may overflow.
     */
    if (bytes > 0 && !is_contiguous(tensor))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "tensor: strided, expected contiguous row-major elements");
    if (bytes > 0 && tensor->data == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "tensor: no data for %zu bytes", bytes);
    *out = bytes;
    return SKEP_OK;
}

void *skep_tensor_data(const DLTensor *tensor)
{
    return tensor->data == NULL ? NULL : (uint8_t *)tensor->data + tensor->byte_offset;
}

bool tensor_is_sliceable(const DLManagedTensor *tensor)
{
    return tensor->deleter == delete_tensor;
}

skep_status tensor_slice(DLManagedTensor *base, int64_t first, int64_t rows, DLManagedTensor **out,
                         struct skep_error *err)
{
    struct owned_tensor *own = (struct owned_tensor *)base;
    const DLTensor *t = &base->dl_tensor;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
    size_t row = 1;

    *out = NULL;
    if (!tensor_is_sliceable(base))
        return error_set(
            err, SKEP_INVALID_ARGUMENT,
            "tensor: not made by skep_tensor_new(), expected memory that can be shared");
    if (t->ndim < 1 || first < 0 || rows < 0 || first > t->shape[0] || rows > t->shape[0] - first)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "tensor: %" PRId64 " rows from row %" PRId64 " of a tensor with %" PRId64,
                         rows, first, t->ndim < 1 ? (int64_t)0 : t->shape[0]);
    memcpy(shape, t->shape, (size_t)t->ndim * sizeof(*shape));
    shape[0] = rows;
    for (int i = 1; i < t->ndim; i++)
        row *= (size_t)shape[i];
    uint8_t *data = (uint8_t *)t->data + (size_t)first * row * dtype_bytes(t->dtype);

    /* Relaxed: whoever holds `base` already sees all that was written to it. */
    atomic_fetch_add_explicit(&own->storage->refs, 1, memory_order_relaxed);
    struct owned_tensor *slice = wrap(own->storage, data, t->dtype, t->ndim, shape);
    if (slice == NULL) {
        storage_unref(own->storage);
        return error_no_memory(err, "tensor slice", sizeof(*slice));
    }
    *out = &slice->managed;
    return SKEP_OK;
}

const char *tensor_describe(const DLTensor *t, char *text, size_t cap)
{
    size_t used = 0;
    const char *name = skep_dtype_name(t->dtype);

    for (int i = 0; i < t->ndim && used < cap; i++)
        used += (size_t)snprintf(text + used, cap - used, "%s%" PRId64, i == 0 ? "[" : ", ",
                                 t->shape[i]);
    if (used < cap)
        snprintf(text + used, cap - used, "%s] %s", t->ndim == 0 ? "[" : "",
                 name != NULL ? name : "unknown type");
    return text;
}

/* Exponent bits all set means infinite or NaN, in every IEEE type of this width. */
static bool finite_bits16(const uint16_t *x, size_t n, uint16_t exponent)
{
    bool bad = false;

    for (size_t i = 0; i < n; i++)
        bad |= (x[i] & exponent) == exponent;
    return !bad;
}

static bool finite_f32(const uint32_t *x, size_t n)
{
    uint32_t bad = 0;

    for (size_t i = 0; i < n; i++)
        bad |= (uint32_t)((x[i] & 0x7f800000u) == 0x7f800000u);
    return bad == 0;
}

static bool finite_f64(const double *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

bool tensor_is_finite(const DLTensor *t)
{
    const void *data = skep_tensor_data(t);
    size_t n;

    if (data == NULL || !shape_count(t->ndim, t->shape, &n))
        return true;
    if (t->dtype.code == kDLFloat && t->dtype.bits == 64)
        return finite_f64(data, n);
    if (t->dtype.code == kDLFloat && t->dtype.bits == 32)
        return finite_f32(data, n);
    if (t->dtype.code == kDLFloat && t->dtype.bits == 16)
        return finite_bits16(data, n, 0x7c00);
    if (t->dtype.code == kDLBfloat && t->dtype.bits == 16)
        return finite_bits16(data, n, 0x7f80);
    return true;
}
