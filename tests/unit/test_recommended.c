#include "unit.h"

#include <string.h>

#include "client/recommended.h"

enum { ROOM = RECOMMENDED_SETS * RECOMMENDED_WAYS };

static struct recommended table;

static int setup(void **state)
{
    (void)state;
    memset(&table, 0, sizeof(table));
    return 0;
}

static const uint8_t *peer(unsigned n)
{
    static uint8_t id[PEER_ID_BYTES];

    memcpy(id, &n, sizeof(n));
    return id;
}

static void what_was_not_told_is_unknown(void **state)
{
    (void)state;
    assert_int_equal(recommended_find(&table, peer(1), "a.1", false), SKEP_COMPRESSION_DEFAULT);
    recommended_learn(&table, peer(1), "a.1", false, ENCODING_FLOAT16);
    assert_int_equal(recommended_find(&table, peer(1), "a.1", true), SKEP_COMPRESSION_DEFAULT);
    assert_int_equal(recommended_find(&table, peer(2), "a.1", false), SKEP_COMPRESSION_DEFAULT);
}

static void activations_and_gradients_have_their_own(void **state)
{
    (void)state;
    recommended_learn(&table, peer(1), "a.1", false, ENCODING_FLOAT16);
    recommended_learn(&table, peer(1), "a.1", true, ENCODING_NONE);
    assert_int_equal(recommended_find(&table, peer(1), "a.1", false), SKEP_COMPRESSION_FLOAT16);
    assert_int_equal(recommended_find(&table, peer(1), "a.1", true), SKEP_COMPRESSION_NONE);
}

static void the_last_word_counts(void **state)
{
    (void)state;
    recommended_learn(&table, peer(1), "a.1", false, ENCODING_FLOAT16);
    recommended_learn(&table, peer(1), "a.1", false, ENCODING_NONE);
    assert_int_equal(recommended_find(&table, peer(1), "a.1", false), SKEP_COMPRESSION_NONE);
}

static void an_expert_not_asked_yet_is_like_its_nodes_last_one(void **state)
{
    (void)state;
    recommended_learn(&table, peer(1), "a.1", false, ENCODING_FLOAT16);
    recommended_learn(&table, peer(1), "a.2", false, ENCODING_UNIFORM8);
    assert_int_equal(recommended_find(&table, peer(1), "a.3", false), SKEP_COMPRESSION_UNIFORM8);
    assert_int_equal(recommended_find(&table, peer(1), "a.1", false), SKEP_COMPRESSION_FLOAT16);
}

/* Strangers by the thousand make the table forget, at worst; what is in use stays. */
static void it_forgets_what_is_not_used(void **state)
{
    (void)state;
    recommended_learn(&table, peer(0), "a.1", false, ENCODING_FLOAT16);
    for (unsigned n = 1; n <= 4 * ROOM; n++) {
        recommended_learn(&table, peer(n), "a.1", false, ENCODING_UNIFORM8);
        assert_int_equal(recommended_find(&table, peer(0), "a.1", false), SKEP_COMPRESSION_FLOAT16);
    }
    assert_int_equal(recommended_find(&table, peer(1), "a.1", false), SKEP_COMPRESSION_DEFAULT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_was_not_told_is_unknown, setup),
        cmocka_unit_test_setup(activations_and_gradients_have_their_own, setup),
        cmocka_unit_test_setup(the_last_word_counts, setup),
        cmocka_unit_test_setup(an_expert_not_asked_yet_is_like_its_nodes_last_one, setup),
        cmocka_unit_test_setup(it_forgets_what_is_not_used, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
