/* See moe_slice.h. */
#include "experts/moe_slice.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "experts/weights.h"

enum { SHAPE_TEXT_BYTES = 96 };

/* A matrix of `out` rows and `in` columns that begins at `first` in a tensor whose last dimension
 * is `line`. */
static struct moe_slice straight(const DLTensor *t, int64_t out, int64_t in, int64_t first)
{
    return (struct moe_slice){t, out, in, (size_t)first, (size_t)in, 1};
}

/* The same where the tensor has [in, ...out...]: its lines are `line` long. */
static struct moe_slice turned(const DLTensor *t, int64_t out, int64_t in, int64_t line,
                               int64_t first)
{
    return (struct moe_slice){t, out, in, (size_t)first, 1, (size_t)line};
}

static skep_status refuse_shapes(const struct moe_layer *layer, const DLTensor *const tensors[4],
                                 const char *expected, struct skep_error *err)
{
    char up[SHAPE_TEXT_BYTES] = "", gate[SHAPE_TEXT_BYTES], down[SHAPE_TEXT_BYTES];
    const DLTensor *first = tensors[MOE_GATE] != NULL ? tensors[MOE_GATE] : tensors[MOE_GATE_UP];

    if (tensors[MOE_UP] != NULL)
        tensor_describe(tensors[MOE_UP], up, sizeof(up));
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "layer %" PRIu64
                     ": gate %s%s%s and down %s do not fit each other, expected %s",
                     layer->number, tensor_describe(first, gate, sizeof(gate)),
                     up[0] != '\0' ? ", up " : " (with up)", up,
                     tensor_describe(tensors[MOE_DOWN], down, sizeof(down)), expected);
}

static bool same_shape(const DLTensor *a, const DLTensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static skep_status slice_single(const struct moe_layer *layer, const DLTensor *const t[4],
                                struct moe_slices *out, struct skep_error *err)
{
    const DLTensor *gate = t[MOE_GATE], *down = t[MOE_DOWN];

    if (gate->ndim != 2 || !same_shape(gate, t[MOE_UP]) || down->ndim != 2 ||
        down->shape[0] != gate->shape[1] || down->shape[1] != gate->shape[0])
        return refuse_shapes(layer, t, "[wide, hidden] twice and [hidden, wide]", err);
    out->wide = gate->shape[0];
    out->hidden = gate->shape[1];
    for (int r = MOE_GATE; r <= MOE_DOWN; r++)
        out->role[r] = straight(t[r], t[r]->shape[0], t[r]->shape[1], 0);
    return SKEP_OK;
}

/* Gate above up in one. Only one of the two ways round can fit. */
static skep_status slice_pair(const struct moe_layer *layer, const DLTensor *const t[4],
                              int64_t number, struct moe_slices *out, struct skep_error *err)
{
    const DLTensor *pair = t[MOE_GATE_UP], *down = t[MOE_DOWN];
    const int64_t a = pair->shape[1], b = pair->shape[2], c = down->shape[1], d = down->shape[2];

    if (a % 2 == 0 && a / 2 == d && b == c) {
        out->wide = d;
        out->hidden = b;
        out->role[MOE_GATE] = straight(pair, d, b, number * a * b);
        out->role[MOE_UP] = straight(pair, d, b, number * a * b + d * b);
        out->role[MOE_DOWN] = straight(down, c, d, number * c * d);
        return SKEP_OK;
    }
    if (layer->form == MOE_STACKED && b % 2 == 0 && b / 2 == c && a == d) {
        out->wide = c;
        out->hidden = a;
        out->role[MOE_GATE] = turned(pair, c, a, b, number * a * b);
        out->role[MOE_UP] = turned(pair, c, a, b, number * a * b + c);
        out->role[MOE_DOWN] = turned(down, a, c, d, number * c * d);
        return SKEP_OK;
    }
    return refuse_shapes(layer, t,
                         "[experts, 2 * wide, hidden] and [experts, hidden, wide], or both with "
                         "their last two dimensions exchanged",
                         err);
}

/* Gate, up and down, each of all experts. Their shapes fit both ways round, so somebody has to say
 * how wide a row of the model is. */
static skep_status slice_triple(const struct moe_layer *layer, const DLTensor *const t[4],
                                int64_t number, uint64_t hidden_size, struct moe_slices *out,
                                struct skep_error *err)
{
    const DLTensor *gate = t[MOE_GATE], *down = t[MOE_DOWN];
    const int64_t a = gate->shape[1], b = gate->shape[2];
    const int64_t hidden = hidden_size <= INT64_MAX ? (int64_t)hidden_size : 0;

    if (!same_shape(gate, t[MOE_UP]) || down->shape[1] != b || down->shape[2] != a)
        return refuse_shapes(layer, t, "[experts, wide, hidden] twice and [experts, hidden, wide]",
                             err);
    if (layer->form != MOE_LINEAR && (a == b || (hidden != a && hidden != b)))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "layer %" PRIu64 ": matrices of %" PRId64 " and %" PRId64
                         " do not tell which is the width of the model, and config.json's "
                         "hidden_size is %" PRId64,
                         layer->number, a, b, hidden);
    bool is_turned = layer->form != MOE_LINEAR && hidden == a;
    out->wide = is_turned ? b : a;
    out->hidden = is_turned ? a : b;
    for (int r = MOE_GATE; r <= MOE_DOWN; r++) {
        int64_t first = number * a * b, x = t[r]->shape[1], y = t[r]->shape[2];
        out->role[r] = is_turned ? turned(t[r], y, x, y, first) : straight(t[r], x, y, first);
    }
    return SKEP_OK;
}

static skep_status slice_rows(const struct moe_layer *layer, const DLTensor *const t[4],
                              int64_t experts, int64_t number, struct moe_slices *out,
                              struct skep_error *err)
{
    const DLTensor *gate = t[MOE_GATE];

    if (gate->ndim != 2 || !same_shape(gate, t[MOE_UP]) || !same_shape(gate, t[MOE_DOWN]) ||
        gate->shape[0] % experts != 0)
        return refuse_shapes(layer, t, "[experts * wide, hidden] of all three", err);
    const int64_t wide = gate->shape[0] / experts, hidden = gate->shape[1];
    const int64_t first = number * wide * hidden;
    out->wide = wide;
    out->hidden = hidden;
    out->role[MOE_GATE] = straight(gate, wide, hidden, first);
    out->role[MOE_UP] = straight(t[MOE_UP], wide, hidden, first);
    out->role[MOE_DOWN] = turned(t[MOE_DOWN], hidden, wide, hidden, first);
    return SKEP_OK;
}

skep_status moe_slice(const struct moe_layer *layer, const DLTensor *const tensors[static 4],
                      uint64_t experts, uint64_t number, uint64_t hidden_size,
                      struct moe_slices *out, struct skep_error *err)
{
    if (layer->form == MOE_SINGLE)
        return slice_single(layer, tensors, out, err);
    if (layer->form == MOE_ROWS)
        return slice_rows(layer, tensors, (int64_t)experts, (int64_t)number, out, err);
    for (int r = MOE_GATE; r <= MOE_GATE_UP; r++)
        if (tensors[r] != NULL &&
            (tensors[r]->ndim != 3 || (uint64_t)tensors[r]->shape[0] != experts)) {
            char text[SHAPE_TEXT_BYTES];
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "layer %" PRIu64 ": a tensor of all its experts is %s, expected three "
                             "dimensions, the first %" PRIu64,
                             layer->number, tensor_describe(tensors[r], text, sizeof(text)),
                             experts);
        }
    return tensors[MOE_GATE_UP] != NULL
               ? slice_pair(layer, tensors, (int64_t)number, out, err)
               : slice_triple(layer, tensors, (int64_t)number, hidden_size, out, err);
}

/* --- values -------------------------------------------------------------------------------- */

/* `count` elements of a tensor from `first` on, as a tensor of one dimension or of two. */
static DLTensor view(const DLTensor *t, size_t first, int ndim, int64_t *shape)
{
    return (DLTensor){
        .data = (char *)skep_tensor_data(t) + first * dtype_bytes(t->dtype),
        .device = {.device_type = kDLCPU},
        .ndim = ndim,
        .dtype = t->dtype,
        .shape = shape,
    };
}

/* Reads columns, which lie in one piece each, and spreads them over rows. */
static skep_status turn(const struct moe_slice *s, float *line, float *out, struct skep_error *err)
{
    int64_t shape[1] = {s->rows};
    skep_status rc = SKEP_OK;

    for (int64_t column = 0; column < s->columns && rc == SKEP_OK; column++) {
        DLTensor part = view(s->tensor, s->first + (size_t)column * s->column_step, 1, shape);

        rc = weights_to_f32(&part, line, err);
        for (int64_t row = 0; row < s->rows && rc == SKEP_OK; row++)
            out[row * s->columns + column] = line[row];
    }
    return rc;
}

skep_status moe_slice_set(const struct moe_slice *slice, struct expert *expert,
                          const char *parameter, struct skep_error *err)
{
    int64_t shape[2] = {slice->rows, slice->columns};
    DLTensor whole = view(slice->tensor, slice->first, 2, shape);
    float *values;
    size_t count;
    skep_status rc;

    if (slice->column_step == 1)
        return weights_set(expert, parameter, &whole, err);
    if (!shape_count(2, shape, &count) || count > SIZE_MAX / sizeof(float) - (size_t)slice->rows)
        return error_set(err, SKEP_INVALID_ARGUMENT, "parameter %s: too large", parameter);
    values = mem_alloc((count + (size_t)slice->rows) * sizeof(float));
    if (values == NULL)
        return error_no_memory(err, parameter, count * sizeof(float));
    rc = turn(slice, values + count, values, err);
    if (rc == SKEP_OK) {
        whole.dtype = DTYPE_F32;
        whole.data = values;
        rc = weights_set(expert, parameter, &whole, err);
    }
    mem_free(values);
    return rc;
}
