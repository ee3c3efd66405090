/*
 * The class "det_dropout": y = linear_out( relu( linear_in( x * mask / keep_prob ))), where the
 * caller chooses the mask, so that a dropout can be repeated. In evaluation mode the mask is
 * ignored and nothing is scaled. Source: tests/golden/README.md, section 3.
 */
#include "experts/class.h"

#include <string.h>

#include "base/error.h"
#include "base/tensor.h"
#include "experts/kernels.h"
#include "experts/parallel.h"

enum { HIDDEN, WIDE, EVALUATION, FLOAT_MASK }; /* in plan->dims */
enum { W_IN, B_IN, W_OUT, B_OUT };             /* parameters */
enum { X, MASK };                              /* inputs */
enum { GRAIN = 64 << 10 };                     /* elements a thread must have at least */

static const float KEEP_PROB = 0.8f;

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const int64_t h = options->hidden_dim;
    const int64_t shape[2] = {-1, h};

    (void)err;
    plan->dims[HIDDEN] = (size_t)h;
    plan->dims[WIDE] = 2 * (size_t)h;
    plan->dims[EVALUATION] = options->evaluation;
    plan->dims[FLOAT_MASK] = options->float_mask;
    plan_add_input(plan, "x", DTYPE_F32, 2, shape);
    plan_add_input(plan, "mask", options->float_mask ? DTYPE_F32 : DTYPE_I64, 2, shape);
    plan_add_output(plan, "y", DTYPE_F32, 2, shape);
    plan_add_linear(plan, "linear_in", h, 2 * h, true);
    plan_add_linear(plan, "linear_out", 2 * h, h, true);
    return SKEP_OK;
}

struct scratch {
    float *z;      /* masked input */
    float *act;    /* after ReLU, in place */
    float *grad;   /* of act; backward only */
    float *linear; /* kernel_linear()'s */
};

static struct scratch cut_scratch(const struct expert_call *call, bool backward)
{
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    struct scratch s = {0};

    s.z = workspace_cut(call->ws, call->rows * hidden);
    s.act = workspace_cut(call->ws, call->rows * wide);
    if (backward)
        s.grad = workspace_cut(call->ws, call->rows * wide);
    s.linear = workspace_cut(call->ws, call_linear_scratch(call, call->rows, hidden, wide));
    return s;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)cut_scratch(call, backward);
}

struct masking {
    const float *x;
    const DLTensor *mask;
    float *out;
    bool evaluation;
};

static void mask_range(void *arg, size_t first, size_t last, unsigned part)
{
    const struct masking *m = arg;
    const float *as_float = skep_tensor_data(m->mask);
    const int64_t *as_int = skep_tensor_data(m->mask);
    bool is_float = m->mask->dtype.code == kDLFloat;

    (void)part;
    if (m->evaluation) {
        if (m->out != m->x)
            memcpy(m->out + first, m->x + first, (last - first) * sizeof(float));
        return;
    }
    for (size_t i = first; i < last; i++)
        m->out[i] = m->x[i] * (is_float ? as_float[i] : (float)as_int[i]) / KEEP_PROB;
}

/* out = x * mask / keep_prob; out may be x. */
static void apply_mask(const struct expert_call *call, const float *x, float *out)
{
    struct masking m = {x, &call->inputs[MASK], out, call->plan->dims[EVALUATION] != 0};

    parallel_range(call->rows * call->plan->dims[HIDDEN], GRAIN, 16, mask_range, &m);
}

static struct kernel_linear linear_of(const struct expert_call *call, int weight,
                                      const struct scratch *s)
{
    return call_linear(call, (size_t)weight, true, call->rows, s->linear);
}

static skep_status run_hidden(const struct expert_call *call, const struct scratch *s,
                              struct skep_error *err)
{
    const struct kernel_linear in = linear_of(call, W_IN, s);

    apply_mask(call, skep_tensor_data(&call->inputs[X]), s->z);
    skep_status rc = kernel_linear(&in, kernel_floats(s->z), NULL, s->act, err);
    if (rc == SKEP_OK)
        kernel_map(simd_ops()->relu, s->act, NULL, s->act, NULL,
                   call->rows * call->plan->dims[WIDE]);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);
    const struct kernel_linear out = linear_of(call, W_OUT, &s);
    skep_status rc = run_hidden(call, &s, err);

    return rc != SKEP_OK ? rc
                         : kernel_linear(&out, kernel_floats(s.act), NULL,
                                         skep_tensor_data(&call->outputs[0]), err);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const size_t rows = call->rows;
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    const float *dy = skep_tensor_data(&call->grad_outputs[0]);
    float *dx = skep_tensor_data(&call->grad_inputs[X]);
    struct scratch s = cut_scratch(call, true);
    const struct kernel_linear in = linear_of(call, W_IN, &s);
    const struct kernel_linear out = linear_of(call, W_OUT, &s);
    skep_status rc = run_hidden(call, &s, err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(&out, kernel_floats(dy), kernel_floats(s.act),
                                       call->grads[W_OUT], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&out, kernel_floats(dy), NULL, s.grad, err);
    if (rc != SKEP_OK)
        return rc;
    kernel_column_sums(dy, rows, hidden, call->grads[B_OUT]);
    kernel_map(simd_ops()->relu_backward, s.act, NULL, s.grad, NULL, rows * wide);
    kernel_column_sums(s.grad, rows, wide, call->grads[B_IN]);
    rc = kernel_linear_grad_weight(&in, kernel_floats(s.grad), kernel_floats(s.z),
                                   call->grads[W_IN], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&in, kernel_floats(s.grad), NULL, dx, err);
    if (rc != SKEP_OK)
        return rc;
    apply_mask(call, dx, dx);
    memset(skep_tensor_data(&call->grad_inputs[MASK]), 0,
           rows * hidden * (call->plan->dims[FLOAT_MASK] ? sizeof(float) : sizeof(int64_t)));
    return SKEP_OK;
}

const struct expert_class expert_class_det_dropout = {
    .name = "det_dropout",
    .describe = describe,
    .measure = measure,
    .forward = forward,
    .backward = backward,
    .is_bounded = true,
};
