/*
 * Calls of a reachability check, waited for: `dial_back` to peers, and a `ping` to oneself.
 *
 * Threads: any but the pool's own; a wait ends early once *closing is true and `changed` signalled.
 */
#ifndef SKEP_NODE_REACH_REACH_ASK_H
#define SKEP_NODE_REACH_REACH_ASK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "net/pool.h"

/* What to wait with: all borrowed. */
struct reach_waiter {
    pthread_mutex_t *lock; /* guards *closing, and what calls write */
    pthread_cond_t *changed;
    const bool *closing;
};

/* What one peer has answered. */
struct reach_answer {
    skep_status status; /* other than SKEP_OK: it could not be asked, for the reason in message */
    struct endpoint dialled;
    bool reachable;
    bool has_dht, dht_reachable;
    char message[256]; /* also: why it is not reachable */
};

/* Asks peers at once to dial back a port of ours and, unless it is 0, to ping one of our DHT.
 * @param out  an answer for each; written always. */
void reach_ask(const struct reach_waiter *waiter, struct pool *pool,
               const struct pool_target *const *targets, size_t count, uint16_t port,
               uint16_t dht_port, struct reach_answer *out);

/* Reads the result of a dial_back into all but status. @return SKEP_DATA_LOSS, or
 * SKEP_INVALID_ARGUMENT for a bad endpoint; *out holds nothing of use then. */
SKEP_MUST_CHECK skep_status reach_read_answer(const uint8_t *data, size_t len,
                                              struct reach_answer *out, struct skep_error *err);

/* Whether we answer there ourselves. */
bool reach_dial_self(const struct reach_waiter *waiter, struct pool *pool,
                     const uint8_t peer_id[static PEER_ID_BYTES], const struct endpoint *endpoint,
                     uint32_t timeout_ms);

#endif
