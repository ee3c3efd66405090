/* Which sequence numbers of our identity are ours. */
#include "unit.h"

#include <string.h>

#include "dht/directory/own_sequences.h"

enum { START = 1000000, SECOND = 1000, SECOND_US = 1000000 };

static void numbers_are_dates_and_always_rise(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    assert_int_equal(own_sequences_next(&s, START), START);
    assert_int_equal(own_sequences_next(&s, START), START + 1);
    assert_int_equal(own_sequences_next(&s, START - SECOND), START + 2);
    assert_int_equal(own_sequences_next(&s, -1), START + 3);
    assert_int_equal(own_sequences_next(&s, START + SECOND), START + SECOND);
}

static void those_given_out_and_those_of_before_are_old(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    own_sequences_next(&s, START);
    own_sequences_next(&s, START + 50);
    own_sequences_next(&s, START + 10 * SECOND);
    assert_int_equal(own_sequences_saw(&s, 1, 1), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START - 1, 1), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START, 1), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START + 50, 1), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START + 10 * SECOND, 1), OWN_SEQUENCE_OLD);
}

static void dated_between_ours_they_are_another_s(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    own_sequences_next(&s, START);
    own_sequences_next(&s, START + 10 * SECOND);
    assert_int_equal(own_sequences_saw(&s, START + 5 * SECOND, 1), OWN_SEQUENCE_FOREIGN);
    assert_int_equal(own_sequences_saw(&s, START + 5 * SECOND, 1), OWN_SEQUENCE_FOREIGN);
}

/* Its clock was ahead of ours; its records are found one after the other. */
static void an_earlier_run_that_is_dated_later_is_gone_on_from(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    own_sequences_next(&s, START);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(own_sequences_saw(&s, START + 100 * SECOND + 10 * i, 5 + i),
                         OWN_SEQUENCE_NEWER);
    assert_int_equal(own_sequences_next(&s, START + SECOND), START + 100 * SECOND + 91);
    assert_int_equal(own_sequences_saw(&s, START + 100 * SECOND, 5 * SECOND_US), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START + 50 * SECOND, 5 * SECOND_US), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START + 101 * SECOND, 5 * SECOND_US),
                     OWN_SEQUENCE_NEWER_FOREIGN);
}

static void before_anything_was_given_out_nobody_is_accused(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    assert_int_equal(own_sequences_saw(&s, START + SECOND, 1), OWN_SEQUENCE_NEWER);
    assert_int_equal(own_sequences_saw(&s, START, 1), OWN_SEQUENCE_OLD);
    assert_int_equal(own_sequences_saw(&s, START + 2 * SECOND, 9 * SECOND_US), OWN_SEQUENCE_NEWER);
    assert_int_equal(own_sequences_next(&s, START), START + 2 * SECOND + 1);
}

static void what_is_forgotten_is_not_judged(void **state)
{
    (void)state;
    struct own_sequences s = {0};

    for (int i = 0; i < 2 * OWN_SEQUENCES_BURSTS; i++)
        own_sequences_next(&s, START + (int64_t)i * SECOND);
    for (uint64_t i = 0; i < 2 * OWN_SEQUENCES_BURSTS; i++) {
        assert_int_equal(own_sequences_saw(&s, START + i * SECOND, 1), OWN_SEQUENCE_OLD);
        if (i + 1 < 2 * OWN_SEQUENCES_BURSTS)
            assert_int_equal(own_sequences_saw(&s, START + i * SECOND + SECOND / 2, 1),
                             i < OWN_SEQUENCES_BURSTS - 1 ? OWN_SEQUENCE_OLD
                                                          : OWN_SEQUENCE_FOREIGN);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_dates_and_always_rise),
        cmocka_unit_test(those_given_out_and_those_of_before_are_old),
        cmocka_unit_test(dated_between_ours_they_are_another_s),
        cmocka_unit_test(an_earlier_run_that_is_dated_later_is_gone_on_from),
        cmocka_unit_test(before_anything_was_given_out_nobody_is_accused),
        cmocka_unit_test(what_is_forgotten_is_not_judged),
    };

    return cmocka_run_group_tests_name("own_seqs", tests, NULL, NULL);
}
