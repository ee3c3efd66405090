/*
 * Keeps a node registered with a tracker, its own or another, as TVM's servers do: says who it is,
 * offers itself under a key with a match key, and offers a new one when that was used up or lost.
 *
 * When the connection is lost it tries again with a growing pause, for ever; a tracker that was
 * restarted hears everything anew.
 *
 * A match key that was handed out and that nobody has presented after a while is replaced: its
 * client has died. While a lease lasts nothing is offered; once it ends, a new key is.
 *
 * Threads: a loop of its own ("skep-register"). tracker_registration_wake() may be called from any
 * thread.
 */
#ifndef SKEP_NODE_TRACKING_TRACKER_REGISTRATION_H
#define SKEP_NODE_TRACKING_TRACKER_REGISTRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "node/tracking/lease_server.h"

struct tracker_registration;

struct tracker_registration_config {
    struct endpoint tracker;
    const char *key;     /* copied, as all texts here */
    const char *address; /* host to offer; NULL: the one from which the tracker sees us */
    uint16_t port;       /* the node's, for calls */
    const char *peer_id;
    const char *endpoint;
    const char *const *experts; /* UIDs */
    size_t expert_count;
    struct lease_server *leases; /* borrowed until tracker_registration_free() */
};

struct tracker_registration_stats {
    bool is_registered;
    uint64_t registrations; /* times that a tracker has taken us in */
    uint64_t offers;        /* match keys offered */
    uint64_t unclaimed;     /* of these: handed out, but never presented */
};

SKEP_MUST_CHECK skep_status
tracker_registration_new(const struct tracker_registration_config *config,
                         struct tracker_registration **out, struct skep_error *err);
/* Leaves the tracker. NULL is allowed. */
void tracker_registration_free(struct tracker_registration *registration);
/* There is something for lease_server_tick() (lease_server_config.changed). NULL is allowed. */
void tracker_registration_wake(struct tracker_registration *registration);
void tracker_registration_stats(struct tracker_registration *registration,
                                struct tracker_registration_stats *out);

#endif
