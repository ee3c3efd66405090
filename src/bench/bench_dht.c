/*
 * skep bench dht: lookups of one UID, uncached, in a network of peers in processes of their own.
 *
 * Baseline of the same run: a bare OpenDHT get, from the call until its first value is there. Each
 * key is asked for once, because OpenDHT remembers for minutes whom it asked about a key; keys are
 * used by turns for the lookup and for the baseline. Many UIDs at once are compared with as many
 * bare gets, by peers of their own. Then a quarter of the peers is killed and single lookups are
 * measured with keys that were not asked for yet.
 *
 * With --num-experts: experts of a grid instead, see bench_batches.h.
 */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "bench/bench.h"
#include "bench/bench_frame.h"
#include "bench/bench_bare.h"
#include "bench/bench_batches.h"
#include "bench/bench_network.h"
#include "dht/swarm/swarm.h"

enum {
    MAX_RUNS = 20,
    WARMUP = 32,       /* keys asked for before anything is measured */
    LOOKUP_MS = 10000, /* one lookup's deadline */
    /* Between two lookups: the rest of the one before (other nodes' replies) is over then, so that
     * neither side is measured beside the other's packets. */
    PAUSE_MS = 10,
};

static const struct option_spec specs[] = {
    BENCH_OPTION_PEERS(BENCH_NETWORK_MAX_PEERS),
    {.name = "num-lookups",
     .kind = OPTION_INT,
     .min = 10,
     .max = 10000,
     .default_text = "100",
     .help = "lookups a run, and as many bare gets"},
    BENCH_OPTION_RUNS(MAX_RUNS, "5", "measured runs of each case; medians are shown"),
    {.name = "num-bulk",
     .kind = OPTION_INT,
     .min = 1,
     .max = 20000,
     .default_text = "1000",
     .help = "UIDs of one bulk lookup"},
    {.name = "num-experts",
     .kind = OPTION_INT,
     .min = 0,
     .max = BENCH_BATCHES_MAX_EXPERTS / 2,
     .default_text = "0",
     .help = "if not 0, measures declaring and finding so many experts of a grid instead, "
             "" BENCH_BATCHES_PATTERN ", by networks of 32, 128, 512 and --num-peers peers; a "
             "smaller network has its share of them"},
    {.name = "expert-batch-size",
     .kind = OPTION_INT,
     .min = 1,
     .max = BENCH_BATCHES_MAX_BATCH,
     .default_text = "64",
     .help = "experts that one peer declares, or finds, together; one batch at a time"},
    BENCH_OPTION_JSON,
};

static const struct option_table table = {
    .command = "bench dht",
    .summary = "Measures lookups of one UID, uncached, in a network of DHT peers on loopback, "
               "against a bare OpenDHT get to its first value; and again with a quarter of the "
               "peers killed. With --num-experts, measures what hivemind's DHT benchmark does: "
               "time a declared and a found expert, packets and bytes, in growing networks.",
    .example = "skep bench dht\nskep bench dht --num-peers 64 --num-lookups 200 --json\n"
               "skep bench dht --num-peers 1024 --num-experts 16384 --expert-batch-size 64",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};

struct bench {
    struct bench_frame *frame;
    size_t peers, lookups, bulk;
    struct bench_network network;
    struct identity identity;
    struct swarm *swarm;
    struct bench_samples lookup_ns, bare_ns;
    size_t next_key; /* the next that was not asked for yet */
    size_t missed;   /* lookups that found nothing */
};

static skep_status join(struct bench *b, struct swarm **out, struct skep_error *err)
{
    return bench_network_join(b->network.port, &b->identity, out, err);
}

/* ---- the baseline: a get to its first value ---- */

/* Returns whether a value came. */
static bool bare_get(struct bench *bench, const char *uid, uint64_t *elapsed_ns)
{
    uint8_t key[RECORD_KEY_BYTES];

    record_key_expert(swarm_record(bench->swarm), uid, key);
    return bench_bare_get(bench->swarm, key, false, elapsed_ns);
}

/* ---- lookups ---- */

static bool look_up(struct bench *bench, const char *uid, struct lookup_result *result,
                    uint64_t *elapsed_ns)
{
    struct skep_error err;
    uint64_t start_ns = bench_now_ns();
    skep_status rc = directory_get_wait(swarm_directory(bench->swarm), &uid, 1, DIRECTORY_FRESH,
                                        clock_deadline_us(LOOKUP_MS), result, &err);

    *elapsed_ns = bench_now_ns() - start_ns;
    return rc == SKEP_OK && result->status == SKEP_OK;
}

/* One key by one of the two ways, added to its samples. */
static void measure_one(struct bench *b, bool bare, struct lookup_result *result)
{
    char uid[UID_BYTES];
    uint64_t elapsed_ns;

    snprintf(uid, sizeof(uid), "bench.%zu", b->next_key++);
    bool found = bare ? bare_get(b, uid, &elapsed_ns) : look_up(b, uid, result, &elapsed_ns);
    if (!found)
        b->missed++;
    else
        bench_samples_add(bare ? &b->bare_ns : &b->lookup_ns, elapsed_ns);
    poll(NULL, 0, PAUSE_MS);
}

static skep_status measure(struct bench *b, const char *name, struct skep_error *err)
{
    double medians[MAX_RUNS], slow[MAX_RUNS], bare_medians[MAX_RUNS], bare_slow[MAX_RUNS];
    char text[BENCH_CASE_BYTES];
    struct lookup_result *result = mem_calloc(1, sizeof(*result));

    if (result == NULL)
        return error_no_memory(err, "lookup", sizeof(*result));
    for (size_t run = 0; run < b->frame->runs; run++) {
        bench_frame_step(b->frame, name);
        bench_samples_clear(&b->lookup_ns);
        bench_samples_clear(&b->bare_ns);
        for (size_t i = 0; i < b->lookups; i++) {
            bool bare_first = i % 2 == 0;
            measure_one(b, bare_first, result);
            measure_one(b, !bare_first, result);
        }
        struct bench_summary lookup = bench_samples_summarize(&b->lookup_ns);
        struct bench_summary bare = bench_samples_summarize(&b->bare_ns);
        medians[run] = lookup.median / 1e6;
        slow[run] = lookup.p99 / 1e6;
        bare_medians[run] = bare.median / 1e6;
        bare_slow[run] = bare.p99 / 1e6;
    }
    mem_free(result);
    snprintf(text, sizeof(text), "%s, median", name);
    skep_status rc = bench_frame_add(b->frame, text, "ms", medians, bare_medians, err);
    snprintf(text, sizeof(text), "%s, 99 of 100", name);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, text, "ms", slow, bare_slow, err);
    return rc;
}

/* ---- many UIDs at once ---- */

struct bulk {
    double rate;    /* a second */
    double missing; /* not found */
};

/* Through a peer of its own: thousands of searches that OpenDHT keeps for minutes would slow the
 * lookups that are measured after it. */
static skep_status look_up_bulk(struct bench *b, struct bulk *out, struct skep_error *err)
{
    struct swarm *swarm = NULL;
    char(*uids)[32] = mem_calloc(b->bulk, sizeof(*uids));
    const char **list = mem_calloc(b->bulk, sizeof(*list));
    struct lookup_result *results = mem_calloc(b->bulk, sizeof(*results));
    skep_status rc = SKEP_OK;

    if (uids == NULL || list == NULL || results == NULL) {
        rc = error_no_memory(err, "bulk lookup", b->bulk * sizeof(*results));
        goto out;
    }
    rc = join(b, &swarm, err);
    if (rc != SKEP_OK)
        goto out;
    for (size_t i = 0; i < b->bulk; i++) {
        snprintf(uids[i], sizeof(uids[i]), "bench.%zu", b->next_key++);
        list[i] = uids[i];
    }
    uint64_t start_ns = bench_now_ns();
    rc = directory_get_wait(swarm_directory(swarm), list, b->bulk, DIRECTORY_FRESH,
                            clock_deadline_us(6 * LOOKUP_MS), results, err);
    out->rate = (double)b->bulk * 1e9 / (double)(bench_now_ns() - start_ns);
    out->missing = 0;
    for (size_t i = 0; i < b->bulk; i++)
        out->missing += results[i].status != SKEP_OK;

out:
    swarm_leave(swarm, 0);
    mem_free(results);
    mem_free(list);
    mem_free(uids);
    return rc;
}

/* The same of as many other keys by bare gets, through another peer. */
static skep_status bare_bulk(struct bench *b, struct bulk *out, struct skep_error *err)
{
    struct swarm *swarm = NULL;
    uint8_t *keys = mem_calloc(b->bulk, RECORD_KEY_BYTES);
    uint64_t elapsed_ns;
    size_t found;
    skep_status rc = SKEP_OK;

    if (keys == NULL)
        return error_no_memory(err, "bare gets", b->bulk * RECORD_KEY_BYTES);
    rc = join(b, &swarm, err);
    if (rc != SKEP_OK)
        goto out;
    for (size_t i = 0; i < b->bulk; i++) {
        char uid[UID_BYTES];
        snprintf(uid, sizeof(uid), "bench.%zu", b->next_key++);
        record_key_expert(swarm_record(swarm), uid, keys + i * RECORD_KEY_BYTES);
    }
    rc = bench_bare_get_many(swarm, keys, b->bulk, &elapsed_ns, &found, err);
    if (rc != SKEP_OK)
        goto out;
    out->rate = (double)b->bulk * 1e9 / (double)elapsed_ns;
    out->missing = (double)(b->bulk - found);

out:
    swarm_leave(swarm, 0);
    mem_free(keys);
    return rc;
}

static skep_status measure_bulk(struct bench *b, struct skep_error *err)
{
    double rates[MAX_RUNS], missing[MAX_RUNS], bare_rates[MAX_RUNS], bare_missing[MAX_RUNS];
    char text[BENCH_CASE_BYTES];
    skep_status rc = SKEP_OK;

    for (size_t run = 0; run < b->frame->runs && rc == SKEP_OK; run++) {
        struct bulk bulk = {0}, bare = {0};
        bench_frame_step(b->frame, "bulk");
        rc = look_up_bulk(b, &bulk, err);
        if (rc == SKEP_OK)
            rc = bare_bulk(b, &bare, err);
        if (rc != SKEP_OK)
            return rc;
        rates[run] = bulk.rate;
        missing[run] = bulk.missing;
        bare_rates[run] = bare.rate;
        bare_missing[run] = bare.missing;
    }
    snprintf(text, sizeof(text), "%zu UIDs at once, uncached", b->bulk);
    rc = bench_frame_add(b->frame, text, "lookups/s", rates, bare_rates, err);
    snprintf(text, sizeof(text), "%zu UIDs at once, not found", b->bulk);
    if (rc == SKEP_OK)
        rc = bench_frame_add(b->frame, text, "UIDs", missing, bare_missing, err);
    return rc;
}

/* ---- the whole ---- */

static size_t keys_needed(const struct bench *b)
{
    return WARMUP + 2 * 2 * b->lookups * b->frame->runs + 2 * b->bulk * b->frame->runs;
}

static void warm_up(struct bench *b)
{
    struct lookup_result *result = mem_calloc(1, sizeof(*result));
    uint64_t elapsed_ns;
    char uid[UID_BYTES];

    for (size_t i = 0; i < WARMUP && result != NULL; i++) {
        snprintf(uid, sizeof(uid), "bench.%zu", b->next_key++);
        look_up(b, uid, result, &elapsed_ns);
    }
    mem_free(result);
}

static skep_status measure_all(struct bench *b, struct skep_error *err)
{
    size_t processes = (b->peers + BENCH_NETWORK_PROCESS_PEERS - 1) / BENCH_NETWORK_PROCESS_PEERS;
    char text[BENCH_CASE_BYTES];

    if (processes < 4)
        processes = 4; /* so that a quarter can be killed */
    bench_frame_step(b->frame, "starting peers");
    skep_status rc = bench_network_start(&b->network, b->peers, processes, keys_needed(b), err);
    if (rc == SKEP_OK)
        rc = identity_system_init(err);
    if (rc == SKEP_OK)
        rc = identity_generate(&b->identity, err);
    if (rc == SKEP_OK)
        rc = join(b, &b->swarm, err);
    if (rc == SKEP_OK)
        rc = bench_samples_reserve(&b->lookup_ns, b->lookups, err);
    if (rc == SKEP_OK)
        rc = bench_samples_reserve(&b->bare_ns, b->lookups, err);
    if (rc != SKEP_OK)
        return rc;
    warm_up(b);
    snprintf(text, sizeof(text), "lookup of one UID, uncached, %zu peers", b->peers);
    rc = measure(b, text, err);
    if (rc == SKEP_OK)
        rc = measure_bulk(b, err);
    if (rc != SKEP_OK)
        return rc;
    size_t killed = bench_network_kill(&b->network, b->peers / 4);
    snprintf(text, sizeof(text), "the same, %zu of them killed", killed);
    rc = measure(b, text, err);
    return rc == SKEP_OK
               ? bench_frame_add_one(b->frame, "single lookups and gets without an answer", "UIDs",
                                     (double)b->missed, NAN, err)
               : rc;
}

/* Options of what is not measured. */
static int check_idle(struct options *o)
{
    static const char *const of_lookups[] = {"num-lookups", "num-bulk", "runs"};
    bool batches = options_int(o, "num-experts") > 0;
    int code = batches ? CLI_DONE : options_idle(o, "expert-batch-size", "needs --num-experts");

    for (size_t i = 0; i < OPTION_COUNT(of_lookups) && code == CLI_DONE && batches; i++)
        code = options_idle(o, of_lookups[i], "does nothing with --num-experts");
    return code;
}

static skep_status measure_lookups(struct bench_frame *frame, const struct options *o,
                                   struct skep_error *err)
{
    struct bench b = {
        .frame = frame,
        .peers = (size_t)options_int(o, "num-peers"),
        .lookups = (size_t)options_int(o, "num-lookups"),
        .bulk = (size_t)options_int(o, "num-bulk"),
    };

    bench_frame_expect(frame, 1 + 3 * frame->runs);
    skep_status rc = measure_all(&b, err);
    swarm_leave(b.swarm, 0);
    bench_network_stop(&b.network);
    bench_samples_free(&b.lookup_ns);
    bench_samples_free(&b.bare_ns);
    return rc;
}

static skep_status measure_dht(struct bench_frame *frame, const struct options *o,
                               struct skep_error *err)
{
    const struct bench_batches_config grid = {
        .peers = (size_t)options_int(o, "num-peers"),
        .experts = (size_t)options_int(o, "num-experts"),
        .batch_size = (size_t)options_int(o, "expert-batch-size"),
    };

    return grid.experts > 0 ? bench_batches_run(&grid, frame, err) : measure_lookups(frame, o, err);
}

const struct bench_command bench_dht = {
    .options = &table, .check = check_idle, .measure = measure_dht};
