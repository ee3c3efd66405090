/*
 * The method `dial_back`: tries whether a caller's own ports, that for calls (TCP) and that of its
 * DHT (UDP), can be reached from here. Only the address that the call came from is dialled.
 *
 * Threads: dial_back_start() on I/O threads; answers come from the threads of the connection pool
 * and of the probes, which are started by the first call.
 */
#ifndef SKEP_NODE_REACH_DIAL_BACK_H
#define SKEP_NODE_REACH_DIAL_BACK_H

#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "crypto/identity.h"
#include "net/server.h"

struct dial_back;

struct dial_back_config {
    const struct identity *identity; /* borrowed until dial_back_free() */
    const uint8_t *psk;              /* the same */
    bool plaintext;
    const char *swarm;   /* the same */
    uint32_t network_id; /* of the swarm's DHT; 0: there is none, so no DHT ports are tried */
};

SKEP_MUST_CHECK skep_status dial_back_new(const struct dial_back_config *config,
                                          struct dial_back **out, struct skep_error *err);
/* Answers the call, now or later. NULL: SKEP_UNIMPLEMENTED. */
void dial_back_start(struct dial_back *dial_back, struct server_call *call);
/* Answers what is under way (SKEP_CANCELLED), refuses what still comes; before server_stop(), so
 * that no answer is missing when the server is freed. NULL is allowed. */
void dial_back_close(struct dial_back *dial_back);
/* After server_stop(): until then a peer may complete a call of this method. NULL is allowed. */
void dial_back_free(struct dial_back *dial_back);

#endif
