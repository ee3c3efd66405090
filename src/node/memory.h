/* Whether a node's experts fit in memory while they work: computed before serving, not found out
 * after days. */
#ifndef SKEP_NODE_MEMORY_H
#define SKEP_NODE_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "node/hosted.h"

/* Memory that this process may use: the machine's, or its control group's if that is less. */
uint64_t memory_available(void);

/*
 * The most the experts need at once: parameters, their gradients and two moments of the optimizer
 * each, and one batch of max_batch_size rows at work (one works at a time).
 */
uint64_t memory_peak(struct hosted *const *experts, size_t count, int64_t max_batch_size);

/* SKEP_RESOURCE_EXHAUSTED with both figures, and what to change, if it is more than `available`. */
SKEP_MUST_CHECK skep_status memory_check(struct hosted *const *experts, size_t count,
                                         int64_t max_batch_size, uint64_t available,
                                         struct skep_error *err);

#endif
