/*
 * Asking a tracker for DHT peers of its swarm: code 100 of the tracker's port (docs/tracker.md).
 * Thread: any; blocks until the answer, the deadline, or the word to stop.
 */
#ifndef SKEP_DHT_BOOTSTRAP_TRACKER_PEERS_H
#define SKEP_DHT_BOOTSTRAP_TRACKER_PEERS_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "wire/tracker_frame.h"

/* How long to wait for it. */
struct tracker_peers_wait {
    uint64_t deadline_us;
    int stop_fd; /* once this can be read from, no longer; -1: none */
};

/* Numeric addresses, the tracker's own DHT peer first. */
struct tracker_peers {
    struct address *addresses; /* borrowed: room for `cap` */
    size_t cap, count;
};

/*
 * @param tracker        its addresses, tried in order.
 * @param network_id     of our swarm: the tracker must serve the same.
 * @param out            gets at most out->cap. Loopback ones only from a tracker that was reached
 *                       by loopback.
 * @return SKEP_OK with at least one; SKEP_UNAVAILABLE: not reached, or the connection was lost;
 *         SKEP_DEADLINE_EXCEEDED; SKEP_DATA_LOSS: what answers is no tracker, or one that does not
 *         know the question; SKEP_NOT_FOUND: it takes no part in a DHT; SKEP_FAILED_PRECONDITION:
 *         it is of another swarm; SKEP_CANCELLED: stop_fd can be read.
 */
SKEP_MUST_CHECK skep_status tracker_peers_ask(const struct address *tracker, size_t tracker_count,
                                              uint32_t network_id,
                                              const struct tracker_peers_wait *limit,
                                              struct tracker_peers *out, struct skep_error *err);

/* The answer's text alone: for tests and fuzzing.
 * @param at  the address the tracker was reached at. */
SKEP_MUST_CHECK skep_status tracker_peers_parse(struct tracker_text answer, uint32_t network_id,
                                                const struct address *at, struct tracker_peers *out,
                                                struct skep_error *err);

#endif
