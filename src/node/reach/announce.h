/*
 * Which endpoints a node publishes: what it was told; else what it listens on; else, behind a
 * wildcard, the address that other peers see. No thread, no state.
 */
#ifndef SKEP_NODE_REACH_ANNOUNCE_H
#define SKEP_NODE_REACH_ANNOUNCE_H

#include <stdbool.h>
#include <stddef.h>
#include "base/endpoint.h"

enum { ANNOUNCE_MAX = 2 }; /* one for each family */

struct announce_input {
    const struct endpoint *preset; /* --announce; port 0: the bound one. NULL: none */
    struct endpoint bound;
    bool loopback_allowed; /* the swarm itself is on loopback */
};

/* Tells our address as other peers see it; false while none has told. */
typedef bool (*announce_ask_fn)(void *arg, bool v6, struct endpoint *out);

/* Returns how many endpoints were written; 0: not known yet, or not fit for this swarm. */
size_t announce_pick(const struct announce_input *input, announce_ask_fn ask, void *arg,
                     struct endpoint out[static ANNOUNCE_MAX]);

/* Whether the answer depends on other peers, and may therefore change. */
bool announce_must_ask(const struct announce_input *input);

#endif
