/* See moe.h. */
#include "experts/moe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"
#include "base/tensor.h"
#include "experts/moe_config.h"
#include "experts/moe_index.h"
#include "experts/weights.h"

static const char *const parameter_names[MOE_MATRICES] = {"gate_proj.weight", "up_proj.weight",
                                                          "down_proj.weight"};

struct moe {
    char *dir;                      /* owned */
    struct moe_index index;         /* names are views of it, or of the only file */
    struct skep_safetensors **open; /* owned, each and the list: a file of the index that was
                                       needed */
};

/* --- opening ------------------------------------------------------------------------------- */

static char *path_of(const struct moe *moe, const char *name)
{
    size_t size = strlen(moe->dir) + strlen(name) + 2;
    char *path = mem_alloc(size);

    if (path != NULL)
        snprintf(path, size, "%s/%s", moe->dir, name);
    return path;
}

static skep_status open_file(const struct moe *moe, const char *name, struct skep_safetensors **out,
                             struct skep_error *err)
{
    char *path = path_of(moe, name);
    skep_status rc;

    if (path == NULL)
        return error_no_memory(err, name, strlen(moe->dir));
    rc = skep_safetensors_open(path, out, err);
    mem_free(path);
    return rc;
}

/* A model of one file has no index: the file's own list will do. */
static skep_status list_one_file(struct moe *moe, struct skep_error *err)
{
    static const char name[] = "model.safetensors";
    skep_status rc;

    moe->open = mem_calloc(1, sizeof(struct skep_safetensors *));
    if (moe->open == NULL)
        return error_no_memory(err, name, sizeof(*moe->open));
    rc = open_file(moe, name, &moe->open[0], err);
    for (size_t i = 0; rc == SKEP_OK && i < skep_safetensors_count(moe->open[0]); i++)
        rc = moe_index_add(&moe->index, skep_safetensors_name(moe->open[0], i), name, err);
    return rc;
}

static skep_status list_index(struct moe *moe, const char *path, struct skep_error *err)
{
    struct file_map map;
    skep_status rc = file_map(&map, path, err);

    if (rc != SKEP_OK)
        return rc;
    rc = moe_index_parse(&moe->index, map.data, map.len, err);
    file_unmap(&map);
    if (rc != SKEP_OK) {
        error_prefix(err, "%s", path);
        return rc;
    }
    moe->open = mem_calloc(moe->index.file_count + 1, sizeof(struct skep_safetensors *));
    return moe->open != NULL ? SKEP_OK : error_no_memory(err, path, moe->index.file_count);
}

static skep_status list_matrices(struct moe *moe, struct skep_error *err)
{
    char *path = path_of(moe, "model.safetensors.index.json");
    skep_status rc;

    if (path == NULL)
        return error_no_memory(err, moe->dir, strlen(moe->dir));
    rc = list_index(moe, path, err);
    mem_free(path);
    if (rc == SKEP_NOT_FOUND)
        rc = list_one_file(moe, err);
    if (rc != SKEP_OK)
        return rc;
    rc = moe_index_check(&moe->index, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", moe->dir);
    return rc;
}

/* Weights say nothing of what is computed with them; a model without config.json is trusted. */
static skep_status check_config(const struct moe *moe, struct skep_error *err)
{
    char *path = path_of(moe, "config.json");
    struct file_map map = {0};
    skep_status rc;

    if (path == NULL)
        return error_no_memory(err, moe->dir, strlen(moe->dir));
    rc = file_map(&map, path, err);
    if (rc == SKEP_NOT_FOUND) {
        rc = SKEP_OK;
    } else if (rc == SKEP_OK) {
        rc = moe_config_check(map.data, map.len, err);
        if (rc != SKEP_OK)
            error_prefix(err, "%s", path);
        file_unmap(&map);
    }
    mem_free(path);
    return rc;
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
    if (rc == SKEP_OK)
        rc = check_config(moe, err);
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
    size_t files = moe->index.file_count > 0 ? moe->index.file_count : 1;
    for (size_t i = 0; moe->open != NULL && i < files; i++)
        skep_safetensors_close(moe->open[i]);
    mem_free((void *)moe->open);
    moe_index_fini(&moe->index);
    mem_free(moe->dir);
    mem_free(moe);
}

size_t moe_count(const struct moe *moe)
{
    return moe->index.count / MOE_MATRICES;
}

void moe_place(const struct moe *moe, size_t i, uint64_t *layer, uint64_t *number)
{
    *layer = moe->index.matrices[i * MOE_MATRICES].layer;
    *number = moe->index.matrices[i * MOE_MATRICES].number;
}

/* --- loading ------------------------------------------------------------------------------- */

static skep_status find_tensor(struct moe *moe, const struct moe_matrix *m, const DLTensor **out,
                               struct skep_error *err)
{
    const char *file = moe->index.files[m->file];

    if (moe->open[m->file] == NULL) {
        skep_status rc = open_file(moe, file, &moe->open[m->file], err);

        if (rc != SKEP_OK)
            return rc;
    }
    *out = skep_safetensors_find(moe->open[m->file], m->name);
    if (*out == NULL)
        return error_set(err, SKEP_DATA_LOSS, "%s/%s: has no tensor %s, which the index names",
                         moe->dir, file, m->name);
    if ((*out)->ndim != 2)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %d dimensions, expected 2", m->name,
                         (*out)->ndim);
    return SKEP_OK;
}

skep_status moe_load(struct moe *moe, size_t i, struct expert **out, struct skep_error *err)
{
    const struct moe_matrix *m = &moe->index.matrices[i * MOE_MATRICES];
    const DLTensor *tensors[MOE_MATRICES];
    struct skep_expert_options options;
    struct expert *expert = NULL;
    skep_status rc = SKEP_OK;

    *out = NULL;
    for (int r = 0; r < MOE_MATRICES && rc == SKEP_OK; r++)
        rc = find_tensor(moe, &m[r], &tensors[r], err);
    if (rc != SKEP_OK)
        return rc;
    skep_expert_options_init(&options);
    options.cls = "swiglu";
    options.optimizer = "none";
    options.hidden_dim = tensors[0]->shape[1];
    options.intermediate_dim = tensors[0]->shape[0];
    rc = expert_new(&options, &expert, err);
    for (int r = 0; r < MOE_MATRICES && rc == SKEP_OK; r++) {
        rc = weights_set(expert, parameter_names[r], tensors[r], err);
        safetensors_release(moe->open[m[r].file], m[r].name);
    }
    if (rc != SKEP_OK) {
        error_prefix(err, "expert %" PRIu64 " of layer %" PRIu64, m->number, m->layer);
        expert_free(expert);
        return rc;
    }
    *out = expert;
    return SKEP_OK;
}
