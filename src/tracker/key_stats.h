/*
 * What is known of each key of a tracker at one moment, for skep_tracker_each_key() and its like.
 *
 * Threads: any, but the tracker's own.
 */
#ifndef SKEP_TRACKER_KEY_STATS_H
#define SKEP_TRACKER_KEY_STATS_H

#include <skep/tracker.h>
#include "tracker/server.h"

struct key_stats;

/* @param out  owned: key_stats_free(); NULL on failure. @return SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status key_stats_take(struct tracker_server *server, struct key_stats **out,
                                           struct skep_error *err);
void key_stats_walk(const struct key_stats *keys, skep_tracker_key_fn fn, void *arg);
void key_stats_free(struct key_stats *keys); /* NULL is allowed */

#endif
