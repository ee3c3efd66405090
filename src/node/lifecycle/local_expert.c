/* Experts at work: what pools call, and what is told of them. */
#include "node/lifecycle/local_expert.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/tensor.h"

skep_status local_expert_new(const char *uid, const struct skep_expert_options *options,
                             struct local_expert **out, struct skep_error *err)
{
    struct uid parsed;
    struct local_expert *local = NULL;
    skep_status rc = uid_parse(&parsed, uid, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    local = mem_calloc(1, sizeof(*local));
    if (local == NULL)
        return error_no_memory(err, uid, sizeof(*local));
    memcpy(local->uid, parsed.text, sizeof(local->uid));
    rc = expert_describe(options, &local->description, err);
    if (rc == SKEP_OK)
        rc = expert_settings_init(&local->settings, options, err);
    if (rc != SKEP_OK) {
        if (err != NULL)
            error_prefix(err, "expert %s", uid);
        mem_free(local);
        return rc;
    }
    schema_digest(&local->description.schema, local->schema_digest);
    local->last_us = clock_mono_us();
    local->since_s = clock_wall_ms() / 1000;
    *out = local;
    return SKEP_OK;
}

skep_status local_expert_make(struct local_expert *local, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (local->expert == NULL)
        rc = expert_new(&local->settings.options, &local->expert, err);
    if (rc != SKEP_OK && err != NULL)
        error_prefix(err, "expert %s", local->uid);
    return rc;
}

void local_expert_free(struct local_expert *local)
{
    if (local == NULL)
        return;
    expert_free(local->expert);
    mem_free(local);
}

void local_expert_hold(struct local_expert *local)
{
    atomic_fetch_add_explicit(&local->holders, 1, memory_order_relaxed);
}

void local_expert_release(struct local_expert *local)
{
    /* Who frees the expert must see that all work with it has ended. */
    atomic_fetch_sub_explicit(&local->holders, 1, memory_order_release);
}

bool local_expert_is_idle(const struct local_expert *local)
{
    return atomic_load_explicit(&local->holders, memory_order_acquire) == 0;
}

bool local_expert_unmake(struct local_expert *local)
{
    if (!local_expert_is_idle(local))
        return false;
    expert_free(local->expert);
    local->expert = NULL;
    return true;
}

void local_expert_claim(const struct local_expert *local, struct record_claim *out)
{
    const struct uid_life life = {
        .random = local->reservation != NULL,
        .kept = atomic_load(&local->kept),
        .settled = atomic_load(&local->settled),
        .updates = local->expert != NULL ? expert_update_count(local->expert) : 0,
        .joined_us = atomic_load(&local->joined_us),
    };

    *out = (struct record_claim){
        .level = uid_level(&life, clock_mono_us()),
        .random = life.random,
        .since_s = local->since_s,
    };
}

/* An output's open dimensions are those of the first input at the same place. */
static void output_shape(const struct skep_tensor_spec *spec, const DLTensor *like, int64_t *shape)
{
    for (int d = 0; d < spec->ndim; d++) {
        shape[d] = spec->shape[d];
        if (shape[d] < 0)
            shape[d] = d < like->ndim ? like->shape[d] : 1;
    }
}

static void free_outputs(DLManagedTensor **outputs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        skep_tensor_free(outputs[i]);
        outputs[i] = NULL;
    }
}

static skep_status work_forward(void *arg, const DLTensor *inputs, size_t input_count,
                                DLManagedTensor **outputs, struct skep_error *err)
{
    struct local_expert *local = arg;
    const struct skep_expert_schema *schema = expert_schema(local->expert);
    DLTensor views[SKEP_EXPERT_MAX_TENSORS];
    skep_status rc = SKEP_OK;
    size_t made = 0;

    (void)input_count;
    for (; made < schema->output_count && rc == SKEP_OK; made++) {
        int64_t shape[SKEP_TENSOR_MAX_DIMS];

        output_shape(&schema->outputs[made], &inputs[0], shape);
        rc = skep_tensor_new(schema->outputs[made].dtype, schema->outputs[made].ndim, shape,
                             &outputs[made], err);
        if (rc == SKEP_OK)
            views[made] = outputs[made]->dl_tensor;
    }
    if (rc == SKEP_OK)
        rc = expert_forward(local->expert, inputs, views, err);
    if (rc != SKEP_OK)
        free_outputs(outputs, made);
    return rc;
}

static skep_status work_backward(void *arg, const DLTensor *inputs, size_t input_count,
                                 DLManagedTensor **outputs, struct skep_error *err)
{
    struct local_expert *local = arg;
    const struct skep_expert_schema *schema = expert_schema(local->expert);
    DLTensor views[SKEP_EXPERT_MAX_TENSORS];
    skep_status rc = SKEP_OK;
    size_t made = 0;

    (void)input_count;
    for (; made < schema->input_count && rc == SKEP_OK; made++) {
        rc = skep_tensor_new(inputs[made].dtype, inputs[made].ndim, inputs[made].shape,
                             &outputs[made], err);
        if (rc == SKEP_OK)
            views[made] = outputs[made]->dl_tensor;
    }
    if (rc == SKEP_OK)
        rc = expert_backward(local->expert, inputs, inputs + schema->input_count, views, err);
    if (rc != SKEP_OK)
        free_outputs(outputs, made);
    return rc;
}

static void pool_stalled(void *arg, bool is_stalled)
{
    struct local_expert *local = arg;

    atomic_store(&local->stalled, is_stalled);
    log_warn("expert %s: %s", local->uid,
             is_stalled ? "stalled, taken off the swarm" : "works again, back in the swarm");
    if (local->changed != NULL)
        local->changed(local->changed_arg);
}

skep_status local_expert_open(struct local_expert *local, struct runtime *runtime,
                              const struct local_expert_limits *limits, struct skep_error *err)
{
    const struct skep_expert_schema *schema = expert_schema(local->expert);
    char name[UID_BYTES + 16];
    struct task_pool_config config = {
        .name = name,
        .max_batch_size = limits->max_batch_size,
        .min_batch_size = limits->min_batch_size,
        .batch_timeout_us = limits->batch_timeout_us,
        .max_queued_tasks = limits->max_queued_tasks,
        .stall_timeout_us = limits->stall_timeout_us,
        .may_run_inline = expert_is_bounded(local->expert),
        .exclusive = local,
        .stalled = pool_stalled,
        .arg = local,
    };
    skep_status rc;

    snprintf(name, sizeof(name), "%s forward", local->uid);
    config.work = work_forward;
    config.output_count = schema->output_count;
    rc = task_pool_new(runtime, &config, &local->forward, err);
    if (rc != SKEP_OK)
        return rc;
    snprintf(name, sizeof(name), "%s backward", local->uid);
    config.work = work_backward;
    config.is_heavy = true;
    config.output_count = schema->input_count;
    return task_pool_new(runtime, &config, &local->backward, err);
}

bool local_expert_load(struct local_expert *local, struct record_load *out)
{
    struct task_pool_stats forward;
    struct task_pool_stats backward;
    uint64_t now = clock_mono_us();

    task_pool_stats(local->forward, &forward);
    task_pool_stats(local->backward, &backward);
    uint64_t examples = forward.examples + backward.examples;
    if (now > local->last_us)
        out->examples_per_s =
            (double)(examples - local->last_examples) * 1e6 / (double)(now - local->last_us);
    out->queued_tasks = (uint32_t)(forward.queued_tasks + backward.queued_tasks);
    local->last_examples = examples;
    local->last_us = now;
    atomic_store(&local->examples_per_s, out->examples_per_s);
    return !atomic_load(&local->stalled);
}

static void pool_stats(struct task_pool *pool, struct skep_pool_stats *out)
{
    struct task_pool_stats stats = {0};

    if (pool != NULL)
        task_pool_stats(pool, &stats);
    *out = (struct skep_pool_stats){
        .tasks = stats.tasks,
        .batches = stats.batches,
        .examples = stats.examples,
        .refused = stats.refused,
        .expired = stats.expired,
        .cancelled = stats.cancelled,
        .failed = stats.failed,
        .busy_us = stats.busy_us,
        .wait_us = stats.wait_us_sum,
        .work_us = stats.work_us_sum,
        .queued_tasks = stats.queued_tasks,
        .stalled = stats.stalled,
    };
}

void local_expert_stats(struct local_expert *local, struct skep_expert_stats *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->uid, sizeof(out->uid), "%s", local->uid);
    snprintf(out->cls, sizeof(out->cls), "%s", local->settings.cls);
    snprintf(out->precision, sizeof(out->precision), "%s", local->settings.precision);
    out->parameters = local->description.parameters;
    if (local->expert != NULL) {
        out->updates = expert_update_count(local->expert);
        out->skipped_steps = expert_skipped_count(local->expert);
    }
    pool_stats(local->forward, &out->forward);
    pool_stats(local->backward, &out->backward);
}

void pool_stats_add(struct skep_pool_stats *sum, const struct skep_pool_stats *more)
{
    sum->tasks += more->tasks;
    sum->batches += more->batches;
    sum->examples += more->examples;
    sum->refused += more->refused;
    sum->expired += more->expired;
    sum->cancelled += more->cancelled;
    sum->failed += more->failed;
    sum->busy_us += more->busy_us;
    sum->wait_us += more->wait_us;
    sum->work_us += more->work_us;
    sum->queued_tasks += more->queued_tasks;
    sum->stalled = sum->stalled || more->stalled;
}
