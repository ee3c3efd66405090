/*
 * Names, and trackers, to addresses of DHT peers on a thread of its own ("skep-resolver"), because
 * getaddrinfo() can block for half a minute and cannot be interrupted, and a tracker may take
 * seconds to answer. The thread is started with the first question.
 */
#ifndef SKEP_DHT_RESOLVER_H
#define SKEP_DHT_RESOLVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/initial_peer.h"

struct resolver;

enum {
    RESOLVER_MAX_ADDRESSES = 8,
    RESOLVER_TRACKER_MS = 3000, /* for a tracker to be reached and to answer */
};

struct resolution {
    size_t tag; /* as given to resolver_ask() */
    skep_status status;
    struct skep_error err;
    size_t count;
    struct address addresses[RESOLVER_MAX_ADDRESSES];
};

/* @param network_id  of our swarm: trackers must serve the same.
 * @param wake  called on the resolver's thread when an answer is there. */
SKEP_MUST_CHECK skep_status resolver_new(uint32_t network_id, void (*wake)(void *arg), void *arg,
                                         struct resolver **out, struct skep_error *err);
/* Queues a name or a tracker. The caller has at most one open question for a tag.
 * @return SKEP_RESOURCE_EXHAUSTED if the thread cannot be started or memory is short. */
SKEP_MUST_CHECK skep_status resolver_ask(struct resolver *resolver, size_t tag,
                                         const struct initial_peer *peer, struct skep_error *err);
/* The next answer; false if there is none. Thread: any. */
bool resolver_take(struct resolver *resolver, struct resolution *out);
/* Ends the thread if it is idle by the deadline; a lookup that still blocks is left to end by
 * itself and frees what is its own. wake is not called any more. NULL is allowed. */
void resolver_free(struct resolver *resolver, uint64_t deadline_us);

#endif
