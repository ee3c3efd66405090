/*
 * Saves a node's experts now and then, beside their work: of one expert at a time it takes a copy
 * (expert_snapshot()), then writes that. So it needs room for one copy of the largest expert's
 * state, and an optimizer step waits for the rest of one memory copy at most.
 *
 * Threads: "skep-checkpoint" works; the functions are called by whoever starts and stops the node.
 */
#ifndef SKEP_NODE_LIFECYCLE_CHECKPOINTER_H
#define SKEP_NODE_LIFECYCLE_CHECKPOINTER_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "experts/checkpoint_dir.h"
#include "node/lifecycle/roster.h"

struct checkpointer;

struct checkpointer_config {
    const struct checkpoint_dir *dir; /* open for writing; borrowed until checkpointer_free() */
    struct roster *roster;            /* the same */
    uint32_t period_ms;               /* between the beginnings of two rounds */
    size_t keep;                      /* checkpoints of one expert; at least 1 */
};

struct checkpointer_stats {
    uint64_t saved, failed;   /* checkpoints */
    int64_t last_unix_s;      /* when the newest was finished; 0: none yet */
    uint64_t longest_wait_us; /* of an optimizer step for a copy */
};

/* Starts the thread. Its first round, of experts that have no checkpoint yet, begins at once. */
SKEP_MUST_CHECK skep_status checkpointer_new(const struct checkpointer_config *config,
                                             struct checkpointer **out, struct skep_error *err);
/* Runs a round soon: there are experts now that the rounds before have left out, since their UIDs
 * might still have been given up. Any thread; NULL is allowed. */
void checkpointer_wake(struct checkpointer *cp);
/* Ends the thread; a file being written is finished first. NULL is allowed. */
void checkpointer_stop(struct checkpointer *cp);
/*
 * Saves one expert that nothing else uses any more, if it has changed since it was saved. What is
 * lost is logged as an error. Any thread; `cp` may be NULL: nothing is saved here.
 */
SKEP_MUST_CHECK skep_status checkpointer_save(struct checkpointer *cp, struct local_expert *local,
                                              struct skep_error *err);
/* Saves what has changed since it was saved, on the calling thread, after checkpointer_stop().
 * There is no later try: what is lost is told as an error. Returns how many experts have lost
 * something. */
size_t checkpointer_finish(struct checkpointer *cp);
void checkpointer_stats(struct checkpointer *cp, struct checkpointer_stats *out);
void checkpointer_free(struct checkpointer *cp); /* stops; NULL is allowed */

#endif
