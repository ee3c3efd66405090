/*
 * The sequence numbers of records of our own identity: which this process gave out, and which of
 * those seen in the DHT it did not. An earlier run of the same node leaves some behind; what is
 * dated later, and not by us, comes from somebody who runs now with a copy of our key.
 *
 * Not thread-safe.
 */
#ifndef SKEP_DHT_DIRECTORY_OWN_SEQUENCES_H
#define SKEP_DHT_DIRECTORY_OWN_SEQUENCES_H

#include <stddef.h>
#include <stdint.h>

enum {
    OWN_SEQUENCES_BURSTS = 64,
    /* Numbers are dates in ms (docs/records.md): those of one round follow each other closely. */
    OWN_SEQUENCES_BURST_GAP = 100,
    /* Newer ones that are found so close together are those of one earlier run. */
    OWN_SEQUENCES_RAISE_GAP_US = 1000000,
};

struct own_sequences {
    uint64_t last; /* given out or seen */
    /* Who gave out a number up to this is not known any more; 0: none has been given out yet. */
    uint64_t floor;
    struct own_sequences_burst {
        uint64_t first, last;
    } bursts[OWN_SEQUENCES_BURSTS]; /* given out, a ring */
    size_t count;       /* so far; the newest is at (count - 1) % OWN_SEQUENCES_BURSTS */
    uint64_t raised_us; /* when a newer one than `last` was found last; 0: never */
};

enum own_sequence {
    OWN_SEQUENCE_OLD,     /* of ours, or from before */
    OWN_SEQUENCE_NEWER,   /* than all so far: ours go on from there */
    OWN_SEQUENCE_FOREIGN, /* old, but given out by another who runs now */
    OWN_SEQUENCE_NEWER_FOREIGN,
};

/* The next number to give out. @param now_ms the clock; the number is more than any before. */
uint64_t own_sequences_next(struct own_sequences *s, int64_t now_ms);

/* A record of our identity has been found. @param mono_us when, by a clock that does not go back;
 * not 0 */
enum own_sequence own_sequences_saw(struct own_sequences *s, uint64_t seq, uint64_t mono_us);

#endif
