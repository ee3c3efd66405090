/*
 * All that was said under one key: the verified records of one kind, the newest of each publisher
 * and subject. Filled by the directory while a lookup is under way; shared and not changed any more
 * once it has been handed out.
 */
#ifndef SKEP_DHT_DIRECTORY_COLLECTION_H
#define SKEP_DHT_DIRECTORY_COLLECTION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/record/record.h"

enum { COLLECTION_MAX_RECORDS = 4096 };

struct collection {
    atomic_uint refs;
    size_t count, cap;
    struct collected {
        struct record record;
        uint64_t value_id;
        uint64_t mark; /* of the bytes it came from, see collection_has() */
    } * items;         /* owned */
};

struct collection *collection_new(void); /* one reference; NULL if memory is short */
void collection_ref(struct collection *collection);
void collection_unref(struct collection *collection); /* NULL is allowed */

/*
 * What is known after reading a key once more: the records of both, the newer of each, without
 * those of `old` that have ended. A lookup may miss records that are there, so what was known stays
 * until its end. Prefix records only.
 * @return one reference; NULL if memory is short.
 */
struct collection *collection_merge(const struct collection *old, const struct collection *fresh,
                                    int64_t now_s);

/* What tells one encoded record from others: the start of its signature. */
uint64_t collection_mark(const uint8_t *data, size_t len);
/* Whether a record with this mark was put in: OpenDHT hands replicas out more than once. */
bool collection_has(const struct collection *collection, uint64_t mark);
/* Whether this peer's value of this id is there with this seq or a newer one. */
bool collection_has_newer(const struct collection *collection, uint64_t value_id,
                          const uint8_t peer_id[static PEER_ID_BYTES], uint64_t seq);
/* Takes a verified record (always; *record is zeroed). Older than what is there of its publisher
 * and subject, over the limit, or with memory short: it is dropped. */
void collection_put(struct collection *collection, struct record *record, uint64_t mark);

#endif
