/*
 * Optimizers: one step over all parameters of an expert as one flat array. Rules and settings:
 * tests/golden/README.md, section 4. All state starts at zero.
 */
#ifndef SKEP_EXPERTS_OPTIMIZER_H
#define SKEP_EXPERTS_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>
#include <skep/expert.h>
#include <skep/status.h>

#include "experts/half.h"

enum optimizer_kind { OPTIMIZER_NONE, OPTIMIZER_ADAM, OPTIMIZER_ADAMW, OPTIMIZER_SGD };
enum optimizer_schedule { SCHEDULE_NONE, SCHEDULE_CONSTANT, SCHEDULE_LINEAR };

struct optimizer {
    enum optimizer_kind kind;
    enum optimizer_schedule schedule;
    double learning_rate;
    double beta1;
    double beta2;
    double eps;
    double weight_decay;
    double momentum;
    double clip_grad_norm; /* 0: off */
    uint64_t warmup_steps;
    uint64_t training_steps;
    size_t count;  /* elements of each array */
    uint64_t step; /* steps done */
    float *m;      /* owned; NULL if the kind needs none */
    float *v;
    /* Copies of the parameters that are to follow each step; borrowed, may be NULL. */
    struct half *follower;
};

/* Checks the settings alone. SKEP_INVALID_ARGUMENT names the setting, the value and the range. */
SKEP_MUST_CHECK skep_status optimizer_check(const struct skep_expert_options *options,
                                            struct skep_error *err);
/* How many floats of state it keeps for each parameter. Options have been checked. */
size_t optimizer_state_floats(const struct skep_expert_options *options);

/* @param out  zeroed on failure. */
SKEP_MUST_CHECK skep_status optimizer_init(struct optimizer *out,
                                           const struct skep_expert_options *options, size_t count,
                                           struct skep_error *err);
void optimizer_fini(struct optimizer *opt); /* zeroed is allowed */

/* The learning rate of the step that follows `steps_done` others. */
double optimizer_rate(const struct optimizer *opt, uint64_t steps_done);

/*
 * One step, in place. Nothing is changed unless all of it is done.
 * @return SKEP_INVALID_ARGUMENT if a gradient is not finite, or so large that its square is not
 *         (1e19): Adam's second moment would never recover.
 */
SKEP_MUST_CHECK skep_status optimizer_step(struct optimizer *opt, float *params, const float *grads,
                                           struct skep_error *err);

#endif
