/* `host:port`, strictly. What the resolver of the system would guess at (1.2.3, 0x7f.1) is refused
 * here, so that an endpoint means the same to every reader. */
#include "base/endpoint.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"

enum {
    DNS_NAME_CHARS = 253,
    DNS_LABEL_CHARS = 63,
};

static skep_status bad(const char *text, const char *why, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "endpoint %s: %s",
                     text_quote(text, strlen(text), quoted), why);
}

/*
 * libp2p's form, as other swarms print it: /ip4/192.0.2.1/tcp/4222/p2p/Qm... The endpoint in it is
 * told, as far as it has one.
 */
static skep_status refuse_multiaddr(const char *text, struct skep_error *err)
{
    static const char *const kinds[] = {"/ip4/", "/ip6/", "/dns/", "/dns4/", "/dns6/", "/dnsaddr/"};
    static const char *const protocols[] = {"/tcp/", "/udp/"};
    char why[256] = "a path, expected host:port";

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const char *host = text + strlen(kinds[i]);
        if (strncmp(text, kinds[i], strlen(kinds[i])) != 0)
            continue;
        size_t len = strcspn(host, "/");
        bool brackets = memchr(host, ':', len) != NULL;
        snprintf(why, sizeof(why), "a multiaddr, expected host:port");
        for (size_t k = 0; k < sizeof(protocols) / sizeof(protocols[0]); k++) {
            const char *port = host + len + strlen(protocols[k]);
            if (strncmp(host + len, protocols[k], strlen(protocols[k])) == 0 && len < 64)
                snprintf(why, sizeof(why), "a multiaddr, expected host:port, here %s%.*s%s:%.*s",
                         brackets ? "[" : "", (int)len, host, brackets ? "]" : "",
                         (int)(strcspn(port, "/") < 8 ? strcspn(port, "/") : 8), port);
        }
    }
    return bad(text, why, err);
}

/* What is wrong with the characters of the text as a whole; NULL if nothing is. */
static const char *check_characters(const char *text)
{
    if (text[0] == '\0')
        return "empty, expected host:port";
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == ' ' || *p == '\t')
            return "contains a space, expected host:port";
        if (*p == ',')
            return "contains a comma, expected a single host:port";
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            return "contains a character that no host name has, expected host:port";
    }
    return NULL;
}

static const char *parse_port(const char *text, bool any_port, uint16_t *out)
{
    unsigned port = 0;

    if (text[0] == '\0')
        return "port is empty, expected 1 to 65535";
    if (strcmp(text, "*") == 0 || strcmp(text, "0") == 0) {
        *out = 0;
        return any_port ? NULL : "port means \"pick one\", expected 1 to 65535 here";
    }
    for (const char *p = text; *p != '\0'; p++) {
        if (*p < '0' || *p > '9')
            return "port is not a number, expected 1 to 65535";
        port = port * 10 + (unsigned)(*p - '0');
        if (port > UINT16_MAX)
            return "port is out of range, expected 1 to 65535";
    }
    if (text[0] == '0')
        return "port starts with a zero, expected 1 to 65535";
    *out = (uint16_t)port;
    return NULL;
}

/* The zone of an address, with its percent sign, or "". */
static const char *zone_of(const char *host)
{
    return host + strcspn(host, "%");
}

/* An IPv6 address, perhaps with the zone of a link-local one: fe80::1%eth0. */
static bool parse_ipv6(const char *host, struct in6_addr *out)
{
    char address[INET6_ADDRSTRLEN];
    const char *zone = zone_of(host);
    size_t len = (size_t)(zone - host);

    if (len >= sizeof(address) || (zone[0] == '%' && zone[1] == '\0'))
        return false;
    memcpy(address, host, len);
    address[len] = '\0';
    return inet_pton(AF_INET6, address, out) == 1;
}

static bool is_ipv6(const char *host)
{
    struct in6_addr parsed;

    return parse_ipv6(host, &parsed);
}

/* Whether the last label is a number: then the whole must be an IPv4 address, not a name. */
static bool ends_in_number(const char *host)
{
    const char *label = strrchr(host, '.');

    label = label != NULL ? label + 1 : host;
    if (label[0] == '0' && (label[1] == 'x' || label[1] == 'X'))
        return label[2 + strspn(label + 2, "0123456789abcdefABCDEF")] == '\0';
    return label[0] != '\0' && label[strspn(label, "0123456789")] == '\0';
}

static const char *check_name(const char *host)
{
    size_t len = strlen(host);
    size_t label = 0;
    struct in_addr v4;

    if (len > DNS_NAME_CHARS)
        return "host is too long, expected a name of at most 253 characters";
    if (ends_in_number(host))
        return inet_pton(AF_INET, host, &v4) == 1
                   ? NULL
                   : "host looks like an IPv4 address but is none, expected four numbers of 0 to "
                     "255";
    for (size_t i = 0; i < len; i++) {
        if (host[i] == '.') {
            if (label == 0)
                return "host has an empty part between dots";
            label = 0;
            continue;
        }
        if (!ascii_is_alnum(host[i]) && host[i] != '-' && host[i] != '_')
            return "host has a character other than letters, digits, dot, hyphen, underscore";
        if (++label > DNS_LABEL_CHARS)
            return "host has a part of more than 63 characters";
    }
    return NULL;
}

/* Cuts text into host and port; NULL, or what is wrong. */
static const char *split(const char *text, struct endpoint *out, const char **port)
{
    bool brackets = text[0] == '[';
    const char *host = brackets ? text + 1 : text;
    const char *host_end = brackets ? strchr(host, ']') : strrchr(host, ':');

    if (host_end == NULL)
        return brackets ? "no ] behind the IPv6 address, expected [address]:port"
                        : "no port, expected host:port";
    if (!brackets && memchr(host, ':', (size_t)(host_end - host)) != NULL)
        return "IPv6 address without brackets, expected [address]:port";
    if (host_end == host)
        return "host is empty, expected host:port";
    *port = brackets ? host_end + 1 : host_end;
    if (**port != ':')
        return "no port, expected [address]:port";
    (*port)++;
    size_t len = (size_t)(host_end - host);
    if (len >= sizeof(out->host))
        return "host is too long, expected a name of at most 253 characters";
    memcpy(out->host, host, len);
    if (brackets)
        return is_ipv6(out->host) ? NULL : "no IPv6 address within the brackets";
    return check_name(out->host);
}

skep_status endpoint_parse(struct endpoint *out, const char *text, bool any_port,
                           struct skep_error *err)
{
    struct endpoint e = {0};
    const char *port = NULL;
    skep_status rc = error_if_null(text, "endpoint", err);

    if (rc != SKEP_OK)
        return rc;
    const char *why = check_characters(text);
    if (why == NULL && text[0] == '/')
        return refuse_multiaddr(text, err);
    if (why == NULL && strstr(text, "://") != NULL)
        why = "a URL, expected host:port without a scheme";
    if (why == NULL)
        why = split(text, &e, &port);
    if (why == NULL)
        why = parse_port(port, any_port, &e.port);
    if (why != NULL)
        return bad(text, why, err);
    *out = e;
    return SKEP_OK;
}

const char *endpoint_format(const struct endpoint *e, char text[static ENDPOINT_TEXT_BYTES])
{
    bool v6 = strchr(e->host, ':') != NULL;
    char port[8] = "*";

    if (e->port != 0)
        snprintf(port, sizeof(port), "%u", (unsigned)e->port);
    snprintf(text, ENDPOINT_TEXT_BYTES, "%s%s%s:%s", v6 ? "[" : "", e->host, v6 ? "]" : "", port);
    return text;
}

/* The address of a numeric host as IPv6, v4 ones mapped; in any spelling that the system's resolver
 * takes. A zone is left out: the resolver takes one with any address, so ::1%1 is loopback too. */
static bool numeric_host(const char *host, struct in6_addr *out)
{
    struct in_addr v4;

    if (parse_ipv6(host, out))
        return true;
    if (inet_aton(host, &v4) == 0)
        return false;
    *out = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
    memcpy(&out->s6_addr[12], &v4, sizeof(v4));
    return true;
}

bool endpoint_equal(const struct endpoint *a, const struct endpoint *b)
{
    struct in6_addr x, y;

    if (a->port != b->port)
        return false;
    if (numeric_host(a->host, &x) && numeric_host(b->host, &y))
        return memcmp(&x, &y, sizeof(x)) == 0 && strcmp(zone_of(a->host), zone_of(b->host)) == 0;
    return ascii_same(a->host, b->host);
}

/* "localhost" and all names below it, which resolvers keep on this machine (RFC 6761, 6.3). */
static bool is_localhost_name(const char *host)
{
    static const char name[] = "localhost";
    size_t len = strlen(host);

    if (len > 0 && host[len - 1] == '.')
        len--;
    if (len < sizeof(name) - 1)
        return false;
    size_t at = len - (sizeof(name) - 1);
    return ascii_same_first(host + at, name, sizeof(name) - 1) && (at == 0 || host[at - 1] == '.');
}

bool endpoint_is_loopback(const struct endpoint *e)
{
    struct in6_addr a;

    if (is_localhost_name(e->host))
        return true;
    if (!numeric_host(e->host, &a))
        return false;
    return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
}

bool endpoint_is_unspecified(const struct endpoint *e)
{
    static const uint8_t zeros[4];
    struct in6_addr a;

    if (e->host[0] == '\0')
        return true;
    if (!numeric_host(e->host, &a))
        return false;
    return IN6_IS_ADDR_UNSPECIFIED(&a) ||
           (IN6_IS_ADDR_V4MAPPED(&a) && memcmp(&a.s6_addr[12], zeros, sizeof(zeros)) == 0);
}

bool endpoint_is_usable(const struct endpoint *e)
{
    return e->port != 0 && !endpoint_is_unspecified(e);
}

static int look_up(const struct endpoint *e, int flags, struct addrinfo **list)
{
    char port[8];
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
        .ai_flags = flags | AI_NUMERICSERV,
    };

    snprintf(port, sizeof(port), "%u", (unsigned)e->port);
    return getaddrinfo(e->host, port, &hints, list);
}

static size_t copy_addresses(const struct addrinfo *list, struct address *out, size_t cap)
{
    size_t n = 0;

    for (const struct addrinfo *a = list; a != NULL && n < cap; a = a->ai_next) {
        if (a->ai_addrlen > sizeof(out[n].sa) ||
            (a->ai_family != AF_INET && a->ai_family != AF_INET6))
            continue;
        out[n] = (struct address){.len = a->ai_addrlen};
        memcpy(&out[n].sa, a->ai_addr, a->ai_addrlen);
        n++;
    }
    return n;
}

skep_status endpoint_resolve(const struct endpoint *e, struct address *out, size_t cap,
                             size_t *count, struct skep_error *err)
{
    struct addrinfo *list = NULL;

    *count = 0;
    if (e->host[0] == '\0') /* getaddrinfo would take it for the local host */
        return error_set(err, SKEP_UNAVAILABLE, "host \"\": empty, expected a name or address");
    int result = look_up(e, 0, &list);
    if (result != 0)
        return error_set(err, SKEP_UNAVAILABLE, "host \"%s\": cannot resolve: %s", e->host,
                         gai_strerror(result));
    *count = copy_addresses(list, out, cap);
    freeaddrinfo(list);
    if (*count == 0)
        return error_set(err, SKEP_UNAVAILABLE, "host \"%s\": has no IPv4 or IPv6 address",
                         e->host);
    return SKEP_OK;
}

bool endpoint_to_address(const struct endpoint *e, struct address *out)
{
    struct addrinfo *list = NULL;

    if (e->host[0] == '\0' || look_up(e, AI_NUMERICHOST, &list) != 0)
        return false;
    bool found = copy_addresses(list, out, 1) == 1;
    freeaddrinfo(list);
    return found;
}

bool address_equal(const struct address *a, const struct address *b)
{
    const struct sockaddr_in *a4 = (const struct sockaddr_in *)&a->sa;
    const struct sockaddr_in *b4 = (const struct sockaddr_in *)&b->sa;
    const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)&a->sa;
    const struct sockaddr_in6 *b6 = (const struct sockaddr_in6 *)&b->sa;

    if (a->sa.ss_family != b->sa.ss_family)
        return false;
    if (a->sa.ss_family == AF_INET)
        return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
    return a->sa.ss_family == AF_INET6 && a6->sin6_port == b6->sin6_port &&
           memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

void address_set_port(struct address *address, uint16_t port)
{
    if (address->sa.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address->sa)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&address->sa)->sin_port = htons(port);
}

bool address_to_first_loopback(struct address *address)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address->sa;

    if (address->sa.ss_family != AF_INET || ntohl(v4->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET)
        return false;
    v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return true;
}

void endpoint_from_address(struct endpoint *out, const struct sockaddr *sa)
{
    socklen_t len =
        sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

    *out = (struct endpoint){0};
    if (sa->sa_family != AF_INET && sa->sa_family != AF_INET6)
        return;
    if (getnameinfo(sa, len, out->host, sizeof(out->host), NULL, 0, NI_NUMERICHOST) != 0)
        out->host[0] = '\0';
    out->port = ntohs(sa->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)sa)->sin6_port
                                                : ((const struct sockaddr_in *)sa)->sin_port);
}

/* Writes the address of an interface that is up, of this family, and more than loopback. */
static bool local_address(const struct ifaddrs *i, bool v6, char *out, size_t cap)
{
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
    const struct sockaddr_in *four = (const struct sockaddr_in *)(const void *)i->ifa_addr;

    if (i->ifa_addr == NULL || (i->ifa_flags & (IFF_UP | IFF_LOOPBACK)) != IFF_UP)
        return false;
    if (v6 && i->ifa_addr->sa_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
        return inet_ntop(AF_INET6, &six->sin6_addr, out, (socklen_t)cap) != NULL;
    if (!v6 && i->ifa_addr->sa_family == AF_INET)
        return inet_ntop(AF_INET, &four->sin_addr, out, (socklen_t)cap) != NULL;
    return false;
}

bool endpoint_towards(const struct address *address, struct endpoint *out)
{
    struct address own = {.len = sizeof(own.sa)};
    int fd = socket(address->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool found = fd >= 0 && connect(fd, (const struct sockaddr *)&address->sa, address->len) == 0 &&
                 getsockname(fd, (struct sockaddr *)&own.sa, &own.len) == 0;

    if (fd >= 0)
        close(fd);
    if (!found)
        return false;
    endpoint_from_address(out, (const struct sockaddr *)&own.sa);
    out->port = 0;
    return !endpoint_is_unspecified(out);
}

/* An address that nobody has (RFC 5737, RFC 3849): the default route leads there. */
static bool default_address(bool v6, struct endpoint *out)
{
    const struct endpoint far = {.host = "198.51.100.1", .port = 9};
    const struct endpoint far6 = {.host = "2001:db8::1", .port = 9};
    struct address address;

    return endpoint_to_address(v6 ? &far6 : &far, &address) && endpoint_towards(&address, out) &&
           !endpoint_is_loopback(out) && strchr(out->host, '%') == NULL;
}

void endpoint_local_host(struct endpoint *e, bool v6)
{
    struct ifaddrs *list = NULL;
    struct endpoint leaving;
    bool found = default_address(v6, &leaving);

    if (found)
        memcpy(e->host, leaving.host, sizeof(e->host));
    else if (getifaddrs(&list) == 0)
        for (const struct ifaddrs *i = list; i != NULL && !found; i = i->ifa_next)
            found = local_address(i, v6, e->host, sizeof(e->host));
    if (list != NULL)
        freeifaddrs(list);
    if (!found)
        snprintf(e->host, sizeof(e->host), "%s", v6 ? "::1" : "127.0.0.1");
}
