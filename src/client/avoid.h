/*
 * Peers that failed lately: asked last, for a time that grows with each failure in a row and is
 * forgotten at the first success. What fails while its peer is avoided does not count again: many
 * calls under way fail at once when a connection is lost. Bounded: the entry that ends first makes
 * room. Not thread-safe.
 */
#ifndef SKEP_CLIENT_AVOID_H
#define SKEP_CLIENT_AVOID_H

#include <stdbool.h>
#include <stdint.h>
#include "crypto/identity.h"

enum {
    AVOID_PEERS = 128,
    AVOID_FIRST_MS = 1000,
    AVOID_LONGEST_MS = 60000,
};

struct avoid {
    uint64_t (*now_us)(void); /* tests: another clock; NULL: clock_mono_us() */
    struct avoid_entry {
        uint8_t peer_id[PEER_ID_BYTES];
        uint64_t until_us; /* 0: unused */
        uint32_t failures;
    } entries[AVOID_PEERS];
};

void avoid_failed(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES]);
void avoid_succeeded(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES]);
bool avoid_is_avoided(const struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES]);

#endif
