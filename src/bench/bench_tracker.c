/*
 * skep bench tracker: a tracker process with thousands of registered servers, and clients that ask
 * without pause. Baseline of the same run: a process that answers the same messages at once, with
 * bytes made beforehand, and neither parses nor schedules; for what is measured beside SUMMARY, the
 * same without.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/error.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_node.h"
#include "bench/bench_tracker_load.h"

enum {
    MAX_RUNS = 20,
    SUMMARIES = 20,
    ONE_CLIENT_PAIRS = 20, /* the share of one client's run: 1 in so many */
};

static const struct option_spec specs[] = {
    {.name = "num-servers",
     .kind = OPTION_INT,
     .min = 100,
     .max = BENCH_LOAD_MAX_PEERS,
     .default_text = "10000",
     .help = "registered servers, each with one resource"},
    {.name = "num-clients",
     .kind = OPTION_INT,
     .min = 1,
     .max = 10000,
     .default_text = "64",
     .help = "clients, each with one request under way"},
    {.name = "num-pairs",
     .kind = OPTION_INT,
     .min = 1000,
     .max = BENCH_MAX_SAMPLES,
     .default_text = "200000",
     .help = "REQUEST and PUT pairs a run"},
    BENCH_OPTION_RUNS(MAX_RUNS, "5", "measured runs of each case; medians are shown"),
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench tracker",
    .summary = "Measures a tracker process under REQUEST and PUT pairs on loopback, against a "
               "process that only answers the same messages.",
    .example = "skep bench tracker\nskep bench tracker --num-servers 1000 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

struct runs {
    double rate[MAX_RUNS], median[MAX_RUNS], p99[MAX_RUNS], longest[MAX_RUNS], one[MAX_RUNS];
    double summary[MAX_RUNS], summary_longest[MAX_RUNS];
    uint64_t summary_bytes;
};

struct bench {
    struct bench_frame *frame;
    size_t servers, clients;
    uint64_t pairs;
    struct bench_node tracker;
    uint16_t tracker_port, echo_port;
    pid_t echo; /* 0: none */
    struct bench_load load;
    struct bench_samples latency, summary;
    struct runs ours, theirs;
    double beside[MAX_RUNS], beside_rate[MAX_RUNS]; /* with summaries meanwhile */
};

static skep_status start_all(struct bench *b, struct skep_error *err)
{
    const char *arguments[] = {"tracker", "--host",   "127.0.0.1",         "--port",
                               "0",       "--silent", "--max-connections", "1000000",
                               NULL};

    bench_frame_step(b->frame, "starting");
    skep_status rc = bench_tracker_echo(b->servers, &b->echo_port, &b->echo, err);
    if (rc == SKEP_OK)
        rc = bench_node_start(&b->tracker, arguments, err);
    if (rc == SKEP_OK)
        b->tracker_port = (uint16_t)json_integer_value(json_object_get(b->tracker.facts, "port"));
    return rc;
}

/* Both sides at once would need twice as many open files as most systems allow. */
static skep_status connect_all(struct bench *b, uint16_t port, struct skep_error *err)
{
    double warm_up;

    bench_load_close(&b->load);
    skep_status rc = bench_load_open(&b->load, port, b->servers, b->clients, err);
    if (rc == SKEP_OK)
        rc = bench_load_run(&b->load, b->clients, b->pairs / 10, NULL, NULL, &warm_up, err);
    return rc;
}

/* With nothing else going on. */
static skep_status measure_summaries(struct bench *b, struct runs *out, size_t run,
                                     struct skep_error *err)
{
    bench_samples_clear(&b->summary);
    skep_status rc = bench_load_summaries(&b->load, SUMMARIES, &b->summary, err);
    struct bench_summary s = bench_samples_summarize(&b->summary);

    out->summary[run] = s.median / 1e6;
    out->summary_longest[run] = s.max / 1e6;
    out->summary_bytes = b->load.summary_bytes;
    return rc;
}

static skep_status measure_side(struct bench *b, uint16_t port, struct runs *out, size_t run,
                                struct skep_error *err)
{
    skep_status rc = connect_all(b, port, err);

    bench_samples_clear(&b->latency);
    if (rc == SKEP_OK)
        rc =
            bench_load_run(&b->load, b->clients, b->pairs, &b->latency, NULL, &out->rate[run], err);
    struct bench_summary s = bench_samples_summarize(&b->latency);
    out->median[run] = s.median / 1e6;
    out->p99[run] = s.p99 / 1e6;
    out->longest[run] = s.max / 1e6;
    if (rc == SKEP_OK)
        rc = bench_load_run(&b->load, 1, b->pairs / ONE_CLIENT_PAIRS, NULL, NULL, &out->one[run],
                            err);
    if (rc == SKEP_OK)
        rc = measure_summaries(b, out, run, err);
    return rc;
}

static skep_status measure_beside(struct bench *b, size_t run, struct skep_error *err)
{
    bench_samples_clear(&b->latency);
    bench_samples_clear(&b->summary);
    skep_status rc = bench_load_run(&b->load, b->clients, b->pairs, &b->latency, &b->summary,
                                    &b->beside_rate[run], err);

    b->beside[run] = bench_samples_summarize(&b->latency).max / 1e6;
    return rc;
}

static skep_status measure(struct bench *b, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t run = 0; run < b->frame->runs && rc == SKEP_OK; run++) {
        bench_frame_step(b->frame, "pairs");
        rc = measure_side(b, b->echo_port, &b->theirs, run, err);
        if (rc == SKEP_OK)
            rc = measure_side(b, b->tracker_port, &b->ours, run, err);
        if (rc == SKEP_OK)
            rc = measure_beside(b, run, err);
    }
    return rc;
}

static skep_status add(struct bench *b, const char *what, const char *unit, double *values,
                       double *baselines, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];

    snprintf(name, sizeof(name), "%s, %zu servers, %zu clients", what, b->servers, b->clients);
    return bench_frame_add(b->frame, name, unit, values, baselines, err);
}

static skep_status report_runs(struct bench *b, struct skep_error *err)
{
    skep_status rc = add(b, "REQUEST and PUT pairs", "pairs/s", b->ours.rate, b->theirs.rate, err);

    if (rc == SKEP_OK)
        rc = add(b, "REQUEST, median", "ms", b->ours.median, b->theirs.median, err);
    if (rc == SKEP_OK)
        rc = add(b, "REQUEST, 99 of 100", "ms", b->ours.p99, b->theirs.p99, err);
    if (rc == SKEP_OK)
        rc = add(b, "REQUEST, longest", "ms", b->ours.longest, b->theirs.longest, err);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, "REQUEST and PUT pairs, one client", "pairs/s", b->ours.one,
                             b->theirs.one, err);
    if (rc == SKEP_OK)
        rc = add(b, "pairs, and 10 SUMMARY/s", "pairs/s", b->beside_rate, b->ours.rate, err);
    if (rc == SKEP_OK)
        rc = add(b, "REQUEST, longest, and 10 SUMMARY/s", "ms", b->beside, b->ours.longest, err);
    return rc;
}

static skep_status report_rest(struct bench *b, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];
    double resident_mib = bench_node_resident_mib(&b->tracker);
    skep_status rc = SKEP_OK;

    /* Else the two would not be of the same. */
    if (b->ours.summary_bytes != b->theirs.summary_bytes)
        rc = error_set(err, SKEP_INTERNAL, "SUMMARY: %" PRIu64 " bytes, the baseline's %" PRIu64,
                       b->ours.summary_bytes, b->theirs.summary_bytes);
    snprintf(name, sizeof(name), "SUMMARY, %zu servers", b->servers);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, name, "ms", b->ours.summary, b->theirs.summary, err);
    snprintf(name, sizeof(name), "SUMMARY, %zu servers, longest of %d", b->servers, SUMMARIES);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, name, "ms", b->ours.summary_longest,
                             b->theirs.summary_longest, err);
    snprintf(name, sizeof(name), "resident memory, %zu connections", b->servers + b->clients + 1);
    if (rc == SKEP_OK)
        rc = bench_frame_add_one(b->frame, name, "MiB", resident_mib, NAN, err);
    return rc;
}

static void stop_all(struct bench *b)
{
    bench_load_close(&b->load);
    bench_node_stop(&b->tracker);
    if (b->echo > 0) {
        kill(b->echo, SIGKILL);
        waitpid(b->echo, NULL, 0);
    }
}

static skep_status measure_tracker(struct bench_frame *frame, const struct options *o,
                                   struct skep_error *err)
{
    struct bench b = {
        .frame = frame,
        .servers = (size_t)options_int(o, "num-servers"),
        .clients = (size_t)options_int(o, "num-clients"),
        .pairs = (uint64_t)options_int(o, "num-pairs"),
    };

    bench_frame_expect(frame, 1 + frame->runs);
    skep_status rc = bench_samples_reserve(&b.latency, b.pairs, err);
    if (rc == SKEP_OK)
        rc = start_all(&b, err);
    if (rc == SKEP_OK)
        rc = measure(&b, err);
    if (rc == SKEP_OK)
        rc = report_runs(&b, err);
    if (rc == SKEP_OK)
        rc = report_rest(&b, err);
    stop_all(&b);
    bench_samples_free(&b.latency);
    bench_samples_free(&b.summary);
    return rc;
}

const struct bench_command bench_tracker = {.options = &table, .measure = measure_tracker};
