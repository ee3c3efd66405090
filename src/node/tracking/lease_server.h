/*
 * Who has leased this node: the `lease` method of docs/methods.md.
 *
 * A tracker hands out the node's match key; whoever presents it first is the holder, and its calls
 * go before others in the pools. There is one lease at a time, and a match key is good for one.
 *
 *     lease_server_offer()        "begin" with the key            end, expiry, holder vanishes
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

struct lease_server;

enum { LEASE_ID_BYTES = 16, LEASE_PRIORITY = 1 };

struct lease_server_config {
    uint32_t max_duration_ms; /* of a lease that is not renewed */
    uint32_t silence_ms;      /* a holder that is not heard of for so long has vanished */
    /* There is something for lease_server_tick(): a lease has ended, or its end is due at another
     * time. May be NULL. */
    void (*changed)(void *arg);
    void *arg;
};

struct lease_server_stats {
    uint64_t begun, ended, expired, vanished; /* by the holder; by time; without a word */
    uint64_t refused;                         /* keys or lease ids that were not good */
    bool is_held;
};

SKEP_MUST_CHECK skep_status lease_server_new(const struct lease_server_config *config,
                                             struct lease_server **out, struct skep_error *err);
/* Ends the lease, refuses all that come. Before server_wait_idle(), whom an open hold would keep.
 * NULL is allowed. */
void lease_server_close(struct lease_server *leases);
void lease_server_free(struct lease_server *leases); /* after the server; NULL is allowed */

/* Makes a match key good, once; the one before is good no more. Not while a lease is held, nor
 * between its end and lease_server_tick(): false.
 * @param match_key  copied; NULL: none. */
bool lease_server_offer(struct lease_server *leases, const char *match_key);
bool lease_server_is_held(struct lease_server *leases);
bool lease_server_is_on_offer(
    struct lease_server *leases); /* its match key has not been presented */

/* Ends what is due and answers who waited. @return when to call it again at the latest,
 * CLOCK_NEVER if nothing is due. */
uint64_t lease_server_tick(struct lease_server *leases, uint64_t now_us);

/* The method. @param call  always answered, at once or (a hold) later. */
void lease_server_call(struct lease_server *leases, struct server_call *call);
/* The server's `finished` of a call of this method. */
void lease_server_finished(struct lease_server *leases, struct server_call *call);

/* Priority of a caller's tasks: LEASE_PRIORITY for the holder, else 0. Cheap without a lease. */
unsigned lease_server_priority(struct lease_server *leases,
                               const uint8_t peer_id[static PEER_ID_BYTES]);

void lease_server_stats(struct lease_server *leases, struct lease_server_stats *out);

#endif
