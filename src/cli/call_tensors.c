/* See call_tensors.h. */
#include "cli/call_tensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/weights.h"

enum { NOTE_BYTES = 512, DIGITS = 6 };

static void note(json_t *notes, const char *format, ...) SKEP_PRINTF(2, 3);

static void note(json_t *notes, const char *format, ...)
{
    char text[NOTE_BYTES];
    va_list args;

    va_start(args, format);
    number_vprint(text, sizeof(text), format, args);
    va_end(args);
    text_tame(text);
    fprintf(stderr, "skep call: note: %s\n", text);
    json_array_append_new(notes, json_string(text));
}

/* ---- elements ---- */

static bool is_float(DLDataType dtype)
{
    return dtype.code == kDLFloat || dtype.code == kDLBfloat;
}

static double element(const DLTensor *t, size_t i)
{
    const void *data = skep_tensor_data(t);
    DLTensor one = *t;
    float value = 0;

    switch (t->dtype.code) {
    case kDLInt:
        return t->dtype.bits == 64   ? (double)((const int64_t *)data)[i]
               : t->dtype.bits == 32 ? ((const int32_t *)data)[i]
               : t->dtype.bits == 16 ? ((const int16_t *)data)[i]
                                     : ((const int8_t *)data)[i];
    case kDLUInt:
    case SKEP_DL_BOOL:
        return ((const uint8_t *)data)[i];
    default:
        break;
    }
    if (t->dtype.bits == 64)
        return ((const double *)data)[i];
    one.ndim = 0; /* one element */
    one.strides = NULL;
    one.byte_offset += i * dtype_bytes(t->dtype);
    return weights_to_f32(&one, &value, NULL) == SKEP_OK ? value : NAN;
}

struct counts {
    size_t total, nan, infinite;
    double min, max, sum; /* of the others */
};

static struct counts count(const DLTensor *t)
{
    struct counts c = {.min = INFINITY, .max = -INFINITY};

    if (!shape_count(t->ndim, t->shape, &c.total))
        c.total = 0;
    for (size_t i = 0; i < c.total; i++) {
        double x = element(t, i);
        c.nan += isnan(x) ? 1 : 0;
        c.infinite += isinf(x) ? 1 : 0;
        if (!isfinite(x))
            continue;
        c.sum += x;
        c.min = x < c.min ? x : c.min;
        c.max = x > c.max ? x : c.max;
    }
    return c;
}

/* ---- inputs ---- */

skep_status call_tensors_open(struct call_tensors *out, const char *path, const char *role,
                              bool no_cast, json_t *notes, struct skep_error *err)
{
    skep_status rc;

    *out = (struct call_tensors){.path = path};
    rc = tensor_file_open(&out->file, path, role, err);
    if (rc != SKEP_OK)
        return rc;
    if (out->file.is_reordered && no_cast)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: elements are in Fortran order, expected C order; without --no-cast "
                         "they are reordered",
                         path);
    if (out->file.is_reordered)
        note(notes, "%s: elements are in Fortran order; sent in C order", path);
    for (size_t i = 0; i < out->file.count; i++) {
        out->sent[i] = out->file.tensors[i];
        if (tensor_is_finite(out->sent[i]))
            continue;
        struct counts c = count(out->sent[i]);
        note(notes, "%s: %s.%zu holds %zu NaN and %zu infinite of %zu elements", path, role, i,
             c.nan, c.infinite, c.total);
    }
    return SKEP_OK;
}

void call_tensors_close(struct call_tensors *t)
{
    for (size_t i = 0; i < TENSOR_FILE_MAX; i++)
        skep_tensor_free(t->cast[i]);
    tensor_file_close(&t->file);
    *t = (struct call_tensors){0};
}

static bool may_need_cast(const DLTensor *t)
{
    return is_float(t->dtype) && !dtype_equal(t->dtype, DTYPE_F32);
}

bool call_tensors_may_need_cast(const struct call_tensors *t)
{
    for (size_t i = 0; i < t->file.count; i++)
        if (may_need_cast(t->file.tensors[i]))
            return true;
    return false;
}

static skep_status cast_one(struct call_tensors *t, size_t i, const char *role, json_t *notes,
                            struct skep_error *err)
{
    const DLTensor *from = t->file.tensors[i];
    skep_status rc = skep_tensor_new(DTYPE_F32, from->ndim, from->shape, &t->cast[i], err);

    if (rc == SKEP_OK)
        rc = weights_to_f32(from, skep_tensor_data(&t->cast[i]->dl_tensor), err);
    if (rc != SKEP_OK)
        return rc;
    t->sent[i] = &t->cast[i]->dl_tensor;
    note(notes, "%s: %s.%zu is cast from %s to F32, which the expert takes", t->path, role, i,
         skep_dtype_name(from->dtype));
    size_t lost =
        tensor_is_finite(t->sent[i]) ? 0 : count(t->sent[i]).infinite - count(from).infinite;
    if (lost > 0)
        note(notes, "%s: %zu elements of %s.%zu are beyond what F32 holds and become infinite",
             t->path, lost, role, i);
    return SKEP_OK;
}

skep_status call_tensors_cast(struct call_tensors *t, const char *role,
                              const struct skep_tensor_spec *specs, size_t spec_count,
                              json_t *notes, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < t->file.count && i < spec_count && rc == SKEP_OK; i++)
        if (may_need_cast(t->file.tensors[i]) && dtype_equal(specs[i].dtype, DTYPE_F32))
            rc = cast_one(t, i, role, notes, err);
    return rc;
}

/* ---- results ---- */

json_t *call_tensor_summary(const char *role, size_t index, const DLTensor *t)
{
    struct counts c = count(t);
    size_t finite = c.total - c.nan - c.infinite;
    json_t *shape = json_array();
    char name[64];

    snprintf(name, sizeof(name), "%s.%zu", role, index);
    for (int d = 0; d < t->ndim; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
    return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:I, s:I}", "name", name, "shape", shape,
                     "dtype", skep_dtype_name(t->dtype), "min",
                     finite > 0 ? json_real(c.min) : json_null(), "mean",
                     finite > 0 ? json_real(c.sum / (double)finite) : json_null(), "max",
                     finite > 0 ? json_real(c.max) : json_null(), "nan", (json_int_t)c.nan,
                     "infinite", (json_int_t)c.infinite);
}

static const char *number_of(const json_t *summary, const char *name, char out[static 32])
{
    const json_t *value = json_object_get(summary, name);

    if (json_is_real(value))
        number_print(out, 32, "%.*g", DIGITS, json_real_value(value));
    else
        snprintf(out, 32, "-");
    return out;
}

void call_tensor_print(const json_t *summary)
{
    const json_t *shape = json_object_get(summary, "shape");
    json_int_t nan = json_integer_value(json_object_get(summary, "nan"));
    json_int_t infinite = json_integer_value(json_object_get(summary, "infinite"));
    char min[32], mean[32], max[32];

    printf("%s: [", json_string_value(json_object_get(summary, "name")));
    for (size_t d = 0; d < json_array_size(shape); d++)
        printf("%s%" PRId64, d > 0 ? ", " : "",
               (int64_t)json_integer_value(json_array_get(shape, d)));
    printf("] %s, min %s, mean %s, max %s", json_string_value(json_object_get(summary, "dtype")),
           number_of(summary, "min", min), number_of(summary, "mean", mean),
           number_of(summary, "max", max));
    if (nan > 0 || infinite > 0)
        printf(", %lld NaN, %lld infinite", (long long)nan, (long long)infinite);
    putchar('\n');
}
