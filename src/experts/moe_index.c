/* See moe_index.h. */
#include "experts/moe_index.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

enum {
    INDEX_LIMIT_BYTES = 64 << 20, /* the largest published ones have 10 MiB */
    MAX_PLACE = 1000000,          /* layers, and experts of a layer */
    MAX_FILES = 4096,             /* looked through one by one */
};

/* --- names --------------------------------------------------------------------------------- */

static bool skip_text(const char **at, const char *text)
{
    size_t len = strlen(text);

    if (strncmp(*at, text, len) != 0)
        return false;
    *at += len;
    return true;
}

static bool skip_number(const char **at, uint64_t *out)
{
    const char *p = *at;

    *out = 0;
    while (*p >= '0' && *p <= '9' && *out <= MAX_PLACE)
        *out = *out * 10 + (uint64_t)(*p++ - '0');
    if (p == *at || (**at == '0' && p != *at + 1) || *out > MAX_PLACE)
        return false;
    *at = p;
    return true;
}

/* Reads an expert's matrix out of a tensor's name; false for all other tensors. */
static bool read_name(const char *name, struct moe_matrix *out)
{
    static const struct {
        const char *block;
        const char *roles[MOE_MATRICES];
    } layouts[] = {
        {".mlp.experts.", {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"}},
        {".block_sparse_moe.experts.", {".w1.weight", ".w3.weight", ".w2.weight"}},
    };
    const char *at = name;

    if (!skip_text(&at, "model.layers.") || !skip_number(&at, &out->layer))
        return false;
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const char *p = at;

        if (!skip_text(&p, layouts[i].block) || !skip_number(&p, &out->number))
            continue;
        for (int r = 0; r < MOE_MATRICES; r++)
            if (strcmp(p, layouts[i].roles[r]) == 0) {
                out->role = r;
                out->name = name;
                return true;
            }
    }
    return false;
}

/* --- adding -------------------------------------------------------------------------------- */

static skep_status grow(void **array, size_t *cap, size_t count, size_t size,
                        struct skep_error *err)
{
    size_t more = *cap == 0 ? 64 : 2 * *cap;
    void *grown;

    if (count < *cap)
        return SKEP_OK;
    grown = mem_realloc(*array, more * size);
    if (grown == NULL)
        return error_no_memory(err, "list of experts", more * size);
    *array = grown;
    *cap = more;
    return SKEP_OK;
}

/* The number of a file, added if it is new. Few files, and runs of equal names: the last one first.
 */
static skep_status find_file(struct moe_index *index, const char *name, size_t *out,
                             struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    skep_status rc;

    for (size_t i = index->file_count; i-- > 0;)
        if (strcmp(index->files[i], name) == 0) {
            *out = i;
            return SKEP_OK;
        }
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL)
        return error_set(err, SKEP_DATA_LOSS, "index: %s is no name of a file beside it",
                         text_quote(name, strlen(name), quoted));
    if (index->file_count == MAX_FILES)
        return error_set(err, SKEP_DATA_LOSS, "index: names more files than %d", MAX_FILES);
    rc = grow((void **)&index->files, &index->file_cap, index->file_count, sizeof(*index->files),
              err);
    if (rc == SKEP_OK) {
        *out = index->file_count;
        index->files[index->file_count++] = name;
    }
    return rc;
}

skep_status moe_index_add(struct moe_index *index, const char *tensor, const char *file,
                          struct skep_error *err)
{
    struct moe_matrix matrix = {0};
    skep_status rc = find_file(index, file, &matrix.file, err);

    if (rc != SKEP_OK || !read_name(tensor, &matrix))
        return rc;
    rc = grow((void **)&index->matrices, &index->cap, index->count, sizeof(*index->matrices), err);
    if (rc == SKEP_OK)
        index->matrices[index->count++] = matrix;
    return rc;
}

static skep_status parse_json(struct moe_index *index, const void *data, size_t len,
                              struct skep_error *err)
{
    json_error_t error;

    if (len > INDEX_LIMIT_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "%zu bytes, expected at most %d", len,
                         INDEX_LIMIT_BYTES);
    if (len > 0)
        index->root = json_loadb(data, len, JSON_REJECT_DUPLICATES, &error);
    if (index->root != NULL)
        return SKEP_OK;
    if (len > 0 && json_error_code(&error) == json_error_out_of_memory)
        return error_no_memory(err, "index", len);
    return error_set(err, SKEP_DATA_LOSS, "not JSON: %s", len > 0 ? error.text : "empty");
}

skep_status moe_index_parse(struct moe_index *index, const void *data, size_t len,
                            struct skep_error *err)
{
    skep_status rc = parse_json(index, data, len, err);
    const char *name;
    json_t *weights;
    json_t *file;

    if (rc != SKEP_OK)
        return rc;
    weights = json_object_get(index->root, "weight_map");
    if (!json_is_object(weights))
        return error_set(err, SKEP_DATA_LOSS, "index: has no weight_map");
    json_object_foreach(weights, name, file)
    {
        if (json_is_string(file))
            rc = moe_index_add(index, name, json_string_value(file), err);
        else
            rc = error_set(err, SKEP_DATA_LOSS, "index: a tensor's file is not a string");
        if (rc != SKEP_OK)
            break;
    }
    return rc;
}

/* --- checking ------------------------------------------------------------------------------ */

static int by_place(const void *a, const void *b)
{
    const struct moe_matrix *x = a;
    const struct moe_matrix *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->role - y->role;
}

skep_status moe_index_check(struct moe_index *index, struct skep_error *err)
{
    if (index->count == 0)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "has no experts: no tensor is named "
                         "model.layers.L.mlp.experts.E.gate_proj.weight or "
                         "model.layers.L.block_sparse_moe.experts.E.w1.weight");
    qsort(index->matrices, index->count, sizeof(*index->matrices), by_place);
    for (size_t i = 0; i < index->count; i++) {
        const struct moe_matrix *m = &index->matrices[i];
        const struct moe_matrix *first = &index->matrices[i - i % MOE_MATRICES];
        bool is_last = i + 1 == index->count;

        if (m->role != (int)(i % MOE_MATRICES) || m->layer != first->layer ||
            m->number != first->number || (is_last && i % MOE_MATRICES != MOE_MATRICES - 1))
            return error_set(err, SKEP_DATA_LOSS,
                             "expert %" PRIu64 " of layer %" PRIu64
                             " lacks a matrix or has one twice, expected each of gate, up and down",
                             first->number, first->layer);
    }
    return SKEP_OK;
}

void moe_index_fini(struct moe_index *index)
{
    json_decref(index->root);
    mem_free((void *)index->files);
    mem_free(index->matrices);
    *index = (struct moe_index){0};
}
