/* See moe.h. */
#include "experts/moe.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/moe_config.h"
#include "experts/moe_index.h"
#include "experts/moe_slice.h"
#include "experts/weights.h"

enum { ROLES = 3, ALL_ROLES = 4, MAX_EXPERTS = 1 << 24 };

static const char *const parameter_names[ROLES] = {"gate_proj.weight", "up_proj.weight",
                                                   "down_proj.weight"};

struct moe {
    char *dir;                      /* owned */
    char only[TEXT_QUOTE_BYTES];    /* the only file of a model without an index */
    struct moe_index index;         /* names are views of it, or of the only file */
    struct moe_config config;       /* zeroed if there is none */
    char config_name[32];           /* of the file that it is from; empty: none */
    struct skep_safetensors **open; /* owned, each and the list: a file of the index that was
                                       needed */
    bool *judged;                   /* owned; of each of these: it names no other experts */
    uint64_t *ends;                 /* owned; experts in a layer and in those before it */
};

/* --- files --------------------------------------------------------------------------------- */

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

static bool ends_in(const char *name, const char *end)
{
    size_t a = strlen(name), b = strlen(end);

    return a >= b && strcmp(name + a - b, end) == 0;
}

/* What a folder has in place of the usual files. */
struct found {
    char index[TEXT_QUOTE_BYTES], file[TEXT_QUOTE_BYTES]; /* the last of each kind */
    size_t indices, files;
    char others[4 * TEXT_QUOTE_BYTES]; /* the first names that look like weights */
};

static void note_name(struct found *found, const char *name)
{
    static const char *const weights[] = {".safetensors", ".json", ".bin",    ".pt",
                                          ".pth",         ".gguf", ".msgpack"};
    size_t used = strlen(found->others);
    char quoted[TEXT_QUOTE_BYTES];

    if (strlen(name) < sizeof(found->file) && ends_in(name, ".safetensors.index.json")) {
        found->indices++;
        memcpy(found->index, name, strlen(name) + 1);
    } else if (strlen(name) < sizeof(found->file) && ends_in(name, ".safetensors")) {
        found->files++;
        memcpy(found->file, name, strlen(name) + 1);
    }
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); i++)
        if (ends_in(name, weights[i]) && used + sizeof(quoted) < sizeof(found->others)) {
            snprintf(found->others + used, sizeof(found->others) - used, "%s%s",
                     used > 0 ? ", " : "", text_quote(name, strlen(name), quoted));
            break;
        }
}

static struct found look_into(const char *dir)
{
    struct found found = {0};
    DIR *folder = opendir(dir);

    for (struct dirent *e = folder != NULL ? readdir(folder) : NULL; e != NULL; e = readdir(folder))
        if (e->d_name[0] != '.')
            note_name(&found, e->d_name);
    if (folder != NULL)
        closedir(folder);
    return found;
}

/* --- listing ------------------------------------------------------------------------------- */

/* A model of one file has no index: the file's own list will do. */
static skep_status list_one_file(struct moe *moe, struct skep_error *err)
{
    skep_status rc;

    moe->open = mem_calloc(1, sizeof(struct skep_safetensors *));
    if (moe->open == NULL)
        return error_no_memory(err, moe->only, sizeof(*moe->open));
    rc = open_file(moe, moe->only, &moe->open[0], err);
    for (size_t i = 0; rc == SKEP_OK && i < skep_safetensors_count(moe->open[0]); i++)
        rc = moe_index_add(&moe->index, skep_safetensors_name(moe->open[0], i), moe->only, err);
    return rc;
}

static skep_status list_index(struct moe *moe, const char *name, struct skep_error *err)
{
    struct file_map map;
    char *path = path_of(moe, name);
    skep_status rc =
        path != NULL ? file_map(&map, path, err) : error_no_memory(err, moe->dir, strlen(moe->dir));

    if (rc == SKEP_OK) {
        rc = moe_index_parse(&moe->index, map.data, map.len, err);
        file_unmap(&map);
        if (rc != SKEP_OK)
            error_prefix(err, "%s", path);
    }
    mem_free(path);
    if (rc != SKEP_OK)
        return rc;
    moe->open = mem_calloc(moe->index.file_count + 1, sizeof(struct skep_safetensors *));
    return moe->open != NULL ? SKEP_OK : error_no_memory(err, name, moe->index.file_count);
}

/* An index under its usual name; a file under it; else the only one of either kind. */
static skep_status list_tensors(struct moe *moe, struct skep_error *err)
{
    static const char usual[] = "model.safetensors";
    skep_status rc = list_index(moe, "model.safetensors.index.json", err);

    if (rc != SKEP_NOT_FOUND)
        return rc;
    struct found found = look_into(moe->dir);
    if (found.indices == 1)
        return list_index(moe, found.index, err);
    snprintf(moe->only, sizeof(moe->only), "%s", found.files == 1 ? found.file : usual);
    rc = list_one_file(moe, err);
    if (rc == SKEP_NOT_FOUND && found.others[0] != '\0')
        rc =
            error_set(err, rc,
                      "%s: has neither model.safetensors.index.json nor model.safetensors, nor one "
                      "other file of either kind; it has %s",
                      moe->dir, found.others);
    return rc;
}

/* Weights say nothing of what is computed with them; a model without a config is trusted. */
static skep_status read_config(struct moe *moe, const char *name, struct skep_error *err)
{
    char *path = path_of(moe, name);
    struct file_map map = {0};
    skep_status rc;

    if (path == NULL)
        return error_no_memory(err, moe->dir, strlen(moe->dir));
    rc = file_map(&map, path, err);
    if (rc == SKEP_OK) {
        rc = moe_config_parse(&moe->config, map.data, map.len, moe->index.stack, err);
        if (rc != SKEP_OK)
            error_prefix(err, "%s", path);
        file_unmap(&map);
        snprintf(moe->config_name, sizeof(moe->config_name), "%s", name);
    }
    mem_free(path);
    return rc;
}

/* config.json, or what Mistral's own files have. */
static skep_status find_config(struct moe *moe, struct skep_error *err)
{
    skep_status rc = read_config(moe, "config.json", err);

    if (rc == SKEP_NOT_FOUND)
        rc = read_config(moe, "params.json", err);
    return rc == SKEP_NOT_FOUND ? SKEP_OK : rc;
}

/* Every layer that the config has must be there, with experts or without. */
static skep_status check_layers(const struct moe *moe, struct skep_error *err)
{
    for (uint64_t i = 0; i < moe->config.layers; i++)
        if (!moe_index_has_layer(&moe->index, i))
            return error_set(err, SKEP_DATA_LOSS,
                             "%s: has no tensor of layer %" PRIu64 ", but %s has %" PRIu64
                             " layers",
                             moe->dir, i, moe->config_name, moe->config.layers);
    return SKEP_OK;
}

/* --- tensors ------------------------------------------------------------------------------- */

/* A tensor of experts that the index does not name, in a file that it does. */
static skep_status judge_file(struct moe *moe, size_t file, struct skep_error *err)
{
    const struct skep_safetensors *open = moe->open[file];
    char quoted[TEXT_QUOTE_BYTES];

    if (moe->judged[file])
        return SKEP_OK;
    for (size_t i = 0; i < skep_safetensors_count(open); i++) {
        const char *name = skep_safetensors_name(open, i);
        enum moe_kind kind = moe_name_read(name).kind;

        if ((kind == MOE_MATRIX || kind == MOE_STRANGER) && !moe_index_has(&moe->index, name))
            return error_set(err, SKEP_DATA_LOSS,
                             "%s/%s: holds %s, a tensor of experts that the index does not name",
                             moe->dir, moe->index.files[file],
                             text_quote(name, strlen(name), quoted));
    }
    moe->judged[file] = true;
    return SKEP_OK;
}

static skep_status find_tensor(struct moe *moe, const struct moe_tensor *tensor,
                               const DLTensor **out, struct skep_error *err)
{
    const char *file = moe->index.files[tensor->file];
    skep_status rc = SKEP_OK;
    char text[96];

    if (moe->open[tensor->file] == NULL)
        rc = open_file(moe, file, &moe->open[tensor->file], err);
    if (rc == SKEP_OK)
        rc = judge_file(moe, tensor->file, err);
    if (rc != SKEP_OK)
        return rc;
    rc = safetensors_get(moe->open[tensor->file], tensor->name, out, err);
    if (rc == SKEP_NOT_FOUND)
        return error_set(err, SKEP_DATA_LOSS, "%s/%s: has no tensor %s, which the index names",
                         moe->dir, file, tensor->name);
    if (rc == SKEP_OK && !weights_can_convert((*out)->dtype))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s, expected F32, F16, BF16 or F64",
                       tensor->name, tensor_describe(*out, text, sizeof(text)));
    if (rc != SKEP_OK)
        error_prefix(err, "%s/%s", moe->dir, file);
    return rc;
}

/* --- experts ------------------------------------------------------------------------------- */

/* How many experts a layer has in its one tensor each: the tensor tells, or, where they lie one
 * above the other or its file is not here, the config. */
static skep_status count_experts(struct moe *moe, struct moe_layer *layer, struct skep_error *err)
{
    const struct moe_tensor *tensor = moe->index.matrices[layer->first].tensor;
    uint64_t said = moe_config_experts(&moe->config, layer->number);
    struct skep_error why = {0};
    const DLTensor *t;

    if (layer->form == MOE_ROWS) {
        if (said == 0)
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "%s: %s holds all experts of layer %" PRIu64
                             ", and no config.json says how many there are",
                             moe->dir, tensor->name, layer->number);
        layer->experts = said;
        return SKEP_OK;
    }
    skep_status rc = find_tensor(moe, tensor, &t, &why);
    if (rc == SKEP_NOT_FOUND && said > 0) { /* a layer that perhaps nobody wants */
        layer->experts = said;
        return SKEP_OK;
    }
    if (rc != SKEP_OK)
        return error_set(err, rc, "%s", why.message);
    if (t->ndim != 3 || t->shape[0] < 1 || t->shape[0] > MAX_EXPERTS) {
        char text[96];
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: %s is %s, expected three dimensions, the first that of experts",
                         moe->dir, tensor->name, tensor_describe(t, text, sizeof(text)));
    }
    layer->experts = (uint64_t)t->shape[0];
    return SKEP_OK;
}

static skep_status count_layers(struct moe *moe, struct skep_error *err)
{
    uint64_t total = 0;
    skep_status rc = SKEP_OK;

    moe->ends = mem_calloc(moe->index.layer_count, sizeof(*moe->ends));
    moe->judged = mem_calloc(moe->index.file_count, sizeof(*moe->judged));
    if (moe->ends == NULL || moe->judged == NULL)
        return error_no_memory(err, moe->dir, moe->index.layer_count * sizeof(*moe->ends));
    for (size_t i = 0; i < moe->index.layer_count && rc == SKEP_OK; i++) {
        struct moe_layer *layer = &moe->index.layers[i];

        if (layer->experts == 0)
            rc = count_experts(moe, layer, err);
        if (rc == SKEP_OK) {
            rc = moe_config_check_count(&moe->config, layer->number, layer->experts, err);
            if (rc != SKEP_OK)
                error_prefix(err, "%s/%s", moe->dir, moe->config_name);
        }
        total += layer->experts;
        moe->ends[i] = total;
    }
    return rc;
}

static skep_status fill(struct moe *moe, const char *stack, struct skep_error *err)
{
    skep_status rc = list_tensors(moe, err);

    if (rc != SKEP_OK)
        return rc;
    rc = moe_index_check(&moe->index, stack, err);
    if (rc != SKEP_OK) {
        error_prefix(err, "%s", moe->dir);
        return rc;
    }
    rc = find_config(moe, err);
    if (rc == SKEP_OK)
        rc = check_layers(moe, err);
    return rc == SKEP_OK ? count_layers(moe, err) : rc;
}

skep_status moe_open(const char *dir, const char *stack, struct moe **out, struct skep_error *err)
{
    struct moe *moe = mem_calloc(1, sizeof(*moe));
    skep_status rc;

    *out = NULL;
    if (moe == NULL)
        return error_no_memory(err, dir, sizeof(*moe));
    moe->dir = mem_strdup(dir);
    rc = moe->dir != NULL ? fill(moe, stack, err) : error_no_memory(err, dir, strlen(dir));
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
    mem_free(moe->judged);
    mem_free(moe->ends);
    moe_index_fini(&moe->index);
    mem_free(moe->dir);
    mem_free(moe);
}

size_t moe_count(const struct moe *moe)
{
    return (size_t)moe->ends[moe->index.layer_count - 1];
}

/* The layer of expert i, and its number there. */
static const struct moe_layer *layer_of(const struct moe *moe, size_t i, uint64_t *number)
{
    size_t low = 0, high = moe->index.layer_count - 1; /* the first whose end is beyond i */

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (moe->ends[middle] > i)
            high = middle;
        else
            low = middle + 1;
    }
    *number = i - (low > 0 ? moe->ends[low - 1] : 0);
    return &moe->index.layers[low];
}

void moe_place(const struct moe *moe, size_t i, uint64_t *layer, uint64_t *number)
{
    *layer = layer_of(moe, i, number)->number;
}

const char *moe_left_out(const struct moe *moe)
{
    return moe->index.left_out;
}

/* --- loading ------------------------------------------------------------------------------- */

/* Finds the three matrices of an expert. */
static skep_status find_slices(struct moe *moe, size_t i, struct moe_slices *out,
                               struct skep_error *err)
{
    uint64_t number;
    const struct moe_layer *layer = layer_of(moe, i, &number);
    size_t own = layer->form == MOE_SINGLE ? (size_t)number * layer->per_expert : 0;
    const DLTensor *tensors[ALL_ROLES] = {0};
    skep_status rc = moe_config_check_layer(&moe->config, layer->number, err);

    if (rc != SKEP_OK) {
        error_prefix(err, "%s/%s", moe->dir, moe->config_name);
        return rc;
    }
    for (size_t k = 0; k < layer->per_expert && rc == SKEP_OK; k++) {
        const struct moe_matrix *m = &moe->index.matrices[layer->first + own + k];
        rc = find_tensor(moe, m->tensor, &tensors[m->role], err);
    }
    if (rc != SKEP_OK)
        return rc;
    rc = moe_slice(layer, tensors, layer->experts, number, moe->config.hidden_size, out, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s: expert %" PRIu64 " of layer %" PRIu64, moe->dir, number,
                     layer->number);
    return rc;
}

static void expert_options(const struct moe_slices *slices, struct skep_expert_options *out)
{
    skep_expert_options_init(out);
    out->cls = "swiglu";
    out->optimizer = "none";
    out->hidden_dim = slices->hidden;
    out->intermediate_dim = slices->wide;
}

skep_status moe_check(struct moe *moe, size_t i, struct skep_error *err)
{
    struct skep_expert_options options;
    struct expert_description description;
    struct moe_slices slices;
    uint64_t layer, number;
    skep_status rc = find_slices(moe, i, &slices, err);

    if (rc != SKEP_OK)
        return rc;
    expert_options(&slices, &options);
    rc = expert_describe(&options, &description, err);
    moe_place(moe, i, &layer, &number);
    if (rc != SKEP_OK)
        error_prefix(err, "%s: expert %" PRIu64 " of layer %" PRIu64, moe->dir, number, layer);
    return rc;
}

/* Takes the pages of an expert's tensors out of memory. */
static void release(const struct moe *moe, size_t i)
{
    uint64_t number;
    const struct moe_layer *layer = layer_of(moe, i, &number);
    size_t own = layer->form == MOE_SINGLE ? (size_t)number * layer->per_expert : 0;

    for (size_t k = 0; k < layer->per_expert; k++) {
        const struct moe_tensor *t = moe->index.matrices[layer->first + own + k].tensor;
        safetensors_release(moe->open[t->file], t->name);
    }
}

skep_status moe_load(struct moe *moe, size_t i, struct expert **out, struct skep_error *err)
{
    struct skep_expert_options options;
    struct expert *expert = NULL;
    struct moe_slices slices;
    uint64_t layer, number;
    skep_status rc = find_slices(moe, i, &slices, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    expert_options(&slices, &options);
    rc = expert_new(&options, &expert, err);
    for (int r = 0; r < ROLES && rc == SKEP_OK; r++)
        rc = moe_slice_set(&slices.role[r], expert, parameter_names[r], err);
    release(moe, i);
    if (rc != SKEP_OK) {
        moe_place(moe, i, &layer, &number);
        error_prefix(err, "expert %" PRIu64 " of layer %" PRIu64, number, layer);
        expert_free(expert);
        return rc;
    }
    *out = expert;
    return SKEP_OK;
}
