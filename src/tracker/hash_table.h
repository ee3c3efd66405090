/*
 * A hash table of embedded nodes, for texts that strangers choose: hashed with a secret, so that
 * nobody can aim at one bucket. One thread at a time. Grows by itself; if memory for that is short
 * it only gets slower.
 */
#ifndef SKEP_TRACKER_HASH_TABLE_H
#define SKEP_TRACKER_HASH_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HASH_SECRET_BYTES = 16 };

struct hash_node {
    struct hash_node *next; /* the table's */
    uint64_t hash;          /* the table's */
};

struct hash_table {
    struct hash_node **buckets; /* owned */
    size_t bucket_count;        /* a power of two */
    size_t count;
};

bool hash_table_init(struct hash_table *table); /* false if memory is short */
void hash_table_fini(struct hash_table *table); /* zeroed is allowed */
void hash_table_add(struct hash_table *table, struct hash_node *node, uint64_t hash);
void hash_table_remove(struct hash_table *table, struct hash_node *node);
/* The first and the next node with this hash; NULL if there is none. The caller compares. */
struct hash_node *hash_table_first(const struct hash_table *table, uint64_t hash);
struct hash_node *hash_table_next(const struct hash_node *node);

void hash_secret_make(uint8_t secret[static HASH_SECRET_BYTES]);
uint64_t hash_text(const uint8_t secret[static HASH_SECRET_BYTES], const void *data, size_t len);

#endif
