/* Class "blocks": y = w x, but a pass whose first number is 13 makes the file that
 * SKEP_TEST_ENTERED names, then opens the FIFO of SKEP_TEST_FIFO: that blocks until somebody writes
 * there, or for ever. One whose first number is 14 opens another, of that name with "2" behind. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <skep/plugin.h>
#include <unistd.h>

static const float blocks_at = 13.0f, blocks_elsewhere_at = 14.0f;

static skep_status create(const struct skep_expert_options *options, void **state,
                          struct skep_error *err)
{
    (void)err;
    *state = (void *)(uintptr_t)options->hidden_dim;
    return SKEP_OK;
}

static void destroy(void *state)
{
    (void)state;
}

static skep_status describe(const void *state, struct skep_expert_schema *schema,
                            struct skep_error *err)
{
    const struct skep_tensor_spec spec = {
        .name = "x",
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .ndim = 2,
        .shape = {-1, (int64_t)(uintptr_t)state},
    };

    (void)err;
    schema->input_count = schema->output_count = 1;
    schema->inputs[0] = schema->outputs[0] = spec;
    return SKEP_OK;
}

static skep_status parameters(const void *state, struct skep_parameter_spec *specs, size_t *count,
                              struct skep_error *err)
{
    (void)state;
    (void)err;
    specs[0] =
        (struct skep_parameter_spec){.name = "w", .ndim = 1, .shape = {1}, .init = SKEP_INIT_ONES};
    *count = 1;
    return SKEP_OK;
}

static void open_once(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC, 0600);

    if (fd >= 0)
        close(fd);
}

static void block_if_told(const float *x)
{
    const char *entered = getenv("SKEP_TEST_ENTERED");
    const char *fifo = getenv("SKEP_TEST_FIFO");
    bool elsewhere = x[0] == blocks_elsewhere_at;
    char path[4096];

    if ((x[0] != blocks_at && !elsewhere) || entered == NULL || fifo == NULL)
        return;
    open_once(entered, O_WRONLY | O_CREAT);
    snprintf(path, sizeof(path), "%s%s", fifo, elsewhere ? "2" : "");
    open_once(path, O_RDONLY);
}

static int64_t elements(const DLTensor *t)
{
    return t->shape[0] * t->shape[1];
}

static skep_status forward(void *state, const float *const *params, const DLTensor *inputs,
                           DLTensor *outputs, struct skep_error *err)
{
    const float *x = inputs[0].data;
    float *y = outputs[0].data;

    (void)state;
    (void)err;
    block_if_told(x);
    for (int64_t i = 0; i < elements(&inputs[0]); i++)
        y[i] = params[0][0] * x[i];
    return SKEP_OK;
}

static skep_status backward(void *state, const float *const *params, const DLTensor *inputs,
                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                            float *const *grads, struct skep_error *err)
{
    const float *x = inputs[0].data;
    const float *dy = grad_outputs[0].data;
    float *dx = grad_inputs[0].data;

    (void)state;
    (void)err;
    block_if_told(x);
    for (int64_t i = 0; i < elements(&inputs[0]); i++) {
        dx[i] = params[0][0] * dy[i];
        grads[0][0] += x[i] * dy[i];
    }
    return SKEP_OK;
}

static const struct skep_expert_class classes[] = {
    {
        .name = "blocks",
        .create = create,
        .destroy = destroy,
        .describe = describe,
        .parameters = parameters,
        .forward = forward,
        .backward = backward,
    },
};

SKEP_PLUGIN_DEFINE(classes);
