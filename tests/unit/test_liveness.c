/* Which DHT peers answer: when one counts as gone, when it is pinged, and who cannot change that.
 */
#include "unit.h"

#include "base/endpoint.h"
#include "dht/opendht/liveness.h"

enum { MS = 1000, SECOND = 1000 * MS, START = 7 * SECOND, PEERS = 400 };

static unsigned freed;

static void count_freed(void *held)
{
    (void)held;
    freed++;
}

/* A network of peers that answer at once, or not at all, and the caller of the table. */
struct world {
    struct liveness *liveness;
    uint64_t now;
    struct peer {
        struct address address;
        bool alive, given_up;
        unsigned pings; /* that were sent to it */
    } peers[PEERS];
    size_t count;
    bool down; /* no datagram arrives */
};

static struct world world;

static const struct sockaddr *address_of(const struct peer *peer)
{
    return (const struct sockaddr *)&peer->address.sa;
}

static int start(void **state)
{
    (void)state;
    world = (struct world){.liveness = liveness_new(count_freed), .now = START};
    freed = 0;
    return world.liveness != NULL ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    liveness_free(world.liveness);
    return freed == world.count ? 0 : -1; /* each exactly once */
}

/* One more peer, which the table has heard of: `alive` ones reply from now on. */
static struct peer *add(bool alive, bool replied)
{
    struct peer *peer = &world.peers[world.count];
    struct endpoint e = {.host = "192.0.2.7", .port = (uint16_t)(1000 + world.count++)};

    assert_true(endpoint_to_address(&e, &peer->address));
    peer->alive = alive;
    if (replied)
        liveness_hears(world.liveness, address_of(peer), true, world.now);
    else
        assert_true(liveness_is_named(world.liveness, address_of(peer), world.now));
    void **slot = liveness_slot(world.liveness, address_of(peer));
    assert_non_null(slot);
    *slot = peer;
    return peer;
}

/* Returns whether the question may be sent. */
static bool ask(struct peer *peer, bool is_ping)
{
    if (!liveness_asks(world.liveness, address_of(peer), is_ping, world.now))
        return false;
    peer->pings += is_ping;
    if (peer->alive && !world.down)
        liveness_hears(world.liveness, address_of(peer), true, world.now);
    return true;
}

static void pass(uint64_t us)
{
    struct liveness_action actions[LIVENESS_MAX_ACTIONS];

    for (uint64_t end_us = world.now + us; world.now < end_us; world.now += 10 * MS) {
        size_t n = liveness_due(world.liveness, world.now, actions);
        for (size_t i = 0; i < n; i++) {
            struct peer *peer = actions[i].held;
            if (actions[i].what == LIVENESS_GIVE_UP)
                peer->given_up = true;
            else
                ask(peer, true);
        }
    }
}

static bool is_gone(const struct peer *peer)
{
    return liveness_is_gone(world.liveness, address_of(peer));
}

static void a_named_peer_that_is_silent_is_given_up_soon(void **state)
{
    (void)state;
    add(true, true);
    struct peer *silent = add(false, false);

    pass(10 * SECOND);
    assert_int_equal(silent->pings, 0); /* nobody needs it */
    assert_true(ask(silent, false));
    pass(SECOND);
    assert_true(is_gone(silent) && silent->given_up);
    assert_false(ask(silent, false));
    assert_false(liveness_is_named(world.liveness, address_of(silent), world.now));
}

static void a_visitor_that_ends_is_found_out_by_itself(void **state)
{
    (void)state;
    struct peer *live = add(true, true);
    pass(60 * SECOND);
    struct peer *visitor = add(true, true);

    visitor->alive = false;
    pass(5 * SECOND);
    assert_true(visitor->given_up);
    assert_false(is_gone(live));
    /* It is looked for a few times, and then never again. */
    pass(10 * SECOND);
    unsigned pings = visitor->pings;
    assert_true(pings <= 10);
    pass(240 * SECOND);
    assert_int_equal(visitor->pings, pings);
}

static void a_peer_that_stays_is_pinged_ever_more_seldom(void **state)
{
    (void)state;
    struct peer *one = add(true, true);
    struct peer *other = add(true, true);

    pass(240 * SECOND);
    one->pings = other->pings = 0;
    pass(240 * SECOND);
    assert_true(one->pings >= 3 && one->pings <= 6);
    assert_false(one->given_up || other->given_up);
}

static void an_outage_makes_nobody_gone(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        add(true, true);
    pass(10 * SECOND);
    world.down = true;
    for (int s = 0; s < 30; s++) {
        for (size_t i = 0; i < world.count; i++)
            assert_true(ask(&world.peers[i], false));
        pass(SECOND);
    }
    world.down = false;
    pass(100 * MS);
    ask(&world.peers[0], false); /* the first who gets through */
    pass(30 * SECOND);
    for (size_t i = 0; i < world.count; i++)
        assert_false(world.peers[i].given_up);
}

static void a_process_that_stood_still_blames_nobody(void **state)
{
    (void)state;
    add(true, true);
    struct peer *peer = add(true, true);
    struct liveness_action actions[LIVENESS_MAX_ACTIONS];

    pass(10 * SECOND);
    /* Asked three times, its replies wait to be read, and those of the other have been. */
    for (int i = 0; i < 3; i++, world.now += 100 * MS)
        assert_true(liveness_asks(world.liveness, address_of(peer), false, world.now));
    ask(&world.peers[0], false);
    world.now += 20 * SECOND;
    size_t n = liveness_due(world.liveness, world.now, actions);
    for (size_t i = 0; i < n; i++)
        assert_int_not_equal(actions[i].what, LIVENESS_GIVE_UP);
    liveness_hears(world.liveness, address_of(peer), true, world.now);
    pass(10 * SECOND);
    assert_false(peer->given_up);
}

static void who_comes_back_is_talked_to_again(void **state)
{
    (void)state;
    add(true, true);
    struct peer *peer = add(true, true);

    pass(100 * SECOND);
    peer->alive = false;
    assert_true(ask(peer, false));
    pass(5 * SECOND);
    assert_true(is_gone(peer));
    peer->alive = true;
    /* By itself, as it had been there for long; or as soon as it says something. */
    pass(20 * SECOND);
    assert_false(is_gone(peer));
    peer->alive = false;
    assert_true(ask(peer, false));
    pass(60 * SECOND);
    assert_true(is_gone(peer));
    peer->alive = true;
    liveness_hears(world.liveness, address_of(peer), false, world.now);
    assert_true(is_gone(peer)); /* whoever sent that, it is no reply */
    pass(SECOND);
    assert_false(is_gone(peer));
    assert_true(ask(peer, false));
}

static void what_strangers_send_changes_nothing(void **state)
{
    (void)state;
    struct peer *live = add(true, true);
    struct peer *dead = add(true, true);

    pass(10 * SECOND);
    dead->alive = false;
    assert_true(ask(dead, false));
    pass(5 * SECOND);
    assert_true(is_gone(dead));
    dead->pings = 0;
    for (int i = 0; i < 1000; i++) {
        liveness_hears(world.liveness, address_of(dead), false, world.now);
        liveness_hears(world.liveness, address_of(live), false, world.now);
        liveness_is_named(world.liveness, address_of(dead), world.now);
        pass(10 * MS);
    }
    assert_true(is_gone(dead));
    assert_true(dead->pings <= 11); /* one a second */
    assert_false(live->given_up);
    assert_true(ask(live, false));
}

static void many_that_end_are_pinged_within_a_budget(void **state)
{
    (void)state;
    unsigned pings = 0, worst = 0;

    add(true, true);
    pass(100 * SECOND);
    while (world.count < PEERS)
        add(true, true);
    for (size_t i = 1; i < world.count; i++)
        world.peers[i].alive = false;
    for (int s = 0; s < 60; s++) {
        unsigned before = pings;
        pass(SECOND);
        pings = 0;
        for (size_t i = 0; i < world.count; i++)
            pings += world.peers[i].pings;
        worst = pings - before > worst ? pings - before : worst;
    }
    /* A probe of each second's budget is followed by a few of its own kind. */
    assert_true(worst <= 5 * LIVENESS_PROBES_PER_S + LIVENESS_RETRIES_PER_S);
    for (size_t i = 1; i < world.count; i++)
        assert_true(world.peers[i].given_up);
    assert_false(world.peers[0].given_up);
    /* Within a minute more, all is quiet. */
    pass(60 * SECOND);
    for (size_t i = 0; i < world.count; i++)
        world.peers[i].pings = 0;
    pass(120 * SECOND);
    for (size_t i = 1; i < world.count; i++)
        assert_int_equal(world.peers[i].pings, 0);
}

static void who_is_not_seen_any_more_is_forgotten(void **state)
{
    (void)state;
    add(true, true);
    add(false, false);
    pass(700 * SECOND);
    assert_int_equal(freed, 1);
    assert_null(liveness_slot(world.liveness, address_of(&world.peers[1])));
    liveness_forget(world.liveness, address_of(&world.peers[0]));
    assert_int_equal(freed, 2);
    assert_null(liveness_slot(world.liveness, address_of(&world.peers[0])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_named_peer_that_is_silent_is_given_up_soon, start, end),
        cmocka_unit_test_setup_teardown(a_visitor_that_ends_is_found_out_by_itself, start, end),
        cmocka_unit_test_setup_teardown(a_peer_that_stays_is_pinged_ever_more_seldom, start, end),
        cmocka_unit_test_setup_teardown(an_outage_makes_nobody_gone, start, end),
        cmocka_unit_test_setup_teardown(a_process_that_stood_still_blames_nobody, start, end),
        cmocka_unit_test_setup_teardown(who_comes_back_is_talked_to_again, start, end),
        cmocka_unit_test_setup_teardown(what_strangers_send_changes_nothing, start, end),
        cmocka_unit_test_setup_teardown(many_that_end_are_pinged_within_a_budget, start, end),
        cmocka_unit_test_setup_teardown(who_is_not_seen_any_more_is_forgotten, start, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
