/*
 * Forward and backward calls, from HEADERS to the reply.
 *
 * A request has two holders: the server, until `finished`, and, from `complete` on, the work, until
 * it has replied. Whoever lets go last frees it.
 */
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/text.h"
#include "node/rpc/service.h"

struct request {
    struct task task; /* first, so that the two pointers convert */
    struct idempotency_waiter waiter;
    atomic_int holders;
    struct service *service;
    struct local_expert *local;
    struct server_call *call; /* until replied */
    bool is_backward;
    uint64_t content;                /* of a backward: idempotency_content() */
    skep_status finite;              /* of the request's tensors, as request_prepare() found them */
    struct skep_error bad;           /* if they are not */
    struct idempotency_entry *entry; /* of a backward that is the first under its id */
    const DLTensor *views[TASK_MAX_TENSORS];
};

static void request_unref(struct request *request)
{
    /* The last one must see all that the other did with it. */
    if (atomic_fetch_sub_explicit(&request->holders, 1, memory_order_acq_rel) != 1)
        return;
    local_expert_release(request->local);
    mem_free(request);
}

/* --- checks of HEADERS --------------------------------------------------------------------- */

/* A tensor as announced, for the checks that look at shapes and types only. */
static void tensor_of_descriptor(const struct tensor_descriptor *descriptor, DLTensor *out)
{
    static _Alignas(64) uint8_t no_data[64]; /* aligned for any type, never read */

    *out = (DLTensor){
        .data = no_data,
        .device = {.device_type = kDLCPU},
        .ndim = descriptor->ndim,
        .dtype = descriptor->dtype,
        .shape = (int64_t *)(uintptr_t)descriptor->shape, /* DLPack has no const; only read */
    };
}

static skep_status check_tensors(const struct skep_expert_schema *schema,
                                 const struct call_headers *headers, bool is_backward,
                                 int64_t *rows, struct skep_error *err)
{
    DLTensor tensors[TASK_MAX_TENSORS];
    const DLTensor *views[TASK_MAX_TENSORS];
    size_t grads = is_backward ? schema->output_count : 0;
    int64_t grad_rows = 0;
    skep_status rc;

    if (headers->tensor_count != schema->input_count + grads)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%zu tensor%s, expected %zu (inputs: %zu, grad_outputs: %zu)",
                         headers->tensor_count, text_plural(headers->tensor_count),
                         schema->input_count + grads, schema->input_count, grads);
    for (size_t i = 0; i < headers->tensor_count; i++) {
        tensor_of_descriptor(&headers->tensors[i], &tensors[i]);
        views[i] = &tensors[i];
    }
    rc = schema_check(schema->inputs, schema->input_count, views, schema->input_count, "input",
                      rows, err);
    if (rc != SKEP_OK || grads == 0)
        return rc;
    rc = schema_check(schema->outputs, grads, views + schema->input_count, grads, "grad_output",
                      &grad_rows, err);
    if (rc == SKEP_OK && grad_rows != *rows)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "grad_output 0: %" PRId64 " rows, expected %" PRId64 " as in input 0",
                         grad_rows, *rows);
    return rc;
}

static skep_status check_headers(const struct service *service, struct local_expert *local,
                                 const struct call_headers *headers, bool is_backward,
                                 int64_t *rows, struct skep_error *err)
{
    skep_status rc = check_tensors(expert_schema(local->expert), headers, is_backward, rows, err);

    if (rc != SKEP_OK)
        return rc;
    if (*rows > service->max_batch_size)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "%" PRId64 " rows, expected at most max_batch_size %" PRId64, *rows,
                         service->max_batch_size);
    if (is_backward && !headers->has_request_id)
        return error_set(
            err, SKEP_INVALID_ARGUMENT,
            "no request id (id in the headers): without one a repeat could not be told from a "
            "new call");
    if (atomic_load(&local->stalled))
        return error_set(err, SKEP_UNAVAILABLE, "stalled: its last batch takes too long");
    return SKEP_OK;
}

static bool is_gone(const struct task *task)
{
    return server_call_is_gone(((const struct request *)task)->call);
}

static void on_done(struct task *task, DLManagedTensor **outputs, size_t output_count,
                    const struct skep_error *err);
static void on_outcome(struct idempotency_waiter *waiter,
                       const struct idempotency_outcome *outcome);

skep_status request_start(struct service *service, struct server_call *call,
                          const struct call_headers *headers, bool is_backward,
                          struct request **out, struct skep_error *err)
{
    struct local_expert *local = service_hold(service, headers->uid, err);
    struct request *request;
    int64_t rows = 0;
    skep_status rc;

    *out = NULL;
    if (local == NULL)
        return SKEP_NOT_FOUND;
    rc = check_headers(service, local, headers, is_backward, &rows, err);
    if (rc != SKEP_OK) {
        error_prefix(err, "expert %s, %s", local->uid, headers->method);
        local_expert_release(local);
        return rc;
    }
    request = mem_calloc(1, sizeof(*request));
    if (request == NULL) {
        local_expert_release(local);
        return error_no_memory(err, headers->method, sizeof(*request));
    }
    atomic_init(&request->holders, 1);
    request->service = service;
    request->local = local;
    request->call = call;
    request->is_backward = is_backward;
    request->waiter.done = on_outcome;
    request->task.tensors = request->views;
    request->task.rows = rows;
    request->task.is_gone = is_gone;
    request->task.done = on_done;
    *out = request;
    return SKEP_OK;
}

/* Nobody waits for the outcome any more: what has not begun needs no place in the queue. */
static void withdraw(struct request *request)
{
    struct local_expert *local = request->local;

    task_pool_withdraw(request->is_backward ? local->backward : local->forward, &request->task);
}

void request_finished(struct request *request, bool is_gone_now)
{
    if (is_gone_now)
        withdraw(request);
    request_unref(request);
}

/* --- work ---------------------------------------------------------------------------------- */

/* Answers, and lets go of the request. Takes the tensors. */
static void reply(struct request *request, const struct skep_error *err, DLManagedTensor **tensors,
                  size_t count)
{
    struct server_call *call = request->call;
    const struct call_headers *headers = server_call_headers(call);
    const struct service *service = request->service;

    request->call = NULL;
    if (headers->has_reply_encoding)
        server_call_set_encoding(call, headers->reply_encoding);
    else
        server_call_set_encoding(call,
                                 request->is_backward ? service->grad_encoding : service->encoding);
    server_call_reply(call, err, NULL, 0, tensors, count);
    request_unref(request);
}

/* The sentence about the first tensor that holds NaN or infinity. */
static skep_status check_finite(const struct request *request, struct skep_error *err)
{
    size_t inputs = expert_schema(request->local->expert)->input_count;

    for (size_t i = 0; i < request->task.tensor_count; i++)
        if (!tensor_is_finite(request->views[i]))
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "expert %s: %s %zu holds NaN or infinity, expected finite numbers",
                             request->local->uid, i < inputs ? "input" : "grad_output",
                             i < inputs ? i : i - inputs);
    return SKEP_OK;
}

/* An expert without parameters computes nothing that a NaN could spoil, and takes less time than
 * the look at all numbers would. */
static bool must_check(const struct request *request)
{
    return request->service->detect_anomalies || request->local->description.parameters > 0;
}

static skep_status check_outputs(const struct request *request, DLManagedTensor **outputs,
                                 size_t count, struct skep_error *err)
{
    for (size_t i = 0; i < count; i++)
        if (!tensor_is_finite(&outputs[i]->dl_tensor))
            return error_set(err, SKEP_INTERNAL, "expert %s: its %s %zu holds NaN or infinity",
                             request->local->uid,
                             request->is_backward ? "input gradient" : "output", i);
    return SKEP_OK;
}

/* Tells those who sent the same call again how it ended. */
static void end_first(struct request *request, DLManagedTensor **outputs, size_t count,
                      const struct skep_error *err)
{
    struct idempotency_outcome outcome = {.was_worked = request->task.was_worked,
                                          .tensors = outputs,
                                          .tensor_count = count,
                                          .err = err};
    struct idempotency_entry *entry = request->entry;

    request->entry = NULL;
    if (entry != NULL)
        idempotency_finish(request->service->idempotency, entry, &outcome, clock_mono_us());
}

static void on_done(struct task *task, DLManagedTensor **outputs, size_t output_count,
                    const struct skep_error *err)
{
    struct request *request = (struct request *)task;
    struct skep_error bad;

    if (err == NULL && request->service->detect_anomalies &&
        check_outputs(request, outputs, output_count, &bad) != SKEP_OK) {
        for (size_t i = 0; i < output_count; i++)
            skep_tensor_free(outputs[i]);
        output_count = 0;
        err = &bad;
    }
    end_first(request, outputs, output_count, err);
    reply(request, err, outputs, output_count);
}

static void submit(struct request *request)
{
    struct task_pool *pool =
        request->is_backward ? request->local->backward : request->local->forward;
    struct skep_error err;

    request->task.was_worked = false;
    if (task_pool_submit(pool, &request->task, &err) == SKEP_OK)
        return;
    end_first(request, NULL, 0, &err);
    reply(request, &err, NULL, 0);
}

/* A backward is worked on by the first call under its id; the others wait for its outcome. */
static void start_backward(struct request *request)
{
    const struct call_headers *headers = server_call_headers(request->call);
    struct idempotency_entry *first;
    struct skep_error err;
    skep_status rc = idempotency_begin(
        request->service->idempotency, server_call_peer_id(request->call), headers->request_id,
        request->local->uid, request->content, clock_mono_us(), &request->waiter, &first, &err);

    if (rc != SKEP_OK) {
        reply(request, &err, NULL, 0);
    } else if (first != NULL) {
        request->entry = first;
        submit(request);
    }
    /* Else it was a repeat, and may have been answered and freed by now. */
}

static void start_work(struct request *request)
{
    if (request->is_backward)
        start_backward(request);
    else
        submit(request);
}

static void on_outcome(struct idempotency_waiter *waiter, const struct idempotency_outcome *outcome)
{
    struct request *request = (struct request *)((char *)waiter - offsetof(struct request, waiter));
    DLManagedTensor *tensors[IDEMPOTENCY_MAX_TENSORS];

    /* The first was dropped unworked, for reasons of its own: this one takes its place. */
    if (!outcome->was_worked && !server_call_is_gone(request->call) &&
        clock_mono_us() < request->task.deadline_us) {
        start_work(request);
        return;
    }
    for (size_t i = 0; i < outcome->tensor_count; i++)
        tensors[i] = outcome->tensors[i];
    reply(request, outcome->err, tensors, outcome->tensor_count);
}

void request_prepare(struct request *request)
{
    size_t count;
    DLManagedTensor **tensors = server_call_tensors(request->call, &count);

    for (size_t i = 0; i < count; i++) /* as many as were checked in request_start() */
        request->views[i] = &tensors[i]->dl_tensor;
    request->task.tensor_count = count;
    request->finite = must_check(request) ? check_finite(request, &request->bad) : SKEP_OK;
    if (request->is_backward)
        request->content = idempotency_content(request->views, count);
}

void request_complete(struct request *request)
{
    atomic_fetch_add_explicit(&request->holders, 1, memory_order_relaxed);
    request->task.deadline_us = server_call_deadline_us(request->call);
    request->task.priority =
        lease_server_priority(request->service->leases, server_call_peer_id(request->call));
    if (request->finite != SKEP_OK) {
        atomic_fetch_add_explicit(&request->service->anomalies, 1, memory_order_relaxed);
        if (request->service->detect_anomalies) {
            struct skep_error err = request->bad;

            atomic_fetch_add_explicit(&request->service->refused, 1, memory_order_relaxed);
            reply(request, &err, NULL, 0);
            return;
        }
    }
    start_work(request);
}
