/*
 * Checks of a UDP port before OpenDHT opens it, because OpenDHT reports a busy port as error 107
 * and goes on with one address family when the other's port is taken. Thread: any; does not block
 * unless the host is a DNS name.
 */
#ifndef SKEP_DHT_OPENDHT_UDP_PORT_H
#define SKEP_DHT_OPENDHT_UDP_PORT_H

#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"

/* What to bind; a family whose len is 0 is left out. Both have the same port. */
struct udp_port {
    struct address v4, v6;
    uint16_t port; /* never 0 */
};

/*
 * Finds out that the endpoint can be bound now. An unspecified host means both families, and only
 * the one this machine has if it has one. Port 0 picks a port that is free in all families bound.
 * @return SKEP_FAILED_PRECONDITION if the port is in use, or the address or family is not of this
 *         machine; SKEP_PERMISSION_DENIED; SKEP_RESOURCE_EXHAUSTED; SKEP_UNAVAILABLE if a name
 *         does not resolve. The sentence names the endpoint.
 */
SKEP_MUST_CHECK skep_status udp_port_probe(const struct endpoint *listen, struct udp_port *out,
                                           struct skep_error *err);

#endif
