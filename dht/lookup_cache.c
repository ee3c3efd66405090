/* A hash table of lookups with a list by age. */
#include "dht/lookup_cache.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"

enum { MAX_BUCKETS = 1 << 16 };

skep_status lookup_cache_init(struct lookup_cache *cache, size_t cap, struct skep_error *err)
{
    size_t buckets = 64;

    while (buckets < cap && buckets < MAX_BUCKETS)
        buckets *= 2;
    memset(cache, 0, sizeof(*cache));
    cache->buckets = mem_calloc(buckets, sizeof(struct cache_entry *));
    if (cache->buckets == NULL)
        return error_no_memory(err, "lookup cache", buckets * sizeof(struct cache_entry *));
    cache->bucket_count = buckets;
    cache->cap = cap;
    return SKEP_OK;
}

static struct cache_entry **bucket_of(const struct lookup_cache *cache, const uint8_t *key)
{
    /* Keys are hashes already: any bytes of them are as good as a hash. */
    return &cache->buckets[load_u32(key) & (cache->bucket_count - 1)];
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
    struct cache_entry **link = bucket_of(cache, e->key);

    while (*link != e)
        link = &(*link)->chain;
    *link = e->chain;
    unlink_age(cache, e);
    cache->count--;
    provider_set_free(&e->found);
    prefix_view_unref(e->view);
    mem_free(e);
}

void lookup_cache_fini(struct lookup_cache *cache)
{
    while (cache->oldest != NULL)
        drop(cache, cache->oldest);
    mem_free(cache->buckets);
    memset(cache, 0, sizeof(*cache));
}

struct cache_entry *lookup_cache_find(const struct lookup_cache *cache,
                                      const uint8_t key[static RECORD_KEY_BYTES])
{
    struct cache_entry *e = *bucket_of(cache, key);

    while (e != NULL && memcmp(e->key, key, RECORD_KEY_BYTES) != 0)
        e = e->chain;
    return e;
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
    if (cache->count >= cache->cap && cache->oldest != NULL)
        drop(cache, cache->oldest);
    e = mem_calloc(1, sizeof(*e));
    if (e == NULL)
        return NULL;
    memcpy(e->key, key, RECORD_KEY_BYTES);
    struct cache_entry **bucket = bucket_of(cache, key);
    e->chain = *bucket;
    *bucket = e;
    append_age(cache, e);
    cache->count++;
    return e;
}

void lookup_cache_forget(struct lookup_cache *cache, const uint8_t peer_id[static PEER_ID_BYTES],
                         const struct placing *placing)
{
    for (struct cache_entry *e = cache->oldest; e != NULL; e = e->newer)
        if (provider_set_seq(&e->found, peer_id) != 0) {
            /* If nobody is left, the next lookup asks anew. */
            provider_set_keep_answered(&e->found, placing);
            e->whole_until_us = 0;
        }
}
