/*
 * Listening sockets: one per address and thread, all on one port.
 *
 * The first socket of an address is bound without SO_REUSEPORT, so that a second server on the same
 * port is refused as it should be; only then the option is set and the other threads' sockets join.
 */
#ifndef SKEP_NET_LISTENER_H
#define SKEP_NET_LISTENER_H

#include <stddef.h>
#include <skep/status.h>
#include "base/endpoint.h"

enum {
    LISTENER_MAX_ADDRESSES = 8, /* of one name */
    LISTENER_MAX_THREADS = 64,
};

struct listeners {
    size_t addresses;
    size_t threads;
    int fds[LISTENER_MAX_ADDRESSES][LISTENER_MAX_THREADS]; /* owned; -1: closed */
    struct endpoint bound;                                 /* of the first address */
};

/*
 * Binds and listens. Blocks on DNS if the host is a name. An address that is not this machine's is
 * skipped, with a warning, if the name has another one that is.
 * @return as server_new(); nothing stays open on failure.
 */
SKEP_MUST_CHECK skep_status listeners_open(struct listeners *out, const struct endpoint *listen,
                                           size_t threads, struct skep_error *err);
/*
 * Whether listeners_open() would find the port free, without listening: for those who do much
 * before they serve and want to know first. Port 0: SKEP_OK. Blocks, and fails, as listeners_open()
 * does.
 */
SKEP_MUST_CHECK skep_status listeners_check(const struct endpoint *listen, struct skep_error *err);
/* Closes what is still open. */
/* Whether a connection waits to be accepted. Where descriptors are used up, accept() says so
 * whether or not one does. */
bool listener_has_waiting(int fd);
void listeners_close(struct listeners *l);

#endif
