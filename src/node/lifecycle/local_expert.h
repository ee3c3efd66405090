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

struct pattern_wish;

enum { HOSTED_RIVALS = 4 }; /* peers with the same UID that were reported already */

struct hosted {
    char uid[UID_BYTES];
    struct expert_settings settings;       /* from which it is made */
    struct expert_description description; /* what it will be */
    struct expert *expert;                 /* owned; NULL before hosted_make() */
    uint8_t schema_digest[16];
    struct task_pool *forward, *backward; /* the runtime's; NULL before hosted_open() */
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
    const struct pattern_wish *wish; /* whose pattern the UID was picked from; NULL: none */
    int64_t since_s;                 /* Unix seconds */
    atomic_bool kept, settled;
    _Atomic uint64_t joined_us;
    uint8_t rivals[HOSTED_RIVALS][PEER_ID_BYTES]; /* the newest, in a ring */
    size_t rival_count;
    /* Of roster.h. */
    atomic_int holders;
    struct hosted *next_retired;
};

struct hosted_limits {
    int64_t max_batch_size, min_batch_size;
    uint64_t batch_timeout_us, stall_timeout_us;
    size_t max_queued_tasks;
};

/* Checks everything; the expert itself, and its memory, comes with hosted_make().
 * @param out  owned: hosted_free(). Errors as expert_new(), with the UID before the sentence. */
SKEP_MUST_CHECK skep_status hosted_new(const char *uid, const struct skep_expert_options *options,
                                       struct hosted **out, struct skep_error *err);
SKEP_MUST_CHECK skep_status hosted_make(struct hosted *hosted, struct skep_error *err);
void hosted_free(struct hosted *hosted); /* after the runtime is gone. NULL is allowed */
/* As long as one is held, its expert is not freed. Taken from the roster (roster.h). */
void hosted_hold(struct hosted *hosted);
void hosted_release(struct hosted *hosted);
/* Frees the expert of one that the roster has retired; false while somebody holds it. */
bool hosted_unmake(struct hosted *hosted);
/* How firmly the node holds its UID, as its record says. Any thread. */
void hosted_claim(const struct hosted *hosted, struct record_claim *out);
/* Makes its pools. */
SKEP_MUST_CHECK skep_status hosted_open(struct hosted *hosted, struct runtime *runtime,
                                        const struct hosted_limits *limits, struct skep_error *err);
/* For the DHT handler: load since its last call; false while it must not be published. */
bool hosted_load(struct hosted *hosted, struct record_load *out);
void hosted_stats(struct hosted *hosted, struct skep_expert_stats *out);
void pool_stats_add(struct skep_pool_stats *sum, const struct skep_pool_stats *more);

#endif
