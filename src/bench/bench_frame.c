/* See bench_frame.h. */
#include "bench/bench_frame.h"

#include <math.h>
#include <string.h>

void bench_frame_expect(struct bench_frame *frame, uint64_t steps)
{
    if (frame->progress.label != NULL)
        progress_end(&frame->progress, NULL);
    frame->steps = 0;
    progress_start(&frame->progress, frame->bench, steps, frame->json, stderr);
}

void bench_frame_step(struct bench_frame *frame, const char *what)
{
    progress_set(&frame->progress, frame->steps++, what);
}

static skep_status add(struct bench_frame *frame, const struct bench_figures *figures,
                       struct skep_error *err)
{
    struct bench_figures named = *figures;

    named.bench = frame->bench + strlen("bench ");
    return bench_report_add(&frame->report, &named, err);
}

skep_status bench_frame_add(struct bench_frame *frame, const char *case_name, const char *unit,
                            double *values, double *baselines, struct skep_error *err)
{
    const struct bench_figures figures = {
        .case_name = case_name,
        .unit = unit,
        .values = values,
        .runs = frame->runs,
        .baselines = baselines,
        .baseline_runs = frame->runs,
    };

    return add(frame, &figures, err);
}

skep_status bench_frame_add_one(struct bench_frame *frame, const char *case_name, const char *unit,
                                double value, double baseline, struct skep_error *err)
{
    const struct bench_figures figures = {
        .case_name = case_name,
        .unit = unit,
        .values = &value,
        .runs = 1,
        .baselines = isnan(baseline) ? NULL : &baseline,
        .baseline_runs = 1,
    };

    return add(frame, &figures, err);
}

skep_status bench_frame_turns(struct bench_frame *frame, const struct bench_case *what,
                              bench_turn_fn turn, void *arg, struct skep_error *err)
{
    double values[BENCH_MAX_RUNS], baselines[BENCH_MAX_RUNS];
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < frame->runs && rc == SKEP_OK; i++) {
        bench_frame_step(frame, what->step != NULL ? what->step : what->name);
        rc = turn(arg, &values[i], &baselines[i], err);
    }
    return rc != SKEP_OK ? rc
                         : bench_frame_add(frame, what->name, what->unit, values, baselines, err);
}

int bench_run(const struct bench_command *command, int argc, char **argv)
{
    struct bench_frame frame = {.bench = command->options->command};
    struct options o;
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, command->options, argc, argv, &code))
        return code;
    code = command->check != NULL ? command->check(&o) : CLI_DONE;
    if (code == CLI_DONE) {
        frame.runs = (size_t)options_int(&o, "runs");
        frame.json = options_flag(&o, "json");
        skep_status rc = command->measure(&frame, &o, &err);
        if (rc == SKEP_OK && frame.progress.label != NULL)
            frame.progress.done = frame.progress.total;
        if (frame.progress.label != NULL)
            progress_end(&frame.progress, frame.note);
        code = bench_report_end(&frame.report, frame.json, frame.bench, rc, &err);
    }
    options_free(&o);
    return code;
}
