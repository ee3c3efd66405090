/* A network whose peers publish a grid of experts. */
#include "bench/bench_grid.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "dht/publish/handler.h"

enum {
    PERIOD_S = 1800, /* records outlive any benchmark, and are not refreshed beside it */
    ROUNDS = 2,      /* see bench_network.c */
    PUBLISH_MS = 290000,
    TURN_MS = 20,
    FIRST_PORT = 20000, /* of the endpoints in the records; nobody is there */
};

size_t bench_grid_experts(const struct bench_grid *g)
{
    return (size_t)(g->side * g->side * g->side);
}

void bench_grid_uid(const struct bench_grid *g, size_t expert, char uid[static UID_BYTES])
{
    int64_t at = (int64_t)expert;

    snprintf(uid, UID_BYTES, BENCH_GRID_PREFIX "%" PRId64 ".%" PRId64 ".%" PRId64,
             at / (g->side * g->side), at / g->side % g->side, at % g->side);
}

/* ---- in the processes of the network ---- */

/* The experts in an order that is random and the same in every process; owned. */
static uint32_t *shuffled(size_t count)
{
    uint32_t *order = mem_alloc(count * sizeof(*order));
    uint64_t state = 0x9e3779b97f4a7c15u;

    for (size_t i = 0; order != NULL && i < count; i++) {
        state ^= state << 13; /* xorshift64 */
        state ^= state >> 7;
        state ^= state << 17;
        size_t other = (size_t)(state % (i + 1));
        order[i] = order[other];
        order[other] = (uint32_t)i;
    }
    return order;
}

static skep_status start_node(const struct bench_grid *g, const uint32_t *order, size_t node,
                              struct swarm *swarm, struct handler **out, struct skep_error *err)
{
    size_t first = bench_grid_experts(g) * node / g->nodes;
    size_t count = bench_grid_experts(g) * (node + 1) / g->nodes - first;
    struct handler_expert *experts = mem_calloc(count + 1, sizeof(*experts));
    char(*uids)[UID_BYTES] = mem_calloc(count + 1, sizeof(*uids));
    struct handler_config config = {
        .swarm = swarm,
        .update_period_s = PERIOD_S,
        .endpoint_count = 1,
        .endpoints = {{.host = "127.0.0.1", .port = (uint16_t)(FIRST_PORT + node)}},
        .version = "bench",
    };
    skep_status rc;

    for (size_t i = 0; experts != NULL && uids != NULL && i < count; i++) {
        bench_grid_uid(g, order[first + i], uids[i]);
        experts[i] = (struct handler_expert){.uid = uids[i], .cls = "nop"};
    }
    if (experts == NULL || uids == NULL)
        rc = error_no_memory(err, "experts", count * sizeof(*experts));
    else
        rc = handler_new(&config, experts, count, out, err);
    mem_free(experts);
    mem_free(uids);
    return rc;
}

/* Whether all of it was published, in one of so many rounds or more. */
static bool has_published(struct handler *handler, uint64_t rounds)
{
    struct handler_stats stats;

    handler_stats(handler, &stats);
    return stats.rounds >= rounds && stats.last_success_unix_s > 0;
}

static bool wait_published(struct handler *handler, uint64_t rounds, uint64_t deadline_us)
{
    while (!has_published(handler, rounds)) {
        if (clock_left_ms(deadline_us) == 0)
            return false;
        poll(NULL, 0, TURN_MS);
    }
    return true;
}

/* The peer that is node number i, spread evenly over the network. */
static size_t peer_of(const struct bench_grid *g, size_t node)
{
    return node * g->peers / g->nodes;
}

/* Starts one node and waits for its first round, at its turn: the puts of all together would swamp
 * the machine and time out. */
static skep_status take_turn(const struct bench_grid *g, const uint32_t *order, size_t node,
                             struct swarm *swarm, struct handler **out, uint64_t deadline_us,
                             struct skep_error *err)
{
    char token;

    if (read(g->turns[0], &token, 1) != 1)
        return error_set(err, SKEP_UNAVAILABLE, "bench grid: no turn");
    skep_status rc = start_node(g, order, node, swarm, out, err);
    if (rc == SKEP_OK && !wait_published(*out, 1, deadline_us))
        rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "node %zu has not published its experts", node);
    if (write(g->turns[1], &token, 1) != 1 && rc == SKEP_OK)
        rc = error_set(err, SKEP_UNAVAILABLE, "bench grid: no turns");
    return rc;
}

static skep_status publish(void *arg, struct swarm *const *swarms, size_t first_peer, size_t count,
                           struct skep_error *err)
{
    const struct bench_grid *g = arg;
    struct handler *handlers[BENCH_NETWORK_PROCESS_PEERS];
    size_t started = 0;
    uint64_t deadline_us = clock_deadline_us(PUBLISH_MS);
    uint32_t *order = shuffled(bench_grid_experts(g));
    skep_status rc =
        order != NULL ? SKEP_OK : error_no_memory(err, "experts", bench_grid_experts(g));

    for (size_t node = 0; node < g->nodes && rc == SKEP_OK; node++) {
        size_t peer = peer_of(g, node);
        if (peer < first_peer || peer >= first_peer + count)
            continue;
        rc = take_turn(g, order, node, swarms[peer - first_peer], &handlers[started++], deadline_us,
                       err);
    }
    for (size_t i = 0; i < started && rc == SKEP_OK; i++)
        if (!wait_published(handlers[i], ROUNDS, deadline_us))
            rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "a node has not refreshed its experts");
    mem_free(order);
    return rc; /* the handlers go on, and end with the process */
}

/* ---- on this side ---- */

skep_status bench_grid_open(struct bench_grid *g, struct skep_error *err)
{
    size_t processes = (g->peers + BENCH_NETWORK_PROCESS_PEERS - 1) / BENCH_NETWORK_PROCESS_PEERS;

    g->work = (struct bench_network_work){.publish = publish, .arg = g};
    if (pipe2(g->turns, O_CLOEXEC) != 0) {
        g->turns[0] = g->turns[1] = 0;
        return error_set(err, status_from_errno(errno), "pipe: %s", strerror(errno));
    }
    if (write(g->turns[1], "1", 1) != 1) /* one turn at a time */
        return error_set(err, SKEP_UNAVAILABLE, "bench grid: no turns");
    return bench_network_open(&g->network, g->peers, processes, &g->work, err);
}

skep_status bench_grid_publish(struct bench_grid *g, struct skep_error *err)
{
    return bench_network_publish(&g->network, err);
}

void bench_grid_close(struct bench_grid *g)
{
    bench_network_stop(&g->network);
    for (int i = 0; i < 2; i++) {
        if (g->turns[i] > 0)
            close(g->turns[i]);
        g->turns[i] = 0;
    }
}
