/*
 * What lookups found, by DHT key: provider sets and views of prefixes until they expire, misses for
 * a short time. Bounded; the entry that was refreshed longest ago goes first. No lock of its own.
 */
#ifndef SKEP_DHT_LOOKUP_CACHE_H
#define SKEP_DHT_LOOKUP_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/prefix_view.h"
#include "dht/provider_set.h"

struct cache_entry {
    uint8_t key[RECORD_KEY_BYTES];
    struct provider_set found; /* of an expert */
    uint64_t whole_until_us;   /* until then `found` count as all, not only who answered first */
    struct prefix_view *view;  /* of a prefix; shared; NULL: none */
    uint64_t view_until_us;    /* it is taken for fresh */
    uint64_t miss_until_us;    /* asked, nobody serves it: do not ask again before this */
    struct cache_entry *chain, *older, *newer;
};

struct lookup_cache {
    size_t cap, count, bucket_count;
    struct cache_entry **buckets;
    struct cache_entry *oldest, *newest;
};

/* @return SKEP_RESOURCE_EXHAUSTED if memory is short. */
SKEP_MUST_CHECK skep_status lookup_cache_init(struct lookup_cache *cache, size_t cap,
                                              struct skep_error *err);
void lookup_cache_fini(struct lookup_cache *cache); /* zeroed is allowed */

/* View of the cache; NULL if there is none. */
struct cache_entry *lookup_cache_find(const struct lookup_cache *cache,
                                      const uint8_t key[static RECORD_KEY_BYTES]);
/* The same, made if there is none, and counted as refreshed. NULL if memory is short. */
struct cache_entry *lookup_cache_touch(struct lookup_cache *cache,
                                       const uint8_t key[static RECORD_KEY_BYTES]);
/* Empties every entry that has this peer in it, but for peers that have answered, see placing. */
void lookup_cache_forget(struct lookup_cache *cache, const uint8_t peer_id[static PEER_ID_BYTES],
                         const struct placing *placing);

#endif
