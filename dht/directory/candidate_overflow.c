/* The overflow, in a table that is short enough to be searched from end to end. */
#include "dht/directory/candidate_overflow.h"

#include <string.h>

static struct overflow_key *find(const struct candidate_overflow *overflow, const uint8_t *key)
{
    for (size_t i = 0; i < OVERFLOW_KEYS; i++)
        if (overflow->of[i].read_us != 0 && memcmp(overflow->of[i].key, key, RECORD_KEY_BYTES) == 0)
            return (struct overflow_key *)&overflow->of[i];
    return NULL;
}

static struct overflow_key *make(struct candidate_overflow *overflow, const uint8_t *key)
{
    struct overflow_key *oldest = &overflow->of[0];

    for (size_t i = 1; i < OVERFLOW_KEYS; i++)
        if (overflow->of[i].read_us < oldest->read_us)
            oldest = &overflow->of[i];
    provider_set_free(&oldest->set);
    *oldest = (struct overflow_key){.set = {.cap = OVERFLOW_PEERS}};
    memcpy(oldest->key, key, RECORD_KEY_BYTES);
    return oldest;
}

void overflow_fini(struct candidate_overflow *overflow)
{
    for (size_t i = 0; i < OVERFLOW_KEYS; i++)
        provider_set_free(&overflow->of[i].set);
    memset(overflow, 0, sizeof(*overflow));
}

bool overflow_has_room(const struct candidate_overflow *overflow,
                       const uint8_t key[static RECORD_KEY_BYTES],
                       const uint8_t peer_id[static PEER_ID_BYTES], const struct ranking *ranking)
{
    const struct overflow_key *c = find(overflow, key);

    return c == NULL || provider_set_has_room(&c->set, peer_id, ranking);
}

void overflow_add(struct candidate_overflow *overflow, const uint8_t key[static RECORD_KEY_BYTES],
                  const struct record *record, int64_t now_s, const struct ranking *ranking)
{
    struct overflow_key *c = find(overflow, key);

    if (c == NULL)
        c = make(overflow, key);
    c->read_us = ranking->now_us;
    provider_set_merge(&c->set, record, now_s, ranking);
}

size_t overflow_list(struct candidate_overflow *overflow,
                     const uint8_t key[static RECORD_KEY_BYTES], const struct provider_set *known,
                     int64_t now_s, const struct ranking *ranking, struct provider *out, size_t cap)
{
    struct overflow_key *c = find(overflow, key);

    if (c == NULL || c->read_us + OVERFLOW_US <= ranking->now_us)
        return 0;
    provider_set_expire(&c->set, now_s);
    provider_set_drop_failed(&c->set, ranking);
    if (c->set.live > 0 && known != NULL)
        provider_set_add_answered(&c->set, known, now_s, ranking);
    return provider_set_list_answered_first(&c->set, ranking, out, cap);
}
