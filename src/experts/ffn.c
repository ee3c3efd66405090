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
    float *pre; /* before the norm; forward only: the same memory as `post` */
    float *post;
    float *mean;
    float *rstd;
};

struct scratch {
    struct layer first;
    struct layer second;
    float *grad;   /* of a wide layer; backward only */
    float *linear; /* kernel_linear()'s */
    float *norm;   /* kernel_norm_backward()'s */
};

static struct layer cut_layer(struct workspace *ws, size_t rows, size_t wide, bool backward)
{
    struct layer l;

    l.pre = workspace_cut(ws, rows * wide);
    l.post = backward ? workspace_cut(ws, rows * wide) : l.pre;
    l.mean = workspace_cut(ws, rows);
    l.rstd = workspace_cut(ws, rows);
    return l;
}

static struct scratch cut_scratch(const struct expert_call *call, bool backward)
{
    size_t wide = call->plan->dims[WIDE];
    struct scratch s = {0};

    s.first = cut_layer(call->ws, call->rows, wide, backward);
    s.second = cut_layer(call->ws, call->rows, wide, backward);
    s.linear = workspace_cut(call->ws, kernel_linear_scratch(call->rows, wide, wide));
    if (backward) {
        s.grad = workspace_cut(call->ws, call->rows * wide);
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

/* weight: the number of the linear's; its bias and the norm's two follow. */
static skep_status run_layer(const struct expert_call *call, const struct layer *l, const float *x,
                             size_t in, int weight, float *scratch, struct skep_error *err)
{
    const struct simd_norm norm = layer_norm(call, weight + 2);
    skep_status rc = kernel_linear(x, call->params[weight], call->params[weight + 1], NULL, l->pre,
                                   call->rows, in, norm.n, scratch, err);

    if (rc == SKEP_OK)
        kernel_norm(&norm, l->pre, call->rows, l->post, l->mean, l->rstd);
    return rc;
}

static skep_status run_hidden(const struct expert_call *call, const struct scratch *s,
                              struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[0]);
    skep_status rc = run_layer(call, &s->first, x, call->plan->dims[HIDDEN], W0, s->linear, err);

    if (rc == SKEP_OK)
        rc = run_layer(call, &s->second, s->first.post, call->plan->dims[WIDE], W3, s->linear, err);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);
    skep_status rc = run_hidden(call, &s, err);

    if (rc != SKEP_OK)
        return rc;
    return kernel_linear(s.second.post, call->params[W6], call->params[B6],
                         skep_tensor_data(&call->inputs[0]), skep_tensor_data(&call->outputs[0]),
                         call->rows, call->plan->dims[WIDE], call->plan->dims[HIDDEN], s.linear,
                         err);
}

/* Through ReLU, norm and the linear's own parameters; s->grad goes from post to pre. */
static skep_status run_layer_back(const struct expert_call *call, const struct scratch *s,
                                  const struct layer *l, const float *x, size_t in, int weight,
                                  struct skep_error *err)
{
    const struct simd_norm norm = layer_norm(call, weight + 2);
    const struct norm_grads grads = {
        .weight = call->grads[weight + 2],
        .bias = call->grads[weight + 3],
        .sum = call->grads[weight + 1],
    };

    kernel_norm_backward(&norm, l->pre, l->post, l->mean, l->rstd, call->rows, s->grad, &grads,
                         s->norm);
    return kernel_linear_grad_weight(s->grad, x, call->grads[weight], call->rows, in, norm.n, err);
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const size_t rows = call->rows;
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    const float *x = skep_tensor_data(&call->inputs[0]);
    const float *dy = skep_tensor_data(&call->grad_outputs[0]);
    struct scratch s = cut_scratch(call, true);
    /* The output itself is not needed, so forward runs again without its last product. */
    skep_status rc = run_hidden(call, &s, err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_weight(dy, s.second.post, call->grads[W6], rows, wide, hidden, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(dy, call->params[W6], NULL, s.grad, rows, wide, hidden, err);
    if (rc == SKEP_OK)
        rc = run_layer_back(call, &s, &s.second, s.first.post, wide, W3, err);
    if (rc != SKEP_OK)
        return rc;
    kernel_column_sums(dy, rows, hidden, call->grads[B6]);
    /* The second layer's activations are done with: the next gradient takes their place. */
    float *next = s.second.pre;
    rc = kernel_linear_grad_input(s.grad, call->params[W3], NULL, next, rows, wide, wide, err);
    s.grad = next;
    if (rc == SKEP_OK)
        rc = run_layer_back(call, &s, &s.first, x, hidden, W0, err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(s.grad, call->params[W0], dy,
                                      skep_tensor_data(&call->grad_inputs[0]), rows, hidden, wide,
                                      err);
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
