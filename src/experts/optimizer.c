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

enum {
    GRAIN =
        128 << 10, /* elements a thread must have at least: 20 us, less than waking it may take */
    BLOCK = 16 << 10, /* elements whose parameters stay in the cache until they are copied */
};

/* The sum of squares, held in double, up to which every square also fits a float. */
static const double MAX_SQUARED_NORM = 1e38;

/* Keeps a norm of 0 from dividing by it; PyTorch's clip_grad_norm_ has the same. */
static const double CLIP_EPS = 1e-6;

struct name {
    const char *text;
    int value;
};

static const struct name kinds[] = {
    {"adam", OPTIMIZER_ADAM},
    {"adamw", OPTIMIZER_ADAMW},
    {"sgd", OPTIMIZER_SGD},
    {"none", OPTIMIZER_NONE},
};

static const struct name schedules[] = {
    {"none", SCHEDULE_NONE},
    {"constant-with-warmup", SCHEDULE_CONSTANT},
    {"linear-with-warmup", SCHEDULE_LINEAR},
    {"constant", SCHEDULE_CONSTANT},
    {"linear", SCHEDULE_LINEAR},
};

enum {
    KIND_COUNT = sizeof(kinds) / sizeof(kinds[0]),
    SCHEDULE_COUNT = sizeof(schedules) / sizeof(schedules[0]),
};

/* The value of a name; -1 if it is not in the list. */
static int find_name(const struct name *list, size_t count, const char *text)
{
    for (size_t i = 0; i < count; i++)
        if (text != NULL && strcmp(list[i].text, text) == 0)
            return list[i].value;
    return -1;
}

static skep_status check_name(const struct name *list, size_t count, const char *what,
                              const char *text, struct skep_error *err)
{
    char known[128] = "";
    size_t used = 0;

    if (find_name(list, count, text) >= 0)
        return SKEP_OK;
    for (size_t i = 0; i < count && used < sizeof(known); i++)
        used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                 list[i].text);
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: \"%s\" is not known, expected one of %s",
                     what, text != NULL ? text : "(none)", known);
}

static skep_status check_beta(const char *what, double beta, struct skep_error *err)
{
    if (beta >= 0.0 && beta < 1.0)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %g, expected 0 or more and below 1", what,
                     beta);
}

/* What a number of 0 or more may be; not finite never is. */
static skep_status check_number(const char *what, double value, double least,
                                struct skep_error *err)
{
    if (value >= least && isfinite(value))
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %g, expected a finite number, %g or more",
                     what, value, least);
}

/* Negative is PyTorch's default; NaN stays, to be refused. */
static double decay_of(const struct skep_expert_options *o)
{
    if (!(o->weight_decay < 0.0))
        return o->weight_decay;
    return find_name(kinds, KIND_COUNT, o->optimizer) == OPTIMIZER_ADAMW ? 0.01 : 0.0;
}

static skep_status check_schedule(const struct skep_expert_options *o, struct skep_error *err)
{
    skep_status rc = check_name(schedules, SCHEDULE_COUNT, "schedule", o->schedule, err);

    if (rc == SKEP_OK && o->training_steps == 0 &&
        find_name(schedules, SCHEDULE_COUNT, o->schedule) == SCHEDULE_LINEAR)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "schedule %s: 0 training steps, expected 1 or more", o->schedule);
    return rc;
}

skep_status optimizer_check(const struct skep_expert_options *o, struct skep_error *err)
{
    skep_status rc = check_name(kinds, KIND_COUNT, "optimizer", o->optimizer, err);

    if (rc == SKEP_OK)
        rc = check_beta("beta1", o->beta1, err);
    if (rc == SKEP_OK)
        rc = check_beta("beta2", o->beta2, err);
    if (rc == SKEP_OK)
        rc = check_number("learning rate", o->learning_rate, 0.0, err);
    /* Far below any useful value; with 0, a gradient of 0 would make 0 / 0. */
    if (rc == SKEP_OK)
        rc = check_number("eps", o->eps, 1e-30, err);
    if (rc == SKEP_OK)
        rc = check_number("weight decay", decay_of(o), 0.0, err);
    if (rc == SKEP_OK)
        rc = check_beta("momentum", o->momentum, err);
    if (rc == SKEP_OK)
        rc = check_number("clip_grad_norm", o->clip_grad_norm, 0.0, err);
    return rc == SKEP_OK ? check_schedule(o, err) : rc;
}

size_t optimizer_state_floats(const struct skep_expert_options *o)
{
    int kind = find_name(kinds, KIND_COUNT, o->optimizer);

    if (kind == OPTIMIZER_ADAM || kind == OPTIMIZER_ADAMW)
        return 2;
    return kind == OPTIMIZER_SGD && o->momentum > 0.0 ? 1 : 0;
}

skep_status optimizer_init(struct optimizer *out, const struct skep_expert_options *options,
                           size_t count, struct skep_error *err)
{
    skep_status rc = optimizer_check(options, err);

    *out = (struct optimizer){0};
    if (rc != SKEP_OK)
        return rc;
    struct optimizer opt = {
        .kind = (enum optimizer_kind)find_name(kinds, KIND_COUNT, options->optimizer),
        .schedule =
            (enum optimizer_schedule)find_name(schedules, SCHEDULE_COUNT, options->schedule),
        .learning_rate = options->learning_rate,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .eps = options->eps,
        .weight_decay = decay_of(options),
        .momentum = options->momentum,
        .clip_grad_norm = options->clip_grad_norm,
        .warmup_steps = options->warmup_steps,
        .training_steps = options->training_steps,
        .count = count,
    };
    size_t arrays = optimizer_state_floats(options);
    if (arrays >= 1)
        opt.m = floats_new_zeroed(count);
    if (arrays >= 2)
        opt.v = floats_new_zeroed(count);
    if ((arrays >= 1 && opt.m == NULL) || (arrays >= 2 && opt.v == NULL)) {
        optimizer_fini(&opt);
        return error_no_memory(err, "optimizer state", arrays * count * sizeof(*opt.m));
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

double optimizer_rate(const struct optimizer *opt, uint64_t steps_done)
{
    double s = (double)steps_done;
    double warmup = (double)opt->warmup_steps;
    double total = (double)opt->training_steps;

    if (opt->schedule == SCHEDULE_NONE)
        return opt->learning_rate;
    if (steps_done < opt->warmup_steps)
        return opt->learning_rate * (s / warmup);
    if (opt->schedule == SCHEDULE_CONSTANT)
        return opt->learning_rate;
    return opt->learning_rate * fmax(0.0, (total - s) / fmax(1.0, total - warmup));
}

struct sweep {
    struct optimizer *opt;
    float *params;
    const float *grads;
    struct simd_adam adam;
    struct simd_sgd sgd;
};

static void step_block(const struct sweep *s, size_t first, size_t n)
{
    struct optimizer *opt = s->opt;
    float *m = opt->m != NULL ? opt->m + first : NULL;

    if (opt->kind == OPTIMIZER_SGD)
        simd_ops()->sgd(s->params + first, m, s->grads + first, n, &s->sgd);
    else
        simd_ops()->adam(s->params + first, m, opt->v + first, s->grads + first, n, &s->adam);
    if (opt->follower != NULL)
        half_follow(opt->follower, s->params, first, first + n);
}

static void sweep(void *arg, size_t first, size_t last, unsigned part)
{
    const struct sweep *s = arg;

    (void)part;
    for (size_t at = first; at < last; at += BLOCK)
        step_block(s, at, last - at < BLOCK ? last - at : BLOCK);
}

static struct simd_adam adam_coefficients(const struct optimizer *opt, float grad_scale)
{
    double t = (double)(opt->step + 1);
    double rate = optimizer_rate(opt, opt->step);
    bool decoupled = opt->kind == OPTIMIZER_ADAMW;

    return (struct simd_adam){
        .grad_scale = grad_scale,
        .l2 = decoupled ? 0.0f : (float)opt->weight_decay,
        .decay = decoupled ? (float)(1.0 - rate * opt->weight_decay) : 1.0f,
        .beta1 = (float)opt->beta1,
        .beta2 = (float)opt->beta2,
        .step_size = (float)(rate / (1.0 - pow(opt->beta1, t))),
        .root_bias = (float)sqrt(1.0 - pow(opt->beta2, t)),
        .eps = (float)opt->eps,
    };
}

static float clip_scale(const struct optimizer *opt, double norm)
{
    if (opt->clip_grad_norm <= 0.0)
        return 1.0f;
    return (float)fmin(1.0, opt->clip_grad_norm / (norm + CLIP_EPS));
}

skep_status optimizer_step(struct optimizer *opt, float *params, const float *grads,
                           struct skep_error *err)
{
    double squares = kernel_sum_squares(grads, opt->count);
    struct sweep s = {.opt = opt, .params = params, .grads = grads};

    if (!(squares < MAX_SQUARED_NORM))
        return error_set(
            err, SKEP_INVALID_ARGUMENT,
            "gradients: norm %g, expected a finite number below 1e19; no step was done",
            sqrt(squares));
    float scale = clip_scale(opt, sqrt(squares));
    if (opt->kind == OPTIMIZER_SGD)
        s.sgd = (struct simd_sgd){
            .grad_scale = scale,
            .l2 = (float)opt->weight_decay,
            .momentum = (float)opt->momentum,
            .step_size = (float)optimizer_rate(opt, opt->step),
        };
    else if (opt->kind != OPTIMIZER_NONE)
        s.adam = adam_coefficients(opt, scale);
    if (opt->kind != OPTIMIZER_NONE) {
        parallel_range(opt->count, GRAIN, 16, sweep, &s);
        if (opt->follower != NULL)
            half_followed(opt->follower);
    }
    opt->step++;
    return SKEP_OK;
}
