/* Optimizer steps: a sweep over the gradients that checks them, then one fused sweep. */
#include "experts/optimizer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "experts/kernels.h"
#include "experts/parallel.h"
#include "experts/workspace.h"

enum { GRAIN = 16 << 10 }; /* elements a thread must have at least */

/* The sum of squares, held in double, up to which every square also fits a float. */
static const double MAX_SQUARED_NORM = 1e38;

static const struct {
    const char *name;
    enum optimizer_kind kind;
    size_t state_floats;
} kinds[] = {
    {"adam", OPTIMIZER_ADAM, 2},
    {"none", OPTIMIZER_NONE, 0},
};

enum { KIND_COUNT = sizeof(kinds) / sizeof(kinds[0]) };

static int find_kind(const char *name)
{
    for (int i = 0; i < KIND_COUNT; i++)
        if (name != NULL && strcmp(kinds[i].name, name) == 0)
            return i;
    return -1;
}

static skep_status check_kind(const char *name, struct skep_error *err)
{
    char known[128] = "";
    size_t used = 0;

    if (find_kind(name) >= 0)
        return SKEP_OK;
    for (int i = 0; i < KIND_COUNT; i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 kinds[i].name);
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "optimizer: \"%s\" is not known, expected one of %s",
                     name != NULL ? name : "(none)", known);
}

static skep_status check_beta(const char *what, double beta, struct skep_error *err)
{
    if (beta >= 0.0 && beta < 1.0)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %g, expected 0 or more and below 1", what,
                     beta);
}

skep_status optimizer_check(const struct skep_expert_options *o, struct skep_error *err)
{
    skep_status rc = check_kind(o->optimizer, err);

    if (rc == SKEP_OK)
        rc = check_beta("beta1", o->beta1, err);
    if (rc == SKEP_OK)
        rc = check_beta("beta2", o->beta2, err);
    if (rc != SKEP_OK)
        return rc;
    if (!(o->learning_rate >= 0.0) || !isfinite(o->learning_rate))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "learning rate: %g, expected a finite number, 0 or more",
                         o->learning_rate);
    /* Below the smallest normal float, 0 / (sqrt(0) + eps) would be no number. */
    if (!(o->eps >= 1e-30) || !isfinite(o->eps))
        return error_set(err, SKEP_INVALID_ARGUMENT, "eps: %g, expected 1e-30 or more", o->eps);
    return SKEP_OK;
}

size_t optimizer_state_floats(const struct skep_expert_options *options)
{
    int i = find_kind(options->optimizer);

    return i >= 0 ? kinds[i].state_floats : 0;
}

skep_status optimizer_init(struct optimizer *out, const struct skep_expert_options *options,
                           size_t count, struct skep_error *err)
{
    skep_status rc = optimizer_check(options, err);

    *out = (struct optimizer){0};
    if (rc != SKEP_OK)
        return rc;
    struct optimizer opt = {
        .kind = kinds[find_kind(options->optimizer)].kind,
        .learning_rate = options->learning_rate,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .eps = options->eps,
        .count = count,
    };
    if (optimizer_state_floats(options) == 2) {
        opt.m = floats_new_zeroed(count);
        opt.v = floats_new_zeroed(count);
        if (opt.m == NULL || opt.v == NULL) {
            optimizer_fini(&opt);
            return error_no_memory(err, "optimizer state", 2 * count * sizeof(*opt.m));
        }
    }
    *out = opt;
    return SKEP_OK;
}

void optimizer_fini(struct optimizer *opt)
{
    mem_free(opt->m);
    mem_free(opt->v);
    *opt = (struct optimizer){0};
}

struct sweep {
    struct optimizer *opt;
    float *params;
    const float *grads;
    struct simd_adam adam;
};

static void sweep_adam(void *arg, size_t first, size_t last, unsigned part)
{
    const struct sweep *s = arg;

    (void)part;
    simd_ops()->adam(s->params + first, s->opt->m + first, s->opt->v + first, s->grads + first,
                     last - first, &s->adam);
}

static struct simd_adam adam_coefficients(const struct optimizer *opt)
{
    double t = (double)(opt->step + 1);

    return (struct simd_adam){
        .grad_scale = 1.0f,
        .decay = 1.0f,
        .beta1 = (float)opt->beta1,
        .beta2 = (float)opt->beta2,
        .step_size = (float)(opt->learning_rate / (1.0 - pow(opt->beta1, t))),
        .root_bias = (float)sqrt(1.0 - pow(opt->beta2, t)),
        .eps = (float)opt->eps,
    };
}

skep_status optimizer_step(struct optimizer *opt, float *params, const float *grads,
                           struct skep_error *err)
{
    double squares = kernel_sum_squares(grads, opt->count);

    if (!(squares < MAX_SQUARED_NORM))
        return error_set(
            err, SKEP_INVALID_ARGUMENT,
            "gradients: norm %g, expected a finite number below 1e19; no step was done",
            sqrt(squares));
    if (opt->kind == OPTIMIZER_ADAM) {
        struct sweep s = {opt, params, grads, adam_coefficients(opt)};
        parallel_range(opt->count, GRAIN, 16, sweep_adam, &s);
    }
    opt->step++;
    return SKEP_OK;
}
