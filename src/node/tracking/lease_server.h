/*
 * Who has leased this node: the `lease` method of docs/methods.md.
 *
 * A tracker hands out the node's match key; whoever presents it first is the holder, and its calls
 * go before others in the pools. There is one lease at a time, and a match key is good for one.
 *
 *     leases_offer()        "begin" with the key            end, expiry, holder vanishes
 *     nothing  ------>  on offer  ---------------->  held  ----------------------------> nothing
 *
 * The holder keeps a call open ("hold"), by whose end the node learns that it has vanished.
 *
 * Threads: any. `over` runs on the thread that ended the lease, with no lock held, and must not
 * block.
 */
#ifndef SKEP_NODE_TRACKING_LEASE_SERVER_H
#define SKEP_NODE_TRACKING_LEASE_SERVER_H

#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "net/server.h"

struct leases;

enum { LEASE_ID_BYTES = 16, LEASE_PRIORITY = 1 };

struct leases_config {
    uint32_t max_duration_ms; /* of a lease that is not renewed */
    uint32_t silence_ms;      /* a holder that is not heard of for so long has vanished */
    /* There is something for leases_tick(): a lease has ended, or its end is due at another time.
     * May be NULL. */
    void (*changed)(void *arg);
    void *arg;
};

struct leases_stats {
    uint64_t begun, ended, expired, vanished; /* by the holder; by time; without a word */
    uint64_t refused;                         /* keys or lease ids that were not good */
    bool is_held;
};

SKEP_MUST_CHECK skep_status leases_new(const struct leases_config *config, struct leases **out,
                                       struct skep_error *err);
/* Ends the lease, refuses all that come. Before server_wait_idle(), whom an open hold would keep.
 * NULL is allowed. */
void leases_close(struct leases *leases);
void leases_free(struct leases *leases); /* after the server; NULL is allowed */

/* Makes a match key good, once; the one before is good no more. Not while a lease is held, nor
 * between its end and leases_tick(): false.
 * @param match_key  copied; NULL: none. */
bool leases_offer(struct leases *leases, const char *match_key);
bool leases_is_held(struct leases *leases);
bool leases_is_on_offer(struct leases *leases); /* its match key has not been presented */

/* Ends what is due and answers who waited. @return when to call it again at the latest,
 * CLOCK_NEVER if nothing is due. */
uint64_t leases_tick(struct leases *leases, uint64_t now_us);

/* The method. @param call  always answered, at once or (a hold) later. */
void leases_call(struct leases *leases, struct server_call *call);
/* The server's `finished` of a call of this method. */
void leases_finished(struct leases *leases, struct server_call *call);

/* Priority of a caller's tasks: LEASE_PRIORITY for the holder, else 0. Cheap without a lease. */
unsigned leases_priority(struct leases *leases, const uint8_t peer_id[static PEER_ID_BYTES]);

void leases_stats(struct leases *leases, struct leases_stats *out);

#endif
