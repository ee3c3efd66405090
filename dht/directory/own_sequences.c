#include "dht/directory/own_sequences.h"

#include <stdbool.h>

static struct own_seqs_burst *burst_at(struct own_seqs *s, size_t n)
{
    return &s->bursts[n % OWN_SEQS_BURSTS];
}

uint64_t own_seqs_next(struct own_seqs *s, int64_t now_ms)
{
    uint64_t seq = now_ms > 0 && (uint64_t)now_ms > s->last ? (uint64_t)now_ms : s->last + 1;
    struct own_seqs_burst *newest = s->count > 0 ? burst_at(s, s->count - 1) : NULL;

    s->last = seq;
    if (s->floor == 0)
        s->floor = seq - 1;
    if (newest != NULL && seq - newest->last <= OWN_SEQS_BURST_GAP) {
        newest->last = seq;
        return seq;
    }
    if (s->count >= OWN_SEQS_BURSTS) /* the oldest makes room */
        s->floor = burst_at(s, s->count)->last;
    *burst_at(s, s->count++) = (struct own_seqs_burst){seq, seq};
    return seq;
}

static bool is_ours(struct own_seqs *s, uint64_t seq)
{
    size_t kept = s->count < OWN_SEQS_BURSTS ? s->count : OWN_SEQS_BURSTS;

    for (size_t n = s->count - kept; n < s->count; n++)
        if (burst_at(s, n)->first <= seq && seq <= burst_at(s, n)->last)
            return true;
    return false;
}

/* The first time it is what an earlier run of ours left behind, dated by a clock ahead of ours.
 * Newer ones after that are of the present. */
static enum own_seq raise(struct own_seqs *s, uint64_t seq, uint64_t mono_us)
{
    bool again = s->raised_us > 0 && mono_us - s->raised_us > OWN_SEQS_RAISE_GAP_US;

    s->last = seq;
    if (s->floor == 0) /* nothing was given out: whoever ran may have ended */
        return OWN_SEQ_NEWER;
    s->floor = seq;
    s->raised_us = mono_us;
    return again ? OWN_SEQ_NEWER_FOREIGN : OWN_SEQ_NEWER;
}

enum own_seq own_seqs_saw(struct own_seqs *s, uint64_t seq, uint64_t mono_us)
{
    if (seq > s->last)
        return raise(s, seq, mono_us);
    return s->floor == 0 || seq <= s->floor || is_ours(s, seq) ? OWN_SEQ_OLD : OWN_SEQ_FOREIGN;
}
