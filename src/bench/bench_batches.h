/*
 * The part of `skep bench dht` after hivemind's DHT benchmark: experts of a huge grid are declared
 * in batches by ever other peers and found again by others, one batch at a time, in networks of
 * growing size. Its baselines are bare OpenDHT puts and gets of the same records.
 */
#ifndef SKEP_BENCH_BENCH_BATCHES_H
#define SKEP_BENCH_BENCH_BATCHES_H

#include "bench/bench_batches_peer.h"
#include "bench/bench_frame.h"

struct bench_batches_config {
    size_t peers;   /* of the largest network; smaller ones of 32, 128 and 512 come before it */
    size_t experts; /* of the largest; smaller ones have as many a peer */
    size_t batch_size;
};

/* Adds the rows. @return as bench_network_start(). */
SKEP_MUST_CHECK skep_status bench_batches_run(const struct bench_batches_config *config,
                                              struct bench_frame *frame, struct skep_error *err);

#endif
