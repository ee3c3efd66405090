/* Binding a UDP port for a moment, to learn why it could not be bound. */
#include "dht/opendht/udp_port.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

enum { PICK_ATTEMPTS = 64 }; /* a port free for IPv4 may be taken for IPv6 */

/*
 * Binds a socket without SO_REUSEADDR: with it, Linux lets two programs bind one UDP port.
 * Returns 0 and the held socket, or an errno. *port is read and, if it was 0, written.
 */
static int bind_once(struct address *address, uint16_t *port, int *held)
{
    const int on = 1;
    struct sockaddr_storage bound = {0};
    socklen_t bound_len = sizeof(bound);
    int fd = socket(address->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    *held = -1;
    if (fd < 0)
        return errno;
    address_set_port(address, *port);
    if ((address->sa.ss_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0) ||
        bind(fd, (const struct sockaddr *)&address->sa, address->len) != 0 ||
        getsockname(fd, (struct sockaddr *)&bound, &bound_len) != 0) {
        int error_number = errno;
        close(fd);
        return error_number;
    }
    if (*port == 0)
        *port = ntohs(bound.ss_family == AF_INET ? ((struct sockaddr_in *)&bound)->sin_port
                                                 : ((struct sockaddr_in6 *)&bound)->sin6_port);
    address_set_port(address, *port);
    *held = fd;
    return 0;
}

static skep_status explain(const struct endpoint *listen, int error_number, struct skep_error *err)
{
    char text[ENDPOINT_TEXT_BYTES];

    endpoint_format(listen, text);
    switch (error_number) {
    case EADDRINUSE:
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "UDP %s: the port is in use by another program, expected a free one",
                         text);
    case EACCES:
    case EPERM:
        return error_set(err, SKEP_PERMISSION_DENIED,
                         "UDP %s: no permission to bind this port (below 1024 is for root)", text);
    case EADDRNOTAVAIL:
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "UDP %s: not an address of this machine, expected one of its own", text);
    case EAFNOSUPPORT:
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "UDP %s: this machine does not have that address family", text);
    default:
        return error_set(err, status_from_errno(error_number), "UDP %s: cannot bind: %s", text,
                         strerror(error_number));
    }
}

static bool family_is_missing(int error_number)
{
    return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL ||
           error_number == EPROTONOSUPPORT;
}

/* One try at binding both wildcards to one port. Returns 0 or an errno. */
static int probe_both(uint16_t wanted, struct udp_port *out)
{
    int held4, held6;

    *out = (struct udp_port){.port = wanted};
    out->v4.sa.ss_family = AF_INET;
    out->v4.len = sizeof(struct sockaddr_in);
    out->v6.sa.ss_family = AF_INET6;
    out->v6.len = sizeof(struct sockaddr_in6);
    int error4 = bind_once(&out->v4, &out->port, &held4);
    int error6 = bind_once(&out->v6, &out->port, &held6);
    if (held4 >= 0)
        close(held4);
    if (held6 >= 0)
        close(held6);
    if (error4 != 0 && !(family_is_missing(error4) && error6 == 0))
        return error4;
    if (error6 != 0 && !(family_is_missing(error6) && error4 == 0))
        return error6;
    if (error4 != 0)
        out->v4 = (struct address){0};
    if (error6 != 0)
        out->v6 = (struct address){0};
    return 0;
}

static skep_status probe_any(const struct endpoint *listen, struct udp_port *out,
                             struct skep_error *err)
{
    int error_number = probe_both(listen->port, out);

    for (int i = 1; listen->port == 0 && error_number == EADDRINUSE && i < PICK_ATTEMPTS; i++)
        error_number = probe_both(0, out);
    return error_number == 0 ? SKEP_OK : explain(listen, error_number, err);
}

skep_status udp_port_probe(const struct endpoint *listen, struct udp_port *out,
                           struct skep_error *err)
{
    struct address address;
    size_t count;
    int held;

    if (endpoint_is_unspecified(listen))
        return probe_any(listen, out, err);
    skep_status rc = endpoint_resolve(listen, &address, 1, &count, err);
    if (rc != SKEP_OK)
        return rc;
    uint16_t port = listen->port;
    int error_number = bind_once(&address, &port, &held);
    if (error_number != 0)
        return explain(listen, error_number, err);
    close(held);
    *out = (struct udp_port){.port = port};
    *(address.sa.ss_family == AF_INET ? &out->v4 : &out->v6) = address;
    return SKEP_OK;
}
