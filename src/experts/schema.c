/* Checking tensors against a schema, and a schema's digest. */
#include "experts/expert.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sodium.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"

enum { DIGEST_BYTES = 16, DESCRIPTION_BYTES = 128 };

/* "[any, 64] F32"; any is 1 or more. */
static const char *describe_spec(const struct skep_tensor_spec *spec, char *text, size_t cap)
{
    size_t used = 0;

    for (int i = 0; i < spec->ndim && used < cap; i++) {
        const char *before = i == 0 ? "[" : ", ";
        if (spec->shape[i] < 0)
            used += (size_t)snprintf(text + used, cap - used, "%sany", before);
        else
            used += (size_t)snprintf(text + used, cap - used, "%s%" PRId64, before, spec->shape[i]);
    }
    if (used < cap)
        snprintf(text + used, cap - used, "] %s", skep_dtype_name(spec->dtype));
    return text;
}

static bool shape_matches(const struct skep_tensor_spec *spec, const DLTensor *t)
{
    if (t->ndim != spec->ndim)
        return false;
    for (int i = 1; i < spec->ndim; i++)
        if (spec->shape[i] >= 0 ? t->shape[i] != spec->shape[i] : t->shape[i] < 1)
            return false;
    return true;
}

/* Everything about one tensor but its rows. */
static skep_status check_tensor(const struct skep_tensor_spec *spec, const DLTensor *t,
                                const char *what, size_t index, struct skep_error *err)
{
    char want[DESCRIPTION_BYTES];
    char got[DESCRIPTION_BYTES];
    size_t bytes;
    skep_status rc = skep_tensor_bytes(t, &bytes, err);

    if (rc != SKEP_OK) {
        error_prefix(err, "%s %zu (%s)", what, index, spec->name);
        return rc;
    }
    if (!dtype_equal(t->dtype, spec->dtype) || !shape_matches(spec, t))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s %zu (%s): %s, expected %s", what, index,
                         spec->name, tensor_describe(t, got, sizeof(got)),
                         describe_spec(spec, want, sizeof(want)));
    if ((uintptr_t)skep_tensor_data(t) % dtype_bytes(t->dtype) != 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s %zu (%s): address not aligned to its elements of %zu bytes", what,
                         index, spec->name, dtype_bytes(t->dtype));
    return SKEP_OK;
}

skep_status schema_check(const struct skep_tensor_spec *specs, size_t spec_count,
                         const DLTensor *const *tensors, size_t tensor_count, const char *what,
                         int64_t *rows, struct skep_error *err)
{
    if (tensor_count != spec_count)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%zu %s tensor%s, expected %zu", tensor_count,
                         what, text_plural(tensor_count), spec_count);
    for (size_t i = 0; i < spec_count; i++) {
        skep_status rc = check_tensor(&specs[i], tensors[i], what, i, err);
        if (rc != SKEP_OK)
            return rc;
        if (tensors[i]->shape[0] < 1)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s %zu (%s): 0 rows, expected 1 or more",
                             what, i, specs[i].name);
        if (tensors[i]->shape[0] != tensors[0]->shape[0])
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "%s %zu (%s): %" PRId64 " rows, expected %" PRId64 " as in %s 0", what,
                             i, specs[i].name, tensors[i]->shape[0], tensors[0]->shape[0], what);
    }
    if (spec_count > 0)
        *rows = tensors[0]->shape[0];
    return SKEP_OK;
}

static void hash_number(crypto_generichash_state *state, int64_t value)
{
    uint8_t bytes[8];

    store_u64(bytes, (uint64_t)value);
    crypto_generichash_update(state, bytes, sizeof(bytes));
}

static void hash_specs(crypto_generichash_state *state, const struct skep_tensor_spec *specs,
                       size_t count)
{
    hash_number(state, (int64_t)count);
    for (size_t i = 0; i < count; i++) {
        const struct skep_tensor_spec *s = &specs[i];
        size_t name_len = strnlen(s->name, sizeof(s->name));
        hash_number(state, (int64_t)name_len);
        crypto_generichash_update(state, (const uint8_t *)s->name, name_len);
        hash_number(state, s->dtype.code);
        hash_number(state, s->dtype.bits);
        hash_number(state, s->dtype.lanes);
        hash_number(state, s->ndim);
        for (int d = 0; d < s->ndim; d++)
            hash_number(state, s->shape[d]);
    }
}

/*
 * Canonical form: the text "skep schema 1", then inputs, then outputs. A list is its count and its
 * tensors; a tensor is its name (length first), type code, bits, lanes, dimensions, shape. Every
 * number is 8 bytes, little-endian.
 */
void schema_digest(const struct skep_expert_schema *schema, uint8_t out[static 16])
{
    static const uint8_t domain[] = "skep schema 1";
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    crypto_generichash_update(&state, domain, sizeof(domain) - 1);
    hash_specs(&state, schema->inputs, schema->input_count);
    hash_specs(&state, schema->outputs, schema->output_count);
    crypto_generichash_final(&state, out, DIGEST_BYTES);
}
