/*
 * The hash table: nodes that things hold themselves, in chains. The caller hashes: with
 * keyed_hash() (crypto/keyed_hash.h) wherever peers choose the keys, so that nobody can aim at one
 * bucket. One thread at a time. It grows by itself; if memory for that is short it only gets
 * slower.
 */
#ifndef SKEP_BASE_HASH_TABLE_H
#define SKEP_BASE_HASH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash_node {
    struct hash_node *next; /* the table's */
    uint64_t hash;          /* the table's */
};

struct hash_table {
    struct hash_node **buckets; /* owned */
    size_t bucket_count;        /* a power of two */
    size_t count;
};

/* What holds a node, as `member`; NULL for NULL. */
#define HASH_HOLDER(node, type, member) ((type *)hash_holder((node), offsetof(type, member)))

static inline void *hash_holder(struct hash_node *node, size_t offset)
{
    return node != NULL ? (char *)node - offset : NULL;
}

/* @param expected  nodes that it holds before it first grows; 0: a few. False if memory is short.
 */
bool hash_table_init(struct hash_table *table, size_t expected);
/* Forgets the nodes, which the caller owns. Zeroed is allowed. */
void hash_table_fini(struct hash_table *table);
void hash_table_add(struct hash_table *table, struct hash_node *node, uint64_t hash);
void hash_table_remove(struct hash_table *table, struct hash_node *node);

/* The first and the next node with this hash; NULL if there is none. The caller compares keys. */
struct hash_node *hash_table_first(const struct hash_table *table, uint64_t hash);
struct hash_node *hash_table_next(const struct hash_node *node);

/* Calls `fn` for every node, which `fn` may remove and free; it changes no other node.
 * @param start  any number: the walk begins at its bucket. */
void hash_table_each(struct hash_table *table, uint64_t start,
                     void (*fn)(struct hash_node *node, void *arg), void *arg);

#endif
