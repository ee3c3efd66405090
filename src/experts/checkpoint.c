/* See checkpoint.h. */
#include "experts/checkpoint.h"

#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/log.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/checkpoint_internal.h"
#include "experts/class.h"
#include "experts/digest.h"

enum {
    STATE_MAX_ARRAYS = 3,
    MAX_TENSORS = STATE_MAX_ARRAYS * EXPERT_MAX_PARAMETERS,
    NAME_BYTES = EXPERT_PARAMETER_NAME_BYTES + 32, /* "optimizer.momentum_buffer." */
};

static const char checksum_key[] = "skep.checksum";

struct checkpoint {
    struct skep_safetensors *file; /* owned */
    struct checkpoint_header header;
};

/* "optimizer.exp_avg.layers.0.weight"; the parameter's own name for array 0. */
static const char *state_name(const struct expert *expert, size_t array, const char *parameter,
                              char out[static NAME_BYTES])
{
    if (array == 0)
        snprintf(out, NAME_BYTES, "%s", parameter);
    else
        snprintf(out, NAME_BYTES, "optimizer.%s.%s", expert_state_array(expert, array), parameter);
    return out;
}

/* --- saving -------------------------------------------------------------------------------- */

/* The tensors of a file, in the order of the class. The digest sorts a copy of it. */
struct listing {
    size_t count;
    struct skep_named_tensor *named;  /* owned */
    struct skep_named_tensor *sorted; /* owned */
    /* For what the expert owns. */
    DLTensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][NAME_BYTES];
};

static void listing_free(struct listing *list)
{
    if (list == NULL)
        return;
    mem_free(list->named);
    mem_free(list->sorted);
    mem_free(list);
}

static struct listing *listing_new(const struct expert *expert)
{
    const struct skep_named_tensor *saved;
    size_t room = expert_owns_state(expert) ? expert_saved_state(expert, &saved) : MAX_TENSORS;
    struct listing *list = mem_calloc(1, sizeof(*list));

    if (list == NULL)
        return NULL;
    list->named = mem_calloc(room + 1, sizeof(*list->named));
    list->sorted = mem_calloc(room + 1, sizeof(*list->sorted));
    if (list->named != NULL && list->sorted != NULL)
        return list;
    listing_free(list);
    return NULL;
}

static void list_arrays(struct listing *list, struct expert *expert, float *copy,
                        const struct expert_counters *counters)
{
    const char *parameters[EXPERT_MAX_PARAMETERS];
    size_t parameter_count = expert_parameters(expert, parameters, NULL, EXPERT_MAX_PARAMETERS);

    for (size_t a = 0; expert_state_array(expert, a) != NULL; a++) {
        if (a > 0 && counters->steps == 0)
            break; /* zeros */
        for (size_t i = 0; i < parameter_count; i++) {
            size_t n = list->count++;

            list->tensors[n] = expert_state_view(expert, copy, a, i);
            list->named[n] = (struct skep_named_tensor){
                .name = state_name(expert, a, parameters[i], list->names[n]),
                .tensor = &list->tensors[n],
            };
        }
    }
}

static void list_state(struct listing *list, struct expert *expert, float *copy,
                       const struct expert_counters *counters)
{
    const struct skep_named_tensor *saved;

    if (expert_owns_state(expert)) {
        list->count = expert_saved_state(expert, &saved);
        for (size_t i = 0; i < list->count; i++)
            list->named[i] = saved[i];
    } else {
        list_arrays(list, expert, copy, counters);
    }
    for (size_t i = 0; i < list->count; i++)
        list->sorted[i] = list->named[i];
}

skep_status checkpoint_save(const char *path, const struct checkpoint_header *header,
                            struct expert *expert, float *copy, struct skep_error *err)
{
    struct header_texts texts;
    uint8_t digest[DIGEST_BYTES];
    char checksum[2 * DIGEST_BYTES + 1];
    const char *metadata[2 * HEADER_MAX_FIELDS + 5] = {"format", "pt", checksum_key, checksum};
    struct listing *list = listing_new(expert);
    skep_status rc;

    if (list == NULL)
        return error_no_memory(err, path, sizeof(*list));
    if (sodium_init() < 0) {
        rc = error_set(err, SKEP_INTERNAL, "libsodium does not start");
        goto out;
    }
    list_state(list, expert, copy, &header->counters);
    header_write(header, &texts);
    rc = digest_make(texts.pairs, list->sorted, list->count, false, digest, err);
    if (rc != SKEP_OK)
        goto out;
    hex_encode(checksum, digest, sizeof(digest));
    for (size_t i = 0; texts.pairs[i] != NULL; i++)
        metadata[4 + i] = texts.pairs[i];
    rc = skep_safetensors_save(path, list->named, list->count, metadata, err);

out:
    listing_free(list);
    return rc;
}

/* --- opening ------------------------------------------------------------------------------- */

/* @param named  owned by the caller; NULL on failure. */
static skep_status list_file(const struct skep_safetensors *file, struct skep_named_tensor **named,
                             size_t *count, struct skep_error *err)
{
    *named = NULL;
    *count = skep_safetensors_count(file);
    if (*count > EXPERT_MAX_STATE_TENSORS)
        return error_set(err, SKEP_DATA_LOSS, "checkpoint: %zu tensors, expected at most %d",
                         *count, EXPERT_MAX_STATE_TENSORS);
    *named = mem_calloc(*count + 1, sizeof(**named));
    if (*named == NULL)
        return error_no_memory(err, "checkpoint", *count * sizeof(**named));
    for (size_t i = 0; i < *count; i++)
        (*named)[i] = (struct skep_named_tensor){
            .name = skep_safetensors_name(file, i),
            .tensor = skep_safetensors_tensor(file, i),
        };
    return SKEP_OK;
}

static skep_status check_digest(const struct skep_safetensors *file,
                                const struct header_texts *texts, struct skep_error *err)
{
    const char *text = skep_safetensors_metadata(file, checksum_key);
    struct skep_named_tensor *named;
    size_t count;
    uint8_t expected[DIGEST_BYTES];
    uint8_t digest[DIGEST_BYTES];

    if (text == NULL || !hex_decode(expected, sizeof(expected), text))
        return error_set(err, SKEP_DATA_LOSS, "checkpoint: its metadata has no %s of %d hex digits",
                         checksum_key, 2 * DIGEST_BYTES);
    if (sodium_init() < 0)
        return error_set(err, SKEP_INTERNAL, "libsodium does not start");
    skep_status rc = list_file(file, &named, &count, err);
    if (rc == SKEP_OK)
        rc = digest_make(texts->pairs, named, count, true, digest, err);
    mem_free(named);
    if (rc == SKEP_OK && memcmp(digest, expected, sizeof(digest)) != 0)
        rc = error_set(err, SKEP_DATA_LOSS,
                       "checkpoint: its contents do not match its checksum: it is damaged");
    return rc;
}

/* The file is taken always. */
static skep_status wrap(struct skep_safetensors *file, bool is_summed, struct checkpoint **out,
                        struct skep_error *err)
{
    struct checkpoint *c = mem_calloc(1, sizeof(*c));
    struct header_texts texts;
    skep_status rc;

    if (c == NULL) {
        skep_safetensors_close(file);
        return error_no_memory(err, "checkpoint", sizeof(*c));
    }
    c->file = file;
    rc = header_read(file, &c->header, &texts, err);
    if (rc == SKEP_OK && is_summed)
        rc = check_digest(file, &texts, err);
    if (rc != SKEP_OK) {
        checkpoint_close(c);
        return rc;
    }
    *out = c;
    return SKEP_OK;
}

static skep_status open_file(const char *path, bool is_summed, struct checkpoint **out,
                             struct skep_error *err)
{
    struct skep_safetensors *file;
    skep_status rc = skep_safetensors_open(path, &file, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    rc = wrap(file, is_summed, out, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    return rc;
}

skep_status checkpoint_open(const char *path, struct checkpoint **out, struct skep_error *err)
{
    return open_file(path, true, out, err);
}

skep_status checkpoint_peek(const char *path, struct checkpoint **out, struct skep_error *err)
{
    return open_file(path, false, out, err);
}

static skep_status parse(const void *data, size_t len, bool is_summed, struct checkpoint **out,
                         struct skep_error *err)
{
    struct skep_safetensors *file;
    skep_status rc = skep_safetensors_parse(data, len, &file, err);

    *out = NULL;
    return rc == SKEP_OK ? wrap(file, is_summed, out, err) : rc;
}

skep_status checkpoint_parse(const void *data, size_t len, struct checkpoint **out,
                             struct skep_error *err)
{
    return parse(data, len, true, out, err);
}

skep_status checkpoint_parse_unsummed(const void *data, size_t len, struct checkpoint **out,
                                      struct skep_error *err)
{
    return parse(data, len, false, out, err);
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    skep_safetensors_close(checkpoint->file);
    mem_free(checkpoint);
}

const struct checkpoint_header *checkpoint_header(const struct checkpoint *checkpoint)
{
    return &checkpoint->header;
}

const struct skep_safetensors *checkpoint_tensors(const struct checkpoint *checkpoint)
{
    return checkpoint->file;
}

/* --- applying ------------------------------------------------------------------------------ */

static const DLTensor *find_state(const struct checkpoint *c, const struct expert *expert,
                                  size_t array, const char *parameter)
{
    char name[NAME_BYTES];

    return skep_safetensors_find(c->file, state_name(expert, array, parameter, name));
}

static bool is_like(const DLTensor *a, const DLTensor *b)
{
    return dtype_equal(a->dtype, b->dtype) && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(*a->shape)) == 0;
}

/* Whether the file has all of an array, each of its parameter's shape. */
static bool has_array(const struct checkpoint *c, struct expert *expert, size_t array)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    DLTensor own[EXPERT_MAX_PARAMETERS];
    size_t count = expert_parameters(expert, names, own, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < count; i++) {
        const DLTensor *t = find_state(c, expert, array, names[i]);
        if (t == NULL || !is_like(t, &own[i]))
            return false;
    }
    return true;
}

static bool has_all_arrays(const struct checkpoint *c, struct expert *expert)
{
    for (size_t a = 1; expert_state_array(expert, a) != NULL; a++)
        if (!has_array(c, expert, a))
            return false;
    return true;
}

static skep_status check_parameters(const struct checkpoint *c, struct expert *expert,
                                    struct skep_error *err)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    DLTensor own[EXPERT_MAX_PARAMETERS];
    size_t count = expert_parameters(expert, names, own, EXPERT_MAX_PARAMETERS);
    char got[96];
    char want[96];

    for (size_t i = 0; i < count; i++) {
        const DLTensor *t = skep_safetensors_find(c->file, names[i]);
        if (t == NULL)
            return error_set(err, SKEP_FAILED_PRECONDITION, "checkpoint: has no parameter %s",
                             names[i]);
        if (!is_like(t, &own[i]))
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "checkpoint: parameter %s is %s, the expert's is %s", names[i],
                             tensor_describe(t, got, sizeof(got)),
                             tensor_describe(&own[i], want, sizeof(want)));
    }
    return SKEP_OK;
}

/* The file may hold parameters of the expert and the optimizer's arrays, nothing else. */
static skep_status check_rest(const struct checkpoint *c, struct expert *expert,
                              struct skep_error *err)
{
    static const char prefix[] = "optimizer.";
    const char *names[EXPERT_MAX_PARAMETERS];
    size_t count = expert_parameters(expert, names, NULL, EXPERT_MAX_PARAMETERS);
    char quoted[TEXT_QUOTE_BYTES];

    for (size_t i = 0; i < skep_safetensors_count(c->file); i++) {
        const char *name = skep_safetensors_name(c->file, i);
        size_t k = 0;

        if (strncmp(name, prefix, sizeof(prefix) - 1) == 0)
            continue;
        while (k < count && strcmp(name, names[k]) != 0)
            k++;
        if (k == count)
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "checkpoint: holds %s, which the class %s does not have",
                             text_quote(name, strlen(name), quoted), expert_class_name(expert));
    }
    return SKEP_OK;
}

static skep_status check_class(const struct checkpoint *c, const struct expert *expert,
                               struct skep_error *err)
{
    const struct skep_expert_options *saved = &c->header.options;
    const struct skep_expert_options *own = expert_settings(expert);
    char quoted[TEXT_QUOTE_BYTES];

    if (strcmp(saved->cls, own->cls) == 0 && saved->hidden_dim == own->hidden_dim)
        return SKEP_OK;
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "checkpoint: class %s with hidden_dim %" PRId64
                     ", the expert is of class %s with hidden_dim %" PRId64,
                     text_quote(saved->cls, strlen(saved->cls), quoted), saved->hidden_dim,
                     own->cls, own->hidden_dim);
}

/* Everything was checked, so none of these can fail. */
static void set_array(const struct checkpoint *c, struct expert *expert, size_t array)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    size_t count = expert_parameters(expert, names, NULL, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < count; i++) {
        skep_status rc =
            expert_set_state(expert, array, i, find_state(c, expert, array, names[i]), NULL);
        assert(rc == SKEP_OK);
        (void)rc;
    }
}

static void warn_anew(const struct checkpoint *c, const char *name, const char *optimizer)
{
    const char *saved = c->header.has_training ? c->header.options.optimizer : "(unknown)";

    if (strcmp(saved, optimizer) != 0)
        log_warn("%s: was trained with optimizer %s, the expert has %s: its state starts anew",
                 name, saved, optimizer);
    else
        log_warn("%s: the state of optimizer %s is not all there, or of another shape or type: it "
                 "starts anew",
                 name, optimizer);
}

/* The class checks it and takes it over. */
static skep_status apply_owned(const struct checkpoint *c, struct expert *expert,
                               struct skep_error *err)
{
    struct skep_named_tensor *named = NULL;
    size_t count;
    skep_status rc = check_class(c, expert, err);

    if (rc == SKEP_OK)
        rc = list_file(c->file, &named, &count, err);
    if (rc == SKEP_OK)
        rc = expert_load_state(expert, named, count, err);
    if (rc == SKEP_OK)
        expert_set_counters(expert, &c->header.counters);
    else
        error_prefix(err, "checkpoint");
    mem_free(named);
    return rc;
}

skep_status checkpoint_apply(const struct checkpoint *c, const char *name, struct expert *expert,
                             struct skep_error *err)
{
    if (expert_owns_state(expert))
        return apply_owned(c, expert, err);
    struct expert_counters counters = c->header.counters;
    bool continues = counters.steps > 0 && has_all_arrays(c, expert);
    skep_status rc = check_class(c, expert, err);

    if (rc == SKEP_OK)
        rc = check_parameters(c, expert, err);
    if (rc == SKEP_OK)
        rc = check_rest(c, expert, err);
    if (rc != SKEP_OK)
        return rc;
    if (counters.steps > 0 && !continues) {
        warn_anew(c, name, expert_settings(expert)->optimizer);
        counters.steps = 0;
    }
    set_array(c, expert, 0);
    for (size_t a = 1; continues && expert_state_array(expert, a) != NULL; a++)
        set_array(c, expert, a);
    expert_set_counters(expert, &counters);
    return SKEP_OK;
}
