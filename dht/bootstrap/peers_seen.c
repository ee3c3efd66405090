/* See peers_seen.h. */
#include "dht/bootstrap/peers_seen.h"

#include <sodium.h>

enum {
    /* Clients that look something up and leave are not worth looking for: a minute's part. */
    STAY_PART = 12,
    MINUTES = 10,
    /* While lonely, parts of a minute: 1 s, 2 s, 4 s, ... 15 s. */
    FIRST_PART = 60,
    LONGEST_PART = 4,
    /* So often; then once a minute, as it may take for ever. */
    LONELY_TRIES = 60,
};

static struct seen_peer *find(struct peers_seen *seen, const struct address *address)
{
    for (size_t i = 0; i < seen->count; i++)
        if (address_equal(&seen->peers[i].address, address))
            return &seen->peers[i];
    return NULL;
}

/* Room for one more: in place of who has been missing for longest, if need be. */
static struct seen_peer *make_room(struct peers_seen *seen)
{
    struct seen_peer *oldest = NULL;

    if (seen->count < PEERS_SEEN_MAX)
        return &seen->peers[seen->count++];
    for (size_t i = 0; i < seen->count; i++)
        if (!seen->peers[i].present && (oldest == NULL || seen->peers[i].seen_us < oldest->seen_us))
            oldest = &seen->peers[i];
    return oldest;
}

void peers_seen_update(struct peers_seen *seen, const struct address *known, size_t count,
                       uint64_t now_us)
{
    for (size_t i = 0; i < seen->count; i++)
        seen->peers[i].present = false;
    for (size_t i = 0; i < count; i++) {
        struct seen_peer *p = find(seen, &known[i]);

        if (p == NULL) {
            p = make_room(seen);
            if (p == NULL)
                return; /* as many are there as are remembered */
            *p = (struct seen_peer){.address = known[i], .first_seen_us = now_us};
        }
        p->present = true;
        p->seen_us = now_us;
        p->contact_us = now_us;
        p->tries = 0;
    }
}

static uint64_t pause_us(const struct seen_peer *p, bool lonely, uint64_t minute_us)
{
    uint64_t pause = minute_us;

    if (lonely && p->tries < LONELY_TRIES) {
        unsigned doubled = p->tries < 4 ? p->tries : 4;
        pause = (minute_us / FIRST_PART) << doubled;
        if (pause > minute_us / LONGEST_PART)
            pause = minute_us / LONGEST_PART;
    }
    /* Up to a quarter less, so that nodes do not stay in step. */
    return pause - randombytes_uniform((uint32_t)(pause / 4) + 1);
}

static bool is_given_up(const struct seen_peer *p, bool lonely, uint64_t minute_us, uint64_t now_us)
{
    if (p->present)
        return false;
    uint64_t stay_us = p->seen_us - p->first_seen_us;
    if (stay_us < minute_us / STAY_PART)
        return true;
    /* Who came a moment ago and is gone comes back less often than who was there for long. */
    uint64_t limit_us = MINUTES * stay_us;
    if (limit_us < minute_us)
        limit_us = minute_us;
    else if (limit_us > MINUTES * minute_us)
        limit_us = MINUTES * minute_us;
    return !lonely && now_us - p->seen_us > limit_us;
}

size_t peers_seen_due(struct peers_seen *seen, bool lonely, uint64_t minute_us, uint64_t now_us,
                      struct address *out)
{
    size_t kept = 0;
    size_t due = 0;

    for (size_t i = 0; i < seen->count; i++) {
        struct seen_peer p = seen->peers[i];

        if (is_given_up(&p, lonely, minute_us, now_us))
            continue;
        if (!p.present) {
            uint64_t pause = pause_us(&p, lonely, minute_us);
            if (p.contact_us > now_us + pause) /* we have become lonely meanwhile */
                p.contact_us = now_us + pause;
            if (p.contact_us <= now_us) {
                p.contact_us = now_us + pause;
                p.tries++;
                out[due++] = p.address;
            }
        }
        seen->peers[kept++] = p;
    }
    seen->count = kept;
    return due;
}
