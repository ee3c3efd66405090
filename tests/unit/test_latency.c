#include "unit.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "client/latency.h"

enum { SECOND_US = 1000000 };

static uint64_t now_us;

static uint64_t test_clock(void)
{
    return now_us;
}

static int setup(void **state)
{
    static struct pace pace;

    memset(&pace, 0, sizeof(pace));
    pace.now_us = test_clock;
    now_us = SECOND_US;
    *state = &pace;
    return 0;
}

static uint64_t key_of(unsigned n)
{
    uint8_t id[PEER_ID_BYTES] = {0};

    memcpy(id, &n, sizeof(n));
    return pace_key(id, "forward", "ffn.0.0");
}

static void call(struct pace *pace, uint64_t key, uint64_t took_us)
{
    pace_began(pace, key);
    pace_answered(pace, key, took_us);
}

static bool is_near(double value, double expected)
{
    return fabs(value - expected) < 1e-6 * expected;
}

static void answer_times_rise_at_once_and_fall_slowly(void **state)
{
    struct pace *pace = *state;

    assert_true(pace_cost(pace, key_of(1), 0).answer_us == 0);
    call(pace, key_of(1), 1000);
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 1000));
    call(pace, key_of(1), 2000);
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 2000));
    call(pace, key_of(1), 1000);
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 1750));
    assert_true(pace_cost(pace, key_of(2), 0).answer_us == 0);
}

static void node_method_and_expert_make_a_key(void **state)
{
    uint8_t id[PEER_ID_BYTES] = {1}, other[PEER_ID_BYTES] = {2};
    uint64_t key = pace_key(id, "forward", "ffn.0.0");

    (void)state;
    assert_true(key == pace_key(id, "forward", "ffn.0.0"));
    assert_true(key != pace_key(id, "forward", "ffn.0.1"));
    assert_true(key != pace_key(id, "backward", "ffn.0.0"));
    assert_true(key != pace_key(other, "forward", "ffn.0.0"));
}

static void what_is_not_used_is_forgotten_by_halves(void **state)
{
    struct pace *pace = *state;

    call(pace, key_of(1), 8000);
    now_us += PACE_HALF_LIFE_MS * (uint64_t)1000;
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 4000));
    now_us += 2 * PACE_HALF_LIFE_MS * (uint64_t)1000;
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 1000));
    call(pace, key_of(1), 200); /* on top of what is left */
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 800));
}

static void calls_under_way_and_published_tasks_count(void **state)
{
    struct pace *pace = *state;

    for (int i = 0; i < 3; i++)
        pace_began(pace, key_of(1));
    assert_int_equal(pace_cost(pace, key_of(1), 4).waiting, 7);
    pace_answered(pace, key_of(1), 1);
    pace_ended(pace, key_of(1), 0);
    assert_int_equal(pace_cost(pace, key_of(1), 4).waiting, 5);
    assert_int_equal(pace_cost(pace, key_of(2), 4).waiting, 4);
    for (int i = 0; i < 3; i++) /* more than there were */
        pace_ended(pace, key_of(1), 0);
    assert_int_equal(pace_cost(pace, key_of(1), 0).waiting, 0);
}

static void a_call_that_was_given_up_only_raises_the_estimate(void **state)
{
    struct pace *pace = *state;

    pace_began(pace, key_of(1));
    pace_ended(pace, key_of(1), 500);
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 500));
    pace_began(pace, key_of(1));
    pace_ended(pace, key_of(1), 100);
    assert_true(is_near(pace_cost(pace, key_of(1), 0).answer_us, 500));
}

static void a_flood_of_nodes_stays_within_the_table(void **state)
{
    struct pace *pace = *state;
    unsigned known = 0;

    for (unsigned n = 0; n < 10 * PACE_SETS * PACE_WAYS; n++) {
        now_us++;
        call(pace, key_of(n), 100);
        assert_true(pace_cost(pace, key_of(n), 0).answer_us > 0);
    }
    for (unsigned n = 0; n < 10 * PACE_SETS * PACE_WAYS; n++)
        known += pace_cost(pace, key_of(n), 0).answer_us > 0;
    assert_true(known > PACE_SETS && known <= PACE_SETS * PACE_WAYS);
    pace_ended(pace, key_of(0), 1); /* long gone */
}

static void time_and_waiting_are_multiplied(void **state)
{
    (void)state;
    struct pace_cost fast = {.answer_us = 100, .waiting = 8};
    struct pace_cost slow = {.answer_us = 1000, .waiting = 0};

    assert_true(pace_compare(&fast, &slow) < 0);
    assert_true(pace_compare(&slow, &fast) > 0);
    fast.waiting = 10;
    assert_true(pace_compare(&fast, &slow) > 0);
    fast.waiting = 9;
    assert_int_equal(pace_compare(&fast, &slow), 0);
}

static void round_trips_decide_where_nobody_has_answered_yet(void **state)
{
    (void)state;
    struct pace_cost near_by = {.round_trip_us = 200}, far = {.round_trip_us = 9000};
    struct pace_cost unknown = {.waiting = 0};

    assert_true(pace_compare(&near_by, &far) < 0);
    near_by.answer_us = 50000; /* of the other the answer time is unknown */
    assert_true(pace_compare(&near_by, &far) < 0);
    assert_int_equal(pace_compare(&near_by, &unknown), 0);
    unknown.waiting = 1;
    assert_true(pace_compare(&near_by, &unknown) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(answer_times_rise_at_once_and_fall_slowly, setup),
        cmocka_unit_test_setup(node_method_and_expert_make_a_key, setup),
        cmocka_unit_test_setup(what_is_not_used_is_forgotten_by_halves, setup),
        cmocka_unit_test_setup(calls_under_way_and_published_tasks_count, setup),
        cmocka_unit_test_setup(a_call_that_was_given_up_only_raises_the_estimate, setup),
        cmocka_unit_test_setup(a_flood_of_nodes_stays_within_the_table, setup),
        cmocka_unit_test_setup(time_and_waiting_are_multiplied, setup),
        cmocka_unit_test_setup(round_trips_decide_where_nobody_has_answered_yet, setup),
    };
    return cmocka_run_group_tests_name("pace", tests, NULL, NULL);
}
