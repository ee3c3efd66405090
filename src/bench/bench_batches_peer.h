/*
 * What one peer does in the benchmark of a grid's experts (bench_batches.h): declares a batch of
 * them as a node would, finds a batch that another peer declared, and the same by bare OpenDHT
 * calls. Runs in a process of peers (bench_network.h); asked by one line, answered by one.
 */
#ifndef SKEP_BENCH_BENCH_BATCHES_PEER_H
#define SKEP_BENCH_BENCH_BATCHES_PEER_H

#include "bench/bench_network.h"

enum {
    BENCH_BATCHES_MAX_EXPERTS = 1 << 20, /* that have a number */
    BENCH_BATCHES_MAX_BATCH = 1024,
};

#define BENCH_BATCHES_PATTERN "expert.[0:1000].[0:1000].[0:1000]"

enum bench_batches_task {
    BENCH_BATCHES_DECLARE,  /* all a node says of its experts: UIDs, prefixes, itself */
    BENCH_BATCHES_GET,      /* UIDs */
    BENCH_BATCHES_PREFIXES, /* the longest prefix of each UID */
    BENCH_BATCHES_BARE_PUT, /* the same records as DECLARE, signed before the clock runs */
    BENCH_BATCHES_BARE_GET, /* UIDs, each until its first value, unverified */
    BENCH_BATCHES_TASKS
};

struct bench_batches_answer {
    size_t asked, good; /* records, UIDs or prefixes; those stored or found as declared */
    uint64_t ns;        /* from the call until all have their outcome */
};

/* Experts number `first` to `first + count - 1`: UIDs at random, but the same ones every time, all
 * different. A batch is told from others by its first number. */
SKEP_MUST_CHECK skep_status bench_batches_ask(struct bench_network *network, size_t peer,
                                              enum bench_batches_task task, size_t first,
                                              size_t count, struct bench_batches_answer *out,
                                              struct skep_error *err);

/* The other end, for struct bench_network_work. */
skep_status bench_batches_serve(struct swarm *peer, const char *request,
                                char reply[static BENCH_LINE_BYTES], struct skep_error *err);

#endif
