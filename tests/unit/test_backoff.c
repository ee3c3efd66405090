#include "unit.h"

#include <string.h>

#include "client/backoff.h"

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

static const char UID[] = "ffn.0.0", SIBLING[] = "ffn.0.1";

static bool is_backed_off_at(const struct backoff_list *backoff, const uint8_t *id, uint64_t at_us)
{
    now_us = at_us;
    return backoff_is_active(backoff, id, UID);
}

static void fail_at(struct backoff_list *backoff, const uint8_t *id, uint64_t at_us)
{
    now_us = at_us;
    backoff_node_failed(backoff, id);
}

static void succeed(struct backoff_list *backoff, const uint8_t *id, const char *uid)
{
    backoff_succeeded(backoff, id, uid, backoff->failures);
}

static void back_off_doubles_and_is_capped(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    uint64_t expected_ms[] = {1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000}, at_us = 5;

    peer(id, 1);
    for (size_t i = 0; i < sizeof(expected_ms) / sizeof(expected_ms[0]); i++) {
        fail_at(&backoff, id, at_us);
        at_us += expected_ms[i] * 1000;
        assert_true(is_backed_off_at(&backoff, id, at_us - 1));
        assert_false(is_backed_off_at(&backoff, id, at_us));
    }
}

static void calls_that_fail_together_count_once(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    const uint64_t first_us = (uint64_t)BACKOFF_FIRST_MS * 1000;

    peer(id, 1);
    for (uint64_t i = 0; i < 10; i++)
        fail_at(&backoff, id, 5 + i);
    assert_true(is_backed_off_at(&backoff, id, 5 + first_us - 1));
    assert_false(is_backed_off_at(&backoff, id, 5 + first_us));
    fail_at(&backoff, id, 5 + first_us); /* the next one, when it was asked again */
    assert_true(is_backed_off_at(&backoff, id, 5 + 3 * first_us - 1));
    assert_false(is_backed_off_at(&backoff, id, 5 + 3 * first_us));
}

static void success_forgets_all_failures(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];

    peer(id, 1);
    fail_at(&backoff, id, 0);
    fail_at(&backoff, id, (uint64_t)BACKOFF_FIRST_MS * 1000);
    succeed(&backoff, id, UID);
    assert_false(is_backed_off_at(&backoff, id, 1));
    fail_at(&backoff, id, 0);
    assert_false(is_backed_off_at(&backoff, id, (uint64_t)BACKOFF_FIRST_MS * 1000));
}

/* Whatever is asked of a node that cannot be reached fails. */
static void a_node_takes_its_experts_along(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES], other[PEER_ID_BYTES];

    now_us = 5;
    peer(id, 1);
    peer(other, 2);
    backoff_node_failed(&backoff, id);
    assert_true(backoff_is_active(&backoff, id, UID));
    assert_true(backoff_is_active(&backoff, id, SIBLING));
    assert_false(backoff_is_active(&backoff, other, UID));
    succeed(&backoff, id, SIBLING);
    assert_false(backoff_is_active(&backoff, id, UID));
}

static void an_expert_is_avoided_alone_and_its_siblings_do_not_speak_for_it(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES], other[PEER_ID_BYTES];

    now_us = 5;
    peer(id, 1);
    peer(other, 2);
    backoff_expert_failed(&backoff, id, UID);
    assert_true(backoff_is_active(&backoff, id, UID));
    assert_false(backoff_is_active(&backoff, id, SIBLING));
    assert_false(backoff_is_active(&backoff, other, UID));
    succeed(&backoff, id, SIBLING);
    assert_true(backoff_is_active(&backoff, id, UID));
    succeed(&backoff, id, UID);
    assert_false(backoff_is_active(&backoff, id, UID));
}

/* Of several calls at once one failed. */
static void a_success_that_began_before_the_failure_does_not_forget_it(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    uint64_t began = backoff.failures;

    now_us = 5;
    peer(id, 1);
    backoff_expert_failed(&backoff, id, UID);
    backoff_succeeded(&backoff, id, UID, began);
    assert_true(backoff_is_active(&backoff, id, UID));
    began = backoff.failures;
    backoff_succeeded(&backoff, id, UID, began);
    assert_false(backoff_is_active(&backoff, id, UID));
}

static void a_full_queue_is_a_failure_if_it_is_repeated(void **state)
{
    (void)state;
    struct backoff_list backoff = {.now_us = test_clock};
    uint8_t id[PEER_ID_BYTES];
    const uint64_t first_us = (uint64_t)BACKOFF_FIRST_MS * 1000;

    now_us = 5;
    peer(id, 1);
    for (int i = 0; i < 2; i++) { /* a success between: not repeated */
        backoff_expert_was_full(&backoff, id, UID);
        assert_false(backoff_is_active(&backoff, id, UID));
        succeed(&backoff, id, UID);
    }
    backoff_expert_was_full(&backoff, id, UID);
    backoff_expert_was_full(&backoff, id, UID);
    assert_true(is_backed_off_at(&backoff, id, 5 + first_us - 1));
    assert_false(is_backed_off_at(&backoff, id, 5 + first_us));
    assert_false(backoff_is_active(&backoff, id, SIBLING));
}

static void a_flood_of_peers_stays_within_the_table(void **state)
{
    (void)state;
    static struct backoff_list backoff;
    uint8_t id[PEER_ID_BYTES];
    unsigned most = BACKOFF_SETS * BACKOFF_WAYS, avoided = 0;

    backoff = (struct backoff_list){.now_us = test_clock};
    for (unsigned n = 0; n < 10 * most; n++) {
        peer(id, n);
        fail_at(&backoff, id, n);
        assert_true(is_backed_off_at(&backoff, id, n + 1));
    }
    for (unsigned n = 0; n < 10 * most; n++) {
        peer(id, n);
        avoided += is_backed_off_at(&backoff, id, 10 * most);
    }
    assert_true(avoided <= most);
    peer(id, 0); /* ended first in its set, so it made room */
    assert_false(is_backed_off_at(&backoff, id, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(back_off_doubles_and_is_capped),
        cmocka_unit_test(calls_that_fail_together_count_once),
        cmocka_unit_test(success_forgets_all_failures),
        cmocka_unit_test(a_node_takes_its_experts_along),
        cmocka_unit_test(an_expert_is_avoided_alone_and_its_siblings_do_not_speak_for_it),
        cmocka_unit_test(a_success_that_began_before_the_failure_does_not_forget_it),
        cmocka_unit_test(a_full_queue_is_a_failure_if_it_is_repeated),
        cmocka_unit_test(a_flood_of_peers_stays_within_the_table),
    };
    return cmocka_run_group_tests_name("avoid", tests, NULL, NULL);
}
