/* Back-off by node, and by expert and node. */
#include "client/backoff.h"

#include <stddef.h>

#include "base/clock.h"
#include "client/latency.h"

static uint64_t now_us(const struct avoid *avoid)
{
    return avoid->now_us != NULL ? avoid->now_us() : clock_mono_us();
}

/* No expert's UID is empty. */
static uint64_t node_key(const uint8_t *peer_id)
{
    return pace_key(peer_id, "", "");
}

static uint64_t expert_key(const uint8_t *peer_id, const char *uid)
{
    return pace_key(peer_id, "", uid);
}

static const struct avoid_entry *set_of(const struct avoid *avoid, uint64_t key)
{
    return avoid->entries[(key ^ (key >> 32)) % AVOID_SETS];
}

static struct avoid_entry *find(const struct avoid *avoid, uint64_t key)
{
    const struct avoid_entry *set = set_of(avoid, key);

    for (size_t i = 0; i < AVOID_WAYS; i++)
        if (set[i].key == key)
            return (struct avoid_entry *)&set[i];
    return NULL;
}

/* An entry that has not failed yet. */
static struct avoid_entry *make(struct avoid *avoid, uint64_t key)
{
    struct avoid_entry *set = (struct avoid_entry *)set_of(avoid, key);
    struct avoid_entry *entry = &set[0];

    for (size_t i = 1; i < AVOID_WAYS; i++)
        if (set[i].until_us < entry->until_us)
            entry = &set[i];
    *entry = (struct avoid_entry){.key = key, .until_us = now_us(avoid)};
    return entry;
}

static void failed(struct avoid *avoid, uint64_t key)
{
    struct avoid_entry *entry = find(avoid, key);
    uint64_t now = now_us(avoid);

    avoid->failures++;
    if (entry == NULL)
        entry = make(avoid, key);
    entry->last = avoid->failures;
    if (entry->until_us > now)
        return; /* calls that were under way when it began to fail: one crash is one failure */
    uint64_t wait_ms = AVOID_LONGEST_MS;
    if (entry->in_a_row < 6) /* 1, 2, 4 ... 32 s, then the longest */
        wait_ms = (uint64_t)AVOID_FIRST_MS << entry->in_a_row;
    entry->in_a_row++;
    entry->until_us = now + wait_ms * 1000;
}

void avoid_node_failed(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES])
{
    failed(avoid, node_key(peer_id));
}

void avoid_expert_failed(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES],
                         const char *uid)
{
    failed(avoid, expert_key(peer_id, uid));
}

void avoid_expert_was_full(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES],
                           const char *uid)
{
    uint64_t key = expert_key(peer_id, uid);

    if (find(avoid, key) != NULL)
        failed(avoid, key);
    else
        make(avoid, key)->last = ++avoid->failures;
}

void avoid_succeeded(struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES],
                     const char *uid, uint64_t began)
{
    struct avoid_entry *node = find(avoid, node_key(peer_id));
    struct avoid_entry *expert = find(avoid, expert_key(peer_id, uid));

    if (node != NULL)
        *node = (struct avoid_entry){0};
    if (expert != NULL && expert->last <= began)
        *expert = (struct avoid_entry){0};
}

static bool is_in_force(const struct avoid *avoid, uint64_t key)
{
    const struct avoid_entry *entry = find(avoid, key);

    return entry != NULL && entry->until_us > now_us(avoid);
}

bool avoid_is_avoided(const struct avoid *avoid, const uint8_t peer_id[static PEER_ID_BYTES],
                      const char *uid)
{
    return is_in_force(avoid, node_key(peer_id)) || is_in_force(avoid, expert_key(peer_id, uid));
}
