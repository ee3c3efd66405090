/* One walk over the tensors that a model has serves both checking and reading. */
#include "model/checkpoint/lm_folder.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <skep/tensor.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/safetensors.h"
#include "base/text.h"

enum { MAX_SHARDS = 4096, PATH_BYTES = 4096, NAME_BYTES = 160 };

struct shard {
    char *name; /* owned */
    struct skep_safetensors *file;
};

struct lm_folder {
    char *path; /* owned */
    struct lm_config config;
    struct shard *shards; /* owned */
    size_t shard_count;
};

/* A walk: checks only, or reads too. */
struct walk {
    const struct lm_folder *folder;
    bool read;
    char (*seen)[NAME_BYTES]; /* names of those; NULL: not collected */
    size_t found;             /* tensors that are there and expected */
    skep_status rc;
    struct skep_error *err;
};

/* ---- one tensor ---- */

static const DLTensor *find(const struct lm_folder *f, const char *name,
                            const struct shard **holder)
{
    for (size_t i = 0; i < f->shard_count; i++) {
        const DLTensor *t = skep_safetensors_find(f->shards[i].file, name);
        if (t != NULL) {
            *holder = &f->shards[i];
            return t;
        }
    }
    return NULL;
}

static bool is_float(const DLTensor *t)
{
    return (t->dtype.code == kDLFloat && (t->dtype.bits == 32 || t->dtype.bits == 16)) ||
           (t->dtype.code == kDLBfloat && t->dtype.bits == 16);
}

static float widen_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    float x = exponent == 0    ? ldexpf((float)mantissa, -24)
              : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                               : ldexpf((float)(mantissa + 1024), exponent - 25);

    return (h & 0x8000) != 0 ? -x : x;
}

static void widen(const DLTensor *t, float *out, size_t n)
{
    const uint8_t *data = skep_tensor_data(t);

    if (t->dtype.bits == 32) {
        memcpy(out, data, n * sizeof(*out));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = load_u16(data + 2 * i);
        uint32_t bits = (uint32_t)half << 16;
        if (t->dtype.code == kDLFloat)
            out[i] = widen_f16(half);
        else
            memcpy(&out[i], &bits, sizeof(bits));
    }
}

static skep_status check_shape(const DLTensor *t, const struct shard *holder, const char *name,
                               size_t rows, size_t cols, struct skep_error *err)
{
    bool matches =
        cols == 0 ? t->ndim == 1 && t->shape[0] == (int64_t)rows
                  : t->ndim == 2 && t->shape[0] == (int64_t)rows && t->shape[1] == (int64_t)cols;
    char seen[64] = "", expected[64];
    size_t n = 0;

    if (!is_float(t))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%s: tensor %s: expected the type F32, BF16 or F16", holder->name, name);
    if (matches)
        return SKEP_OK;
    for (int i = 0; i < t->ndim && n < sizeof(seen); i++)
        n += (size_t)snprintf(seen + n, sizeof(seen) - n, "%s%lld", i > 0 ? ", " : "",
                              (long long)t->shape[i]);
    snprintf(expected, sizeof(expected), cols == 0 ? "%zu" : "%zu, %zu", rows, cols);
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: tensor %s: shape [%s], expected [%s]",
                     holder->name, name, seen, expected);
}

/* @param cols  0: a vector. @param out  where to put it; only used when reading. */
static void visit(struct walk *w, const char *name, size_t rows, size_t cols, bool optional,
                  float **out)
{
    const struct shard *holder = NULL;
    const DLTensor *t;
    size_t n, bytes;

    if (w->rc != SKEP_OK)
        return;
    t = find(w->folder, name, &holder);
    if (t == NULL && !optional)
        w->rc = error_set(w->err, SKEP_INVALID_ARGUMENT, "%s: tensor %s is missing",
                          w->folder->path, name);
    if (t == NULL)
        return;
    if (w->seen != NULL)
        snprintf(w->seen[w->found], NAME_BYTES, "%s", name);
    w->found++;
    w->rc = check_shape(t, holder, name, rows, cols, w->err);
    if (w->rc != SKEP_OK || !w->read)
        return;
    if (!size_mul(rows, cols > 0 ? cols : 1, &n) || !size_mul(n, sizeof(float), &bytes) ||
        (*out = mem_alloc(bytes)) == NULL) {
        w->rc = error_no_memory(w->err, name, rows);
        return;
    }
    widen(t, *out, n);
    safetensors_release(holder->file, name);
}

static void visit_vector(struct walk *w, const char *prefix, const char *name, size_t n,
                         float **out)
{
    char full[NAME_BYTES];

    snprintf(full, sizeof(full), "%s%s.weight", prefix, name);
    visit(w, full, n, 0, false, out);
}

static void visit_linear(struct walk *w, const char *prefix, const char *name, size_t in,
                         size_t out, struct lm_linear *linear)
{
    char full[NAME_BYTES];

    linear->in = in;
    linear->out = out;
    snprintf(full, sizeof(full), "%s%s.weight", prefix, name);
    visit(w, full, out, in, false, &linear->weight);
    snprintf(full, sizeof(full), "%s%s.bias", prefix, name);
    visit(w, full, out, 0, true, &linear->bias);
}

/* ---- the parts of a model ---- */

static void visit_mlp(struct walk *w, const char *prefix, bool mixtral, size_t width,
                      struct lm_mlp *mlp)
{
    size_t hidden = w->folder->config.hidden;

    visit_linear(w, prefix, mixtral ? "w1" : "gate_proj", hidden, width, &mlp->gate);
    visit_linear(w, prefix, mixtral ? "w3" : "up_proj", hidden, width, &mlp->up);
    visit_linear(w, prefix, mixtral ? "w2" : "down_proj", width, hidden, &mlp->down);
}

static void visit_attention(struct walk *w, const char *prefix, struct lm_layer *l)
{
    const struct lm_config *c = &w->folder->config;
    size_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    bool all = c->qk_norm == LM_NORM_ALL;

    visit_linear(w, prefix, "q_proj", c->hidden, q, &l->q);
    visit_linear(w, prefix, "k_proj", c->hidden, kv, &l->k);
    visit_linear(w, prefix, "v_proj", c->hidden, kv, &l->v);
    visit_linear(w, prefix, "o_proj", q, c->hidden, &l->o);
    if (c->qk_norm == LM_NORM_NONE)
        return;
    visit_vector(w, prefix, "q_norm", all ? q : c->head_dim, &l->q_norm);
    visit_vector(w, prefix, "k_norm", all ? kv : c->head_dim, &l->k_norm);
}

static void visit_mixture(struct walk *w, const char *prefix, struct lm_layer *l)
{
    const struct lm_config *c = &w->folder->config;
    char part[NAME_BYTES];
    struct lm_mlp unused = {0};

    visit_linear(w, prefix, "gate", c->hidden, c->experts, &l->router);
    if (w->read && w->rc == SKEP_OK) {
        l->experts = mem_calloc(c->experts, sizeof(*l->experts));
        if (l->experts == NULL)
            w->rc = error_no_memory(w->err, "experts", c->experts * sizeof(*l->experts));
        else
            l->expert_count = c->experts;
    }
    for (size_t e = 0; e < c->experts && w->rc == SKEP_OK; e++) {
        snprintf(part, sizeof(part), "%sexperts.%zu.", prefix, e);
        visit_mlp(w, part, c->architecture == LM_MIXTRAL, c->expert_width,
                  w->read ? &l->experts[e] : &unused);
    }
    if (c->shared_width == 0)
        return;
    snprintf(part, sizeof(part), "%sshared_expert.", prefix);
    visit_mlp(w, part, false, c->shared_width, &l->shared);
    visit_linear(w, prefix, "shared_expert_gate", c->hidden, 1, &l->shared_gate);
}

static void visit_layer(struct walk *w, size_t layer, struct lm_layer *l)
{
    const struct lm_config *c = &w->folder->config;
    char prefix[NAME_BYTES / 2], part[NAME_BYTES];

    snprintf(prefix, sizeof(prefix), "model.layers.%zu.", layer);
    visit_vector(w, prefix, "input_layernorm", c->hidden, &l->input_norm);
    visit_vector(w, prefix, "post_attention_layernorm", c->hidden, &l->post_norm);
    snprintf(part, sizeof(part), "%sself_attn.", prefix);
    visit_attention(w, part, l);
    snprintf(part, sizeof(part), "%s%s.", prefix,
             c->architecture == LM_MIXTRAL ? "block_sparse_moe" : "mlp");
    if (lm_config_is_sparse(c, layer))
        visit_mixture(w, part, l);
    else
        visit_mlp(w, part, false, c->intermediate, &l->mlp);
}

static void visit_ends(struct walk *w, struct lm_ends *ends)
{
    const struct lm_config *c = &w->folder->config;
    bool read = w->read;

    visit(w, "model.embed_tokens.weight", c->vocabulary, c->hidden, false, &ends->embed);
    visit(w, "model.norm.weight", c->hidden, 0, false, &ends->norm);
    w->read = read && !c->tied; /* a tied model's file may still have it */
    visit(w, "lm_head.weight", c->vocabulary, c->hidden, c->tied, &ends->head);
    w->read = read;
    if (c->tied)
        ends->head = ends->embed;
}

/* ---- the folder ---- */

static skep_status open_shard(struct lm_folder *f, const char *name, struct skep_error *err)
{
    struct shard *shard = &f->shards[f->shard_count];
    char path[PATH_BYTES];
    char quote[TEXT_QUOTE_BYTES];
    skep_status rc;

    for (size_t i = 0; i < f->shard_count; i++)
        if (strcmp(f->shards[i].name, name) == 0)
            return SKEP_OK;
    if (strchr(name, '/') != NULL || name[0] == '.' || f->shard_count == MAX_SHARDS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "weight_map: %s: expected up to %d file names",
                         text_quote(name, strlen(name), quote), (int)MAX_SHARDS);
    snprintf(path, sizeof(path), "%s/%s", f->path, name);
    rc = skep_safetensors_open(path, &shard->file, err);
    if (rc != SKEP_OK)
        return rc;
    shard->name = mem_strdup(name);
    f->shard_count++;
    return shard->name != NULL ? SKEP_OK : error_no_memory(err, "a file name", strlen(name));
}

/* The shards of the index, each tensor being where the index says. */
static skep_status open_index(struct lm_folder *f, const struct file_map *map,
                              struct skep_error *err)
{
    json_error_t reason;
    json_t *root = json_loadb((const char *)map->data, map->len, 0, &reason);
    json_t *files = json_object_get(root, "weight_map");
    skep_status rc = SKEP_OK;
    const char *tensor;
    json_t *file;

    if (!json_is_object(files) || json_object_size(files) == 0)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "expected a weight_map%s%s",
                       root == NULL ? ": " : "", root == NULL ? reason.text : "");
    json_object_foreach(files, tensor, file)
    {
        const char *name = json_string_value(file);
        char quote[TEXT_QUOTE_BYTES];
        const struct shard *holder = NULL;
        if (rc != SKEP_OK)
            break;
        rc = open_shard(f, name != NULL ? name : "/", err);
        if (rc == SKEP_OK && (find(f, tensor, &holder) == NULL || strcmp(holder->name, name) != 0))
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "tensor %s is missing in %s",
                           text_quote(tensor, strlen(tensor), quote), name);
    }
    json_decref(root);
    return rc;
}

static skep_status open_shards(struct lm_folder *f, struct skep_error *err)
{
    char path[PATH_BYTES];
    struct file_map map = {0};
    skep_status rc;

    f->shards = mem_calloc(MAX_SHARDS, sizeof(*f->shards));
    if (f->shards == NULL)
        return error_no_memory(err, "files", MAX_SHARDS * sizeof(*f->shards));
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", f->path);
    rc = file_map(&map, path, err);
    if (rc == SKEP_NOT_FOUND)
        return open_shard(f, "model.safetensors", err);
    if (rc != SKEP_OK)
        return rc;
    rc = open_index(f, &map, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    file_unmap(&map);
    return rc;
}

static skep_status read_config(struct lm_folder *f, struct skep_error *err)
{
    char path[PATH_BYTES];
    struct file_map map = {0};
    skep_status rc;

    snprintf(path, sizeof(path), "%s/config.json", f->path);
    rc = file_map(&map, path, err);
    if (rc != SKEP_OK)
        return rc;
    rc = lm_config_parse(map.data, map.len, &f->config, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    file_unmap(&map);
    return rc;
}

/* Old files keep the rotary frequencies, which follow from config.json. */
static bool is_ignored(const char *name)
{
    static const char end[] = ".rotary_emb.inv_freq";
    size_t len = strlen(name);

    return len >= sizeof(end) && strcmp(name + len - (sizeof(end) - 1), end) == 0;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Every tensor is expected. `seen` has room for all tensors of all shards. */
static skep_status check_extra(const struct lm_folder *f, struct walk *w, struct skep_error *err)
{
    char quote[TEXT_QUOTE_BYTES];

    qsort(w->seen, w->found, NAME_BYTES, compare_names);
    for (size_t i = 0; i < f->shard_count; i++)
        for (size_t j = 0; j < skep_safetensors_count(f->shards[i].file); j++) {
            const char *name = skep_safetensors_name(f->shards[i].file, j);
            const struct shard *holder = NULL;
            find(f, name, &holder);
            if (holder != &f->shards[i])
                return error_set(err, SKEP_INVALID_ARGUMENT, "%s: tensor %s is in %s too",
                                 f->shards[i].name, text_quote(name, strlen(name), quote),
                                 holder->name);
            if (!is_ignored(name) &&
                (strlen(name) >= NAME_BYTES ||
                 bsearch(name, w->seen, w->found, NAME_BYTES, compare_names) == NULL))
                return error_set(err, SKEP_INVALID_ARGUMENT,
                                 "%s: tensor %s is not part of this architecture",
                                 f->shards[i].name, text_quote(name, strlen(name), quote));
        }
    return SKEP_OK;
}

static skep_status check_tensors(const struct lm_folder *f, struct skep_error *err)
{
    struct walk w = {.folder = f, .err = err};
    struct lm_layer layer = {0};
    struct lm_ends ends = {0};
    size_t total = 0;

    for (size_t i = 0; i < f->shard_count; i++)
        total += skep_safetensors_count(f->shards[i].file);
    w.seen = mem_calloc(total + 1, NAME_BYTES);
    if (w.seen == NULL)
        return error_no_memory(err, "names of tensors", total * NAME_BYTES);
    visit_ends(&w, &ends);
    for (size_t i = 0; i < f->config.layers && w.rc == SKEP_OK; i++)
        visit_layer(&w, i, &layer);
    if (w.rc == SKEP_OK)
        w.rc = check_extra(f, &w, err);
    mem_free(w.seen);
    return w.rc;
}

skep_status lm_folder_open(const char *path, struct lm_folder **out, struct skep_error *err)
{
    struct lm_folder *f = mem_calloc(1, sizeof(*f));
    skep_status rc;

    *out = NULL;
    if (f == NULL)
        return error_no_memory(err, "a model's folder", sizeof(*f));
    f->path = mem_strdup(path);
    rc = f->path != NULL ? read_config(f, err) : error_no_memory(err, "a path", strlen(path));
    if (rc == SKEP_OK)
        rc = open_shards(f, err);
    if (rc == SKEP_OK)
        rc = check_tensors(f, err);
    if (rc == SKEP_OK)
        *out = f;
    else
        lm_folder_close(f);
    return rc;
}

void lm_folder_close(struct lm_folder *folder)
{
    if (folder == NULL)
        return;
    for (size_t i = 0; i < folder->shard_count; i++) {
        skep_safetensors_close(folder->shards[i].file);
        mem_free(folder->shards[i].name);
    }
    mem_free(folder->shards);
    mem_free(folder->path);
    mem_free(folder);
}

const struct lm_config *lm_folder_config(const struct lm_folder *folder)
{
    return &folder->config;
}

skep_status lm_folder_layer(const struct lm_folder *folder, size_t layer, struct lm_layer *out,
                            struct skep_error *err)
{
    struct walk w = {.folder = folder, .read = true, .err = err};

    memset(out, 0, sizeof(*out));
    if (layer >= folder->config.layers)
        return error_set(err, SKEP_INVALID_ARGUMENT, "layer %zu: the model has %zu layers", layer,
                         folder->config.layers);
    visit_layer(&w, layer, out);
    if (w.rc != SKEP_OK)
        lm_layer_free(out);
    return w.rc;
}

skep_status lm_folder_ends(const struct lm_folder *folder, struct lm_ends *out,
                           struct skep_error *err)
{
    struct walk w = {.folder = folder, .read = true, .err = err};

    memset(out, 0, sizeof(*out));
    visit_ends(&w, out);
    if (w.rc != SKEP_OK)
        lm_ends_free(out);
    return w.rc;
}

static void free_linear(struct lm_linear *l)
{
    mem_free(l->weight);
    mem_free(l->bias);
}

static void free_mlp(struct lm_mlp *m)
{
    free_linear(&m->gate);
    free_linear(&m->up);
    free_linear(&m->down);
}

void lm_layer_free(struct lm_layer *layer)
{
    if (layer == NULL)
        return;
    float *vectors[] = {layer->input_norm, layer->post_norm, layer->q_norm, layer->k_norm};
    struct lm_linear *linears[] = {&layer->q, &layer->k,      &layer->v,
                                   &layer->o, &layer->router, &layer->shared_gate};
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++)
        mem_free(vectors[i]);
    for (size_t i = 0; i < sizeof(linears) / sizeof(linears[0]); i++)
        free_linear(linears[i]);
    free_mlp(&layer->mlp);
    free_mlp(&layer->shared);
    for (size_t i = 0; i < layer->expert_count; i++)
        free_mlp(&layer->experts[i]);
    mem_free(layer->experts);
    memset(layer, 0, sizeof(*layer));
}

void lm_ends_free(struct lm_ends *ends)
{
    if (ends == NULL)
        return;
    if (ends->head != ends->embed)
        mem_free(ends->head);
    mem_free(ends->embed);
    mem_free(ends->norm);
    memset(ends, 0, sizeof(*ends));
}
