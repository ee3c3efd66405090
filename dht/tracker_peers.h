/*
 * Asking a tracker for DHT peers of its swarm: code 100 of the tracker's port (docs/tracker.md).
 * Thread: any; blocks until the answer or the deadline. Names are resolved, which a deadline cannot
 * interrupt: not for threads that somebody waits for.
 */
#ifndef SKEP_DHT_TRACKER_PEERS_H
#define SKEP_DHT_TRACKER_PEERS_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"

/*
 * @param network_id  of our swarm: the tracker must serve the same.
 * @param out         numeric addresses, at most `cap`, the tracker's own DHT peer first. Loopback
 *                    ones only from a tracker that was reached by loopback.
 * @return SKEP_OK with at least one; SKEP_UNAVAILABLE: not reached, or the connection was lost;
 *         SKEP_DEADLINE_EXCEEDED; SKEP_DATA_LOSS: what answers is no tracker, or one that does not
 *         know the question; SKEP_NOT_FOUND: it takes no part in a DHT; SKEP_FAILED_PRECONDITION:
 *         it is of another swarm.
 */
SKEP_MUST_CHECK skep_status tracker_peers_ask(const struct endpoint *tracker, uint32_t network_id,
                                              uint64_t deadline_us, struct address *out, size_t cap,
                                              size_t *count, struct skep_error *err);

/* The answer's text alone: for tests and fuzzing. @param at  the address the tracker was reached
 * at. */
SKEP_MUST_CHECK skep_status tracker_peers_parse(const char *text, size_t len, uint32_t network_id,
                                                const struct address *at, struct address *out,
                                                size_t cap, size_t *count, struct skep_error *err);

#endif
