/*
 * For `skep bench moe`: a network of DHT peers (bench/bench_network.h) some of which publish a grid
 * of experts, each its share of them in a random order, as nodes that take random free UIDs do.
 * Nothing serves calls.
 */
#ifndef SKEP_BENCH_BENCH_GRID_H
#define SKEP_BENCH_BENCH_GRID_H

#include "bench/bench_network.h"
#include "dht/record/uid.h"

#define BENCH_GRID_PREFIX "grid."

enum {
    BENCH_GRID_DIMS = 3,
    BENCH_GRID_MAX_SIDE = 64,
};

struct bench_grid {
    int64_t side;        /* side^3 experts, "grid.0.0.0" ... */
    size_t peers, nodes; /* of the network; how many of them publish */
    struct bench_network network;
    struct bench_network_work work; /* internal, as what follows */
    int turns[2];                   /* a pipe with a token for whoever publishes; 0: none. Owned */
};

size_t bench_grid_experts(const struct bench_grid *grid);
void bench_grid_uid(const struct bench_grid *grid, size_t expert, char uid[static UID_BYTES]);

/* Starts the peers. `side`, `peers` and `nodes` are given; the grid must stay where it is. Before
 * this process starts threads. */
SKEP_MUST_CHECK skep_status bench_grid_open(struct bench_grid *grid, struct skep_error *err);
/* Publishes, and waits until every node has done so twice. */
SKEP_MUST_CHECK skep_status bench_grid_publish(struct bench_grid *grid, struct skep_error *err);
void bench_grid_close(struct bench_grid *grid); /* zeroed is allowed */

#endif
