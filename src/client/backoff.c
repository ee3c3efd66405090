/* Back-off by node, and by expert and node. */
#include "client/backoff.h"

#include <stddef.h>

#include "base/clock.h"
#include "client/latency.h"

static uint64_t now_us(const struct backoff_list *backoff)
{
    return backoff->now_us != NULL ? backoff->now_us() : clock_mono_us();
}

/* No expert's UID is empty. */
static uint64_t node_key(const uint8_t *peer_id)
{
    return latency_key(peer_id, "", "");
}

static uint64_t expert_key(const uint8_t *peer_id, const char *uid)
{
    return latency_key(peer_id, "", uid);
}

static const struct backoff_entry *set_of(const struct backoff_list *backoff, uint64_t key)
{
    return backoff->entries[(key ^ (key >> 32)) % BACKOFF_SETS];
}

static struct backoff_entry *find(const struct backoff_list *backoff, uint64_t key)
{
    const struct backoff_entry *set = set_of(backoff, key);

    for (size_t i = 0; i < BACKOFF_WAYS; i++)
        if (set[i].key == key)
            return (struct backoff_entry *)&set[i];
    return NULL;
}

/* An entry that has not failed yet. */
static struct backoff_entry *make(struct backoff_list *backoff, uint64_t key)
{
    struct backoff_entry *set = (struct backoff_entry *)set_of(backoff, key);
    struct backoff_entry *entry = &set[0];

    for (size_t i = 1; i < BACKOFF_WAYS; i++)
        if (set[i].until_us < entry->until_us)
            entry = &set[i];
    *entry = (struct backoff_entry){.key = key, .until_us = now_us(backoff)};
    return entry;
}

static void failed(struct backoff_list *backoff, uint64_t key)
{
    struct backoff_entry *entry = find(backoff, key);
    uint64_t now = now_us(backoff);

    backoff->failures++;
    if (entry == NULL)
        entry = make(backoff, key);
    entry->last = backoff->failures;
    if (entry->until_us > now)
        return; /* calls that were under way when it began to fail: one crash is one failure */
    uint64_t wait_ms = BACKOFF_LONGEST_MS;
    if (entry->in_a_row < 6) /* 1, 2, 4 ... 32 s, then the longest */
        wait_ms = (uint64_t)BACKOFF_FIRST_MS << entry->in_a_row;
    entry->in_a_row++;
    entry->until_us = now + wait_ms * 1000;
}

void backoff_node_failed(struct backoff_list *backoff, const uint8_t peer_id[static PEER_ID_BYTES])
{
    failed(backoff, node_key(peer_id));
}

void backoff_expert_failed(struct backoff_list *backoff,
                           const uint8_t peer_id[static PEER_ID_BYTES], const char *uid)
{
    failed(backoff, expert_key(peer_id, uid));
}

void backoff_expert_was_full(struct backoff_list *backoff,
                             const uint8_t peer_id[static PEER_ID_BYTES], const char *uid)
{
    uint64_t key = expert_key(peer_id, uid);

    if (find(backoff, key) != NULL)
        failed(backoff, key);
    else
        make(backoff, key)->last = ++backoff->failures;
}

void backoff_succeeded(struct backoff_list *backoff, const uint8_t peer_id[static PEER_ID_BYTES],
                       const char *uid, uint64_t began)
{
    struct backoff_entry *node = find(backoff, node_key(peer_id));
    struct backoff_entry *expert = find(backoff, expert_key(peer_id, uid));

    if (node != NULL)
        *node = (struct backoff_entry){0};
    if (expert != NULL && expert->last <= began)
        *expert = (struct backoff_entry){0};
}

static bool is_in_force(const struct backoff_list *backoff, uint64_t key)
{
    const struct backoff_entry *entry = find(backoff, key);

    return entry != NULL && entry->until_us > now_us(backoff);
}

bool backoff_is_active(const struct backoff_list *backoff,
                       const uint8_t peer_id[static PEER_ID_BYTES], const char *uid)
{
    return is_in_force(backoff, node_key(peer_id)) ||
           is_in_force(backoff, expert_key(peer_id, uid));
}
