/*
 * Whether others can reach this node: asks two other nodes of the swarm, in the background, to dial
 * back what it announces (method `dial_back`), says what comes of it in the log whenever that
 * changes, and asks again: soon and then more and more seldom while something is wrong or nobody
 * could tell, else twice an hour. diagnosis.h has the conclusions.
 *
 * Threads: one of its own ("skep-reach") does the asking; functions from any thread.
 */
#ifndef SKEP_NODE_REACH_REACH_H
#define SKEP_NODE_REACH_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/swarm/swarm.h"
#include "node/reach/announce.h"
#include "node/reach/diagnosis.h"

struct reach;

struct reach_config {
    struct swarm *swarm; /* borrowed until reach_free() */
    const uint8_t *psk;  /* the same */
    bool plaintext;
    const char *swarm_name; /* the same */
    struct endpoint bound;  /* where calls are served */
    bool by_hand;           /* what is announced was given by --announce */
    uint16_t dht_port;
    bool joins; /* it was given peers to join by */
};

/* @param endpoints  what is announced; count 0: not known yet. */
SKEP_MUST_CHECK skep_status reach_new(const struct reach_config *config,
                                      const struct endpoint *endpoints, size_t count,
                                      struct reach **out, struct skep_error *err);
/* Something else is announced now: it is tried soon. */
void reach_announce(struct reach *reach, const struct endpoint *endpoints, size_t count);
void reach_result(struct reach *reach, struct diagnosis *out);
/* Ends what is under way soon, without waiting. NULL is allowed. */
void reach_close(struct reach *reach);
/* Waits for the thread, two seconds at most. NULL is allowed. */
void reach_free(struct reach *reach);

#endif
