/* Back-off by peer. */
#include "client/avoid.h"

#include <string.h>

#include "base/clock.h"

static uint64_t now_us(const struct avoid *avoid)
{
    return avoid->now_us != NULL ? avoid->now_us() : clock_mono_us();
}

static struct avoid_entry *find(struct avoid *avoid, const uint8_t *peer_id)
{
    for (int i = 0; i < AVOID_PEERS; i++)
        if (avoid->entries[i].until_us != 0 &&
            memcmp(avoid->entries[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &avoid->entries[i];
    return NULL;
}

static struct avoid_entry *make_room(struct avoid *avoid)
{
    struct avoid_entry *oldest = &avoid->entries[0];

    for (int i = 1; i < AVOID_PEERS; i++)
        if (avoid->entries[i].until_us < oldest->until_us)
            oldest = &avoid->entries[i];
    return oldest;
}

void avoid_failed(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES])
{
    struct avoid_entry *entry = find(avoid, peer_id);
    uint64_t now = now_us(avoid);

    if (entry == NULL) {
        entry = make_room(avoid);
        memcpy(entry->peer_id, peer_id, PEER_ID_BYTES);
        entry->failures = 0;
    } else if (entry->until_us > now) {
        return; /* calls that were under way when it began to fail: one crash is one failure */
    }
    uint64_t wait_ms = AVOID_LONGEST_MS;
    if (entry->failures < 6) /* 1, 2, 4 ... 32 s, then the longest */
        wait_ms = (uint64_t)AVOID_FIRST_MS << entry->failures;
    entry->failures++;
    entry->until_us = now + wait_ms * 1000;
}

void avoid_succeeded(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES])
{
    struct avoid_entry *entry = find(avoid, peer_id);

    if (entry != NULL)
        *entry = (struct avoid_entry){0};
}

bool avoid_is_avoided(const struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES])
{
    const struct avoid_entry *entry = find((struct avoid *)avoid, peer_id);

    return entry != NULL && entry->until_us > now_us(avoid);
}
