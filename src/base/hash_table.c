/* Chains of embedded nodes. */
#include "base/hash_table.h"

#include "base/alloc.h"

enum { FIRST_BUCKETS = 64 };

bool hash_table_init(struct hash_table *table, size_t expected)
{
    size_t buckets = FIRST_BUCKETS;

    while (buckets < expected && buckets <= SIZE_MAX / 2)
        buckets *= 2;
    *table = (struct hash_table){
        .buckets = mem_calloc(buckets, sizeof(struct hash_node *)),
        .bucket_count = buckets,
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

void hash_table_each(struct hash_table *table, uint64_t start,
                     void (*fn)(struct hash_node *node, void *arg), void *arg)
{
    for (size_t i = 0; i < table->bucket_count; i++)
        for (struct hash_node *node = *bucket_of(table, start + i), *next; node != NULL;
             node = next) {
            next = node->next;
            fn(node, arg);
        }
}
