/*
 * Endpoints: `host:port` text, parsed strictly. Forms: `name:port`, `1.2.3.4:port`, `[v6]:port`;
 * the port is 1 to 65535, or `*` or 0 where the caller allows "pick one" (stored as 0).
 */
#ifndef SKEP_BASE_ENDPOINT_H
#define SKEP_BASE_ENDPOINT_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <skep/status.h>

enum {
    ENDPOINT_HOST_BYTES = 256, /* a DNS name has at most 253 characters */
    ENDPOINT_TEXT_BYTES = ENDPOINT_HOST_BYTES + 10,
};

struct endpoint {
    char host[ENDPOINT_HOST_BYTES]; /* without brackets */
    uint16_t port;                  /* 0: pick one */
};

/* A numeric socket address. */
struct address {
    struct sockaddr_storage sa;
    socklen_t len;
};

/*
 * Parses one endpoint. Bad text is SKEP_INVALID_ARGUMENT quoting it and saying which part is wrong
 * (empty host, missing port, port out of range, spaces, an unbracketed IPv6 address, ...).
 * @param any_port  whether `*` and 0 are allowed.
 */
SKEP_MUST_CHECK skep_status endpoint_parse(struct endpoint *out, const char *text, bool any_port,
                                           struct skep_error *err);

/* The text form, IPv6 in brackets, port 0 as "*". Returns text. */
const char *endpoint_format(const struct endpoint *e, char text[static ENDPOINT_TEXT_BYTES]);
bool endpoint_equal(const struct endpoint *a, const struct endpoint *b);

/* What kind of host it is. Names count as neither, except "localhost" and "*.localhost": loopback.
 * Unspecified: "", "0.0.0.0", "::" and their other spellings (also v4-mapped). */
bool endpoint_is_loopback(const struct endpoint *e);
bool endpoint_is_unspecified(const struct endpoint *e);
/* Fit to be published or dialled: not unspecified, not empty, port not 0. */
bool endpoint_is_usable(const struct endpoint *e);

/*
 * Every address of an endpoint, by getaddrinfo, in its order (at most `cap`).
 * Blocks on DNS: never call it on an I/O thread. Numeric hosts do not block.
 * @return SKEP_UNAVAILABLE, naming the host and getaddrinfo's reason, if there is none.
 */
SKEP_MUST_CHECK skep_status endpoint_resolve(const struct endpoint *e, struct address *out,
                                             size_t cap, size_t *count, struct skep_error *err);
/* The same without DNS: false if the host is a name. */
bool endpoint_to_address(const struct endpoint *e, struct address *out);
bool address_equal(const struct address *a, const struct address *b); /* host and port */
void address_set_port(struct address *address, uint16_t port); /* of an IPv4 or IPv6 address */
/* Turns an IPv4 loopback address into 127.0.0.1, the one that every machine has. False, with
 * nothing changed, if it is another kind of address. */
bool address_to_first_loopback(struct address *address);
void endpoint_from_address(struct endpoint *out, const struct sockaddr *sa);

/* The address from which packets to another leave; nothing is sent. False: there is no way to it.
 * The port of `out` is 0. */
bool endpoint_towards(const struct address *address, struct endpoint *out);

/* Puts in a host of this machine by which others may reach a wildcard socket: the address that the
 * default route leaves from, else the first that is not loopback, or loopback if there is none. The
 * port stays. */
void endpoint_local_host(struct endpoint *e, bool v6);

#endif
