/*
 * Publishes what a tracker holds: one record as a tracker, and one for each key (docs/records.md),
 * refreshed every update period, changed ones soon, withdrawn when the last resource of a key goes.
 *
 * Threads: a thread of its own ("skep-registry"), started by tracker_registry_new().
 * tracker_registry_changed() is cheap and may be called from any thread, the tracker's above all.
 */
#ifndef SKEP_NODE_TRACKING_TRACKER_REGISTRY_H
#define SKEP_NODE_TRACKING_TRACKER_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/swarm/swarm.h"
#include "tracker/scheduler.h"

struct tracker_registry;

enum { REGISTRY_MAX_KEYS = 1024 }; /* published; more are only tracked */

struct tracker_registry_config {
    struct swarm *swarm;      /* borrowed until tracker_registry_free() */
    uint32_t update_period_s; /* records live for twice as long, at least a minute */
    uint32_t features;
    const char *version;
    /* Free resources of a key, at most `cap`, for people to see. Runs on the registry's thread and
     * may wait for the tracker's. */
    size_t (*addresses)(void *arg, const char *key, struct endpoint *out, size_t cap);
    void *arg;
};

struct tracker_registry_stats {
    size_t keys;
    uint64_t records_published, records_failed;
};

SKEP_MUST_CHECK skep_status tracker_registry_new(const struct tracker_registry_config *config,
                                                 struct tracker_registry **out,
                                                 struct skep_error *err);
/* Withdraws, bounded by the deadline, ends the thread and frees. Nothing may call in any more. NULL
 * is allowed. */
void tracker_registry_free(struct tracker_registry *registry, uint64_t deadline_us);

/* What is known of a key now. */
void tracker_registry_changed(struct tracker_registry *registry,
                              const struct scheduler_key_counters *counters);
/* Where others reach the tracker's node, and its TVM port (host "": not for others). Nothing is
 * published before there is an endpoint. */
void tracker_registry_set_endpoints(struct tracker_registry *registry,
                                    const struct endpoint *endpoints, size_t count,
                                    const struct endpoint *tvm);
void tracker_registry_stats(struct tracker_registry *registry, struct tracker_registry_stats *out);

#endif
