/* See weights.h. */
#include "experts/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/safetensors.h"
#include "base/tensor.h"
#include "base/text.h"
#include "experts/class.h"

static const char optimizer_prefix[] = "optimizer.";

static bool is_optimizer_state(const char *name)
{
    return strncmp(name, optimizer_prefix, sizeof(optimizer_prefix) - 1) == 0;
}

/* --- types --------------------------------------------------------------------------------- */

static float bits_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. Exact. */
static float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = h >> 10 & 0x1fu;
    uint32_t fraction = h & 0x3ffu;

    if (exponent == 0x1f) /* infinity and NaN */
        return bits_to_float(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0)
        return bits_to_float(sign | (exponent + 112) << 23 | fraction << 13);
    float tiny = (float)fraction * 0x1p-24f;
    return sign != 0 ? -tiny : tiny;
}

bool weights_can_convert(DLDataType dtype)
{
    return (dtype.code == kDLFloat && (dtype.bits == 16 || dtype.bits == 32 || dtype.bits == 64)) ||
           (dtype.code == kDLBfloat && dtype.bits == 16);
}

skep_status weights_to_f32(const DLTensor *t, float *out, struct skep_error *err)
{
    const void *data;
    size_t bytes;
    char text[96];
    skep_status rc = skep_tensor_bytes(t, &bytes, err);

    if (rc != SKEP_OK)
        return rc;
    size_t count = bytes / dtype_bytes(t->dtype);
    data = count > 0 ? skep_tensor_data(t) : NULL;
    if (t->dtype.code == kDLFloat && t->dtype.bits == 32) {
        if (count > 0)
            memcpy(out, data, bytes);
    } else if (t->dtype.code == kDLFloat && t->dtype.bits == 64) {
        for (size_t i = 0; i < count; i++)
            out[i] = (float)((const double *)data)[i];
    } else if (t->dtype.code == kDLFloat && t->dtype.bits == 16) {
        for (size_t i = 0; i < count; i++)
            out[i] = half_to_float(((const uint16_t *)data)[i]);
    } else if (t->dtype.code == kDLBfloat && t->dtype.bits == 16) {
        for (size_t i = 0; i < count; i++)
            out[i] = bits_to_float((uint32_t)((const uint16_t *)data)[i] << 16);
    } else {
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: expected F32, F16, BF16 or F64",
                         tensor_describe(t, text, sizeof(text)));
    }
    return SKEP_OK;
}

/* --- out ----------------------------------------------------------------------------------- */

skep_status weights_export(const struct checkpoint *checkpoint, const char *path,
                           struct skep_error *err)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    const struct skep_safetensors *file = checkpoint_tensors(checkpoint);
    size_t total = skep_safetensors_count(file);
    struct skep_named_tensor *named = mem_calloc(total + 1, sizeof(*named));
    size_t count = 0;
    skep_status rc;

    if (named == NULL)
        return error_no_memory(err, path, total * sizeof(*named));
    for (size_t i = 0; i < total; i++) {
        const char *name = skep_safetensors_name(file, i);

        if (!is_optimizer_state(name))
            named[count++] = (struct skep_named_tensor){.name = name,
                                                        .tensor = skep_safetensors_tensor(file, i)};
    }
    rc = skep_safetensors_save(path, named, count, metadata, err);
    mem_free(named);
    return rc;
}

/* --- in ------------------------------------------------------------------------------------ */

skep_status weights_set(struct expert *expert, const char *name, const DLTensor *t,
                        struct skep_error *err)
{
    DLTensor as_float = *t;
    size_t count;
    float *values;
    skep_status rc;

    if (dtype_equal(t->dtype, DTYPE_F32))
        return expert_set_parameter(expert, name, t, err);
    if (!shape_count(t->ndim, t->shape, &count) || count > SIZE_MAX / sizeof(float))
        return error_set(err, SKEP_INVALID_ARGUMENT, "parameter %s: too large", name);
    values = mem_alloc(count * sizeof(float));
    if (values == NULL)
        return error_no_memory(err, name, count * sizeof(float));
    rc = weights_to_f32(t, values, err);
    if (rc == SKEP_OK) {
        as_float.dtype = DTYPE_F32;
        as_float.data = values;
        as_float.byte_offset = 0;
        rc = expert_set_parameter(expert, name, &as_float, err);
    } else {
        error_prefix(err, "parameter %s", name);
    }
    mem_free(values);
    return rc;
}

/* How much of a class's parameters a file has. */
struct likeness {
    const struct expert_class *cls;
    size_t total, found;                       /* parameters: of the class, and in the file */
    size_t others;                             /* in the file, but not of the class */
    char missing[EXPERT_PARAMETER_NAME_BYTES]; /* the first one that the file lacks */
};

static bool plan_has(const struct expert_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->parameter_count; i++)
        if (strcmp(plan->parameters[i].name, name) == 0)
            return true;
    return false;
}

static struct likeness compare_class(const struct skep_safetensors *file,
                                     const struct expert_class *cls)
{
    struct likeness like = {.cls = cls};
    struct expert_plan plan = {0};
    struct skep_expert_options options;

    skep_expert_options_init(&options); /* names do not depend on sizes */
    options.cls = cls->name;
    options.hidden_dim = 64;
    if (cls->describe(&options, &plan, NULL) == SKEP_OK) {
        like.total = plan.parameter_count;
        for (size_t i = 0; i < plan.parameter_count; i++) {
            const char *name = plan.parameters[i].name;
            if (skep_safetensors_find(file, name) != NULL)
                like.found++;
            else if (like.missing[0] == '\0')
                snprintf(like.missing, sizeof(like.missing), "%s", name);
        }
        for (size_t i = 0; i < skep_safetensors_count(file); i++) {
            const char *name = skep_safetensors_name(file, i);
            like.others += !is_optimizer_state(name) && !plan_has(&plan, name);
        }
    }
    if (cls->release != NULL)
        cls->release(&plan);
    return like;
}

/* The class whose parameters are all there, and nothing else; NULL if there is none. */
static const struct expert_class *guess_class(const struct skep_safetensors *file)
{
    const struct expert_class *cls;

    for (size_t i = 0; (cls = expert_class_at(i)) != NULL; i++) {
        struct likeness like = compare_class(file, cls);
        if (like.total > 0 && like.found == like.total && like.others == 0)
            return cls;
    }
    return NULL;
}

/* The first names of a file, quoted. */
static void list_names(const struct skep_safetensors *file, char *out, size_t cap)
{
    enum { LISTED = 3 };
    size_t count = skep_safetensors_count(file);
    size_t used = 0;
    char quoted[TEXT_QUOTE_BYTES];

    out[0] = '\0';
    for (size_t i = 0; i < count && i < LISTED && used < cap; i++) {
        const char *name = skep_safetensors_name(file, i);
        used += (size_t)snprintf(out + used, cap - used, "%s%s", i > 0 ? ", " : "",
                                 text_quote(name, strlen(name), quoted));
    }
    if (count > LISTED && used < cap)
        snprintf(out + used, cap - used, " and %zu more", count - LISTED);
}

skep_status weights_explain(const struct skep_safetensors *file, const char *cls_name,
                            struct skep_error *err)
{
    const struct expert_class *cls;
    const struct expert_class *guess = guess_class(file);
    char names[3 * TEXT_QUOTE_BYTES + 64];

    for (size_t i = 0; (cls = expert_class_at(i)) != NULL && strcmp(cls->name, cls_name) != 0;)
        i++;
    if (cls == NULL || guess == cls)
        return SKEP_OK;
    struct likeness like = compare_class(file, cls);
    if (guess != NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "its tensors are those of class %s, expected those of class %s; import it "
                         "with --expert-cls %s",
                         guess->name, cls->name, guess->name);
    list_names(file, names, sizeof(names));
    if (like.total > 0 && like.found == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "has no parameter %s, nor any other that the class %s has; it holds %s",
                         like.missing, cls->name, names[0] != '\0' ? names : "nothing");
    if (like.found < like.total)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "has no parameter %s, which the class %s has (%zu of its %zu are there)",
                         like.missing, cls->name, like.found, like.total);
    return SKEP_OK;
}

skep_status weights_load(const struct skep_safetensors *file, struct expert *expert,
                         struct skep_error *err)
{
    const char *names[EXPERT_MAX_PARAMETERS];
    size_t count = expert_parameters(expert, names, NULL, EXPERT_MAX_PARAMETERS);
    skep_status rc = weights_explain(file, expert_class_name(expert), err);
    char quoted[TEXT_QUOTE_BYTES];

    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        const DLTensor *t;

        rc = safetensors_get(file, names[i], &t, err);
        if (rc == SKEP_OK)
            rc = weights_set(expert, names[i], t, err);
        else if (rc == SKEP_NOT_FOUND)
            rc =
                error_set(err, SKEP_INVALID_ARGUMENT, "has no parameter %s, which the class %s has",
                          names[i], expert_class_name(expert));
    }
    for (size_t i = 0; i < skep_safetensors_count(file) && rc == SKEP_OK; i++) {
        const char *name = skep_safetensors_name(file, i);
        size_t k = 0;

        while (k < count && strcmp(names[k], name) != 0)
            k++;
        if (k == count && !is_optimizer_state(name))
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "holds %s, which the class %s does not have",
                           text_quote(name, strlen(name), quoted), expert_class_name(expert));
    }
    return rc;
}

bool weights_infer(const struct skep_safetensors *file, const char *cls,
                   struct skep_expert_options *options)
{
    static const struct {
        const char *cls, *parameter;
        int hidden_at, width_at; /* dimensions of the parameter; -1: none */
    } rows[] = {
        {"ffn", "layers.0.weight", 1, -1},
        {"transformer", "linear1.weight", 1, -1},
        {"det_dropout", "linear_in.weight", 1, -1},
        {"swiglu", "gate_proj.weight", 1, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const DLTensor *t = skep_safetensors_find(file, rows[i].parameter);

        if (strcmp(cls, rows[i].cls) != 0)
            continue;
        if (t == NULL || t->ndim != 2)
            return false;
        options->hidden_dim = t->shape[rows[i].hidden_at];
        if (rows[i].width_at >= 0)
            options->intermediate_dim = t->shape[rows[i].width_at];
        return true;
    }
    return false;
}
