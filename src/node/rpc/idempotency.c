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

struct once_entry {
    uint8_t key[ONCE_PEER_BYTES + ONCE_ID_BYTES];
    uint64_t uid_hash, content;
    struct once_entry *next_in_bucket;
    struct once_entry *next_ended; /* in the order of ending */
    struct once_waiter *waiters;   /* while under way */
    struct once_waiter *last_waiter;
    bool ended;
    bool kept; /* the tensors are here; false: only the id is remembered */
    uint64_t ended_us;
    size_t bytes;
    size_t tensor_count;
    DLManagedTensor *tensors[ONCE_MAX_TENSORS]; /* owned */
    struct skep_error *err;                     /* owned; NULL: success */
};

struct once {
    struct once_limits limits;
    pthread_mutex_t lock; /* guards all below and every entry */
    struct once_entry **buckets;
    size_t bucket_count, entry_count, bytes;
    struct once_entry *oldest, *newest; /* with an outcome */
    struct once_entry *oldest_kept;     /* from here on tensors may be kept */
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

uint64_t once_content(const DLTensor *const *tensors, size_t count)
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

static size_t bucket_of(const struct once *once, const uint8_t *key)
{
    /* Peers choose the ids. */
    uint64_t h = keyed_hash(key, ONCE_PEER_BYTES + ONCE_ID_BYTES);

    return (size_t)h & (once->bucket_count - 1);
}

skep_status once_new(const struct once_limits *limits, struct once **out, struct skep_error *err)
{
    struct once *once = mem_calloc(1, sizeof(*once));

    *out = NULL;
    if (once == NULL)
        return error_no_memory(err, "memory of request ids", sizeof(*once));
    if (limits != NULL)
        once->limits = *limits;
    if (once->limits.max_entries == 0)
        once->limits.max_entries = DEFAULT_ENTRIES;
    if (once->limits.max_bytes == 0)
        once->limits.max_bytes = DEFAULT_BYTES;
    if (once->limits.ttl_us == 0)
        once->limits.ttl_us = default_ttl_us;
    once->bucket_count = FIRST_BUCKETS;
    once->buckets = mem_calloc(once->bucket_count, sizeof(struct once_entry *));
    if (once->buckets == NULL) {
        mem_free(once);
        return error_no_memory(err, "memory of request ids", FIRST_BUCKETS * sizeof(void *));
    }
    pthread_mutex_init(&once->lock, NULL);
    *out = once;
    return SKEP_OK;
}

static void drop_tensors(struct once *once, struct once_entry *entry)
{
    for (size_t i = 0; i < entry->tensor_count; i++)
        skep_tensor_free(entry->tensors[i]);
    once->bytes -= entry->bytes;
    entry->tensor_count = 0;
    entry->bytes = 0;
    entry->kept = false;
}

static void free_entry(struct once *once, struct once_entry *entry)
{
    drop_tensors(once, entry);
    mem_free(entry->err);
    mem_free(entry);
}

void once_free(struct once *once)
{
    if (once == NULL)
        return;
    for (size_t i = 0; i < once->bucket_count; i++)
        while (once->buckets[i] != NULL) {
            struct once_entry *entry = once->buckets[i];

            assert(entry->ended);
            once->buckets[i] = entry->next_in_bucket;
            free_entry(once, entry);
        }
    mem_free(once->buckets);
    pthread_mutex_destroy(&once->lock);
    mem_free(once);
}

static struct once_entry *find(const struct once *once, const uint8_t *key)
{
    struct once_entry *entry = once->buckets[bucket_of(once, key)];

    while (entry != NULL && memcmp(entry->key, key, sizeof(entry->key)) != 0)
        entry = entry->next_in_bucket;
    return entry;
}

static void unlink_entry(struct once *once, struct once_entry *entry)
{
    struct once_entry **at = &once->buckets[bucket_of(once, entry->key)];

    while (*at != entry)
        at = &(*at)->next_in_bucket;
    *at = entry->next_in_bucket;
    once->entry_count--;
}

static void forget_oldest(struct once *once)
{
    struct once_entry *entry = once->oldest;

    once->oldest = entry->next_ended;
    if (once->oldest == NULL)
        once->newest = NULL;
    if (once->oldest_kept == entry)
        once->oldest_kept = entry->next_ended;
    unlink_entry(once, entry);
    free_entry(once, entry);
}

static void forget_expired(struct once *once, uint64_t now_us)
{
    while (once->oldest != NULL && now_us >= once->oldest->ended_us &&
           now_us - once->oldest->ended_us >= once->limits.ttl_us)
        forget_oldest(once);
}

/* Larger is only faster: without memory the table stays as it is. */
static void grow(struct once *once)
{
    struct once_entry **old = once->buckets;
    size_t old_count = once->bucket_count;
    struct once_entry **buckets;

    if (once->entry_count < old_count)
        return;
    buckets = mem_calloc(old_count * 2, sizeof(struct once_entry *));
    if (buckets == NULL)
        return;
    once->buckets = buckets;
    once->bucket_count = old_count * 2;
    for (size_t i = 0; i < old_count; i++)
        while (old[i] != NULL) {
            struct once_entry *entry = old[i];
            size_t bucket = bucket_of(once, entry->key);

            old[i] = entry->next_in_bucket;
            entry->next_in_bucket = buckets[bucket];
            buckets[bucket] = entry;
        }
    mem_free(old);
}

static skep_status insert(struct once *once, const uint8_t *key, uint64_t uid_hash,
                          uint64_t content, struct once_entry **out, struct skep_error *err)
{
    struct once_entry *entry;

    if (once->entry_count >= once->limits.max_entries) {
        if (once->oldest == NULL)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                             "backward: %zu calls under way, expected at most %zu",
                             once->entry_count, once->limits.max_entries);
        once->forgotten++;
        forget_oldest(once);
    }
    entry = mem_calloc(1, sizeof(*entry));
    if (entry == NULL)
        return error_no_memory(err, "request id", sizeof(*entry));
    memcpy(entry->key, key, sizeof(entry->key));
    entry->uid_hash = uid_hash;
    entry->content = content;
    grow(once);
    size_t bucket = bucket_of(once, key);
    entry->next_in_bucket = once->buckets[bucket];
    once->buckets[bucket] = entry;
    once->entry_count++;
    *out = entry;
    return SKEP_OK;
}

static void add_waiter(struct once_entry *entry, struct once_waiter *waiter)
{
    waiter->next = NULL;
    if (entry->last_waiter != NULL)
        entry->last_waiter->next = waiter;
    else
        entry->waiters = waiter;
    entry->last_waiter = waiter;
}

/* An outcome that owns what it shows, so that it can be told without the lock. */
struct copy {
    struct once_outcome outcome;
    struct skep_error err;
    DLManagedTensor *tensors[ONCE_MAX_TENSORS];
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
static void copy_outcome(const struct once_entry *entry, struct copy *copy)
{
    copy->outcome = (struct once_outcome){.was_worked = true};
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

skep_status once_begin(struct once *once, const uint8_t peer_id[static ONCE_PEER_BYTES],
                       const uint8_t request_id[static ONCE_ID_BYTES], const char *uid,
                       uint64_t content, uint64_t now_us, struct once_waiter *waiter,
                       struct once_entry **first, struct skep_error *err)
{
    uint8_t key[ONCE_PEER_BYTES + ONCE_ID_BYTES];
    uint64_t uid_hash = hash_bytes(1, uid, strlen(uid));
    struct copy copy;
    bool known = false;
    skep_status rc = SKEP_OK;

    memcpy(key, peer_id, ONCE_PEER_BYTES);
    memcpy(key + ONCE_PEER_BYTES, request_id, ONCE_ID_BYTES);
    *first = NULL;
    pthread_mutex_lock(&once->lock);
    forget_expired(once, now_us);
    struct once_entry *entry = find(once, key);
    if (entry == NULL) {
        rc = insert(once, key, uid_hash, content, first, err);
    } else if (entry->uid_hash != uid_hash) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "backward: the request id was used for another expert than %s", uid);
    } else if (entry->content != content) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "backward: the request id was used for other inputs or gradients, expected "
                       "a new id for a new call");
    } else {
        once->repeats++;
        known = entry->ended;
        if (known)
            copy_outcome(entry, &copy);
        else
            add_waiter(entry, waiter);
    }
    pthread_mutex_unlock(&once->lock);
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
static void remember(struct once *once, struct once_entry *entry,
                     const struct once_outcome *outcome, uint64_t now_us)
{
    size_t bytes = total_bytes(outcome->tensors, outcome->tensor_count);

    entry->ended = true;
    entry->ended_us = now_us;
    if (outcome->err != NULL) {
        entry->err = mem_alloc(sizeof(*entry->err));
        if (entry->err != NULL)
            *entry->err = *outcome->err;
    } else if (outcome->tensor_count <= ONCE_MAX_TENSORS && bytes <= once->limits.max_bytes &&
               share(outcome->tensors, outcome->tensor_count, entry->tensors, NULL) == SKEP_OK) {
        entry->kept = true;
        entry->tensor_count = outcome->tensor_count;
        entry->bytes = bytes;
        once->bytes += bytes;
    }
    if (once->newest != NULL)
        once->newest->next_ended = entry;
    else
        once->oldest = entry;
    once->newest = entry;
    if (once->oldest_kept == NULL)
        once->oldest_kept = entry;
    while (once->bytes > once->limits.max_bytes && once->oldest_kept != entry) {
        drop_tensors(once, once->oldest_kept);
        once->oldest_kept = once->oldest_kept->next_ended;
    }
}

/* Each waiter gets tensors of its own over the same memory. */
static void tell(struct once_waiter *waiters, const struct once_outcome *outcome)
{
    while (waiters != NULL) {
        struct once_waiter *waiter = waiters;
        struct copy copy = {.outcome = *outcome};

        waiters = waiter->next;
        copy.outcome.tensors = copy.tensors;
        if (outcome->tensor_count > ONCE_MAX_TENSORS ||
            share(outcome->tensors, outcome->tensor_count, copy.tensors, &copy.err) != SKEP_OK) {
            error_set(&copy.err, SKEP_DATA_LOSS,
                      "backward: carried out, but memory is short for its result");
            copy.outcome = (struct once_outcome){.was_worked = true, .err = &copy.err};
        }
        waiter->done(waiter, &copy.outcome);
    }
}

void once_finish(struct once *once, struct once_entry *entry, const struct once_outcome *outcome,
                 uint64_t now_us)
{
    pthread_mutex_lock(&once->lock);
    struct once_waiter *waiters = entry->waiters;

    entry->waiters = entry->last_waiter = NULL;
    if (outcome->was_worked) {
        remember(once, entry, outcome, now_us);
    } else {
        unlink_entry(once, entry);
        free_entry(once, entry);
    }
    pthread_mutex_unlock(&once->lock);
    tell(waiters, outcome);
}

void once_stats(struct once *once, struct once_stats *out)
{
    pthread_mutex_lock(&once->lock);
    *out = (struct once_stats){.entries = once->entry_count,
                               .bytes = once->bytes,
                               .repeats = once->repeats,
                               .forgotten = once->forgotten};
    pthread_mutex_unlock(&once->lock);
}
