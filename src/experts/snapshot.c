/* See snapshot.h. */
#include "experts/snapshot.h"

#include <assert.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

/* Large enough for memcpy's full speed, small enough that a writer never waits long for the piece
 * that the taker, maybe preempted, has in hand. */
enum { PIECE_BYTES = 1 << 20 };

void snapshot_lock_init(struct snapshot_lock *gate)
{
    *gate = (struct snapshot_lock){0};
    pthread_mutex_init(&gate->lock, NULL);
    cond_init(&gate->changed);
}

void snapshot_lock_fini(struct snapshot_lock *gate)
{
    assert(!gate->is_wanted && !gate->is_writing);
    pthread_cond_destroy(&gate->changed);
    pthread_mutex_destroy(&gate->lock);
}

/* The next piece; false if none is left. The lock is held. */
static bool next_piece(struct snapshot_lock *gate, struct snapshot_part *piece)
{
    while (gate->part < gate->part_count && gate->offset == gate->parts[gate->part].bytes) {
        gate->part++;
        gate->offset = 0;
    }
    if (gate->part == gate->part_count)
        return false;
    const struct snapshot_part *p = &gate->parts[gate->part];
    size_t left = p->bytes - gate->offset;
    *piece = (struct snapshot_part){
        .from = p->from + gate->offset,
        .to = p->to + gate->offset,
        .bytes = left < PIECE_BYTES ? left : PIECE_BYTES,
    };
    gate->offset += piece->bytes;
    return true;
}

/* Copies until all is copied, by this thread or another. The lock is held, and released to copy. */
static void finish_copy(struct snapshot_lock *gate)
{
    const uint64_t number = gate->number;
    struct snapshot_part piece;

    if (!gate->is_begun) {
        gate->is_begun = true;
        gate->begin(gate->arg);
    }
    while (next_piece(gate, &piece)) {
        gate->copying++;
        pthread_mutex_unlock(&gate->lock);
        memcpy(piece.to, piece.from, piece.bytes);
        pthread_mutex_lock(&gate->lock);
        gate->copying--;
    }
    while (gate->number == number && gate->copying > 0)
        cond_wait_until(&gate->changed, &gate->lock, CLOCK_NEVER);
    if (gate->number != number)
        return; /* the other thread was first to see its end, and the next copy is wanted */
    gate->is_wanted = false;
    pthread_cond_broadcast(&gate->changed);
}

skep_status snapshot_take(struct snapshot_lock *gate, const struct snapshot_part *parts,
                          size_t count, void (*begin)(void *arg), void *arg, uint64_t deadline_us,
                          struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    assert(count <= SNAPSHOT_MAX_PARTS);
    pthread_mutex_lock(&gate->lock);
    assert(!gate->is_wanted);
    if (count > 0)
        memcpy(gate->parts, parts, count * sizeof(*parts));
    gate->part_count = count;
    gate->part = gate->offset = 0;
    gate->begin = begin;
    gate->arg = arg;
    gate->is_begun = false;
    gate->number++;
    gate->is_wanted = true; /* from here on the next write comes after the copy */
    while (gate->is_wanted && gate->is_writing && rc == SKEP_OK)
        if (!cond_wait_until(&gate->changed, &gate->lock, deadline_us) && gate->is_wanted)
            rc = error_set(err, SKEP_DEADLINE_EXCEEDED, "a write to it takes too long");
    if (rc != SKEP_OK)
        gate->is_wanted = false;
    else if (gate->is_wanted)
        finish_copy(gate);
    pthread_mutex_unlock(&gate->lock);
    return rc;
}

void snapshot_write_begin(struct snapshot_lock *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (gate->is_wanted) {
        uint64_t start = clock_mono_us();

        while (gate->is_wanted)
            finish_copy(gate);
        uint64_t waited = clock_mono_us() - start;
        if (waited > gate->longest_wait_us)
            gate->longest_wait_us = waited;
    }
    gate->is_writing = true;
    pthread_mutex_unlock(&gate->lock);
}

void snapshot_write_end(struct snapshot_lock *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->is_writing = false;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

uint64_t snapshot_longest_wait_us(struct snapshot_lock *gate)
{
    pthread_mutex_lock(&gate->lock);
    uint64_t longest = gate->longest_wait_us;
    pthread_mutex_unlock(&gate->lock);
    return longest;
}
