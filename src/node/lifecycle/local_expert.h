/*
 * One expert of a node with its two pools.
 *
 * Threads: made and freed by the node; the pools' work runs as task_pool.h says; the rest may be
 * read by any thread.
 */
#ifndef SKEP_NODE_LIFECYCLE_LOCAL_EXPERT_H
#define SKEP_NODE_LIFECYCLE_LOCAL_EXPERT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <skep/node.h>
#include "dht/record/record.h"
#include "experts/expert.h"
#include "node/lifecycle/uid_rule.h"
#include "runtime/task_pool.h"

struct uid_reservation;

enum { LOCAL_EXPERT_RIVALS = 4 }; /* peers with the same UID that were reported already */

struct local_expert {
    char uid[UID_BYTES];
    struct expert_settings settings;       /* from which it is made */
    struct expert_description description; /* what it will be */
    struct expert *expert;                 /* owned; NULL before local_expert_make() */
    uint8_t schema_digest[16];
    struct task_pool *forward, *backward; /* the runtime's; NULL before local_expert_open() */
    atomic_bool stalled;
    void (*changed)(void *arg); /* stalled or recovered; the watchdog's thread. May be NULL */
    void *changed_arg;
    /* Of whoever loads and saves: what its newest checkpoint holds. */
    bool is_saved;
    uint64_t saved_updates;
    /* Of the DHT handler's thread: the rate since the last publication. */
    uint64_t last_examples, last_us;
    _Atomic double examples_per_s;
    /* How its UID is held: set before the node opens, or by the thread of claims.h. */
    const struct uid_reservation
        *reservation; /* whose pattern the UID was picked from; NULL: none */
    int64_t since_s;  /* Unix seconds */
    atomic_bool kept, settled;
    _Atomic uint64_t joined_us;
    uint8_t rivals[LOCAL_EXPERT_RIVALS][PEER_ID_BYTES]; /* the newest, in a ring */
    size_t rival_count;
    /* Of roster.h. */
    atomic_int holders;
    struct local_expert *next_retired;
};

struct local_expert_limits {
    int64_t max_batch_size, min_batch_size;
    uint64_t batch_timeout_us, stall_timeout_us;
    size_t max_queued_tasks;
};

/* Checks everything; the expert itself, and its memory, comes with local_expert_make().
 * @param out  owned: local_expert_free(). Errors as expert_new(), with the UID before the sentence.
 */
SKEP_MUST_CHECK skep_status local_expert_new(const char *uid,
                                             const struct skep_expert_options *options,
                                             struct local_expert **out, struct skep_error *err);
SKEP_MUST_CHECK skep_status local_expert_make(struct local_expert *local, struct skep_error *err);
void local_expert_free(struct local_expert *local); /* after the runtime is gone. NULL is allowed */
/* As long as one is held, its expert is not freed. Taken from the roster (roster.h). */
void local_expert_hold(struct local_expert *local);
void local_expert_release(struct local_expert *local);
/* Whether nobody holds it; of one that the roster has retired, nobody will again. */
bool local_expert_is_idle(const struct local_expert *local);
/* Frees the expert of one that the roster has retired; false while somebody holds it. */
bool local_expert_unmake(struct local_expert *local);
/* How firmly the node holds its UID, as its record says. Any thread. */
void local_expert_claim(const struct local_expert *local, struct record_claim *out);
/* Makes its pools. */
SKEP_MUST_CHECK skep_status local_expert_open(struct local_expert *local, struct runtime *runtime,
                                              const struct local_expert_limits *limits,
                                              struct skep_error *err);
/* For the DHT handler: load since its last call; false while it must not be published. */
bool local_expert_load(struct local_expert *local, struct record_load *out);
void local_expert_stats(struct local_expert *local, struct skep_expert_stats *out);
void pool_stats_add(struct skep_pool_stats *sum, const struct skep_pool_stats *more);

#endif
