/* Crowds, in a table that is short enough to be searched from end to end. */
#include "dht/directory/candidate_overflow.h"

#include <string.h>

static struct crowd *find(const struct crowds *crowds, const uint8_t *key)
{
    for (size_t i = 0; i < CROWD_KEYS; i++)
        if (crowds->of[i].read_us != 0 && memcmp(crowds->of[i].key, key, RECORD_KEY_BYTES) == 0)
            return (struct crowd *)&crowds->of[i];
    return NULL;
}

static struct crowd *make(struct crowds *crowds, const uint8_t *key)
{
    struct crowd *oldest = &crowds->of[0];

    for (size_t i = 1; i < CROWD_KEYS; i++)
        if (crowds->of[i].read_us < oldest->read_us)
            oldest = &crowds->of[i];
    provider_set_free(&oldest->set);
    *oldest = (struct crowd){.set = {.cap = CROWD_PEERS}};
    memcpy(oldest->key, key, RECORD_KEY_BYTES);
    return oldest;
}

void crowds_fini(struct crowds *crowds)
{
    for (size_t i = 0; i < CROWD_KEYS; i++)
        provider_set_free(&crowds->of[i].set);
    memset(crowds, 0, sizeof(*crowds));
}

bool crowds_have_place(const struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                       const uint8_t peer_id[static PEER_ID_BYTES], const struct placing *placing)
{
    const struct crowd *c = find(crowds, key);

    return c == NULL || provider_set_has_place(&c->set, peer_id, placing);
}

void crowds_add(struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                const struct record *record, int64_t now_s, const struct placing *placing)
{
    struct crowd *c = find(crowds, key);

    if (c == NULL)
        c = make(crowds, key);
    c->read_us = placing->now_us;
    provider_set_merge(&c->set, record, now_s, placing);
}

size_t crowds_list(struct crowds *crowds, const uint8_t key[static RECORD_KEY_BYTES],
                   const struct provider_set *known, int64_t now_s, const struct placing *placing,
                   struct provider *out, size_t cap)
{
    struct crowd *c = find(crowds, key);

    if (c == NULL || c->read_us + CROWD_US <= placing->now_us)
        return 0;
    provider_set_expire(&c->set, now_s);
    provider_set_drop_failed(&c->set, placing);
    if (c->set.live > 0 && known != NULL)
        provider_set_add_answered(&c->set, known, now_s, placing);
    return provider_set_list_answered_first(&c->set, placing, out, cap);
}
