/*
 * What lookups found, by DHT key: provider sets and views of prefixes until they expire, misses for
 * a short time. Bounded; the entry that was refreshed longest ago goes first. No lock of its own.
 */
#ifndef SKEP_DHT_DIRECTORY_LOOKUP_CACHE_H
#define SKEP_DHT_DIRECTORY_LOOKUP_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/hash_table.h"
#include "dht/directory/prefix_view.h"
#include "dht/directory/provider_set.h"

struct cache_entry {
    uint8_t key[RECORD_KEY_BYTES];
    struct provider_set found; /* of an expert */
    uint64_t whole_until_us;   /* until then `found` count as all, not only who answered first */
    struct prefix_view *view;  /* of a prefix; shared; NULL: none */
    uint64_t view_until_us;    /* it is taken for fresh */
    uint64_t miss_until_us;    /* asked, nobody serves it: do not ask again before this */
    uint64_t looked_at;        /* the cache's forgets that it has been held against */
    struct hash_node by_key;
    struct cache_entry *older, *newer;
};

enum { LOOKUP_CACHE_FORGOTTEN = 256 };

/* A peer whose records are to go from all entries that were there then. */
struct forgotten_peer {
    uint8_t id[PEER_ID_BYTES];
    uint64_t number; /* of the forgets; 0: unused */
    uint64_t now_us; /* when it was */
};

struct lookup_cache {
    size_t cap;
    struct hash_table table;
    struct cache_entry *oldest, *newest;
    /* Forgetting a peer only notes it, as a scan of all entries would hold up everybody else: each
     * entry is held against the notes when it is next used. */
    uint64_t forgets;           /* so far */
    uint64_t forgets_lost;      /* up to this one, some notes have made room */
    struct peer_memory *memory; /* borrowed, of the last forget; NULL: none */
    struct forgotten_peer forgotten[LOOKUP_CACHE_FORGOTTEN];
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
/* Empties every entry that has this peer in it, but for peers that have answered, see placing. Its
 * memory is borrowed until lookup_cache_fini(). Takes no longer with more entries. */
void lookup_cache_forget(struct lookup_cache *cache, const uint8_t peer_id[static PEER_ID_BYTES],
                         const struct ranking *ranking);

#endif
