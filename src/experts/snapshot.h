/*
 * Copies of arrays that another thread rewrites now and then. The copy is of one moment: a writer
 * that comes while it is being made helps to finish it and then writes; readers are not concerned.
 * So saving an expert costs its next optimizer step the rest of a memory copy at most.
 *
 * Threads: one taker and one writer at a time, any threads.
 */
#ifndef SKEP_EXPERTS_SNAPSHOT_H
#define SKEP_EXPERTS_SNAPSHOT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum { SNAPSHOT_MAX_PARTS = 3 };

struct snapshot_part {
    const uint8_t *from; /* borrowed for the copy */
    uint8_t *to;         /* the same */
    size_t bytes;
};

struct snapshot_lock {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool is_writing;
    bool is_wanted;  /* from snapshot_take() until all is copied */
    bool is_begun;   /* the moment of the copy has come */
    uint64_t number; /* of the copy */
    struct snapshot_part parts[SNAPSHOT_MAX_PARTS];
    size_t part_count;
    size_t part, offset; /* the next piece to copy */
    unsigned copying;    /* pieces being copied now */
    void (*begin)(void *arg);
    void *arg;
    uint64_t longest_wait_us; /* of a writer */
};

void snapshot_lock_init(struct snapshot_lock *lock);
void snapshot_lock_fini(struct snapshot_lock *lock);

/*
 * Copies all parts as they are at one moment between two writes.
 * @param begin  called once at that moment, by whichever thread comes first, with the lock held:
 *               for counters that belong to the arrays.
 * @return SKEP_DEADLINE_EXCEEDED if a write under way does not end in time.
 */
SKEP_MUST_CHECK skep_status snapshot_take(struct snapshot_lock *lock,
                                          const struct snapshot_part *parts, size_t count,
                                          void (*begin)(void *arg), void *arg, uint64_t deadline_us,
                                          struct skep_error *err);

/* Around every write to the arrays. */
void snapshot_write_begin(struct snapshot_lock *lock);
void snapshot_write_end(struct snapshot_lock *lock);

/* The longest that a write has waited for a copy, in microseconds. */
uint64_t snapshot_longest_wait_us(struct snapshot_lock *lock);

#endif
