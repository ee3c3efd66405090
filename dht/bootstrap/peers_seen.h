/*
 * Peers met in this run, so that after an outage they are looked for again: the configured ones may
 * be gone by then, and OpenDHT itself takes a peer that was silent for dead until it speaks.
 *
 * A peer that was there for a while and is missing is contacted once a minute, for ten times as
 * long as it was there: for a minute at least and ten at most. While there is no peer at all, it is
 * contacted with growing pauses of up to 15 s, after a quarter of an hour of a minute, and without
 * end. No thread, no lock, no clock.
 */
#ifndef SKEP_DHT_BOOTSTRAP_PEERS_SEEN_H
#define SKEP_DHT_BOOTSTRAP_PEERS_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/endpoint.h"

enum { PEERS_SEEN_MAX = 64 }; /* a node with more of them is not left by all */

struct peers_seen {
    size_t count;
    struct seen_peer {
        struct address address;
        uint64_t first_seen_us, seen_us; /* first and last time that it was there */
        uint64_t contact_us;             /* when to try next */
        unsigned tries;                  /* since it was last there */
        bool present;
    } peers[PEERS_SEEN_MAX];
};

/* Takes note of who is there now. */
void peers_seen_update(struct peers_seen *seen, const struct address *known, size_t count,
                       uint64_t now_us);
/*
 * Whom to contact now, and forgets those who were tried for long enough.
 * @param lonely     there is no peer at all.
 * @param minute_us  how long a minute is.
 * @param out        room for PEERS_SEEN_MAX. Returns how many were written.
 */
size_t peers_seen_due(struct peers_seen *seen, bool lonely, uint64_t minute_us, uint64_t now_us,
                      struct address *out);

#endif
