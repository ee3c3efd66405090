/*
 * The class "swiglu": y = down_proj( silu(gate_proj(x)) * up_proj(x) ), without biases.
 * Source: tests/golden/README.md, section 3.
 */
#include "experts/class.h"

#include <inttypes.h>

#include "base/error.h"
#include "base/tensor.h"
#include "experts/kernels.h"

enum { HIDDEN, WIDE };   /* in plan->dims */
enum { GATE, UP, DOWN }; /* parameters */
enum { MAX_WIDE = 1 << 20 };

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const int64_t h = options->hidden_dim;
    const int64_t wide = options->intermediate_dim == 0 ? 4 * h : options->intermediate_dim;
    const int64_t shape[2] = {-1, h};

    if (wide < 1 || wide > MAX_WIDE)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "intermediate_dim: %" PRId64 ", expected 1 to %d", wide, MAX_WIDE);
    plan->dims[HIDDEN] = (size_t)h;
    plan->dims[WIDE] = (size_t)wide;
    plan_add_input(plan, "x", DTYPE_F32, 2, shape);
    plan_add_output(plan, "y", DTYPE_F32, 2, shape);
    plan_add_linear(plan, "gate_proj", h, wide, false);
    plan_add_linear(plan, "up_proj", h, wide, false);
    plan_add_linear(plan, "down_proj", wide, h, false);
    return SKEP_OK;
}

struct scratch {
    float *gate;
    float *up;
    float *act;    /* silu(gate) * up; forward only: the same memory as `gate` */
    float *grad;   /* of act; backward only */
    float *linear; /* kernel_linear()'s */
};

static struct scratch cut_scratch(const struct expert_call *call, bool backward)
{
    size_t n = call->rows * call->plan->dims[WIDE];
    struct scratch s = {0};

    s.gate = workspace_cut(call->ws, n);
    s.up = workspace_cut(call->ws, n);
    s.act = backward ? workspace_cut(call->ws, n) : s.gate;
    if (backward)
        s.grad = workspace_cut(call->ws, n);
    s.linear = workspace_cut(call->ws, kernel_linear_scratch(call->rows, call->plan->dims[HIDDEN],
                                                             call->plan->dims[WIDE]));
    return s;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)cut_scratch(call, backward);
}

static skep_status run_hidden(const struct expert_call *call, const struct scratch *s,
                              struct skep_error *err)
{
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    const float *x = skep_tensor_data(&call->inputs[0]);
    skep_status rc = kernel_linear(x, call->params[GATE], NULL, NULL, s->gate, call->rows, hidden,
                                   wide, s->linear, err);

    if (rc == SKEP_OK)
        rc = kernel_linear(x, call->params[UP], NULL, NULL, s->up, call->rows, hidden, wide,
                           s->linear, err);
    if (rc == SKEP_OK)
        kernel_map(simd_ops()->silu_mul, s->gate, s->up, s->act, NULL, call->rows * wide);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);
    skep_status rc = run_hidden(call, &s, err);

    if (rc != SKEP_OK)
        return rc;
    return kernel_linear(s.act, call->params[DOWN], NULL, NULL, skep_tensor_data(&call->outputs[0]),
                         call->rows, call->plan->dims[WIDE], call->plan->dims[HIDDEN], s.linear,
                         err);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const size_t rows = call->rows;
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    const float *x = skep_tensor_data(&call->inputs[0]);
    const float *dy = skep_tensor_data(&call->grad_outputs[0]);
    float *dx = skep_tensor_data(&call->grad_inputs[0]);
    struct scratch s = cut_scratch(call, true);
    skep_status rc = run_hidden(call, &s, err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(dy, s.act, call->grads[DOWN], rows, wide, hidden, err);
    if (rc == SKEP_OK)
        rc =
            kernel_linear_grad_input(dy, call->params[DOWN], NULL, s.grad, rows, wide, hidden, err);
    if (rc != SKEP_OK)
        return rc;
    /* The activation is done with: up's gradient takes its place, gate's that of act. */
    float *d_gate = s.grad;
    float *d_up = s.act;
    kernel_map(simd_ops()->silu_mul_backward, s.gate, s.up, d_gate, d_up, rows * wide);
    rc = kernel_linear_grad_weight(d_gate, x, call->grads[GATE], rows, hidden, wide, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(d_up, x, call->grads[UP], rows, hidden, wide, err);
    if (rc == SKEP_OK)
        rc =
            kernel_linear_grad_input(d_gate, call->params[GATE], NULL, dx, rows, hidden, wide, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(d_up, call->params[UP], dx, dx, rows, hidden, wide, err);
    return rc;
}

const struct expert_class expert_class_swiglu = {
    .name = "swiglu",
    .describe = describe,
    .measure = measure,
    .forward = forward,
    .backward = backward,
    .is_bounded = true,
};
