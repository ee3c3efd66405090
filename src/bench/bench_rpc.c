/*
 * skep bench rpc: calls to a `nop` expert in a node process of its own, over the real transport.
 *
 * Baselines of the same run: a raw TCP echo of the same bytes, and the cipher alone. The client's
 * calls are started from the callback of the one before, as a trainer with its own event loop
 * would.
 */
#include <pthread.h>
#include <string.h>

#include <skep/client.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_baseline.h"
#include "bench/bench_node.h"

enum {
    HIDDEN = 1024,    /* floats a row: 4 KB */
    SMALL_ROWS = 1,   /* 4 KB in, 4 KB out */
    BULK_ROWS = 2048, /* 8 MB in, 8 MB out */
    IN_FLIGHT = 64,
    WARMUP_CALLS = 200,
    WARMUP_BULK = 3,
    CASE_TIMEOUT_MS = 120000,
};

static const struct option_spec specs[] = {
    BENCH_OPTION_RUNS(BENCH_MAX_RUNS, "5",
                      "measured runs of each case, baselines in between; medians are shown"),
    {.name = "num-calls",
     .kind = OPTION_INT,
     .min = 100,
     .max = 1000000,
     .default_text = "3000",
     .help = "4 KB calls a run, one at a time; ten times as many with 64 in flight"},
    {.name = "num-bulk",
     .kind = OPTION_INT,
     .min = 1,
     .max = 10000,
     .default_text = "30",
     .help = "8 MB calls a run"},
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench rpc",
    .summary =
        "Measures calls to a nop expert in a node process on loopback: 4 KB one at a time, 4 KB "
        "with 64 in flight, 8 MB encrypted and plaintext; then a node's start and memory.",
    .example = "skep bench rpc\nskep bench rpc --runs 3 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

/* ---- one load: `in_flight` chains of calls, each starting the next when it ends */

struct load {
    struct skep_remote_expert *expert;
    const DLTensor *input;
    struct bench_samples *samples; /* borrowed; room reserved. NULL: not wanted (many in flight) */
    pthread_mutex_t lock;          /* guards all below */
    pthread_cond_t ended;
    size_t to_start;
    size_t running;
    struct skep_error error; /* of the first failure */
};

struct link {
    struct load *load;
    uint64_t start_ns;
};

static void link_done(struct skep_call *call, void *arg);

static void start_link(struct link *link)
{
    struct load *load = link->load;
    const DLTensor *inputs[1] = {load->input};
    struct skep_call *call;
    struct skep_error err;

    link->start_ns = bench_now_ns();
    if (skep_remote_expert_forward_start(load->expert, inputs, 1, NULL, link_done, link, &call,
                                         &err) == SKEP_OK)
        return;
    pthread_mutex_lock(&load->lock);
    load->error = err;
    load->running--;
    pthread_cond_signal(&load->ended);
    pthread_mutex_unlock(&load->lock);
}

static void link_done(struct skep_call *call, void *arg)
{
    struct link *link = arg;
    struct load *load = link->load;
    DLManagedTensor *output;
    struct skep_error err;
    size_t count;
    uint64_t elapsed_ns = bench_now_ns() - link->start_ns;
    skep_status rc = skep_call_result(call, &output, 1, &count, &err);

    if (rc == SKEP_OK)
        skep_tensor_free(output);
    skep_call_free(call);
    pthread_mutex_lock(&load->lock);
    if (rc != SKEP_OK && load->error.status == SKEP_OK)
        load->error = err;
    if (load->samples != NULL)
        bench_samples_add(load->samples, elapsed_ns);
    bool more = load->to_start > 0 && load->error.status == SKEP_OK;
    if (more)
        load->to_start--;
    else if (--load->running == 0)
        pthread_cond_signal(&load->ended);
    pthread_mutex_unlock(&load->lock);
    if (more)
        start_link(link);
}

/* Runs `calls` calls, `in_flight` at a time; *elapsed_ns is from the first to the last. */
static skep_status run_load(struct skep_remote_expert *expert, const DLTensor *input, size_t calls,
                            size_t in_flight, struct bench_samples *samples, uint64_t *elapsed_ns,
                            struct skep_error *err)
{
    struct link links[IN_FLIGHT];
    struct load load = {.expert = expert,
                        .input = input,
                        .samples = samples,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .to_start = calls - in_flight,
                        .running = in_flight};
    uint64_t deadline_us = clock_deadline_us(CASE_TIMEOUT_MS);
    uint64_t start_ns = bench_now_ns();

    cond_init(&load.ended);
    for (size_t i = 0; i < in_flight; i++) {
        links[i].load = &load;
        start_link(&links[i]);
    }
    pthread_mutex_lock(&load.lock);
    while (load.running > 0) {
        if (cond_wait_until(&load.ended, &load.lock, deadline_us))
            continue;
        error_set(&load.error, SKEP_DEADLINE_EXCEEDED, "the calls took over %d ms",
                  CASE_TIMEOUT_MS);
        deadline_us = CLOCK_NEVER; /* no more are started; those under way have deadlines */
    }
    pthread_mutex_unlock(&load.lock);
    *elapsed_ns = bench_now_ns() - start_ns;
    pthread_cond_destroy(&load.ended);
    pthread_mutex_destroy(&load.lock);
    if (load.error.status == SKEP_OK)
        return SKEP_OK;
    if (err != NULL)
        *err = load.error;
    return load.error.status;
}

/* ---- a node and a client of it */

struct pair {
    struct bench_node node;
    struct bench_caller caller;
};

static void pair_stop(struct pair *pair)
{
    bench_caller_stop(&pair->caller);
    bench_node_stop(&pair->node);
}

static skep_status pair_start(struct pair *pair, bool plaintext, struct skep_error *err)
{
    const char *arguments[] = {
        "node",    "--listen",     "127.0.0.1:*", "--expert-uids",
        "bench.0", "--expert-cls", "nop",         "--hidden-dim",
        "1024",    "--log-level",  "error",       plaintext ? "--insecure-plaintext" : NULL,
        NULL};

    *pair = (struct pair){0};
    skep_status rc = bench_node_start(&pair->node, arguments, err);
    if (rc == SKEP_OK)
        rc = bench_caller_start(&pair->caller, bench_node_fact(&pair->node, "initial_peers"),
                                "bench.0", plaintext, err);
    if (rc != SKEP_OK)
        pair_stop(pair);
    return rc;
}

/* ---- cases */

struct bench {
    struct bench_frame *frame;
    struct bench_samples samples;
    size_t calls, bulk;
};

static double median_us(struct bench_samples *samples)
{
    return bench_samples_summarize(samples).median / 1000.0;
}

/* Bytes there and back, in MB/s, of exchanges that took a median time. */
static double rate_mb(struct bench_samples *samples, size_t bytes)
{
    return 2.0 * (double)bytes / bench_samples_summarize(samples).median * 1000.0;
}

static skep_status measure_small(struct bench *b, struct pair *pair, const DLTensor *input,
                                 struct skep_error *err)
{
    double latency[BENCH_MAX_RUNS], echo[BENCH_MAX_RUNS], rate[BENCH_MAX_RUNS];
    uint64_t elapsed_ns;
    skep_status rc = run_load(pair->caller.expert, input, WARMUP_CALLS, 1, NULL, &elapsed_ns, err);

    for (size_t i = 0; i < b->frame->runs && rc == SKEP_OK; i++) {
        bench_frame_step(b->frame, "4 KB calls");
        bench_samples_clear(&b->samples);
        rc = bench_tcp_echo(HIDDEN * sizeof(float), WARMUP_CALLS, b->calls, &b->samples, err);
        echo[i] = median_us(&b->samples);
        bench_samples_clear(&b->samples);
        if (rc == SKEP_OK)
            rc = run_load(pair->caller.expert, input, b->calls, 1, &b->samples, &elapsed_ns, err);
        latency[i] = median_us(&b->samples);
        if (rc == SKEP_OK)
            rc = run_load(pair->caller.expert, input, 10 * b->calls, IN_FLIGHT, NULL, &elapsed_ns,
                          err);
        rate[i] = 10.0 * (double)b->calls / ((double)elapsed_ns / 1e9);
    }
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, "4 KB, one at a time, encrypted; echo", "us", latency, echo,
                             err);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, "4 KB, 64 in flight, encrypted", "calls/s", rate, NULL, err);
    return rc;
}

struct bulk {
    struct bench *bench;
    struct pair *pair;
    const DLTensor *input;
    bool plaintext;
};

static skep_status turn_bulk(void *arg, double *value, double *baseline, struct skep_error *err)
{
    struct bulk *k = arg;
    struct bench *b = k->bench;
    size_t bytes = (size_t)BULK_ROWS * HIDDEN * 4;
    enum noise_cipher cipher =
        noise_cipher_available(NOISE_AESGCM) ? NOISE_AESGCM : NOISE_CHACHAPOLY;
    uint64_t elapsed_ns;

    bench_samples_clear(&b->samples);
    skep_status rc = k->plaintext
                         ? bench_tcp_echo(bytes, WARMUP_BULK, b->bulk, &b->samples, err)
                         : bench_cipher_echo(cipher, bytes, WARMUP_BULK, b->bulk, &b->samples, err);
    *baseline = rate_mb(&b->samples, bytes);
    bench_samples_clear(&b->samples);
    if (rc == SKEP_OK)
        rc = run_load(k->pair->caller.expert, k->input, b->bulk, 1, &b->samples, &elapsed_ns, err);
    *value = rate_mb(&b->samples, bytes);
    return rc;
}

static skep_status measure_bulk(struct bulk *k, struct skep_error *err)
{
    static const struct bench_case cases[] = {
        {"8 MB, encrypted; cipher alone", "MB/s", "8 MB encrypted"},
        {"8 MB, plaintext; TCP echo", "MB/s", "8 MB plaintext"},
    };
    uint64_t elapsed_ns;
    skep_status rc =
        run_load(k->pair->caller.expert, k->input, WARMUP_BULK, 1, NULL, &elapsed_ns, err);

    return rc == SKEP_OK
               ? bench_frame_turns(k->bench->frame, &cases[k->plaintext], turn_bulk, k, err)
               : rc;
}

static skep_status measure_transport(struct bench *b, bool plaintext, struct skep_error *err)
{
    struct pair pair;
    int64_t shape[2] = {BULK_ROWS, HIDDEN};
    DLManagedTensor *input = NULL;
    skep_status rc = skep_tensor_new(DTYPE_F32, 2, shape, &input, err);

    if (rc != SKEP_OK)
        return rc;
    memset(skep_tensor_data(&input->dl_tensor), 0, (size_t)BULK_ROWS * HIDDEN * 4);
    rc = pair_start(&pair, plaintext, err);
    if (rc == SKEP_OK) {
        rc = measure_bulk(&(struct bulk){b, &pair, &input->dl_tensor, plaintext}, err);
        input->dl_tensor.shape[0] = SMALL_ROWS;
        if (rc == SKEP_OK && !plaintext)
            rc = measure_small(b, &pair, &input->dl_tensor, err);
        pair_stop(&pair);
    }
    skep_tensor_free(input);
    return rc;
}

static skep_status measure_node(struct bench *b, struct skep_error *err)
{
    static const char *const with_experts[] = {
        "node", "--listen",     "127.0.0.1:*", "--expert-pattern", "bench.[0:16]", "--num-experts",
        "16",   "--expert-cls", "nop",         "--log-level",      "error",        NULL};
    static const char *const without[] = {"node",        "--listen", "127.0.0.1:*",
                                          "--log-level", "error",    NULL};
    double start_ms[BENCH_MAX_RUNS], resident[BENCH_MAX_RUNS];
    struct bench_node node;
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < b->frame->runs && rc == SKEP_OK; i++) {
        bench_frame_step(b->frame, "starting nodes");
        rc = bench_node_start(&node, with_experts, err);
        start_ms[i] = (double)node.start_ns / 1e6;
        bench_node_stop(&node);
        if (rc == SKEP_OK)
            rc = bench_node_start(&node, without, err);
        resident[i] = bench_node_resident_mib(&node);
        bench_node_stop(&node);
    }
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, "node with 16 nop experts, start to ready", "ms", start_ms,
                             NULL, err);
    if (rc == SKEP_OK)
        rc =
            bench_frame_add(b->frame, "node without experts, resident", "MiB", resident, NULL, err);
    return rc;
}

static skep_status measure_all(struct bench *b, struct skep_error *err)
{
    skep_status rc =
        bench_samples_reserve(&b->samples, b->calls > b->bulk ? b->calls : b->bulk, err);

    /* Starting comes first: it forks, which is cheapest while this process is small. */
    if (rc == SKEP_OK)
        rc = measure_node(b, err);
    if (rc == SKEP_OK)
        rc = measure_transport(b, false, err);
    if (rc == SKEP_OK)
        rc = measure_transport(b, true, err);
    return rc;
}

static skep_status measure_rpc(struct bench_frame *frame, const struct options *o,
                               struct skep_error *err)
{
    struct bench b = {
        .frame = frame,
        .calls = (size_t)options_int(o, "num-calls"),
        .bulk = (size_t)options_int(o, "num-bulk"),
    };

    bench_frame_expect(frame, 4 * frame->runs);
    skep_status rc = measure_all(&b, err);
    bench_samples_free(&b.samples);
    return rc;
}

const struct bench_command bench_rpc = {.options = &table, .measure = measure_rpc};
