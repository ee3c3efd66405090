/*
 * Choosing UIDs of a pattern for a node, and looking up who else has them.
 *
 * Threads: the one that starts the node, then that of claims.h.
 */
#ifndef SKEP_NODE_LIFECYCLE_RESERVATIONS_H
#define SKEP_NODE_LIFECYCLE_RESERVATIONS_H

#include "node/lifecycle/node_internal.h"

/* One other node that serves UID `index` of a look; NULL: there was no answer in time. Runs on the
 * directory's thread while node_look() waits. */
typedef void (*reservation_seen_fn)(void *arg, size_t index, const struct provider *provider);

/* Asks the DHT for other nodes that serve these UIDs, and waits for the answer, or until the node
 * is asked to stop: SKEP_CANCELLED. @param timeout_ms of each 128 UIDs. */
SKEP_MUST_CHECK skep_status node_look(struct skep_node *node, const char *const *uids, size_t count,
                                      uint32_t timeout_ms, reservation_seen_fn seen, void *arg,
                                      struct skep_error *err);

/* Random UIDs of the reservation's pattern that neither this node nor, as far as its peers know,
 * another one has. @param uids room for `wanted`. @param picked how many: fewer if no more are
 * free. */
SKEP_MUST_CHECK skep_status node_pick(struct skep_node *node,
                                      const struct uid_reservation *reservation, size_t wanted,
                                      char (*uids)[UID_BYTES], size_t *picked,
                                      struct skep_error *err);

/* The settings of the reservation's expert under a UID; texts are views of the reservation. */
struct skep_expert_options reservation_options(const struct uid_reservation *reservation,
                                               const char *uid);

#endif
