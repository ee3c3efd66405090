/* skep tracker: a tracker alone, until STOP, SIGINT or SIGTERM. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include <skep/tracker.h>

#include "base/log.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/signals.h"

enum { DEFAULT_PORT_END = 9199, MAX_PORT = 65535 };

static const struct option_spec specs[] = {
    {.name = "host",
     .kind = OPTION_STRING,
     .placeholder = "HOST",
     .default_text = "0.0.0.0",
     .help = "name or address to listen on; :: is both families"},
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
     .help = "ports below this one are tried; by default 9199 or, from there on, only --port"},
    {.name = "silent", .kind = OPTION_FLAG, .help = "log warnings and errors only"},
    {.name = "reuse-addr",
     .kind = OPTION_FLAG,
     .default_text = "true",
     .help = "take a port although connections of an earlier process linger on it"},
    {.name = "timeout",
     .kind = OPTION_INT,
     .min = 0,
     .max = 86400,
     .unit = "s",
     .default_text = "10",
     .help = "for the rest of a message that has begun and for answers that nobody reads; idle "
             "servers and clients are not timed out. 0: never"},
    {.name = "max-connections",
     .kind = OPTION_INT,
     .min = 1,
     .max = 1000000,
     .default_text = "65536",
     .help = "beyond, the newest connection is refused"},
    {.name = "stop-key",
     .kind = OPTION_STRING,
     .placeholder = "TEXT",
     .help = "what a STOP message must present; without it tracker:<random>"},
    {.name = "json",
     .kind = OPTION_FLAG,
     .help = "print a line of JSON when ready, and one at the end"},
};

static const struct option_table table = {
    .command = "tracker",
    .summary = "Runs a tracker that speaks the TVM RPC tracker protocol, until it gets a STOP "
               "message with its stop key, SIGINT or SIGTERM; a second signal ends it at once.",
    .example = "skep tracker --host 0.0.0.0 --port 9190 --port-end 9199\n"
               "skep tracker --host 127.0.0.1 --port 0 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .log_level = "info",
};

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

static int read_options(const struct options *o, struct skep_tracker_options *out)
{
    skep_tracker_options_init(out);
    out->host = options_string(o, "host");
    out->port = (uint16_t)options_int(o, "port");
    int64_t end = options_int(o, "port-end");
    if (!options_given(o, "port-end"))
        end = out->port < DEFAULT_PORT_END ? DEFAULT_PORT_END : out->port + 1;
    else if (out->port != 0 && end <= out->port)
        return cli_usage_error(table.command,
                               "--port-end %" PRId64 ": expected more than --port %u", end,
                               (unsigned)out->port);
    out->port_end = (uint32_t)end;
    out->silent = options_flag(o, "silent");
    out->reuse_addr = options_flag(o, "reuse-addr");
    out->timeout_ms = (uint32_t)options_int(o, "timeout") * 1000u;
    out->max_connections = (unsigned)options_int(o, "max-connections");
    out->stop_key = options_string(o, "stop-key");
    return CLI_DONE;
}

static void print_event(json_t *event)
{
    if (event != NULL && json_dumpf(event, stdout, JSON_COMPACT) == 0)
        putchar('\n');
    json_decref(event);
    fflush(stdout);
}

static void tell_stopped(struct skep_tracker *tracker)
{
    struct skep_tracker_stats s;

    skep_tracker_stats(tracker, &s);
    print_event(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "event", "stopped",
                          "connections", (json_int_t)s.connections_accepted, "connections_refused",
                          (json_int_t)s.connections_refused, "messages", (json_int_t)s.messages,
                          "puts", (json_int_t)s.puts, "requests", (json_int_t)s.requests,
                          "requests_served", (json_int_t)s.requests_served, "protocol_errors",
                          (json_int_t)s.protocol_errors, "timeouts", (json_int_t)s.timeouts));
}

static void serve(const struct options *o, struct running *running, struct skep_tracker *tracker)
{
    bool json = options_flag(o, "json");

    if (json)
        print_event(json_pack("{s:s, s:s, s:i, s:s, s:s}", "event", "ready", "host",
                              options_string(o, "host"), "port", (int)skep_tracker_port(tracker),
                              "endpoint", skep_tracker_endpoint(tracker), "stop_key",
                              skep_tracker_stop_key(tracker)));
    atomic_store(&running->tracker, tracker);
    if (atomic_load(&running->stop)) /* the signal came before it could be passed on */
        skep_tracker_request_stop(tracker);
    skep_tracker_wait(tracker, UINT32_MAX);
    if (!options_flag(o, "silent"))
        log_info("tracker: stopped");
    if (json)
        tell_stopped(tracker);
}

int cmd_tracker(int argc, char **argv)
{
    struct options o;
    struct skep_tracker_options options;
    struct skep_tracker *tracker = NULL;
    struct skep_error err = {0};
    static struct running running; /* outlives what the handler may still read */
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = read_options(&o, &options);
    if (code == CLI_DONE) {
        signals_begin(on_signal, &running);
        if (skep_tracker_start(&options, &tracker, &err) == SKEP_OK)
            serve(&o, &running, tracker);
        else
            code = cli_fail(table.command, &err);
        signals_end();
        skep_tracker_free(tracker);
    }
    options_free(&o);
    return code;
}
