/* Connections per remote address: a hash table with linear probing. */
#include "net/address_count.h"

#include <netinet/in.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"

struct slot {
    uint8_t ip[16];
    unsigned count; /* 0: free */
};

struct address_count {
    pthread_mutex_t lock; /* guards slots, used */
    unsigned max_per_address;
    size_t max_used;
    size_t used;
    size_t mask; /* slots - 1, a power of two less one */
    struct slot *slots;
};

skep_status address_count_new(unsigned max_connections, unsigned max_per_address,
                              struct address_count **out, struct skep_error *err)
{
    size_t slots = 16;

    *out = NULL;
    while (slots < 2 * (size_t)max_connections) /* at most half full: probes stay short */
        slots *= 2;
    struct address_count *table = mem_calloc(1, sizeof(*table));
    struct slot *memory = mem_calloc(slots, sizeof(*memory));
    if (table == NULL || memory == NULL) {
        mem_free(table);
        mem_free(memory);
        return error_no_memory(err, "table of addresses", slots * sizeof(*memory));
    }
    pthread_mutex_init(&table->lock, NULL);
    table->max_per_address = max_per_address;
    table->max_used = slots / 2;
    table->mask = slots - 1;
    table->slots = memory;
    *out = table;
    return SKEP_OK;
}

void address_count_free(struct address_count *table)
{
    if (table == NULL)
        return;
    pthread_mutex_destroy(&table->lock);
    mem_free(table->slots);
    mem_free(table);
}

/*
 * What a connection is counted by. IPv4: the address. IPv6: its /64, the least that a provider
 * hands out: whoever has one address of it has them all, and would never reach a limit for each.
 * False for loopback and for families that are not IP: those are not counted.
 */
static bool countable(const struct sockaddr *sa, uint8_t ip[static 16])
{
    struct in6_addr a = {0};

    if (sa->sa_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, sa, sizeof(in));
        a.s6_addr[10] = 0xff;
        a.s6_addr[11] = 0xff;
        memcpy(a.s6_addr + 12, &in.sin_addr, 4);
    } else if (sa->sa_family == AF_INET6) {
        struct sockaddr_in6 in6;
        memcpy(&in6, sa, sizeof(in6));
        a = in6.sin6_addr;
    } else {
        return false;
    }
    if (IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127))
        return false;
    if (!IN6_IS_ADDR_V4MAPPED(&a))
        memset(a.s6_addr + 8, 0, 8);
    memcpy(ip, &a, 16);
    return true;
}

bool address_count_same(const struct sockaddr *a, const struct sockaddr *b)
{
    uint8_t ips[2][16];

    return countable(a, ips[0]) && countable(b, ips[1]) && memcmp(ips[0], ips[1], 16) == 0;
}

static size_t home_of(const struct address_count *table, const uint8_t ip[static 16])
{
    return (size_t)keyed_hash(ip, 16) & table->mask; /* strangers choose their addresses */
}

/* The address's slot, or the free one where it would go. */
static size_t find(const struct address_count *table, const uint8_t ip[static 16])
{
    size_t i = home_of(table, ip);

    while (table->slots[i].count > 0 && memcmp(table->slots[i].ip, ip, 16) != 0)
        i = (i + 1) & table->mask;
    return i;
}

bool address_count_add(struct address_count *table, const struct sockaddr *sa)
{
    uint8_t ip[16];
    bool fits = false;

    if (!countable(sa, ip))
        return true;
    pthread_mutex_lock(&table->lock);
    struct slot *slot = &table->slots[find(table, ip)];
    if (slot->count > 0) {
        fits = slot->count < table->max_per_address;
    } else if (table->used < table->max_used && table->max_per_address > 0) {
        memcpy(slot->ip, ip, 16);
        table->used++;
        fits = true;
    }
    if (fits)
        slot->count++;
    pthread_mutex_unlock(&table->lock);
    return fits;
}

/* Closes the gap at i: moves back each later entry that could no longer be found past it. */
static void close_gap(struct address_count *table, size_t gap)
{
    for (size_t i = (gap + 1) & table->mask; table->slots[i].count > 0; i = (i + 1) & table->mask) {
        size_t home = home_of(table, table->slots[i].ip);
        if (((i - home) & table->mask) >= ((i - gap) & table->mask)) {
            table->slots[gap] = table->slots[i];
            table->slots[i].count = 0;
            gap = i;
        }
    }
}

void address_count_remove(struct address_count *table, const struct sockaddr *sa)
{
    uint8_t ip[16];

    if (!countable(sa, ip))
        return;
    pthread_mutex_lock(&table->lock);
    size_t i = find(table, ip);
    if (table->slots[i].count > 0 && --table->slots[i].count == 0) {
        table->used--;
        close_gap(table, i);
    }
    pthread_mutex_unlock(&table->lock);
}
