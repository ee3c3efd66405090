#include "dht/record/served_values.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "crypto/keyed_hash.h"

enum {
    BUCKETS = 1024,
    NO_ID = 0,
    SWEEP = 2, /* buckets looked through for ended keys at each value */
};

struct served_values_value {
    uint64_t id;
    uint64_t ends_s;
    size_t len;
};

struct served_values_key {
    struct served_values_key *next; /* in its bucket */
    uint8_t key[RECORD_KEY_BYTES];
    size_t count, cap;
    struct served_values_value *values; /* owned */
};

struct served_values {
    struct served_values_key *buckets[BUCKETS]; /* owned */
    size_t value_count;
    size_t swept; /* the next bucket to look through */
};

struct served_values *served_values_new(void)
{
    return mem_calloc(1, sizeof(struct served_values));
}

static void free_key(struct served_values_key **link)
{
    struct served_values_key *k = *link;

    *link = k->next;
    mem_free(k->values);
    mem_free(k);
}

void served_values_free(struct served_values *served)
{
    if (served == NULL)
        return;
    for (size_t i = 0; i < BUCKETS; i++)
        while (served->buckets[i] != NULL)
            free_key(&served->buckets[i]);
    mem_free(served);
}

/* Takes values out: those that have ended, and the one with this id. */
static void drop(struct served_values *served, struct served_values_key *k, uint64_t now_s,
                 uint64_t id)
{
    size_t kept = 0;

    for (size_t i = 0; i < k->count; i++)
        if (k->values[i].ends_s > now_s && k->values[i].id != id)
            k->values[kept++] = k->values[i];
    served->value_count -= k->count - kept;
    k->count = kept;
}

/* Keys that nobody publishes to any more are met here and nowhere else. */
static void sweep(struct served_values *served, uint64_t now_s)
{
    for (int i = 0; i < SWEEP; i++) {
        struct served_values_key **link = &served->buckets[served->swept];
        served->swept = (served->swept + 1) % BUCKETS;
        while (*link != NULL) {
            drop(served, *link, now_s, NO_ID);
            if ((*link)->count == 0)
                free_key(link);
            else
                link = &(*link)->next;
        }
    }
}

/* The entry of a key, made if there is none; NULL if that cannot be. */
static struct served_values_key *key_of(struct served_values *served, const uint8_t *key)
{
    struct served_values_key **bucket =
                                 &served->buckets[keyed_hash(key, RECORD_KEY_BYTES) % BUCKETS],
                             *k;

    for (k = *bucket; k != NULL; k = k->next)
        if (memcmp(k->key, key, RECORD_KEY_BYTES) == 0)
            return k;
    k = mem_calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL;
    memcpy(k->key, key, RECORD_KEY_BYTES);
    k->next = *bucket;
    *bucket = k;
    return k;
}

static bool reserve(struct served_values_key *k)
{
    size_t cap = k->cap > 0 ? 2 * k->cap : 1;
    struct served_values_value *values;

    if (k->count < k->cap)
        return true;
    values = mem_realloc(k->values, cap * sizeof(*values));
    if (values == NULL)
        return false;
    k->values = values;
    k->cap = cap;
    return true;
}

bool served_values_add(struct served_values *served, const uint8_t key[static RECORD_KEY_BYTES],
                       uint64_t value_id, size_t len, uint64_t now_s, uint32_t lifetime_s)
{
    size_t bytes = len;

    sweep(served, now_s);
    struct served_values_key *k = key_of(served, key);
    if (k == NULL)
        return false;
    drop(served, k, now_s, value_id);
    for (size_t i = 0; i < k->count; i++)
        bytes += k->values[i].len;
    if (bytes > SERVED_VALUES_MAX_BYTES || served->value_count >= SERVED_VALUES_MAX_VALUES ||
        !reserve(k))
        return false;
    k->values[k->count++] = (struct served_values_value){value_id, now_s + lifetime_s, len};
    served->value_count++;
    return true;
}

size_t served_values_count(const struct served_values *served)
{
    return served->value_count;
}
