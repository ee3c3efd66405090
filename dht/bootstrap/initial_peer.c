/* The text form of initial peers. */
#include "dht/bootstrap/initial_peer.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

skep_status initial_peer_parse(struct initial_peer *out, const char *text, struct skep_error *err)
{
    const size_t scheme = strlen(INITIAL_PEER_TRACKER_SCHEME);
    struct initial_peer peer = {
        .is_tracker = strncmp(text, INITIAL_PEER_TRACKER_SCHEME, scheme) == 0,
    };
    skep_status rc =
        endpoint_parse(&peer.endpoint, text + (peer.is_tracker ? scheme : 0), false, err);

    if (rc == SKEP_OK && endpoint_is_unspecified(&peer.endpoint))
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "endpoint \"%s\": host is unspecified, expected one that can be reached",
                       text);
    if (rc == SKEP_OK)
        *out = peer;
    return rc;
}

const char *initial_peer_format(const struct initial_peer *peer,
                                char text[static INITIAL_PEER_TEXT_BYTES])
{
    char endpoint[ENDPOINT_TEXT_BYTES];

    snprintf(text, INITIAL_PEER_TEXT_BYTES, "%s%s",
             peer->is_tracker ? INITIAL_PEER_TRACKER_SCHEME : "",
             endpoint_format(&peer->endpoint, endpoint));
    return text;
}

bool initial_peer_equal(const struct initial_peer *a, const struct initial_peer *b)
{
    return a->is_tracker == b->is_tracker && endpoint_equal(&a->endpoint, &b->endpoint);
}
