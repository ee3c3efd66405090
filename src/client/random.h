/* Reproducible numbers for initial values, jitter and dropout; not for secrets. SplitMix64 (Steele,
 * Lea and Flood 2014). Not thread-safe. */
#ifndef SKEP_CLIENT_RANDOM_H
#define SKEP_CLIENT_RANDOM_H

#include <stdint.h>

struct random {
    uint64_t state;
};

/* In [0, 1). */
static inline double random_uniform(struct random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

#endif
