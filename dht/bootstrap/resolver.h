/*
 * Names, and trackers, to addresses of DHT peers, without anybody waiting: names are looked up
 * beside each other (base/lookup.h), for as long as the system's resolver takes. Trackers are then
 * asked one after the other on a thread ("skep-resolver") that is started with the first of them.
 */
#ifndef SKEP_DHT_BOOTSTRAP_RESOLVER_H
#define SKEP_DHT_BOOTSTRAP_RESOLVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/bootstrap/initial_peer.h"

struct resolver;

enum {
    RESOLVER_MAX_ADDRESSES = 8,
    RESOLVER_TRACKER_MS = 3000, /* for a tracker to be reached and to answer */
};

enum resolver_scope {
    RESOLVER_NOWHERE,   /* it has not been resolved */
    RESOLVER_LOOPBACK,  /* to loopback addresses alone */
    RESOLVER_ELSEWHERE, /* to another address, too */
};

struct resolution {
    size_t tag; /* as given to resolver_ask() */
    skep_status status;
    struct skep_error err;
    /* Where the name leads; of a tracker its own name, also if the tracker does not answer. */
    enum resolver_scope place;
    size_t count;
    struct address addresses[RESOLVER_MAX_ADDRESSES];
};

/* Of numeric hosts and "localhost" without asking; RESOLVER_NOWHERE for other names. */
enum resolver_scope resolver_scope_of(const struct endpoint *host);

/* @param network_id  of our swarm: trackers must serve the same.
 * @param wake  called when there is something to take, on any thread; it must not call the
 *              resolver. */
SKEP_MUST_CHECK skep_status resolver_new(uint32_t network_id, void (*wake)(void *arg), void *arg,
                                         struct resolver **out, struct skep_error *err);
/* Asks for a name's addresses, or a tracker for peers. The caller has at most one open question for
 * a tag.
 * @return SKEP_RESOURCE_EXHAUSTED if memory is short, or the system gives no thread. */
SKEP_MUST_CHECK skep_status resolver_ask(struct resolver *resolver, size_t tag,
                                         const struct initial_peer *peer, struct skep_error *err);
/* The next answer; false if there is none. To be called after each `wake`, and by who asks. */
bool resolver_take(struct resolver *resolver, struct resolution *out);
/* Gives up what is asked, without waiting for the system's resolver or a tracker. wake is not
 * called any more. NULL is allowed. */
void resolver_free(struct resolver *resolver);

#endif
