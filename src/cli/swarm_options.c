/* See swarm_options.h. */
#include "cli/swarm_options.h"

const char *swarm_option_endpoint(const struct options *o, const char *name,
                                  char out[static ENDPOINT_TEXT_BYTES])
{
    const struct endpoint *e = options_endpoint(o, name);

    return e != NULL ? endpoint_format(e, out) : NULL;
}

void swarm_options_read(const struct options *o, struct swarm_texts *texts,
                        struct skep_node_options *out)
{
    out->listen = swarm_option_endpoint(o, "listen", texts->listen);
    out->dht_listen = swarm_option_endpoint(o, "dht-listen", texts->dht_listen);
    out->announce = swarm_option_endpoint(o, "announce", texts->announce);
    out->initial_peers = options_list(o, "initial-peers", &out->initial_peer_count);
    out->peers_file = options_string(o, "peers-file");
    out->swarm = options_string(o, "swarm");
    out->swarm_key = options_string(o, "swarm-key");
    out->identity = options_string(o, "identity");
    out->update_period_s = (uint32_t)options_int(o, "update-period");
}
