/* skep import: weights from elsewhere become checkpoints that a node can host. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "dht/uid.h"
#include "experts/checkpoint_dir.h"
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

static const struct option_spec specs[] = {
    {.name = "checkpoint-dir",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .required = true,
     .help = "folder to write checkpoints into, made if missing; no node may be using it"},
    {.name = "uid",
     .kind = OPTION_STRING,
     .placeholder = "UID",
     .check = check_uid,
     .help = "of the expert that the file's weights become"},
    {.name = "expert-cls",
     .kind = OPTION_STRING,
     .placeholder = "CLASS",
     .default_text = "ffn",
     .help = "class of that expert"},
    {.name = "hidden-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .help = "of that expert; without it as the file's shapes tell"},
    {.name = "intermediate-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .help = "of a swiglu expert; without it as the file's shapes tell"},
    {.name = "moe",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .help = "import all experts of the mixture-of-experts model in this folder (Hugging Face's "
             "layout) instead of a file"},
    {.name = "name",
     .kind = OPTION_STRING,
     .placeholder = "NAME",
     .check = check_name,
     .help = "with --moe: expert E of layer L becomes NAME.L.E"},
    {.name = "replace",
     .kind = OPTION_FLAG,
     .help = "also where the expert has checkpoints: they are kept, this one becomes the newest"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print what was imported as JSON"},
};

static const struct option_table table = {
    .command = "import",
    .summary = "Turns weights into checkpoints of experts: a safetensors file with PyTorch's "
               "parameter names (F32, F16, BF16 or F64), or all experts of a mixture-of-experts "
               "model. A node hosts them with --checkpoint-dir and --load-experts.",
    .example = "skep import ffn.safetensors --uid ffn.0.1 --expert-cls ffn --checkpoint-dir "
               "experts\n"
               "skep import --moe Mixtral-8x7B --name mixtral --checkpoint-dir experts",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "[FILE]",
    .positional_max = 1,
};

struct importing {
    struct checkpoint_dir dir;
    bool replace;
    uint64_t imported, skipped;
};

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
    known = weights_infer(file, out->cls, out);
    if (options_given(o, "intermediate-dim"))
        out->intermediate_dim = options_int(o, "intermediate-dim");
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

static skep_status import_one(struct importing *im, struct moe *moe, size_t i, const char *name,
                              struct skep_error *err)
{
    char uid[CHECKPOINT_UID_BYTES];
    struct expert *expert;
    uint64_t layer;
    uint64_t number;
    skep_status rc;

    moe_place(moe, i, &layer, &number);
    snprintf(uid, sizeof(uid), "%s.%" PRIu64 ".%" PRIu64, name, layer, number);
    if (!im->replace && checkpoint_dir_has(&im->dir, uid)) {
        im->skipped++;
        return SKEP_OK;
    }
    rc = moe_load(moe, i, &expert, err);
    if (rc != SKEP_OK)
        return rc;
    rc = save(im, uid, expert, err);
    expert_free(expert);
    return rc;
}

static skep_status import_model(const struct options *o, struct importing *im,
                                struct skep_error *err)
{
    const char *name = options_string(o, "name");
    struct progress progress;
    struct moe *moe;
    skep_status rc = moe_open(options_string(o, "moe"), &moe, err);

    if (rc != SKEP_OK)
        return rc;
    progress_start(&progress, "experts", moe_count(moe), options_flag(o, "json"), stderr);
    for (size_t i = 0; i < moe_count(moe) && rc == SKEP_OK; i++) {
        rc = import_one(im, moe, i, name, err);
        progress_set(&progress, i + 1, NULL);
    }
    progress_end(&progress, NULL);
    moe_close(moe);
    return rc;
}

/* --- running ------------------------------------------------------------------------------- */

static const char *contradiction(const struct options *o)
{
    bool is_model = options_string(o, "moe") != NULL;

    if (is_model == (o->positional_count > 0))
        return "expected either a file or --moe";
    if (is_model && options_string(o, "name") == NULL)
        return "--moe: goes with --name";
    if (!is_model && options_string(o, "uid") == NULL)
        return "a file: goes with --uid";
    return NULL;
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
    const char *wrong = contradiction(&o);
    if (wrong != NULL) {
        options_free(&o);
        return cli_usage_error(table.command, "%s", wrong);
    }
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error like a full disk */
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
