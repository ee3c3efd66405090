/* Whose clock is wrong. */
#include "unit.h"
#include "net/peer_clocks.h"

#include <string.h>

static enum peer_clocks_result saw(struct peer_clocks *clocks, uint8_t peer, int64_t ahead_s,
                                   int64_t *said_s)
{
    uint8_t id[PEER_ID_BYTES] = {peer};
    int64_t ahead_ms = ahead_s * 1000;
    enum peer_clocks_result result = peer_clocks_saw(clocks, id, &ahead_ms);

    *said_s = ahead_ms / 1000;
    return result;
}

static void one_peer_cannot_say_whose_clock_is_wrong(void **state)
{
    (void)state;
    struct peer_clocks clocks = {0};
    int64_t said_s;

    assert_int_equal(saw(&clocks, 1, 60, &said_s), PEER_CLOCKS_FINE);
    for (int i = 0; i < 100; i++) { /* however often it speaks */
        assert_int_equal(saw(&clocks, 1, 61, &said_s), PEER_CLOCKS_PEER_OFF);
        assert_int_equal(said_s, 61);
    }
    assert_int_equal(saw(&clocks, 2, -300, &said_s), PEER_CLOCKS_PEER_OFF);
    assert_int_equal(said_s, -300);
}

static void most_peers_can(void **state)
{
    (void)state;
    struct peer_clocks clocks = {0};
    int64_t said_s;

    assert_int_equal(saw(&clocks, 1, 300, &said_s), PEER_CLOCKS_PEER_OFF);
    assert_int_equal(saw(&clocks, 2, 301, &said_s), PEER_CLOCKS_PEER_OFF);
    assert_int_equal(saw(&clocks, 3, 0, &said_s), PEER_CLOCKS_WE_ARE);
    assert_int_equal(said_s, 300);
    /* Set right, and heard of again. */
    assert_int_equal(saw(&clocks, 1, 0, &said_s), PEER_CLOCKS_FINE);
    assert_int_equal(saw(&clocks, 2, 1, &said_s), PEER_CLOCKS_FINE);
}

static void a_liar_among_many_is_the_one_who_is_wrong(void **state)
{
    (void)state;
    struct peer_clocks clocks = {0};
    int64_t said_s;

    for (uint8_t i = 1; i <= 2 * PEER_CLOCKS_KEPT; i++)
        assert_int_equal(saw(&clocks, i, i % 3, &said_s), PEER_CLOCKS_FINE);
    assert_int_equal(saw(&clocks, 100, -86400, &said_s), PEER_CLOCKS_PEER_OFF);
    assert_int_equal(said_s, -86400);
    assert_int_equal(saw(&clocks, 101, 2, &said_s), PEER_CLOCKS_FINE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_peer_cannot_say_whose_clock_is_wrong),
        cmocka_unit_test(most_peers_can),
        cmocka_unit_test(a_liar_among_many_is_the_one_who_is_wrong),
    };

    return cmocka_run_group_tests_name("peer_clocks", tests, NULL, NULL);
}
