/*
 * Who else claims to serve an expert when more do than an answer has room for: kept for a moment,
 * so that a caller who works through all of them (peer_memory.h) does not ask the DHT for all of it
 * again after every few. Bounded: a few keys, some peers each; the one not used for the longest
 * time makes room. No lock of its own.
 */
#ifndef SKEP_DHT_DIRECTORY_CANDIDATE_OVERFLOW_H
#define SKEP_DHT_DIRECTORY_CANDIDATE_OVERFLOW_H

#include "dht/directory/provider_set.h"

enum {
    OVERFLOW_KEYS = 8,
    OVERFLOW_PEERS = 256,           /* of a key */
    OVERFLOW_US = 30 * 1000 * 1000, /* how long it answers after it was read */
};

struct candidate_overflow {
    struct overflow_key {
        uint8_t key[RECORD_KEY_BYTES];
        uint64_t read_us; /* when it was added to last; 0: unused */
        struct provider_set set;
    } of[OVERFLOW_KEYS];
};

void overflow_fini(struct candidate_overflow *overflow); /* zeroed is allowed */
/* Whether one more peer would be kept; worth asking before its signature is checked. */
bool overflow_has_room(const struct candidate_overflow *overflow,
                       const uint8_t key[static RECORD_KEY_BYTES],
                       const uint8_t peer_id[static PEER_ID_BYTES], const struct ranking *ranking);
/* Takes in a verified expert record. */
void overflow_add(struct candidate_overflow *overflow, const uint8_t key[static RECORD_KEY_BYTES],
                  const struct record *record, int64_t now_s, const struct ranking *ranking);
/*
 * Writes those of a key that have not failed, those that have answered first; returns how many, at
 * most `cap`.
 * @param known  those of this set that have answered are listed too; NULL: none.
 */
size_t overflow_list(struct candidate_overflow *overflow,
                     const uint8_t key[static RECORD_KEY_BYTES], const struct provider_set *known,
                     int64_t now_s, const struct ranking *ranking, struct provider *out,
                     size_t cap);

#endif
