/*
 * A hash table of request ids, and a queue of those with an outcome, oldest first, from whose front
 * entries are forgotten.
 */
#include "node/rpc/idempotency.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/tensor.h"
#include "crypto/keyed_hash.h"

enum {
    DEFAULT_ENTRIES = 131072,
    DEFAULT_BYTES = 256 << 20,
    FIRST_BUCKETS = 64, /* a power of two; doubled as entries come */
};
static const uint64_t default_ttl_us = UINT64_C(600) * 1000000;

struct idempotency_entry {
    uint8_t key[IDEMPOTENCY_PEER_BYTES + IDEMPOTENCY_ID_BYTES];
    uint64_t uid_hash, content;
    struct idempotency_entry *next_in_bucket;
    struct idempotency_entry *next_ended; /* in the order of ending */
    struct idempotency_waiter *waiters;   /* while under way */
    struct idempotency_waiter *last_waiter;
    bool ended;
    bool kept; /* the tensors are here; false: only the id is remembered */
    uint64_t ended_us;
    size_t bytes;
    size_t tensor_count;
    DLManagedTensor *tensors[IDEMPOTENCY_MAX_TENSORS]; /* owned */
    struct skep_error *err;                            /* owned; NULL: success */
};

struct idempotency_cache {
    struct idempotency_limits limits;
    pthread_mutex_t lock; /* guards all below and every entry */
    struct idempotency_entry **buckets;
    size_t bucket_count, entry_count, bytes;
    struct idempotency_entry *oldest, *newest; /* with an outcome */
    struct idempotency_entry *oldest_kept;     /* from here on tensors may be kept */
    uint64_t repeats, forgotten;
};

/* For telling a repeat from another call under the same id of the same peer: who makes these
 * collide confuses nobody else. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Four lanes of words, as bytes one by one would take longer than the expert. */
static uint64_t hash_words(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t lanes[4] = {h, h ^ 1, h ^ 2, h ^ 3};

    for (; len >= sizeof(lanes); p += sizeof(lanes), len -= sizeof(lanes)) {
        uint64_t words[4];

        memcpy(words, p, sizeof(words));
        for (int i = 0; i < 4; i++) {
            lanes[i] = (lanes[i] ^ words[i]) * 0x9e3779b97f4a7c15u;
            lanes[i] ^= lanes[i] >> 32;
        }
    }
    return hash_bytes(hash_bytes(h, lanes, sizeof(lanes)), p, len);
}

uint64_t idempotency_content(const DLTensor *const *tensors, size_t count)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < count; i++) {
        size_t bytes;

        if (skep_tensor_bytes(tensors[i], &bytes, NULL) != SKEP_OK)
            continue;
        h = hash_bytes(h, &bytes, sizeof(bytes));
        if (bytes > 0)
            h = hash_words(h, skep_tensor_data(tensors[i]), bytes);
    }
    return h;
}

static size_t bucket_of(const struct idempotency_cache *cache, const uint8_t *key)
{
    /* Peers choose the ids. */
    uint64_t h = keyed_hash(key, IDEMPOTENCY_PEER_BYTES + IDEMPOTENCY_ID_BYTES);

    return (size_t)h & (cache->bucket_count - 1);
}

skep_status idempotency_new(const struct idempotency_limits *limits, struct idempotency_cache **out,
                            struct skep_error *err)
{
    struct idempotency_cache *cache = mem_calloc(1, sizeof(*cache));

    *out = NULL;
    if (cache == NULL)
        return error_no_memory(err, "memory of request ids", sizeof(*cache));
    if (limits != NULL)
        cache->limits = *limits;
    if (cache->limits.max_entries == 0)
        cache->limits.max_entries = DEFAULT_ENTRIES;
    if (cache->limits.max_bytes == 0)
        cache->limits.max_bytes = DEFAULT_BYTES;
    if (cache->limits.ttl_us == 0)
        cache->limits.ttl_us = default_ttl_us;
    cache->bucket_count = FIRST_BUCKETS;
    cache->buckets = mem_calloc(cache->bucket_count, sizeof(struct idempotency_entry *));
    if (cache->buckets == NULL) {
        mem_free(cache);
        return error_no_memory(err, "memory of request ids", FIRST_BUCKETS * sizeof(void *));
    }
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return SKEP_OK;
}

static void drop_tensors(struct idempotency_cache *cache, struct idempotency_entry *entry)
{
    for (size_t i = 0; i < entry->tensor_count; i++)
        skep_tensor_free(entry->tensors[i]);
    cache->bytes -= entry->bytes;
    entry->tensor_count = 0;
    entry->bytes = 0;
    entry->kept = false;
}

static void free_entry(struct idempotency_cache *cache, struct idempotency_entry *entry)
{
    drop_tensors(cache, entry);
    mem_free(entry->err);
    mem_free(entry);
}

void idempotency_free(struct idempotency_cache *cache)
{
    if (cache == NULL)
        return;
    for (size_t i = 0; i < cache->bucket_count; i++)
        while (cache->buckets[i] != NULL) {
            struct idempotency_entry *entry = cache->buckets[i];

            assert(entry->ended);
            cache->buckets[i] = entry->next_in_bucket;
            free_entry(cache, entry);
        }
    mem_free(cache->buckets);
    pthread_mutex_destroy(&cache->lock);
    mem_free(cache);
}

static struct idempotency_entry *find(const struct idempotency_cache *cache, const uint8_t *key)
{
    struct idempotency_entry *entry = cache->buckets[bucket_of(cache, key)];

    while (entry != NULL && memcmp(entry->key, key, sizeof(entry->key)) != 0)
        entry = entry->next_in_bucket;
    return entry;
}

static void unlink_entry(struct idempotency_cache *cache, struct idempotency_entry *entry)
{
    struct idempotency_entry **at = &cache->buckets[bucket_of(cache, entry->key)];

    while (*at != entry)
        at = &(*at)->next_in_bucket;
    *at = entry->next_in_bucket;
    cache->entry_count--;
}

static void forget_oldest(struct idempotency_cache *cache)
{
    struct idempotency_entry *entry = cache->oldest;

    cache->oldest = entry->next_ended;
    if (cache->oldest == NULL)
        cache->newest = NULL;
    if (cache->oldest_kept == entry)
        cache->oldest_kept = entry->next_ended;
    unlink_entry(cache, entry);
    free_entry(cache, entry);
}

static void forget_expired(struct idempotency_cache *cache, uint64_t now_us)
{
    while (cache->oldest != NULL && now_us >= cache->oldest->ended_us &&
           now_us - cache->oldest->ended_us >= cache->limits.ttl_us)
        forget_oldest(cache);
}

/* Larger is only faster: without memory the table stays as it is. */
static void grow(struct idempotency_cache *cache)
{
    struct idempotency_entry **old = cache->buckets;
    size_t old_count = cache->bucket_count;
    struct idempotency_entry **buckets;

    if (cache->entry_count < old_count)
        return;
    buckets = mem_calloc(old_count * 2, sizeof(struct idempotency_entry *));
    if (buckets == NULL)
        return;
    cache->buckets = buckets;
    cache->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++)
        while (old[i] != NULL) {
            struct idempotency_entry *entry = old[i];
            size_t bucket = bucket_of(cache, entry->key);

            old[i] = entry->next_in_bucket;
            entry->next_in_bucket = buckets[bucket];
            buckets[bucket] = entry;
        }
    mem_free(old);
}

static skep_status insert(struct idempotency_cache *cache, const uint8_t *key, uint64_t uid_hash,
                          uint64_t content, struct idempotency_entry **out, struct skep_error *err)
{
    struct idempotency_entry *entry;

    if (cache->entry_count >= cache->limits.max_entries) {
        if (cache->oldest == NULL)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                             "backward: %zu calls under way, expected at most %zu",
                             cache->entry_count, cache->limits.max_entries);
        cache->forgotten++;
        forget_oldest(cache);
    }
    entry = mem_calloc(1, sizeof(*entry));
    if (entry == NULL)
        return error_no_memory(err, "request id", sizeof(*entry));
    memcpy(entry->key, key, sizeof(entry->key));
    entry->uid_hash = uid_hash;
    entry->content = content;
    grow(cache);
    size_t bucket = bucket_of(cache, key);
    entry->next_in_bucket = cache->buckets[bucket];
    cache->buckets[bucket] = entry;
    cache->entry_count++;
    *out = entry;
    return SKEP_OK;
}

static void add_waiter(struct idempotency_entry *entry, struct idempotency_waiter *waiter)
{
    waiter->next = NULL;
    if (entry->last_waiter != NULL)
        entry->last_waiter->next = waiter;
    else
        entry->waiters = waiter;
    entry->last_waiter = waiter;
}

/* A copy of an outcome with its tensors, which a waiter receives without the lock. */
struct copy {
    struct idempotency_outcome outcome;
    struct skep_error err;
    DLManagedTensor *tensors[IDEMPOTENCY_MAX_TENSORS];
};

static skep_status share(DLManagedTensor *const *tensors, size_t count, DLManagedTensor **out,
                         struct skep_error *err)
{
    for (size_t i = 0; i < count; i++) {
        skep_status rc = tensor_slice(tensors[i], 0, tensors[i]->dl_tensor.shape[0], &out[i], err);

        if (rc != SKEP_OK) {
            while (i-- > 0)
                skep_tensor_free(out[i]);
            return rc;
        }
    }
    return SKEP_OK;
}

/* The lock is held, or the entry's outcome can't change any more. */
static void copy_outcome(const struct idempotency_entry *entry, struct copy *copy)
{
    copy->outcome = (struct idempotency_outcome){.was_worked = true};
    if (entry->err != NULL) {
        copy->err = *entry->err;
        copy->outcome.err = &copy->err;
    } else if (!entry->kept) {
        error_set(&copy->err, SKEP_DATA_LOSS,
                  "backward: this request was carried out once, its result is no longer kept");
        copy->outcome.err = &copy->err;
    } else if (share(entry->tensors, entry->tensor_count, copy->tensors, &copy->err) != SKEP_OK) {
        copy->outcome.err = &copy->err;
    } else {
        copy->outcome.tensors = copy->tensors;
        copy->outcome.tensor_count = entry->tensor_count;
    }
}

skep_status idempotency_begin(struct idempotency_cache *cache,
                              const uint8_t peer_id[static IDEMPOTENCY_PEER_BYTES],
                              const uint8_t request_id[static IDEMPOTENCY_ID_BYTES],
                              const char *uid, uint64_t content, uint64_t now_us,
                              struct idempotency_waiter *waiter, struct idempotency_entry **first,
                              struct skep_error *err)
{
    uint8_t key[IDEMPOTENCY_PEER_BYTES + IDEMPOTENCY_ID_BYTES];
    uint64_t uid_hash = hash_bytes(1, uid, strlen(uid));
    struct copy copy;
    bool known = false;
    skep_status rc = SKEP_OK;

    memcpy(key, peer_id, IDEMPOTENCY_PEER_BYTES);
    memcpy(key + IDEMPOTENCY_PEER_BYTES, request_id, IDEMPOTENCY_ID_BYTES);
    *first = NULL;
    pthread_mutex_lock(&cache->lock);
    forget_expired(cache, now_us);
    struct idempotency_entry *entry = find(cache, key);
    if (entry == NULL) {
        rc = insert(cache, key, uid_hash, content, first, err);
    } else if (entry->uid_hash != uid_hash) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "backward: the request id was used for another expert than %s", uid);
    } else if (entry->content != content) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "backward: the request id was used for other inputs or gradients, expected "
                       "a new id for a new call");
    } else {
        cache->repeats++;
        known = entry->ended;
        if (known)
            copy_outcome(entry, &copy);
        else
            add_waiter(entry, waiter);
    }
    pthread_mutex_unlock(&cache->lock);
    if (known)
        waiter->done(waiter, &copy.outcome);
    return rc;
}

static size_t total_bytes(DLManagedTensor *const *tensors, size_t count)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        size_t bytes;

        if (skep_tensor_bytes(&tensors[i]->dl_tensor, &bytes, NULL) != SKEP_OK ||
            !size_add(total, bytes, &total))
            return SIZE_MAX;
    }
    return total;
}

/* Stores what may be stored; without memory the id alone is remembered, never forgotten. */
static void remember(struct idempotency_cache *cache, struct idempotency_entry *entry,
                     const struct idempotency_outcome *outcome, uint64_t now_us)
{
    size_t bytes = total_bytes(outcome->tensors, outcome->tensor_count);

    entry->ended = true;
    entry->ended_us = now_us;
    if (outcome->err != NULL) {
        entry->err = mem_alloc(sizeof(*entry->err));
        if (entry->err != NULL)
            *entry->err = *outcome->err;
    } else if (outcome->tensor_count <= IDEMPOTENCY_MAX_TENSORS &&
               bytes <= cache->limits.max_bytes &&
               share(outcome->tensors, outcome->tensor_count, entry->tensors, NULL) == SKEP_OK) {
        entry->kept = true;
        entry->tensor_count = outcome->tensor_count;
        entry->bytes = bytes;
        cache->bytes += bytes;
    }
    if (cache->newest != NULL)
        cache->newest->next_ended = entry;
    else
        cache->oldest = entry;
    cache->newest = entry;
    if (cache->oldest_kept == NULL)
        cache->oldest_kept = entry;
    while (cache->bytes > cache->limits.max_bytes && cache->oldest_kept != entry) {
        drop_tensors(cache, cache->oldest_kept);
        cache->oldest_kept = cache->oldest_kept->next_ended;
    }
}

/* Each waiter gets tensors of its own over the same memory. */
static void tell(struct idempotency_waiter *waiters, const struct idempotency_outcome *outcome)
{
    while (waiters != NULL) {
        struct idempotency_waiter *waiter = waiters;
        struct copy copy = {.outcome = *outcome};

        waiters = waiter->next;
        copy.outcome.tensors = copy.tensors;
        if (outcome->tensor_count > IDEMPOTENCY_MAX_TENSORS ||
            share(outcome->tensors, outcome->tensor_count, copy.tensors, &copy.err) != SKEP_OK) {
            error_set(&copy.err, SKEP_DATA_LOSS,
                      "backward: carried out, but memory is short for its result");
            copy.outcome = (struct idempotency_outcome){.was_worked = true, .err = &copy.err};
        }
        waiter->done(waiter, &copy.outcome);
    }
}

void idempotency_finish(struct idempotency_cache *cache, struct idempotency_entry *entry,
                        const struct idempotency_outcome *outcome, uint64_t now_us)
{
    pthread_mutex_lock(&cache->lock);
    struct idempotency_waiter *waiters = entry->waiters;

    entry->waiters = entry->last_waiter = NULL;
    if (outcome->was_worked) {
        remember(cache, entry, outcome, now_us);
    } else {
        unlink_entry(cache, entry);
        free_entry(cache, entry);
    }
    pthread_mutex_unlock(&cache->lock);
    tell(waiters, outcome);
}

void idempotency_stats(struct idempotency_cache *cache, struct idempotency_stats *out)
{
    pthread_mutex_lock(&cache->lock);
    *out = (struct idempotency_stats){.entries = cache->entry_count,
                                      .bytes = cache->bytes,
                                      .repeats = cache->repeats,
                                      .forgotten = cache->forgotten};
    pthread_mutex_unlock(&cache->lock);
}
