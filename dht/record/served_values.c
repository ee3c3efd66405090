#include "dht/record/served_values.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash_table.h"
#include "base/list.h"
#include "crypto/keyed_hash.h"

enum {
    NO_ID = 0,
    SWEEP = 4, /* keys looked at for ended values at each value */
};

struct served_values_value {
    uint64_t id;
    uint64_t ends_s;
    size_t len;
};

struct served_values_key {
    struct hash_node by_key;
    struct list_link of_all;
    uint8_t key[RECORD_KEY_BYTES];
    size_t count, cap;
    struct served_values_value *values; /* owned */
};

struct served_values {
    struct hash_table table;
    struct linked_list all; /* keys, owned; the next to be swept first */
    size_t value_count;
};

struct served_values *served_values_new(void)
{
    struct served_values *served = mem_calloc(1, sizeof(*served));

    if (served != NULL && hash_table_init(&served->table, 0))
        return served;
    mem_free(served);
    return NULL;
}

static struct served_values_key *first_key(const struct served_values *served)
{
    return LIST_HOLDER(served->all.first, struct served_values_key, of_all);
}

static void free_key(struct served_values *served, struct served_values_key *k)
{
    hash_table_remove(&served->table, &k->by_key);
    list_remove(&served->all, &k->of_all);
    mem_free(k->values);
    mem_free(k);
}

void served_values_free(struct served_values *served)
{
    if (served == NULL)
        return;
    while (first_key(served) != NULL)
        free_key(served, first_key(served));
    hash_table_fini(&served->table);
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
        struct served_values_key *k = first_key(served);

        if (k == NULL)
            return;
        drop(served, k, now_s, NO_ID);
        if (k->count == 0) {
            free_key(served, k);
        } else {
            list_remove(&served->all, &k->of_all);
            list_append(&served->all, &k->of_all);
        }
    }
}

/* The entry of a key, made if there is none; NULL if that cannot be. */
static struct served_values_key *key_of(struct served_values *served, const uint8_t *key)
{
    uint64_t hash = keyed_hash(key, RECORD_KEY_BYTES);
    struct served_values_key *k;

    for (struct hash_node *n = hash_table_first(&served->table, hash); n != NULL;
         n = hash_table_next(n)) {
        k = HASH_HOLDER(n, struct served_values_key, by_key);
        if (memcmp(k->key, key, RECORD_KEY_BYTES) == 0)
            return k;
    }
    k = mem_calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL;
    memcpy(k->key, key, RECORD_KEY_BYTES);
    hash_table_add(&served->table, &k->by_key, hash);
    list_append(&served->all, &k->of_all);
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
