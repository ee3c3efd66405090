/* See own_address.h. */
#include "node/reach/own_address.h"

#include <errno.h>
#include <ifaddrs.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"

enum { MESSAGE_BYTES = 8192 };

/* Without its port and zone, so that addresses compare by what people call the address. */
static bool take_address(const struct sockaddr *sa, struct address *out)
{
    *out = (struct address){0};
    if (sa == NULL || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
        return false;
    out->len = sa->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    memcpy(&out->sa, sa, out->len);
    address_set_port(out, 0);
    return true;
}

static size_t read_addresses(struct address out[static OWN_ADDRESSES_MAX])
{
    struct ifaddrs *all = NULL;
    size_t count = 0;

    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *i = all; i != NULL && count < OWN_ADDRESSES_MAX; i = i->ifa_next)
        if (take_address(i->ifa_addr, &out[count]))
            count++;
    freeifaddrs(all);
    return count;
}

static int open_netlink(void)
{
    const struct sockaddr_nl groups = {
        .nl_family = AF_NETLINK,
        .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
    };
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd >= 0 && bind(fd, (const struct sockaddr *)&groups, sizeof(groups)) != 0) {
        int error_number = errno;
        close(fd);
        errno = error_number;
        fd = -1;
    }
    if (fd < 0) {
        log_debug("node: the system does not say when addresses change: %s", strerror(errno));
        return -1;
    }
    return fd_move_high(fd);
}

void own_addresses_init(struct own_addresses *own)
{
    *own =
        (struct own_addresses){.fd = open_netlink()}; /* before reading, so that none is missed */
    own->now_count = read_addresses(own->now);
}

void own_addresses_fini(struct own_addresses *own)
{
    if (own->fd >= 0)
        close(own->fd);
    own->fd = -1;
}

static bool is_among(const struct address *a, const struct address *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (address_equal(a, &list[i]))
            return true;
    return false;
}

static void forget(struct own_addresses *own, size_t i)
{
    own->gone_count--;
    memmove(&own->gone[i], &own->gone[i + 1], (own->gone_count - i) * sizeof(own->gone[0]));
}

bool own_addresses_take(struct own_addresses *own, const struct address *now, size_t count)
{
    bool changed = count != own->now_count;

    for (size_t i = 0; i < own->now_count; i++) {
        if (is_among(&own->now[i], now, count))
            continue;
        changed = true;
        if (is_among(&own->now[i], own->gone, own->gone_count))
            continue;
        if (own->gone_count == OWN_ADDRESSES_GONE_MAX)
            forget(own, 0);
        own->gone[own->gone_count++] = own->now[i];
    }
    for (size_t i = own->gone_count; i-- > 0;)
        if (is_among(&own->gone[i], now, count))
            forget(own, i);
    memcpy(own->now, now, count * sizeof(*now));
    own->now_count = count;
    return changed;
}

bool own_addresses_changed(struct own_addresses *own)
{
    struct address now[OWN_ADDRESSES_MAX];
    uint8_t message[MESSAGE_BYTES];
    bool told = own->fd < 0; /* who is not told must look */

    /* What a message says is read anew from the system: messages may have been dropped. */
    while (own->fd >= 0) {
        ssize_t len = recv(own->fd, message, sizeof(message), MSG_DONTWAIT);
        if (len <= 0 && errno != ENOBUFS && errno != EINTR)
            break;
        told = true;
    }
    if (!told)
        return false;
    size_t count = read_addresses(now);
    return count > 0 && own_addresses_take(own, now, count);
}

bool own_addresses_lost(const struct own_addresses *own, const struct endpoint *e)
{
    struct address a;

    if (!endpoint_to_address(e, &a))
        return false;
    address_set_port(&a, 0);
    return is_among(&a, own->gone, own->gone_count);
}
