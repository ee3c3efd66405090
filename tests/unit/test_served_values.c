/* Which short values are shown to queries: as many of a key as fit, and until they end. */
#include <string.h>

#include "unit.h"
#include "base/alloc.h"
#include "base/bytes.h"
#include "dht/record/served_values.h"

enum { LIFETIME = 60, LEN = 300, FIT = SERVED_VALUES_MAX_BYTES / LEN };

static struct served_values *served;

static int setup(void **state)
{
    (void)state;
    served = served_values_new();
    return served == NULL;
}

static int teardown(void **state)
{
    (void)state;
    served_values_free(served);
    return 0;
}

static bool add(uint32_t key_number, uint64_t id, size_t len, uint64_t now_s)
{
    uint8_t key[RECORD_KEY_BYTES] = {0};

    store_u32(key, key_number);
    return served_values_add(served, key, id, len, now_s, LIFETIME);
}

static void fill(uint32_t key, uint64_t now_s)
{
    for (uint64_t id = 1; id <= FIT; id++)
        assert_true(add(key, id, LEN, now_s));
}

static void as_many_of_a_key_are_shown_as_fit(void **state)
{
    (void)state;
    fill(1, 0);
    assert_false(add(1, FIT + 1, LEN, 0));
    assert_true(add(2, FIT + 1, LEN, 0)); /* another key */
    assert_true(add(1, FIT + 1, SERVED_VALUES_MAX_BYTES - FIT * LEN, 0));
    assert_false(add(1, FIT + 2, 1, 0));
}

static void what_is_published_anew_keeps_its_place(void **state)
{
    (void)state;
    fill(1, 0);
    for (uint64_t id = 1; id <= FIT; id++)
        assert_true(add(1, id, LEN, 30));
    assert_false(add(1, FIT + 1, LEN, 30));
    assert_int_equal(served_values_count(served), FIT);
}

static void what_outgrows_its_place_gives_it_up(void **state)
{
    (void)state;
    fill(1, 0);
    assert_false(add(1, 1, 2 * LEN, 0));
    assert_true(add(1, FIT + 1, LEN, 0));
    assert_int_equal(served_values_count(served), FIT);
}

static void what_has_ended_makes_room(void **state)
{
    (void)state;
    fill(1, 0);
    assert_false(add(1, FIT + 1, LEN, LIFETIME - 1));
    assert_true(add(1, FIT + 1, LEN, LIFETIME));
    assert_int_equal(served_values_count(served), 1);
}

/* Keys that are not met any more are forgotten while others are. */
static void ended_keys_do_not_pile_up(void **state)
{
    (void)state;
    enum { KEYS = 3000 };

    for (uint32_t key = 0; key < KEYS; key++)
        assert_true(add(key, 1, LEN, 0));
    assert_int_equal(served_values_count(served), KEYS);
    for (uint64_t i = 0; i < 2000; i++)
        assert_true(add(KEYS, 1, LEN, LIFETIME + i));
    assert_int_equal(served_values_count(served), 1);
}

static void there_is_a_bound_for_all_keys(void **state)
{
    (void)state;
    uint32_t key = 0;

    while (key <= SERVED_VALUES_MAX_VALUES && add(key, 1, 1, 0))
        key++;
    assert_int_equal(key, SERVED_VALUES_MAX_VALUES);
    assert_int_equal(served_values_count(served), SERVED_VALUES_MAX_VALUES);
    assert_true(add(0, 1, 1, LIFETIME)); /* the first one again, once it has ended */
}

static void a_failed_allocation_shows_nothing(void **state)
{
    (void)state;
    for (long nth = 1; nth <= 2; nth++) {
        mem_fail_at(nth); /* the key's, then the value's */
        assert_false(add(7, 1, LEN, 0));
        assert_false(mem_fail_pending());
        mem_fail_at(0);
    }
    assert_int_equal(served_values_count(served), 0);
    assert_true(add(7, 1, LEN, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(as_many_of_a_key_are_shown_as_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_published_anew_keeps_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(what_outgrows_its_place_gives_it_up, setup, teardown),
        cmocka_unit_test_setup_teardown(what_has_ended_makes_room, setup, teardown),
        cmocka_unit_test_setup_teardown(ended_keys_do_not_pile_up, setup, teardown),
        cmocka_unit_test_setup_teardown(there_is_a_bound_for_all_keys, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_allocation_shows_nothing, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
