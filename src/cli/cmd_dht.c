/* skep dht: a bootstrap peer without experts, until SIGINT, SIGTERM or SIGHUP. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/service_notify.h"
#include "cli/signals.h"
#include "cli/swarm_options.h"
#include "dht/swarm/swarm.h"

enum { LEAVE_TIMEOUT_MS = 4000 };

static const struct option_spec specs[] = {
    {.name = "listen",
     .kind = OPTION_ENDPOINT,
     .any_port = true,
     .default_text = "0.0.0.0:4222",
     .help = "UDP endpoint; a wildcard host listens on IPv4 and IPv6, * as port picks one"},
    SWARM_OPTION_SPECS("peer"),
    {.name = "json",
     .kind = OPTION_FLAG,
     .help = "print a JSON line when ready, and one at shutdown"},
};

static const struct option_table table = {
    .command = "dht",
    .summary = "Runs a bootstrap peer: a DHT peer without experts, through which others join the"
               " swarm. SIGINT, SIGTERM or SIGHUP stops it; a second signal ends it at once.",
    .example = "skep dht --listen 0.0.0.0:4222\n"
               "skep dht --listen 127.0.0.1:* --initial-peers 127.0.0.1:4222 --json",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .log_level = "info",
};
const struct option_table *const cmd_dht_options = &table;

/* What a running peer holds. */
struct peer {
    struct identity identity;
    const char *identity_path; /* view of the options; NULL: none */
    int identity_lock;         /* -1: none */
    struct swarm_key key;
    struct swarm *swarm;
    char initial_peer[ENDPOINT_TEXT_BYTES]; /* by which others join */
};

static skep_status load_keys(const struct options *o, struct peer *p, struct skep_error *err)
{
    const char *swarm_key = options_string(o, "swarm-key");
    skep_status rc = identity_system_init(err);

    p->identity_path = options_string(o, "identity");
    if (rc == SKEP_OK && p->identity_path == NULL)
        rc = identity_generate(&p->identity, err);
    else if (rc == SKEP_OK)
        rc = identity_load_or_create(&p->identity, p->identity_path, err);
    if (rc == SKEP_OK && p->identity_path != NULL)
        rc = identity_lock(p->identity_path, &p->identity_lock, err);
    if (rc == SKEP_OK && swarm_key != NULL)
        rc = swarm_key_load(&p->key, swarm_key, err);
    return rc;
}

static skep_status join(const struct options *o, struct peer *p, struct skep_error *err)
{
    struct swarm_config config = {
        .name = options_string(o, "swarm"),
        .key = options_string(o, "swarm-key") != NULL ? &p->key : NULL,
        .identity = &p->identity,
        .dht_listen = *options_endpoint(o, "listen"),
        .peers_file = options_string(o, "peers-file"),
        .bootstrap_only = true,
        .identity_is_ours = true,
    };

    config.initial_peers = options_list(o, "initial-peers", &config.initial_peer_count);
    skep_status rc = swarm_join(&config, &p->swarm, err);
    if (rc != SKEP_OK)
        return rc;
    struct endpoint shown = config.dht_listen;
    shown.port = swarm_dht_port(p->swarm);
    if (endpoint_is_unspecified(&shown))
        endpoint_local_host(&shown, strchr(config.dht_listen.host, ':') != NULL);
    endpoint_format(&shown, p->initial_peer);
    return SKEP_OK;
}

static void tell_ready(const struct options *o, const struct peer *p)
{
    char id[PEER_ID_HEX_BYTES];

    peer_id_hex(p->identity.peer_id, id);
    log_info("DHT peer %s of swarm \"%s\"", id, options_string(o, "swarm"));
    log_info("DHT on UDP port %u", (unsigned)swarm_dht_port(p->swarm));
    swarm_log_join(p->swarm, "others join with", p->initial_peer);
    if (options_flag(o, "json"))
        json_print_event(json_pack("{s:s, s:s, s:s, s:i, s:s}", "event", "ready", "peer_id", id,
                                   "swarm", options_string(o, "swarm"), "dht_port",
                                   (int)swarm_dht_port(p->swarm), "initial_peers",
                                   p->initial_peer));
}

static void tell_stopped(const struct options *o, const struct peer *p)
{
    struct runner_status status;

    runner_status(swarm_runner(p->swarm), &status);
    log_info("stopping: %u peer%s, %zu value%s stored for others", status.good_nodes,
             text_plural(status.good_nodes), status.storage_values,
             text_plural(status.storage_values));
    if (options_flag(o, "json"))
        json_print_event(json_pack(
            "{s:s, s:i, s:I, s:I, s:I}", "event", "stopped", "dht_peers", (int)status.good_nodes,
            "values", (json_int_t)status.storage_values, "value_bytes",
            (json_int_t)status.storage_bytes, "values_refused", (json_int_t)status.values_refused));
}

static bool wait_peer(void *arg, uint32_t timeout_ms)
{
    (void)arg;
    return signals_wait(timeout_ms == UINT32_MAX ? CLOCK_NEVER : clock_deadline_us(timeout_ms));
}

static void touch_peer(void *arg)
{
    struct runner_status status;

    runner_status(swarm_runner(((struct peer *)arg)->swarm), &status); /* of OpenDHT's thread */
}

int cmd_dht(int argc, char **argv)
{
    struct options o;
    struct peer p = {.identity_lock = -1};
    struct skep_error err = {0};
    int code;

    if (!options_begin(&o, &table, argc, argv, &code))
        return code;
    service_notify_begin();
    signals_begin(NULL, NULL); /* before any thread: they all inherit it blocked */
    skep_status rc = load_keys(&o, &p, &err);
    if (rc == SKEP_OK)
        rc = join(&o, &p, &err);
    if (rc == SKEP_OK) {
        const struct service_run run = {
            .wait = wait_peer, .touch = touch_peer, .report_ms = UINT32_MAX, .arg = &p};
        tell_ready(&o, &p);
        service_notify_ready();
        service_wait(&run);
        tell_stopped(&o, &p);
        swarm_leave(p.swarm, clock_deadline_us(LEAVE_TIMEOUT_MS));
    }
    signals_end();
    if (p.identity_lock >= 0)
        identity_unlock(p.identity_path, p.identity_lock);
    identity_wipe(&p.identity);
    swarm_key_wipe(&p.key);
    options_free(&o);
    return rc == SKEP_OK ? CLI_DONE : cli_fail_before(table.command, &err);
}
