/*
 * The class "nop": output and gradient are copies of what came in. For measuring everything around
 * an expert. Its one parameter is empty.
 */
#include "experts/class.h"

#include <string.h>

#include "base/tensor.h"

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const int64_t shape[2] = {-1, options->hidden_dim};

    (void)err;
    plan->dims[0] = (size_t)options->hidden_dim;
    plan_add_input(plan, "x", DTYPE_F32, 2, shape);
    plan_add_output(plan, "y", DTYPE_F32, 2, shape);
    plan_add_parameter(plan, "w", 0, 0, EXPERT_INIT_ZEROS, 0.0f);
    return SKEP_OK;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)call;
    (void)backward;
}

static skep_status copy(const struct expert_call *call, const DLTensor *from, DLTensor *to)
{
    memcpy(skep_tensor_data(to), skep_tensor_data(from),
           call->rows * call->plan->dims[0] * sizeof(float));
    return SKEP_OK;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    (void)err;
    return copy(call, &call->inputs[0], &call->outputs[0]);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    (void)err;
    return copy(call, &call->grad_outputs[0], &call->grad_inputs[0]);
}

const struct expert_class expert_class_nop = {
    .name = "nop",
    .describe = describe,
    .measure = measure,
    .forward = forward,
    .backward = backward,
    .is_bounded = true,
};
