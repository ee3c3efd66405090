/*
 * The class "ffn": y = x + L6( relu( LN4( L3( relu( LN1( L0(x) )))))), widths h, 4h, 4h, h.
 * Source: tests/golden/README.md, section 3.
 */
#include "experts/class.h"

#include "base/tensor.h"
#include "experts/kernels.h"

enum { HIDDEN, WIDE }; /* in plan->dims */

/* In PyTorch's order. Layers 2 and 5 are the ReLUs. */
enum { W0, B0, NW1, NB1, W3, B3, NW4, NB4, W6, B6 };

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const int64_t h = options->hidden_dim;
    const int64_t shape[2] = {-1, h};

    (void)err;
    plan->dims[HIDDEN] = (size_t)h;
    plan->dims[WIDE] = 4 * (size_t)h;
    plan_add_input(plan, "x", DTYPE_F32, 2, shape);
    plan_add_output(plan, "y", DTYPE_F32, 2, shape);
    plan_add_linear(plan, "layers.0", h, 4 * h, true);
    plan_add_norm(plan, "layers.1", 4 * h);
    plan_add_linear(plan, "layers.3", 4 * h, 4 * h, true);
    plan_add_norm(plan, "layers.4", 4 * h);
    plan_add_linear(plan, "layers.6", 4 * h, h, true);
    return SKEP_OK;
}

/* One hidden layer: linear, layer norm, ReLU. */
struct layer {
    float *pre; /* before the norm */
    struct kernel_values post;
    float *mean;
    float *rstd;
};

struct scratch {
    struct layer first;
    struct layer second;
    struct kernel_values grad; /* of a wide layer; backward only; half of it if products take it */
    float *linear;             /* kernel_linear()'s */
    float *norm;               /* kernel_norm_backward()'s */
};

/* @param spare_pre  memory for `pre` that nobody needs any more, or NULL */
static struct layer cut_layer(const struct expert_call *call, float *spare_pre, bool backward)
{
    const size_t n = call->rows * call->plan->dims[WIDE];
    struct layer l;

    l.pre = spare_pre != NULL ? spare_pre : workspace_cut(call->ws, n);
    if (backward || call_takes_half(call))
        l.post = call_cut_values(call, n);
    else
        l.post = (struct kernel_values){.full = l.pre};
    l.mean = workspace_cut(call->ws, call->rows);
    l.rstd = workspace_cut(call->ws, call->rows);
    return l;
}

static struct scratch cut_scratch(const struct expert_call *call, bool backward)
{
    size_t wide = call->plan->dims[WIDE];
    /* Where the activations are apart, what was before the first norm is not needed again. */
    bool shares_pre = !backward && call_takes_half(call);
    struct scratch s = {0};

    s.first = cut_layer(call, NULL, backward);
    s.second = cut_layer(call, shares_pre ? s.first.pre : NULL, backward);
    s.linear = workspace_cut(call->ws, call_linear_scratch(call, call->rows, wide, wide));
    if (backward) {
        s.grad.full = workspace_cut(call->ws, call->rows * wide);
        if (call_takes_half(call))
            s.grad.half = call_cut_values(call, call->rows * wide).half;
        s.norm = workspace_cut(call->ws, kernel_norm_backward_scratch(wide));
    }
    return s;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)cut_scratch(call, backward);
}

static struct simd_norm layer_norm(const struct expert_call *call, int weight)
{
    return (struct simd_norm){
        .weight = call->params[weight],
        .bias = call->params[weight + 1],
        .n = call->plan->dims[WIDE],
        .eps = EXPERT_NORM_EPS,
        .relu = true,
    };
}

static struct kernel_linear linear_of(const struct expert_call *call, int weight, float *scratch)
{
    return call_linear(call, (size_t)weight, true, call->rows, scratch);
}

/* weight: the number of the linear's; its bias and the norm's two follow. */
static skep_status run_layer(const struct expert_call *call, const struct layer *l,
                             struct kernel_input x, int weight, float *scratch,
                             struct skep_error *err)
{
    const struct simd_norm norm = layer_norm(call, weight + 2);
    const struct kernel_linear linear = linear_of(call, weight, scratch);
    skep_status rc = kernel_linear(&linear, x, NULL, l->pre, err);

    if (rc == SKEP_OK)
        kernel_norm(&norm, l->pre, call->rows, l->post, l->mean, l->rstd);
    return rc;
}

static skep_status run_hidden(const struct expert_call *call, const struct scratch *s,
                              struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[0]);
    skep_status rc = run_layer(call, &s->first, kernel_floats(x), W0, s->linear, err);

    if (rc == SKEP_OK)
        rc = run_layer(call, &s->second, kernel_input(s->first.post), W3, s->linear, err);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);
    const struct kernel_linear last = linear_of(call, W6, s.linear);
    skep_status rc = run_hidden(call, &s, err);

    if (rc != SKEP_OK)
        return rc;
    return kernel_linear(&last, kernel_input(s.second.post), skep_tensor_data(&call->inputs[0]),
                         skep_tensor_data(&call->outputs[0]), err);
}

/* Through ReLU, norm and the linear's own parameters; s->grad goes from post to pre. */
static skep_status run_layer_back(const struct expert_call *call, const struct scratch *s,
                                  const struct layer *l, struct kernel_input x, int weight,
                                  struct skep_error *err)
{
    const struct simd_norm norm = layer_norm(call, weight + 2);
    const struct kernel_linear linear = linear_of(call, weight, s->linear);

    kernel_norm_backward(&(struct kernel_norm_back){
        .norm = &norm,
        .x = l->pre,
        .y = kernel_input(l->post),
        .mean = l->mean,
        .rstd = l->rstd,
        .rows = call->rows,
        .grad = s->grad,
        .scratch = s->norm,
        .d_weight = call->grads[weight + 2],
        .d_bias = call->grads[weight + 3],
        .d_sum = call->grads[weight + 1],
    });
    return kernel_linear_grad_weight(&linear, kernel_input(s->grad), x, call->grads[weight], err);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const struct kernel_input x = kernel_floats(skep_tensor_data(&call->inputs[0]));
    const float *dy = skep_tensor_data(&call->grad_outputs[0]);
    float *dx = skep_tensor_data(&call->grad_inputs[0]);
    struct scratch s = cut_scratch(call, true);
    const struct kernel_linear l0 = linear_of(call, W0, s.linear);
    const struct kernel_linear l3 = linear_of(call, W3, s.linear);
    const struct kernel_linear l6 = linear_of(call, W6, s.linear);
    /* The output itself is not needed, so forward runs again without its last product. */
    skep_status rc = run_hidden(call, &s, err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(&l6, kernel_floats(dy), kernel_input(s.second.post),
                                       call->grads[W6], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&l6, kernel_floats(dy), NULL, s.grad.full, err);
    if (rc == SKEP_OK)
        rc = run_layer_back(call, &s, &s.second, kernel_input(s.first.post), W3, err);
    if (rc != SKEP_OK)
        return rc;
    kernel_column_sums(dy, call->rows, call->plan->dims[HIDDEN], call->grads[B6]);
    /* The second layer's activations are done with: the next gradient takes their place. */
    float *next = s.second.pre;
    rc = kernel_linear_grad_input(&l3, kernel_input(s.grad), NULL, next, err);
    s.grad.full = next;
    if (rc == SKEP_OK)
        rc = run_layer_back(call, &s, &s.first, x, W0, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&l0, kernel_input(s.grad), dy, dx, err);
    return rc;
}

const struct expert_class expert_class_ffn = {
    .name = "ffn",
    .describe = describe,
    .measure = measure,
    .forward = forward,
    .backward = backward,
    .is_bounded = true,
};
