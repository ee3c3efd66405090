/*
 * The verified nodes behind one UID: at most DIRECTORY_MAX_PROVIDERS that serve it, and as many
 * that withdrew it (more only where they served it before, within the sum of the two). Kept small
 * (text of endpoints packed), because the cache holds tens of thousands of these. No lock of its
 * own: the owner guards it.
 */
#ifndef SKEP_DHT_DIRECTORY_PROVIDER_SET_H
#define SKEP_DHT_DIRECTORY_PROVIDER_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/directory/peer_memory.h"
#include "dht/directory/provider.h"

struct held; /* one record, packed */

struct provider_set {   /* zeroed memory is an empty set */
    struct held *first; /* highest seq first */
    size_t live;        /* that serve */
    size_t withdrawn;   /* that said "offline" */
    size_t cap;         /* of each of these; 0: DIRECTORY_MAX_PROVIDERS */
};

/* The highest seq known of a peer, served or withdrawn; 0 if none. */
uint64_t provider_set_seq(const struct provider_set *set,
                          const uint8_t peer_id[static PEER_ID_BYTES]);

/* Who stays when more serve it than there is room for: those of the lowest places. */
struct ranking {
    struct peer_memory *memory; /* NULL: those that were there first */
    uint64_t order_seed, now_us;
};

/*
 * Takes in a verified expert record: a newer one of a peer replaces the older. When the set is full
 * of peers that serve, the one of the highest place goes; the withdrawals that are there stay, but
 * for one that keeps out a peer that serves. A withdrawal stays also when its peer is back but
 * there is no room for it among those that serve. Returns whether the set changed.
 */
bool provider_set_merge(struct provider_set *set, const struct record *record, int64_t now_s,
                        const struct ranking *ranking);
/* Whether a record of a peer that is not in the set yet, serving, would be taken in. */
bool provider_set_has_room(const struct provider_set *set,
                           const uint8_t peer_id[static PEER_ID_BYTES],
                           const struct ranking *ranking);

/* Whether it is full of peers that have failed. */
bool provider_set_is_spent(const struct provider_set *set, const struct ranking *ranking);
/* Takes in those of another set, serving, that have answered (placing->memory knows). */
void provider_set_add_answered(struct provider_set *set, const struct provider_set *from,
                               int64_t now_s, const struct ranking *ranking);
/* Drops all but those that have answered; drops those that have failed. */
void provider_set_keep_answered(struct provider_set *set, const struct ranking *ranking);
void provider_set_drop_failed(struct provider_set *set, const struct ranking *ranking);

/* Drops what expires_at says is over. */
void provider_set_expire(struct provider_set *set, int64_t now_s);

/* Writes those that serve, freshest first, at most `cap`; returns how many. */
size_t provider_set_list(const struct provider_set *set, struct provider *out, size_t cap);

/* The same, but first those that have answered. */
size_t provider_set_list_answered_first(const struct provider_set *set,
                                        const struct ranking *ranking, struct provider *out,
                                        size_t cap);

void provider_set_free(struct provider_set *set); /* NULL and zeroed are allowed */

#endif
