/*
 * Peers on one machine find each other, whatever address they publish: behind address translation
 * the public one often cannot be reached from inside.
 *
 * A node that serves binds two abstract Unix sockets, which exist for nothing but their names and
 * end with the process:
 *
 *   skep-node/<first 16 bytes of the peer id, hex>              to ask whether it is here
 *   skep-node/<the same>/<endpoint>                             to read where, in /proc/net/unix
 *
 * Such names belong to a network namespace, as addresses do. Anybody on the machine may bind any;
 * the handshake tells who really answers, and the published endpoints are tried after it.
 */
#ifndef SKEP_NET_PRESENCE_H
#define SKEP_NET_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>
#include "base/endpoint.h"
#include "crypto/identity.h"

/* Zeroed: not shown. */
struct presence {
    bool shown;
    int fds[2];
};

/* @param bound where the peer listens; the wildcard becomes loopback. What goes wrong is logged and
 * harms nobody: others dial what is published. */
void presence_show(struct presence *p, const uint8_t peer_id[static PEER_ID_BYTES],
                   const struct endpoint *bound);
void presence_end(struct presence *p);
/* Whether this peer serves on this machine, and where. Takes microseconds if it does not. */
bool presence_find(const uint8_t peer_id[static PEER_ID_BYTES], struct endpoint *out);

#endif
