/* The public tracker: a server, and the polite way to end it. */
#include <skep/tracker.h>

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "tracker/client.h"
#include "tracker/key_stats.h"
#include "tracker/server.h"

enum {
    DEFAULT_PORT = 9190,
    DEFAULT_PORT_END = 9199,
    DEFAULT_TIMEOUT_MS = 10000,
    DEFAULT_MAX_CONNECTIONS = 65536,
    DEFAULT_REPORT_INTERVAL_S = 60,
};

struct skep_tracker {
    struct tracker_server *server;
    char endpoint[ENDPOINT_TEXT_BYTES];
};

void skep_tracker_options_init(struct skep_tracker_options *options)
{
    *options = (struct skep_tracker_options){
        .size = sizeof(*options),
        .host = "0.0.0.0",
        .port = DEFAULT_PORT,
        .port_end = DEFAULT_PORT_END,
        .reuse_addr = true,
        .timeout_ms = DEFAULT_TIMEOUT_MS,
        .max_connections = DEFAULT_MAX_CONNECTIONS,
        .report_interval_s = DEFAULT_REPORT_INTERVAL_S,
    };
}

static skep_status check(const struct skep_tracker_options *options, struct skep_error *err)
{
    skep_status rc = error_if_null(options, "options", err);

    if (rc != SKEP_OK)
        return rc;
    if (options->size != sizeof(*options))
        return error_set(err, SKEP_INVALID_ARGUMENT, "options: not made by their _init function");
    if (options->host == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "host: none, expected a name or address");
    if (options->max_connections == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "max_connections: 0, expected 1 or more");
    if (options->stop_key != NULL && options->stop_key[0] == '\0')
        return error_set(err, SKEP_INVALID_ARGUMENT, "stop_key: empty");
    return SKEP_OK;
}

skep_status skep_tracker_start(const struct skep_tracker_options *options,
                               struct skep_tracker **out, struct skep_error *err)
{
    struct skep_tracker *tracker = NULL;
    struct endpoint bound;
    skep_status rc = check(options, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    const struct tracker_server_config config = {
        .host = options->host,
        .port = options->port,
        .port_end = options->port_end,
        .reuse_addr = options->reuse_addr,
        .silent = options->silent,
        .timeout_ms = options->timeout_ms,
        .max_connections = options->max_connections,
        .report_interval_s = options->report_interval_s,
        .stop_key = options->stop_key,
    };
    tracker = mem_calloc(1, sizeof(*tracker));
    if (tracker == NULL)
        return error_no_memory(err, "tracker", sizeof(*tracker));
    fd_raise_limit();
    rc = tracker_server_new(&config, &tracker->server, err);
    if (rc != SKEP_OK) {
        mem_free(tracker);
        return rc;
    }
    tracker_server_endpoint(tracker->server, &bound);
    endpoint_format(&bound, tracker->endpoint);
    if (!options->silent)
        log_info("tracker: listening on %s", tracker->endpoint);
    *out = tracker;
    return SKEP_OK;
}

uint16_t skep_tracker_port(const struct skep_tracker *tracker)
{
    return tracker_server_port(tracker->server);
}

const char *skep_tracker_endpoint(const struct skep_tracker *tracker)
{
    return tracker->endpoint;
}

const char *skep_tracker_stop_key(const struct skep_tracker *tracker)
{
    return tracker_server_stop_key(tracker->server);
}

skep_status skep_tracker_summary(struct skep_tracker *tracker, char **text, struct skep_error *err)
{
    struct bytes json = {0};

    *text = NULL;
    if (tracker_server_wait(tracker->server, 0))
        return error_set(err, SKEP_FAILED_PRECONDITION, "the tracker has stopped");
    skep_status rc = tracker_server_summary(tracker->server, &json, err);
    if (rc == SKEP_OK && !bytes_append(&json, "", 1))
        rc = error_no_memory(err, "summary", json.len + 1);
    if (rc == SKEP_OK)
        *text = (char *)json.data;
    else
        bytes_free(&json);
    return rc;
}

void skep_tracker_text_free(char *text)
{
    mem_free(text);
}

void skep_tracker_stats(struct skep_tracker *tracker, struct skep_tracker_stats *out)
{
    tracker_server_stats(tracker->server, out);
}

skep_status skep_tracker_each_key(struct skep_tracker *tracker, skep_tracker_key_fn fn, void *arg,
                                  struct skep_error *err)
{
    struct key_stats *keys;
    skep_status rc = key_stats_take(tracker->server, &keys, err);

    if (rc != SKEP_OK)
        return rc;
    key_stats_walk(keys, fn, arg);
    key_stats_free(keys);
    return SKEP_OK;
}

void skep_tracker_request_stop(struct skep_tracker *tracker)
{
    tracker_server_request_stop(tracker->server);
}

bool skep_tracker_wait(struct skep_tracker *tracker, uint32_t timeout_ms)
{
    uint64_t deadline_us = timeout_ms == UINT32_MAX ? CLOCK_NEVER : clock_deadline_us(timeout_ms);

    return tracker_server_wait(tracker->server, deadline_us);
}

/* Where this machine reaches what listens on a wildcard address. */
static void reachable(const struct skep_tracker *tracker, struct endpoint *out)
{
    tracker_server_endpoint(tracker->server, out);
    if (endpoint_is_unspecified(out))
        snprintf(out->host, sizeof(out->host), "%s",
                 strchr(out->host, ':') != NULL ? "::1" : "127.0.0.1");
}

void skep_tracker_terminate(struct skep_tracker *tracker, uint32_t grace_ms)
{
    struct endpoint at;
    struct skep_error err;

    if (tracker == NULL || tracker_server_wait(tracker->server, 0))
        return;
    uint64_t deadline_us = clock_deadline_us(grace_ms);
    reachable(tracker, &at);
    if (tracker_ask_to_stop(&at, skep_tracker_stop_key(tracker), deadline_us, &err) != SKEP_OK)
        log_info("tracker: does not stop when asked: %s", err.message);
    else if (tracker_server_wait(tracker->server, deadline_us))
        return;
    tracker_server_end(tracker->server);
}

void skep_tracker_free(struct skep_tracker *tracker)
{
    if (tracker == NULL)
        return;
    tracker_server_free(tracker->server);
    mem_free(tracker);
}
