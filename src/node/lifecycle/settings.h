/* A node's options, checked and copied, with the keys they name. */
#ifndef SKEP_NODE_LIFECYCLE_SETTINGS_H
#define SKEP_NODE_LIFECYCLE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

#include <skep/node.h>
#include "base/endpoint.h"
#include "crypto/identity.h"
#include "crypto/swarm_key.h"

struct settings {
    struct skep_node_options options; /* its numbers; texts are in the fields below */
    struct endpoint listen;
    struct endpoint dht_listen;
    bool has_announce;
    struct endpoint announce;
    char *swarm;          /* owned */
    char *peers_file;     /* owned; NULL: none */
    char *checkpoint_dir; /* owned; NULL: none */
    char *identity_path;  /* owned; NULL: none */
    bool has_tracker_listen;
    struct endpoint tracker_listen;
    bool has_tracker;
    struct endpoint tracker;
    char *tracker_key;      /* owned; NULL: none */
    char *tracker_stop_key; /* owned; NULL: a random one */
    char **initial_peers;   /* owned, each */
    size_t initial_peer_count;
    bool has_swarm_key;
    struct swarm_key swarm_key;
    struct identity identity;
    char peer_id[PEER_ID_HEX_BYTES];
    int identity_lock; /* -1: none held */
};

/* Errors as skep_node_new(). On failure nothing is left to free. */
SKEP_MUST_CHECK skep_status settings_init(struct settings *settings,
                                          const struct skep_node_options *options,
                                          struct skep_error *err);
/* Wipes keys, lets the identity go. Zeroed is allowed only if identity_lock is -1. */
void settings_fini(struct settings *settings);
/* Another process may take the identity from here on. */
void settings_unlock(struct settings *settings);

#endif
