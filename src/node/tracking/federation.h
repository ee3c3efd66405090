/*
 * Serving requests that wait here from other trackers of the swarm.
 *
 * A request that has waited a moment is looked up in the DHT by its key; of the trackers that
 * publish free resources, one is asked for one (`tracker.request`), and what it gives goes where a
 * resource put here would go: to the request of that key with the highest priority, of these the
 * oldest. If none waits any more, as resources came free here in the meantime, the other tracker is
 * told that it keeps its own. The request stays in the local queue all along, so whichever comes
 * first serves it, once. While there is nothing, it is looked up again now and then.
 *
 * A tracker that does not answer costs its deadline once and is then left alone for a growing
 * while.
 *
 * Threads: federation_waiting() and federation_ended() come from the tracker's loop and are cheap.
 * The rest runs on a thread of its own ("skep-federation"), started with the first request that
 * waits, on the pool's, and on the tracker's loop.
 */
#ifndef SKEP_NODE_TRACKING_FEDERATION_H
#define SKEP_NODE_TRACKING_FEDERATION_H

#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/swarm/swarm.h"
#include "tracker/server.h"

struct federation;

struct federation_config {
    struct swarm *swarm; /* this, psk and swarm_name are borrowed until federation_free() */
    const uint8_t *psk;
    const char *swarm_name;
    bool plaintext;
};

struct federation_stats {
    uint64_t asked;    /* calls to other trackers */
    uint64_t served;   /* requests answered so */
    uint64_t returned; /* resources that were not needed after all */
    uint64_t failed;   /* calls that got no answer */
};

SKEP_MUST_CHECK skep_status federation_new(const struct federation_config *config,
                                           struct federation **out, struct skep_error *err);
/* From now on pending requests are looked after; they may come before. @param tracker  borrowed
 * until federation_close(). */
void federation_begin(struct federation *federation, struct tracker_server *tracker);
/* Ends what is under way, before the tracker's server is freed and while its loop runs. NULL is
 * allowed. */
void federation_close(struct federation *federation);
/* Once the tracker's server is freed. NULL is allowed. */
void federation_free(struct federation *federation);

/* The tracker's events of these names. */
void federation_waiting(struct federation *federation, const struct scheduler_request *request);
void federation_ended(struct federation *federation, uint64_t id);

void federation_stats(struct federation *federation, struct federation_stats *out);

#endif
