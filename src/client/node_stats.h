/* The counters of a running node: the result of its method `stats` (docs/methods.md). */
#ifndef SKEP_CLIENT_NODE_STATS_H
#define SKEP_CLIENT_NODE_STATS_H

#include <skep/client.h>
#include "base/bytes.h"
#include "base/endpoint.h"

/*
 * Finds a node in the DHT by its peer id and calls `stats`. The node must prove that peer id.
 * @param beginning  hex digits with which exactly one published peer id begins.
 * @param out        owned: bytes_free(); msgpack as the node sent it, unchecked. Untouched on
 *                   failure.
 * @return SKEP_NOT_FOUND if no node has such a peer id, SKEP_INVALID_ARGUMENT if several have,
 *         SKEP_UNAVAILABLE if the node has stopped or does not answer; others as calls have them.
 * Thread: any but the client's; waits until timeout_ms at the latest.
 */
SKEP_MUST_CHECK skep_status client_stats_of(struct skep_client *client, const char *beginning,
                                            uint32_t timeout_ms, struct bytes *out,
                                            struct skep_error *err);
/* The same for the node at an endpoint, whatever its peer id; needs no DHT. */
SKEP_MUST_CHECK skep_status client_stats_at(struct skep_client *client,
                                            const struct endpoint *endpoint, uint32_t timeout_ms,
                                            struct bytes *out, struct skep_error *err);

#endif
