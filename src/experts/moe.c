/* See moe.h. */
#include "experts/moe.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/weights.h"

enum {
    INDEX_LIMIT_BYTES = 64 << 20, /* the largest published ones have 10 MiB */
    MAX_PLACE = 1000000,          /* layers, and experts of a layer */
    MATRICES = 3,
};

static const char *const parameter_names[MATRICES] = {"gate_proj.weight", "up_proj.weight",
                                                      "down_proj.weight"};

/* One file of the model, opened when it is first needed. */
struct shard {
    const char *name; /* view of the index */
    struct skep_safetensors *file;
};

struct matrix {
    uint64_t layer, number;
    int role;         /* in parameter_names */
    const char *name; /* view of the index, or of the only file */
    size_t shard;
};

struct moe {
    char *dir;            /* owned */
    json_t *index;        /* owned; NULL: one file */
    struct shard *shards; /* owned; sorted by name while they are made */
    size_t shard_count, shard_cap;
    struct matrix *matrices; /* owned; sorted: three for each expert */
    size_t count, cap;
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
static bool read_name(const char *name, struct matrix *out)
{
    static const struct {
        const char *block;
        const char *roles[MATRICES];
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
        for (int r = 0; r < MATRICES; r++)
            if (strcmp(p, layouts[i].roles[r]) == 0) {
                out->role = r;
                out->name = name;
                return true;
            }
    }
    return false;
}

static int by_place(const void *a, const void *b)
{
    const struct matrix *x = a;
    const struct matrix *y = b;

    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->role - y->role;
}

/* --- listing ------------------------------------------------------------------------------- */

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

static skep_status add_matrix(struct moe *moe, const char *name, size_t shard,
                              struct skep_error *err)
{
    struct matrix matrix = {.shard = shard};
    skep_status rc;

    if (!read_name(name, &matrix))
        return SKEP_OK;
    rc = grow((void **)&moe->matrices, &moe->cap, moe->count, sizeof(*moe->matrices), err);
    if (rc == SKEP_OK)
        moe->matrices[moe->count++] = matrix;
    return rc;
}

/* The number of a file, made if it is new. Few files, and runs of equal names: the last one first.
 */
static skep_status find_shard(struct moe *moe, const char *name, size_t *out,
                              struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    skep_status rc;

    for (size_t i = moe->shard_count; i-- > 0;)
        if (strcmp(moe->shards[i].name, name) == 0) {
            *out = i;
            return SKEP_OK;
        }
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL)
        return error_set(err, SKEP_DATA_LOSS, "index: %s is no name of a file beside it",
                         text_quote(name, strlen(name), quoted));
    rc = grow((void **)&moe->shards, &moe->shard_cap, moe->shard_count, sizeof(*moe->shards), err);
    if (rc == SKEP_OK) {
        *out = moe->shard_count;
        moe->shards[moe->shard_count++] = (struct shard){.name = name};
    }
    return rc;
}

static char *path_of(const struct moe *moe, const char *name)
{
    size_t size = strlen(moe->dir) + strlen(name) + 2;
    char *path = mem_alloc(size);

    if (path != NULL)
        snprintf(path, size, "%s/%s", moe->dir, name);
    return path;
}

static skep_status parse_index(struct moe *moe, const struct file_map *map, struct skep_error *err)
{
    json_error_t error;

    if (map->len > INDEX_LIMIT_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "%zu bytes, expected at most %d", map->len,
                         INDEX_LIMIT_BYTES);
    moe->index = map->len > 0
                     ? json_loadb((const char *)map->data, map->len, JSON_REJECT_DUPLICATES, &error)
                     : NULL;
    if (moe->index != NULL)
        return SKEP_OK;
    if (map->len > 0 && json_error_code(&error) == json_error_out_of_memory)
        return error_no_memory(err, "index", map->len);
    return error_set(err, SKEP_DATA_LOSS, "not JSON: %s", map->len > 0 ? error.text : "empty");
}

static skep_status list_index(struct moe *moe, struct skep_error *err)
{
    json_t *weights = json_object_get(moe->index, "weight_map");
    skep_status rc = SKEP_OK;
    const char *name;
    json_t *value;

    if (!json_is_object(weights))
        return error_set(err, SKEP_DATA_LOSS, "index: has no weight_map");
    json_object_foreach(weights, name, value)
    {
        size_t shard = 0;

        if (!json_is_string(value))
            rc = error_set(err, SKEP_DATA_LOSS, "index: a tensor's file is not a string");
        if (rc == SKEP_OK)
            rc = find_shard(moe, json_string_value(value), &shard, err);
        if (rc == SKEP_OK)
            rc = add_matrix(moe, name, shard, err);
        if (rc != SKEP_OK)
            break;
    }
    return rc;
}

static skep_status open_shard(struct moe *moe, size_t shard, struct skep_safetensors **out,
                              struct skep_error *err)
{
    struct shard *s = &moe->shards[shard];
    skep_status rc = SKEP_OK;

    if (s->file == NULL) {
        char *path = path_of(moe, s->name);

        rc = path != NULL ? skep_safetensors_open(path, &s->file, err)
                          : error_no_memory(err, s->name, strlen(moe->dir));
        mem_free(path);
    }
    *out = s->file;
    return rc;
}

static skep_status list_one_file(struct moe *moe, struct skep_error *err)
{
    struct skep_safetensors *file;
    size_t shard;
    skep_status rc = find_shard(moe, "model.safetensors", &shard, err);

    if (rc == SKEP_OK)
        rc = open_shard(moe, shard, &file, err);
    if (rc != SKEP_OK)
        return rc;
    for (size_t i = 0; i < skep_safetensors_count(file) && rc == SKEP_OK; i++)
        rc = add_matrix(moe, skep_safetensors_name(file, i), shard, err);
    return rc;
}

static skep_status list_matrices(struct moe *moe, struct skep_error *err)
{
    char *path = path_of(moe, "model.safetensors.index.json");
    struct file_map map = {0};
    skep_status rc;

    if (path == NULL)
        return error_no_memory(err, moe->dir, strlen(moe->dir));
    rc = file_map(&map, path, err);
    if (rc == SKEP_OK) {
        rc = parse_index(moe, &map, err);
        if (rc == SKEP_OK)
            rc = list_index(moe, err);
        if (rc != SKEP_OK)
            error_prefix(err, "%s", path);
    } else if (rc == SKEP_NOT_FOUND) {
        rc = list_one_file(moe, err);
    }
    file_unmap(&map);
    mem_free(path);
    return rc;
}

/* Each expert has each of its matrices once. */
static skep_status check_matrices(const struct moe *moe, struct skep_error *err)
{
    if (moe->count == 0)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "%s: has no experts: no tensor is named "
                         "model.layers.L.mlp.experts.E.gate_proj.weight or "
                         "model.layers.L.block_sparse_moe.experts.E.w1.weight",
                         moe->dir);
    for (size_t i = 0; i < moe->count; i++) {
        const struct matrix *m = &moe->matrices[i];
        const struct matrix *first = &moe->matrices[i - i % MATRICES];

        if (m->role != (int)(i % MATRICES) || m->layer != first->layer ||
            m->number != first->number || (i + 1 == moe->count && i % MATRICES != MATRICES - 1))
            return error_set(err, SKEP_DATA_LOSS,
                             "%s: expert %" PRIu64 " of layer %" PRIu64
                             " lacks a matrix or has one twice, expected each of gate, up and down",
                             moe->dir, first->number, first->layer);
    }
    return SKEP_OK;
}

skep_status moe_open(const char *dir, struct moe **out, struct skep_error *err)
{
    struct moe *moe = mem_calloc(1, sizeof(*moe));
    skep_status rc;

    *out = NULL;
    if (moe == NULL)
        return error_no_memory(err, dir, sizeof(*moe));
    moe->dir = mem_strdup(dir);
    rc = moe->dir != NULL ? list_matrices(moe, err) : error_no_memory(err, dir, strlen(dir));
    if (rc == SKEP_OK && moe->count > 1)
        qsort(moe->matrices, moe->count, sizeof(*moe->matrices), by_place);
    if (rc == SKEP_OK)
        rc = check_matrices(moe, err);
    if (rc != SKEP_OK) {
        moe_close(moe);
        return rc;
    }
    *out = moe;
    return SKEP_OK;
}

void moe_close(struct moe *moe)
{
    if (moe == NULL)
        return;
    for (size_t i = 0; i < moe->shard_count; i++)
        skep_safetensors_close(moe->shards[i].file);
    mem_free(moe->shards);
    mem_free(moe->matrices);
    json_decref(moe->index);
    mem_free(moe->dir);
    mem_free(moe);
}

size_t moe_count(const struct moe *moe)
{
    return moe->count / MATRICES;
}

void moe_place(const struct moe *moe, size_t i, uint64_t *layer, uint64_t *number)
{
    *layer = moe->matrices[i * MATRICES].layer;
    *number = moe->matrices[i * MATRICES].number;
}

/* --- loading ------------------------------------------------------------------------------- */

static skep_status find_tensors(struct moe *moe, const struct matrix *m, const DLTensor **tensors,
                                struct skep_error *err)
{
    for (int r = 0; r < MATRICES; r++) {
        struct skep_safetensors *file;
        skep_status rc = open_shard(moe, m[r].shard, &file, err);

        if (rc != SKEP_OK)
            return rc;
        tensors[r] = skep_safetensors_find(file, m[r].name);
        if (tensors[r] == NULL)
            return error_set(err, SKEP_DATA_LOSS, "%s/%s: has no tensor %s, which the index names",
                             moe->dir, moe->shards[m[r].shard].name, m[r].name);
        if (tensors[r]->ndim != 2)
            return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %d dimensions, expected 2", m[r].name,
                             tensors[r]->ndim);
    }
    return SKEP_OK;
}

skep_status moe_load(struct moe *moe, size_t i, struct expert **out, struct skep_error *err)
{
    const struct matrix *m = &moe->matrices[i * MATRICES];
    const DLTensor *tensors[MATRICES];
    struct skep_expert_options options;
    struct expert *expert = NULL;
    skep_status rc = find_tensors(moe, m, tensors, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    skep_expert_options_init(&options);
    options.cls = "swiglu";
    options.optimizer = "none";
    options.hidden_dim = tensors[0]->shape[1];
    options.intermediate_dim = tensors[0]->shape[0];
    rc = expert_new(&options, &expert, err);
    for (int r = 0; r < MATRICES && rc == SKEP_OK; r++) {
        rc = weights_set(expert, parameter_names[r], tensors[r], err);
        safetensors_release(moe->shards[m[r].shard].file, m[r].name);
    }
    if (rc != SKEP_OK) {
        error_prefix(err, "expert %" PRIu64 " of layer %" PRIu64, m->number, m->layer);
        expert_free(expert);
        return rc;
    }
    *out = expert;
    return SKEP_OK;
}
