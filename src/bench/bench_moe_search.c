/*
 * Beam search for `skep bench moe`.
 *
 * Watched: batches of random scores, through the public API. Baseline: a scan over all experts,
 * each one's score summed up and put among the best.
 *
 * Cold: each search by a peer of its own that has asked for nothing before, since directory and
 * OpenDHT remember. They join before anything is published and stay to the end, so that no search
 * meets a peer that has left. Baseline: bare OpenDHT gets, one after the other, for the two
 * prefixes and the UID on the way to one expert: those for prefixes to their end, because a search
 * needs all that is said under a prefix, that for the expert to its first value. Also by peers of
 * their own, each key once.
 */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <skep/watch.h>
#include <skep/beam.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "bench/bench_bare.h"
#include "bench/bench_grid.h"
#include "bench/bench_moe.h"
#include "client/random.h"
#include "dht/directory/beam.h"
#include "dht/swarm/swarm.h"

enum {
    K = 4,
    BATCH = 64,
    MAX_SCORES = BATCH * BENCH_GRID_MAX_SIDE,
    WARMUP = 5,
    JOIN_MS = 20000,
    SEARCH_MS = 20000,
    PAUSE_MS = 20, /* the rest of what came before is over then, see bench_dht.c */
    READY_MS = 100,
};

/* One who asks. */
struct asker {
    struct identity identity;
    struct swarm *swarm;
};

struct bench {
    struct bench_moe *moe;
    struct bench_grid grid;
    struct asker *askers; /* of each run: for a batch, one sample each, and bare gets */
    size_t run_askers;    /* of one run */
    size_t asker_count;
    struct random random;
    double *scores[BENCH_GRID_DIMS]; /* owned: MAX_SCORES each */
    struct bench_samples samples;
    double checksum; /* keeps the baseline from being optimized away */
};

static void draw_scores(struct bench *b, size_t samples)
{
    for (int d = 0; d < BENCH_GRID_DIMS; d++)
        for (size_t i = 0; i < samples * (size_t)b->grid.side; i++)
            b->scores[d][i] = 2 * random_uniform(&b->random) - 1;
}

/* ---- watched ---- */

struct best {
    double scores[K];
    size_t experts[K];
};

static void put_among(struct best *best, double score, size_t expert)
{
    int at = K - 1;

    for (; at > 0 && best->scores[at - 1] < score; at--) {
        best->scores[at] = best->scores[at - 1];
        best->experts[at] = best->experts[at - 1];
    }
    best->scores[at] = score;
    best->experts[at] = expert;
}

/* The baseline: the best k of all. */
static void scan(struct bench *b, size_t sample)
{
    size_t side = (size_t)b->grid.side, expert = 0;
    const double *x = b->scores[0] + sample * side, *y = b->scores[1] + sample * side,
                 *z = b->scores[2] + sample * side;
    struct best best = {0};

    for (int i = 0; i < K; i++)
        best.scores[i] = (double)-INFINITY;
    for (size_t i = 0; i < side; i++)
        for (size_t k = 0; k < side; k++)
            for (size_t n = 0; n < side; n++, expert++)
                if (x[i] + y[k] + z[n] > best.scores[K - 1])
                    put_among(&best, x[i] + y[k] + z[n], expert);
    b->checksum += best.scores[K - 1] + (double)best.experts[0];
}

static skep_status search_watched(struct bench *b, struct skep_client *client, uint64_t *elapsed_ns,
                                  struct skep_error *err)
{
    struct skep_grid grid = {.prefix = BENCH_GRID_PREFIX, .dims = BENCH_GRID_DIMS};
    int64_t shape[2] = {BATCH, b->grid.side};
    DLTensor tensors[BENCH_GRID_DIMS];
    const DLTensor *scores[BENCH_GRID_DIMS];
    struct skep_beam_search *found;

    for (int d = 0; d < BENCH_GRID_DIMS; d++) {
        grid.sizes[d] = b->grid.side;
        tensors[d] = (DLTensor){.data = b->scores[d],
                                .device = {.device_type = kDLCPU},
                                .ndim = 2,
                                .dtype = {.code = kDLFloat, .bits = 64, .lanes = 1},
                                .shape = shape};
        scores[d] = &tensors[d];
    }
    uint64_t start_ns = bench_now_ns();
    skep_status rc = skep_beam_search_run(client, &grid, scores, NULL, &found, err);
    *elapsed_ns = bench_now_ns() - start_ns;
    if (rc != SKEP_OK)
        return rc;
    for (size_t s = 0; s < BATCH && rc == SKEP_OK; s++)
        if (skep_beam_search_count(found, s) != K || skep_beam_search_partial(found, NULL))
            rc = error_set(err, SKEP_NOT_FOUND, "watched search: %zu experts, expected %d",
                           skep_beam_search_count(found, s), K);
    skep_beam_search_free(found);
    return rc;
}

static skep_status run_watched(struct bench *b, struct skep_client *client, double *value,
                               double *baseline, struct skep_error *err)
{
    uint64_t search_ns = 0, scan_ns = 0, elapsed_ns;
    size_t batches = b->moe->batches;
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < batches && rc == SKEP_OK; i++) {
        draw_scores(b, BATCH);
        rc = search_watched(b, client, &elapsed_ns, err);
        search_ns += elapsed_ns;
        uint64_t start_ns = bench_now_ns();
        for (size_t s = 0; s < BATCH; s++)
            scan(b, s);
        scan_ns += bench_now_ns() - start_ns;
    }
    *value = (double)search_ns / (double)(batches * BATCH) / 1000;
    *baseline = (double)scan_ns / (double)(batches * BATCH) / 1000;
    return rc;
}

/* Until nearly all of the grid is in the view: what a reading missed comes with a later one. */
static skep_status wait_complete(struct bench *b, struct skep_watch *watch, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(JOIN_MS);
    size_t enough = bench_grid_experts(&b->grid) * 9 / 10;
    skep_status rc = skep_watch_wait_ready(watch, JOIN_MS, err);

    while (rc == SKEP_OK && skep_watch_count(watch) < enough) {
        if (clock_left_ms(deadline_us) == 0)
            return error_set(err, SKEP_DEADLINE_EXCEEDED, "watch: %zu experts, expected %zu",
                             skep_watch_count(watch), enough);
        poll(NULL, 0, READY_MS);
    }
    return rc;
}

static skep_status measure_watched(struct bench *b, struct skep_client *client,
                                   struct skep_error *err)
{
    double value[BENCH_MOE_MAX_RUNS], baseline[BENCH_MOE_MAX_RUNS];
    char text[BENCH_CASE_BYTES];
    struct skep_watch *watch;
    uint64_t elapsed_ns;

    bench_frame_step(b->moe->frame, "watching the grid");
    skep_status rc = skep_watch_new(client, BENCH_GRID_PREFIX, NULL, NULL, &watch, err);
    if (rc != SKEP_OK)
        return rc;
    rc = wait_complete(b, watch, err);
    for (size_t i = 0; i < WARMUP && rc == SKEP_OK; i++) {
        draw_scores(b, BATCH);
        rc = search_watched(b, client, &elapsed_ns, err);
    }
    for (size_t run = 0; run < b->moe->frame->runs && rc == SKEP_OK; run++) {
        bench_frame_step(b->moe->frame, "watched searches");
        rc = run_watched(b, client, &value[run], &baseline[run], err);
    }
    skep_watch_free(watch);
    snprintf(text, sizeof(text), "beam search, %zu experts, watched, batches of %d; scan",
             bench_grid_experts(&b->grid), BATCH);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->moe->frame, text, "us/sample", value, baseline, err);
    return rc;
}

/* ---- cold ---- */

static skep_status search_cold(struct bench *b, struct asker *asker, size_t samples,
                               uint64_t *elapsed_ns, uint64_t *gets, struct skep_error *err)
{
    int64_t sizes[BENCH_GRID_DIMS] = {b->grid.side, b->grid.side, b->grid.side};
    const struct beam_query query = {
        .prefix = BENCH_GRID_PREFIX,
        .dims = BENCH_GRID_DIMS,
        .sizes = sizes,
        .samples = samples,
        .scores = (const double *const *)b->scores,
        .k = K,
        .deadline_us = clock_deadline_us(SEARCH_MS),
    };
    struct directory_stats before, after;
    struct beam_result found;

    draw_scores(b, samples);
    directory_stats(swarm_directory(asker->swarm), &before);
    uint64_t start_ns = bench_now_ns();
    skep_status rc = beam_search(swarm_directory(asker->swarm), &query, &found, err);
    *elapsed_ns = bench_now_ns() - start_ns;
    if (rc != SKEP_OK)
        return rc;
    directory_stats(swarm_directory(asker->swarm), &after);
    *gets = after.gets - before.gets;
    for (size_t s = 0; s < samples && rc == SKEP_OK; s++)
        if (found.hit_count[s] != K || found.partial)
            rc = error_set(err, SKEP_NOT_FOUND, "cold search: %zu experts, expected %d",
                           found.hit_count[s], K);
    beam_result_free(&found);
    return rc;
}

/* One get a round, on the way to expert number `expert`. */
static uint64_t bare_rounds(struct bench *b, struct asker *asker, size_t expert)
{
    const struct record_swarm *swarm = swarm_record(asker->swarm);
    static const uint8_t nobody[PEER_ID_BYTES];
    char uid[UID_BYTES];
    uint8_t key[RECORD_KEY_BYTES];
    struct uid parsed;
    uint64_t ns = 0, one_ns;

    bench_grid_uid(&b->grid, expert, uid);
    if (uid_parse(&parsed, uid, NULL) != SKEP_OK)
        return 0;
    for (size_t depth = 1; depth < BENCH_GRID_DIMS; depth++) {
        char prefix[UID_BYTES];
        snprintf(prefix, sizeof(prefix), "%.*s", (int)parsed.prefix_len[depth], uid);
        record_key_prefix(swarm, prefix, nobody, key);
        bench_bare_get(asker->swarm, key, true, &one_ns);
        ns += one_ns;
    }
    record_key_expert(swarm, uid, key);
    bench_bare_get(asker->swarm, key, false, &one_ns);
    return ns + one_ns;
}

/* An expert of a first coordinate of its own, for as many turns as there are. */
static size_t expert_of(struct bench *b, size_t turn)
{
    size_t side = (size_t)b->grid.side;
    size_t below = (size_t)(random_uniform(&b->random) * (double)(side * side));

    return turn % side * side * side + below;
}

/* One run: its own askers, the searches and the bare gets by turns. */
static skep_status run_cold(struct bench *b, size_t run, double *single, double *bare,
                            double *batch, double *gets, struct skep_error *err)
{
    size_t searches = b->moe->searches;
    struct asker *askers = &b->askers[run * b->run_askers], *bare_askers = askers + 1 + searches;
    struct bench_samples bare_ns = {0};
    uint64_t elapsed_ns, count;
    skep_status rc = bench_samples_reserve(&bare_ns, searches, err);

    bench_samples_clear(&b->samples);
    *gets = 0;
    for (size_t i = 0; i < searches && rc == SKEP_OK; i++) {
        struct asker *asker = &bare_askers[i / (size_t)b->grid.side];
        bench_samples_add(&bare_ns, bare_rounds(b, asker, expert_of(b, i)));
        poll(NULL, 0, PAUSE_MS);
        rc = search_cold(b, &askers[1 + i], 1, &elapsed_ns, &count, err);
        bench_samples_add(&b->samples, elapsed_ns);
        *gets += rc == SKEP_OK ? (double)count / (double)searches : 0;
        poll(NULL, 0, PAUSE_MS);
    }
    if (rc == SKEP_OK)
        rc = search_cold(b, &askers[0], BATCH, &elapsed_ns, &count, err);
    *single = bench_samples_summarize(&b->samples).median / 1e6;
    *bare = bench_samples_summarize(&bare_ns).median / 1e6;
    *batch = (double)elapsed_ns / BATCH / 1e6;
    bench_samples_free(&bare_ns);
    return rc;
}

static skep_status measure_cold(struct bench *b, struct skep_error *err)
{
    double single[BENCH_MOE_MAX_RUNS], bare[BENCH_MOE_MAX_RUNS], again[BENCH_MOE_MAX_RUNS],
        batch[BENCH_MOE_MAX_RUNS], gets[BENCH_MOE_MAX_RUNS];
    struct bench_frame *frame = b->moe->frame;
    char text[BENCH_CASE_BYTES];
    skep_status rc = SKEP_OK;

    for (size_t run = 0; run < frame->runs && rc == SKEP_OK; run++) {
        bench_frame_step(b->moe->frame, "cold searches");
        rc = run_cold(b, run, &single[run], &bare[run], &batch[run], &gets[run], err);
        again[run] = bare[run];
    }
    if (rc != SKEP_OK)
        return rc;
    snprintf(text, sizeof(text), "beam search, %zu experts, cold, %zu peers, one sample; bare gets",
             bench_grid_experts(&b->grid), b->moe->peers);
    rc = bench_frame_add(frame, text, "ms", single, bare, err);
    if (rc == SKEP_OK)
        rc = bench_frame_add(frame, "gets of one such search", "gets", gets, NULL, err);
    snprintf(text, sizeof(text), "the same, a batch of %d; bare gets of one sample", BATCH);
    if (rc == SKEP_OK)
        rc = bench_frame_add(frame, text, "ms/sample", batch, again, err);
    return rc;
}

/* ---- the whole ---- */

static skep_status join(struct bench *b, struct asker *asker, struct skep_error *err)
{
    skep_status rc = identity_generate(&asker->identity, err);

    return rc == SKEP_OK
               ? bench_network_join(b->grid.network.port, &asker->identity, &asker->swarm, err)
               : rc;
}

static skep_status join_all(struct bench *b, struct skep_client **client, struct skep_error *err)
{
    struct skep_client_options options;
    char text[32];
    const char *peer = text;

    b->run_askers = 1 + b->moe->searches + 1 + (b->moe->searches - 1) / b->moe->side;
    b->asker_count = b->moe->frame->runs * b->run_askers;
    b->askers = mem_calloc(b->asker_count, sizeof(*b->askers));
    if (b->askers == NULL)
        return error_no_memory(err, "askers", b->asker_count * sizeof(*b->askers));
    skep_status rc = identity_system_init(err);
    for (size_t i = 0; i < b->asker_count && rc == SKEP_OK; i++)
        rc = join(b, &b->askers[i], err);
    if (rc != SKEP_OK)
        return rc;
    snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)b->grid.network.port);
    skep_client_options_init(&options);
    options.swarm = bench_network_swarm;
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    rc = skep_client_new(&options, client, err);
    return rc == SKEP_OK ? skep_client_wait_joined(*client, JOIN_MS, err) : rc;
}

static skep_status measure_all(struct bench *b, struct skep_client **client, struct skep_error *err)
{
    skep_status rc = bench_samples_reserve(&b->samples, b->moe->searches, err);

    for (int d = 0; d < BENCH_GRID_DIMS && rc == SKEP_OK; d++) {
        b->scores[d] = mem_calloc(MAX_SCORES, sizeof(double));
        if (b->scores[d] == NULL)
            rc = error_no_memory(err, "scores", MAX_SCORES * sizeof(double));
    }
    bench_frame_step(b->moe->frame, "starting peers");
    if (rc == SKEP_OK)
        rc = bench_grid_open(&b->grid, err);
    if (rc == SKEP_OK)
        rc = join_all(b, client, err);
    bench_frame_step(b->moe->frame, "publishing the grid");
    if (rc == SKEP_OK)
        rc = bench_grid_publish(&b->grid, err);
    if (rc == SKEP_OK)
        rc = measure_cold(b, err);
    if (rc == SKEP_OK)
        rc = measure_watched(b, *client, err);
    return rc;
}

skep_status bench_moe_search(struct bench_moe *moe, struct skep_error *err)
{
    struct bench b = {
        .moe = moe,
        .grid = {.side = (int64_t)moe->side, .peers = moe->peers, .nodes = moe->nodes},
        .random = {.state = 1},
    };
    struct skep_client *client = NULL;
    skep_status rc = measure_all(&b, &client, err);

    skep_client_free(client);
    for (size_t i = 0; i < b.asker_count && b.askers != NULL; i++)
        swarm_leave(b.askers[i].swarm, 0);
    mem_free(b.askers);
    for (int d = 0; d < BENCH_GRID_DIMS; d++)
        mem_free(b.scores[d]);
    bench_samples_free(&b.samples);
    bench_grid_close(&b.grid);
    return rc;
}
