/* What expert.c (making, passes, parameters) and expert_state.c (snapshots, restoring) share. */
#ifndef SKEP_EXPERTS_EXPERT_INTERNAL_H
#define SKEP_EXPERTS_EXPERT_INTERNAL_H

#include <stdatomic.h>

#include "experts/class.h"
#include "experts/expert.h"
#include "experts/optimizer.h"
#include "experts/snapshot.h"

struct expert {
    const struct expert_class *cls;
    struct expert_settings settings;
    struct expert_plan plan;
    float *values; /* owned: mem_free() */
    size_t total;  /* elements of values, gaps included */
    uint64_t parameter_count;
    /* Where each parameter lies in `values`, and its elements. */
    size_t offset[EXPERT_MAX_PARAMETERS];
    size_t count[EXPERT_MAX_PARAMETERS];
    const float *params[EXPERT_MAX_PARAMETERS];
    struct half half; /* copies of the matrices; zeroed in float32 */
    bool is_half;
    struct optimizer optimizer;
    struct snapshot_lock gate; /* guards values and the optimizer's arrays against copies */
    /* What its class has listed last, if it owns the state. */
    const struct skep_named_tensor *saved;
    size_t saved_count;
    /* Read by any thread. */
    _Atomic uint64_t updates;
    _Atomic uint64_t skipped;
};

/* Copies a value into parameter i of an array laid out like `values`. */
skep_status expert_set_values(struct expert *expert, float *array, size_t i, const DLTensor *value,
                              struct skep_error *err);

#endif
