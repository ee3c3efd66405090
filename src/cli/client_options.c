/* Clients of the command line. */
#include "cli/client_options.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/endpoint.h"
#include "cli/output.h"

int client_from_options(const char *command, const struct options *o, bool direct,
                        struct skep_client **out, uint64_t *deadline_us)
{
    struct skep_client_options options;
    struct skep_error err = {0};
    char dht_listen[ENDPOINT_TEXT_BYTES];
    uint32_t timeout_ms = (uint32_t)options_int(o, "timeout");

    *out = NULL;
    *deadline_us = clock_deadline_us(timeout_ms);
    skep_client_options_init(&options);
    options.initial_peers = options_list(o, "initial-peers", &options.initial_peer_count);
    options.swarm = options_string(o, "swarm");
    options.swarm_key_path = options_string(o, "swarm-key");
    options.identity_path = options_string(o, "identity");
    options.insecure_plaintext = options_flag(o, "insecure-plaintext");
    options.timeout_ms = timeout_ms;
    options.no_dht = direct;
    if (options_endpoint(o, "dht-listen") != NULL)
        options.dht_listen = endpoint_format(options_endpoint(o, "dht-listen"), dht_listen);
    if (!direct && options.initial_peer_count == 0)
        return cli_usage_error(command, "--initial-peers is needed: the DHT peers to ask");

    skep_status rc = skep_client_new(&options, out, &err);
    if (rc == SKEP_OK && !direct)
        rc = skep_client_wait_joined(*out, client_left_ms(*deadline_us), &err);
    if (rc == SKEP_OK)
        return CLI_DONE;
    skep_client_free(*out);
    *out = NULL;
    return cli_fail_before(command, &err);
}

int client_options_check_direct(struct options *o)
{
    static const char *const names[] = {"initial-peers", "dht-listen"};
    int code = options_outrank(o, "endpoint", "initial-peers");

    for (size_t i = 0; i < OPTION_COUNT(names) && code == CLI_DONE; i++)
        if (options_in_force(o, "endpoint"))
            code = options_idle(o, names[i],
                                "does nothing with --endpoint, which is called without a swarm");
    return code;
}

uint32_t client_left_ms(uint64_t deadline_us)
{
    uint64_t left_ms = clock_left_ms(deadline_us);

    return left_ms == 0 ? 1 : left_ms > UINT32_MAX ? UINT32_MAX : (uint32_t)left_ms;
}
