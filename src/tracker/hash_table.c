/* Chains of embedded nodes. */
#include "tracker/hash_table.h"

#include <sodium.h>

#include "base/alloc.h"

enum { FIRST_BUCKETS = 64 };

_Static_assert((int)crypto_shorthash_KEYBYTES == (int)HASH_SECRET_BYTES, "SipHash-2-4's key");

bool hash_table_init(struct hash_table *table)
{
    *table = (struct hash_table){
        .buckets = mem_calloc(FIRST_BUCKETS, sizeof(struct hash_node *)),
        .bucket_count = FIRST_BUCKETS,
    };
    return table->buckets != NULL;
}

void hash_table_fini(struct hash_table *table)
{
    mem_free(table->buckets);
    *table = (struct hash_table){0};
}

static struct hash_node **bucket_of(const struct hash_table *table, uint64_t hash)
{
    return &table->buckets[hash & (table->bucket_count - 1)];
}

static void grow(struct hash_table *table)
{
    struct hash_table larger = {.bucket_count = table->bucket_count * 2, .count = table->count};

    larger.buckets = mem_calloc(larger.bucket_count, sizeof(struct hash_node *));
    if (larger.buckets == NULL)
        return;
    for (size_t i = 0; i < table->bucket_count; i++)
        while (table->buckets[i] != NULL) {
            struct hash_node *node = table->buckets[i];
            struct hash_node **to = bucket_of(&larger, node->hash);
            table->buckets[i] = node->next;
            node->next = *to;
            *to = node;
        }
    mem_free(table->buckets);
    *table = larger;
}

void hash_table_add(struct hash_table *table, struct hash_node *node, uint64_t hash)
{
    if (table->count >= table->bucket_count)
        grow(table);
    struct hash_node **to = bucket_of(table, hash);
    node->hash = hash;
    node->next = *to;
    *to = node;
    table->count++;
}

void hash_table_remove(struct hash_table *table, struct hash_node *node)
{
    for (struct hash_node **at = bucket_of(table, node->hash); *at != NULL; at = &(*at)->next)
        if (*at == node) {
            *at = node->next;
            node->next = NULL;
            table->count--;
            return;
        }
}

static struct hash_node *skip_to(struct hash_node *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash)
        node = node->next;
    return node;
}

struct hash_node *hash_table_first(const struct hash_table *table, uint64_t hash)
{
    return skip_to(*bucket_of(table, hash), hash);
}

struct hash_node *hash_table_next(const struct hash_node *node)
{
    return skip_to(node->next, node->hash);
}

void hash_secret_make(uint8_t secret[static HASH_SECRET_BYTES])
{
    randombytes_buf(secret, HASH_SECRET_BYTES);
}

uint64_t hash_text(const uint8_t secret[static HASH_SECRET_BYTES], const void *data, size_t len)
{
    uint64_t hash = 0;

    crypto_shorthash((uint8_t *)&hash, data, len, secret);
    return hash;
}
