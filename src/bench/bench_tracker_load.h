/*
 * Load for a tracker: many registered servers and a few clients that ask without pause, all of them
 * sockets of one thread. Each resource that a client gets is put back by its server under a new
 * match key, as a server does once it is free again.
 */
#ifndef SKEP_BENCH_BENCH_TRACKER_LOAD_H
#define SKEP_BENCH_BENCH_TRACKER_LOAD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <skep/status.h>
#include "bench/bench_stats.h"

enum { BENCH_LOAD_MAX_PEERS = 200000 };

struct load_peer;

/* Zeroed memory is no load. */
struct bench_load {
    int epoll; /* owned; 0: none */
    uint16_t port;
    size_t servers, clients;
    struct load_peer *peers; /* owned: the servers, the clients, one that asks for summaries */
    uint64_t requests, puts; /* answered so far */
    uint64_t stop_at;        /* clients ask no more once so many are answered */
    struct bench_samples *latency; /* of each REQUEST; may be NULL */
    struct bench_samples *summary; /* of each SUMMARY; NULL: none is asked for */
    uint64_t next_summary_ns;
    uint64_t summary_bytes; /* of the last one, with its length */
};

/* Connects and registers them all with what listens on 127.0.0.1:port.
 * @return SKEP_RESOURCE_EXHAUSTED if the limit on open files is too low; SKEP_UNAVAILABLE. */
SKEP_MUST_CHECK skep_status bench_load_open(struct bench_load *load, uint16_t port, size_t servers,
                                            size_t clients, struct skep_error *err);
/*
 * Runs `pairs` REQUEST and PUT pairs with the first `clients` clients.
 * @param latency  each REQUEST's time is added, in ns. May be NULL.
 * @param summary  if not NULL, a SUMMARY is asked for ten times a second meanwhile, and timed.
 * @param rate     pairs a second.
 */
SKEP_MUST_CHECK skep_status bench_load_run(struct bench_load *load, size_t clients, uint64_t pairs,
                                           struct bench_samples *latency,
                                           struct bench_samples *summary, double *rate,
                                           struct skep_error *err);
/* Times `count` SUMMARYs with nothing else going on. */
SKEP_MUST_CHECK skep_status bench_load_summaries(struct bench_load *load, size_t count,
                                                 struct bench_samples *summary,
                                                 struct skep_error *err);
void bench_load_close(struct bench_load *load); /* zeroed is allowed */

/*
 * The baseline: a process that answers every message at once with bytes made beforehand, without
 * reading what it says but for its code: SUMMARY with as many as a tracker would. @param pid  to be
 * killed and waited for by the caller.
 */
SKEP_MUST_CHECK skep_status bench_tracker_echo(size_t servers, uint16_t *port, pid_t *pid,
                                               struct skep_error *err);

#endif
