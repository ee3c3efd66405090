/* An expert's state: what a checkpoint keeps of it, copied between two steps, and put back. */
#include "base/error.h"
#include "base/tensor.h"
#include "experts/expert_internal.h"

const struct skep_expert_options *expert_settings(const struct expert *expert)
{
    return &expert->settings.options;
}

static float *state_array(struct expert *e, size_t array)
{
    float *const arrays[] = {e->values, e->optimizer.m, e->optimizer.v};

    return arrays[array];
}

const char *expert_state_array(const struct expert *expert, size_t array)
{
    const struct optimizer *opt = &expert->optimizer;

    if (array == 0)
        return "";
    if (array == 1 && opt->m != NULL)
        return opt->v != NULL ? "exp_avg" : "momentum_buffer";
    return array == 2 && opt->v != NULL ? "exp_avg_sq" : NULL;
}

bool expert_owns_state(const struct expert *expert)
{
    return expert->cls->save != NULL;
}

size_t expert_saved_state(const struct expert *expert, const struct skep_named_tensor **tensors)
{
    *tensors = expert->saved;
    return expert->saved_count;
}

skep_status expert_load_state(struct expert *expert, const struct skep_named_tensor *tensors,
                              size_t count, struct skep_error *err)
{
    return expert->cls->load(&expert->plan, tensors, count, err);
}

size_t expert_state_bytes(const struct expert *expert)
{
    size_t arrays = 1;

    while (expert_state_array(expert, arrays) != NULL)
        arrays++;
    return arrays * expert->total * sizeof(float);
}

struct copying {
    struct expert *expert;
    struct expert_counters *counters;
    /* Of the class, if it owns the state. */
    skep_status rc;
    struct skep_error err;
};

/* At the moment of the snapshot, when no step is under way. */
static void begin_copy(void *arg)
{
    struct copying *c = arg;
    struct expert *e = c->expert;

    if (expert_owns_state(e))
        c->rc = e->cls->save(&e->plan, &e->saved, &e->saved_count, &c->err);

    *c->counters = (struct expert_counters){
        .updates = expert_update_count(c->expert),
        .skipped = expert_skipped_count(c->expert),
        .steps = c->expert->optimizer.step,
    };
}

skep_status expert_snapshot(struct expert *expert, float *copy, struct expert_counters *counters,
                            uint64_t deadline_us, struct skep_error *err)
{
    struct snapshot_part parts[SNAPSHOT_MAX_PARTS];
    struct copying copying = {.expert = expert, .counters = counters};
    size_t count = 0;

    for (; expert_state_array(expert, count) != NULL; count++)
        parts[count] = (struct snapshot_part){
            .from = (const uint8_t *)state_array(expert, count),
            .to = (uint8_t *)(copy + count * expert->total),
            .bytes = expert->total * sizeof(float),
        };
    skep_status rc =
        snapshot_take(&expert->gate, parts, count, begin_copy, &copying, deadline_us, err);
    return rc == SKEP_OK && copying.rc != SKEP_OK
               ? error_set(err, copying.rc, "%s", copying.err.message)
               : rc;
}

DLTensor expert_state_view(struct expert *expert, float *copy, size_t array, size_t parameter)
{
    struct expert_parameter *p = &expert->plan.parameters[parameter];

    return (DLTensor){
        .data = copy + array * expert->total + expert->offset[parameter],
        .device = {.device_type = kDLCPU},
        .ndim = p->ndim,
        .dtype = DTYPE_F32,
        .shape = p->shape,
    };
}

uint64_t expert_snapshot_wait_us(struct expert *expert)
{
    return snapshot_longest_wait_us(&expert->gate);
}

skep_status expert_set_state(struct expert *expert, size_t array, size_t parameter,
                             const DLTensor *value, struct skep_error *err)
{
    return expert_set_values(expert, state_array(expert, array), parameter, value, err);
}

void expert_set_counters(struct expert *expert, const struct expert_counters *counters)
{
    atomic_store_explicit(&expert->updates, counters->updates, memory_order_relaxed);
    atomic_store_explicit(&expert->skipped, counters->skipped, memory_order_relaxed);
    expert->optimizer.step = counters->steps;
}
