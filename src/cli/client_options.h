/* The options by which every client command reaches a swarm, and the client made from them. */
#ifndef SKEP_CLI_CLIENT_OPTIONS_H
#define SKEP_CLI_CLIENT_OPTIONS_H

#include <skep/client.h>
#include "cli/options.h"
#include "cli/swarm_options.h"

/* Rows for a command's own table of options. */
#define CLIENT_OPTION_SPECS                                                                        \
    SWARM_MEMBER_OPTION_SPECS("DHT peers of the swarm to join: HOST:PORT, or tracker://HOST:PORT " \
                              "for a tracker that names some",                                     \
                              "key file of this client, created if missing", "none",               \
                              "a new identity"),                                                   \
        {.name = "dht-listen",                                                                     \
         .kind = OPTION_ENDPOINT,                                                                  \
         .any_port = true,                                                                         \
         .help = "UDP endpoint of this peer in the DHT",                                           \
         .unset = "any port"},                                                                     \
        {.name = "timeout",                                                                        \
         .kind = OPTION_INT,                                                                       \
         .min = 1,                                                                                 \
         .max = 3600000,                                                                           \
         .unit = "ms",                                                                             \
         .default_text = "10s",                                                                    \
         .help = "time limit for the whole command, joining included"},                            \
        {.name = "insecure-plaintext",                                                             \
         .kind = OPTION_FLAG,                                                                      \
         .help = "no encryption; only for nodes started with the same option"},                    \
    {                                                                                              \
        .name = "json", .kind = OPTION_FLAG, .help = "print JSON for programs"                     \
    }

/*
 * Starts a client from these options. With `direct` it does not join the DHT; otherwise it needs
 * initial peers and has joined, within the timeout, when this returns.
 * @param out          owned: skep_client_free().
 * @param deadline_us  when --timeout, which begins here, is over.
 * @return CLI_DONE, or the exit code after having said what was wrong.
 */
int client_from_options(const char *command, const struct options *o, bool direct,
                        struct skep_client **out, uint64_t *deadline_us);
/*
 * Of a command that goes to the node at --endpoint, if that was given: what is for joining a swarm
 * is options_idle(). An --endpoint that ranks lower than --initial-peers is taken out.
 */
int client_options_check_direct(struct options *o);
/* What is left until then, for a function of the client; 1 if nothing is, as 0 is the default. */
uint32_t client_left_ms(uint64_t deadline_us);

#endif
