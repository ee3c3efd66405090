#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "net/presence.h"

static struct identity identity, other;

static int setup(void **state)
{
    (void)state;
    return identity_system_init(NULL) != SKEP_OK || identity_generate(&identity, NULL) != SKEP_OK ||
           identity_generate(&other, NULL) != SKEP_OK;
}

static void expect_shown_as(const char *bound, const char *expected)
{
    struct presence p;
    struct endpoint e, found;
    char text[ENDPOINT_TEXT_BYTES];

    assert_int_equal(endpoint_parse(&e, bound, false, NULL), SKEP_OK);
    presence_show(&p, identity.peer_id, &e);
    assert_true(p.shown);
    assert_true(presence_find(identity.peer_id, &found));
    assert_string_equal(endpoint_format(&found, text), expected);
    assert_false(presence_find(other.peer_id, &found));
    presence_end(&p);
    assert_false(presence_find(identity.peer_id, &found));
    presence_end(&p);
}

static void who_serves_here_is_found_here(void **state)
{
    (void)state;
    expect_shown_as("127.0.0.1:4000", "127.0.0.1:4000");
    expect_shown_as("0.0.0.0:65535", "127.0.0.1:65535");
    expect_shown_as("[::]:4000", "[::1]:4000");
    expect_shown_as("[2001:db8:1111:2222:3333:4444:5555:6666]:65535",
                    "[2001:db8:1111:2222:3333:4444:5555:6666]:65535");
}

static void the_second_of_two_with_one_identity_does_without(void **state)
{
    (void)state;
    struct presence first, second;
    struct endpoint e, found;

    assert_int_equal(endpoint_parse(&e, "127.0.0.1:4001", false, NULL), SKEP_OK);
    presence_show(&first, identity.peer_id, &e);
    e.port = 4002;
    presence_show(&second, identity.peer_id, &e);
    assert_true(first.shown);
    assert_false(second.shown);
    assert_true(presence_find(identity.peer_id, &found));
    assert_int_equal(found.port, 4001);
    presence_end(&second);
    presence_end(&first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_serves_here_is_found_here),
        cmocka_unit_test(the_second_of_two_with_one_identity_does_without),
    };
    return cmocka_run_group_tests_name("presence", tests, setup, NULL);
}
