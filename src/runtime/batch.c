/* The working side: joins tasks, calls the work function, splits its outputs. No lock is held. */
#include "runtime/internal.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"

enum {
    SCRATCH_ALIGNMENT = 64,
};

/* Room for all joined inputs, each aligned. The memory is kept from batch to batch. */
static bool reserve_scratch(struct batch *batch, size_t bytes)
{
    if (bytes <= batch->scratch_cap)
        return true;
    mem_free(batch->scratch);
    batch->scratch = mem_aligned(SCRATCH_ALIGNMENT, bytes);
    batch->scratch_cap = batch->scratch != NULL ? bytes : 0;
    return batch->scratch != NULL;
}

static bool aligned_bytes(const DLTensor *t, size_t *bytes, size_t *aligned)
{
    return skep_tensor_bytes(t, bytes, NULL) == SKEP_OK &&
           size_add(*bytes, SCRATCH_ALIGNMENT - 1, aligned) &&
           (*aligned &= ~(size_t)(SCRATCH_ALIGNMENT - 1), true);
}

static bool joined_bytes(const struct batch *batch, size_t *total)
{
    *total = 0;
    for (const struct task *task = batch->tasks.head; task != NULL; task = task->next)
        for (size_t i = 0; i < task->tensor_count; i++) {
            size_t bytes;
            size_t aligned;

            if (!aligned_bytes(task->tensors[i], &bytes, &aligned) ||
                !size_add(*total, aligned, total))
                return false;
        }
    return true;
}

struct joined {
    DLTensor inputs[TASK_MAX_TENSORS];
    int64_t shapes[TASK_MAX_TENSORS][SKEP_TENSOR_MAX_DIMS];
};

static skep_status join(struct batch *batch, struct joined *joined)
{
    const struct task *first = batch->tasks.head;
    size_t total;

    if (!joined_bytes(batch, &total) || !reserve_scratch(batch, total))
        return error_no_memory(&batch->err, "joining a batch", total);
    uint8_t *at = batch->scratch;
    for (size_t i = 0; i < first->tensor_count; i++) {
        uint8_t *begin = at;

        joined->inputs[i] = *first->tensors[i];
        memcpy(joined->shapes[i], first->tensors[i]->shape,
               (size_t)first->tensors[i]->ndim * sizeof(int64_t));
        joined->shapes[i][0] = batch->rows;
        joined->inputs[i].shape = joined->shapes[i];
        joined->inputs[i].strides = NULL;
        joined->inputs[i].byte_offset = 0;
        joined->inputs[i].data = begin;
        for (const struct task *task = first; task != NULL; task = task->next) {
            size_t bytes = 0;

            if (skep_tensor_bytes(task->tensors[i], &bytes, &batch->err) != SKEP_OK)
                return batch->err.status;
            if (bytes > 0)
                memcpy(at, skep_tensor_data(task->tensors[i]), bytes);
            at += bytes;
        }
        /* The next tensor starts aligned; joined_bytes() rounded each part up, so it fits. */
        at = begin +
             (((size_t)(at - begin) + SCRATCH_ALIGNMENT - 1) & ~(size_t)(SCRATCH_ALIGNMENT - 1));
    }
    return SKEP_OK;
}

static void drop_outputs(struct batch *batch)
{
    for (size_t i = 0; i < batch->pool->config.output_count; i++) {
        skep_tensor_free(batch->outputs[i]);
        batch->outputs[i] = NULL;
    }
}

/* An expert that gives back other rows than it got would mix its callers up. Experts may come from
 * a plugin, so all that slicing needs is checked here. */
static skep_status check_outputs(struct batch *batch)
{
    const struct task_pool_config *config = &batch->pool->config;

    for (size_t i = 0; i < config->output_count; i++) {
        const DLManagedTensor *output = batch->outputs[i];

        if (output == NULL || output->dl_tensor.ndim < 1 ||
            output->dl_tensor.shape[0] != batch->rows)
            return error_set(
                &batch->err, SKEP_INTERNAL,
                "%s: output %zu has %" PRId64 " rows, expected %" PRId64, config->name, i,
                output != NULL && output->dl_tensor.ndim > 0 ? output->dl_tensor.shape[0]
                                                             : (int64_t)0,
                batch->rows);
        if (!tensor_is_sliceable(output)) /* also in a batch of one: or it would fail under load */
            return error_set(&batch->err, SKEP_INTERNAL,
                             "%s: output %zu was not made by skep_tensor_new(), as it has to be",
                             config->name, i);
    }
    return SKEP_OK;
}

void batch_work(struct batch *batch)
{
    const struct task_pool_config *config = &batch->pool->config;
    const struct task *first = batch->tasks.head;
    struct joined joined;

    batch->status = SKEP_OK;
    if (batch->task_count == 1) {
        for (size_t i = 0; i < first->tensor_count; i++)
            joined.inputs[i] = *first->tensors[i];
    } else {
        batch->status = join(batch, &joined);
    }
    if (batch->status == SKEP_OK) {
        for (struct task *task = batch->tasks.head; task != NULL; task = task->next)
            task->was_worked = true;
        batch->status = config->work(config->arg, joined.inputs, first->tensor_count,
                                     batch->outputs, &batch->err);
        if (batch->status == SKEP_OK)
            batch->status = check_outputs(batch);
    }
    if (batch->status != SKEP_OK) {
        /* The status returned counts, whatever a work function left in err. */
        batch->err.status = batch->status;
        drop_outputs(batch);
    }
}

static void answer_slice(struct batch *batch, struct task *task, int64_t first)
{
    DLManagedTensor *slices[SKEP_EXPERT_MAX_TENSORS] = {NULL};
    size_t count = batch->pool->config.output_count;
    struct skep_error err;

    for (size_t i = 0; i < count; i++)
        if (tensor_slice(batch->outputs[i], first, task->rows, &slices[i], &err) != SKEP_OK) {
            for (size_t k = 0; k < i; k++)
                skep_tensor_free(slices[k]);
            task->done(task, NULL, 0, &err);
            return;
        }
    task->done(task, slices, count, NULL);
}

void batch_answer(struct batch *batch)
{
    size_t count = batch->pool->config.output_count;
    int64_t first = 0;

    if (batch->status == SKEP_OK && batch->task_count == 1) {
        struct task *task = task_list_pop(&batch->tasks);

        task->done(task, batch->outputs, count, NULL);
        return;
    }
    for (struct task *task; (task = task_list_pop(&batch->tasks)) != NULL;) {
        int64_t rows = task->rows; /* the task is the caller's again once done has run */

        if (batch->status == SKEP_OK)
            answer_slice(batch, task, first);
        else
            task->done(task, NULL, 0, &batch->err);
        first += rows;
    }
    drop_outputs(batch);
}

void tasks_fail(struct task_list *tasks, skep_status status, const char *pool_name, const char *why)
{
    for (struct task *task; (task = task_list_pop(tasks)) != NULL;) {
        struct skep_error err;

        error_set(&err, status, "%s: %s", pool_name, why);
        task->done(task, NULL, 0, &err);
    }
}

void tasks_drop(struct task_list *expired, struct task_list *gone)
{
    tasks_fail(expired, SKEP_DEADLINE_EXCEEDED, "queue",
               "the call's deadline passed before its turn came");
    tasks_fail(gone, SKEP_CANCELLED, "queue", "the caller left before its turn came");
}
