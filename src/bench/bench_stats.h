/*
 * Figures for `skep bench`: samples of a time, what they say, and rows of results as a table for
 * people or JSON for programs. One thread at a time.
 */
#ifndef SKEP_BENCH_BENCH_STATS_H
#define SKEP_BENCH_BENCH_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <skep/status.h>

/* Nanoseconds of the monotonic clock. */
uint64_t bench_now_ns(void);

/* ---- samples ---- */

/* Zeroed memory holds none. */
struct bench_samples {
    uint64_t *ns; /* owned: bench_samples_free() */
    size_t count;
    size_t cap;
};

enum { BENCH_MAX_SAMPLES = 1 << 24 };

/* Room for `more` samples, so that adding them allocates nothing while the clock runs.
 * @return SKEP_RESOURCE_EXHAUSTED if memory is short or it would be over BENCH_MAX_SAMPLES. */
SKEP_MUST_CHECK skep_status bench_samples_reserve(struct bench_samples *s, size_t more,
                                                  struct skep_error *err);
/* Grows as needed; false, with the samples unchanged, if it can't. */
bool bench_samples_add(struct bench_samples *s, uint64_t ns);
void bench_samples_clear(struct bench_samples *s); /* keeps the room */
void bench_samples_free(struct bench_samples *s);  /* NULL and zeroed are allowed */

struct bench_summary {
    size_t count;
    double min, median, p90, p99, max, mean; /* ns */
};
/* Sorts the samples. Percentiles are by nearest rank, so each is a value that was seen; the median
 * of an even number lies between two. All fields are 0 if there are no samples. */
struct bench_summary bench_samples_summarize(struct bench_samples *s);

/* The median of values, which it sorts; NaN if count is 0. */
double bench_median(double *values, size_t count);

/* ---- results ---- */

enum {
    BENCH_NAME_BYTES = 32,
    BENCH_CASE_BYTES = 96,
    BENCH_UNIT_BYTES = 16,
};

struct bench_row {
    char bench[BENCH_NAME_BYTES];     /* "rpc" */
    char case_name[BENCH_CASE_BYTES]; /* "forward 64 KiB, latency" */
    char unit[BENCH_UNIT_BYTES];      /* "us" */
    double value;                     /* median over the runs */
    double baseline;                  /* the same of the baseline; NaN if there is none */
    double ratio;                     /* value / baseline; NaN if there is none or it is 0 */
    double low, high;                 /* the least and the greatest run */
    size_t runs;
};

/* Zeroed memory is an empty report. */
struct bench_report {
    struct bench_row *rows; /* owned: bench_report_free() */
    size_t count;
    size_t cap;
};

/* What a row is made of; all borrowed. */
struct bench_figures {
    const char *bench, *case_name, *unit; /* longer names are cut; stray bytes become '?' */
    double *values;                       /* one figure a run, at least one; sorted */
    size_t runs;
    double *baselines; /* one figure a baseline run, also sorted; NULL: there is none */
    size_t baseline_runs;
};
/* Adds a row. @return SKEP_INVALID_ARGUMENT if there are no runs; SKEP_RESOURCE_EXHAUSTED if memory
 * is short. */
SKEP_MUST_CHECK skep_status bench_report_add(struct bench_report *report,
                                             const struct bench_figures *figures,
                                             struct skep_error *err);
void bench_report_free(struct bench_report *report); /* NULL and zeroed are allowed */

/* An aligned table with a heading; nothing at all for an empty report. */
void bench_report_print(const struct bench_report *report, FILE *out);
/* An array of objects {"bench", "case", "value", "unit", "baseline", "ratio", "runs"}, a row a
 * line; a figure that does not exist is null. @return SKEP_RESOURCE_EXHAUSTED if memory is short.
 */
SKEP_MUST_CHECK skep_status bench_report_print_json(const struct bench_report *report, FILE *out,
                                                    struct skep_error *err);
/*
 * The end of a benchmark: prints the report to stdout if all went well, as JSON or as a table, and
 * frees it.
 * @param rc, err  what came of measuring. @return the exit code of `command`.
 */
int bench_report_end(struct bench_report *report, bool json, const char *command, skep_status rc,
                     struct skep_error *err);

#endif
