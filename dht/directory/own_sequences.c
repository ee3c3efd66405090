#include "dht/directory/own_sequences.h"

#include <stdbool.h>

static struct own_sequences_burst *burst_at(struct own_sequences *s, size_t n)
{
    return &s->bursts[n % OWN_SEQUENCES_BURSTS];
}

uint64_t own_sequences_next(struct own_sequences *s, int64_t now_ms)
{
    uint64_t seq = now_ms > 0 && (uint64_t)now_ms > s->last ? (uint64_t)now_ms : s->last + 1;
    struct own_sequences_burst *newest = s->count > 0 ? burst_at(s, s->count - 1) : NULL;

    s->last = seq;
    if (s->floor == 0)
        s->floor = seq - 1;
    if (newest != NULL && seq - newest->last <= OWN_SEQUENCES_BURST_GAP) {
        newest->last = seq;
        return seq;
    }
    if (s->count >= OWN_SEQUENCES_BURSTS) /* the oldest makes room */
        s->floor = burst_at(s, s->count)->last;
    *burst_at(s, s->count++) = (struct own_sequences_burst){seq, seq};
    return seq;
}

static bool is_ours(struct own_sequences *s, uint64_t seq)
{
    size_t kept = s->count < OWN_SEQUENCES_BURSTS ? s->count : OWN_SEQUENCES_BURSTS;

    for (size_t n = s->count - kept; n < s->count; n++)
        if (burst_at(s, n)->first <= seq && seq <= burst_at(s, n)->last)
            return true;
    return false;
}

/* The first time it is what an earlier run of ours left behind, dated by a clock ahead of ours.
 * Newer ones after that are of the present. */
static enum own_sequence raise(struct own_sequences *s, uint64_t seq, uint64_t mono_us)
{
    bool again = s->raised_us > 0 && mono_us - s->raised_us > OWN_SEQUENCES_RAISE_GAP_US;

    s->last = seq;
    if (s->floor == 0) /* nothing was given out: whoever ran may have ended */
        return OWN_SEQUENCE_NEWER;
    s->floor = seq;
    s->raised_us = mono_us;
    return again ? OWN_SEQUENCE_NEWER_FOREIGN : OWN_SEQUENCE_NEWER;
}

enum own_sequence own_sequences_saw(struct own_sequences *s, uint64_t seq, uint64_t mono_us)
{
    if (seq > s->last)
        return raise(s, seq, mono_us);
    return s->floor == 0 || seq <= s->floor || is_ours(s, seq) ? OWN_SEQUENCE_OLD
                                                               : OWN_SEQUENCE_FOREIGN;
}
