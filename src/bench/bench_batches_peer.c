/* A peer's work on one batch of experts. */
#include "bench/bench_batches_peer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "bench/bench_stats.h"
#include "dht/directory/directory_collect.h"
#include "dht/publish/publication.h"

enum {
    BATCH_MS = 60000, /* a batch's deadline */
    LIFETIME_S = 3600,
    GRID_BITS = 30, /* numbers of the grid's cells fit */
    /* Bare puts and gets without an answer, as many as the directory allows itself: all of a batch
     * at once took over twice the time, for packets were lost. */
    BARE_IN_FLIGHT = 64,
};

/* One batch in work. */
struct batch {
    struct swarm *swarm;
    size_t first, count;
    struct endpoint endpoint; /* which says whose batch it is */
    char (*uids)[UID_BYTES];
    const char **list;
    struct bench_batches_answer answer;
};

/* A permutation of the numbers of GRID_BITS bits: each step can be undone. */
static uint64_t shuffle(uint64_t n)
{
    const uint64_t mask = ((uint64_t)1 << GRID_BITS) - 1;

    for (int i = 0; i < 3; i++) {
        n = (n ^ n >> 15) & mask;
        n = (n * 0x2c1b3c6d + 0x297a2d39) & mask;
    }
    return (n ^ n >> 15) & mask;
}

/* Walking a permutation until it is back inside the grid is a permutation of the grid. */
static void uid_at(const struct uid_pattern *pattern, size_t number, char out[static UID_BYTES])
{
    uint64_t cells = uid_pattern_count(pattern), cell = number;

    do
        cell = shuffle(cell);
    while (cell >= cells);
    uid_pattern_at(pattern, cell, out);
}

static skep_status prepare(struct batch *b, struct skep_error *err)
{
    struct uid_pattern pattern;
    skep_status rc = uid_pattern_parse(&pattern, BENCH_BATCHES_PATTERN, err);

    if (rc != SKEP_OK)
        return rc;
    b->uids = mem_calloc(b->count, sizeof(*b->uids));
    b->list = mem_calloc(b->count, sizeof(*b->list));
    if (b->uids == NULL || b->list == NULL)
        return error_no_memory(err, "batch of experts", b->count * sizeof(*b->uids));
    for (size_t i = 0; i < b->count; i++) {
        uid_at(&pattern, b->first + i, b->uids[i]);
        b->list[i] = b->uids[i];
    }
    snprintf(b->endpoint.host, sizeof(b->endpoint.host), "127.0.0.1");
    b->endpoint.port = (uint16_t)(1 + b->first % 65535);
    return SKEP_OK;
}

/* ---- waiting for callbacks ---- */

struct wait {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    size_t answered, ended; /* asks that have what the clock waits for; that are over */
    size_t good;
};

/* One ask, of a bare put or get. */
struct dht_request {
    struct wait *wait;
    bool answered;
};

static void wait_init(struct wait *w)
{
    *w = (struct wait){.lock = PTHREAD_MUTEX_INITIALIZER};
    cond_init(&w->changed);
}

static void wait_fini(struct wait *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

/* The first word on an ask; with the lock held. */
static void answer(struct dht_request *a, bool good)
{
    if (a->answered)
        return;
    a->answered = true;
    a->wait->answered++;
    a->wait->good += good;
}

static void on_ended(void *arg, bool ok)
{
    struct dht_request *a = arg;

    pthread_mutex_lock(&a->wait->lock);
    answer(a, ok);
    a->wait->ended++;
    pthread_cond_signal(&a->wait->changed);
    pthread_mutex_unlock(&a->wait->lock);
}

/* A get that is over without a value has not found any, whatever OpenDHT says of it. */
static void on_get_ended(void *arg, bool ok)
{
    (void)ok;
    on_ended(arg, false);
}

static bool on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len)
{
    struct dht_request *a = arg;

    (void)value_id;
    (void)data;
    (void)len;
    pthread_mutex_lock(&a->wait->lock);
    answer(a, true);
    pthread_cond_signal(&a->wait->changed);
    pthread_mutex_unlock(&a->wait->lock);
    return true; /* goes on, as the directory's does */
}

/* Waits until one more may be asked. */
static void await_turn(struct wait *w, size_t asked)
{
    pthread_mutex_lock(&w->lock);
    while (asked - w->answered >= BARE_IN_FLIGHT)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* Waits for all answers, which stops the clock, then for the ends: the asks must outlive them. */
static void await_asks(struct wait *w, size_t count, uint64_t start_ns, uint64_t *ns)
{
    pthread_mutex_lock(&w->lock);
    while (w->answered < count)
        pthread_cond_wait(&w->changed, &w->lock);
    *ns = bench_now_ns() - start_ns;
    while (w->ended < count)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* ---- declaring ---- */

static void on_declared(void *arg, struct declaration *declarations, size_t count)
{
    struct wait *w = arg;

    (void)declarations;
    pthread_mutex_lock(&w->lock);
    w->ended = count;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* What a node with these experts says in its first round. */
static skep_status fill_round(struct batch *b, struct publication **out,
                              struct publisher_round *round, struct skep_error *err)
{
    struct handler_expert *experts = mem_calloc(b->count, sizeof(*experts));
    const struct publication_state state = {
        .endpoints = &b->endpoint,
        .endpoint_count = 1,
        .version = "bench",
    };

    *round = (struct publisher_round){
        .scope = PUBLISH_ALL,
        .now_s = clock_wall_ms() / 1000,
        .lifetime_s = LIFETIME_S - 60, /* clocks of one machine, but seconds are cut */
    };
    if (experts == NULL)
        return error_no_memory(err, "batch of experts", b->count * sizeof(*experts));
    for (size_t i = 0; i < b->count; i++)
        experts[i] = (struct handler_expert){.uid = b->list[i], .cls = "nop"};
    skep_status rc = publication_new(swarm_record(b->swarm), swarm_identity(b->swarm), experts,
                                     b->count, out, err);
    if (rc == SKEP_OK)
        publication_round(*out, &state, round);
    if (rc == SKEP_OK && round->count == 0)
        rc = error_no_memory(err, "records to publish", b->count);
    b->answer.asked = round->count;
    mem_free(experts);
    return rc;
}

static skep_status declare(struct batch *b, struct skep_error *err)
{
    struct publication *publication = NULL;
    struct publisher_round round;
    struct wait w;
    uint64_t start_ns = bench_now_ns();
    skep_status rc = fill_round(b, &publication, &round, err);

    wait_init(&w);
    if (rc == SKEP_OK)
        rc = directory_declare(swarm_directory(b->swarm), round.declarations, b->answer.asked,
                               clock_deadline_us(BATCH_MS), on_declared, &w, err);
    if (rc == SKEP_OK) {
        pthread_mutex_lock(&w.lock);
        while (w.ended == 0)
            pthread_cond_wait(&w.changed, &w.lock);
        pthread_mutex_unlock(&w.lock);
        b->answer.ns = bench_now_ns() - start_ns;
        for (size_t i = 0; i < b->answer.asked; i++)
            b->answer.good += round.declarations[i].outcome == SKEP_OK;
    }
    wait_fini(&w);
    publisher_round_fini(&round);
    publication_free(publication);
    return rc;
}

/* The round's records, signed. @param out  as many as answer.asked. */
static skep_status encode_round(struct batch *b, struct declaration *declarations,
                                struct bytes *out, struct skep_error *err)
{
    uint64_t seq = (uint64_t)clock_wall_ms();
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < b->answer.asked && rc == SKEP_OK; i++) {
        struct record *record = declarations[i].record;
        memcpy(record->peer_id, swarm_identity(b->swarm)->peer_id, sizeof(record->peer_id));
        record->seq = seq + i;
        rc = record_encode(record, swarm_identity(b->swarm), swarm_record(b->swarm),
                           declarations[i].key, &out[i], err);
    }
    return rc;
}

static skep_status bare_put(struct batch *b, struct skep_error *err)
{
    struct publication *publication = NULL;
    struct publisher_round round;
    struct bytes *encoded = NULL;
    struct dht_request *asks = NULL;
    struct wait w;
    skep_status rc = fill_round(b, &publication, &round, err);

    wait_init(&w);
    if (rc != SKEP_OK)
        goto out;
    encoded = mem_calloc(b->answer.asked, sizeof(*encoded));
    asks = mem_calloc(b->answer.asked, sizeof(*asks));
    if (encoded == NULL || asks == NULL) {
        rc = error_no_memory(err, "records", b->answer.asked * sizeof(*encoded));
        goto out;
    }
    rc = encode_round(b, round.declarations, encoded, err);
    if (rc != SKEP_OK)
        goto out;
    uint64_t start_ns = bench_now_ns();
    for (size_t i = 0; i < b->answer.asked; i++) {
        await_turn(&w, i);
        asks[i].wait = &w;
        const struct runner_value value = {record_value_id(round.declarations[i].record),
                                           record_type_for(LIFETIME_S), encoded[i].data,
                                           encoded[i].len};
        runner_put(swarm_runner(b->swarm), round.declarations[i].key, &value, on_ended, &asks[i]);
    }
    await_asks(&w, b->answer.asked, start_ns, &b->answer.ns);
    b->answer.good = w.good;

out:
    for (size_t i = 0; encoded != NULL && i < b->answer.asked; i++)
        bytes_free(&encoded[i]);
    mem_free(encoded);
    mem_free(asks);
    wait_fini(&w);
    publisher_round_fini(&round);
    publication_free(publication);
    return rc;
}

/* ---- finding ---- */

/* A figure below 100% explains nothing: how often each status was the reason. */
static void tell_misses(const struct batch *b, const struct lookup_result *results)
{
    size_t counts[SKEP_UNAUTHENTICATED + 1] = {0};

    for (size_t i = 0; i < b->count; i++)
        if ((size_t)results[i].status < sizeof(counts) / sizeof(counts[0]))
            counts[results[i].status]++;
    for (size_t s = 0; s < sizeof(counts) / sizeof(counts[0]); s++)
        if (counts[s] > 0 && s != SKEP_OK)
            log_warn("bench: experts %zu to %zu: %zu times %s, in %.0f ms", b->first,
                     b->first + b->count - 1, counts[s], skep_status_name((skep_status)s),
                     (double)b->answer.ns / 1e6);
}

static skep_status get(struct batch *b, struct skep_error *err)
{
    struct lookup_result *results = mem_calloc(b->count, sizeof(*results));

    if (results == NULL)
        return error_no_memory(err, "lookups", b->count * sizeof(*results));
    uint64_t start_ns = bench_now_ns();
    skep_status rc = directory_get_wait(swarm_directory(b->swarm), b->list, b->count,
                                        DIRECTORY_FRESH, clock_deadline_us(BATCH_MS), results, err);
    b->answer.ns = bench_now_ns() - start_ns;
    b->answer.asked = b->count;
    for (size_t i = 0; i < b->count; i++)
        b->answer.good += results[i].status == SKEP_OK &&
                          results[i].providers[0].endpoints[0].port == b->endpoint.port;
    if (b->answer.good < b->answer.asked)
        tell_misses(b, results);
    mem_free(results);
    return rc;
}

static skep_status bare_get(struct batch *b, struct skep_error *err)
{
    struct dht_request *asks = mem_calloc(b->count, sizeof(*asks));
    uint8_t key[RECORD_KEY_BYTES];
    struct wait w;

    if (asks == NULL)
        return error_no_memory(err, "lookups", b->count * sizeof(*asks));
    wait_init(&w);
    uint64_t start_ns = bench_now_ns();
    for (size_t i = 0; i < b->count; i++) {
        await_turn(&w, i);
        asks[i].wait = &w;
        record_key_expert(swarm_record(b->swarm), b->list[i], key);
        runner_get(swarm_runner(b->swarm), key, on_value, on_get_ended, &asks[i]);
    }
    await_asks(&w, b->count, start_ns, &b->answer.ns);
    b->answer.asked = b->count;
    b->answer.good = w.good;
    wait_fini(&w);
    mem_free(asks);
    return SKEP_OK;
}

/* Whether the last coordinate of a UID is among those alive under its prefix. */
static bool lists_it(const struct successors *s, const char *uid)
{
    int64_t coord = strtoll(strrchr(uid, '.') + 1, NULL, 10);

    return s->status == SKEP_OK && prefix_view_find(s->view, coord) != SIZE_MAX;
}

static skep_status find_prefixes(struct batch *b, struct skep_error *err)
{
    struct successors *results = mem_calloc(b->count, sizeof(*results));
    char(*prefixes)[UID_BYTES] = mem_calloc(b->count, sizeof(*prefixes));
    const char **list = mem_calloc(b->count, sizeof(*list));
    skep_status rc = SKEP_OK;

    if (results == NULL || prefixes == NULL || list == NULL) {
        rc = error_no_memory(err, "prefixes", b->count * sizeof(*prefixes));
        goto out;
    }
    for (size_t i = 0; i < b->count; i++) {
        snprintf(prefixes[i], UID_BYTES, "%.*s", (int)(strrchr(b->list[i], '.') + 1 - b->list[i]),
                 b->list[i]);
        list[i] = prefixes[i];
    }
    uint64_t start_ns = bench_now_ns();
    rc = directory_successors(swarm_directory(b->swarm),
                              &(struct successors_question){list, NULL, b->count, DIRECTORY_FRESH},
                              clock_deadline_us(BATCH_MS), results, err);
    b->answer.ns = bench_now_ns() - start_ns;
    b->answer.asked = b->count;
    for (size_t i = 0; i < b->count; i++)
        b->answer.good += lists_it(&results[i], b->list[i]);
    successors_free(results, b->count);

out:
    mem_free(list);
    mem_free(prefixes);
    mem_free(results);
    return rc;
}

/* ---- both ends of the line ---- */

static skep_status work(struct batch *b, unsigned task, struct skep_error *err)
{
    switch (task) {
    case BENCH_BATCHES_DECLARE:
        return declare(b, err);
    case BENCH_BATCHES_GET:
        return get(b, err);
    case BENCH_BATCHES_PREFIXES:
        return find_prefixes(b, err);
    case BENCH_BATCHES_BARE_PUT:
        return bare_put(b, err);
    default:
        return bare_get(b, err);
    }
}

skep_status bench_batches_serve(struct swarm *peer, const char *request,
                                char reply[static BENCH_LINE_BYTES], struct skep_error *err)
{
    struct batch b = {.swarm = peer};
    unsigned task;

    if (sscanf(request, "%u %zu %zu", &task, &b.first, &b.count) != 3 ||
        task >= BENCH_BATCHES_TASKS || b.count == 0 || b.count > BENCH_BATCHES_MAX_BATCH)
        return error_set(err, SKEP_INTERNAL, "asked for \"%s\"", request);
    skep_status rc = prepare(&b, err);
    if (rc == SKEP_OK)
        rc = work(&b, task, err);
    mem_free(b.list);
    mem_free(b.uids);
    snprintf(reply, BENCH_LINE_BYTES, "%zu %zu %" PRIu64, b.answer.asked, b.answer.good,
             b.answer.ns);
    return rc;
}

skep_status bench_batches_ask(struct bench_network *network, size_t peer,
                              enum bench_batches_task task, size_t first, size_t count,
                              struct bench_batches_answer *out, struct skep_error *err)
{
    char request[BENCH_LINE_BYTES - 32], reply[BENCH_LINE_BYTES];

    snprintf(request, sizeof(request), "%u %zu %zu", (unsigned)task, first, count);
    skep_status rc = bench_network_ask(network, peer, request, reply, err);
    if (rc == SKEP_OK && sscanf(reply, "%zu %zu %" SCNu64, &out->asked, &out->good, &out->ns) != 3)
        rc = error_set(err, SKEP_INTERNAL, "a peer answered \"%s\"", reply);
    return rc;
}
