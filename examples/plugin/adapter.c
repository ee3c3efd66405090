/*
 * An expert class of one's own: a low-rank adapter, as those that fine-tune large models,
 *
 *     y = gain * x + up(down(x))        down: h -> rank, up: rank -> h
 *
 * with three trained parameters. --intermediate-dim is the rank, 16 if it is not given. Built
 * against Skep's public headers only; nothing of Skep is linked.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <skep/plugin.h>

enum { DOWN, UP, GAIN }; /* parameters */
enum { DEFAULT_RANK = 16, MAX_RANK = 4096 };

struct adapter {
    size_t hidden;
    size_t rank;
};

/* A plugin makes its errors itself: a status, and a sentence that says what was wrong. */
static skep_status fail(struct skep_error *err, skep_status status, const char *what)
{
    err->status = status;
    snprintf(err->message, sizeof(err->message), "%s", what);
    return status;
}

static skep_status create(const struct skep_expert_options *options, void **state,
                          struct skep_error *err)
{
    int64_t rank = options->intermediate_dim > 0 ? options->intermediate_dim : DEFAULT_RANK;
    struct adapter *a;

    if (rank > MAX_RANK)
        return fail(err, SKEP_INVALID_ARGUMENT, "intermediate_dim: expected a rank of 1 to 4096");
    a = malloc(sizeof(*a));
    if (a == NULL)
        return fail(err, SKEP_RESOURCE_EXHAUSTED, "no memory");
    a->hidden = (size_t)options->hidden_dim;
    a->rank = (size_t)rank;
    *state = a;
    return SKEP_OK;
}

static skep_status describe(const void *state, struct skep_expert_schema *schema,
                            struct skep_error *err)
{
    const struct adapter *a = state;
    const struct skep_tensor_spec spec = {
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .ndim = 2,
        .shape = {-1, (int64_t)a->hidden}, /* any number of rows */
    };

    (void)err;
    schema->input_count = schema->output_count = 1;
    schema->inputs[0] = schema->outputs[0] = spec;
    snprintf(schema->inputs[0].name, sizeof(schema->inputs[0].name), "%s", "x");
    snprintf(schema->outputs[0].name, sizeof(schema->outputs[0].name), "%s", "y");
    return SKEP_OK;
}

static skep_status parameters(const void *state, struct skep_parameter_spec *specs, size_t *count,
                              struct skep_error *err)
{
    const struct adapter *a = state;
    const int64_t hidden = (int64_t)a->hidden;
    const int64_t rank = (int64_t)a->rank;

    (void)err;
    specs[DOWN] = (struct skep_parameter_spec){
        .name = "down.weight",
        .ndim = 2,
        .shape = {rank, hidden},
        .init = SKEP_INIT_UNIFORM,
        .bound = 1.0f / sqrtf((float)hidden),
    };
    specs[UP] = (struct skep_parameter_spec){
        .name = "up.weight", .ndim = 2, .shape = {hidden, rank}, .init = SKEP_INIT_ZEROS};
    specs[GAIN] = (struct skep_parameter_spec){
        .name = "gain", .ndim = 1, .shape = {hidden}, .init = SKEP_INIT_ONES};
    *count = 3;
    return SKEP_OK;
}

static float *data(const DLTensor *t)
{
    return (float *)(void *)((char *)t->data + t->byte_offset);
}

/* out[rank] = down x */
static void project(const struct adapter *a, const float *down, const float *x, float *out)
{
    for (size_t r = 0; r < a->rank; r++) {
        out[r] = 0.0f;
        for (size_t j = 0; j < a->hidden; j++)
            out[r] += down[r * a->hidden + j] * x[j];
    }
}

static skep_status forward(void *state, const float *const *params, const DLTensor *inputs,
                           DLTensor *outputs, struct skep_error *err)
{
    const struct adapter *a = state;
    float low[MAX_RANK];

    (void)err;
    for (int64_t row = 0; row < inputs[0].shape[0]; row++) {
        const float *x = data(&inputs[0]) + (size_t)row * a->hidden;
        float *y = data(&outputs[0]) + (size_t)row * a->hidden;
        project(a, params[DOWN], x, low);
        for (size_t j = 0; j < a->hidden; j++) {
            y[j] = params[GAIN][j] * x[j];
            for (size_t r = 0; r < a->rank; r++)
                y[j] += params[UP][j * a->rank + r] * low[r];
        }
    }
    return SKEP_OK;
}

/* One row: adds to the parameters' gradients, writes that of x. */
static void backward_row(const struct adapter *a, const float *const *params, const float *x,
                         const float *dy, float *dx, float *const *grads)
{
    float low[MAX_RANK];
    float d_low[MAX_RANK] = {0};

    project(a, params[DOWN], x, low);
    for (size_t j = 0; j < a->hidden; j++) {
        dx[j] = params[GAIN][j] * dy[j];
        grads[GAIN][j] += dy[j] * x[j];
        for (size_t r = 0; r < a->rank; r++) {
            grads[UP][j * a->rank + r] += dy[j] * low[r];
            d_low[r] += dy[j] * params[UP][j * a->rank + r];
        }
    }
    for (size_t r = 0; r < a->rank; r++)
        for (size_t j = 0; j < a->hidden; j++) {
            grads[DOWN][r * a->hidden + j] += d_low[r] * x[j];
            dx[j] += d_low[r] * params[DOWN][r * a->hidden + j];
        }
}

static skep_status backward(void *state, const float *const *params, const DLTensor *inputs,
                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                            float *const *grads, struct skep_error *err)
{
    const struct adapter *a = state;

    (void)err;
    for (int64_t row = 0; row < inputs[0].shape[0]; row++) {
        size_t at = (size_t)row * a->hidden;
        backward_row(a, params, data(&inputs[0]) + at, data(&grad_outputs[0]) + at,
                     data(&grad_inputs[0]) + at, grads);
    }
    return SKEP_OK;
}

static const struct skep_expert_class classes[] = {
    {
        .name = "adapter",
        .is_bounded = true,
        .create = create,
        .destroy = free,
        .describe = describe,
        .parameters = parameters,
        .forward = forward,
        .backward = backward,
    },
};

SKEP_PLUGIN_DEFINE(classes);
