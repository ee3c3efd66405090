#include "unit.h"

#include <string.h>

#include "client/avoid.h"

static void peer(uint8_t id[PEER_ID_BYTES], unsigned n)
{
    memset(id, 0, PEER_ID_BYTES);
    memcpy(id, &n, sizeof(n));
}

static uint64_t now_us;

static uint64_t test_clock(void)
{
    return now_us;
}

static bool is_avoided_at(const struct avoid *avoid, const uint8_t *id, uint64_t at_us)
{
    now_us = at_us;
    return avoid_is_avoided(avoid, id);
}

static void fail_at(struct avoid *avoid, const uint8_t *id, uint64_t at_us)
{
    now_us = at_us;
    avoid_failed(avoid, id);
}

static void back_off_doubles_and_is_capped(void **state)
{
    (void)state;
    struct avoid avoid = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    uint64_t expected_ms[] = {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000}, at_us = 5;

    peer(id, 1);
    for (size_t i = 0; i < sizeof(expected_ms) / sizeof(expected_ms[0]); i++) {
        fail_at(&avoid, id, at_us);
        at_us += expected_ms[i] * 1000;
        assert_true(is_avoided_at(&avoid, id, at_us - 1));
        assert_false(is_avoided_at(&avoid, id, at_us));
    }
}

static void calls_that_fail_together_count_once(void **state)
{
    (void)state;
    struct avoid avoid = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    const uint64_t first_us = (uint64_t)AVOID_FIRST_MS * 1000;

    peer(id, 1);
    for (uint64_t i = 0; i < 10; i++)
        fail_at(&avoid, id, 5 + i);
    assert_true(is_avoided_at(&avoid, id, 5 + first_us - 1));
    assert_false(is_avoided_at(&avoid, id, 5 + first_us));
    fail_at(&avoid, id, 5 + first_us); /* the next one, when it was asked again */
    assert_true(is_avoided_at(&avoid, id, 5 + 3 * first_us - 1));
    assert_false(is_avoided_at(&avoid, id, 5 + 3 * first_us));
}

static void success_forgets_all_failures(void **state)
{
    (void)state;
    struct avoid avoid = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];

    peer(id, 1);
    fail_at(&avoid, id, 0);
    fail_at(&avoid, id, (uint64_t)AVOID_FIRST_MS * 1000);
    avoid_succeeded(&avoid, id);
    assert_false(is_avoided_at(&avoid, id, 1));
    fail_at(&avoid, id, 0);
    assert_false(is_avoided_at(&avoid, id, (uint64_t)AVOID_FIRST_MS * 1000));
}

static void a_flood_of_peers_stays_within_the_table(void **state)
{
    (void)state;
    struct avoid avoid = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];

    for (unsigned n = 0; n < 10 * AVOID_PEERS; n++) {
        peer(id, n);
        fail_at(&avoid, id, n);
        assert_true(is_avoided_at(&avoid, id, n + 1));
    }
    peer(id, 0); /* ended first, so it made room */
    assert_false(is_avoided_at(&avoid, id, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_off_doubles_and_is_capped),
        cmocka_unit_test(calls_that_fail_together_count_once),
        cmocka_unit_test(success_forgets_all_failures),
        cmocka_unit_test(a_flood_of_peers_stays_within_the_table),
    };
    return cmocka_run_group_tests_name("avoid", tests, NULL, NULL);
}
