/*
 * An expert: its class's plan, one flat array of parameters, the optimizer. Each parameter starts
 * at a multiple of 64 bytes in the array; the gaps are zeros in parameters and gradients alike, so
 * that the optimizer sweeps over the whole array without knowing of them.
 */
#include "experts/expert_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/init.h"

enum {
    MIN_HIDDEN = 1,
    MAX_HIDDEN = 65536,
    PARAMETER_ALIGN = 16, /* elements */
};

void skep_expert_options_init(struct skep_expert_options *options)
{
    *options = (struct skep_expert_options){
        .size = sizeof(*options),
        .cls = "ffn",
        .hidden_dim = 1024,
        .seed = 0,
        .optimizer = "adam",
        .learning_rate = 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .weight_decay = -1.0,
        .schedule = "none",
        .max_sequence = 32768,
        .precision = "float32",
    };
}

/* Options of a caller compiled against another version: what it does not know has its default. */
static skep_status read_options(const struct skep_expert_options *in,
                                struct skep_expert_options *out, struct skep_error *err)
{
    const size_t first_version = offsetof(struct skep_expert_options, eps) + sizeof(double);

    skep_expert_options_init(out);
    skep_status rc = error_if_null(in, "options", err);
    if (rc != SKEP_OK)
        return rc;
    if (in->size < first_version)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "expert options: size %zu, expected %zu: use skep_expert_options_init()",
                         in->size, sizeof(*in));
    memcpy(out, in, in->size < sizeof(*out) ? in->size : sizeof(*out));
    out->size = sizeof(*out);
    return SKEP_OK;
}

/* Sizes and places of the parameters. SKEP_RESOURCE_EXHAUSTED if they overflow. */
static skep_status lay_out(struct expert *e, struct skep_error *err)
{
    size_t total = 0;
    uint64_t parameters = 0;

    for (size_t i = 0; i < e->plan.parameter_count; i++) {
        const struct expert_parameter *p = &e->plan.parameters[i];
        size_t padded;

        if (!shape_count(p->ndim, p->shape, &e->count[i]) ||
            !size_add(e->count[i], PARAMETER_ALIGN - 1, &padded) ||
            !size_add(total, padded, &padded) || padded > SIZE_MAX / 64)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                             "expert class %s: parameter %s does not fit into memory", e->cls->name,
                             p->name);
        e->offset[i] = total;
        parameters += e->count[i];
        total = padded / PARAMETER_ALIGN * PARAMETER_ALIGN;
    }
    e->total = total;
    e->parameter_count = parameters + e->plan.owned_parameters;
    return SKEP_OK;
}

static skep_status check_precision(const char *name, bool *is_half, struct skep_error *err)
{
    *is_half = name != NULL && strcmp(name, "bfloat16") == 0;
    if (*is_half || (name != NULL && strcmp(name, "float32") == 0))
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "precision: \"%s\" is not known, expected one of float32, bfloat16",
                     name != NULL ? name : "(none)");
}

/* Everything that can be known before memory is allocated for parameters. */
static skep_status plan_expert(const struct skep_expert_options *o, struct expert *e,
                               uint64_t *bytes, struct skep_error *err)
{
    skep_status rc = expert_class_find(o->cls, &e->cls, err);

    if (rc != SKEP_OK)
        return rc;
    if (o->hidden_dim < MIN_HIDDEN || o->hidden_dim > MAX_HIDDEN)
        return error_set(err, SKEP_INVALID_ARGUMENT, "hidden_dim: %" PRId64 ", expected %d to %d",
                         o->hidden_dim, MIN_HIDDEN, MAX_HIDDEN);
    rc = optimizer_check(o, err);
    if (rc == SKEP_OK)
        rc = check_precision(o->precision, &e->is_half, err);
    if (rc == SKEP_OK && e->is_half && e->cls->is_float32_only)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "precision: %s, expected float32 for class %s",
                       o->precision, e->cls->name);
    if (rc == SKEP_OK && o->argument != NULL && !e->cls->takes_argument)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "expert class %s: takes no argument, got \"%s\"",
                       e->cls->name, o->argument);
    e->plan.cls = e->cls;
    if (rc == SKEP_OK)
        rc = e->cls->describe(o, &e->plan, err);
    if (rc == SKEP_OK)
        rc = lay_out(e, err);
    if (rc == SKEP_OK)
        *bytes = (uint64_t)e->total * sizeof(float) * (1 + optimizer_state_floats(o)) +
                 (e->is_half ? half_bytes(e->total) : 0);
    return rc;
}

static void release_plan(struct expert *e)
{
    if (e->cls != NULL && e->cls->release != NULL)
        e->cls->release(&e->plan);
}

/* Linux hands out memory it does not have; touching it then ends the process. */
static skep_status check_fits(const struct expert *e, uint64_t bytes, struct skep_error *err)
{
    long pages = sysconf(_SC_PHYS_PAGES);
    long page = sysconf(_SC_PAGESIZE);
    char needed[TEXT_SIZE_BYTES], all[TEXT_SIZE_BYTES];

    if (pages <= 0 || page <= 0 || bytes <= (uint64_t)pages * (uint64_t)page)
        return SKEP_OK;
    return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                     "expert class %s: its parameters (%" PRIu64
                     ") need %s with their optimizer, this machine has %s",
                     e->cls->name, e->parameter_count, text_size(bytes, true, needed),
                     text_size((uint64_t)pages * (uint64_t)page, false, all));
}

static void initialize(struct expert *e, uint64_t seed)
{
    for (size_t i = 0; i < e->plan.parameter_count; i++) {
        const struct expert_parameter *p = &e->plan.parameters[i];
        float *x = e->values + e->offset[i];
        size_t end = i + 1 < e->plan.parameter_count ? e->offset[i + 1] : e->total;

        e->params[i] = x;
        if (p->init == EXPERT_INIT_UNIFORM)
            init_uniform(x, e->count[i], p->bound, seed, i);
        else
            init_constant(x, e->count[i], p->init == EXPERT_INIT_ONES ? 1.0f : 0.0f);
        init_constant(x + e->count[i], end - e->offset[i] - e->count[i], 0.0f);
    }
}

static skep_status make_half(struct expert *e, struct skep_error *err)
{
    struct half_matrix matrices[EXPERT_MAX_PARAMETERS] = {0};

    for (size_t i = 0; i < e->plan.parameter_count; i++) {
        const struct expert_parameter *p = &e->plan.parameters[i];
        matrices[i].offset = e->offset[i];
        if (p->ndim == 2) {
            matrices[i].out = (size_t)p->shape[0];
            matrices[i].in = (size_t)p->shape[1];
        }
    }
    return half_init(&e->half, e->total, matrices, e->plan.parameter_count, err);
}

/* Copies a name, and lets the option point to the copy. */
static skep_status keep_name(const char **option, const char *what,
                             char out[static SKEP_EXPERT_NAME_BYTES], struct skep_error *err)
{
    const char *name = *option != NULL ? *option : "";

    if (strlen(name) >= SKEP_EXPERT_NAME_BYTES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: a name of %zu bytes, expected at most %d",
                         what, strlen(name), SKEP_EXPERT_NAME_BYTES - 1);
    if (name != out)
        memcpy(out, name, strlen(name) + 1);
    *option = out;
    return SKEP_OK;
}

static skep_status keep_argument(struct expert_settings *s, struct skep_error *err)
{
    const char *text = s->options.argument;

    if (text == NULL)
        return SKEP_OK;
    if (strlen(text) >= sizeof(s->argument))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "expert class: an argument of %zu bytes, expected at most %zu",
                         strlen(text), sizeof(s->argument) - 1);
    memcpy(s->argument, text, strlen(text) + 1);
    s->options.argument = s->argument;
    return SKEP_OK;
}

/* "class:argument", as people write it in one text. */
static skep_status split_class(struct expert_settings *s, struct skep_error *err)
{
    const char *cls = s->options.cls;
    const char *colon = cls != NULL && s->options.argument == NULL ? strchr(cls, ':') : NULL;

    if (colon == NULL)
        return SKEP_OK;
    size_t len = (size_t)(colon - cls);
    if (len >= sizeof(s->cls))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "expert class: a name of %zu bytes, expected at most %d", len,
                         SKEP_EXPERT_NAME_BYTES - 1);
    s->options.argument = colon + 1;
    memcpy(s->cls, cls, len);
    s->cls[len] = '\0';
    s->options.cls = s->cls;
    return SKEP_OK;
}

skep_status expert_settings_init(struct expert_settings *out,
                                 const struct skep_expert_options *options, struct skep_error *err)
{
    skep_status rc = read_options(options, &out->options, err);

    if (rc == SKEP_OK)
        rc = split_class(out, err);
    if (rc == SKEP_OK)
        rc = keep_name(&out->options.cls, "expert class", out->cls, err);
    if (rc == SKEP_OK)
        rc = keep_name(&out->options.optimizer, "optimizer", out->optimizer, err);
    if (rc == SKEP_OK)
        rc = keep_name(&out->options.schedule, "schedule", out->schedule, err);
    if (rc == SKEP_OK)
        rc = keep_name(&out->options.precision, "precision", out->precision, err);
    if (rc == SKEP_OK)
        rc = keep_argument(out, err);
    return rc;
}

skep_status expert_describe(const struct skep_expert_options *options,
                            struct expert_description *out, struct skep_error *err)
{
    struct expert *e = mem_calloc(1, sizeof(*e));

    *out = (struct expert_description){0};
    if (e == NULL)
        return error_no_memory(err, "expert", sizeof(*e));
    skep_status rc = expert_settings_init(&e->settings, options, err);
    if (rc == SKEP_OK)
        rc = plan_expert(&e->settings.options, e, &out->bytes, err);
    out->schema = e->plan.schema;
    out->parameters = e->parameter_count;
    out->gradient_bytes = (uint64_t)e->total * sizeof(float);
    release_plan(e);
    mem_free(e);
    return rc;
}

skep_status expert_memory(const struct skep_expert_options *options, uint64_t *bytes,
                          struct skep_error *err)
{
    struct expert_description d;
    skep_status rc = expert_describe(options, &d, err);

    *bytes = d.bytes;
    return rc;
}

skep_status expert_new(const struct skep_expert_options *options, struct expert **out,
                       struct skep_error *err)
{
    struct expert *e = mem_calloc(1, sizeof(*e));
    const struct skep_expert_options *o;
    uint64_t bytes;

    *out = NULL;
    if (e == NULL)
        return error_no_memory(err, "expert", sizeof(*e));
    snapshot_lock_init(&e->gate);
    o = &e->settings.options;
    skep_status rc = expert_settings_init(&e->settings, options, err);
    if (rc == SKEP_OK)
        rc = plan_expert(o, e, &bytes, err);
    if (rc == SKEP_OK)
        rc = check_fits(e, bytes, err);
    if (rc != SKEP_OK)
        goto out;
    e->values = floats_new(e->total);
    if (e->values == NULL) {
        rc = error_no_memory(err, "parameters", e->total * sizeof(float));
        goto out;
    }
    rc = optimizer_init(&e->optimizer, o, e->total, err);
    if (rc != SKEP_OK)
        goto out;
    if (e->is_half)
        rc = make_half(e, err);
    e->optimizer.follower = e->is_half ? &e->half : NULL;
    if (rc != SKEP_OK)
        goto out;
    initialize(e, o->seed);
    *out = e;
    e = NULL;

out:
    expert_free(e);
    return rc;
}

void expert_free(struct expert *expert)
{
    if (expert == NULL)
        return;
    snapshot_lock_fini(&expert->gate);
    optimizer_fini(&expert->optimizer);
    half_fini(&expert->half);
    release_plan(expert);
    mem_free(expert->values);
    mem_free(expert);
}

const struct skep_expert_schema *expert_schema(const struct expert *expert)
{
    return &expert->plan.schema;
}

const char *expert_class_name(const struct expert *expert)
{
    return expert->cls->name;
}

const char *expert_precision_name(const struct expert *expert)
{
    return expert->is_half ? "bfloat16" : "float32";
}

uint64_t expert_parameter_count(const struct expert *expert)
{
    return expert->parameter_count;
}

/* Relaxed in both: a number for people, nothing else is read because of it. */
uint64_t expert_update_count(const struct expert *expert)
{
    return atomic_load_explicit(&expert->updates, memory_order_relaxed);
}

uint64_t expert_skipped_count(const struct expert *expert)
{
    return atomic_load_explicit(&expert->skipped, memory_order_relaxed);
}

bool expert_is_bounded(const struct expert *expert)
{
    return expert->cls->is_bounded;
}

/* Callers have checked these; this is for mistakes of our own, in builds with assertions. */
__attribute__((unused)) static bool are_valid(const struct skep_tensor_spec *specs, size_t count,
                                              const DLTensor *tensors)
{
    const DLTensor *list[SKEP_EXPERT_MAX_TENSORS];
    int64_t rows;

    for (size_t i = 0; i < count; i++)
        list[i] = &tensors[i];
    return schema_check(specs, count, list, count, "tensor", &rows, NULL) == SKEP_OK;
}

static skep_status check_call(const struct expert_call *call, const struct expert_class *cls,
                              struct skep_error *err)
{
    return cls->check != NULL ? cls->check(call, err) : SKEP_OK;
}

/* The copies of the weights that a pass over these inputs computes with; NULL in float32. */
static const struct half_matrix *fresh_half(struct expert *e, const DLTensor *x)
{
    size_t rows = 1;

    if (!e->is_half)
        return NULL;
    for (int d = 0; d + 1 < x->ndim; d++)
        rows *= (size_t)x->shape[d];
    half_refresh(&e->half, e->values, rows);
    return e->half.matrices;
}

skep_status expert_forward(struct expert *expert, const DLTensor *inputs, DLTensor *outputs,
                           struct skep_error *err)
{
    struct workspace ws = {0};
    struct expert_call call = {
        .plan = &expert->plan,
        .rows = (size_t)inputs[0].shape[0],
        .params = expert->params,
        .inputs = inputs,
        .outputs = outputs,
        .ws = &ws,
    };

    assert(are_valid(expert->plan.schema.inputs, expert->plan.schema.input_count, inputs));
    assert(are_valid(expert->plan.schema.outputs, expert->plan.schema.output_count, outputs));
    skep_status rc = check_call(&call, expert->cls, err);
    if (rc != SKEP_OK)
        return rc;
    call.half = fresh_half(expert, &inputs[0]);
    expert->cls->measure(&call, false);
    rc = workspace_take(ws.used, &ws, err);
    if (rc == SKEP_OK)
        rc = expert->cls->forward(&call, err);
    workspace_give(&ws);
    return rc;
}

/* Cuts the flat gradient off the workspace, laid out like the parameters, its gaps zeroed. */
static float *cut_gradients(const struct expert *e, struct workspace *ws, float **grads)
{
    float *flat = workspace_cut(ws, e->total);

    for (size_t i = 0; flat != NULL && i < e->plan.parameter_count; i++) {
        size_t end = i + 1 < e->plan.parameter_count ? e->offset[i + 1] : e->total;
        grads[i] = flat + e->offset[i];
        init_constant(grads[i] + e->count[i], end - e->offset[i] - e->count[i], 0.0f);
    }
    return flat;
}

/* Backward into a workspace that the caller gives back, also on failure. */
static skep_status run_backward(struct expert *e, const DLTensor *inputs,
                                const DLTensor *grad_outputs, DLTensor *grad_inputs,
                                struct workspace *ws, float **flat, struct skep_error *err)
{
    float *grads[EXPERT_MAX_PARAMETERS];
    struct expert_call call = {
        .plan = &e->plan,
        .rows = (size_t)inputs[0].shape[0],
        .params = e->params,
        .inputs = inputs,
        .grad_outputs = grad_outputs,
        .grad_inputs = grad_inputs,
        .grads = grads,
        .ws = ws,
    };

    assert(are_valid(e->plan.schema.inputs, e->plan.schema.input_count, inputs));
    assert(are_valid(e->plan.schema.inputs, e->plan.schema.input_count, grad_inputs));
    assert(are_valid(e->plan.schema.outputs, e->plan.schema.output_count, grad_outputs));
    skep_status rc = check_call(&call, e->cls, err);
    if (rc != SKEP_OK)
        return rc;
    call.half = fresh_half(e, &inputs[0]);
    (void)cut_gradients(e, ws, grads);
    e->cls->measure(&call, true);
    rc = workspace_take(ws->used, ws, err);
    if (rc != SKEP_OK)
        return rc;
    *flat = cut_gradients(e, ws, grads);
    return e->cls->backward(&call, err);
}

static void count_step(struct expert *e, bool was_taken)
{
    atomic_fetch_add_explicit(was_taken ? &e->updates : &e->skipped, 1, memory_order_relaxed);
}

/* The class takes the step in its backward pass, so no copy may begin meanwhile. */
static skep_status backward_with_step(struct expert *e, const DLTensor *inputs,
                                      const DLTensor *grad_outputs, DLTensor *grad_inputs,
                                      struct skep_error *err)
{
    struct workspace ws = {0};
    float *flat = NULL;

    snapshot_write_begin(&e->gate);
    skep_status rc = run_backward(e, inputs, grad_outputs, grad_inputs, &ws, &flat, err);
    if (rc == SKEP_OK || rc == SKEP_INVALID_ARGUMENT)
        count_step(e, rc == SKEP_OK);
    snapshot_write_end(&e->gate);
    workspace_give(&ws);
    return rc;
}

skep_status expert_backward(struct expert *expert, const DLTensor *inputs,
                            const DLTensor *grad_outputs, DLTensor *grad_inputs,
                            struct skep_error *err)
{
    struct workspace ws = {0};
    float *flat = NULL;

    if (expert_owns_state(expert))
        return backward_with_step(expert, inputs, grad_outputs, grad_inputs, err);
    skep_status rc = run_backward(expert, inputs, grad_outputs, grad_inputs, &ws, &flat, err);
    if (rc == SKEP_OK) {
        snapshot_write_begin(&expert->gate);
        rc = optimizer_step(&expert->optimizer, expert->values, flat, err);
        count_step(expert, rc == SKEP_OK);
        snapshot_write_end(&expert->gate);
    }
    workspace_give(&ws);
    return rc;
}

skep_status expert_gradients(struct expert *expert, const DLTensor *inputs,
                             const DLTensor *grad_outputs, DLTensor *grad_inputs,
                             float *const *grads, struct skep_error *err)
{
    struct workspace ws = {0};
    float *flat = NULL;
    skep_status rc = run_backward(expert, inputs, grad_outputs, grad_inputs, &ws, &flat, err);

    for (size_t i = 0; rc == SKEP_OK && i < expert->plan.parameter_count; i++)
        if (expert->count[i] > 0)
            memcpy(grads[i], flat + expert->offset[i], expert->count[i] * sizeof(float));
    workspace_give(&ws);
    return rc;
}

size_t expert_parameters(struct expert *expert, const char **names, DLTensor *views, size_t cap)
{
    if (views != NULL)
        half_changed(&expert->half); /* they may be written to */
    for (size_t i = 0; i < expert->plan.parameter_count && i < cap; i++) {
        struct expert_parameter *p = &expert->plan.parameters[i];
        if (names != NULL)
            names[i] = p->name;
        if (views != NULL)
            views[i] = (DLTensor){
                .data = expert->values + expert->offset[i],
                .device = {.device_type = kDLCPU},
                .ndim = p->ndim,
                .dtype = DTYPE_F32,
                .shape = p->shape,
            };
    }
    return expert->plan.parameter_count;
}

skep_status expert_set_values(struct expert *e, float *array, size_t i, const DLTensor *value,
                              struct skep_error *err)
{
    struct expert_parameter *p = &e->plan.parameters[i];
    const DLTensor own = {.ndim = p->ndim, .dtype = DTYPE_F32, .shape = p->shape};
    size_t bytes;
    char got[96];
    char want[96];
    skep_status rc = skep_tensor_bytes(value, &bytes, err);

    if (rc != SKEP_OK) {
        error_prefix(err, "parameter %s", p->name);
        return rc;
    }
    if (!dtype_equal(value->dtype, own.dtype) || value->ndim != p->ndim ||
        memcmp(value->shape, p->shape, (size_t)p->ndim * sizeof(*p->shape)) != 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "parameter %s: %s, expected %s", p->name,
                         tensor_describe(value, got, sizeof(got)),
                         tensor_describe(&own, want, sizeof(want)));
    half_changed(&e->half);
    if (bytes > 0)
        memcpy(array + e->offset[i], skep_tensor_data(value), bytes);
    return SKEP_OK;
}

skep_status expert_set_parameter(struct expert *expert, const char *name, const DLTensor *value,
                                 struct skep_error *err)
{
    size_t i = 0;

    while (i < expert->plan.parameter_count && strcmp(expert->plan.parameters[i].name, name) != 0)
        i++;
    if (i == expert->plan.parameter_count)
        return error_set(err, SKEP_NOT_FOUND, "expert class %s has no parameter \"%s\"",
                         expert->cls->name, name);
    return expert_set_values(expert, expert->values, i, value, err);
}
