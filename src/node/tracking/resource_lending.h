/*
 * What a tracker does for other trackers of its swarm: the methods `tracker.request` and
 * `tracker.summary` of docs/methods.md.
 *
 * A resource that is asked for is taken out of the queue and lent: the other tracker then says
 * whether it has handed it on or does not need it after all. If it says nothing in time, it counts
 * as handed on: to hand one resource to two clients would be worse than to lose it until its server
 * offers it anew, as stock servers do within seconds.
 *
 * Only what is registered here is given: a request that comes from a tracker is never passed on.
 *
 * Threads: any calls in. The work is done on the tracker's loop.
 */
#ifndef SKEP_NODE_TRACKING_RESOURCE_LENDING_H
#define SKEP_NODE_TRACKING_RESOURCE_LENDING_H

#include <stdint.h>
#include <skep/status.h>
#include "net/server.h"
#include "tracker/server.h"

struct resource_lending;

enum {
    LENDING_MAX = 1024,     /* lent at once */
    LENDING_MAX_PEER = 256, /* to one tracker */
    LENDING_MS = 5000,      /* for the other tracker to say what came of it */
};

/* @param tracker  borrowed until resource_lending_close(). */
SKEP_MUST_CHECK skep_status resource_lending_new(struct tracker_server *tracker,
                                                 struct resource_lending **out,
                                                 struct skep_error *err);
/* Refuses from now on; before the tracker's server is freed. NULL is allowed. */
void resource_lending_close(struct resource_lending *lending);
void resource_lending_free(
    struct resource_lending *lending); /* after the tracker's server; NULL is allowed */

/* Calls of the two methods; each is answered, from the tracker's loop. */
void resource_lending_request(struct resource_lending *lending, struct server_call *call);
void resource_lending_summary(struct resource_lending *lending, struct server_call *call);

#endif
