/* Experts at work: what pools call, and what is told of them. */
#include "node/lifecycle/local_expert.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/tensor.h"

skep_status hosted_new(const char *uid, const struct skep_expert_options *options,
                       struct hosted **out, struct skep_error *err)
{
    struct uid parsed;
    struct hosted *hosted = NULL;
    skep_status rc = uid_parse(&parsed, uid, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    hosted = mem_calloc(1, sizeof(*hosted));
    if (hosted == NULL)
        return error_no_memory(err, uid, sizeof(*hosted));
    memcpy(hosted->uid, parsed.text, sizeof(hosted->uid));
    rc = expert_describe(options, &hosted->description, err);
    if (rc == SKEP_OK)
        rc = expert_settings_init(&hosted->settings, options, err);
    if (rc != SKEP_OK) {
        if (err != NULL)
            error_prefix(err, "expert %s", uid);
        mem_free(hosted);
        return rc;
    }
    schema_digest(&hosted->description.schema, hosted->schema_digest);
    hosted->last_us = clock_mono_us();
    hosted->since_s = clock_wall_ms() / 1000;
    *out = hosted;
    return SKEP_OK;
}

skep_status hosted_make(struct hosted *hosted, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (hosted->expert == NULL)
        rc = expert_new(&hosted->settings.options, &hosted->expert, err);
    if (rc != SKEP_OK && err != NULL)
        error_prefix(err, "expert %s", hosted->uid);
    return rc;
}

void hosted_free(struct hosted *hosted)
{
    if (hosted == NULL)
        return;
    expert_free(hosted->expert);
    mem_free(hosted);
}

void hosted_hold(struct hosted *hosted)
{
    atomic_fetch_add_explicit(&hosted->holders, 1, memory_order_relaxed);
}

void hosted_release(struct hosted *hosted)
{
    /* Who frees the expert must see that all work with it has ended. */
    atomic_fetch_sub_explicit(&hosted->holders, 1, memory_order_release);
}

bool hosted_unmake(struct hosted *hosted)
{
    if (atomic_load_explicit(&hosted->holders, memory_order_acquire) > 0)
        return false;
    expert_free(hosted->expert);
    hosted->expert = NULL;
    return true;
}

void hosted_claim(const struct hosted *hosted, struct record_claim *out)
{
    const struct uid_life life = {
        .random = hosted->wish != NULL,
        .kept = atomic_load(&hosted->kept),
        .settled = atomic_load(&hosted->settled),
        .updates = hosted->expert != NULL ? expert_update_count(hosted->expert) : 0,
        .joined_us = atomic_load(&hosted->joined_us),
    };

    *out = (struct record_claim){
        .level = uid_level(&life, clock_mono_us()),
        .random = life.random,
        .since_s = hosted->since_s,
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
    struct hosted *hosted = arg;
    const struct skep_expert_schema *schema = expert_schema(hosted->expert);
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
        rc = expert_forward(hosted->expert, inputs, views, err);
    if (rc != SKEP_OK)
        free_outputs(outputs, made);
    return rc;
}

static skep_status work_backward(void *arg, const DLTensor *inputs, size_t input_count,
                                 DLManagedTensor **outputs, struct skep_error *err)
{
    struct hosted *hosted = arg;
    const struct skep_expert_schema *schema = expert_schema(hosted->expert);
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
        rc = expert_backward(hosted->expert, inputs, inputs + schema->input_count, views, err);
    if (rc != SKEP_OK)
        free_outputs(outputs, made);
    return rc;
}

static void pool_stalled(void *arg, bool is_stalled)
{
    struct hosted *hosted = arg;

    atomic_store(&hosted->stalled, is_stalled);
    log_warn("expert %s: %s", hosted->uid,
             is_stalled ? "stalled, taken off the swarm" : "works again, back in the swarm");
    if (hosted->changed != NULL)
        hosted->changed(hosted->changed_arg);
}

skep_status hosted_open(struct hosted *hosted, struct runtime *runtime,
                        const struct hosted_limits *limits, struct skep_error *err)
{
    const struct skep_expert_schema *schema = expert_schema(hosted->expert);
    char name[UID_BYTES + 16];
    struct task_pool_config config = {
        .name = name,
        .max_batch_size = limits->max_batch_size,
        .min_batch_size = limits->min_batch_size,
        .batch_timeout_us = limits->batch_timeout_us,
        .max_queued_tasks = limits->max_queued_tasks,
        .stall_timeout_us = limits->stall_timeout_us,
        .may_run_inline = expert_is_bounded(hosted->expert),
        .exclusive = hosted,
        .stalled = pool_stalled,
        .arg = hosted,
    };
    skep_status rc;

    snprintf(name, sizeof(name), "%s forward", hosted->uid);
    config.work = work_forward;
    config.output_count = schema->output_count;
    rc = task_pool_new(runtime, &config, &hosted->forward, err);
    if (rc != SKEP_OK)
        return rc;
    snprintf(name, sizeof(name), "%s backward", hosted->uid);
    config.work = work_backward;
    config.is_heavy = true;
    config.output_count = schema->input_count;
    return task_pool_new(runtime, &config, &hosted->backward, err);
}

bool hosted_load(struct hosted *hosted, struct record_load *out)
{
    struct task_pool_stats forward;
    struct task_pool_stats backward;
    uint64_t now = clock_mono_us();

    task_pool_stats(hosted->forward, &forward);
    task_pool_stats(hosted->backward, &backward);
    uint64_t examples = forward.examples + backward.examples;
    if (now > hosted->last_us)
        out->examples_per_s =
            (double)(examples - hosted->last_examples) * 1e6 / (double)(now - hosted->last_us);
    out->queued_tasks = (uint32_t)(forward.queued_tasks + backward.queued_tasks);
    hosted->last_examples = examples;
    hosted->last_us = now;
    atomic_store(&hosted->examples_per_s, out->examples_per_s);
    return !atomic_load(&hosted->stalled);
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

void hosted_stats(struct hosted *hosted, struct skep_expert_stats *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->uid, sizeof(out->uid), "%s", hosted->uid);
    snprintf(out->cls, sizeof(out->cls), "%s", hosted->settings.cls);
    snprintf(out->precision, sizeof(out->precision), "%s", hosted->settings.precision);
    out->parameters = hosted->description.parameters;
    if (hosted->expert != NULL) {
        out->updates = expert_update_count(hosted->expert);
        out->skipped_steps = expert_skipped_count(hosted->expert);
    }
    pool_stats(hosted->forward, &out->forward);
    pool_stats(hosted->backward, &out->backward);
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
