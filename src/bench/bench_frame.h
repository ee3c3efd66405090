/*
 * The frame of every benchmark: options, turns, medians, progress and output. A benchmark is a
 * struct bench_command; what it measures goes into the frame's report, a row a case.
 */
#ifndef SKEP_BENCH_BENCH_FRAME_H
#define SKEP_BENCH_BENCH_FRAME_H

#include "bench/bench_stats.h"
#include "cli/options.h"
#include "cli/output.h"

enum { BENCH_MAX_RUNS = 100 };

/* Options that benchmarks share; BENCH_OPTION_JSON comes last. */
#define BENCH_OPTION_RUNS(most, text, help_text)                                                   \
    {                                                                                              \
        .name = "runs", .kind = OPTION_INT, .min = 1, .max = (most), .default_text = (text),       \
        .help = (help_text)                                                                        \
    }
#define BENCH_OPTION_PEERS(most)                                                                   \
    {                                                                                              \
        .name = "num-peers", .kind = OPTION_INT, .min = 4, .max = (most), .default_text = "128",   \
        .help = "DHT peers of the network, 16 at most in a process"                                \
    }
#define BENCH_OPTION_JSON                                                                          \
    {                                                                                              \
        .name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"                     \
    }

struct bench_frame {
    const char *bench; /* "rpc" */
    size_t runs;       /* --runs */
    bool json;         /* --json */
    const char *note;  /* static; shown at the end of the progress bar; NULL: none */
    struct bench_report report;
    struct progress progress;
    uint64_t steps; /* begun */
};

struct bench_command {
    const struct option_table *options; /* its command is "bench NAME" */
    /* Checks options against each other, as options_idle() does. NULL: nothing to check.
     * @return CLI_DONE, or another exit code after it has said why. */
    int (*check)(struct options *o);
    /* Measures, and adds rows to the report. */
    skep_status (*measure)(struct bench_frame *frame, const struct options *o,
                           struct skep_error *err);
};
/* Runs it as a command. Returns the exit code. */
int bench_run(const struct bench_command *command, int argc, char **argv);

/* How many steps there will be: the progress bar appears. Begins it anew if it is there. */
void bench_frame_expect(struct bench_frame *frame, uint64_t steps);
/* A step begins. @param what  shown beside the bar. */
void bench_frame_step(struct bench_frame *frame, const char *what);

/* Adds a row of one figure a run. @param baselines  NULL: none. Both are sorted. */
SKEP_MUST_CHECK skep_status bench_frame_add(struct bench_frame *frame, const char *case_name,
                                            const char *unit, double *values, double *baselines,
                                            struct skep_error *err);
/* The same of a single figure. @param baseline  NaN: none. */
SKEP_MUST_CHECK skep_status bench_frame_add_one(struct bench_frame *frame, const char *case_name,
                                                const char *unit, double value, double baseline,
                                                struct skep_error *err);

/* Measures both sides once, next to each other. */
typedef skep_status (*bench_turn_fn)(void *arg, double *value, double *baseline,
                                     struct skep_error *err);
struct bench_case {
    const char *name, *unit;
    const char *step; /* NULL: the name */
};
/* A turn a run, each of them a step; then the row. */
SKEP_MUST_CHECK skep_status bench_frame_turns(struct bench_frame *frame,
                                              const struct bench_case *what, bench_turn_fn turn,
                                              void *arg, struct skep_error *err);

#endif
