/* skep export: an expert's newest checkpoint as plain weights. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/tensor_files.h"
#include "experts/checkpoint_dir.h"
#include "experts/weights.h"

static const struct option_spec specs[] = {
    {.name = "checkpoint-dir",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .required = true,
     .help = "checkpoint folder of a node, which may be running"},
    {.name = "output",
     .kind = OPTION_STRING,
     .placeholder = "FILE",
     .required = true,
     .help = "safetensors file to write; an extension of another format is refused"},
    {.name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"},
};

static const struct option_table table = {
    .command = "export",
    .summary = "Writes the parameters of an expert's newest checkpoint to a plain safetensors "
               "file, which PyTorch's load_state_dict accepts. Reports the number of updates and"
               " the age of the checkpoint; a running node may have a newer state in memory.",
    .example = "skep export ffn.0.1 --checkpoint-dir experts --output ffn.safetensors",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "UID",
    .positional_min = 1,
    .positional_max = 1,
};
const struct option_table *const cmd_export_options = &table;

/* What reads a file by its name would not find in it what the name says. */
static int check_output(const char *path)
{
    static const char *const others[] = {".npy",    ".npz",  ".pt", ".pth",  ".bin", ".pkl",
                                         ".pickle", ".ckpt", ".h5", ".onnx", ".gguf"};

    for (size_t i = 0; i < OPTION_COUNT(others); i++)
        if (file_name_ends_in(path, others[i]))
            return cli_usage_error(table.command,
                                   "--output %s: is going to be a safetensors file, expected a "
                                   "name that ends in .safetensors, not in %s",
                                   path, others[i]);
    return CLI_DONE;
}

struct exporting {
    const char *output;
    bool json;
    bool is_in_use; /* by a node, which may know a newer state */
};

/* Seconds since a file was written; 0 if that is not known, or in the future. */
static int64_t age_of(const char *path)
{
    struct stat info;
    int64_t age = stat(path, &info) == 0 ? clock_wall_ms() / 1000 - (int64_t)info.st_mtime : 0;

    return age > 0 ? age : 0;
}

enum { AGE_TEXT_BYTES = 32 };

/* In the largest unit of which there are two or more. */
static const char *age_text(int64_t seconds, char out[static AGE_TEXT_BYTES])
{
    static const struct {
        int64_t seconds;
        const char *name;
    } units[] = {{86400, "days"}, {3600, "hours"}, {60, "min"}, {1, "s"}};
    size_t i = 0;

    while (units[i].seconds > 1 && seconds < 2 * units[i].seconds)
        i++;
    snprintf(out, AGE_TEXT_BYTES, "%" PRId64 " %s", seconds / units[i].seconds, units[i].name);
    return out;
}

static void tell(const struct exporting *e, const struct checkpoint_header *h, const char *path)
{
    char age[AGE_TEXT_BYTES];

    if (e->json)
        json_print(json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:s, s:s}", "uid", h->uid, "class",
                             h->options.cls, "hidden_dim", (json_int_t)h->options.hidden_dim,
                             "updates", (json_int_t)h->counters.updates, "age_s",
                             (json_int_t)age_of(path), "node_running", e->is_in_use, "checkpoint",
                             path, "output", e->output),
                   stdout);
    else
        printf("%s: weights of %s: after %" PRIu64 " update%s, saved %s ago\n", e->output, path,
               h->counters.updates, text_plural(h->counters.updates), age_text(age_of(path), age));
    if (e->is_in_use)
        log_warn("%s: a running node keeps its checkpoints here, and may have a newer state in "
                 "memory; it saves what has changed every --checkpoint-period and when it stops",
                 path);
}

static skep_status write_weights(void *arg, const struct checkpoint *checkpoint, const char *path,
                                 struct skep_error *err)
{
    struct exporting *e = arg;
    skep_status rc = weights_export(checkpoint, e->output, err);

    if (rc == SKEP_OK)
        tell(e, checkpoint_header(checkpoint), path);
    return rc;
}

int cmd_export(int argc, char **argv)
{
    struct options o;
    struct checkpoint_dir dir = {.lock = -1};
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    struct exporting exporting = {
        .output = options_string(&o, "output"),
        .json = options_flag(&o, "json"),
    };
    code = check_output(exporting.output);
    if (code != CLI_DONE) {
        options_free(&o);
        return code;
    }
    skep_status rc = output_file_check(exporting.output, &err);
    if (rc == SKEP_OK)
        rc = checkpoint_dir_open(&dir, options_string(&o, "checkpoint-dir"), false, &err);
    if (rc == SKEP_OK) {
        exporting.is_in_use = checkpoint_dir_is_in_use(&dir);
        rc = checkpoint_dir_load(&dir, o.positional[0], write_weights, &exporting, &err);
    }
    checkpoint_dir_close(&dir);
    options_free(&o);
    return rc == SKEP_OK ? CLI_DONE : cli_fail_before(table.command, &err);
}
