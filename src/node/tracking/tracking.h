/*
 * A node's tracker: the TVM port (tracker/server.h), what is published of it (tracker_registry.h),
 * and the dealings with other trackers (federation.h, resource_lending.h), put together.
 *
 * Threads: any, but opening, closing and freeing by one at a time.
 */
#ifndef SKEP_NODE_TRACKING_TRACKING_H
#define SKEP_NODE_TRACKING_TRACKING_H

#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/swarm/swarm.h"
#include "net/server.h"
#include "node/tracking/federation.h"
#include "node/tracking/tracker_registry.h"
#include "tracker/key_stats.h"
#include "tracker/server.h"

struct tracking;

struct tracking_config {
    const char *host; /* of the TVM port; borrowed for the call */
    uint16_t port;    /* as tracker_server_config */
    uint32_t port_end;
    bool reuse_addr;
    bool silent;
    uint32_t report_interval_s;
    uint32_t timeout_ms;
    unsigned max_connections;
    const char *stop_key; /* borrowed for the call; NULL: a random one */
    /* The tracker was stopped through its port. May be NULL. On its loop. */
    void (*stopped)(void *arg);
    void *arg;

    struct swarm *swarm;        /* borrowed until tracking_close(); NULL: no DHT, so it is alone */
    struct endpoint dht_listen; /* of the swarm */
    const uint8_t *psk;         /* this and the next are borrowed until tracking_free() */
    const char *swarm_name;
    bool plaintext;
    bool federation; /* ask other trackers, and serve them */
    uint32_t update_period_s;
    uint32_t features;
    const char *version;
};

/* @return as tracker_server_new(). */
SKEP_MUST_CHECK skep_status tracking_new(const struct tracking_config *config,
                                         struct tracking **out, struct skep_error *err);
/* Withdraws from the DHT, sends what clients are owed, ends the connections; bounded by the
 * deadline. Calls of other trackers are refused from then on. NULL is allowed. */
void tracking_close(struct tracking *tracking, uint64_t deadline_us);
/* After the node's server is stopped. NULL is allowed. */
void tracking_free(struct tracking *tracking);

void tracking_endpoint(const struct tracking *tracking, struct endpoint *out);
const char *tracking_stop_key(const struct tracking *tracking);
/* Where others reach the node. */
void tracking_announce(struct tracking *tracking, const struct endpoint *endpoints, size_t count);

/* Methods `tracker.request` and `tracker.summary`. @param tracking  NULL: there is none. */
void tracking_request(struct tracking *tracking, struct server_call *call);
void tracking_summary(struct tracking *tracking, struct server_call *call);

struct tracking_stats {
    struct skep_tracker_stats server;
    struct tracker_registry_stats registry;
    struct federation_stats federation;
};
/* Not from the tracker's loop. @param out  owned: key_stats_free(). */
SKEP_MUST_CHECK skep_status tracking_key_stats(struct tracking *tracking, struct key_stats **out,
                                               struct skep_error *err);
void tracking_stats(struct tracking *tracking, struct tracking_stats *out);

#endif
