/*
 * The class "transformer": a post-norm encoder layer without dropout, batch first, any length of
 * sequence, optionally with a mask of keys to ignore. Source: tests/golden/README.md, section 3.
 *
 *     [q | k | v] = in_proj(x)     a = x + out_proj(attention)     n = norm1(a)
 *     y = norm2(n + linear2(gelu(linear1(n))))
 */
#include "experts/class.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/tensor.h"
#include "experts/attention.h"
#include "experts/kernels.h"

enum { HIDDEN, WIDE, HEADS, MASKED, MAX_SEQ }; /* in plan->dims */
enum { X, MASK };                              /* inputs */

/* In PyTorch's order. */
enum { W_IN, B_IN, W_OUT, B_OUT, W1, B1, W2, B2, NW1, NB1, NW2, NB2 };

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const int64_t h = options->hidden_dim;
    const int64_t heads = h % 16 == 0 ? 16 : 4;
    const int64_t shape[3] = {-1, -1, h};
    /* Xavier uniform, as nn.MultiheadAttention initializes the packed projection. */
    const float xavier = (float)sqrt(6.0 / (double)(h + 3 * h));

    if (h % heads != 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "hidden_dim: %" PRId64 ", expected a multiple of 4 (the heads) for class "
                         "transformer",
                         h);
    if (options->max_sequence < 1)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "max_sequence: %" PRId64 ", expected 1 or more", options->max_sequence);
    plan->dims[MAX_SEQ] = (size_t)options->max_sequence;
    plan->dims[HIDDEN] = (size_t)h;
    plan->dims[WIDE] = 4 * (size_t)h;
    plan->dims[HEADS] = (size_t)heads;
    plan->dims[MASKED] = options->padding_mask;
    plan_add_input(plan, "x", DTYPE_F32, 3, shape);
    if (options->padding_mask)
        plan_add_input(plan, "padding_mask", (DLDataType){SKEP_DL_BOOL, 8, 1}, 2, shape);
    plan_add_output(plan, "y", DTYPE_F32, 3, shape);
    plan_add_parameter(plan, "self_attn.in_proj_weight", 3 * h, h, EXPERT_INIT_UNIFORM, xavier);
    plan_add_parameter(plan, "self_attn.in_proj_bias", 3 * h, 0, EXPERT_INIT_ZEROS, 0.0f);
    plan_add_linear(plan, "self_attn.out_proj", h, h, true);
    plan->parameters[B_OUT].init = EXPERT_INIT_ZEROS;
    plan_add_linear(plan, "linear1", h, 4 * h, true);
    plan_add_linear(plan, "linear2", 4 * h, h, true);
    plan_add_norm(plan, "norm1", h);
    plan_add_norm(plan, "norm2", h);
    return SKEP_OK;
}

/* A layer norm's input, output and statistics. Forward only: the output takes its input's place. */
struct norm_state {
    float *in;
    float *out;
    float *mean;
    float *rstd;
};

struct scratch {
    size_t positions; /* rows * sequence length */
    size_t seq;
    float *qkv;
    float *heads; /* the attention's result */
    struct norm_state first;
    float *wide;              /* before gelu */
    struct kernel_values act; /* after; float32 in forward only: the same memory as `wide` */
    struct norm_state second;
    float *d_wide; /* backward only, as are the two below */
    float *d_qkv;
    float *norm;      /* kernel_norm_backward()'s */
    float *linear;    /* kernel_linear()'s */
    float *attention; /* attention.h's */
};

static struct norm_state cut_norm(const struct expert_call *call, size_t positions, bool backward)
{
    struct norm_state n;

    n.in = workspace_cut(call->ws, positions * call->plan->dims[HIDDEN]);
    n.out = backward ? workspace_cut(call->ws, positions * call->plan->dims[HIDDEN]) : n.in;
    n.mean = workspace_cut(call->ws, positions);
    n.rstd = workspace_cut(call->ws, positions);
    return n;
}

static struct scratch cut_scratch(const struct expert_call *call, bool backward)
{
    struct workspace *ws = call->ws;
    const size_t hidden = call->plan->dims[HIDDEN];
    const size_t wide = call->plan->dims[WIDE];
    const size_t seq = (size_t)call->inputs[X].shape[1];
    const size_t n = call->rows * seq;
    struct scratch s = {.positions = n, .seq = seq};

    s.qkv = workspace_cut(ws, n * 3 * hidden);
    s.heads = workspace_cut(ws, n * hidden);
    s.first = cut_norm(call, n, backward);
    s.wide = workspace_cut(ws, n * wide);
    if (backward || call_takes_half(call))
        s.act = call_cut_values(call, n * wide);
    else
        s.act.full = s.wide;
    s.second = cut_norm(call, n, backward);
    s.linear = workspace_cut(ws, call_linear_scratch(call, n, hidden, wide));
    s.attention = workspace_cut(ws, attention_scratch(seq));
    if (backward) {
        s.d_wide = workspace_cut(ws, n * wide);
        s.d_qkv = workspace_cut(ws, n * 3 * hidden);
        s.norm = workspace_cut(ws, kernel_norm_backward_scratch(hidden));
    }
    return s;
}

static void measure(const struct expert_call *call, bool backward)
{
    (void)cut_scratch(call, backward);
}

static struct attention attention_of(const struct expert_call *call, const struct scratch *s)
{
    return (struct attention){
        .batch = call->rows,
        .seq = s->seq,
        .heads = call->plan->dims[HEADS],
        .width = call->plan->dims[HIDDEN],
        .qkv = s->qkv,
        .ignored = call->plan->dims[MASKED] ? skep_tensor_data(&call->inputs[MASK]) : NULL,
        .scratch = s->attention,
    };
}

static struct simd_norm norm_of(const struct expert_call *call, int weight)
{
    return (struct simd_norm){
        .weight = call->params[weight],
        .bias = call->params[weight + 1],
        .n = call->plan->dims[HIDDEN],
        .eps = EXPERT_NORM_EPS,
    };
}

static struct kernel_linear linear_of(const struct expert_call *call, int weight,
                                      const struct scratch *s)
{
    return call_linear(call, (size_t)weight, true, s->positions, s->linear);
}

static skep_status check(const struct expert_call *call, struct skep_error *err)
{
    const int64_t seq = call->inputs[X].shape[1];

    if (seq > (int64_t)call->plan->dims[MAX_SEQ])
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "input 0 (x): sequence length %" PRId64 ", expected at most %zu", seq,
                         call->plan->dims[MAX_SEQ]);
    if (!call->plan->dims[MASKED] || call->inputs[MASK].shape[1] == seq)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "input 1 (padding_mask): sequence length %" PRId64 ", expected %" PRId64
                     " as in input 0",
                     call->inputs[MASK].shape[1], seq);
}

/* From x to norm1's output. */
static skep_status run_attention(const struct expert_call *call, const struct scratch *s,
                                 struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[X]);
    const struct attention a = attention_of(call, s);
    const struct simd_norm norm = norm_of(call, NW1);
    const struct kernel_linear in = linear_of(call, W_IN, s);
    const struct kernel_linear out = linear_of(call, W_OUT, s);
    skep_status rc = kernel_linear(&in, kernel_floats(x), NULL, s->qkv, err);

    if (rc == SKEP_OK)
        rc = attention_forward(&a, s->heads, err);
    if (rc == SKEP_OK)
        rc = kernel_linear(&out, kernel_floats(s->heads), x, s->first.in, err);
    if (rc == SKEP_OK)
        kernel_norm(&norm, s->first.in, s->positions, kernel_to(s->first.out), s->first.mean,
                    s->first.rstd);
    return rc;
}

/* From norm1's output to norm2's input. */
static skep_status run_feed_forward(const struct expert_call *call, const struct scratch *s,
                                    struct skep_error *err)
{
    const struct kernel_linear l1 = linear_of(call, W1, s);
    const struct kernel_linear l2 = linear_of(call, W2, s);
    skep_status rc = kernel_linear(&l1, kernel_floats(s->first.out), NULL, s->wide, err);

    if (rc != SKEP_OK)
        return rc;
    kernel_map_to(simd_ops()->gelu, s->wide, NULL, s->act, s->positions * call->plan->dims[WIDE]);
    return kernel_linear(&l2, kernel_input(s->act), s->first.out, s->second.in, err);
}

static skep_status run(const struct expert_call *call, const struct scratch *s, float *y,
                       struct skep_error *err)
{
    const struct simd_norm norm = norm_of(call, NW2);
    skep_status rc = run_attention(call, s, err);

    if (rc == SKEP_OK)
        rc = run_feed_forward(call, s, err);
    if (rc == SKEP_OK)
        kernel_norm(&norm, s->second.in, s->positions, kernel_to(y), s->second.mean,
                    s->second.rstd);
    return rc;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, false);

    return run(call, &s, skep_tensor_data(&call->outputs[0]), err);
}

/* dz, the gradient of norm2's input, becomes that of norm1's output in dn. */
static skep_status feed_forward_back(const struct expert_call *call, const struct scratch *s,
                                     const float *dz, float *dn, struct skep_error *err)
{
    const size_t n = s->positions;
    const size_t wide = call->plan->dims[WIDE];
    const struct kernel_linear l1 = linear_of(call, W1, s);
    const struct kernel_linear l2 = linear_of(call, W2, s);
    skep_status rc = kernel_linear_grad_weight(&l2, kernel_floats(dz), kernel_input(s->act),
                                               call->grads[W2], err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&l2, kernel_floats(dz), NULL, s->d_wide, err);
    if (rc != SKEP_OK)
        return rc;
    kernel_map(simd_ops()->gelu_backward, s->wide, NULL, s->d_wide, NULL, n * wide);
    kernel_column_sums(s->d_wide, n, wide, call->grads[B1]);
    rc = kernel_linear_grad_weight(&l1, kernel_floats(s->d_wide), kernel_floats(s->first.out),
                                   call->grads[W1], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&l1, kernel_floats(s->d_wide), dz, dn, err);
    return rc;
}

/* da, the gradient of norm1's input, becomes that of x in dx. `spare` holds positions * hidden. */
static skep_status attention_back(const struct expert_call *call, const struct scratch *s,
                                  const float *da, float *spare, float *dx, struct skep_error *err)
{
    const float *x = skep_tensor_data(&call->inputs[X]);
    const struct attention a = attention_of(call, s);
    const struct kernel_linear in = linear_of(call, W_IN, s);
    const struct kernel_linear out = linear_of(call, W_OUT, s);
    skep_status rc = kernel_linear_grad_weight(&out, kernel_floats(da), kernel_floats(s->heads),
                                               call->grads[W_OUT], err);

    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&out, kernel_floats(da), NULL, spare, err);
    if (rc == SKEP_OK)
        rc = attention_backward(&a, spare, s->d_qkv, err);
    if (rc != SKEP_OK)
        return rc;
    kernel_column_sums(s->d_qkv, s->positions, 3 * call->plan->dims[HIDDEN], call->grads[B_IN]);
    rc = kernel_linear_grad_weight(&in, kernel_floats(s->d_qkv), kernel_floats(x),
                                   call->grads[W_IN], err);
    if (rc == SKEP_OK)
        rc = kernel_linear_grad_input(&in, kernel_floats(s->d_qkv), da, dx, err);
    return rc;
}

/* grad becomes the gradient of the norm's input; its column sums are those of the bias before. */
static void norm_back(const struct expert_call *call, const struct scratch *s,
                      const struct norm_state *state, int weight, int bias_before, float *grad)
{
    const struct simd_norm norm = norm_of(call, weight);

    kernel_norm_backward(&(struct kernel_norm_back){
        .norm = &norm,
        .x = state->in,
        .y = kernel_floats(NULL),
        .mean = state->mean,
        .rstd = state->rstd,
        .rows = s->positions,
        .grad = kernel_to(grad),
        .scratch = s->norm,
        .d_weight = call->grads[weight],
        .d_bias = call->grads[weight + 1],
        .d_sum = call->grads[bias_before],
    });
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    struct scratch s = cut_scratch(call, true);
    skep_status rc = run(call, &s, s.second.out, err);
    float *dz = s.second.out; /* the output itself is not needed again */
    float *dn = s.first.out;  /* nor is norm1's, once linear1's gradients are made */
    float *dx = skep_tensor_data(&call->grad_inputs[X]);

    if (rc != SKEP_OK)
        return rc;
    memcpy(dz, skep_tensor_data(&call->grad_outputs[0]),
           s.positions * call->plan->dims[HIDDEN] * sizeof(*dz));
    norm_back(call, &s, &s.second, NW2, B2, dz);
    rc = feed_forward_back(call, &s, dz, dn, err);
    if (rc != SKEP_OK)
        return rc;
    norm_back(call, &s, &s.first, NW1, B_OUT, dn);
    rc = attention_back(call, &s, dn, dz, dx, err);
    if (rc == SKEP_OK && call->plan->dims[MASKED])
        memset(skep_tensor_data(&call->grad_inputs[MASK]), 0, s.positions);
    return rc;
}

const struct expert_class expert_class_transformer = {
    .name = "transformer",
    .describe = describe,
    .check = check,
    .measure = measure,
    .forward = forward,
    .backward = backward,
    .is_bounded = false, /* time grows with the square of the sequence length, not with rows */
};
