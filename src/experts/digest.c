/* See digest.h. */
#include "experts/digest.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/tensor.h"
#include "experts/parallel.h"

struct leaf {
    const uint8_t *data;
    size_t bytes;
    uint8_t digest[DIGEST_BYTES];
};

static int by_name(const void *a, const void *b)
{
    const struct skep_named_tensor *x = a;
    const struct skep_named_tensor *y = b;

    return strcmp(x->name, y->name);
}

static void hash_leaves(void *arg, size_t first, size_t last, unsigned part)
{
    struct leaf *leaves = arg;

    (void)part;
    for (size_t i = first; i < last; i++)
        crypto_generichash(leaves[i].digest, DIGEST_BYTES, leaves[i].data, leaves[i].bytes, NULL,
                           0);
}

static size_t tensor_leaves(const DLTensor *t, size_t *bytes)
{
    /* Files and experts hold checked tensors; an unusable one has no data to hash. */
    if (skep_tensor_bytes(t, bytes, NULL) != SKEP_OK)
        *bytes = 0;
    return *bytes / DIGEST_LEAF_BYTES + (*bytes % DIGEST_LEAF_BYTES != 0);
}

static void cut_leaves(const DLTensor *t, struct leaf *leaves)
{
    size_t left;
    size_t count = tensor_leaves(t, &left);
    const uint8_t *data = count > 0 ? skep_tensor_data(t) : NULL;

    for (size_t i = 0; i < count; i++) {
        size_t bytes = left < DIGEST_LEAF_BYTES ? left : DIGEST_LEAF_BYTES;

        leaves[i].data = data;
        leaves[i].bytes = bytes;
        data += bytes;
        left -= bytes;
    }
}

static void add_text(crypto_generichash_state *state, const char *text)
{
    crypto_generichash_update(state, (const uint8_t *)text, strlen(text) + 1);
}

static void add_number(crypto_generichash_state *state, uint64_t number)
{
    uint8_t bytes[8];

    store_u64(bytes, number);
    crypto_generichash_update(state, bytes, sizeof(bytes));
}

static void add_tensor(crypto_generichash_state *state, const struct skep_named_tensor *named,
                       const struct leaf *leaves, size_t count)
{
    const DLTensor *t = named->tensor;
    const char *type = skep_dtype_name(t->dtype);

    add_text(state, named->name);
    add_text(state, type != NULL ? type : "");
    add_number(state, (uint64_t)t->ndim);
    for (int d = 0; d < t->ndim; d++)
        add_number(state, (uint64_t)t->shape[d]);
    for (size_t i = 0; i < count; i++)
        crypto_generichash_update(state, leaves[i].digest, DIGEST_BYTES);
}

skep_status digest_make(const char *const *settings, struct skep_named_tensor *tensors,
                        size_t count, bool is_shared, uint8_t out[static DIGEST_BYTES],
                        struct skep_error *err)
{
    crypto_generichash_state state;
    struct leaf *leaves;
    size_t total = 0;
    size_t bytes;

    if (count > 1)
        qsort(tensors, count, sizeof(*tensors), by_name);
    for (size_t i = 0; i < count; i++)
        total += tensor_leaves(tensors[i].tensor, &bytes);
    leaves = mem_calloc(total + 1, sizeof(*leaves));
    if (leaves == NULL)
        return error_no_memory(err, "checksum", total * sizeof(*leaves));
    for (size_t i = 0, at = 0; i < count; i++) {
        cut_leaves(tensors[i].tensor, leaves + at);
        at += tensor_leaves(tensors[i].tensor, &bytes);
    }
    if (is_shared)
        parallel_range(total, 1, 1, hash_leaves, leaves);
    else
        hash_leaves(leaves, 0, total, 0);

    crypto_generichash_init(&state, NULL, 0, DIGEST_BYTES);
    for (size_t i = 0; settings[i] != NULL; i++)
        add_text(&state, settings[i]);
    add_text(&state, "");
    for (size_t i = 0, at = 0; i < count; i++) {
        size_t own = tensor_leaves(tensors[i].tensor, &bytes);

        add_tensor(&state, &tensors[i], leaves + at, own);
        at += own;
    }
    crypto_generichash_final(&state, out, DIGEST_BYTES);
    mem_free(leaves);
    return SKEP_OK;
}
