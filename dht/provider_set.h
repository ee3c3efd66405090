/*
 * The verified nodes behind one UID: at most DIRECTORY_MAX_PROVIDERS that serve it, and as many
 * that withdrew it (more only where they served it before, within the sum of the two). Kept small
 * (text of endpoints packed), because the cache holds tens of thousands of these. No lock of its
 * own: the owner guards it.
 */
#ifndef SKEP_DHT_PROVIDER_SET_H
#define SKEP_DHT_PROVIDER_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/directory.h"

struct held; /* one record, packed */

struct provider_set {   /* zeroed memory is an empty set */
    struct held *first; /* highest seq first */
    size_t live;        /* that serve */
    size_t withdrawn;   /* that said "offline" */
};

/* The highest seq known of a peer, served or withdrawn; 0 if none. */
uint64_t provider_set_seq(const struct provider_set *set,
                          const uint8_t peer_id[static PEER_ID_BYTES]);

/*
 * Takes in a verified expert record: a newer one of a peer replaces the older. When the set is full
 * those already there stay (a flood of new peers must not push out one that is known to be good),
 * and so does a withdrawal when its peer is back but there is no room for it among those that
 * serve. Returns whether the set changed.
 */
bool provider_set_merge(struct provider_set *set, const struct record *record, int64_t now_s);

/* Drops what expires_at says is over. */
void provider_set_expire(struct provider_set *set, int64_t now_s);

/* Writes those that serve, freshest first, at most `cap`; returns how many. */
size_t provider_set_list(const struct provider_set *set, struct provider *out, size_t cap);

void provider_set_free(struct provider_set *set); /* NULL and zeroed are allowed */

#endif
