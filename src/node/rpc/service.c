/* Methods by name. */
#include "node/rpc/service.h"

#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

enum method {
    METHOD_INFO,
    METHOD_FORWARD,
    METHOD_BACKWARD,
    METHOD_PING,
    METHOD_STATS,
    METHOD_DIAL_BACK,
    METHOD_LEASE,
    METHOD_TRACKER_REQUEST,
    METHOD_TRACKER_SUMMARY,
    METHOD_COUNT,
};

struct method_row {
    const char *name;
    bool takes_tensors;
};

static const struct method_row methods[METHOD_COUNT] = {
    [METHOD_INFO] = {"info", false},
    [METHOD_FORWARD] = {"forward", true},
    [METHOD_BACKWARD] = {"backward", true},
    [METHOD_PING] = {"ping", false},
    [METHOD_STATS] = {"stats", false},
    [METHOD_DIAL_BACK] = {"dial_back", false},
    [METHOD_LEASE] = {"lease", false},
    [METHOD_TRACKER_REQUEST] = {"tracker.request", false},
    [METHOD_TRACKER_SUMMARY] = {"tracker.summary", false},
};

/* The `user` of lease calls, by which on_finished() knows them without comparing names. */
static char lease_mark;

static enum method method_of(const char *name)
{
    int m = 0;

    while (m < METHOD_COUNT && strcmp(methods[m].name, name) != 0)
        m++;
    return (enum method)m;
}

struct local_expert *service_hold(const struct service *service, const char *uid,
                                  struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    struct local_expert *local = roster_hold(service->roster, uid);

    if (local == NULL)
        error_set(err, SKEP_NOT_FOUND, "expert %s: not served by this node, which has %zu",
                  text_quote(uid, strlen(uid), quoted), roster_count(service->roster));
    return local;
}

static skep_status check_call(const struct call_headers *headers, enum method method,
                              struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];

    if (method == METHOD_COUNT)
        return error_set(err, SKEP_UNIMPLEMENTED,
                         "method %s: unknown, expected info, forward, backward, ping, stats, "
                         "dial_back, lease, tracker.request or tracker.summary",
                         text_quote(headers->method, strlen(headers->method), quoted));
    if (!methods[method].takes_tensors && headers->tensor_count > 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %zu tensor%s, expected none",
                         methods[method].name, headers->tensor_count,
                         text_plural(headers->tensor_count));
    return SKEP_OK;
}

static skep_status check_served(const struct service *service, const char *uid,
                                struct skep_error *err)
{
    struct local_expert *local = service_hold(service, uid, err);

    if (local == NULL)
        return SKEP_NOT_FOUND;
    local_expert_release(local);
    return SKEP_OK;
}

static void answer_info(struct service *service, struct server_call *call, const char *uid)
{
    struct skep_error err;
    struct local_expert *local = service_hold(service, uid, &err);

    if (local == NULL) { /* it gave its UID up since the call began */
        server_call_reply(call, &err, NULL, 0, NULL, 0);
        return;
    }
    report_info(service, call, local);
    local_expert_release(local);
}

static skep_status on_started(void *arg, struct server_call *call,
                              const struct call_headers *headers, void **user,
                              struct skep_error *err)
{
    struct service *service = arg;
    enum method method = method_of(headers->method);
    struct request *request = NULL;
    struct skep_error local;
    skep_status rc;

    if (err == NULL)
        err = &local;
    rc = check_call(headers, method, err);
    if (rc == SKEP_OK && method == METHOD_INFO)
        rc = check_served(service, headers->uid, err);
    if (rc == SKEP_OK && methods[method].takes_tensors)
        rc = request_start(service, call, headers, method == METHOD_BACKWARD, &request, err);
    *user = method == METHOD_LEASE ? (void *)&lease_mark : (void *)request;
    if (rc != SKEP_OK) {
        atomic_fetch_add_explicit(&service->refused, 1, memory_order_relaxed);
        log_debug("call refused: %s: %s", skep_status_name(rc), err->message);
    }
    return rc;
}

static void on_prepare(void *arg, struct server_call *call)
{
    (void)arg;
    if (methods[method_of(server_call_headers(call)->method)].takes_tensors)
        request_prepare(server_call_user(call));
}

static void on_complete(void *arg, struct server_call *call)
{
    struct service *service = arg;
    const struct call_headers *headers = server_call_headers(call);

    switch (method_of(headers->method)) {
    case METHOD_FORWARD:
    case METHOD_BACKWARD:
        request_complete(server_call_user(call));
        break;
    case METHOD_INFO:
        answer_info(service, call, headers->uid);
        break;
    case METHOD_STATS:
        report_stats(service, call);
        break;
    case METHOD_DIAL_BACK:
        dial_back_start(service->dial_back, call);
        break;
    case METHOD_LEASE:
        lease_server_call(service->leases, call);
        break;
    case METHOD_TRACKER_REQUEST:
        tracking_request(atomic_load(&service->tracking), call);
        break;
    case METHOD_TRACKER_SUMMARY:
        tracking_summary(atomic_load(&service->tracking), call);
        break;
    case METHOD_PING:
    case METHOD_COUNT: /* refused in on_started() */
        report_empty(call);
        break;
    }
}

static void on_finished(void *arg, struct server_call *call, void *user)
{
    struct service *service = arg;

    if (user == &lease_mark)
        lease_server_finished(service->leases, call);
    else if (user != NULL)
        request_finished(user, server_call_is_gone(call));
}

const struct server_handlers service_handlers = {
    .started = on_started,
    .prepare = on_prepare,
    .complete = on_complete,
    .finished = on_finished,
};
