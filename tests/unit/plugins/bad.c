/* Plugins with one fault each, chosen by FAULT; FAULT 0 is one without. Class "scale": y = w x. */
#include <math.h>
#include <skep/plugin.h>
#include <stdio.h>

enum {
    OTHER_VERSION = 1,
    CREATE_FAILS,
    TAKEN_NAME,
    BAD_NAME,
    LACKS_FORWARD,
    NO_INPUTS,
    OPEN_BATCH_MISSING,
    EQUAL_PARAMETERS,
    TOO_MANY_PARAMETERS,
    MOVES_OUTPUT,
    STRANGE_STATUS,
    BACKWARD_FAILS,
    NO_CLASSES,
    WRITES_NAN,
};

static int living; /* states; read by the test through skep_test_living */
__attribute__((visibility("default"))) int skep_test_living(void);
int skep_test_living(void)
{
    return living;
}

static skep_status create(const struct skep_expert_options *options, void **state,
                          struct skep_error *err)
{
    if (FAULT == CREATE_FAILS) {
        snprintf(err->message, sizeof(err->message), "%s", "the moon is in the wrong phase");
        return SKEP_FAILED_PRECONDITION;
    }
    living++;
    *state = (void *)(uintptr_t)options->hidden_dim;
    return SKEP_OK;
}

static void destroy(void *state)
{
    (void)state;
    living--;
}

static skep_status describe(const void *state, struct skep_expert_schema *schema,
                            struct skep_error *err)
{
    const struct skep_tensor_spec spec = {
        .name = "x",
        .dtype = {.code = kDLFloat, .bits = 32, .lanes = 1},
        .ndim = 2,
        .shape = {FAULT == OPEN_BATCH_MISSING ? 4 : -1, (int64_t)(uintptr_t)state},
    };

    (void)err;
    schema->input_count = FAULT == NO_INPUTS ? 0 : 1;
    schema->output_count = 1;
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
    specs[1] = specs[0];
    *count = FAULT == EQUAL_PARAMETERS      ? 2
             : FAULT == TOO_MANY_PARAMETERS ? SKEP_EXPERT_MAX_PARAMETERS + 1
                                            : 1;
    return SKEP_OK;
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
    if (FAULT == STRANGE_STATUS)
        return (skep_status)4711;
    for (int64_t i = 0; i < elements(&inputs[0]); i++)
        y[i] = FAULT == WRITES_NAN ? NAN : params[0][0] * x[i];
    if (FAULT == MOVES_OUTPUT)
        outputs[0].shape[0] = 1;
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
    if (FAULT == BACKWARD_FAILS)
        return SKEP_INTERNAL;
    for (int64_t i = 0; i < elements(&inputs[0]); i++) {
        dx[i] = params[0][0] * dy[i];
        grads[0][0] += x[i] * dy[i];
    }
    return SKEP_OK;
}

static const struct skep_expert_class classes[] = {
    {
        .name = FAULT == TAKEN_NAME ? "ffn"
                : FAULT == BAD_NAME ? "sca le"
                                    : CLASS_NAME,
        .create = create,
        .destroy = destroy,
        .describe = describe,
        .parameters = parameters,
        .forward = FAULT == LACKS_FORWARD ? NULL : forward,
        .backward = backward,
    },
};

#if FAULT == 1
SKEP_API extern const struct skep_plugin skep_plugin;
const struct skep_plugin skep_plugin = {SKEP_PLUGIN_ABI + 1, 1, classes};
#elif FAULT == 13
SKEP_API extern const struct skep_plugin skep_plugin;
const struct skep_plugin skep_plugin = {SKEP_PLUGIN_ABI, 0, classes};
#else
SKEP_PLUGIN_DEFINE(classes);
#endif
