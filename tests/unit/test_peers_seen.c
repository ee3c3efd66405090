/* Peers met in this run: who is remembered, for how long, and when each is contacted. */
#include "unit.h"

#include <stdio.h>

#include "dht/bootstrap/peers_seen.h"

enum { MINUTE = 60 * 1000 * 1000, SECOND = 1000 * 1000, START = 7 * SECOND };

static struct address peer(unsigned port)
{
    struct endpoint e = {.host = "192.0.2.7", .port = (uint16_t)port};
    struct address a = {0};

    assert_true(endpoint_to_address(&e, &a));
    return a;
}

/* How often a peer that was there for `stay` seconds is contacted in the next `seconds`. */
static size_t contacts(bool lonely, uint64_t stay, uint64_t seconds)
{
    static struct peers_seen seen;
    struct address out[PEERS_SEEN_MAX];
    struct address known = peer(4222);
    uint64_t now = START;
    size_t n = 0;

    seen = (struct peers_seen){0};
    for (uint64_t s = 0; s <= stay; s++, now += SECOND) {
        peers_seen_update(&seen, &known, 1, now);
        assert_int_equal(peers_seen_due(&seen, false, MINUTE, now, out), 0);
    }
    for (uint64_t s = 0; s < seconds; s++, now += SECOND) {
        peers_seen_update(&seen, NULL, 0, now);
        size_t due = peers_seen_due(&seen, lonely, MINUTE, now, out);
        assert_true(due <= 1);
        if (due == 1)
            assert_true(address_equal(&out[0], &known));
        n += due;
    }
    return n;
}

static void who_falls_silent_is_looked_for(void **state)
{
    (void)state;
    size_t n = contacts(false, 30, 300);
    assert_true(n >= 5 && n <= 7); /* once a minute, or a bit more often */
    n = contacts(false, 30, 3600);
    assert_true(n >= 5 && n <= 7); /* for ten times as long as it was there */
    n = contacts(false, 6, 3600);
    assert_true(n >= 1 && n <= 2); /* for a minute at least */
    n = contacts(false, 3600, 3600);
    assert_true(n >= 10 && n <= 14);              /* and ten at most */
    assert_int_equal(contacts(false, 1, 300), 0); /* a passer-by */
    n = contacts(true, 30, 60);
    assert_true(n >= 6 && n <= 11); /* 1, 2, 4, 8, 15, 15, ... seconds */
    n = contacts(true, 30, 24 * 3600);
    assert_true(n > 1400 && n < 2100); /* for ever, but once a minute */
}

static void who_is_back_starts_anew(void **state)
{
    (void)state;
    struct peers_seen seen = {0};
    struct address out[PEERS_SEEN_MAX];
    struct address known = peer(4222);
    uint64_t now = START;

    peers_seen_update(&seen, &known, 1, now);
    peers_seen_update(&seen, &known, 1, now += 20 * SECOND);
    for (int s = 0; s < 120; s++) {
        peers_seen_update(&seen, NULL, 0, now += SECOND);
        peers_seen_due(&seen, true, MINUTE, now, out);
    }
    peers_seen_update(&seen, &known, 1, now += SECOND);
    assert_int_equal(peers_seen_due(&seen, false, MINUTE, now, out), 0);
    peers_seen_update(&seen, NULL, 0, now += SECOND);
    assert_int_equal(peers_seen_due(&seen, true, MINUTE, now, out), 1);
    /* Becoming lonely does not wait for the minute that was set while it was not. */
    peers_seen_update(&seen, &known, 1, now += SECOND);
    peers_seen_update(&seen, NULL, 0, now += SECOND);
    assert_int_equal(peers_seen_due(&seen, false, MINUTE, now, out), 1);
    assert_int_equal(peers_seen_due(&seen, true, MINUTE, now + 2 * SECOND, out), 0);
    assert_int_equal(peers_seen_due(&seen, true, MINUTE, now + 5 * SECOND, out), 1);
}

static void memory_is_bounded_and_keeps_who_is_there(void **state)
{
    (void)state;
    struct peers_seen seen = {0};
    struct address known[2 * PEERS_SEEN_MAX];
    struct address out[PEERS_SEEN_MAX];

    for (unsigned i = 0; i < 2 * PEERS_SEEN_MAX; i++)
        known[i] = peer(1000 + i);
    peers_seen_update(&seen, known, 2 * PEERS_SEEN_MAX, START);
    assert_int_equal(seen.count, PEERS_SEEN_MAX);
    peers_seen_update(&seen, known, 2 * PEERS_SEEN_MAX, START + MINUTE);
    assert_true(address_equal(&seen.peers[0].address, &known[0]));
    /* All but the first are gone, and others have come in their place. */
    known[PEERS_SEEN_MAX] = known[0];
    peers_seen_update(&seen, known + PEERS_SEEN_MAX, PEERS_SEEN_MAX, START + 2 * MINUTE);
    assert_int_equal(seen.count, PEERS_SEEN_MAX);
    assert_int_equal(peers_seen_due(&seen, false, MINUTE, START + 2 * MINUTE, out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_falls_silent_is_looked_for),
        cmocka_unit_test(who_is_back_starts_anew),
        cmocka_unit_test(memory_is_bounded_and_keeps_who_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
