/* See node_usage.h. */
#include "cli/node_usage.h"

#include <inttypes.h>
#include <string.h>

#include "cli/expert_options.h"
#include "cli/output.h"

bool node_makes_experts(const struct options *o)
{
    return options_given(o, "expert-uids") ||
           (options_given(o, "expert-pattern") &&
            (options_given(o, "num-experts") || !options_flag(o, "load-experts")));
}

/* Without another one. */
static int check_needs(struct options *o)
{
    static const struct {
        const char *name, *needs;
    } rows[] = {
        {"num-experts", "expert-pattern"},
        {"load-experts", "checkpoint-dir"},
        {"allow-fewer", "expert-pattern"},
        {"checkpoint-period", "checkpoint-dir"},
        {"keep-checkpoints", "checkpoint-dir"},
        {"strict-checkpoints", "load-experts"},
        {"lease-timeout", "tracker-key"},
        {"lease-silence", "tracker-key"},
        {"tracker", "tracker-key"},
    };
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(rows) && code == CLI_DONE; i++)
        code = options_needs(o, rows[i].name, rows[i].needs);
    return code;
}

/* One of them alone can hold. */
static int check_contrary(struct options *o)
{
    static const char no_swarm[] = "contradicts --no-dht, which joins no swarm";
    int code = options_contrary(o, "initial-peers", "no-dht", no_swarm);

    if (code == CLI_DONE)
        code = options_contrary(o, "peers-file", "no-dht", no_swarm);
    if (code == CLI_DONE)
        code = options_contrary(o, "tracker-listen", "no-tracker", "contradicts --no-tracker");
    if (code == CLI_DONE && !options_given(o, "tracker"))
        code =
            options_contrary(o, "tracker-key", "no-tracker", "needs --tracker with --no-tracker");
    if (code == CLI_DONE && options_int(o, "min-batch-size") > options_int(o, "max-batch-size"))
        code = options_outrank(o, "min-batch-size", "max-batch-size");
    if (code == CLI_DONE &&
        options_int(o, "num-warmup-steps") > options_int(o, "num-training-steps"))
        code = options_outrank(o, "num-warmup-steps", "num-training-steps");
    return code;
}

/* Beside a flag. */
static int check_flags(struct options *o)
{
    static const struct {
        const char *name, *flag;
    } rows[] = {
        {"no-federation", "no-tracker"},
        {"no-federation", "no-dht"},
        {"dht-listen", "no-dht"},
        {"update-period", "no-dht"},
    };
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(rows) && code == CLI_DONE; i++)
        if (options_flag(o, rows[i].flag))
            code = options_idle(o, rows[i].name, "does nothing with --%s", rows[i].flag);
    if (code == CLI_DONE && options_flag(o, "no-dht") && !options_given(o, "tracker-key"))
        code = options_idle(o, "announce", "does nothing with --no-dht and without --tracker-key");
    return code;
}

/* Options of experts that are made. */
static const char *const of_new_experts[] = {"expert-cls",   "hidden-dim",   "intermediate-dim",
                                             "padding-mask", "max-sequence", "float-mask",
                                             "evaluation",   "seed"};

/* All are as they were saved. */
static int check_saved(struct options *o)
{
    bool loads_alone = options_flag(o, "load-experts") && !node_makes_experts(o);
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(of_new_experts) && code == CLI_DONE && loads_alone; i++)
        code = options_idle(o, of_new_experts[i],
                            "does nothing with --load-experts alone, which keeps class and "
                            "size as saved; --expert-uids or --num-experts makes new experts");
    return code;
}

/* There are no experts. */
static int check_no_experts(struct options *o)
{
    static const char *const of_all[] = {"plugin",
                                         "precision",
                                         "max-memory",
                                         "optimizer",
                                         "learning-rate",
                                         "beta1",
                                         "beta2",
                                         "eps",
                                         "weight-decay",
                                         "momentum",
                                         "clip-grad-norm",
                                         "schedule",
                                         "num-warmup-steps",
                                         "num-training-steps",
                                         "checkpoint-dir",
                                         "checkpoint-period",
                                         "keep-checkpoints",
                                         "max-batch-size",
                                         "min-batch-size",
                                         "batch-timeout",
                                         "max-queued-tasks",
                                         "stall-timeout",
                                         "detect-anomalies",
                                         "compression",
                                         "grad-compression"};
    bool has = node_makes_experts(o) || options_flag(o, "load-experts");
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(of_new_experts) && code == CLI_DONE && !has; i++)
        code = options_idle(o, of_new_experts[i], "needs --expert-uids or --expert-pattern");
    for (size_t i = 0; i < OPTION_COUNT(of_all) && code == CLI_DONE && !has; i++)
        code =
            options_idle(o, of_all[i], "needs --expert-uids, --expert-pattern or --load-experts");
    return code;
}

/* What a schedule does not have; of those that are loaded it may be another one. */
static int check_schedule(struct options *o)
{
    const char *schedule = options_string(o, "schedule");
    int code = CLI_DONE;

    if (options_flag(o, "load-experts") && !options_given(o, "schedule"))
        return CLI_DONE;
    if (strcmp(schedule, "none") == 0) {
        code = options_idle(o, "num-warmup-steps", "needs --schedule");
        if (code == CLI_DONE)
            code = options_idle(o, "num-training-steps", "needs --schedule");
    } else if (strcmp(schedule, "constant-with-warmup") == 0) {
        code = options_idle(o, "num-training-steps", "does nothing with --schedule %s", schedule);
    } else if (!options_given(o, "num-training-steps")) {
        code = cli_usage_error(o->table->command, "--schedule %s: needs --num-training-steps",
                               schedule);
    }
    return code;
}

static int check_at_most(struct options *o, const char *name, const char *limit)
{
    if (!options_given(o, name) || options_int(o, name) <= options_int(o, limit))
        return CLI_DONE;
    return cli_usage_error(o->table->command, "--%s: %" PRId64 ", expected at most --%s, %" PRId64,
                           name, options_int(o, name), limit, options_int(o, limit));
}

static int check_numbers(struct options *o)
{
    int code = check_at_most(o, "min-batch-size", "max-batch-size");

    if (code == CLI_DONE && options_given(o, "num-training-steps"))
        code = check_at_most(o, "num-warmup-steps", "num-training-steps");
    return code;
}

/* Rows are waited for only with both; one without the other would wait for none. */
static int check_waiting(struct options *o)
{
    int code = CLI_DONE;

    if (options_int(o, "min-batch-size") > 1 && options_int(o, "batch-timeout") == 0)
        code = options_idle(o, "min-batch-size",
                            "needs --batch-timeout: how long to wait for that many rows");
    if (code == CLI_DONE && options_int(o, "batch-timeout") > 0 &&
        options_int(o, "min-batch-size") == 1)
        code = options_idle(o, "batch-timeout",
                            "needs --min-batch-size of 2 or more: the rows to wait for");
    return code;
}

/* Of another optimizer. */
static int check_optimizer(struct options *o)
{
    static const struct {
        const char *name, *of; /* NULL: of all but "none" */
    } rows[] = {
        {"learning-rate", NULL}, {"beta1", "adam"},   {"beta2", "adam"},        {"eps", "adam"},
        {"weight-decay", NULL},  {"momentum", "sgd"}, {"clip-grad-norm", NULL}, {"schedule", NULL},
    };
    const char *optimizer = options_string(o, "optimizer");
    int code = CLI_DONE;

    /* Those that are loaded may have any, of which this may be the setting. */
    if (options_flag(o, "load-experts") && !options_given(o, "optimizer"))
        return CLI_DONE;
    for (size_t i = 0; i < OPTION_COUNT(rows) && code == CLI_DONE; i++) {
        const char *of = rows[i].of;
        bool takes = strcmp(optimizer, "none") != 0 &&
                     (of == NULL || strncmp(optimizer, of, strlen(of)) == 0); /* adam, adamw */
        if (!takes)
            code = options_idle(o, rows[i].name, "does nothing with --optimizer %s", optimizer);
    }
    return code;
}

int node_check_usage(struct options *o)
{
    int (*const checks[])(struct options *) = {
        check_contrary,   check_needs,    check_flags,
        check_saved,      check_schedule, expert_class_options_check,
        check_optimizer,  check_numbers,  check_waiting,
        check_no_experts,
    };
    int code = CLI_DONE;

    for (size_t i = 0; i < OPTION_COUNT(checks) && code == CLI_DONE; i++)
        code = checks[i](o);
    return code;
}
