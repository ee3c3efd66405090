/*
 * Who else claims to serve an expert when more do than an answer has room for: kept for a moment,
 * so that a caller who works through a crowd (peer_memory.h) does not ask the DHT for all of it
 * again after every few. Bounded: a few keys, some peers each; the one not used for the longest
 * time makes room. No lock of its own.
 */
#ifndef SKEP_DHT_DIRECTORY_CANDIDATE_OVERFLOW_H
#define SKEP_DHT_DIRECTORY_CANDIDATE_OVERFLOW_H

#include "dht/directory/provider_set.h"

enum {
    CROWD_KEYS = 8,
    CROWD_PEERS = 256,           /* of a key */
    CROWD_US = 30 * 1000 * 1000, /* how long it answers after it was read */
};

struct crowds {
    struct crowd {
        uint8_t key[RECORD_KEY_BYTES];
        uint64_t read_us; /* when it was added to last; 0: unused */
        struct provider_set set;
    } of[CROWD_KEYS];
};

void crowds_fini(struct crowds *crowds); /* zeroed is allowed */
/* Whether one more peer would be kept; worth asking before its signature is checked. */
bool crowds_have_place(const struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                       const uint8_t peer_id[static PEER_ID_BYTES], const struct placing *placing);
/* Takes in a verified expert record. */
void crowds_add(struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                const struct record *record, int64_t now_s, const struct placing *placing);
/*
 * Writes those of a key that have not failed, those that have answered first; returns how many, at
 * most `cap`.
 * @param known  those of this set that have answered are listed too; NULL: none.
 */
size_t crowds_list(struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                   const struct provider_set *known, int64_t now_s, const struct placing *placing,
                   struct provider *out, size_t cap);

#endif
