/* See moe_index.h. */
#include "experts/moe_index.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"

enum {
    INDEX_LIMIT_BYTES = 64 << 20, /* the largest published ones have 10 MiB */
    MAX_FILES = 4096,             /* looked through one by one */
    ROLES = 3,                    /* gate, up and down */
};

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
        return error_no_memory(err, "list of tensors", more * size);
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
    struct moe_tensor added = {.name = tensor};
    skep_status rc = find_file(index, file, &added.file, err);

    if (rc == SKEP_OK)
        rc = grow((void **)&index->tensors, &index->tensor_cap, index->tensor_count,
                  sizeof(*index->tensors), err);
    if (rc == SKEP_OK)
        index->tensors[index->tensor_count++] = added;
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

/* --- stacks -------------------------------------------------------------------------------- */

enum { MAX_STACKS = 8 };

struct stacks {
    struct {
        const char *name;
        size_t len;
    } at[MAX_STACKS];
    size_t count;
};

static bool is_stack(const char *name, size_t len, const char *stack, size_t stack_len)
{
    return len == stack_len && memcmp(name, stack, len) == 0;
}

/* Those that have experts. More than there is room for are as good as many. */
static struct stacks list_stacks(const struct moe_index *index)
{
    struct stacks stacks = {0};

    for (size_t i = 0; i < index->tensor_count; i++) {
        const char *name = index->tensors[i].name;
        struct moe_name read = moe_name_read(name);
        size_t k = 0;

        if ((read.kind != MOE_MATRIX && read.kind != MOE_STRANGER) || !read.has_layer)
            continue;
        while (k < stacks.count &&
               !is_stack(name, read.stack_len, stacks.at[k].name, stacks.at[k].len))
            k++;
        if (k == stacks.count && k < MAX_STACKS) {
            stacks.at[k].name = name;
            stacks.at[k].len = read.stack_len;
            stacks.count++;
        }
    }
    return stacks;
}

static void name_stacks(const struct stacks *stacks, size_t but, char *out, size_t cap)
{
    size_t used = 0;

    out[0] = '\0';
    for (size_t i = 0; i < stacks->count && used < cap; i++)
        if (i != but)
            used += (size_t)snprintf(out + used, cap - used, "%s%.*s", used > 0 ? ", " : "",
                                     (int)stacks->at[i].len, stacks->at[i].name);
}

/* Layers that predict further tokens are beside the model proper. */
static bool is_further(const char *name, size_t len)
{
    return memmem(name, len, "mtp", 3) != NULL;
}

static skep_status refuse_stacks(const struct stacks *stacks, const char *wish,
                                 struct skep_error *err)
{
    char names[2 * MOE_STACK_BYTES];

    name_stacks(stacks, SIZE_MAX, names, sizeof(names));
    text_tame(names);
    if (wish != NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "has no experts under %s; those that it has are under %s", wish, names);
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "has experts under each of %s; name the one to import (--stack)", names);
}

static skep_status choose_stack(struct moe_index *index, const struct stacks *stacks,
                                const char *wish, struct skep_error *err)
{
    size_t chosen = SIZE_MAX;

    for (size_t i = 0; i < stacks->count; i++) {
        const char *name = stacks->at[i].name;
        size_t len = stacks->at[i].len;

        if (wish != NULL ? !is_stack(name, len, wish, strlen(wish))
                         : stacks->count > 1 && is_further(name, len))
            continue;
        if (chosen != SIZE_MAX || len >= sizeof(index->stack))
            return refuse_stacks(stacks, wish, err);
        chosen = i;
    }
    if (chosen == SIZE_MAX)
        return refuse_stacks(stacks, wish, err);
    snprintf(index->stack, sizeof(index->stack), "%.*s", (int)stacks->at[chosen].len,
             stacks->at[chosen].name);
    name_stacks(stacks, chosen, index->left_out, sizeof(index->left_out));
    text_tame(index->left_out);
    return SKEP_OK;
}

/* --- checking ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct moe_tensor *)a)->name, ((const struct moe_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct moe_matrix *x = a;
    const struct moe_matrix *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->role != y->role ? (int)x->role - (int)y->role : (int)x->form - (int)y->form;
}

/* What an expert has beside its three matrices, in words. */
static const char *guess_stranger(const char *name)
{
    static const struct {
        const char *part, *text;
    } rows[] = {
        {"bias", "class swiglu has no biases"},
        {"scale", "quantized weights: convert the model to BF16 first"},
        {"blocks", "quantized weights: convert the model to BF16 first"},
        {"qweight", "quantized weights: convert the model to BF16 first"},
        {"qzeros", "quantized weights: convert the model to BF16 first"},
        {"g_idx", "quantized weights: convert the model to BF16 first"},
        {"packed", "quantized weights: convert the model to BF16 first"},
        {"absmax", "quantized weights: convert the model to BF16 first"},
        {"quant", "quantized weights: convert the model to BF16 first"},
        {"lora", "an adapter: merge it into the weights first"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (strstr(name, rows[i].part) != NULL)
            return rows[i].text;
    return "expected gate_proj, up_proj and down_proj, or w1, w3 and w2, each a .weight of an "
           "expert alone or of all in one tensor, or gate_up_proj with down_proj";
}

static bool is_of_stack(const struct moe_index *index, const char *name,
                        const struct moe_name *read)
{
    return is_stack(name, read->stack_len, index->stack, strlen(index->stack));
}

static skep_status keep_matrices(struct moe_index *index, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];

    index->matrices = mem_calloc(index->tensor_count + 1, sizeof(*index->matrices));
    if (index->matrices == NULL)
        return error_no_memory(err, "list of experts", index->tensor_count);
    for (size_t i = 0; i < index->tensor_count; i++) {
        const struct moe_tensor *t = &index->tensors[i];
        struct moe_name read = moe_name_read(t->name);

        if (read.kind == MOE_STRANGER && (!read.has_layer || is_of_stack(index, t->name, &read)))
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "tensor %s: nothing that class swiglu computes with; %s",
                             text_quote(t->name, strlen(t->name), quoted), guess_stranger(t->name));
        if (read.kind == MOE_MATRIX && is_of_stack(index, t->name, &read))
            index->matrices[index->matrix_count++] =
                (struct moe_matrix){.layer = read.layer,
                                    .number = read.form == MOE_SINGLE ? read.number : 0,
                                    .role = read.role,
                                    .form = read.form,
                                    .tensor = t};
    }
    qsort(index->matrices, index->matrix_count, sizeof(*index->matrices), by_place);
    return SKEP_OK;
}

static bool begins_layer(const struct moe_index *index, size_t i)
{
    return i == 0 || index->matrices[i].layer != index->matrices[i - 1].layer;
}

static skep_status check_form(const struct moe_matrix *m, size_t count, struct skep_error *err)
{
    char a[TEXT_QUOTE_BYTES], b[TEXT_QUOTE_BYTES];

    for (size_t i = 1; i < count; i++)
        if (m[i].form != m[0].form)
            return error_set(err, SKEP_DATA_LOSS,
                             "layer %" PRIu64 " keeps its experts in two ways, as %s and as %s",
                             m[0].layer,
                             text_quote(m[0].tensor->name, strlen(m[0].tensor->name), a),
                             text_quote(m[i].tensor->name, strlen(m[i].tensor->name), b));
    return SKEP_OK;
}

/* Whether these are the matrices of one expert, or of all: gate, up and down, or two in one. */
static bool is_whole(const struct moe_matrix *m, size_t count)
{
    if (count == ROLES)
        return m[0].role == MOE_GATE && m[1].role == MOE_UP && m[2].role == MOE_DOWN;
    return count == 2 && m[0].role == MOE_DOWN && m[1].role == MOE_GATE_UP &&
           m[0].form != MOE_SINGLE;
}

/* One layer: `count` matrices from `m` on. */
static skep_status add_layer(struct moe_index *index, size_t first, size_t count,
                             struct skep_error *err)
{
    const struct moe_matrix *m = &index->matrices[first];
    struct moe_layer *layer = &index->layers[index->layer_count];
    skep_status rc = check_form(m, count, err);

    if (rc != SKEP_OK)
        return rc;
    *layer = (struct moe_layer){
        .number = m->layer, .form = m->form, .first = first, .per_expert = count};
    if (m->form != MOE_SINGLE && !is_whole(m, count))
        return error_set(err, SKEP_DATA_LOSS,
                         "the experts of layer %" PRIu64
                         " lack a matrix or have one twice, expected gate, up and down, or gate "
                         "and up in one",
                         m->layer);
    for (size_t i = 0; m->form == MOE_SINGLE && i < count;) {
        size_t own = 1;

        while (i + own < count && m[i + own].number == m[i].number)
            own++;
        if (m[i].number != layer->experts)
            return error_set(err, SKEP_DATA_LOSS,
                             "layer %" PRIu64 " has an expert %" PRIu64 " but no expert %" PRIu64,
                             m->layer, m[i].number, layer->experts);
        if (!is_whole(&m[i], own))
            return error_set(err, SKEP_DATA_LOSS,
                             "expert %" PRIu64 " of layer %" PRIu64
                             " lacks a matrix or has one twice, expected each of gate, up and down",
                             m[i].number, m->layer);
        layer->per_expert = own;
        layer->experts++;
        i += own;
    }
    index->layer_count++;
    return SKEP_OK;
}

static skep_status list_layers(struct moe_index *index, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    index->layers = mem_calloc(index->matrix_count + 1, sizeof(*index->layers));
    if (index->layers == NULL)
        return error_no_memory(err, "list of layers", index->matrix_count);
    for (size_t i = 0; i < index->matrix_count && rc == SKEP_OK;) {
        size_t count = 1;

        while (i + count < index->matrix_count && !begins_layer(index, i + count))
            count++;
        rc = add_layer(index, i, count, err);
        i += count;
    }
    return rc;
}

static int compare_layer(const void *key, const void *layer)
{
    uint64_t a = *(const uint64_t *)key;
    uint64_t b = ((const struct moe_layer *)layer)->number;

    return a < b ? -1 : a > b;
}

/* A router sends to experts: a layer that has it where others have both must have them, too. */
static skep_status check_routers(const struct moe_index *index, struct skep_error *err)
{
    const char *known = index->matrices[0].tensor->name;
    struct moe_name like = moe_name_read(known);
    char quoted[TEXT_QUOTE_BYTES];

    for (size_t i = 0; i < index->tensor_count; i++) {
        const char *name = index->tensors[i].name;
        struct moe_name read = moe_name_read(name);

        if (read.kind != MOE_ROUTER || !is_of_stack(index, name, &read) ||
            read.block_len != like.block_len ||
            memcmp(name + read.block_at, known + like.block_at, like.block_len) != 0)
            continue;
        if (bsearch(&read.layer, index->layers, index->layer_count, sizeof(*index->layers),
                    compare_layer) == NULL)
            return error_set(err, SKEP_DATA_LOSS,
                             "layer %" PRIu64 " has a router, %s, but no experts", read.layer,
                             text_quote(name, strlen(name), quoted));
    }
    return SKEP_OK;
}

/* What is there instead: names that look as if, or else the first. */
static skep_status refuse_none(const struct moe_index *index, struct skep_error *err)
{
    static const char *const likely[] = {"expert", "moe", "ffn", "mlp", "feed_forward", ""};
    char quoted[TEXT_QUOTE_BYTES];
    const char *found = NULL;

    for (size_t k = 0; k < sizeof(likely) / sizeof(likely[0]) && found == NULL; k++)
        for (size_t i = 0; i < index->tensor_count && found == NULL; i++)
            if (strstr(index->tensors[i].name, likely[k]) != NULL &&
                strstr(index->tensors[i].name, "shared") == NULL)
                found = index->tensors[i].name;
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "has no experts: none of its %zu tensors is named "
                     "<stack>.<layer>.<block>.experts.<expert>.gate_proj.weight, or as another "
                     "known layout has it; one of them is %s",
                     index->tensor_count,
                     found != NULL ? text_quote(found, strlen(found), quoted) : "none");
}

skep_status moe_index_check(struct moe_index *index, const char *stack, struct skep_error *err)
{
    if (index->tensor_count > 1)
        qsort(index->tensors, index->tensor_count, sizeof(*index->tensors), by_name);
    struct stacks stacks = list_stacks(index);
    skep_status rc = stacks.count > 0 ? choose_stack(index, &stacks, stack, err) : SKEP_OK;
    if (rc == SKEP_OK)
        rc = keep_matrices(index, err);
    if (rc == SKEP_OK && index->matrix_count == 0)
        rc = refuse_none(index, err);
    if (rc == SKEP_OK)
        rc = list_layers(index, err);
    if (rc == SKEP_OK)
        rc = check_routers(index, err);
    return rc;
}

bool moe_index_has(const struct moe_index *index, const char *tensor)
{
    const struct moe_tensor key = {.name = tensor};

    return bsearch(&key, index->tensors, index->tensor_count, sizeof(key), by_name) != NULL;
}

bool moe_index_has_layer(const struct moe_index *index, uint64_t layer)
{
    uint64_t found;

    for (size_t i = 0; i < index->tensor_count; i++)
        if (moe_name_layer(index->tensors[i].name, index->stack, strlen(index->stack), &found) &&
            found == layer)
            return true;
    return false;
}

void moe_index_fini(struct moe_index *index)
{
    json_decref(index->root);
    mem_free((void *)index->files);
    mem_free(index->tensors);
    mem_free(index->matrices);
    mem_free(index->layers);
    *index = (struct moe_index){0};
}
