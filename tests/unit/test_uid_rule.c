/* Who keeps a UID that two nodes hold: the rule of docs/records.md, "Claims". */
#include "unit.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "node/lifecycle/uid_rule.h"

static const uint8_t peers[2][PEER_ID_BYTES] = {{1}, {2}};
static const uint8_t schemas[2][16] = {{1}, {2}};

static struct uid_hold hold(size_t peer, size_t schema, enum record_claim_level level, bool random)
{
    return (struct uid_hold){peers[peer], schemas[schema], {level, random, 0}};
}

static void exactly_one_of_two_yields_unless_both_keep_it(void **state)
{
    (void)state;
    size_t lost[2] = {0};

    for (int mine = RECORD_CLAIM_KEPT; mine <= RECORD_CLAIM_NEW; mine++)
        for (int theirs = RECORD_CLAIM_KEPT; theirs <= RECORD_CLAIM_NEW; theirs++)
            for (int i = 0; i < 100; i++) {
                struct uid_hold a = hold(0, 0, (enum record_claim_level)mine, true);
                struct uid_hold b = hold(1, 0, (enum record_claim_level)theirs, true);
                char uid[16];
                snprintf(uid, sizeof(uid), "w.%d", i);
                enum uid_decision of_a = uid_judge(uid, &a, &b), of_b = uid_judge(uid, &b, &a);

                if (mine == RECORD_CLAIM_KEPT && theirs == RECORD_CLAIM_KEPT) {
                    assert_int_equal(of_a, UID_DUPLICATE);
                    assert_int_equal(of_b, UID_DUPLICATE);
                    continue;
                }
                assert_true((of_a == UID_YIELD && of_b == UID_WAIT) ||
                            (of_a == UID_WAIT && of_b == UID_YIELD));
                if (mine != theirs)
                    assert_int_equal(of_a, mine < theirs ? UID_WAIT : UID_YIELD);
                else
                    lost[of_a == UID_YIELD ? 0 : 1]++;
            }
    /* Among equals the UID decides as well, so that no node loses all of its UIDs. */
    assert_true(lost[0] > 40 && lost[1] > 40);
}

static void what_both_keep_is_told_apart(void **state)
{
    (void)state;
    struct uid_hold by_name = hold(0, 0, RECORD_CLAIM_KEPT, false);
    struct uid_hold other_by_name = hold(1, 0, RECORD_CLAIM_KEPT, false);
    struct uid_hold random = hold(1, 0, RECORD_CLAIM_KEPT, true);
    struct uid_hold other_schema = hold(1, 1, RECORD_CLAIM_KEPT, false);
    struct uid_hold other_fresh = hold(1, 1, RECORD_CLAIM_FRESH, true);

    assert_int_equal(uid_judge("w.1", &by_name, &other_by_name), UID_REPLICA);
    assert_int_equal(uid_judge("w.1", &by_name, &random), UID_DUPLICATE);
    assert_int_equal(uid_judge("w.1", &random, &by_name), UID_DUPLICATE);
    assert_int_equal(uid_judge("w.1", &by_name, &other_schema), UID_OTHER_SCHEMA);
    assert_int_equal(uid_judge("w.1", &by_name, &other_fresh), UID_WAIT); /* it goes soon */
    assert_int_equal(uid_judge("w.1", &other_fresh, &by_name), UID_YIELD);
}

static void a_claim_grows_firm_by_looks_training_and_time(void **state)
{
    (void)state;
    const uint64_t joined = 7000, later = joined + UID_FRESH_MS * UINT64_C(1000);
    struct uid_life life = {.random = true};

    assert_int_equal(uid_level(&life, joined), RECORD_CLAIM_NEW);
    life.settled = true;
    assert_int_equal(uid_level(&life, later), RECORD_CLAIM_FRESH); /* it never met a peer */
    life.joined_us = joined;
    assert_int_equal(uid_level(&life, joined), RECORD_CLAIM_FRESH);
    assert_int_equal(uid_level(&life, later - 1), RECORD_CLAIM_FRESH);
    assert_int_equal(uid_level(&life, later), RECORD_CLAIM_KEPT);
    life.updates = 1;
    assert_int_equal(uid_level(&life, joined), RECORD_CLAIM_KEPT);

    struct uid_life by_name = {0}, restored = {.random = true, .kept = true};
    assert_int_equal(uid_level(&by_name, joined), RECORD_CLAIM_KEPT);
    assert_int_equal(uid_level(&restored, joined), RECORD_CLAIM_KEPT);
}

/* docs/records.md has these bytes: others must come to the same order. */
static void the_order_is_the_documented_one(void **state)
{
    (void)state;
    uint8_t peer_id[PEER_ID_BYTES], order[RECORD_CLAIM_ORDER_BYTES];
    char hex[2 * sizeof(order) + 1];

    sodium_hex2bin(peer_id, sizeof(peer_id),
                   "cecc1507dc1ddd7295951c290888f095adb9044d1b73d696e6df065d683bd4fc",
                   2 * sizeof(peer_id), NULL, NULL, NULL);
    record_claim_order("ffn.3.17", peer_id, order);
    sodium_bin2hex(hex, sizeof(hex), order, sizeof(order));
    assert_string_equal(hex, "8d1abc8ea7702e9bccfbda9151060a2acc9ac1fb5a9b59a863153fbe4fa597b1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactly_one_of_two_yields_unless_both_keep_it),
        cmocka_unit_test(what_both_keep_is_told_apart),
        cmocka_unit_test(a_claim_grows_firm_by_looks_training_and_time),
        cmocka_unit_test(the_order_is_the_documented_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
