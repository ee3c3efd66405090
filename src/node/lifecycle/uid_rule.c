/* See uid_rule.h. */
#include "node/lifecycle/uid_rule.h"

#include <string.h>

static bool goes_first(const char *uid, const struct uid_hold *a, const struct uid_hold *b)
{
    uint8_t a_order[RECORD_CLAIM_ORDER_BYTES], b_order[RECORD_CLAIM_ORDER_BYTES];

    if (a->claim.level != b->claim.level)
        return a->claim.level < b->claim.level;
    record_claim_order(uid, a->peer_id, a_order);
    record_claim_order(uid, b->peer_id, b_order);
    return memcmp(a_order, b_order, sizeof(a_order)) < 0;
}

enum uid_decision uid_judge(const char *uid, const struct uid_hold *mine,
                            const struct uid_hold *theirs)
{
    if (mine->claim.level != RECORD_CLAIM_KEPT || theirs->claim.level != RECORD_CLAIM_KEPT)
        return goes_first(uid, mine, theirs) ? UID_WAIT : UID_YIELD;
    if (memcmp(mine->schema_digest, theirs->schema_digest, 16) != 0)
        return UID_OTHER_SCHEMA;
    return mine->claim.random || theirs->claim.random ? UID_DUPLICATE : UID_REPLICA;
}

enum record_claim_level uid_level(const struct uid_life *life, uint64_t now_us)
{
    if (!life->random || life->kept || life->updates > 0)
        return RECORD_CLAIM_KEPT;
    if (!life->settled)
        return RECORD_CLAIM_NEW;
    if (life->joined_us == 0 || now_us < life->joined_us + UID_FRESH_MS * (uint64_t)1000)
        return RECORD_CLAIM_FRESH;
    return RECORD_CLAIM_KEPT;
}
