/*
 * skep bench fairness: small calls to one expert of a node while others keep it busy with large
 * ones to another expert.
 *
 * The busy callers are processes of their own, so that nothing of the small caller's waits behind
 * them but in the node. They are forked before this process has threads, and wait for their start.
 * The baseline is the same calls to the same node at rest.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <skep/client.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_node.h"

enum {
    MAX_CALLERS = 64,
    HIDDEN = 1024, /* floats a row: 4 KB */
    CALL_MS = 120000,
    WARMUP_CALLS = 50,
};

/* One load and what is measured beside it. */
struct scene {
    const char *cls;
    int64_t large_rows, small_rows;
    bool one_caller;
    const char *name; /* of the small call */
    const char *load;
};

static const struct scene scenes[] = {
    {"nop", 16384, 4, false, "16 KB", "streams of 64 MB"},
    {"ffn", 2048, 1, true, "1 row", "a stream of 2048-row ffn batches"},
};
enum { SCENES = sizeof(scenes) / sizeof(scenes[0]) };

static const struct option_spec specs[] = {
    BENCH_OPTION_RUNS(BENCH_MAX_RUNS, "3", "each with a new node; medians are shown"),
    {.name = "num-calls",
     .kind = OPTION_INT,
     .min = 100,
     .max = 100000,
     .default_text = "1000",
     .help = "small calls a run, at rest and again under load"},
    {.name = "num-callers",
     .kind = OPTION_INT,
     .min = 1,
     .max = MAX_CALLERS,
     .default_text = "4",
     .help = "processes that stream 64 MB calls"},
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench fairness",
    .summary = "Measures small calls to one expert while other processes stream large calls to "
               "another expert of the same node, next to the same calls at rest.",
    .example = "skep bench fairness\nskep bench fairness --runs 1 --num-calls 300 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

/* ---- a caller */

struct caller {
    struct bench_caller of;
    DLManagedTensor *input;
};

static void caller_stop(struct caller *c)
{
    skep_tensor_free(c->input);
    bench_caller_stop(&c->of);
}

static skep_status caller_start(struct caller *c, const char *peer, const char *uid, int64_t rows,
                                struct skep_error *err)
{
    int64_t shape[2] = {rows, HIDDEN};

    *c = (struct caller){0};
    skep_status rc = skep_tensor_new(DTYPE_F32, 2, shape, &c->input, err);
    if (rc == SKEP_OK) {
        memset(skep_tensor_data(&c->input->dl_tensor), 0, (size_t)rows * HIDDEN * 4);
        rc = bench_caller_start(&c->of, peer, uid, false, err);
    }
    if (rc != SKEP_OK)
        caller_stop(c);
    return rc;
}

static skep_status caller_call(struct caller *c, struct skep_error *err)
{
    const DLTensor *inputs[1] = {&c->input->dl_tensor};
    const struct skep_call_options options = {.timeout_ms = CALL_MS};
    DLManagedTensor *output = NULL;
    size_t count = 0;

    skep_status rc =
        skep_remote_expert_forward(c->of.expert, inputs, 1, &options, &output, 1, &count, err);
    if (rc == SKEP_OK)
        skep_tensor_free(output);
    return rc;
}

/* ---- the load: processes that call without end */

struct load {
    pid_t pids[MAX_CALLERS];
    size_t count;
    int go;   /* closed: the callers begin. Owned; -1: none */
    int told; /* a byte of each caller for each reply. Owned; -1: none */
};

static void run_caller(int go, int told, const char *peer, int64_t rows)
{
    struct caller c;
    char byte = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(go, &byte, 1) != 0 || caller_start(&c, peer, "bench.0", rows, NULL) != SKEP_OK)
        return;
    while (caller_call(&c, NULL) == SKEP_OK)
        if (write(told, &byte, 1) < 0)
            return;
}

static skep_status load_fork(struct load *load, size_t count, const char *peer, int64_t rows,
                             struct skep_error *err)
{
    int go[2];
    int told[2];

    *load = (struct load){.go = -1, .told = -1};
    if (pipe2(go, O_CLOEXEC) != 0)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot make a pipe: %s", strerror(errno));
    if (pipe2(told, O_CLOEXEC | O_NONBLOCK) != 0) {
        close(go[0]);
        close(go[1]);
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot make a pipe: %s", strerror(errno));
    }
    load->go = go[1];
    load->told = told[0];
    for (; load->count < count; load->count++) {
        pid_t pid = fork();

        if (pid == 0) {
            close(go[1]);
            run_caller(go[0], told[1], peer, rows);
            _exit(1);
        }
        if (pid < 0)
            break;
        load->pids[load->count] = pid;
    }
    close(go[0]);
    close(told[1]);
    if (load->count < count)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot start a process: %s",
                         strerror(errno));
    return SKEP_OK;
}

/* How many replies the callers have had since the last look. */
static size_t load_replies(struct load *load)
{
    char bytes[256];
    size_t sum = 0;

    for (ssize_t n; (n = read(load->told, bytes, sizeof(bytes))) > 0;)
        sum += (size_t)n;
    return sum;
}

/* Lets them begin, and waits until each has had a reply, as far as the number tells. */
static skep_status load_begin(struct load *load, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(CALL_MS);
    size_t replies = 0;

    close(load->go);
    load->go = -1;
    while (replies < load->count) {
        struct pollfd wait = {.fd = load->told, .events = POLLIN};

        if (poll(&wait, 1, (int)clock_left_ms(deadline_us)) <= 0 || wait.revents == POLLHUP)
            return error_set(err, SKEP_UNAVAILABLE, "the callers had %zu replies, expected %zu",
                             replies, load->count);
        replies += load_replies(load);
    }
    return SKEP_OK;
}

static void load_end(struct load *load)
{
    for (size_t i = 0; i < load->count; i++)
        kill(load->pids[i], SIGKILL);
    for (size_t i = 0; i < load->count; i++)
        waitpid(load->pids[i], NULL, 0);
    if (load->go >= 0)
        close(load->go);
    if (load->told >= 0)
        close(load->told);
    *load = (struct load){.go = -1, .told = -1};
}

/* ---- measuring */

struct figures {
    double median_ms, p99_ms;
};

struct bench {
    struct bench_frame *frame;
    struct bench_samples samples;
    size_t calls, callers;
    /* By run. */
    double rest_p99[BENCH_MAX_RUNS], load_p99[BENCH_MAX_RUNS], rest_median[BENCH_MAX_RUNS],
        load_median[BENCH_MAX_RUNS];
    double rate_mb[BENCH_MAX_RUNS];
};

static skep_status measure_calls(struct bench *b, struct caller *caller, struct figures *out,
                                 struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    bench_samples_clear(&b->samples);
    for (size_t i = 0; i < b->calls && rc == SKEP_OK; i++) {
        uint64_t start_ns = bench_now_ns();
        rc = caller_call(caller, err);
        bench_samples_add(&b->samples, bench_now_ns() - start_ns);
    }
    struct bench_summary s = bench_samples_summarize(&b->samples);
    *out = (struct figures){.median_ms = s.median / 1e6, .p99_ms = s.p99 / 1e6};
    return rc;
}

static skep_status measure_run(struct bench *b, const struct scene *scene, struct caller *caller,
                               struct load *load, size_t run, struct skep_error *err)
{
    struct figures rest = {0};
    struct figures under_load = {0};
    skep_status rc = SKEP_OK;

    for (int i = 0; i < WARMUP_CALLS && rc == SKEP_OK; i++)
        rc = caller_call(caller, err);
    if (rc == SKEP_OK)
        rc = measure_calls(b, caller, &rest, err);
    if (rc == SKEP_OK)
        rc = load_begin(load, err);
    uint64_t start_ns = bench_now_ns();
    if (rc == SKEP_OK)
        rc = measure_calls(b, caller, &under_load, err);
    double seconds = (double)(bench_now_ns() - start_ns) / 1e9;
    double bytes = 2.0 * (double)load_replies(load) * (double)scene->large_rows * HIDDEN * 4;
    b->rest_median[run] = rest.median_ms;
    b->rest_p99[run] = rest.p99_ms;
    b->load_median[run] = under_load.median_ms;
    b->load_p99[run] = under_load.p99_ms;
    b->rate_mb[run] = bytes / 1e6 / seconds;
    return rc;
}

static skep_status with_node(struct bench *b, const struct scene *scene, size_t run,
                             struct skep_error *err)
{
    const char *const arguments[] = {
        "node",         "--listen", "127.0.0.1:*",      "--expert-uids", "bench.0,bench.1",
        "--expert-cls", scene->cls, "--max-batch-size", "16384",         "--log-level",
        "error",        NULL};
    struct bench_node node;
    struct load load = {.go = -1, .told = -1};
    struct caller caller = {0};
    skep_status rc = bench_node_start(&node, arguments, err);

    if (rc == SKEP_OK) {
        const char *peer = bench_node_fact(&node, "initial_peers");

        rc = load_fork(&load, scene->one_caller ? 1 : b->callers, peer, scene->large_rows, err);
        if (rc == SKEP_OK)
            rc = caller_start(&caller, peer, "bench.1", scene->small_rows, err);
        if (rc == SKEP_OK) {
            rc = measure_run(b, scene, &caller, &load, run, err);
            caller_stop(&caller);
        }
    }
    load_end(&load);
    bench_node_stop(&node);
    return rc;
}

static skep_status add_rows(struct bench *b, const struct scene *scene, struct skep_error *err)
{
    char name[BENCH_CASE_BYTES];

    snprintf(name, sizeof(name), "%s beside %s, median; at rest", scene->name, scene->load);
    skep_status rc = bench_frame_add(b->frame, name, "ms", b->load_median, b->rest_median, err);
    snprintf(name, sizeof(name), "%s beside %s, p99; at rest", scene->name, scene->load);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, name, "ms", b->load_p99, b->rest_p99, err);
    snprintf(name, sizeof(name), "%s, there and back", scene->load);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, name, "MB/s", b->rate_mb, NULL, err);
    return rc;
}

static skep_status measure_all(struct bench *b, struct skep_error *err)
{
    skep_status rc = bench_samples_reserve(&b->samples, b->calls, err);

    for (size_t s = 0; s < SCENES && rc == SKEP_OK; s++) {
        for (size_t run = 0; run < b->frame->runs && rc == SKEP_OK; run++) {
            bench_frame_step(b->frame, scenes[s].load);
            rc = with_node(b, &scenes[s], run, err);
        }
        if (rc == SKEP_OK)
            rc = add_rows(b, &scenes[s], err);
    }
    return rc;
}

static skep_status measure_fairness(struct bench_frame *frame, const struct options *o,
                                    struct skep_error *err)
{
    struct bench b = {
        .frame = frame,
        .calls = (size_t)options_int(o, "num-calls"),
        .callers = (size_t)options_int(o, "num-callers"),
    };

    bench_frame_expect(frame, SCENES * frame->runs);
    skep_status rc = measure_all(&b, err);
    bench_samples_free(&b.samples);
    return rc;
}

const struct bench_command bench_fairness = {.options = &table, .measure = measure_fairness};
