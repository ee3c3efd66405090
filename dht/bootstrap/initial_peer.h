/* Whom to join a swarm by: a DHT peer, `host:port` (UDP), or a tracker that names some,
 * `tracker://host:port` (TCP). */
#ifndef SKEP_DHT_BOOTSTRAP_INITIAL_PEER_H
#define SKEP_DHT_BOOTSTRAP_INITIAL_PEER_H

#include <stdbool.h>
#include <skep/status.h>
#include "base/endpoint.h"

#define INITIAL_PEER_TRACKER_SCHEME "tracker://"

enum { INITIAL_PEER_TEXT_BYTES = ENDPOINT_TEXT_BYTES + sizeof(INITIAL_PEER_TRACKER_SCHEME) };

struct initial_peer {
    struct endpoint endpoint;
    bool is_tracker;
};

/* @return SKEP_INVALID_ARGUMENT quoting what is wrong, as endpoint_parse(). */
SKEP_MUST_CHECK skep_status initial_peer_parse(struct initial_peer *out, const char *text,
                                               struct skep_error *err);
const char *initial_peer_format(const struct initial_peer *peer,
                                char text[static INITIAL_PEER_TEXT_BYTES]);
bool initial_peer_equal(const struct initial_peer *a, const struct initial_peer *b);

#endif
