/* What the connections of one remote address hold together. */
#include <netinet/in.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/keyed_hash.h"
#include "tracker/server_internal.h"

enum { V6_PREFIX_BYTES = 8 }; /* a /64, which a single customer gets to choose addresses from */

/* The bytes that tell one address from another; how many. */
static size_t address_bytes(const struct sockaddr *sa, uint8_t out[static V6_PREFIX_BYTES])
{
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr;

    if (sa->sa_family == AF_INET) {
        memcpy(out, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
        return 4;
    }
    if (sa->sa_family != AF_INET6)
        return 0;
    if (IN6_IS_ADDR_V4MAPPED(v6)) {
        memcpy(out, v6->s6_addr + 12, 4);
        return 4;
    }
    memcpy(out, v6->s6_addr, V6_PREFIX_BYTES);
    return V6_PREFIX_BYTES;
}

struct tracker_address *tracker_address_take(struct tracker_server *server,
                                             const struct sockaddr *sa)
{
    uint8_t bytes[V6_PREFIX_BYTES] = {0};
    size_t len = address_bytes(sa, bytes);
    uint64_t hash = keyed_hash(bytes, len);
    struct tracker_address *address = NULL;

    for (struct hash_node *n = hash_table_first(&server->addresses, hash); n != NULL;
         n = hash_table_next(n)) {
        struct tracker_address *other = HASH_HOLDER(n, struct tracker_address, by_bytes);
        if (other->len == len && memcmp(other->bytes, bytes, len) == 0)
            address = other;
    }
    if (address == NULL) {
        address = mem_calloc(1, sizeof(*address));
        if (address == NULL)
            return NULL;
        memcpy(address->bytes, bytes, len);
        address->len = len;
        hash_table_add(&server->addresses, &address->by_bytes, hash);
    }
    address->connections++;
    return address;
}

void tracker_address_release(struct tracker_server *server, struct tracker_address *address)
{
    if (address == NULL || --address->connections > 0)
        return;
    hash_table_remove(&server->addresses, &address->by_bytes);
    mem_free(address);
}
