/*
 * skep tracker: a tracker alone, until STOP, SIGINT, SIGTERM or SIGHUP.
 *
 * In a swarm it is a node without experts, whose tracker is the point of it; with --no-dht it is
 * the tracker's port and nothing else.
 */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <skep/log.h>
#include <skep/node.h>
#include <skep/tracker.h>

#include "base/log.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/service_notify.h"
#include "cli/signals.h"
#include "cli/swarm_options.h"
#include "cli/tracker_json.h"
#include "node/lifecycle/check_alive.h"

enum { DEFAULT_PORT_END = 9199, MAX_PORT = 65535 };

static const struct option_spec specs[] = {
    {.name = "host",
     .kind = OPTION_STRING,
     .placeholder = "HOST",
     .default_text = "0.0.0.0",
     .help = "address to listen on; :: listens on IPv4 and IPv6"},
    {.name = "port",
     .kind = OPTION_INT,
     .min = 0,
     .max = MAX_PORT,
     .default_text = "9190",
     .help = "first port to try; 0 picks any"},
    {.name = "port-end",
     .kind = OPTION_INT,
     .min = 1,
     .max = MAX_PORT + 1,
     .help = "end of the range of ports to try; this one is not tried",
     .unset = "9199 or, from there on, --port + 1"},
    {.name = "silent", .kind = OPTION_FLAG, .help = "log only warnings and errors"},
    {.name = "stats-report-interval",
     .kind = OPTION_INT,
     .min = 0,
     .max = 86400,
     .unit = "s",
     .default_text = "60s",
     .help = "how often to report statistics: one log line while clients are connected, and "
             "with --json all counters; 0: never"},
    {.name = "reuse-addr",
     .kind = OPTION_FLAG,
     .default_text = "true",
     .help = "bind even if connections of an earlier process linger on the port"},
    {.name = "timeout",
     .kind = OPTION_INT,
     .min = 0,
     .max = 86400,
     .unit = "s",
     .default_text = "10s",
     .help = "limit for completing a message or reading replies; idle connections do not "
             "time out. 0: no limit"},
    {.name = "max-connections",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000000,
     .default_text = "65536",
     .help = "maximum open connections; when full, a connection without a magic number after"
             " 1 s is closed, otherwise the newest one"},
    {.name = "stop-key",
     .kind = OPTION_STRING,
     .placeholder = "TEXT",
     .help = "key that a STOP message must contain",
     .unset = "tracker:<random>"},
    /* swarm */
    {.name = "no-dht",
     .kind = OPTION_FLAG,
     .help = "run a plain tracker: publish nothing and ask no other tracker"},
    {.name = "no-federation",
     .kind = OPTION_FLAG,
     .help = "do not exchange resources with other trackers of the swarm"},
    SWARM_OPTION_SPECS("tracker"),
    {.name = "listen",
     .kind = OPTION_ENDPOINT,
     .any_port = true,
     .help = "encrypted TCP endpoint for other trackers of the swarm",
     .unset = "--host, any port"},
    SWARM_ENDPOINT_OPTION_SPECS,
    {.name = "json",
     .kind = OPTION_FLAG,
     .help = "print a JSON line when ready, and one at shutdown"},
};

static const struct option_table table = {
    .command = "tracker",
    .summary = "Runs a tracker that speaks the TVM RPC tracker protocol and takes part in a "
               "swarm: it publishes its resources in the DHT and requests what it lacks from "
               "other trackers. A STOP message with its stop key, SIGINT, SIGTERM or SIGHUP "
               "stops it; a second signal ends it at once.",
    .example = "skep tracker --host 0.0.0.0 --port 9190 --port-end 9199\n"
               "skep tracker --host 127.0.0.1 --port 0 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .log_level = "info",
};
const struct option_table *const cmd_tracker_options = &table;

/* Shared with the signal handler. */
struct running {
    struct skep_tracker *_Atomic tracker; /* NULL: not started yet */
    atomic_bool stop;                     /* asked for before it had started */
};

static void on_signal(void *arg)
{
    struct running *running = arg;

    atomic_store(&running->stop, true);
    struct skep_tracker *tracker = atomic_load(&running->tracker);
    if (tracker != NULL)
        skep_tracker_request_stop(tracker);
}

/* --port-end is above --port, and of no use beside a --port of 0. */
static int check_ports(struct options *o)
{
    int code = CLI_DONE;

    if (options_given(o, "port-end") && options_int(o, "port-end") <= options_int(o, "port"))
        code = options_outrank(o, "port", "port-end");
    if (code == CLI_DONE && options_int(o, "port") == 0)
        code = options_contrary(o, "port-end", "port", "does nothing with --port 0, which is any");
    if (code == CLI_DONE && options_given(o, "port-end") &&
        options_int(o, "port-end") <= options_int(o, "port"))
        code = cli_usage_error(table.command,
                               "--port-end %" PRId64 ": expected more than --port %" PRId64,
                               options_int(o, "port-end"), options_int(o, "port"));
    return code;
}

static int read_options(struct options *o, struct skep_tracker_options *out)
{
    int code = check_ports(o);

    if (code != CLI_DONE)
        return code;
    skep_tracker_options_init(out);
    out->host = options_string(o, "host");
    out->port = (uint16_t)options_int(o, "port");
    int64_t end = options_int(o, "port-end");
    if (!options_given(o, "port-end"))
        end = out->port < DEFAULT_PORT_END ? DEFAULT_PORT_END : out->port + 1;
    out->port_end = (uint32_t)end;
    out->silent = options_flag(o, "silent");
    out->report_interval_s = (uint32_t)options_int(o, "stats-report-interval");
    out->reuse_addr = options_flag(o, "reuse-addr");
    out->timeout_ms = (uint32_t)options_int(o, "timeout") * 1000u;
    out->max_connections = (unsigned)options_int(o, "max-connections");
    out->stop_key = options_string(o, "stop-key");
    return CLI_DONE;
}

/* Options of a swarm, without one; and of reports that nobody gets to see. */
static int check_idle(struct options *o)
{
    static const char *const names[] = {"no-federation", "swarm",        "swarm-key",
                                        "identity",      "listen",       "dht-listen",
                                        "announce",      "update-period"};
    static const char no_swarm[] = "does nothing with --no-dht";
    int code = options_contrary(o, "initial-peers", "no-dht", no_swarm);

    if (code == CLI_DONE)
        code = options_contrary(o, "peers-file", "no-dht", no_swarm);
    if (code == CLI_DONE && options_flag(o, "silent") && !options_flag(o, "json"))
        code = options_idle(o, "stats-report-interval",
                            "does nothing with --silent unless --json is given");
    for (size_t i = 0; i < OPTION_COUNT(names) && code == CLI_DONE; i++)
        if (options_flag(o, "no-dht"))
            code = options_idle(o, names[i], "does nothing with --no-dht");
    return code;
}

/* How long to wait for the end before the next report. */
static uint32_t report_ms(const struct options *o)
{
    int64_t interval_s = options_int(o, "stats-report-interval");

    return options_flag(o, "json") && interval_s > 0 ? (uint32_t)interval_s * 1000 : UINT32_MAX;
}

/* @param stats, keys  taken. */
static void tell_stats(const char *event, json_t *stats, json_t *keys)
{
    json_object_set_new(stats, "event", json_string(event));
    json_object_set_new(stats, "by_key", keys);
    json_print_event(stats);
}

static void tell_tracker(struct skep_tracker *tracker, const char *event)
{
    struct skep_tracker_stats s;

    skep_tracker_stats(tracker, &s);
    tell_stats(event, json_tracker_stats(&s), json_tracker_keys(tracker));
}

static void tell_node(struct skep_node *node, const char *event)
{
    struct skep_node_stats s;

    skep_node_stats(node, &s);
    tell_stats(event, json_node_tracker_stats(&s), json_node_tracker_keys(node));
}

static bool wait_tracker(void *arg, uint32_t timeout_ms)
{
    return skep_tracker_wait(arg, timeout_ms);
}

static void touch_tracker(void *arg)
{
    struct skep_tracker_stats stats;

    skep_tracker_stats(arg, &stats); /* which asks its thread */
}

static void report_tracker(void *arg)
{
    tell_tracker(arg, "stats");
}

static bool wait_node(void *arg, uint32_t timeout_ms)
{
    return skep_node_wait(arg, timeout_ms);
}

static void touch_node(void *arg)
{
    node_check_alive(arg);
}

static void report_node(void *arg)
{
    tell_node(arg, "stats");
}

static void serve(const struct options *o, struct running *running, struct skep_tracker *tracker)
{
    bool json = options_flag(o, "json");
    const struct service_run run = {
        .wait = wait_tracker,
        .touch = touch_tracker,
        .report = report_tracker,
        .report_ms = report_ms(o),
        .arg = tracker,
    };

    if (json)
        json_print_event(json_pack(
            "{s:s, s:s, s:i, s:s, s:s}", "event", "ready", "host", options_string(o, "host"),
            "port", (int)skep_tracker_port(tracker), "endpoint", skep_tracker_endpoint(tracker),
            "stop_key", skep_tracker_stop_key(tracker)));
    atomic_store(&running->tracker, tracker);
    if (atomic_load(&running->stop)) /* the signal came before it could be passed on */
        skep_tracker_request_stop(tracker);
    service_notify_ready();
    service_wait(&run);
    if (!options_flag(o, "silent"))
        log_info("tracker: stopped");
    if (json)
        tell_tracker(tracker, "stopped");
}

/* --- in a swarm ---------------------------------------------------------------------------- */

/* Room for the texts that options of a node point to. */
struct texts {
    struct swarm_texts swarm;
    char tracker[ENDPOINT_TEXT_BYTES];
};

/* --host, which may have brackets, with a port, as endpoints are written. */
static const char *host_text(const char *host, uint16_t port, char out[static ENDPOINT_TEXT_BYTES])
{
    struct endpoint e = {.port = port};
    int len = (int)strlen(host);
    bool brackets = len > 1 && host[0] == '[' && host[len - 1] == ']';

    snprintf(e.host, sizeof(e.host), "%.*s", brackets ? len - 2 : len, host + brackets);
    return endpoint_format(&e, out);
}

static void fill_node_options(const struct options *o, const struct skep_tracker_options *tracker,
                              struct texts *texts, struct skep_node_options *out)
{
    skep_node_options_init(out);
    swarm_options_read(o, &texts->swarm, out);
    if (out->listen == NULL)
        out->listen = host_text(tracker->host, 0, texts->swarm.listen);
    out->no_federation = options_flag(o, "no-federation");
    out->tracker_listen = host_text(tracker->host, tracker->port, texts->tracker);
    out->tracker_any_port = tracker->port == 0;
    out->tracker_port_end = tracker->port_end;
    out->tracker_silent = tracker->silent;
    out->tracker_report_interval_s = tracker->report_interval_s;
    out->tracker_reuse_addr = tracker->reuse_addr;
    out->tracker_timeout_ms = tracker->timeout_ms;
    out->tracker_max_connections = tracker->max_connections;
    out->tracker_stop_key = tracker->stop_key;
    out->stop_with_tracker = true;
}

static void tell_node_ready(const struct options *o, struct skep_node *node)
{
    const char *endpoint = skep_node_tracker_endpoint(node);
    struct endpoint e = {0};

    if (endpoint_parse(&e, endpoint, false, NULL) != SKEP_OK)
        return; /* it is as endpoint_format() wrote it */
    json_print_event(json_pack("{s:s, s:s, s:i, s:s, s:s, s:s, s:s, s:i, s:s}", "event", "ready",
                               "host", options_string(o, "host"), "port", (int)e.port, "endpoint",
                               endpoint, "stop_key", skep_node_tracker_stop_key(node), "peer_id",
                               skep_node_peer_id(node), "node_endpoint", skep_node_endpoint(node),
                               "dht_port", (int)skep_node_dht_port(node), "initial_peers",
                               skep_node_initial_peer(node)));
}

static void stop_node(void *arg)
{
    skep_node_request_stop(arg);
}

static int run_node(const struct options *o, const struct skep_tracker_options *tracker)
{
    struct skep_node_options node_options;
    struct skep_node *node = NULL;
    struct skep_error err = {0};
    struct texts texts;
    bool json = options_flag(o, "json");
    struct service_run run = {
        .wait = wait_node,
        .touch = touch_node,
        .report = report_node,
        .report_ms = report_ms(o),
    };

    if (tracker->silent)
        skep_log_set(SKEP_LOG_WARNING, NULL, NULL);
    fill_node_options(o, tracker, &texts, &node_options);
    skep_status rc = skep_node_new(&node_options, &node, &err);
    if (rc == SKEP_INVALID_ARGUMENT)
        return cli_usage_error(table.command, "%s", err.message);
    if (rc == SKEP_OK) {
        run.arg = node;
        service_notify_begin();
        signals_begin(stop_node, node);
        rc = skep_node_start(node, &err);
        if (rc == SKEP_OK) {
            if (json)
                tell_node_ready(o, node);
            service_notify_ready();
            service_wait(&run);
            if (json)
                tell_node(node, "stopped");
        }
        signals_end();
    }
    skep_node_free(node);
    return rc == SKEP_OK || rc == SKEP_CANCELLED ? CLI_DONE : cli_fail_before(table.command, &err);
}

/* --- alone --------------------------------------------------------------------------------- */

static int run_alone(const struct options *o, const struct skep_tracker_options *options)
{
    static struct running running; /* outlives what the handler may still read */
    struct skep_tracker *tracker = NULL;
    struct skep_error err = {0};
    int code = CLI_DONE;

    service_notify_begin();
    signals_begin(on_signal, &running);
    if (skep_tracker_start(options, &tracker, &err) == SKEP_OK)
        serve(o, &running, tracker);
    else
        code = cli_fail_before(table.command, &err);
    signals_end();
    skep_tracker_free(tracker);
    return code;
}

int cmd_tracker(int argc, char **argv)
{
    struct options o;
    struct skep_tracker_options options;
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = read_options(&o, &options);
    if (code == CLI_DONE)
        code = check_idle(&o);
    if (code == CLI_DONE)
        code = options_flag(&o, "no-dht") ? run_alone(&o, &options) : run_node(&o, &options);
    options_free(&o);
    return code;
}
