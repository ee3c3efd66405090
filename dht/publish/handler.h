/*
 * The DHT handler: a thread that publishes a node's experts, prefixes and state every update
 * period, retries what failed, and withdraws at shutdown. It also tells the directory which experts
 * are our own (directory_set_local()).
 *
 * Rounds: at start, at once when the first peer appears, 5 s after the first round among peers,
 * then every period less up to a tenth. Failed records are tried again after 1 s, 2 s, 4 s..., a
 * period at most. Beside each round it looks for records of its own identity: if an earlier run was
 * dated by a clock ahead of ours, its sequence numbers are continued (directory_now_ms()).
 *
 * Withdrawing replaces each record that may still be found by one that says "offline" (an empty
 * list of coordinates for a prefix) and that lives until the replaced one would have been refused
 * by the last reader, so that it cannot come back from a node that was not reached.
 */
#ifndef SKEP_DHT_PUBLISH_HANDLER_H
#define SKEP_DHT_PUBLISH_HANDLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/swarm/swarm.h"

struct handler;

struct handler_config {
    struct swarm *swarm;      /* borrowed until handler_free() */
    uint32_t update_period_s; /* default 30, 1 to 1800 (expiration is max(2 x, 60 s)) */
    size_t endpoint_count;    /* announced; may be 0 while unknown: nothing is published */
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    uint32_t features;
    const char *version;
    /* Fills in the current load of one expert, and whether it may be published (false while
     * stalled). Thread: the handler's. NULL: no load. */
    bool (*expert_load)(void *arg, const char *uid, struct record_load *out);
    /* Fills in how firmly the node holds a UID (zeroed before). The same thread. NULL: all are
     * kept.
     */
    void (*expert_claim)(void *arg, const char *uid, struct record_claim *out);
    /* A round over all records has ended, among peers. The same thread; it must not block nor call
     * the handler but for handler_refresh(). NULL: nobody wants to know. */
    void (*published)(void *arg);
    void *arg;
};

struct handler_expert {
    const char *uid; /* copied */
    const char *cls;
    uint8_t schema_digest[16];
};

struct handler_stats {
    uint64_t rounds, failed_rounds, records_published, records_failed;
    bool reachable_peers;
    int64_t last_success_unix_s;
};

SKEP_MUST_CHECK skep_status handler_new(const struct handler_config *config,
                                        const struct handler_expert *experts, size_t count,
                                        struct handler **out, struct skep_error *err);
/* Waits until the first round has ended (whatever its outcome) or the deadline. */
bool handler_wait_first_round(struct handler *handler, uint64_t deadline_us);
/* Publishes anew soon: an expert stalled or recovered, or endpoints changed. Thread: any. */
void handler_refresh(struct handler *handler);
void handler_set_endpoints(struct handler *handler, const struct endpoint *endpoints, size_t count);
/* Publishes more experts from now on; one of a UID that it has already takes the place of that. An
 * expert for which expert_load says false is no longer served. @param experts copied. */
SKEP_MUST_CHECK skep_status handler_add_experts(struct handler *handler,
                                                const struct handler_expert *experts, size_t count,
                                                struct skep_error *err);
void handler_stats(struct handler *handler, struct handler_stats *out);
/* Publishes "offline" (bounded by the deadline), ends the thread, frees. NULL is allowed. */
void handler_free(struct handler *handler, uint64_t deadline_us);

#endif
