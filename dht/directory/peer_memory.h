/*
 * Which peers have answered, and which have failed, as far as remembered: what decides who is
 * listed where more claim to serve something than can be listed. Anybody may make identities by the
 * thousand and sign with each that it serves an expert; nobody can make another peer answer. So
 * those that have answered come first, then those not tried yet, in a random order for each
 * look-up, last those that failed, the longest ago first. Whoever tries what it is given and tells
 * the outcome is therefore given every claimant in turn, at most once until all have been.
 *
 * Bounded: sets of a few slots, chosen by a keyed hash, so that no flood of identities can aim at
 * the slot of one peer; the oldest of a set makes room. Thread: any.
 */
#ifndef SKEP_DHT_DIRECTORY_PEER_MEMORY_H
#define SKEP_DHT_DIRECTORY_PEER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "crypto/identity.h"

enum {
    PEER_MEMORY_FAILED = 8192,  /* peers remembered as failed */
    PEER_MEMORY_ANSWERED = 512, /* and as having answered */
    /* A failure is forgotten after this: a node that was down may be up again. */
    PEER_MEMORY_FAILED_US = 600 * 1000 * 1000,
};

struct peer_memory;

/* @return SKEP_RESOURCE_EXHAUSTED if memory is short. */
SKEP_MUST_CHECK skep_status peer_memory_new(struct peer_memory **out, struct skep_error *err);
void peer_memory_free(struct peer_memory *memory); /* NULL is allowed */

/* What was heard last counts. */
void peer_memory_failed(struct peer_memory *memory, const uint8_t peer_id[static PEER_ID_BYTES],
                        uint64_t now_us);
void peer_memory_answered(struct peer_memory *memory, const uint8_t peer_id[static PEER_ID_BYTES],
                          uint64_t now_us);

/*
 * A peer's rank: the lowest is listed first. Ranks of different seeds compare well but for those
 * of peers not tried yet.
 * @param memory  NULL: nothing is known of anybody.
 * @param lot     any number; another one gives another order of those not tried yet.
 */
uint64_t peer_memory_rank(struct peer_memory *memory, const uint8_t peer_id[static PEER_ID_BYTES],
                          uint64_t order_seed, uint64_t now_us);
/* Whether that is the rank of one that has answered. */
bool peer_memory_is_answered(uint64_t rank);
/* And of one that has failed. */
bool peer_memory_is_failed(uint64_t rank);

#endif
