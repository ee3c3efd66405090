/*
 * How fast nodes answer, for choosing among those that serve the same expert: the time that answers
 * take (for each node and expert, as this client saw them: rising at once, falling as an
 * exponential moving average) and how many calls it has under way there. What is not used is
 * forgotten by halves, so that a node that was slow once is tried again. Bounded: in a set, the
 * entry that was used longest ago makes room. Not thread-safe.
 */
#ifndef SKEP_CLIENT_LATENCY_H
#define SKEP_CLIENT_LATENCY_H

#include <stdint.h>
#include "crypto/identity.h"

enum {
    LATENCY_SETS = 256, /* a power of two */
    LATENCY_WAYS = 4,
    LATENCY_HALF_LIFE_MS = 10000,
};

struct latency_estimates {
    uint64_t (*now_us)(void); /* tests: another clock; NULL: clock_mono_us() */
    struct latency_entry {
        uint64_t key;     /* 0: unused */
        uint64_t seen_us; /* when a call there began or ended */
        double answer_us; /* at seen_us; 0: unknown */
        uint32_t open;    /* calls under way */
    } entries[LATENCY_SETS][LATENCY_WAYS];
};

/* What speaks against a node. */
struct latency_cost {
    double answer_us;     /* 0: unknown */
    double round_trip_us; /* the same */
    uint64_t waiting;     /* tasks in its queue, as published, and our own calls under way */
};

/* Forward and backward take their own time each. */
uint64_t latency_key(const uint8_t peer_id[static PEER_ID_BYTES], const char *method,
                     const char *uid);
/* A call begins; one of the two below follows. */
void latency_began(struct latency_estimates *latencies, uint64_t key);
void latency_answered(struct latency_estimates *latencies, uint64_t key, uint64_t took_us);
/* It ended without an answer that tells how fast the node is: it takes this long at least; 0: that
 * says nothing. */
void latency_ended(struct latency_estimates *latencies, uint64_t key, uint64_t at_least_us);
/* @param queued what the node has published. round_trip_us is the caller's to fill in. */
struct latency_cost latency_cost(const struct latency_estimates *latencies, uint64_t key,
                                 uint64_t queued);
/*
 * Below 0: `a` is the better one; above 0: `b`; 0: they are equal. Compares (1 + waiting) times the
 * answer time or, unless that is known of both, the round trip or, unless that is, nothing. So what
 * nobody has measured yet is tried.
 */
int latency_compare(const struct latency_cost *a, const struct latency_cost *b);

#endif
