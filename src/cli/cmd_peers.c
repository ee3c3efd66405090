/* skep peers: the nodes of a swarm, their state and load, and how far away they are. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include <skep/watch.h>
#include "base/endpoint.h"
#include "cli/client_options.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"

enum { PEER_ID_SHOWN = 12 };

static const struct option_spec specs[] = {
    {.name = "no-ping", .kind = OPTION_FLAG, .help = "do not connect to the nodes"},
    {.name = "endpoint",
     .kind = OPTION_ENDPOINT,
     .help = "ask only the node at this address, without the DHT"},
    CLIENT_OPTION_SPECS,
};

static const struct option_table table = {
    .command = "peers",
    .summary = "Lists the nodes of a swarm: state, version, experts, load, round trip, and what "
               "each reports of its health: stalled experts, DHT peers, reachability. The exit "
               "code is 3 if there are none.",
    .example = "skep peers --initial-peers 192.0.2.10:4222\n"
               "skep peers --endpoint 127.0.0.1:8000",
    .specs = specs,
    .count = OPTION_COUNT(specs),
};
const struct option_table *const cmd_peers_options = &table;

static json_t *json_health(const struct skep_peer *p)
{
    if (!p->has_health)
        return json_null();
    return json_pack("{s:I, s:I, s:s}", "experts_stalled", (json_int_t)p->experts_stalled,
                     "dht_peers", (json_int_t)p->dht_peers, "reachability", p->reachability);
}

static void print_json(const struct skep_peer *peers, size_t count)
{
    json_t *all = json_array();

    for (size_t i = 0; i < count; i++) {
        const struct skep_peer *p = &peers[i];
        json_array_append_new(
            all, json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:I, s:I, s:s, s:o, s:o}", "peer_id",
                           p->peer_id, "endpoint", p->endpoint, "state", p->state, "version",
                           p->version, "experts", (json_int_t)p->experts, "examples_per_s",
                           p->examples_per_second, "queued_tasks", (json_int_t)p->queued_tasks,
                           "expires_at", (json_int_t)p->expires_at, "reached",
                           skep_status_name(p->reached), "round_trip_ms",
                           p->reached == SKEP_OK ? json_real(p->round_trip_ms) : json_null(),
                           "health", json_health(p)));
    }
    json_print(all, stdout);
}

static const char *text_or_dash(const char *text)
{
    return text[0] != '\0' ? text : "-";
}

/* A part of a node's health. */
static void count_cell(struct table *t, const struct skep_peer *p, uint32_t count)
{
    if (p->has_health)
        table_cell(t, "%" PRIu32, count);
    else
        table_cell(t, "-");
}

static void print_table(const struct skep_peer *peers, size_t count)
{
    static const char *const headers[] = {"node",        "state",       "version",  ">experts",
                                          ">stalled",    ">examples/s", ">waiting", ">DHT peers",
                                          ">round trip", "reachable",   "endpoint"};
    struct table *t = table_new(headers, OPTION_COUNT(headers));

    for (size_t i = 0; i < count; i++) {
        const struct skep_peer *p = &peers[i];
        table_cell(t, "%.*s", PEER_ID_SHOWN, text_or_dash(p->peer_id));
        table_cell(t, "%s", text_or_dash(p->state));
        table_cell(t, "%s", text_or_dash(p->version));
        table_cell(t, "%" PRIu32, p->experts);
        count_cell(t, p, p->experts_stalled);
        table_cell(t, "%.1f", p->examples_per_second);
        table_cell(t, "%" PRIu32, p->queued_tasks);
        count_cell(t, p, p->dht_peers);
        if (p->reached == SKEP_OK)
            table_cell(t, "%.2f ms", p->round_trip_ms);
        else
            table_cell(t, "%s", p->reached == SKEP_CANCELLED ? "-" : skep_status_text(p->reached));
        table_cell(t, "%s", text_or_dash(p->reachability));
        table_cell(t, "%s", p->endpoint);
    }
    table_print(t, stdout);
    table_free(t);
}

static int list_peers(const struct options *o)
{
    struct skep_client *client;
    uint64_t deadline_us;
    struct skep_peer *peers;
    size_t count;
    struct skep_error err = {0};
    bool json = options_flag(o, "json");
    int code = client_from_options(table.command, o, false, &client, &deadline_us);

    if (code != CLI_DONE)
        return code;
    skep_status rc = skep_client_peers(client, !options_flag(o, "no-ping"),
                                       client_left_ms(deadline_us), &peers, &count, &err);
    if (json && (rc == SKEP_OK || rc == SKEP_NOT_FOUND))
        print_json(peers, count);
    else if (rc == SKEP_OK)
        print_table(peers, count);
    if (rc == SKEP_NOT_FOUND && json)
        code = CLI_NOT_FOUND;
    else if (rc != SKEP_OK)
        code = cli_fail(table.command, &err);
    skep_peers_free(peers);
    skep_client_free(client);
    return code;
}

/* One node, straight. */
static int ask_peer(const struct options *o)
{
    struct skep_client *client;
    uint64_t deadline_us;
    struct skep_peer peer;
    struct skep_error err = {0};
    char endpoint[ENDPOINT_TEXT_BYTES];
    int code = client_from_options(table.command, o, true, &client, &deadline_us);

    if (code != CLI_DONE)
        return code;
    endpoint_format(options_endpoint(o, "endpoint"), endpoint);
    if (skep_client_peer_at(client, endpoint, client_left_ms(deadline_us), &peer, &err) != SKEP_OK)
        code = cli_fail(table.command, &err);
    else if (options_flag(o, "json"))
        print_json(&peer, 1);
    else
        print_table(&peer, 1);
    skep_client_free(client);
    return code;
}

int cmd_peers(int argc, char **argv)
{
    struct options o;
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    code = options_contrary(&o, "no-ping", "endpoint",
                            "contradicts --endpoint, which connects to the node");
    if (code == CLI_DONE)
        code = client_options_check_direct(&o);
    if (code == CLI_DONE)
        code = options_endpoint(&o, "endpoint") != NULL ? ask_peer(&o) : list_peers(&o);
    options_free(&o);
    return code;
}
