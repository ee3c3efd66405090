/* Calls of the pool: made on any thread, run on the loop, ended exactly once. */
#include "net/pool_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

static void unref(struct pool_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1)
        return;
    call_headers_free(&call->headers);
    mem_free(call->tensors);
    mem_free(call->choices);
    mem_free(call);
}

void pool_call_finish(struct pool_call *call, const struct reply_headers *reply,
                      DLManagedTensor **tensors, bool sent, const struct skep_error *err)
{
    struct pool *pool = call->pool;

    call->state = CALL_ENDED;
    deadline_heap_remove(&pool->deadlines, &call->deadline);
    deadline_heap_remove(&pool->alarms, &call->alarm);
    call->done(call->arg, reply, tensors, sent, err);
    atomic_fetch_sub_explicit(&pool->open_calls, 1, memory_order_relaxed);
    unref(call);
}

static void end_early(struct pool_call *call, const struct skep_error *why)
{
    if (call->state == CALL_OPEN) {
        pool_link_cancel(call->link, call, why);
        return;
    }
    if (call->state == CALL_DECODING) {
        pool_decode_abandon(call, why);
        return;
    }
    if (call->state == CALL_WAITING) {
        struct peer *peer = call->peer;
        pool_peer_forget(peer, call);
        pool_call_finish(call, NULL, NULL, false, why);
        pool_peer_tidy(peer);
        return;
    }
    pool_call_finish(call, NULL, NULL, false, why);
}

/* Deadlines */

static void tell_too_late(struct skep_error *err, const struct pool_call *call)
{
    static const char *const where[] = {
        [CALL_NEW] = "before it began",
        [CALL_WAITING] = "while waiting for a connection",
        [CALL_OPEN] = "while waiting for the reply",
        [CALL_DECODING] = "while decoding the reply",
        [CALL_ENDED] = "",
    };
    const char *doing = where[call->state];

    if (call->state == CALL_WAITING && call->peer->dial.lookup != NULL)
        error_set(err, SKEP_DEADLINE_EXCEEDED, "%s: the call's time was up while looking up %s",
                  call->headers.method, call->peer->dial.endpoint.host);
    else
        error_set(err, SKEP_DEADLINE_EXCEEDED, "%s: the call's time was up %s",
                  call->headers.method, doing);
}

/* The first of a heap, if its time has come. */
static struct deadline_entry *first_due(const struct deadline_heap *heap, uint64_t now)
{
    struct deadline_entry *first = deadline_heap_first(heap);

    return first != NULL && first->deadline_us <= now ? first : NULL;
}

void pool_call_tell(struct pool_call *call, enum pool_delay delay)
{
    if (call->slow != NULL)
        call->slow(call->arg, delay);
}

static uint64_t next_alarm(const struct pool_call *call)
{
    return call->late_us < call->connect_by_us ? call->late_us : call->connect_by_us;
}

/* The call has been taken out of the heap, and goes back for its other time. */
static void ring_alarm(struct pool *pool, struct pool_call *call, uint64_t now)
{
    bool is_late = call->late_us <= now;
    bool not_connected = call->connect_by_us <= now && call->state == CALL_WAITING &&
                         !pool_peer_is_connected(call->peer);

    if (is_late)
        call->late_us = CLOCK_NEVER;
    if (call->connect_by_us <= now)
        call->connect_by_us = CLOCK_NEVER;
    call->alarm.deadline_us = next_alarm(call);
    /* Nothing was added since it was taken out, so there is room for it. */
    if (call->alarm.deadline_us != CLOCK_NEVER)
        (void)deadline_heap_add(&pool->alarms, &call->alarm);
    if (not_connected)
        pool_call_tell(call, POOL_NOT_CONNECTED);
    if (is_late)
        pool_call_tell(call, POOL_CALL_LATE);
}

/* Those of calls that go on; what a call starts in turn is for a later turn. */
static void ring_alarms(struct pool *pool, uint64_t now)
{
    struct deadline_entry *entry;

    while ((entry = first_due(&pool->alarms, now)) != NULL) {
        deadline_heap_remove(&pool->alarms, entry);
        ring_alarm(pool, (struct pool_call *)((char *)entry - offsetof(struct pool_call, alarm)),
                   now);
    }
}

static void on_deadline(uv_timer_t *timer)
{
    struct pool *pool = timer->data;
    struct skep_error err;
    uint64_t now = clock_mono_us();
    struct deadline_entry *entry;

    pool->armed_us = CLOCK_NEVER;
    while ((entry = first_due(&pool->deadlines, now)) != NULL) {
        struct pool_call *call =
            (struct pool_call *)((char *)entry - offsetof(struct pool_call, deadline));
        tell_too_late(&err, call);
        end_early(call, &err);
    }
    while ((entry = first_due(&pool->lookups, now)) != NULL)
        pool_dial_name_late(
            (struct peer *)((char *)entry - offsetof(struct peer, dial.lookup_due)));
    ring_alarms(pool, now);
    pool_arm_deadlines(pool);
}

/* Armed for the nearest deadline there was; when that has gone, it fires for nothing once. */
void pool_arm_deadlines(struct pool *pool)
{
    const struct deadline_heap *const heaps[] = {&pool->deadlines, &pool->alarms, &pool->lookups};
    uint64_t nearest = pool->armed_us;

    for (size_t i = 0; i < sizeof(heaps) / sizeof(heaps[0]); i++) {
        struct deadline_entry *first = deadline_heap_first(heaps[i]);
        if (first != NULL && first->deadline_us < nearest)
            nearest = first->deadline_us;
    }
    if (nearest == pool->armed_us || !pool->has_timer)
        return;
    pool->armed_us = nearest;
    uv_timer_start(&pool->timer, on_deadline, clock_left_ms(nearest), 0);
}

/* Start and cancel, on the loop */

static void start_call(struct loop_job *job)
{
    struct pool_call *call = (struct pool_call *)((char *)job - offsetof(struct pool_call, start));
    struct pool *pool = call->pool;
    struct skep_error err;
    struct peer *peer;

    if (atomic_load(&pool->stopping)) {
        error_set(&err, SKEP_CANCELLED, "the client is shutting down");
    } else if (call->deadline.deadline_us <= clock_mono_us()) {
        tell_too_late(&err, call);
    } else if (call->deadline.deadline_us != CLOCK_NEVER &&
               !deadline_heap_add(&pool->deadlines, &call->deadline)) {
        error_no_memory(&err, "deadlines", sizeof(struct deadline_entry *));
    } else if (call->slow != NULL && call->alarm.deadline_us != CLOCK_NEVER &&
               !deadline_heap_add(&pool->alarms, &call->alarm)) {
        error_no_memory(&err, "alarms", sizeof(struct deadline_entry *));
    } else if ((peer = pool_peer_get(pool, &call->target)) == NULL) {
        error_no_memory(&err, "peer", sizeof(*peer));
    } else {
        pool_arm_deadlines(pool);
        pool_peer_submit(peer, call);
        return;
    }
    pool_call_finish(call, NULL, NULL, false, &err);
}

static void cancel_call(struct loop_job *job)
{
    struct pool_call *call = (struct pool_call *)((char *)job - offsetof(struct pool_call, cancel));
    struct skep_error err;
    int order = atomic_exchange(&call->cancel_order, CANCEL_NONE); /* it may be posted again */

    bool is_sent = call->state == CALL_OPEN || call->state == CALL_DECODING;

    if (call->state != CALL_ENDED && (order == CANCEL_ANY || !is_sent)) {
        error_set(&err, SKEP_CANCELLED, "%s: cancelled by the caller", call->headers.method);
        end_early(call, &err);
    }
    unref(call);
}

/* Of two orders the stronger one counts, and one job carries it out. */
static void post_cancel(struct pool *pool, struct pool_call *call, int order)
{
    int before = atomic_load(&call->cancel_order);

    while (before < order && !atomic_compare_exchange_weak(&call->cancel_order, &before, order))
        continue;
    if (before != CANCEL_NONE)
        return; /* a job is on its way */
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    loop_post(pool->loop, &call->cancel);
}

void pool_cancel(struct pool *pool, struct pool_call *call)
{
    post_cancel(pool, call, CANCEL_ANY);
}

void pool_withdraw(struct pool *pool, struct pool_call *call)
{
    post_cancel(pool, call, CANCEL_UNSENT);
}

/* Making one, on any thread */

static void copy_target(struct pool_target *out, const struct pool_target *from)
{
    memcpy(out, from,
           offsetof(struct pool_target, endpoints) +
               from->endpoint_count * sizeof(from->endpoints[0]));
}

static void copy_tensor(struct pool_tensor *copy, const DLTensor *tensor)
{
    copy->tensor = *tensor;
    copy->tensor.strides = NULL; /* contiguous, as checked */
    copy->tensor.shape = copy->shape;
    for (int d = 0; d < tensor->ndim; d++)
        copy->shape[d] = tensor->shape[d];
}

static bool copy_tensors(struct pool_call *call, const DLTensor *const *tensors, size_t count)
{
    if (count == 0)
        return true;
    call->tensors = mem_alloc(count * sizeof(*call->tensors));
    if (call->tensors == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        copy_tensor(&call->tensors[i], tensors[i]);
    return true;
}

static bool copy_choices(struct pool_call *call, const DLTensor *const *plain, size_t count)
{
    if (count == 0 || plain == NULL)
        return true;
    call->choices = mem_alloc(count * sizeof(*call->choices));
    if (call->choices == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        struct pool_choice *choice = &call->choices[i];
        choice->encoded = call->headers.tensors[i];
        if (tensor_descriptor_of(&choice->plain, plain[i], NULL) != SKEP_OK)
            return false; /* not so: it was checked */
        copy_tensor(&choice->plain_tensor, plain[i]);
    }
    return true;
}

static skep_status check_tensors(const DLTensor *const *tensors, size_t count,
                                 struct skep_error *err)
{
    size_t bytes;

    for (size_t i = 0; i < count; i++) {
        if (tensors[i]->ndim < 0 || tensors[i]->ndim > SKEP_TENSOR_MAX_DIMS)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "tensor %zu: %d dimensions, expected at most %d", i, tensors[i]->ndim,
                             SKEP_TENSOR_MAX_DIMS);
        skep_status rc = skep_tensor_bytes(tensors[i], &bytes, err);
        if (rc != SKEP_OK) {
            error_prefix(err, "tensor %zu", i);
            return rc;
        }
    }
    return SKEP_OK;
}

static skep_status check_call(const struct pool_target *target, const struct call_headers *headers,
                              const DLTensor *const *tensors, const DLTensor *const *plain,
                              struct skep_error *err)
{
    if (target->endpoint_count == 0 || target->endpoint_count > POOL_MAX_ENDPOINTS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "call target: %zu endpoints, expected 1 to %d",
                         target->endpoint_count, POOL_MAX_ENDPOINTS);
    if (headers->tensor_count > MESSAGE_MAX_TENSORS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "call: %zu tensors, at most %d can be sent",
                         headers->tensor_count, MESSAGE_MAX_TENSORS);
    skep_status rc = check_tensors(tensors, headers->tensor_count, err);
    if (rc == SKEP_OK && plain != NULL)
        rc = check_tensors(plain, headers->tensor_count, err);
    return rc;
}

static struct pool_call *new_call(struct pool *pool, const struct pool_target *target,
                                  const struct call_headers *headers,
                                  const DLTensor *const *tensors, const DLTensor *const *plain)
{
    struct pool_call *call = mem_alloc(sizeof(*call));

    if (call == NULL)
        return NULL;
    memset(call, 0, offsetof(struct pool_call, target)); /* the rest is large and copied into */
    call->tensors = NULL;
    call->choices = NULL;
    call->pool = pool;
    call->start.run = start_call;
    call->cancel.run = cancel_call;
    atomic_init(&call->refs, 1);
    copy_target(&call->target, target);
    bool copied = call_headers_copy(&call->headers, headers);
    if (copied && copy_tensors(call, tensors, headers->tensor_count) &&
        copy_choices(call, plain, headers->tensor_count))
        return call;
    call_headers_free(&call->headers);
    mem_free(call->tensors);
    mem_free(call->choices);
    mem_free(call);
    return NULL;
}

/* Counts the call as open. */
static skep_status admit(struct pool *pool, struct skep_error *err)
{
    if (atomic_load(&pool->stopping))
        return error_set(err, SKEP_CANCELLED, "the client is shutting down");
    if (atomic_fetch_add_explicit(&pool->open_calls, 1, memory_order_relaxed) >=
        POOL_MAX_OPEN_CALLS) {
        atomic_fetch_sub_explicit(&pool->open_calls, 1, memory_order_relaxed);
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "%d calls are open already",
                         POOL_MAX_OPEN_CALLS);
    }
    return SKEP_OK;
}

skep_status pool_call(struct pool *pool, const struct pool_target *target,
                      const struct call_headers *headers, const DLTensor *const *tensors,
                      uint64_t deadline_us, pool_done_fn done, void *arg, struct pool_call **out,
                      struct skep_error *err)
{
    return pool_call_encoded(pool, target, headers, tensors, NULL, deadline_us, NULL, done, arg,
                             out, err);
}

skep_status pool_call_encoded(struct pool *pool, const struct pool_target *target,
                              const struct call_headers *headers, const DLTensor *const *tensors,
                              const DLTensor *const *plain, uint64_t deadline_us,
                              const struct pool_alarm *alarm, pool_done_fn done, void *arg,
                              struct pool_call **out, struct skep_error *err)
{
    skep_status rc = check_call(target, headers, tensors, plain, err);

    if (rc == SKEP_OK)
        rc = admit(pool, err);
    if (rc != SKEP_OK)
        return rc;
    struct pool_call *call = new_call(pool, target, headers, tensors, plain);
    if (call == NULL) {
        atomic_fetch_sub_explicit(&pool->open_calls, 1, memory_order_relaxed);
        return error_no_memory(err, "call", sizeof(*call));
    }
    call->done = done;
    call->arg = arg;
    call->deadline.deadline_us = deadline_us;
    if (alarm != NULL) {
        call->late_us = alarm->late_us;
        call->connect_by_us = alarm->connect_by_us;
        call->known_silent_at_once = alarm->known_silent_at_once;
        call->alarm.deadline_us = next_alarm(call);
        call->slow = alarm->slow;
    }
    if (out != NULL)
        *out = call;
    loop_post(pool->loop, &call->start);
    return SKEP_OK;
}
