/* What a tracker counts, as JSON: for `skep tracker` and `skep node`. */
#ifndef SKEP_CLI_TRACKER_JSON_H
#define SKEP_CLI_TRACKER_JSON_H

#include <jansson.h>
#include <skep/node.h>
#include <skep/tracker.h>

/* All are owned: json_decref(); NULL if memory is short. */

/* An array of counters: answered within 1 ms, 2, 4 ... 4096 ms, and later. */
json_t *json_waits(const uint64_t waits[static SKEP_TRACKER_WAIT_BUCKETS]);
json_t *json_tracker_stats(const struct skep_tracker_stats *stats);
/* The first keys, as an array of objects. */
json_t *json_tracker_keys(struct skep_tracker *tracker);
json_t *json_node_tracker_keys(struct skep_node *node);
/* The same of a node's tracker, and what it does for the swarm. */
json_t *json_node_tracker_stats(const struct skep_node_stats *stats);

#endif
