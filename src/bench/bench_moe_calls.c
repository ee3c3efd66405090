/*
 * Forward passes of a mixture for `skep bench moe`: a batch of 64, k = 4, over a 4x4 grid of `nop`
 * experts in 4 node processes, under a watch.
 *
 * Baseline: the calls that the last pass made, directly: to the same experts, as many rows for
 * each, all at once; their inputs lie ready, and nothing is done with the outputs.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <skep/moe.h>
#include <skep/watch.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "bench/bench_moe.h"
#include "bench/bench_node.h"
#include "client/random.h"

enum {
    NODES = 4,
    SIDE = 4,
    EXPERTS = SIDE * SIDE,
    K = 4,
    BATCH = 64,
    HIDDEN = 1024, /* floats a row: 4 KB */
    WARMUP = 20,
    JOIN_MS = 10000,
    SET_TIMEOUT_MS = 60000,
};

struct bench {
    struct bench_moe *moe;
    struct bench_node nodes[NODES];
    struct skep_client *client;
    struct skep_watch *watch;
    struct skep_moe *layer;
    struct random random;
    DLManagedTensor *x, *scores[2];
    DLManagedTensor *all_rows; /* inputs of the bare calls: the first rows of it */
    /* The calls of the last pass: */
    size_t expert_count;
    struct skep_remote_expert *experts[EXPERTS];
    int64_t rows[EXPERTS];
};

/* ---- nodes and a client ---- */

static skep_status start_node(struct bench *b, size_t i, struct skep_error *err)
{
    char uids[128];
    int len = 0;
    const char *arguments[16] = {"node",  "--listen",      "127.0.0.1:*", "--expert-cls",
                                 "nop",   "--hidden-dim",  "1024",        "--log-level",
                                 "error", "--expert-uids", uids};
    size_t n = 11;

    for (int c = 0; c < SIDE; c++)
        len += snprintf(uids + len, sizeof(uids) - (size_t)len, "%sbench.%zu.%d", c > 0 ? "," : "",
                        i, c);
    if (i > 0) {
        arguments[n++] = "--initial-peers";
        arguments[n++] = bench_node_fact(&b->nodes[0], "initial_peers");
    }
    return bench_node_start(&b->nodes[i], arguments, err);
}

static skep_status start_client(struct bench *b, struct skep_error *err)
{
    struct skep_client_options options;
    const char *peer = bench_node_fact(&b->nodes[0], "initial_peers");
    uint64_t deadline_us = clock_deadline_us(JOIN_MS);

    skep_client_options_init(&options);
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    skep_status rc = skep_client_new(&options, &b->client, err);
    if (rc == SKEP_OK)
        rc = skep_client_wait_joined(b->client, JOIN_MS, err);
    if (rc == SKEP_OK)
        rc = skep_watch_new(b->client, "bench.", NULL, NULL, &b->watch, err);
    if (rc == SKEP_OK)
        rc = skep_watch_wait_ready(b->watch, JOIN_MS, err);
    while (rc == SKEP_OK && skep_watch_count(b->watch) < EXPERTS)
        if (clock_left_ms(deadline_us) == 0)
            rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "watch: %zu experts, expected %d",
                           skep_watch_count(b->watch), EXPERTS);
    return rc;
}

static skep_status make_layer(struct bench *b, struct skep_error *err)
{
    struct skep_moe_options options;
    int64_t x_shape[2] = {BATCH, HIDDEN}, score_shape[2] = {BATCH, SIDE};

    skep_moe_options_init(&options);
    options.grid = (struct skep_grid){.prefix = "bench.", .dims = 2, .sizes = {SIDE, SIDE}};
    options.k_best = options.k_min = K;
    skep_status rc = skep_moe_new(b->client, &options, &b->layer, err);
    if (rc == SKEP_OK)
        rc = skep_tensor_new(DTYPE_F32, 2, x_shape, &b->x, err);
    if (rc == SKEP_OK)
        rc = skep_tensor_new(DTYPE_F32, 2, x_shape, &b->all_rows, err);
    for (int d = 0; d < 2 && rc == SKEP_OK; d++)
        rc = skep_tensor_new(DTYPE_F32, 2, score_shape, &b->scores[d], err);
    if (rc != SKEP_OK)
        return rc;
    float *x = skep_tensor_data(&b->x->dl_tensor),
          *rows = skep_tensor_data(&b->all_rows->dl_tensor);
    for (size_t i = 0; i < (size_t)BATCH * HIDDEN; i++)
        x[i] = rows[i] = (float)random_uniform(&b->random);
    return SKEP_OK;
}

/* ---- passes ---- */

static void draw_scores(struct bench *b)
{
    for (int d = 0; d < 2; d++) {
        float *scores = skep_tensor_data(&b->scores[d]->dl_tensor);
        for (size_t i = 0; i < (size_t)BATCH * SIDE; i++)
            scores[i] = (float)(2 * random_uniform(&b->random) - 1);
    }
}

static void forget_calls(struct bench *b)
{
    for (size_t i = 0; i < b->expert_count; i++)
        skep_remote_expert_free(b->experts[i]);
    b->expert_count = 0;
}

/* Counts the rows that a pass sent to each expert, and finds the experts. */
static skep_status note_calls(struct bench *b, const struct skep_moe_pass *pass,
                              struct skep_error *err)
{
    struct skep_moe_choice choice;
    skep_status rc = SKEP_OK;

    forget_calls(b);
    for (size_t i = 0; i < (size_t)BATCH * K && rc == SKEP_OK; i++) {
        size_t at = 0;
        if (!skep_moe_pass_choice(pass, i / K, i % K, &choice))
            return error_set(err, SKEP_NOT_FOUND, "sample %zu: fewer than %d experts", i / K, K);
        while (at < b->expert_count &&
               strcmp(skep_remote_expert_uid(b->experts[at]), choice.uid) != 0)
            at++;
        if (at == b->expert_count) {
            rc = skep_client_find(b->client, choice.uid, 0, &b->experts[at], err);
            b->rows[at] = 0;
            b->expert_count += rc == SKEP_OK;
        }
        b->rows[at]++;
    }
    return rc;
}

static skep_status forward(struct bench *b, bool note, struct skep_error *err)
{
    const DLTensor *scores[2] = {&b->scores[0]->dl_tensor, &b->scores[1]->dl_tensor};
    struct skep_moe_pass *pass;
    DLManagedTensor *y;
    skep_status rc = skep_moe_forward(b->layer, &b->x->dl_tensor, scores, &pass, &y, err);

    if (rc != SKEP_OK)
        return rc;
    if (note)
        rc = note_calls(b, pass, err);
    skep_tensor_free(y);
    skep_moe_pass_free(pass);
    return rc;
}

/* ---- the bare calls ---- */

struct set {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t ended;
    size_t open;
    struct skep_error error; /* of the first failure */
};

static void on_ended(struct skep_call *call, void *arg)
{
    struct set *set = arg;
    DLManagedTensor *output;
    struct skep_error err;
    size_t count;
    skep_status rc = skep_call_result(call, &output, 1, &count, &err);

    if (rc == SKEP_OK)
        skep_tensor_free(output);
    skep_call_free(call);
    pthread_mutex_lock(&set->lock);
    if (rc != SKEP_OK && set->error.status == SKEP_OK)
        set->error = err;
    if (--set->open == 0)
        pthread_cond_signal(&set->ended);
    pthread_mutex_unlock(&set->lock);
}

/* All of the last pass's calls at once; waits for them. */
static skep_status bare_calls(struct bench *b, struct skep_error *err)
{
    struct set set = {.lock = PTHREAD_MUTEX_INITIALIZER, .open = b->expert_count};
    const struct skep_call_options options = {.timeout_ms = SET_TIMEOUT_MS};
    struct skep_call *call;

    cond_init(&set.ended);
    for (size_t i = 0; i < b->expert_count; i++) {
        int64_t shape[2] = {b->rows[i], HIDDEN};
        DLTensor rows = b->all_rows->dl_tensor;
        const DLTensor *input = &rows;
        struct skep_error why;
        rows.shape = shape;
        if (skep_remote_expert_forward_start(b->experts[i], &input, 1, &options, on_ended, &set,
                                             &call, &why) == SKEP_OK)
            continue;
        pthread_mutex_lock(&set.lock);
        set.error = why;
        set.open--;
        pthread_mutex_unlock(&set.lock);
    }
    pthread_mutex_lock(&set.lock);
    while (set.open > 0) /* every call has a deadline */
        pthread_cond_wait(&set.ended, &set.lock);
    pthread_mutex_unlock(&set.lock);
    pthread_cond_destroy(&set.ended);
    pthread_mutex_destroy(&set.lock);
    if (set.error.status != SKEP_OK && err != NULL)
        *err = set.error;
    return set.error.status;
}

/* ---- the whole ---- */

/* Passes and bare calls by turns; both in sets a second. */
static skep_status run(struct bench *b, size_t passes, double *value, double *baseline,
                       struct skep_error *err)
{
    uint64_t pass_ns = 0, bare_ns = 0;
    skep_status rc = SKEP_OK;

    draw_scores(b);
    rc = forward(b, true, err);
    for (size_t i = 0; i < passes && rc == SKEP_OK; i++) {
        uint64_t start_ns = bench_now_ns();
        rc = forward(b, false, err);
        uint64_t middle_ns = bench_now_ns();
        if (rc == SKEP_OK)
            rc = bare_calls(b, err);
        pass_ns += middle_ns - start_ns;
        bare_ns += bench_now_ns() - middle_ns;
    }
    *value = (double)passes * 1e9 / (double)(pass_ns > 0 ? pass_ns : 1);
    *baseline = (double)passes * 1e9 / (double)(bare_ns > 0 ? bare_ns : 1);
    return rc;
}

static skep_status turn(void *arg, double *value, double *baseline, struct skep_error *err)
{
    struct bench *b = arg;

    return run(b, b->moe->passes, value, baseline, err);
}

static skep_status measure(struct bench *b, struct skep_error *err)
{
    static const struct bench_case what = {
        "forward, 64 samples, k 4, 16 nop experts, 4 nodes; bare calls", "passes/s",
        "forward passes"};
    double value, baseline;
    skep_status rc = SKEP_OK;

    bench_frame_step(b->moe->frame, "starting nodes");
    for (size_t i = 0; i < NODES && rc == SKEP_OK; i++)
        rc = start_node(b, i, err);
    if (rc == SKEP_OK)
        rc = start_client(b, err);
    if (rc == SKEP_OK)
        rc = make_layer(b, err);
    if (rc == SKEP_OK)
        rc = run(b, WARMUP, &value, &baseline, err);
    return rc == SKEP_OK ? bench_frame_turns(b->moe->frame, &what, turn, b, err) : rc;
}

skep_status bench_moe_calls(struct bench_moe *moe, struct skep_error *err)
{
    struct bench b = {.moe = moe, .random = {.state = 1}};
    skep_status rc = measure(&b, err);

    forget_calls(&b);
    skep_tensor_free(b.x);
    skep_tensor_free(b.all_rows);
    skep_tensor_free(b.scores[0]);
    skep_tensor_free(b.scores[1]);
    skep_moe_free(b.layer);
    skep_watch_free(b.watch);
    skep_client_free(b.client);
    for (size_t i = NODES; i-- > 0;)
        bench_node_stop(&b.nodes[i]);
    return rc;
}
