/* The known expert classes, and what their describe() functions share. */
#include "experts/class.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "experts/init.h"
#include "experts/plugin.h"

static const struct expert_class *const classes[] = {
    &expert_class_ffn,    &expert_class_transformer, &expert_class_det_dropout,
    &expert_class_swiglu, &expert_class_nop,
};

enum { CLASS_COUNT = sizeof(classes) / sizeof(classes[0]) };

const struct expert_class *expert_class_at(size_t i)
{
    return i < CLASS_COUNT ? classes[i] : NULL;
}

skep_status expert_class_find(const char *name, const struct expert_class **out,
                              struct skep_error *err)
{
    char known[256] = "";
    size_t used = 0;

    for (size_t i = 0; i < CLASS_COUNT; i++) {
        if (name != NULL && strcmp(classes[i]->name, name) == 0) {
            *out = classes[i];
            return SKEP_OK;
        }
        if (used < sizeof(known))
            used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                                     classes[i]->name);
    }
    *out = name != NULL ? plugin_class_find(name) : NULL;
    if (*out != NULL)
        return SKEP_OK;
    (void)plugin_class_names(known, used < sizeof(known) ? used : sizeof(known), sizeof(known));
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "expert class: \"%s\" is not known, expected one of %s",
                     name != NULL ? name : "(none)", known);
}

static void set_spec(struct skep_tensor_spec *spec, const char *name, DLDataType dtype, int ndim,
                     const int64_t *shape)
{
    assert(ndim >= 1 && ndim <= SKEP_TENSOR_MAX_DIMS && shape[0] == -1);
    snprintf(spec->name, sizeof(spec->name), "%s", name);
    spec->dtype = dtype;
    spec->ndim = ndim;
    memcpy(spec->shape, shape, (size_t)ndim * sizeof(*shape));
}

void plan_add_input(struct expert_plan *plan, const char *name, DLDataType dtype, int ndim,
                    const int64_t *shape)
{
    assert(plan->schema.input_count < SKEP_EXPERT_MAX_TENSORS);
    set_spec(&plan->schema.inputs[plan->schema.input_count++], name, dtype, ndim, shape);
}

void plan_add_output(struct expert_plan *plan, const char *name, DLDataType dtype, int ndim,
                     const int64_t *shape)
{
    assert(plan->schema.output_count < SKEP_EXPERT_MAX_TENSORS);
    set_spec(&plan->schema.outputs[plan->schema.output_count++], name, dtype, ndim, shape);
}

void plan_add_parameter(struct expert_plan *plan, const char *name, int64_t rows, int64_t cols,
                        enum expert_init init, float bound)
{
    assert(plan->parameter_count < EXPERT_MAX_PARAMETERS);
    struct expert_parameter *p = &plan->parameters[plan->parameter_count++];

    snprintf(p->name, sizeof(p->name), "%s", name);
    p->ndim = cols > 0 ? 2 : 1;
    p->shape[0] = rows;
    p->shape[1] = cols;
    p->init = init;
    p->bound = bound;
}

void plan_add_linear(struct expert_plan *plan, const char *name, int64_t in, int64_t out, bool bias)
{
    char full[EXPERT_PARAMETER_NAME_BYTES];
    float bound = init_linear_bound(in);

    snprintf(full, sizeof(full), "%s.weight", name);
    plan_add_parameter(plan, full, out, in, EXPERT_INIT_UNIFORM, bound);
    snprintf(full, sizeof(full), "%s.bias", name);
    if (bias)
        plan_add_parameter(plan, full, out, 0, EXPERT_INIT_UNIFORM, bound);
}

void plan_add_norm(struct expert_plan *plan, const char *name, int64_t n)
{
    char full[EXPERT_PARAMETER_NAME_BYTES];

    snprintf(full, sizeof(full), "%s.weight", name);
    plan_add_parameter(plan, full, n, 0, EXPERT_INIT_ONES, 0.0f);
    snprintf(full, sizeof(full), "%s.bias", name);
    plan_add_parameter(plan, full, n, 0, EXPERT_INIT_ZEROS, 0.0f);
}

struct kernel_linear call_linear(const struct expert_call *call, size_t weight, bool has_bias,
                                 size_t rows, float *scratch)
{
    const struct expert_parameter *p = &call->plan->parameters[weight];

    return (struct kernel_linear){
        .weight = call->params[weight],
        .bias = has_bias ? call->params[weight + 1] : NULL,
        .half = call->half != NULL ? &call->half[weight] : NULL,
        .rows = rows,
        .in = (size_t)p->shape[1],
        .out = (size_t)p->shape[0],
        .scratch = scratch,
    };
}

size_t call_linear_scratch(const struct expert_call *call, size_t rows, size_t in, size_t out)
{
    return kernel_linear_scratch(rows, in, out, call->half != NULL);
}

bool call_takes_half(const struct expert_call *call)
{
    return call->half != NULL && kernel_takes_half();
}

struct kernel_values call_cut_values(const struct expert_call *call, size_t count)
{
    struct kernel_values v = {NULL, NULL};

    if (call_takes_half(call))
        v.half = (uint16_t *)workspace_cut(call->ws, count / 2 + 1);
    else
        v.full = workspace_cut(call->ws, count);
    return v;
}
