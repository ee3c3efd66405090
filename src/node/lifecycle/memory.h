/* Whether a node's experts fit in memory while they work: computed before serving, not found out
 * after days. */
#ifndef SKEP_NODE_LIFECYCLE_MEMORY_H
#define SKEP_NODE_LIFECYCLE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "experts/expert.h"

/* Memory that this process may use: the machine's, or what the control groups leave of it. */
uint64_t memory_available(void);
/*
 * The smallest limit of the process's control groups in bytes, UINT64_MAX: none. Both versions
 * count, with all groups above: memory.max (v2), memory.limit_in_bytes and, for groups above that
 * this process does not see, hierarchical_memory_limit of memory.stat (v1).
 * @param root  as of control_group_walk(): "" for the system's.
 */
uint64_t memory_group_limit(const char *root);

/* What experts need together. Zeroed memory is none. */
struct memory_sum {
    uint64_t experts;
    uint64_t fixed;        /* bytes of parameters, optimizer state and copies of all */
    uint64_t gradients[2]; /* of the two largest: another may pass one that works */
    uint64_t copy;         /* of the state of the largest, for saving it; 0 without has_copy */
    bool has_copy;
    uint64_t row; /* of the inputs and outputs of the one whose rows are largest */
};

/* Adds `count` equal experts; sums stop at UINT64_MAX. */
void memory_add(struct memory_sum *sum, const struct expert_description *description,
                uint64_t count);

/* The most they need at once: also gradients, one batch of max_batch_size rows at work, and where
 * there are several experts, an eighth of one beside it (runtime/task_pool.h). */
uint64_t memory_peak(const struct memory_sum *sum, int64_t max_batch_size);

/*
 * @param max_memory  the limit that was set; 0: what there is, memory_available().
 * @return SKEP_RESOURCE_EXHAUSTED with the sum, what it is made of, the limit, and what to change.
 */
SKEP_MUST_CHECK skep_status memory_check(const struct memory_sum *sum, int64_t max_batch_size,
                                         uint64_t max_memory, struct skep_error *err);

#endif
