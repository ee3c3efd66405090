/* See met_peers.h. */
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

static struct met_peer *find(struct met_peers *met, const struct address *address)
{
    for (size_t i = 0; i < met->count; i++)
        if (address_equal(&met->peers[i].address, address))
            return &met->peers[i];
    return NULL;
}

/* Room for one more: in place of who has been missing for longest, if need be. */
static struct met_peer *make_room(struct met_peers *met)
{
    struct met_peer *oldest = NULL;

    if (met->count < MET_PEERS_MAX)
        return &met->peers[met->count++];
    for (size_t i = 0; i < met->count; i++)
        if (!met->peers[i].present && (oldest == NULL || met->peers[i].seen_us < oldest->seen_us))
            oldest = &met->peers[i];
    return oldest;
}

void met_peers_look(struct met_peers *met, const struct address *known, size_t count,
                    uint64_t now_us)
{
    for (size_t i = 0; i < met->count; i++)
        met->peers[i].present = false;
    for (size_t i = 0; i < count; i++) {
        struct met_peer *p = find(met, &known[i]);

        if (p == NULL) {
            p = make_room(met);
            if (p == NULL)
                return; /* as many are there as are remembered */
            *p = (struct met_peer){.address = known[i], .met_us = now_us};
        }
        p->present = true;
        p->seen_us = now_us;
        p->contact_us = now_us;
        p->tries = 0;
    }
}

static uint64_t pause_us(const struct met_peer *p, bool lonely, uint64_t minute_us)
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

static bool is_given_up(const struct met_peer *p, bool lonely, uint64_t minute_us, uint64_t now_us)
{
    if (p->present)
        return false;
    uint64_t stay_us = p->seen_us - p->met_us;
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

size_t met_peers_due(struct met_peers *met, bool lonely, uint64_t minute_us, uint64_t now_us,
                     struct address *out)
{
    size_t kept = 0;
    size_t due = 0;

    for (size_t i = 0; i < met->count; i++) {
        struct met_peer p = met->peers[i];

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
        met->peers[kept++] = p;
    }
    met->count = kept;
    return due;
}
