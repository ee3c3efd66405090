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
    s.linear =
        workspace_cut(call->ws, call_linear_scratch(call, call->rows, call->plan->dims[HIDDEN],
                                                    call->plan->dims[WIDE]));
    return s;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)cut_scratch(call, backward);
}

static struct kernel_linear linear_of(const struct expert_call *call, int weight,
                                      const struct scratch *s)
{
    return call_linear(call, (size_t)weight, false, call->rows, s->linear);
}

static skep_status run_hidden(const struct expert_call *call, const struct scratch *s,
                              struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[0]);
    const struct kernel_linear gate = linear_of(call, GATE, s);
    const struct kernel_linear up = linear_of(call, UP, s);
    skep_status rc = kernel_linear(&gate, kernel_floats(x), NULL, s->gate, err);

    if (rc == SKEP_OK)
        rc = kernel_linear(&up, kernel_floats(x), NULL, s->up, err);
    if (rc == SKEP_OK)
        kernel_map(simd_ops()->silu_mul, s->gate, s->up, s->act, NULL,
                   call->rows * call->plan->dims[WIDE]);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);
    const struct kernel_linear down = linear_of(call, DOWN, &s);
    skep_status rc = run_hidden(call, &s, err);

    return rc != SKEP_OK ? rc
                         : kernel_linear(&down, kernel_floats(s.act), NULL,
                                         skep_tensor_data(&call->outputs[0]), err);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[0]);
    const float *dy = skep_tensor_data(&call->grad_outputs[0]);
    float *dx = skep_tensor_data(&call->grad_inputs[0]);
    struct scratch s = cut_scratch(call, true);
    const struct kernel_linear gate = linear_of(call, GATE, &s);
    const struct kernel_linear up = linear_of(call, UP, &s);
    const struct kernel_linear down = linear_of(call, DOWN, &s);
    skep_status rc = run_hidden(call, &s, err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(&down, kernel_floats(dy), kernel_floats(s.act),
                                       call->grads[DOWN], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&down, kernel_floats(dy), NULL, s.grad, err);
    if (rc != SKEP_OK)
        return rc;
    /* The activation is done with: up's gradient takes its place, gate's that of act. */
    float *d_gate = s.grad;
    float *d_up = s.act;
    kernel_map(simd_ops()->silu_mul_backward, s.gate, s.up, d_gate, d_up,
               call->rows * call->plan->dims[WIDE]);
    rc = kernel_linear_grad_weight(&gate, kernel_floats(d_gate), kernel_floats(x),
                                   call->grads[GATE], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(&up, kernel_floats(d_up), kernel_floats(x), call->grads[UP],
                                       err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&gate, kernel_floats(d_gate), NULL, dx, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&up, kernel_floats(d_up), dx, dx, err);
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
