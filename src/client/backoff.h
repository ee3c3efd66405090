/*
 * What failed lately: asked last, for a time that grows with each failure in a row and is forgotten
 * at a success. Either a whole node, or one expert at one node: of a node's experts one may answer
 * nonsense while the others are well, and what the others answer does not speak for it. What fails
 * while it is avoided does not count again: many calls under way fail at once when a connection is
 * lost. Bounded: in a set, the entry that ends first makes room. Not thread-safe.
 */
#ifndef SKEP_CLIENT_BACKOFF_H
#define SKEP_CLIENT_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>
#include "crypto/identity.h"

enum {
    BACKOFF_SETS = 128, /* a power of two */
    BACKOFF_WAYS = 8,
    BACKOFF_FIRST_MS = 1000,
    BACKOFF_LONGEST_MS = 60000,
};

struct backoff_list {
    uint64_t (*now_us)(void); /* tests: another clock; NULL: clock_mono_us() */
    uint64_t failures;        /* so far, of all */
    struct backoff_entry {
        uint64_t key; /* of a node, or of an expert at a node; 0: unused */
        uint64_t until_us;
        uint64_t last; /* the failure that was counted last: its number */
        uint32_t in_a_row;
    } entries[BACKOFF_SETS][BACKOFF_WAYS];
};

/* The node itself failed, whatever it was asked for. */
void backoff_node_failed(struct backoff_list *backoff, const uint8_t peer_id[static PEER_ID_BYTES]);
/* The node answered, but not as this expert should. */
void backoff_expert_failed(struct backoff_list *backoff,
                           const uint8_t peer_id[static PEER_ID_BYTES], const char *uid);
/* The node had no room for a call to it: that is a failure if it is so twice without a success
 * between. */
void backoff_expert_was_full(struct backoff_list *backoff,
                             const uint8_t peer_id[static PEER_ID_BYTES], const char *uid);
/* @param began  avoid->failures when the call began: of what failed since then the node's failures
 *               are forgotten (it is there), the expert's are not (of several calls one failed). */
void backoff_succeeded(struct backoff_list *backoff, const uint8_t peer_id[static PEER_ID_BYTES],
                       const char *uid, uint64_t began);
/* Whether the node is avoided, or this expert there. */
bool backoff_is_active(const struct backoff_list *backoff,
                       const uint8_t peer_id[static PEER_ID_BYTES], const char *uid);

#endif
