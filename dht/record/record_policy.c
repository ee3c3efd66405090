/*
 * What a node stores for others: nothing that a reader would refuse. So junk costs the space of
 * nobody, and a value id, which names its publisher, cannot be taken by somebody else.
 */
#include <string.h>

#include "dht/record/record_internal.h"

bool record_store_policy(const uint8_t *data, size_t len, uint64_t value_id,
                         const uint8_t key[static RECORD_KEY_BYTES],
                         const struct record_swarm *swarm, int64_t now_unix_s)
{
    struct record record;

    if (record_decode(&record, data, len, swarm, key, now_unix_s, NULL) != SKEP_OK)
        return false;
    bool ok = record_value_id(&record) == value_id;
    record_free(&record);
    return ok;
}

bool record_edit_policy(const uint8_t *old, size_t old_len, const uint8_t *next, size_t next_len,
                        uint64_t value_id, const uint8_t key[static RECORD_KEY_BYTES],
                        const struct record_swarm *swarm, int64_t now_unix_s)
{
    struct envelope before, after;

    if (!record_store_policy(next, next_len, value_id, key, swarm, now_unix_s) ||
        envelope_parse(&after, next, next_len, NULL) != SKEP_OK)
        return false;
    /* What is no record at all has no claim to the id, which names the publisher of `next`. */
    bool ok = true;
    if (envelope_parse(&before, old, old_len, NULL) == SKEP_OK) {
        ok = before.kind == after.kind &&
             memcmp(before.peer_id, after.peer_id, PEER_ID_BYTES) == 0 && before.seq < after.seq;
        envelope_free(&before);
    }
    envelope_free(&after);
    return ok;
}
