/*
 * The addresses of this machine: which it has, and which it has lost. On Linux the kernel says at
 * once when they change (rtnetlink(7)).
 *
 * Threads: one at a time.
 */
#ifndef SKEP_NODE_REACH_OWN_ADDRESS_H
#define SKEP_NODE_REACH_OWN_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include "base/endpoint.h"

enum {
    OWN_ADDRESSES_MAX = 64, /* looked at; a machine has a handful */
    OWN_ADDRESSES_GONE_MAX = 32,
};

struct own_addresses {
    int fd; /* readable when they may have changed; -1: the system does not say so */
    struct address now[OWN_ADDRESSES_MAX];
    size_t now_count;
    struct address gone[OWN_ADDRESSES_GONE_MAX]; /* had before, oldest first; ports are 0 */
    size_t gone_count;
};

void own_addresses_init(struct own_addresses *own);
void own_addresses_fini(struct own_addresses *own);

/* Reads what the kernel says, without blocking; looks at all addresses where it says nothing.
 * Whether they have changed. */
bool own_addresses_changed(struct own_addresses *own);
/* Whether the machine had this address and has it no longer. False for names. */
bool own_addresses_lost(const struct own_addresses *own, const struct endpoint *e);
/* Compares the addresses known so far with another list, of port 0 and at most OWN_ADDRESSES_MAX,
 * which it takes in their place. Whether they differ. */
bool own_addresses_take(struct own_addresses *own, const struct address *now, size_t count);

#endif
