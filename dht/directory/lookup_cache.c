/* A hash table of lookups with a list by age. */
#include "dht/directory/lookup_cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"

enum { MAX_EXPECTED = 1 << 16 };

skep_status lookup_cache_init(struct lookup_cache *cache, size_t cap, struct skep_error *err)
{
    size_t expected = cap < MAX_EXPECTED ? cap : MAX_EXPECTED;

    memset(cache, 0, sizeof(*cache));
    if (!hash_table_init(&cache->table, expected))
        return error_no_memory(err, "lookup cache", expected * sizeof(struct hash_node *));
    cache->cap = cap;
    return SKEP_OK;
}

/* Keys are hashes, but of texts that peers choose. */
static uint64_t hash_of(const uint8_t *key)
{
    return keyed_hash(key, RECORD_KEY_BYTES);
}

static void unlink_age(struct lookup_cache *cache, struct cache_entry *e)
{
    *(e->older != NULL ? &e->older->newer : &cache->oldest) = e->newer;
    *(e->newer != NULL ? &e->newer->older : &cache->newest) = e->older;
    e->older = e->newer = NULL;
}

static void append_age(struct lookup_cache *cache, struct cache_entry *e)
{
    e->older = cache->newest;
    e->newer = NULL;
    *(cache->newest != NULL ? &cache->newest->newer : &cache->oldest) = e;
    cache->newest = e;
}

static void drop(struct lookup_cache *cache, struct cache_entry *e)
{
    hash_table_remove(&cache->table, &e->by_key);
    unlink_age(cache, e);
    provider_set_free(&e->found);
    prefix_view_unref(e->view);
    mem_free(e);
}

void lookup_cache_fini(struct lookup_cache *cache)
{
    while (cache->oldest != NULL)
        drop(cache, cache->oldest);
    hash_table_fini(&cache->table);
    memset(cache, 0, sizeof(*cache));
}

/* If nobody is left, the next lookup asks anew. */
static void empty(const struct lookup_cache *cache, struct cache_entry *e, uint64_t now_us)
{
    const struct ranking ranking = {cache->memory, 0, now_us};

    provider_set_keep_answered(&e->found, &ranking);
    e->whole_until_us = 0;
}

/* Takes out who has been forgotten since the entry was last used. Where notes of that time have
 * made room, nobody who has not answered is trusted. */
static void hold_against_forgotten(const struct lookup_cache *cache, struct cache_entry *e)
{
    uint64_t now_us = 0;
    bool gone = e->looked_at < cache->forgets_lost;

    if (e->looked_at == cache->forgets)
        return;
    for (size_t i = 0; i < LOOKUP_CACHE_FORGOTTEN; i++) {
        const struct forgotten_peer *peer = &cache->forgotten[i];
        if (peer->number <= e->looked_at)
            continue;
        now_us = peer->now_us > now_us ? peer->now_us : now_us;
        gone = gone || provider_set_seq(&e->found, peer->id) != 0;
    }
    e->looked_at = cache->forgets;
    if (gone)
        empty(cache, e, now_us);
}

struct cache_entry *lookup_cache_find(const struct lookup_cache *cache,
                                      const uint8_t key[static RECORD_KEY_BYTES])
{
    for (struct hash_node *n = hash_table_first(&cache->table, hash_of(key)); n != NULL;
         n = hash_table_next(n)) {
        struct cache_entry *e = HASH_HOLDER(n, struct cache_entry, by_key);
        if (memcmp(e->key, key, RECORD_KEY_BYTES) == 0) {
            hold_against_forgotten(cache, e);
            return e;
        }
    }
    return NULL;
}

struct cache_entry *lookup_cache_touch(struct lookup_cache *cache,
                                       const uint8_t key[static RECORD_KEY_BYTES])
{
    struct cache_entry *e = lookup_cache_find(cache, key);

    if (e != NULL) {
        unlink_age(cache, e);
        append_age(cache, e);
        return e;
    }
    if (cache->table.count >= cache->cap && cache->oldest != NULL)
        drop(cache, cache->oldest);
    e = mem_calloc(1, sizeof(*e));
    if (e == NULL)
        return NULL;
    memcpy(e->key, key, RECORD_KEY_BYTES);
    e->looked_at = cache->forgets;
    hash_table_add(&cache->table, &e->by_key, hash_of(key));
    append_age(cache, e);
    return e;
}

void lookup_cache_forget(struct lookup_cache *cache, const uint8_t peer_id[static PEER_ID_BYTES],
                         const struct ranking *ranking)
{
    struct forgotten_peer *slot = &cache->forgotten[0];

    for (size_t i = 0; i < LOOKUP_CACHE_FORGOTTEN; i++) {
        struct forgotten_peer *peer = &cache->forgotten[i];
        if (peer->number != 0 && memcmp(peer->id, peer_id, PEER_ID_BYTES) == 0) {
            slot = peer; /* its later note says all that the earlier one does */
            break;
        }
        if (peer->number < slot->number)
            slot = peer;
    }
    if (slot->number != 0 && memcmp(slot->id, peer_id, PEER_ID_BYTES) != 0)
        cache->forgets_lost = slot->number;
    memcpy(slot->id, peer_id, PEER_ID_BYTES);
    slot->number = ++cache->forgets;
    slot->now_us = ranking->now_us;
    cache->memory = ranking->memory;
}
