/* Networks of growing size, each with its share of the experts; batches by turns of ours and bare.
 */
#include "bench/bench_batches.h"

#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"

enum {
    MAX_NETWORKS = 4,
    /* After the last peer has joined; what peers send by themselves meanwhile is counted. As long
     * as a node waits between its first two publications (dht/publish/handler.c). */
    SETTLE_MS = 5000,
    /* One batch in so many is done again by bare calls, after the others. */
    BARE_SHARE = 4,
    /* Before packets are read off: the rest of the last batch (replies of further nodes) is over
     * then. */
    PAUSE_MS = 30,
    /* Peers take turns in strides of this prime, so that neighbours in time sit in different
     * processes; those who look something up are a second prime away from who declared it. */
    STRIDE = 37,
    AWAY = 523,
};

static const size_t sizes[] = {32, 128, 512};

/* What one kind of task came to. */
struct tally {
    size_t experts, asked, good;
    uint64_t ns;
    struct bench_usage used;
};

struct grid {
    const struct bench_batches_config *config;
    struct bench_network network;
    struct bench_frame *frame;
    struct tally tallies[BENCH_BATCHES_TASKS];
};

/* The sizes of the networks, ascending; returns how many. */
static size_t list_networks(const struct bench_batches_config *config, size_t out[MAX_NETWORKS])
{
    size_t count = 0;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (sizes[i] < config->peers)
            out[count++] = sizes[i];
    out[count++] = config->peers;
    return count;
}

static size_t batches_of(const struct bench_batches_config *config, size_t peers)
{
    size_t experts = config->experts * peers / config->peers;
    size_t batches = (experts + config->batch_size - 1) / config->batch_size;

    return batches > 0 ? batches : 1;
}

static size_t bare_batches(size_t batches)
{
    return (batches + BARE_SHARE - 1) / BARE_SHARE;
}

/* Batches of all networks together. */
static size_t count_steps(const struct bench_batches_config *config)
{
    size_t networks[MAX_NETWORKS], count = list_networks(config, networks), steps = 0;

    for (size_t i = 0; i < count; i++) {
        size_t batches = batches_of(config, networks[i]);
        steps += 2 * batches + 3 * bare_batches(batches);
    }
    return steps;
}

/* ---- batches ---- */

static size_t batch_size(const struct grid *g, size_t batch, size_t batches)
{
    size_t experts = g->config->experts * g->network.peers / g->config->peers;
    size_t first = batch * g->config->batch_size;

    /* The last one of the network's own may be smaller; bare puts have further experts. */
    if (batch + 1 == batches && experts > first && experts - first < g->config->batch_size)
        return experts - first;
    return g->config->batch_size;
}

/* One batch; its time counts, its packets are counted by run_batches(). */
static skep_status run_batch(struct grid *g, enum bench_batches_task task, size_t peer,
                             size_t batch, size_t batches, struct skep_error *err)
{
    struct bench_batches_answer answer;
    struct tally *t = &g->tallies[task];
    size_t count = batch_size(g, batch, batches);
    char note[64];

    snprintf(note, sizeof(note), "%zu peers", g->network.peers);
    bench_frame_step(g->frame, note);
    skep_status rc = bench_batches_ask(&g->network, peer % g->network.peers, task,
                                       batch * g->config->batch_size, count, &answer, err);
    if (rc != SKEP_OK)
        return rc;
    t->experts += count;
    t->asked += answer.asked;
    t->good += answer.good;
    t->ns += answer.ns;
    return SKEP_OK;
}

/* Batches of one kind one right after the other, at most BARE_SHARE of them. */
struct series {
    enum bench_batches_task task;
    size_t first, count; /* batches */
    size_t peer;         /* who works on the first; the others are STRIDE apart */
};

static skep_status run_series(struct grid *g, const struct series *s, size_t batches,
                              struct skep_error *err)
{
    struct bench_usage before, after;
    struct tally *t = &g->tallies[s->task];
    skep_status rc = bench_network_usage(&g->network, &before, err);

    for (size_t i = 0; i < s->count && rc == SKEP_OK; i++)
        rc = run_batch(g, s->task, s->peer + i * STRIDE, s->first + i, batches, err);
    poll(NULL, 0, PAUSE_MS);
    if (rc == SKEP_OK)
        rc = bench_network_usage(&g->network, &after, err);
    if (rc != SKEP_OK)
        return rc;
    t->used.packets += after.packets - before.packets;
    t->used.bytes += after.bytes - before.bytes;
    t->used.cpu_ns += after.cpu_ns - before.cpu_ns;
    return SKEP_OK;
}

static size_t series_length(size_t first, size_t batches)
{
    return batches - first < BARE_SHARE ? batches - first : BARE_SHARE;
}

/* Bare puts are of experts of their own, numbered behind the others. */
static skep_status declare_all(struct grid *g, size_t batches, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < batches && rc == SKEP_OK; i += BARE_SHARE) {
        const struct series ours = {BENCH_BATCHES_DECLARE, i, series_length(i, batches),
                                    i * STRIDE};
        const struct series bare = {BENCH_BATCHES_BARE_PUT, batches + i / BARE_SHARE, 1,
                                    i * STRIDE + 1};
        rc = run_series(g, &ours, batches, err);
        if (rc == SKEP_OK)
            rc = run_series(g, &bare, batches, err);
    }
    return rc;
}

/* A peer that looks up a batch has not asked for these keys before: OpenDHT would remember. */
static skep_status find_all(struct grid *g, size_t batches, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < batches && rc == SKEP_OK; i += BARE_SHARE) {
        size_t peer = i * STRIDE + AWAY;
        const struct series ours = {BENCH_BATCHES_GET, i, series_length(i, batches), peer};
        const struct series bare = {BENCH_BATCHES_BARE_GET, i, 1, peer + 1};
        const struct series prefixes = {BENCH_BATCHES_PREFIXES, i, 1, peer + 2};
        rc = run_series(g, &ours, batches, err);
        if (rc == SKEP_OK)
            rc = run_series(g, &bare, batches, err);
        if (rc == SKEP_OK)
            rc = run_series(g, &prefixes, batches, err);
    }
    return rc;
}

/* ---- rows ---- */

/* @param baseline  NULL: none. */
SKEP_PRINTF(6, 7)
static skep_status add(struct grid *g, const char *unit, double value, const double *baseline,
                       struct skep_error *err, const char *format, ...)
{
    char name[BENCH_CASE_BYTES], text[BENCH_CASE_BYTES];
    va_list ap;

    va_start(ap, format);
    number_vprint(text, sizeof(text), format, ap);
    va_end(ap);
    snprintf(name, sizeof(name), "%zu peers: %s", g->network.peers, text);
    return bench_frame_add_one(g->frame, name, unit, value, baseline != NULL ? *baseline : NAN,
                               err);
}

static double per_expert(const struct tally *t, double amount)
{
    return t->experts > 0 ? amount / (double)t->experts : 0;
}

/* What an expert costs by `task`, and by `bare`. */
static skep_status add_costs(struct grid *g, const char *name, enum bench_batches_task task,
                             enum bench_batches_task bare, struct skep_error *err)
{
    const struct tally *t = &g->tallies[task], *b = &g->tallies[bare];
    const struct {
        const char *what, *unit;
        double value, baseline;
    } rows[] = {
        {"mean time", "ms", (double)t->ns / 1e6, (double)b->ns / 1e6},
        {"packets", "packets", (double)t->used.packets, (double)b->used.packets},
        {"bytes", "KiB", (double)t->used.bytes / 1024, (double)b->used.bytes / 1024},
        {"CPU time of all", "ms", (double)t->used.cpu_ns / 1e6, (double)b->used.cpu_ns / 1e6},
    };
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && rc == SKEP_OK; i++) {
        double baseline = per_expert(b, rows[i].baseline);
        rc = add(g, rows[i].unit, per_expert(t, rows[i].value), task == bare ? NULL : &baseline,
                 err, "%s an expert, %s", name, rows[i].what);
    }
    return rc;
}

static skep_status add_success(struct grid *g, const char *name, enum bench_batches_task task,
                               enum bench_batches_task bare, struct skep_error *err)
{
    const struct tally *t = &g->tallies[task], *b = &g->tallies[bare];
    double baseline = b->asked > 0 ? 100.0 * (double)b->good / (double)b->asked : 0;
    double value = t->asked > 0 ? 100.0 * (double)t->good / (double)t->asked : 0;

    return add(g, "%", value, task == bare ? NULL : &baseline, err, "%s (of %zu)", name, t->asked);
}

static skep_status add_rows(struct grid *g, struct skep_error *err)
{
    skep_status rc =
        add_success(g, "records stored", BENCH_BATCHES_DECLARE, BENCH_BATCHES_BARE_PUT, err);

    if (rc == SKEP_OK)
        rc = add_success(g, "experts found", BENCH_BATCHES_GET, BENCH_BATCHES_BARE_GET, err);
    if (rc == SKEP_OK)
        rc = add_success(g, "prefixes found", BENCH_BATCHES_PREFIXES, BENCH_BATCHES_PREFIXES, err);
    if (rc == SKEP_OK)
        rc = add_costs(g, "declare", BENCH_BATCHES_DECLARE, BENCH_BATCHES_BARE_PUT, err);
    if (rc == SKEP_OK)
        rc = add_costs(g, "get", BENCH_BATCHES_GET, BENCH_BATCHES_BARE_GET, err);
    return rc;
}

/* ---- networks ---- */

/* What the peers do by themselves, as rows. */
static skep_status settle(struct grid *g, struct skep_error *err)
{
    struct bench_usage before, after;
    uint64_t start_ns = bench_now_ns();
    skep_status rc = bench_network_usage(&g->network, &before, err);

    poll(NULL, 0, SETTLE_MS);
    if (rc == SKEP_OK)
        rc = bench_network_usage(&g->network, &after, err);
    if (rc != SKEP_OK)
        return rc;
    double seconds = (double)(bench_now_ns() - start_ns) / 1e9;
    rc = add(g, "packets/s", (double)(after.packets - before.packets) / seconds, NULL, err,
             "all of them, just joined");
    if (rc == SKEP_OK)
        rc = add(g, "%", (double)(after.cpu_ns - before.cpu_ns) / seconds / 1e7, NULL, err,
                 "all of them, just joined, of a core");
    if (rc == SKEP_OK)
        rc = add(g, "MiB", (double)after.resident_bytes / 1048576, NULL, err,
                 "all of them, resident");
    return rc;
}

static skep_status run_network(struct grid *g, size_t peers, struct skep_error *err)
{
    size_t processes = (peers + BENCH_NETWORK_PROCESS_PEERS - 1) / BENCH_NETWORK_PROCESS_PEERS;
    size_t batches = batches_of(g->config, peers);
    const struct bench_network_work work = {.serve = bench_batches_serve};
    char note[64];

    memset(g->tallies, 0, sizeof(g->tallies));
    snprintf(note, sizeof(note), "%zu peers join", peers);
    progress_set(&g->frame->progress, g->frame->steps, note);
    skep_status rc = bench_network_open(&g->network, peers, processes, &work, err);
    if (rc == SKEP_OK)
        rc = settle(g, err);
    if (rc == SKEP_OK)
        rc = declare_all(g, batches, err);
    if (rc == SKEP_OK)
        rc = find_all(g, batches, err);
    if (rc == SKEP_OK)
        rc = add_rows(g, err);
    bench_network_stop(&g->network);
    return rc;
}

skep_status bench_batches_run(const struct bench_batches_config *config, struct bench_frame *frame,
                              struct skep_error *err)
{
    struct grid g = {.config = config, .frame = frame};
    size_t networks[MAX_NETWORKS], count = list_networks(config, networks);
    skep_status rc = SKEP_OK;

    bench_frame_expect(frame, count_steps(config));
    for (size_t i = 0; i < count && rc == SKEP_OK; i++)
        rc = run_network(&g, networks[i], err);
    return rc;
}
