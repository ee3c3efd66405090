/* What tracker_registry.c (entries, the thread, life) and tracker_registry_round.c (what is said,
 * and its outcome) share. */
#ifndef SKEP_NODE_TRACKING_TRACKER_REGISTRY_INTERNAL_H
#define SKEP_NODE_TRACKING_TRACKER_REGISTRY_INTERNAL_H

#include <pthread.h>

#include "base/hash_table.h"
#include "base/thread.h"
#include "node/tracking/tracker_registry.h"

struct entry {
    struct hash_node node; /* in tracker_registry.table */
    struct entry *next, **link;
    char *key; /* owned */
    size_t free, pending, servers;
    /* What the DHT was told: */
    bool told;            /* something that readers may still find */
    bool told_gone;       /* and that was a withdrawal */
    bool told_free;       /* free > 0, then */
    bool failed;          /* the last time; or never tried */
    int64_t told_until_s; /* its expiry */
};

struct round; /* of publishing: what was copied out, until its outcome is known */

/* Lock order: registry.lock, then the directory's. */
struct tracker_registry {
    struct tracker_registry_config config;
    char version[32];
    struct thread thread;
    bool had_peers;       /* the thread's */
    unsigned among_peers; /* the thread's: full rounds since there are peers, up to 2 */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct hash_table table;
    struct entry *entries;
    bool urgent; /* some entry differs from what was told in a way that matters to others */
    bool tracker_told;
    int64_t tracker_until_s;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct endpoint tvm;
    bool refresh; /* endpoints have changed */
    struct round *rounds;
    unsigned round_count;
    bool failed; /* some record of the last rounds */
    struct tracker_registry_stats stats;
};

/* tracker_registry.c; the lock is held. */
struct entry *tracker_registry_find(struct tracker_registry *r, const char *key, size_t len,
                                    uint64_t hash);
void tracker_registry_drop(struct tracker_registry *r, struct entry *e);
bool entry_is_gone(const struct entry *e);
/* Whether others must hear of it before the period is over. */
bool entry_is_urgent(const struct entry *e);

/* tracker_registry_round.c; without the lock. */
enum round_scope { SCOPE_ALL, SCOPE_CHANGED, SCOPE_OFFLINE };
/* Says what there is to say; the outcome is noted when it is known. */
void tracker_registry_publish(struct tracker_registry *r, enum round_scope scope,
                              uint64_t deadline_us);
/* Waits for the rounds that are under way; `cut` ends them now. */
void tracker_registry_wait_rounds(struct tracker_registry *r, bool cut);

#endif
