/*
 * The experts of a node, sorted by UID once the node is open. Before that one thread at a time
 * changes them; afterwards the thread of node/lifecycle/claims.h replaces an expert that gives its
 * UID up, and skep_node_add_expert() and skep_node_remove_expert() add and remove some.
 *
 * Threads: every function may be called from any thread, except where it says "before opening". Who
 * takes an expert out of the roster for work holds it (local_expert_hold) until
 * local_expert_release(); an expert that was removed keeps its memory as long as somebody holds it,
 * and its text for good.
 */
#ifndef SKEP_NODE_LIFECYCLE_ROSTER_H
#define SKEP_NODE_LIFECYCLE_ROSTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <skep/status.h>
#include "node/lifecycle/local_expert.h"

struct roster {
    pthread_rwlock_t lock;        /* guards all below once the node is open */
    struct local_expert **items;  /* owned */
    struct local_expert *retired; /* owned: removed ones, linked by hosted.next_retired */
    size_t count, cap;
};

void roster_init(struct roster *roster);
void roster_fini(struct roster *roster); /* with all experts */

/* Before opening: appends. Takes `hosted` on success only. SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status roster_append(struct roster *roster, struct local_expert *local,
                                          struct skep_error *err);
/* Before opening: removes and frees. */
void roster_drop(struct roster *roster, struct local_expert *local);
/* Before opening: whether a UID is there, in any order of the experts. */
bool roster_lists(const struct roster *roster, const char *uid);
void roster_sort(struct roster *roster);

/* From opening on. Takes `hosted` on success only. */
SKEP_MUST_CHECK skep_status roster_insert(struct roster *roster, struct local_expert *local,
                                          struct skep_error *err);
/* From opening on: nobody finds it any more; the roster still owns it. False: another thread has
 * retired it. */
bool roster_retire(struct roster *roster, struct local_expert *local);
/* Takes one that was never in it, but whose pools the runtime has. */
void roster_adopt_retired(struct roster *roster, struct local_expert *local);
size_t roster_count(struct roster *roster);
/* Held, or NULL if there is none: local_expert_release(). */
struct local_expert *roster_hold(struct roster *roster, const char *uid);
struct local_expert *roster_hold_at(struct roster *roster, size_t index);

#endif
