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
    static struct latency_estimates latencies;

    memset(&latencies, 0, sizeof(latencies));
    latencies.now_us = test_clock;
    now_us = SECOND_US;
    *state = &latencies;
    return 0;
}

static uint64_t key_of(unsigned n)
{
    uint8_t id[PEER_ID_BYTES] = {0};

    memcpy(id, &n, sizeof(n));
    return latency_key(id, "forward", "ffn.0.0");
}

static void call(struct latency_estimates *latencies, uint64_t key, uint64_t took_us)
{
    latency_began(latencies, key);
    latency_answered(latencies, key, took_us);
}

static bool is_near(double value, double expected)
{
    return fabs(value - expected) < 1e-6 * expected;
}

static void answer_times_rise_at_once_and_fall_slowly(void **state)
{
    struct latency_estimates *latencies = *state;

    assert_true(latency_cost(latencies, key_of(1), 0).answer_us == 0);
    call(latencies, key_of(1), 1000);
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 1000));
    call(latencies, key_of(1), 2000);
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 2000));
    call(latencies, key_of(1), 1000);
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 1750));
    assert_true(latency_cost(latencies, key_of(2), 0).answer_us == 0);
}

static void node_method_and_expert_make_a_key(void **state)
{
    uint8_t id[PEER_ID_BYTES] = {1}, other[PEER_ID_BYTES] = {2};
    uint64_t key = latency_key(id, "forward", "ffn.0.0");

    (void)state;
    assert_true(key == latency_key(id, "forward", "ffn.0.0"));
    assert_true(key != latency_key(id, "forward", "ffn.0.1"));
    assert_true(key != latency_key(id, "backward", "ffn.0.0"));
    assert_true(key != latency_key(other, "forward", "ffn.0.0"));
}

static void what_is_not_used_is_forgotten_by_halves(void **state)
{
    struct latency_estimates *latencies = *state;

    call(latencies, key_of(1), 8000);
    now_us += LATENCY_HALF_LIFE_MS * (uint64_t)1000;
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 4000));
    now_us += 2 * LATENCY_HALF_LIFE_MS * (uint64_t)1000;
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 1000));
    call(latencies, key_of(1), 200); /* on top of what is left */
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 800));
}

static void calls_under_way_and_published_tasks_count(void **state)
{
    struct latency_estimates *latencies = *state;

    for (int i = 0; i < 3; i++)
        latency_began(latencies, key_of(1));
    assert_int_equal(latency_cost(latencies, key_of(1), 4).waiting, 7);
    latency_answered(latencies, key_of(1), 1);
    latency_ended(latencies, key_of(1), 0);
    assert_int_equal(latency_cost(latencies, key_of(1), 4).waiting, 5);
    assert_int_equal(latency_cost(latencies, key_of(2), 4).waiting, 4);
    for (int i = 0; i < 3; i++) /* more than there were */
        latency_ended(latencies, key_of(1), 0);
    assert_int_equal(latency_cost(latencies, key_of(1), 0).waiting, 0);
}

static void a_call_that_was_given_up_only_raises_the_estimate(void **state)
{
    struct latency_estimates *latencies = *state;

    latency_began(latencies, key_of(1));
    latency_ended(latencies, key_of(1), 500);
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 500));
    latency_began(latencies, key_of(1));
    latency_ended(latencies, key_of(1), 100);
    assert_true(is_near(latency_cost(latencies, key_of(1), 0).answer_us, 500));
}

static void a_flood_of_nodes_stays_within_the_table(void **state)
{
    struct latency_estimates *latencies = *state;
    unsigned known = 0;

    for (unsigned n = 0; n < 10 * LATENCY_SETS * LATENCY_WAYS; n++) {
        now_us++;
        call(latencies, key_of(n), 100);
        assert_true(latency_cost(latencies, key_of(n), 0).answer_us > 0);
    }
    for (unsigned n = 0; n < 10 * LATENCY_SETS * LATENCY_WAYS; n++)
        known += latency_cost(latencies, key_of(n), 0).answer_us > 0;
    assert_true(known > LATENCY_SETS && known <= LATENCY_SETS * LATENCY_WAYS);
    latency_ended(latencies, key_of(0), 1); /* long gone */
}

static void time_and_waiting_are_multiplied(void **state)
{
    (void)state;
    struct latency_cost fast = {.answer_us = 100, .waiting = 8};
    struct latency_cost slow = {.answer_us = 1000, .waiting = 0};

    assert_true(latency_compare(&fast, &slow) < 0);
    assert_true(latency_compare(&slow, &fast) > 0);
    fast.waiting = 10;
    assert_true(latency_compare(&fast, &slow) > 0);
    fast.waiting = 9;
    assert_int_equal(latency_compare(&fast, &slow), 0);
}

static void round_trips_decide_where_nobody_has_answered_yet(void **state)
{
    (void)state;
    struct latency_cost near_by = {.round_trip_us = 200}, far = {.round_trip_us = 9000};
    struct latency_cost unknown = {.waiting = 0};

    assert_true(latency_compare(&near_by, &far) < 0);
    near_by.answer_us = 50000; /* of the other the answer time is unknown */
    assert_true(latency_compare(&near_by, &far) < 0);
    assert_int_equal(latency_compare(&near_by, &unknown), 0);
    unknown.waiting = 1;
    assert_true(latency_compare(&near_by, &unknown) < 0);
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
