/* The options by which whatever runs in a swarm takes part in it: node, tracker, bootstrap peer
 * and, as far as they need them, clients (client_options.h). */
#ifndef SKEP_CLI_SWARM_OPTIONS_H
#define SKEP_CLI_SWARM_OPTIONS_H

#include <skep/node.h>
#include "base/endpoint.h"
#include "cli/options.h"

/* Rows for a command's own table of options. */

/* The swarm, its initial peers and the own identity. @param  literals: two help texts, then the
 * two defaults. */
#define SWARM_MEMBER_OPTION_SPECS(peers_help, identity_help, peers_unset, identity_unset)          \
    {.name = "initial-peers",                                                                      \
     .kind = OPTION_LIST,                                                                          \
     .placeholder = "PEER,...",                                                                    \
     .check = options_check_initial_peer,                                                          \
     .help = peers_help,                                                                           \
     .unset = peers_unset},                                                                        \
        {.name = "swarm",                                                                          \
         .kind = OPTION_STRING,                                                                    \
         .placeholder = "NAME",                                                                    \
         .check = options_check_swarm,                                                             \
         .default_text = "skep",                                                                   \
         .help = "name of the swarm"},                                                             \
        {.name = "swarm-key",                                                                      \
         .kind = OPTION_STRING,                                                                    \
         .placeholder = "PATH",                                                                    \
         .help = "key file of a private swarm"},                                                   \
    {                                                                                              \
        .name = "identity", .kind = OPTION_STRING, .placeholder = "PATH", .help = identity_help,   \
        .unset = identity_unset                                                                    \
    }

/* The same for who stays. @param who  "node", a literal. */
#define SWARM_OPTION_SPECS(who)                                                                    \
    SWARM_MEMBER_OPTION_SPECS("DHT peers of the swarm to join: HOST:PORT, or tracker://HOST:PORT " \
                              "for a tracker that names some",                                     \
                              "key file of this " who ", created if missing",                      \
                              "none; this " who " starts a swarm",                                 \
                              "a new identity at each start"),                                     \
    {                                                                                              \
        .name = "peers-file", .kind = OPTION_STRING, .placeholder = "PATH",                        \
        .help = "file in which known peers are kept for the next start"                            \
    }

/* Where it is reached, and how often it says so; beside a --listen of its own. */
#define SWARM_ENDPOINT_OPTION_SPECS                                                                \
    {.name = "dht-listen",                                                                         \
     .kind = OPTION_ENDPOINT,                                                                      \
     .any_port = true,                                                                             \
     .help = "UDP endpoint of the DHT",                                                            \
     .unset = "the host of --listen, any port"},                                                   \
        {.name = "announce",                                                                       \
         .kind = OPTION_ENDPOINT,                                                                  \
         .any_port = true,                                                                         \
         .help = "endpoint to publish",                                                            \
         .unset = "that of --listen or, if that is a wildcard, the address other peers see"},      \
    {                                                                                              \
        .name = "update-period", .kind = OPTION_INT, .min = 1, .max = 1800, .unit = "s",           \
        .default_text = "30s", .help = "time between two publications in the DHT"                  \
    }

/* Room for the texts that options of a node point to. */
struct swarm_texts {
    char listen[ENDPOINT_TEXT_BYTES], dht_listen[ENDPOINT_TEXT_BYTES];
    char announce[ENDPOINT_TEXT_BYTES];
};

/* An endpoint's text, in `out`; NULL if the option was not given. */
const char *swarm_option_endpoint(const struct options *o, const char *name,
                                  char out[static ENDPOINT_TEXT_BYTES]);
/* What the options above, and --listen, say. @param texts  borrowed as long as `out` is used. */
void swarm_options_read(const struct options *o, struct swarm_texts *texts,
                        struct skep_node_options *out);

#endif
