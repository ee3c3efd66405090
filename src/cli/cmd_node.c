/* skep node: runs a node until SIGINT, SIGTERM or SIGHUP. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <skep/node.h>
#include <skep/plugin.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/compression.h"
#include "cli/expert_options.h"
#include "cli/node_print.h"
#include "cli/node_usage.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/service_notify.h"
#include "cli/signals.h"
#include "cli/swarm_options.h"
#include "dht/record/uid.h"
#include "node/lifecycle/check_alive.h"

#define EXPECTED_CHECKPOINTS                                                                       \
    "expected the folder of experts that a node with --checkpoint-dir has kept, or skep import "   \
    "has filled"
#define TIME_MAX_MS 3600000000 /* 1000 h, of what the node counts in 32 bits */

enum {
    READY_TIMEOUT_MS = 5000,
    LOOK_MS = 1000, /* how often --json looks whether the reachability has changed */
};

static skep_status check_uid(const char *text, struct skep_error *err)
{
    struct uid uid;

    return uid_parse(&uid, text, err);
}

static skep_status check_pattern(const char *text, struct skep_error *err)
{
    struct uid_pattern pattern;

    return uid_pattern_parse(&pattern, text, err);
}

static const struct option_spec specs[] = {
    /* where */
    {.name = "listen",
     .section = "Addresses and swarm",
     .kind = OPTION_ENDPOINT,
     .any_port = true,
     .default_text = "0.0.0.0:*",
     .help = "TCP endpoint for requests; * as port picks one"},
    SWARM_ENDPOINT_OPTION_SPECS,
    /* swarm */
    SWARM_OPTION_SPECS("node"),
    {.name = "no-dht",
     .kind = OPTION_FLAG,
     .help = "serve only: publish nothing and look nothing up"},
    {.name = "insecure-plaintext",
     .kind = OPTION_FLAG,
     .help = "no encryption and no authentication, for closed networks and benchmarks"},
    /* experts */
    {.name = "expert-uids",
     .section = "Experts",
     .kind = OPTION_LIST,
     .placeholder = "UID,...",
     .check = check_uid,
     .help = "experts to host, by UID"},
    {.name = "expert-pattern",
     .kind = OPTION_STRING,
     .placeholder = "PATTERN",
     .check = check_pattern,
     .help = "host experts with random free UIDs of this pattern, such as "
             "ffn.[0:32].[0:256]; those found in --checkpoint-dir come first"},
    {.name = "num-experts",
     .kind = OPTION_INT,
     .min = 1,
     .max = 100000,
     .help = "number of experts for --expert-pattern",
     .unset = "1"},
    {.name = "allow-fewer",
     .kind = OPTION_FLAG,
     .help = "if --expert-pattern has fewer free UIDs than --num-experts, host those instead"
             " of refusing to start"},
    {.name = "expert-cls",
     .kind = OPTION_STRING,
     .placeholder = "CLASS",
     .default_text = "ffn",
     .help = "class of the experts; CLASS:TEXT hands a plugin's class a text, such as a path"},
    {.name = "plugin",
     .kind = OPTION_LIST,
     .placeholder = "PATH,...",
     .help = "shared objects with expert classes (skep/plugin.h); they run with all rights "
             "of this process"},
    {.name = "hidden-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .default_text = "1024",
     .help = "width of the experts' inputs and outputs"},
    {.name = "intermediate-dim",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1048576,
     .help = "inner width of swiglu experts",
     .unset = "4 times --hidden-dim"},
    EXPERT_CLASS_OPTION_SPECS,
    {.name = "precision",
     .kind = OPTION_CHOICE,
     .choices = "float32|bfloat16",
     .default_text = "float32",
     .help = "data type of matrix products; parameters and optimizer state stay float32"},
    {.name = "max-memory",
     .kind = OPTION_INT,
     .min = 1,
     .max = INT64_MAX,
     .unit = "bytes",
     .help = "memory limit for experts",
     .unset = "all that is available"},
    /* training */
    {.name = "optimizer",
     .section = "Training",
     .kind = OPTION_CHOICE,
     .choices = "adam|adamw|sgd|none",
     .default_text = "adam",
     .help = "optimizer that backward calls run; none: backward calls train nothing"},
    {.name = "learning-rate",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1e6,
     .default_text = "0.001",
     .help = "learning rate"},
    {.name = "beta1",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1,
     .default_text = "0.9",
     .help = "beta1 of adam and adamw, below 1"},
    {.name = "beta2",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1,
     .default_text = "0.999",
     .help = "beta2 of adam and adamw, below 1"},
    {.name = "eps",
     .kind = OPTION_FLOAT,
     .number_min = 1e-30,
     .number_max = 1e6,
     .default_text = "1e-8",
     .help = "epsilon of adam and adamw"},
    {.name = "weight-decay",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1e6,
     .help = "weight decay: decoupled in adamw, added to the gradients in adam and sgd",
     .unset = "0.01 for adamw, otherwise 0"},
    {.name = "momentum",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1,
     .default_text = "0",
     .help = "momentum of sgd, below 1"},
    {.name = "clip-grad-norm",
     .kind = OPTION_FLOAT,
     .number_min = 0,
     .number_max = 1e12,
     .default_text = "0",
     .help = "scale an expert's gradients down to this norm when they exceed it; 0: never"},
    {.name = "schedule",
     .kind = OPTION_CHOICE,
     .placeholder = "NAME",
     .choices = "none|constant-with-warmup|linear-with-warmup",
     .default_text = "none",
     .help = "learning rate schedule: none, constant-with-warmup or linear-with-warmup"},
    {.name = "num-warmup-steps",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT64_MAX,
     .default_text = "0",
     .help = "steps over which --schedule raises the learning rate from 0"},
    {.name = "num-training-steps",
     .kind = OPTION_INT,
     .min = 1,
     .max = INT64_MAX,
     .help = "step at which linear-with-warmup reaches 0"},
    {.name = "seed",
     .kind = OPTION_INT,
     .min = 0,
     .max = INT64_MAX,
     .help = "seed of the initial parameters: the same seed and UID give the same expert on "
             "every node",
     .unset = "random"},
    {.name = "checkpoint-dir",
     .section = "Checkpoints",
     .kind = OPTION_STRING,
     .placeholder = "DIR",
     .help = "folder for checkpoints: experts are loaded from it at start, and saved to it "
             "periodically and at shutdown; with --optimizer none, existing checkpoints are "
             "only read"},
    {.name = "checkpoint-period",
     .kind = OPTION_FLOAT,
     .number_min = 0.01,
     .number_max = TIME_MAX_MS / 1000.0,
     .unit = "s",
     .default_text = "5m",
     .help = "time between checkpoints of experts that have changed"},
    {.name = "keep-checkpoints",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000000,
     .default_text = "2",
     .help = "checkpoints to keep per expert; older ones are removed"},
    {.name = "load-experts",
     .kind = OPTION_FLAG,
     .help = "host the experts in --checkpoint-dir, with the class and size they were saved "
             "with: all of them, or only those of --expert-pattern or --expert-uids. With "
             "neither, at least one must be there"},
    {.name = "strict-checkpoints",
     .kind = OPTION_FLAG,
     .help = "refuse to start if --load-experts would skip a checkpoint with a warning"},
    /* batches */
    {.name = "max-batch-size",
     .section = "Batching",
     .kind = OPTION_INT,
     .min = 1,
     .max = INT32_MAX,
     .unit = "rows",
     .default_text = "4096",
     .help = "maximum rows per batch, and per request"},
    {.name = "min-batch-size",
     .kind = OPTION_INT,
     .min = 1,
     .max = INT32_MAX,
     .unit = "rows",
     .default_text = "1",
     .help = "rows to collect before a batch starts, for at most --batch-timeout"},
    {.name = "batch-timeout",
     .kind = OPTION_INT,
     .min = 0,
     .max = 3600000,
     .unit = "ms",
     .default_text = "0",
     .help = "how long to wait for --min-batch-size rows"},
    {.name = "max-queued-tasks",
     .kind = OPTION_INT,
     .min = 1,
     .max = INT32_MAX,
     .default_text = "1024",
     .help = "maximum requests queued per expert and direction; further ones are refused"},
    {.name = "stall-timeout",
     .kind = OPTION_INT,
     .min = 0,
     .max = 86400000,
     .unit = "ms",
     .default_text = "60s",
     .help = "unpublish an expert whose batch takes longer than this, until it ends; 0: "
             "never"},
    {.name = "detect-anomalies",
     .kind = OPTION_FLAG,
     .help = "refuse NaN and infinity in requests and results; without this option they are "
             "only counted"},
    COMPRESSION_OPTION_SPECS(
        "compression of F32 outputs, unless the caller chooses: none, float16, "
        "bfloat16, meanstd16, uniform8, quantile8 or blockwise8",
        "the same for gradients of inputs", "none"),
    /* limits */
    {.name = "num-handlers",
     .section = "Limits",
     .kind = OPTION_INT,
     .min = 1,
     .max = 64,
     .help = "I/O threads",
     .unset = "1, or 2 with more than 2 CPUs"},
    {.name = "max-connections",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .default_text = "4096",
     .help = "maximum open connections; when full, a connection without a handshake after 1 "
             "s is closed, otherwise the newest one"},
    {.name = "max-connections-per-address",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1 << 20,
     .help = "the same limit per IPv4 address or IPv6 /64, except loopback",
     .unset = "a quarter of --max-connections, at least 16"},
    {.name = "max-message-bytes",
     .kind = OPTION_INT,
     .min = 4096,
     .max = INT64_MAX - 1,
     .unit = "bytes",
     .default_text = "1G",
     .help = "maximum size of one request or reply"},
    {.name = "drain-timeout",
     .kind = OPTION_INT,
     .min = 0,
     .max = 3600000,
     .unit = "ms",
     .default_text = "3s",
     .help = "how long a stopping node may take to finish running calls"},
    /* tracker */
    {.name = "tracker-listen",
     .section = "Tracker",
     .kind = OPTION_ENDPOINT,
     .any_port = true,
     .help = "TCP endpoint of this node's own tracker for TVM peers, which is neither "
             "encrypted nor authenticated; * as port picks the first free one of 9190 to "
             "9198, or any if all are taken",
     .unset = "loopback, port *"},
    {.name = "no-tracker", .kind = OPTION_FLAG, .help = "run no tracker beside the node"},
    {.name = "no-federation",
     .kind = OPTION_FLAG,
     .help = "do not exchange resources with other trackers of the swarm"},
    {.name = "tracker",
     .kind = OPTION_ENDPOINT,
     .help = "tracker to register with under --tracker-key",
     .unset = "the node's own"},
    {.name = "tracker-key",
     .kind = OPTION_STRING,
     .placeholder = "KEY",
     .help = "register with a tracker under this key; its clients can then lease this node"},
    {.name = "lease-timeout",
     .kind = OPTION_INT,
     .min = 100,
     .max = TIME_MAX_MS,
     .unit = "ms",
     .default_text = "10m",
     .help = "maximum duration of a lease, unless renewed"},
    {.name = "lease-silence",
     .kind = OPTION_INT,
     .min = 100,
     .max = TIME_MAX_MS,
     .unit = "ms",
     .default_text = "15s",
     .help = "end a lease whose holder answers no ping for this long"},
    {.name = "stats-report-interval",
     .section = "Output",
     .kind = OPTION_INT,
     .min = 0,
     .max = 86400,
     .unit = "s",
     .default_text = "0",
     .help = "how often to report statistics; 0: never"},
    {.name = "json",
     .kind = OPTION_FLAG,
     .help = "print a JSON line when ready, for each report and at shutdown"},
};

static const struct option_table table = {
    .command = "node",
    .summary =
        "Runs a node: hosts experts, publishes them in the swarm's DHT and serves forward and "
        "backward requests. SIGINT, SIGTERM or SIGHUP stops it; a second signal ends it at once.",
    .example = "skep node --listen 127.0.0.1:* --expert-uids ffn.0.0,ffn.0.1 --hidden-dim 64\n"
               "skep node --initial-peers 192.0.2.7:4222 --expert-pattern 'ffn.[0:32].[0:256]' "
               "--num-experts 16",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .log_level = "info",
};
const struct option_table *const cmd_node_options = &table;

/* --- from options to a node ---------------------------------------------------------------- */

/* Room for the texts that options of a node point to. */
struct texts {
    struct swarm_texts swarm;
    char tracker_listen[ENDPOINT_TEXT_BYTES];
    char tracker[ENDPOINT_TEXT_BYTES];
};

static void fill_node_options(const struct options *o, struct texts *texts,
                              struct skep_node_options *out)
{
    skep_node_options_init(out);
    swarm_options_read(o, &texts->swarm, out);
    out->no_dht = options_flag(o, "no-dht");
    out->insecure_plaintext = options_flag(o, "insecure-plaintext");
    out->max_batch_size = options_int(o, "max-batch-size");
    out->min_batch_size = options_int(o, "min-batch-size");
    out->batch_timeout_ms = (uint32_t)options_int(o, "batch-timeout");
    out->max_queued_tasks = (size_t)options_int(o, "max-queued-tasks");
    out->stall_timeout_ms = (uint32_t)options_int(o, "stall-timeout");
    out->detect_anomalies = options_flag(o, "detect-anomalies");
    out->compression = compression_option(o, "compression");
    out->grad_compression = compression_option(o, "grad-compression");
    out->num_handlers = (unsigned)options_int(o, "num-handlers");
    out->max_connections = (unsigned)options_int(o, "max-connections");
    if (options_given(o, "max-connections-per-address"))
        out->max_connections_per_address = (unsigned)options_int(o, "max-connections-per-address");
    out->max_message_bytes = (uint64_t)options_int(o, "max-message-bytes");
    out->drain_timeout_ms = (uint32_t)options_int(o, "drain-timeout");
    if (options_given(o, "max-memory"))
        out->max_memory = (uint64_t)options_int(o, "max-memory");
    out->checkpoint_dir = options_string(o, "checkpoint-dir");
    out->checkpoint_period_ms = (uint32_t)(options_float(o, "checkpoint-period") * 1000.0);
    out->keep_checkpoints = (unsigned)options_int(o, "keep-checkpoints");
    out->strict_checkpoints = options_flag(o, "strict-checkpoints");
    out->allow_fewer = options_flag(o, "allow-fewer");
    out->no_tracker = options_flag(o, "no-tracker");
    out->tracker_listen = swarm_option_endpoint(o, "tracker-listen", texts->tracker_listen);
    out->no_federation = options_flag(o, "no-federation");
    out->tracker = swarm_option_endpoint(o, "tracker", texts->tracker);
    out->tracker_key = options_string(o, "tracker-key");
    out->lease_timeout_ms = (uint32_t)options_int(o, "lease-timeout");
    out->lease_silence_ms = (uint32_t)options_int(o, "lease-silence");
    if (!options_flag(o, "json")) /* else the reports are printed here */
        out->stats_report_interval_s = (uint32_t)options_int(o, "stats-report-interval");
}

static skep_status choose_seed(const struct options *o, uint64_t *seed, struct skep_error *err)
{
    *seed = (uint64_t)options_int(o, "seed");
    if (options_given(o, "seed") || getrandom(seed, sizeof(*seed), 0) == (ssize_t)sizeof(*seed))
        return SKEP_OK;
    return error_set(err, SKEP_INTERNAL, "seed: the system gives no random numbers");
}

/* An option that decides how experts train or compute, and where its value goes. */
struct expert_option {
    const char *name;
    enum { TEXT, NUMBER, STEPS } kind;
    size_t offset;
};
#define EXPERT_OPTION(name, kind, field)                                                           \
    {                                                                                              \
        name, kind, offsetof(struct skep_expert_options, field)                                    \
    }

static const struct expert_option expert_options[] = {
    EXPERT_OPTION("optimizer", TEXT, optimizer),
    EXPERT_OPTION("learning-rate", NUMBER, learning_rate),
    EXPERT_OPTION("beta1", NUMBER, beta1),
    EXPERT_OPTION("beta2", NUMBER, beta2),
    EXPERT_OPTION("eps", NUMBER, eps),
    EXPERT_OPTION("weight-decay", NUMBER, weight_decay),
    EXPERT_OPTION("momentum", NUMBER, momentum),
    EXPERT_OPTION("clip-grad-norm", NUMBER, clip_grad_norm),
    EXPERT_OPTION("schedule", TEXT, schedule),
    EXPERT_OPTION("num-warmup-steps", STEPS, warmup_steps),
    EXPERT_OPTION("num-training-steps", STEPS, training_steps),
    EXPERT_OPTION("precision", TEXT, precision),
};

/* Those that were given; what is not has its default in `out`, the same as in the table above. */
static void fill_given(const struct options *o, struct skep_expert_options *out)
{
    for (size_t i = 0; i < OPTION_COUNT(expert_options); i++) {
        const struct expert_option *e = &expert_options[i];
        void *field = (uint8_t *)out + e->offset;

        if (!options_given(o, e->name))
            continue;
        if (e->kind == TEXT)
            *(const char **)field = options_string(o, e->name);
        else if (e->kind == NUMBER)
            *(double *)field = options_float(o, e->name);
        else
            *(uint64_t *)field = (uint64_t)options_int(o, e->name);
    }
}

static void fill_expert_options(const struct options *o, struct skep_expert_options *out)
{
    skep_expert_options_init(out);
    out->cls = options_string(o, "expert-cls");
    out->hidden_dim = options_int(o, "hidden-dim");
    expert_class_options_read(o, out);
    fill_given(o, out);
}

/* What the command line says of training; for the rest a checkpoint decides. */
static void fill_training(const struct options *o, struct skep_expert_options *out)
{
    skep_expert_options_unset(out);
    fill_given(o, out);
}

static skep_status load_plugins(const struct options *o, struct skep_error *err)
{
    size_t count;
    const char *const *paths = options_list(o, "plugin", &count);
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count && rc == SKEP_OK; i++)
        rc = skep_plugin_load(paths[i], err);
    return rc;
}

/* A folder that is missing would be made, and serve nothing. */
static skep_status check_checkpoint_dir(const struct options *o, struct skep_error *err)
{
    const char *dir = options_string(o, "checkpoint-dir");
    struct stat info;

    if (node_makes_experts(o) || stat(dir, &info) == 0 || errno != ENOENT)
        return SKEP_OK; /* what else is wrong with it shows when it is opened */
    return error_set(err, SKEP_NOT_FOUND, "%s: does not exist, " EXPECTED_CHECKPOINTS, dir);
}

/* Those of the folder; how many are still wanted of the pattern is told. */
static skep_status load_experts(const struct options *o, struct skep_node *node, int64_t *wanted,
                                struct skep_error *err)
{
    struct skep_expert_options training;
    const char *pattern = options_string(o, "expert-pattern");
    size_t uid_count;
    const char *const *uids = options_list(o, "expert-uids", &uid_count);
    size_t loaded = 0;
    skep_status rc = check_checkpoint_dir(o, err);

    fill_training(o, &training);
    for (size_t i = 0; i < uid_count && rc == SKEP_OK; i++) {
        rc = skep_node_load_expert(node, uids[i], &training, err);
        if (rc == SKEP_NOT_FOUND) /* a new one, made below */
            rc = SKEP_OK;
    }
    if (rc == SKEP_OK && (pattern != NULL || uid_count == 0))
        rc = skep_node_load_experts(node, pattern, &training, &loaded, err);
    if (rc == SKEP_OK && skep_node_expert_count(node) == 0 && !node_makes_experts(o))
        rc = error_set(err, SKEP_NOT_FOUND,
                       "%s: holds no expert that can be loaded, " EXPECTED_CHECKPOINTS,
                       options_string(o, "checkpoint-dir"));
    else if (rc == SKEP_OK && skep_node_expert_count(node) == 0 && pattern == NULL)
        log_warn("%s: no expert to load; those asked for begin anew",
                 options_string(o, "checkpoint-dir"));
    *wanted = options_int(o, "num-experts") - (int64_t)loaded;
    return rc;
}

static bool is_added(const struct skep_node *node, const char *uid)
{
    for (size_t i = 0; i < skep_node_expert_count(node); i++)
        if (strcmp(skep_node_expert_uid(node, i), uid) == 0)
            return true;
    return false;
}

static skep_status add_experts(const struct options *o, struct skep_node *node,
                               struct skep_error *err)
{
    struct skep_expert_options expert;
    const char *pattern = options_string(o, "expert-pattern");
    size_t count;
    const char *const *uids = options_list(o, "expert-uids", &count);
    int64_t wanted = options_given(o, "num-experts") ? options_int(o, "num-experts") : 1;
    uint64_t seed;
    skep_status rc = choose_seed(o, &seed, err);
    bool loads = options_flag(o, "load-experts");

    fill_expert_options(o, &expert);
    if (rc == SKEP_OK && loads)
        rc = load_experts(o, node, &wanted, err);
    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        if (loads && is_added(node, uids[i]))
            continue;
        expert.seed = skep_expert_seed(seed, uids[i]);
        rc = skep_node_add_expert(node, uids[i], &expert, err);
    }
    if (rc == SKEP_OK && pattern != NULL && wanted > 0) {
        expert.seed = seed;
        rc = skep_node_add_pattern(node, pattern, (size_t)wanted, &expert, err);
    }
    return rc;
}

/* --- running ------------------------------------------------------------------------------- */

/* A node that serves, and what was printed of it. */
struct serving {
    struct skep_node *node;
    uint64_t interval_us, next_us; /* of the statistics; next_us CLOCK_NEVER: they are not wanted */
    enum skep_reachability reachability;
    uint64_t experts; /* node_experts_mark() */
};

static bool wait_node(void *arg, uint32_t timeout_ms)
{
    return skep_node_wait(((struct serving *)arg)->node, timeout_ms);
}

static void touch_node(void *arg)
{
    node_check_alive(((struct serving *)arg)->node);
}

static void report_node(void *arg)
{
    struct serving *s = arg;

    node_print_reachability(s->node, &s->reachability);
    node_print_experts(s->node, &s->experts);
    if (clock_mono_us() < s->next_us)
        return;
    node_print_stats(s->node, "stats");
    s->next_us += s->interval_us;
}

/* Waits for the end, reporting on the way. */
static void wait_stopped(const struct options *o, struct skep_node *node, uint64_t experts)
{
    uint64_t interval_ms = (uint64_t)options_int(o, "stats-report-interval") * 1000;
    struct serving s = {
        .node = node,
        .interval_us = interval_ms * 1000,
        .next_us = interval_ms > 0 ? clock_deadline_us(interval_ms) : CLOCK_NEVER,
        .reachability = SKEP_REACH_UNKNOWN,
        .experts = experts,
    };
    const struct service_run run = {
        .wait = wait_node,
        .touch = touch_node,
        .report = report_node,
        .report_ms = options_flag(o, "json") ? LOOK_MS : UINT32_MAX, /* else the node logs them */
        .arg = &s,
    };

    service_wait(&run);
}

static void stop(void *arg)
{
    skep_node_request_stop(arg);
}

static int run(const struct options *o, struct skep_node *node)
{
    bool json = options_flag(o, "json");
    struct skep_error err = {0};
    skep_status rc;

    service_notify_begin();
    signals_begin(stop, node);
    rc = skep_node_start(node, &err);
    if (rc == SKEP_OK) {
        /* Before they are printed: a change meanwhile is one. */
        uint64_t experts = node_experts_mark(node);
        /* It serves already; what is published by then is there when others look. */
        skep_status ready = skep_node_wait_ready(node, READY_TIMEOUT_MS, NULL);
        if (json && ready == SKEP_OK)
            node_print_ready(node);
        if (ready != SKEP_FAILED_PRECONDITION) /* stopped */
            service_notify_ready();
        wait_stopped(o, node, experts);
        if (json)
            node_print_stats(node, "stopped");
        rc = skep_node_run(node, &err); /* it has stopped: only whether all was saved */
    }
    signals_end();
    if (rc == SKEP_CANCELLED) /* by a signal */
        log_info("node: stopped before it was up");
    return rc == SKEP_OK || rc == SKEP_CANCELLED ? CLI_DONE : cli_fail_before(table.command, &err);
}

int cmd_node(int argc, char **argv)
{
    struct options o;
    struct texts texts;
    struct skep_node_options node_options;
    struct skep_node *node = NULL;
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = node_check_usage(&o);
    if (code != CLI_DONE)
        goto out;
    fill_node_options(&o, &texts, &node_options);
    skep_status rc = load_plugins(&o, &err);
    if (rc == SKEP_OK)
        rc = skep_node_new(&node_options, &node, &err);
    if (rc == SKEP_OK)
        rc = add_experts(&o, node, &err);
    if (rc == SKEP_OK)
        code = run(&o, node);
    else if (rc == SKEP_INVALID_ARGUMENT) /* options that do not go together */
        code = cli_usage_error(table.command, "%s", err.message);
    else
        code = cli_fail_before(table.command, &err);

out:
    skep_node_free(node);
    options_free(&o);
    return code;
}
