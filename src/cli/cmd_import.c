/* skep import: weights from elsewhere become checkpoints that a node can host. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/tensor.h"
#include "cli/command.h"
#include "cli/expert_options.h"
#include "cli/options.h"
#include "cli/output.h"
#include "dht/record/uid.h"
#include "experts/checkpoint_dir.h"
#include "experts/class.h"
#include "experts/moe.h"
#include "experts/weights.h"
#include "experts/workspace.h"

static skep_status check_uid(const char *text, struct skep_error *err)
{
    struct uid uid;

    return uid_parse(&uid, text, err);
}

static skep_status check_name(const char *text, struct skep_error *err)
{
    char prefix[UID_BYTES + 2];

    snprintf(prefix, sizeof(prefix), "%s.", text);
    if (strlen(text) < UID_BYTES - 32 && strchr(text, '.') == NULL &&
        uid_prefix_is_valid(prefix, strlen(prefix)))
        return checkpoint_dir_check_uid(text, err);
    return error_set(err, SKEP_INVALID_ARGUMENT, "\"%s\", expected a name without dots", text);
}

static skep_status check_pattern(const char *text, struct skep_error *err)
{
    struct uid_pattern pattern;

    return uid_pattern_parse(&pattern, text, err);
}

static const struct option_spec specs[] = {
    {.name = "checkpoint-dir",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .required = true,
     .help = "folder to write checkpoints into, created if missing; no node may be using it"},
    {.name = "uid",
     .kind = OPTION_STRING,
     .placeholder = "UID",
     .check = check_uid,
     .help = "UID of the expert to make from the file"},
    {.name = "expert-cls",
     .kind = OPTION_STRING,
     .placeholder = "CLASS",
     .default_text = "ffn",
     .help = "class of that expert"},
    {.name = "hidden-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .help = "width of that expert",
     .unset = "from the file's shapes"},
    {.name = "intermediate-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .help = "inner width of a swiglu expert",
     .unset = "from the file's shapes"},
    EXPERT_CLASS_OPTION_SPECS,
    {.name = "moe",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .help = "import the experts of the mixture-of-experts model in this folder (Hugging "
             "Face layout) instead of a file"},
    {.name = "name",
     .kind = OPTION_STRING,
     .placeholder = "NAME",
     .check = check_name,
     .help = "with --moe: expert E of layer L becomes NAME.L.E"},
    {.name = "expert-pattern",
     .kind = OPTION_STRING,
     .placeholder = "PATTERN",
     .check = check_pattern,
     .help = "with --moe: import only the experts of this pattern, such as NAME.[0:4].[0:8]"},
    {.name = "stack",
     .kind = OPTION_STRING,
     .placeholder = "PREFIX",
     .help = "with --moe: import the layers whose tensor names start with this, such as "
             "thinker.model.layers",
     .unset = "the only stack that has experts"},
    {.name = "replace",
     .kind = OPTION_FLAG,
     .help = "also import experts that have checkpoints: those are kept, the new one becomes"
             " the newest"},
    {.name = "allow-non-finite",
     .kind = OPTION_FLAG,
     .help = "accept weights that contain NaN or infinity"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"},
};

static const struct option_table table = {
    .command = "import",
    .summary = "Turns weights into checkpoints of experts: a safetensors file with PyTorch's "
               "parameter names (F32, F16, BF16 or F64), or all experts of a mixture-of-experts "
               "model, one at a time. A node hosts them with --checkpoint-dir and --load-experts.",
    .example = "skep import ffn.safetensors --uid ffn.0.1 --expert-cls ffn --checkpoint-dir "
               "experts\n"
               "skep import --moe Mixtral-8x7B --name mixtral --checkpoint-dir experts\n"
               "skep import --moe Mixtral-8x7B --name mixtral --expert-pattern "
               "'mixtral.[0:4].[0:8]' --checkpoint-dir experts",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "[FILE]",
    .positional_max = 1,
};
const struct option_table *const cmd_import_options = &table;

struct importing {
    struct checkpoint_dir dir;
    bool replace;
    bool allow_non_finite;
    struct progress progress;
    uint64_t visited, imported, skipped;
};

/* A weight that is no number makes every output one, and nothing trains it back. */
static skep_status check_finite(struct expert *expert, struct skep_error *err)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    DLTensor views[EXPERT_MAX_PARAMETERS];
    size_t parameters = expert_parameters(expert, names, views, EXPERT_MAX_PARAMETERS);

    for (size_t i = 0; i < parameters; i++) {
        const float *values = views[i].data;
        size_t count, nans = 0, infinite = 0;
        if (!shape_count(views[i].ndim, views[i].shape, &count))
            return error_set(err, SKEP_INTERNAL, "parameter %s: no shape", names[i]);
        for (size_t k = 0; k < count; k++) {
            nans += isnan(values[k]) ? 1 : 0;
            infinite += isinf(values[k]) ? 1 : 0;
        }
        if (nans + infinite > 0)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "parameter %s: %zu NaN and %zu infinite of %zu values as float32, "
                             "expected numbers (--allow-non-finite takes them as they are)",
                             names[i], nans, infinite, count);
    }
    return SKEP_OK;
}

static skep_status save(struct importing *im, const char *uid, struct expert *expert,
                        struct skep_error *err)
{
    struct checkpoint_header header = {.uid = uid, .options = *expert_settings(expert)};
    float *copy = floats_new(expert_state_bytes(expert) / sizeof(float));
    skep_status rc;

    if (copy == NULL)
        return error_no_memory(err, uid, expert_state_bytes(expert));
    rc = expert_snapshot(expert, copy, &header.counters, CLOCK_NEVER, err);
    if (rc == SKEP_OK)
        rc = checkpoint_dir_save(&im->dir, &header, expert, copy, 0, err);
    mem_free(copy);
    if (rc == SKEP_OK)
        im->imported++;
    return rc;
}

/* --- one file ------------------------------------------------------------------------------ */

static skep_status choose_sizes(const struct options *o, const struct skep_safetensors *file,
                                struct skep_expert_options *out, struct skep_error *err)
{
    bool known;

    skep_expert_options_init(out);
    out->cls = options_string(o, "expert-cls");
    out->optimizer = "none"; /* not kept: whoever hosts it decides */
    skep_status rc = weights_explain(file, out->cls, err);
    if (rc != SKEP_OK)
        return rc;
    known = weights_infer(file, out->cls, out);
    expert_class_options_read(o, out);
    if (options_given(o, "hidden-dim"))
        out->hidden_dim = options_int(o, "hidden-dim");
    else if (!known)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "its shapes do not tell the hidden_dim of class %s, expected --hidden-dim",
                         out->cls);
    return SKEP_OK;
}

static skep_status import_file(const struct options *o, struct importing *im, const char *path,
                               struct skep_error *err)
{
    const char *uid = options_string(o, "uid");
    struct skep_safetensors *file = NULL;
    struct expert *expert = NULL;
    struct skep_expert_options options;
    skep_status rc = skep_safetensors_open(path, &file, err);

    if (rc != SKEP_OK)
        return rc;
    rc = choose_sizes(o, file, &options, err);
    if (rc == SKEP_OK)
        rc = expert_new(&options, &expert, err);
    if (rc == SKEP_OK)
        rc = weights_load(file, expert, err);
    if (rc == SKEP_OK && !im->allow_non_finite)
        rc = check_finite(expert, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    else if (!im->replace && checkpoint_dir_has(&im->dir, uid))
        rc = error_set(err, SKEP_FAILED_PRECONDITION,
                       "%s/%s: has checkpoints already; --replace adds this one as the newest",
                       im->dir.path, uid);
    else
        rc = save(im, uid, expert, err);
    expert_free(expert);
    skep_safetensors_close(file);
    return rc;
}

/* --- a model ------------------------------------------------------------------------------- */

static skep_status import_one(struct importing *im, struct moe *moe, size_t i, const char *uid,
                              struct skep_error *err)
{
    struct expert *expert;
    skep_status rc;

    if (!im->replace && checkpoint_dir_has(&im->dir, uid)) {
        im->skipped++;
        return SKEP_OK;
    }
    rc = moe_load(moe, i, &expert, err);
    if (rc != SKEP_OK)
        return rc;
    if (!im->allow_non_finite)
        rc = check_finite(expert, err);
    if (rc == SKEP_OK)
        rc = save(im, uid, expert, err);
    else
        error_prefix(err, "%s", uid);
    expert_free(expert);
    return rc;
}

/* What to do with each expert of a model that is wanted. */
typedef skep_status (*model_fn)(struct importing *im, struct moe *moe, size_t i, const char *uid,
                                struct skep_error *err);

static skep_status check_one(struct importing *im, struct moe *moe, size_t i, const char *uid,
                             struct skep_error *err)
{
    struct expert *expert;

    if (!im->replace && checkpoint_dir_has(&im->dir, uid))
        return SKEP_OK;
    skep_status rc = moe_check(moe, i, err);
    if (rc != SKEP_OK || im->allow_non_finite)
        return rc;
    /* A NaN shows only in the numbers themselves, so they are read here as well. */
    rc = moe_load(moe, i, &expert, err);
    if (rc != SKEP_OK)
        return rc;
    rc = check_finite(expert, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", uid);
    expert_free(expert);
    return rc;
}

/* Does it with expert i unless a pattern leaves it out. */
static skep_status visit_reserved(struct importing *im, struct moe *moe, size_t i, const char *name,
                                  const struct uid_pattern *pattern, model_fn visit,
                                  struct skep_error *err)
{
    char text[CHECKPOINT_UID_BYTES];
    struct uid uid;
    uint64_t layer;
    uint64_t number;
    skep_status rc;

    moe_place(moe, i, &layer, &number);
    snprintf(text, sizeof(text), "%s.%" PRIu64 ".%" PRIu64, name, layer, number);
    rc = uid_parse(&uid, text, err);
    if (rc != SKEP_OK || (pattern != NULL && !uid_pattern_has(pattern, &uid)))
        return rc;
    return visit(im, moe, i, text, err);
}

static skep_status visit_all(struct importing *im, struct moe *moe, const char *name,
                             const struct uid_pattern *pattern, model_fn visit, const char *note,
                             struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < moe_count(moe) && rc == SKEP_OK; i++) {
        rc = visit_reserved(im, moe, i, name, pattern, visit, err);
        progress_set(&im->progress, ++im->visited, note);
    }
    return rc;
}

static skep_status import_model(const struct options *o, struct importing *im,
                                struct skep_error *err)
{
    const char *name = options_string(o, "name");
    const char *wish = options_string(o, "expert-pattern");
    struct uid_pattern pattern;
    const struct uid_pattern *wanted = wish != NULL ? &pattern : NULL;
    struct moe *moe;
    skep_status rc = wish != NULL ? uid_pattern_parse(&pattern, wish, err) : SKEP_OK;

    if (rc == SKEP_OK)
        rc = moe_open(options_string(o, "moe"), options_string(o, "stack"), &moe, err);
    if (rc != SKEP_OK)
        return rc;
    if (moe_left_out(moe)[0] != '\0')
        log_warn("%s: the experts under %s are left out; --stack imports those",
                 options_string(o, "moe"), moe_left_out(moe));
    /* All are checked before any is written, so that a folder never holds a part of a model. */
    progress_start(&im->progress, "experts, checked and imported", 2 * moe_count(moe),
                   options_flag(o, "json"), stderr);
    rc = visit_all(im, moe, name, wanted, check_one, "checking", err);
    if (rc == SKEP_OK)
        rc = visit_all(im, moe, name, wanted, import_one, "importing", err);
    progress_end(&im->progress, NULL);
    if (rc == SKEP_OK && im->imported + im->skipped == 0)
        rc = error_set(err, SKEP_FAILED_PRECONDITION,
                       "%s: none of its experts, named %s.<layer>.<expert>, is of the pattern %s",
                       options_string(o, "moe"), name, wish);
    moe_close(moe);
    return rc;
}

/* --- running ------------------------------------------------------------------------------- */

/* Options of what is not imported. */
static int check_idle(struct options *o, bool is_model)
{
    static const char *const of_files[] = {"uid",
                                           "expert-cls",
                                           "hidden-dim",
                                           "intermediate-dim",
                                           "padding-mask",
                                           "max-sequence",
                                           "float-mask",
                                           "evaluation",
                                           NULL};
    static const char *const of_models[] = {"name", "expert-pattern", "stack", NULL};
    int code = CLI_DONE;

    for (const char *const *name = is_model ? of_files : of_models;
         *name != NULL && code == CLI_DONE; name++)
        code = options_idle(o, *name, "does nothing with %s", is_model ? "--moe" : "a file");
    if (code == CLI_DONE && !is_model)
        code = expert_class_options_check(o);
    return code;
}

static int check_usage(struct options *o)
{
    const struct expert_class *cls;
    struct skep_error err;
    int code =
        o->positional_count > 0 ? options_idle(o, "moe", "does nothing with a file") : CLI_DONE;
    if (code != CLI_DONE)
        return code;
    bool is_model = options_string(o, "moe") != NULL;
    if (!is_model && expert_class_find(options_string(o, "expert-cls"), &cls, &err) != SKEP_OK)
        return cli_usage_error(table.command, "--expert-cls: %s", err.message);
    if (is_model == (o->positional_count > 0))
        return cli_usage_error(table.command, "expected either a file or --moe");
    if (is_model && options_string(o, "name") == NULL)
        return cli_usage_error(table.command, "--moe: needs --name");
    if (!is_model && options_string(o, "uid") == NULL)
        return cli_usage_error(table.command, "a file: needs --uid");
    return check_idle(o, is_model);
}

static void tell(const struct options *o, const struct importing *im)
{
    if (options_flag(o, "json"))
        json_print(json_pack("{s:I, s:I, s:s}", "imported", (json_int_t)im->imported, "skipped",
                             (json_int_t)im->skipped, "checkpoint_dir", im->dir.path),
                   stdout);
    else if (im->skipped > 0)
        printf("%s: %" PRIu64 " imported, %" PRIu64 " were there already\n", im->dir.path,
               im->imported, im->skipped);
    else
        printf("%s: %" PRIu64 " imported\n", im->dir.path, im->imported);
}

int cmd_import(int argc, char **argv)
{
    struct options o;
    struct importing im = {.dir = {.lock = -1}};
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = check_usage(&o);
    if (code != CLI_DONE) {
        options_free(&o);
        return code;
    }
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error like a full disk */
    im.allow_non_finite = options_flag(&o, "allow-non-finite");
    im.replace = options_flag(&o, "replace");
    skep_status rc = checkpoint_dir_open(&im.dir, options_string(&o, "checkpoint-dir"), true, &err);
    if (rc == SKEP_OK)
        rc = options_string(&o, "moe") != NULL ? import_model(&o, &im, &err)
                                               : import_file(&o, &im, o.positional[0], &err);
    if (rc == SKEP_OK)
        tell(&o, &im);
    checkpoint_dir_close(&im.dir);
    options_free(&o);
    return rc == SKEP_OK ? CLI_DONE : cli_fail_before(table.command, &err);
}
