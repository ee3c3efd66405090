/* Binding and listening. */
#include "net/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"

enum {
    BACKLOG = 4096, /* the kernel cuts it to its own limit */
    /* With port 0 and several addresses, the port picked for the first may be taken on another. */
    PORT_ATTEMPTS = 16,
};

/* "[::]" serves IPv4 too, whatever the system's default; other addresses keep to their family, or
 * the addresses of one name would collide. */
static void set_family_options(int fd, const struct address *a)
{
    if (a->sa.ss_family != AF_INET6)
        return;
    int only6 = !IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&a->sa)->sin6_addr);

    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof(only6));
}

static skep_status bind_error(const struct address *a, const char *doing, int error_number,
                              struct skep_error *err)
{
    struct endpoint e;
    char text[ENDPOINT_TEXT_BYTES];
    skep_status status;

    endpoint_from_address(&e, (const struct sockaddr *)&a->sa);
    endpoint_format(&e, text);
    switch (error_number) {
    case EADDRINUSE:
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "%s: port %u is in use by another program (or another server of this one)",
                         text, (unsigned)e.port);
    case EACCES:
    case EPERM:
        return error_set(err, SKEP_PERMISSION_DENIED,
                         "%s: may not be bound by this user (ports below 1024 need a privilege)",
                         text);
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
        return error_set(err, SKEP_UNAVAILABLE, "%s: not an address of this machine: %s", text,
                         strerror(error_number));
    default:
        status = status_from_errno(error_number);
        return error_set(err, status, "%s: cannot %s: %s", text, doing, strerror(error_number));
    }
}

/* @param join  another socket of ours has the port already. */
static skep_status bind_one(const struct address *a, bool join, int *out, struct skep_error *err)
{
    int on = 1;
    int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return bind_error(a, "make a socket", errno, err);
    fd = fd_move_high(fd);
    set_family_options(fd, a);
    /* Connections of a server that ran before must not keep the port from its successor. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (join)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (bind(fd, (const struct sockaddr *)&a->sa, a->len) != 0) {
        skep_status rc = bind_error(a, "bind", errno, err);
        close(fd);
        return rc;
    }
    *out = fd;
    return SKEP_OK;
}

static uint16_t bound_port(int fd, struct endpoint *bound)
{
    struct address a = {.len = sizeof(a.sa)};
    struct endpoint e = {0};

    if (getsockname(fd, (struct sockaddr *)&a.sa, &a.len) == 0)
        endpoint_from_address(&e, (const struct sockaddr *)&a.sa);
    if (bound != NULL)
        *bound = e;
    return e.port;
}

/* All threads' sockets of one address. On failure those made so far are in l->fds. */
static skep_status bind_address(struct listeners *l, struct address *a, struct skep_error *err)
{
    int *fds = l->fds[l->addresses];
    int on = 1;

    skep_status rc = bind_one(a, false, &fds[0], err);
    if (rc != SKEP_OK)
        return rc;
    setsockopt(fds[0], SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    address_set_port(a, bound_port(fds[0], l->addresses == 0 ? &l->bound : NULL));
    l->addresses++;
    for (size_t i = 1; i < l->threads && rc == SKEP_OK; i++)
        rc = bind_one(a, true, &fds[i], err);
    /* Listening begins when all are bound; two servers that were both at it meet here. */
    for (size_t i = 0; i < l->threads && rc == SKEP_OK; i++)
        if (listen(fds[i], BACKLOG) != 0)
            rc = bind_error(a, "listen", errno, err);
    return rc;
}

static void reset(struct listeners *l)
{
    l->addresses = 0;
    l->threads = 0;
    memset(&l->bound, 0, sizeof(l->bound));
    for (size_t a = 0; a < LISTENER_MAX_ADDRESSES; a++)
        for (size_t t = 0; t < LISTENER_MAX_THREADS; t++)
            l->fds[a][t] = -1;
}

static bool same_address(const struct address *a, const struct address *b)
{
    return a->len == b->len && memcmp(&a->sa, &b->sa, a->len) == 0;
}

static bool is_repeat(const struct address *all, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (same_address(&all[k], &all[i]))
            return true;
    return false;
}

static skep_status bind_all(struct listeners *l, const struct address *all, size_t count,
                            uint16_t port, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    struct skep_error why = {0};
    uint16_t picked = port;

    for (size_t i = 0; i < count; i++) {
        struct address a = all[i];

        if (is_repeat(all, i))
            continue;
        address_set_port(&a, picked);
        rc = bind_address(l, &a, &why);
        if (rc == SKEP_UNAVAILABLE && count > 1) {
            log_warn("listening: %s", why.message);
            continue;
        }
        if (rc != SKEP_OK)
            break;
        picked = l->bound.port;
    }
    if (rc == SKEP_UNAVAILABLE && l->addresses > 0)
        rc = SKEP_OK;
    if (rc != SKEP_OK && err != NULL)
        *err = why;
    return rc;
}

skep_status listeners_open(struct listeners *out, const struct endpoint *listen_on, size_t threads,
                           struct skep_error *err)
{
    struct address all[LISTENER_MAX_ADDRESSES];
    size_t count = 0;
    skep_status rc;

    reset(out);
    if (threads < 1 || threads > LISTENER_MAX_THREADS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%zu listening threads, expected 1 to %d",
                         threads, LISTENER_MAX_THREADS);
    out->threads = threads;
    rc = endpoint_resolve(listen_on, all, LISTENER_MAX_ADDRESSES, &count, err);
    if (rc != SKEP_OK)
        return rc;
    for (int attempt = 0; attempt < PORT_ATTEMPTS; attempt++) {
        rc = bind_all(out, all, count, listen_on->port, err);
        if (rc == SKEP_OK)
            return SKEP_OK;
        listeners_close(out);
        if (rc != SKEP_FAILED_PRECONDITION || listen_on->port != 0)
            break;
    }
    return rc;
}

skep_status listeners_check(const struct endpoint *listen_on, struct skep_error *err)
{
    struct address all[LISTENER_MAX_ADDRESSES];
    size_t count = 0, good = 0;
    skep_status rc = SKEP_OK;

    if (listen_on->port != 0)
        rc = endpoint_resolve(listen_on, all, LISTENER_MAX_ADDRESSES, &count, err);
    for (size_t i = 0; i < count && (rc == SKEP_OK || rc == SKEP_UNAVAILABLE); i++) {
        int fd = -1;

        /* Bound alone it refuses connections, and a server that is up is in the way all the same.
         */
        rc = is_repeat(all, i) ? SKEP_OK : bind_one(&all[i], false, &fd, err);
        if (rc == SKEP_OK)
            good++;
        if (fd >= 0)
            close(fd);
    }
    return rc == SKEP_UNAVAILABLE && good > 0 ? SKEP_OK : rc;
}

bool listener_has_waiting(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};

    return poll(&waiting, 1, 0) == 1;
}

void listeners_close(struct listeners *l)
{
    for (size_t a = 0; a < LISTENER_MAX_ADDRESSES; a++)
        for (size_t t = 0; t < l->threads; t++) {
            if (l->fds[a][t] >= 0)
                close(l->fds[a][t]);
            l->fds[a][t] = -1;
        }
    l->addresses = 0;
}
