/* Loading plugins, and calling their classes without trusting what they answer. */
#include "experts/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"

enum { MAX_CLASSES = 64, PATH_BYTES = 4096 };

_Static_assert((int)SKEP_EXPERT_MAX_PARAMETERS == (int)EXPERT_MAX_PARAMETERS, "one limit");
_Static_assert((int)SKEP_PARAMETER_NAME_BYTES == (int)EXPERT_PARAMETER_NAME_BYTES, "one limit");
_Static_assert((int)SKEP_PARAMETER_MAX_DIMS == (int)EXPERT_PARAMETER_MAX_DIMS, "one limit");

struct plugin_class {
    struct expert_class cls; /* first, so that the two pointers convert */
    const struct skep_expert_class *own;
    const struct skep_plugin *plugin;
    struct plugin_class *next;
};

/* Only ever grows: a class must outlive its experts. */
static struct {
    pthread_mutex_t lock; /* guards the list; classes in it don't change */
    struct plugin_class *first;
} registry = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* --- calling ------------------------------------------------------------------------------- */

static const struct plugin_class *class_of(const struct expert_plan *plan)
{
    return (const struct plugin_class *)plan->cls;
}

/* Turns what a function of a plugin has answered into an error of ours: its sentence, if it made
 * one, behind the names of class and function. */
static skep_status failure(const struct plugin_class *pc, const char *function, skep_status rc,
                           const struct skep_error *said, struct skep_error *err)
{
    char sentence[SKEP_ERROR_MESSAGE_BYTES];
    bool is_known = false;

#define IS_KNOWN(name, number, text) is_known = is_known || (int)rc == (number);
    SKEP_STATUS_MAP(IS_KNOWN)
#undef IS_KNOWN
    snprintf(sentence, sizeof(sentence), "%.*s", (int)sizeof(said->message) - 1, said->message);
    if (!is_known)
        return error_set(err, SKEP_INTERNAL,
                         "plugin class %s: %s: answered status %d, which is "
                         "none of Skep's",
                         pc->own->name, function, (int)rc);
    return error_set(err, rc, "plugin class %s: %s: %s", pc->own->name, function,
                     sentence[0] != '\0' ? sentence : "failed without saying why");
}

#define CALL(pc, function, err, ...)                                                               \
    do {                                                                                           \
        struct skep_error said_ = {0};                                                             \
        skep_status rc_ = (pc)->own->function(__VA_ARGS__, &said_);                                \
        if (rc_ != SKEP_OK)                                                                        \
            return failure(pc, #function, rc_, &said_, err);                                       \
    } while (0)

static skep_status refuse(const struct plugin_class *pc, const char *what, struct skep_error *err)
{
    return error_set(err, SKEP_FAILED_PRECONDITION, "plugin class %s: %s", pc->own->name, what);
}

/* --- what it describes --------------------------------------------------------------------- */

static bool is_text(const char *text, size_t cap)
{
    size_t len = strnlen(text, cap);

    if (len == 0 || len == cap)
        return false;
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return true;
}

static skep_status check_specs(const struct plugin_class *pc, const struct skep_tensor_spec *specs,
                               size_t count, const char *what, struct skep_error *err)
{
    if (count < 1 || count > SKEP_EXPERT_MAX_TENSORS)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "plugin class %s: describe: %zu %ss, expected 1 to %d", pc->own->name,
                         count, what, SKEP_EXPERT_MAX_TENSORS);
    for (size_t i = 0; i < count; i++) {
        const struct skep_tensor_spec *s = &specs[i];
        bool ok = is_text(s->name, sizeof(s->name)) && skep_dtype_name(s->dtype) != NULL &&
                  s->ndim >= 1 && s->ndim <= SKEP_TENSOR_MAX_DIMS && s->shape[0] == -1;
        for (int d = 1; ok && d < s->ndim; d++)
            ok = s->shape[d] == -1 || s->shape[d] >= 1;
        if (!ok)
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "plugin class %s: describe: %s %zu, expected a name, a known type, 1 "
                             "to %d dimensions, the first of them -1, others -1 or more than 0",
                             pc->own->name, what, i, SKEP_TENSOR_MAX_DIMS);
    }
    return SKEP_OK;
}

/* An output's open dimension needs one of input 0 to be taken from. */
static skep_status check_outputs(const struct plugin_class *pc,
                                 const struct skep_expert_schema *schema, struct skep_error *err)
{
    for (size_t i = 0; i < schema->output_count; i++)
        for (int d = 1; d < schema->outputs[i].ndim; d++)
            if (schema->outputs[i].shape[d] < 0 && d >= schema->inputs[0].ndim)
                return refuse(pc, "describe: an output's open dimension is none of input 0's", err);
    return SKEP_OK;
}

static skep_status check_parameter(const struct plugin_class *pc,
                                   const struct skep_parameter_spec *specs, size_t i,
                                   struct skep_error *err)
{
    const struct skep_parameter_spec *s = &specs[i];
    bool ok = is_text(s->name, sizeof(s->name)) && s->ndim >= 1 &&
              s->ndim <= SKEP_PARAMETER_MAX_DIMS && (int)s->init >= (int)SKEP_INIT_ZEROS &&
              (int)s->init <= (int)SKEP_INIT_UNIFORM && isfinite(s->bound) && s->bound >= 0.0f;

    for (int d = 0; ok && d < s->ndim; d++)
        ok = s->shape[d] >= 0;
    if (!ok)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "plugin class %s: parameters: number %zu, expected a name, 1 to %d "
                         "dimensions of 0 or more, a known init and a finite bound",
                         pc->own->name, i, SKEP_PARAMETER_MAX_DIMS);
    for (size_t k = 0; k < i; k++)
        if (strcmp(specs[k].name, s->name) == 0)
            return error_set(err, SKEP_FAILED_PRECONDITION,
                             "plugin class %s: parameters: two are named %s", pc->own->name,
                             s->name);
    return SKEP_OK;
}

static void add_parameter(struct expert_plan *plan, const struct skep_parameter_spec *s)
{
    struct expert_parameter *p = &plan->parameters[plan->parameter_count++];

    memcpy(p->name, s->name, sizeof(p->name));
    p->ndim = s->ndim;
    memcpy(p->shape, s->shape, sizeof(p->shape));
    p->bound = s->bound;
    p->init = s->init == SKEP_INIT_UNIFORM ? EXPERT_INIT_UNIFORM
              : s->init == SKEP_INIT_ONES  ? EXPERT_INIT_ONES
                                           : EXPERT_INIT_ZEROS;
}

static skep_status list_parameters(const struct plugin_class *pc, struct expert_plan *plan,
                                   struct skep_parameter_spec *specs, struct skep_error *err)
{
    size_t count = 0;

    if (pc->own->parameters == NULL)
        return SKEP_OK;
    CALL(pc, parameters, err, plan->state, specs, &count);
    if (count > SKEP_EXPERT_MAX_PARAMETERS)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "plugin class %s: parameters: %zu, expected at most %d", pc->own->name,
                         count, SKEP_EXPERT_MAX_PARAMETERS);
    for (size_t i = 0; i < count; i++) {
        skep_status rc = check_parameter(pc, specs, i, err);
        if (rc != SKEP_OK)
            return rc;
        add_parameter(plan, &specs[i]);
    }
    return SKEP_OK;
}

static skep_status describe(const struct skep_expert_options *options, struct expert_plan *plan,
                            struct skep_error *err)
{
    const struct plugin_class *pc = class_of(plan);
    struct skep_expert_schema *schema = &plan->schema;

    CALL(pc, create, err, options, &plan->state);
    CALL(pc, describe, err, plan->state, schema);
    skep_status rc = check_specs(pc, schema->inputs, schema->input_count, "input", err);
    if (rc == SKEP_OK)
        rc = check_specs(pc, schema->outputs, schema->output_count, "output", err);
    if (rc == SKEP_OK)
        rc = check_outputs(pc, schema, err);
    if (rc != SKEP_OK)
        return rc;
    /* One entry more than it may fill in, so that one who counts wrong by one is seen, not felt. */
    struct skep_parameter_spec *specs = mem_calloc(SKEP_EXPERT_MAX_PARAMETERS + 1, sizeof(*specs));
    if (specs == NULL)
        return error_no_memory(err, "parameters of a plugin class", sizeof(*specs));
    rc = list_parameters(pc, plan, specs, err);
    mem_free(specs);
    if (pc->own->owns_state && pc->own->parameter_count != NULL)
        plan->owned_parameters = pc->own->parameter_count(plan->state);
    return rc;
}

static void release(struct expert_plan *plan)
{
    const struct plugin_class *pc = class_of(plan);

    if (plan->state != NULL && pc->own->destroy != NULL)
        pc->own->destroy(plan->state);
    plan->state = NULL;
}

/* --- passes -------------------------------------------------------------------------------- */

static void measure(const struct expert_call *call, bool backward)
{
    (void)call;
    (void)backward;
}

/* Tensors as a plugin gets them: with shapes of their own, so that nothing of ours can change. */
struct views {
    DLTensor tensors[SKEP_EXPERT_MAX_TENSORS];
    int64_t shapes[SKEP_EXPERT_MAX_TENSORS][SKEP_TENSOR_MAX_DIMS];
};

static void make_views(struct views *v, const DLTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        v->tensors[i] = tensors[i];
        v->tensors[i].strides = NULL;
        v->tensors[i].data = skep_tensor_data(&tensors[i]);
        v->tensors[i].byte_offset = 0;
        memcpy(v->shapes[i], tensors[i].shape, (size_t)tensors[i].ndim * sizeof(int64_t));
        v->tensors[i].shape = v->shapes[i];
    }
}

/* Results must be where the memory for them was, or the caller would get what nobody wrote. */
static skep_status check_results(const struct plugin_class *pc, const struct views *v,
                                 const DLTensor *tensors, size_t count, const char *function,
                                 struct skep_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const DLTensor *t = &v->tensors[i];
        if (t->data != skep_tensor_data(&tensors[i]) || t->byte_offset != 0 ||
            t->shape != v->shapes[i] || t->ndim != tensors[i].ndim ||
            memcmp(v->shapes[i], tensors[i].shape, (size_t)t->ndim * sizeof(int64_t)) != 0)
            return error_set(err, SKEP_INTERNAL,
                             "plugin class %s: %s: result %zu was given another place or shape, "
                             "expected to be written where it is",
                             pc->own->name, function, i);
    }
    return SKEP_OK;
}

static skep_status forward(const struct expert_call *call, struct skep_error *err)
{
    const struct plugin_class *pc = class_of(call->plan);
    const struct skep_expert_schema *schema = &call->plan->schema;
    struct views in;
    struct views out;

    make_views(&in, call->inputs, schema->input_count);
    make_views(&out, call->outputs, schema->output_count);
    CALL(pc, forward, err, call->plan->state, pc->own->owns_state ? NULL : call->params, in.tensors,
         out.tensors);
    return check_results(pc, &out, call->outputs, schema->output_count, "forward", err);
}

static void clear(const DLTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t bytes = 0;
        if (skep_tensor_bytes(&tensors[i], &bytes, NULL) == SKEP_OK && bytes > 0)
            memset(skep_tensor_data(&tensors[i]), 0, bytes);
    }
}

static skep_status backward(const struct expert_call *call, struct skep_error *err)
{
    const struct plugin_class *pc = class_of(call->plan);
    const struct skep_expert_schema *schema = &call->plan->schema;
    struct views in;
    struct views grad_out;
    struct views grad_in;

    make_views(&in, call->inputs, schema->input_count);
    make_views(&grad_out, call->grad_outputs, schema->output_count);
    make_views(&grad_in, call->grad_inputs, schema->input_count);
    clear(call->grad_inputs, schema->input_count);
    for (size_t i = 0; i < call->plan->parameter_count; i++) {
        const struct expert_parameter *p = &call->plan->parameters[i];
        size_t n = 0;
        if (shape_count(p->ndim, p->shape, &n) && n > 0)
            memset(call->grads[i], 0, n * sizeof(float));
    }
    bool owns = pc->own->owns_state;
    CALL(pc, backward, err, call->plan->state, owns ? NULL : call->params, in.tensors,
         grad_out.tensors, grad_in.tensors, owns ? NULL : call->grads);
    return check_results(pc, &grad_in, call->grad_inputs, schema->input_count, "backward", err);
}

/* --- the state of those that own it -------------------------------------------------------- */

static skep_status check_saved(const struct plugin_class *pc,
                               const struct skep_named_tensor *tensors, size_t count,
                               struct skep_error *err)
{
    if (count > 0 && tensors == NULL)
        return error_set(err, SKEP_INTERNAL, "plugin class %s: save: %zu tensors, but no list",
                         pc->own->name, count);
    if (count > EXPERT_MAX_STATE_TENSORS)
        return error_set(err, SKEP_INTERNAL,
                         "plugin class %s: save: %zu tensors, expected at most %d", pc->own->name,
                         count, EXPERT_MAX_STATE_TENSORS);
    for (size_t i = 0; i < count; i++) {
        size_t bytes;

        if (tensors[i].name == NULL || tensors[i].tensor == NULL)
            return error_set(err, SKEP_INTERNAL,
                             "plugin class %s: save: tensor %zu has no name or no data",
                             pc->own->name, i);
        skep_status rc = skep_tensor_bytes(tensors[i].tensor, &bytes, err);
        if (rc != SKEP_OK) {
            error_prefix(err, "plugin class %s: save: %s", pc->own->name, tensors[i].name);
            return rc;
        }
    }
    return SKEP_OK;
}

static skep_status save(const struct expert_plan *plan, const struct skep_named_tensor **tensors,
                        size_t *count, struct skep_error *err)
{
    const struct plugin_class *pc = class_of(plan);

    *tensors = NULL;
    *count = 0;
    CALL(pc, save, err, plan->state, tensors, count);
    return check_saved(pc, *tensors, *count, err);
}

static skep_status load(const struct expert_plan *plan, const struct skep_named_tensor *tensors,
                        size_t count, struct skep_error *err)
{
    const struct plugin_class *pc = class_of(plan);

    CALL(pc, load, err, plan->state, tensors, count);
    return SKEP_OK;
}

/* --- taking in ----------------------------------------------------------------------------- */

const struct expert_class *plugin_class_find(const char *name)
{
    const struct plugin_class *found = NULL;

    pthread_mutex_lock(&registry.lock);
    for (const struct plugin_class *pc = registry.first; pc != NULL && found == NULL; pc = pc->next)
        if (strcmp(pc->own->name, name) == 0)
            found = pc;
    pthread_mutex_unlock(&registry.lock);
    return found != NULL ? &found->cls : NULL;
}

size_t plugin_class_names(char *text, size_t used, size_t cap)
{
    pthread_mutex_lock(&registry.lock);
    for (const struct plugin_class *pc = registry.first; pc != NULL && used < cap; pc = pc->next)
        used += (size_t)snprintf(text + used, cap - used, ", %s", pc->own->name);
    pthread_mutex_unlock(&registry.lock);
    return used < cap ? used : cap;
}

static bool is_class_name(const char *name)
{
    size_t len = name != NULL ? strnlen(name, SKEP_EXPERT_NAME_BYTES) : 0;

    return len > 0 && len < SKEP_EXPERT_NAME_BYTES &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == len;
}

static skep_status check_class(const char *path, const struct skep_expert_class *classes, size_t i,
                               struct skep_error *err)
{
    const struct skep_expert_class *c = &classes[i];
    const struct expert_class *other;

    if (!is_class_name(c->name))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "plugin %s: the name of class %zu, expected 1 to %d letters, digits, _ or "
                         "-",
                         path, i, SKEP_EXPERT_NAME_BYTES - 1);
    if (c->create == NULL || c->describe == NULL || c->forward == NULL || c->backward == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "plugin %s: class %s lacks a function, expected create, describe, forward "
                         "and backward",
                         path, c->name);
    if (c->owns_state && (c->parameters != NULL || c->save == NULL || c->load == NULL))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "plugin %s: class %s owns its state: expected save and load, and no "
                         "parameters",
                         path, c->name);
    bool is_taken = expert_class_find(c->name, &other, NULL) == SKEP_OK;
    for (size_t k = 0; k < i; k++)
        is_taken = is_taken || strcmp(classes[k].name, c->name) == 0;
    if (is_taken)
        return error_set(err, SKEP_INVALID_ARGUMENT, "plugin %s: class %s is there already", path,
                         c->name);
    return SKEP_OK;
}

static bool is_taken_in(const struct skep_plugin *plugin)
{
    bool found = false;

    pthread_mutex_lock(&registry.lock);
    for (const struct plugin_class *pc = registry.first; pc != NULL; pc = pc->next)
        found = found || pc->plugin == plugin;
    pthread_mutex_unlock(&registry.lock);
    return found;
}

static skep_status take_in(const char *path, const struct skep_plugin *plugin,
                           struct skep_error *err)
{
    struct plugin_class *list = mem_calloc(plugin->class_count, sizeof(*list));

    if (list == NULL)
        return error_no_memory(err, path, plugin->class_count * sizeof(*list));
    for (uint32_t i = 0; i < plugin->class_count; i++)
        list[i] = (struct plugin_class){
            .cls = {.name = plugin->classes[i].name,
                    .describe = describe,
                    .release = release,
                    .measure = measure,
                    .forward = forward,
                    .backward = backward,
                    .save = plugin->classes[i].owns_state ? save : NULL,
                    .load = plugin->classes[i].owns_state ? load : NULL,
                    .takes_argument = true,
                    .is_bounded = plugin->classes[i].is_bounded,
                    .is_float32_only = true},
            .own = &plugin->classes[i],
            .plugin = plugin,
            .next = i + 1 < plugin->class_count ? &list[i + 1] : NULL,
        };
    pthread_mutex_lock(&registry.lock);
    list[plugin->class_count - 1].next = registry.first;
    registry.first = list;
    pthread_mutex_unlock(&registry.lock);
    return SKEP_OK;
}

static skep_status check_plugin(const char *path, const struct skep_plugin *plugin,
                                struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (plugin->abi != SKEP_PLUGIN_ABI)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "plugin %s: built for version %" PRIu32 " of the plugin interface, "
                         "expected %u: build it against this Skep's headers",
                         path, plugin->abi, SKEP_PLUGIN_ABI);
    if (plugin->class_count < 1 || plugin->class_count > MAX_CLASSES || plugin->classes == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "plugin %s: %" PRIu32 " classes, expected 1 to %d", path,
                         plugin->class_count, MAX_CLASSES);
    for (uint32_t i = 0; i < plugin->class_count && rc == SKEP_OK; i++)
        rc = check_class(path, plugin->classes, i, err);
    return rc;
}

/* The dynamic linker looks a name without a slash up among the system's libraries. */
static skep_status open_object(const char *path, void **out, struct skep_error *err)
{
    char local[PATH_BYTES];

    if (access(path, R_OK) != 0)
        return error_set(err, status_from_errno(errno), "plugin %s: cannot read: %s", path,
                         strerror(errno));
    if (snprintf(local, sizeof(local), "%s%s", strchr(path, '/') == NULL ? "./" : "", path) >=
        (int)sizeof(local))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "plugin: a path of %zu bytes, expected less than %d", strlen(path),
                         PATH_BYTES);
    *out = dlopen(local, RTLD_NOW | RTLD_LOCAL);
    if (*out != NULL)
        return SKEP_OK;
    const char *why = dlerror();
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "plugin %s: not a shared object that loads here: %s", path,
                     why != NULL ? why : "unknown reason");
}

static skep_status load_file(const char *path, struct skep_error *err)
{
    void *object = NULL;
    skep_status rc = open_object(path, &object, err);

    if (rc != SKEP_OK)
        return rc;
    const struct skep_plugin *plugin = dlsym(object, "skep_plugin");
    if (plugin == NULL)
        rc = error_set(err, SKEP_FAILED_PRECONDITION,
                       "plugin %s: has no symbol skep_plugin, expected one made by "
                       "SKEP_PLUGIN_DEFINE",
                       path);
    else if (!is_taken_in(plugin))
        rc = check_plugin(path, plugin, err);
    if (rc == SKEP_OK && !is_taken_in(plugin))
        rc = take_in(path, plugin, err);
    if (rc != SKEP_OK)
        dlclose(object);
    return rc;
}

/* One plugin at a time, so that two that bring the same class don't both find it free. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;

skep_status skep_plugin_load(const char *path, struct skep_error *err)
{
    pthread_mutex_lock(&loading);
    skep_status rc = load_file(path, err);
    pthread_mutex_unlock(&loading);
    return rc;
}

skep_status skep_plugin_register(const struct skep_plugin *plugin, struct skep_error *err)
{
    static const char name[] = "of this program";
    skep_status rc = error_if_null(plugin, "plugin", err);

    if (rc != SKEP_OK)
        return rc;
    pthread_mutex_lock(&loading);
    if (!is_taken_in(plugin)) {
        rc = check_plugin(name, plugin, err);
        if (rc == SKEP_OK)
            rc = take_in(name, plugin, err);
    }
    pthread_mutex_unlock(&loading);
    return rc;
}
