/* The first free port of a range. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "tracker/server_internal.h"

static skep_status set_host(struct endpoint *out, const char *host, struct skep_error *err)
{
    size_t len = strlen(host);
    bool brackets = len > 1 && host[0] == '[' && host[len - 1] == ']';

    if (brackets) {
        host++;
        len -= 2;
    }
    if (len == 0 || len >= sizeof(out->host))
        return error_set(err, SKEP_INVALID_ARGUMENT, "host \"%.300s\": expected a name or address",
                         host);
    *out = (struct endpoint){0};
    memcpy(out->host, host, len);
    return SKEP_OK;
}

/*
 * Whether a port has no lingering connections: listeners_open() takes it despite them, as most
 * servers want; an address that cannot be tried here is left to it as well.
 */
static bool has_no_lingering(const struct endpoint *e)
{
    struct address all[LISTENER_MAX_ADDRESSES];
    size_t count = 0;
    bool free = true;

    if (endpoint_resolve(e, all, LISTENER_MAX_ADDRESSES, &count, NULL) != SKEP_OK)
        return true;
    for (size_t i = 0; i < count && free; i++) {
        int fd = socket(all[i].sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        free =
            bind(fd, (const struct sockaddr *)&all[i].sa, all[i].len) == 0 || errno != EADDRINUSE;
        close(fd);
    }
    return free;
}

static skep_status take_port(struct listeners *out, const struct endpoint *e,
                             struct skep_error *err)
{
    return out != NULL ? listeners_open(out, e, 1, err) : listeners_check(e, err);
}

skep_status tracker_listen(struct listeners *out, const char *host, uint16_t port,
                           uint32_t port_end, bool reuse_addr, struct skep_error *err)
{
    struct endpoint e;
    struct skep_error why = {0};
    skep_status rc = set_host(&e, host, err);

    if (rc != SKEP_OK)
        return rc;
    if (port == 0)
        return take_port(out, &e, err);
    if (port_end <= port || port_end > UINT16_MAX + 1)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "ports from %u to below %u: expected port < port_end <= 65536",
                         (unsigned)port, (unsigned)port_end);
    for (unsigned p = port; p < port_end; p++) {
        e.port = (uint16_t)p;
        if (!reuse_addr && !has_no_lingering(&e))
            continue;
        rc = take_port(out, &e, &why);
        if (rc == SKEP_OK)
            return rc;
        if (rc != SKEP_FAILED_PRECONDITION) {
            if (err != NULL)
                *err = why;
            return rc;
        }
    }
    if (port_end == (uint32_t)port + 1)
        return error_set(err, SKEP_FAILED_PRECONDITION, "%s: port %u is in use", host,
                         (unsigned)port);
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "%s: no port from %u to %u is free (all are in use)", host, (unsigned)port,
                     (unsigned)port_end - 1);
}

skep_status tracker_server_check(const struct tracker_server_config *config, struct skep_error *err)
{
    return tracker_listen(NULL, config->host, config->port, config->port_end, config->reuse_addr,
                          err);
}
