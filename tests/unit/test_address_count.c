#include "unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "net/address_count.h"

static struct sockaddr_storage ip(const char *text)
{
    struct sockaddr_storage sa = {0};
    struct sockaddr_in *in = (struct sockaddr_in *)&sa;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&sa;

    if (inet_pton(AF_INET, text, &in->sin_addr) == 1) {
        sa.ss_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
        sa.ss_family = AF_INET6;
    }
    return sa;
}

static bool add(struct address_count *table, const char *text)
{
    struct sockaddr_storage sa = ip(text);

    return address_count_add(table, (struct sockaddr *)&sa);
}

static void take_back(struct address_count *table, const char *text)
{
    struct sockaddr_storage sa = ip(text);

    address_count_remove(table, (struct sockaddr *)&sa);
}

static void address_over_its_share_is_refused_and_others_are_not(void **state)
{
    (void)state;
    struct address_count *table;

    assert_int_equal(address_count_new(100, 2, &table, NULL), SKEP_OK);
    assert_true(add(table, "192.0.2.1"));
    assert_true(add(table, "192.0.2.1"));
    assert_false(add(table, "192.0.2.1"));
    assert_true(add(table, "192.0.2.2"));
    assert_true(add(table, "2001:db8::1"));
    take_back(table, "192.0.2.1");
    assert_true(add(table, "192.0.2.1"));
    assert_false(add(table, "192.0.2.1"));
    address_count_free(table);
}

static void mapped_address_counts_as_the_ipv4_address_it_is(void **state)
{
    (void)state;
    struct address_count *table;

    assert_int_equal(address_count_new(100, 1, &table, NULL), SKEP_OK);
    assert_true(add(table, "192.0.2.1"));
    assert_false(add(table, "::ffff:192.0.2.1"));
    address_count_free(table);
}

static void addresses_of_one_v6_network_count_as_one(void **state)
{
    (void)state;
    struct address_count *table;

    assert_int_equal(address_count_new(100, 2, &table, NULL), SKEP_OK);
    assert_true(add(table, "2001:db8:1:2::1"));
    assert_true(add(table, "2001:db8:1:2:ffff::7"));
    assert_false(add(table, "2001:db8:1:2:3:4:5:6"));
    assert_true(add(table, "2001:db8:1:3::1"));
    take_back(table, "2001:db8:1:2::1");
    assert_true(add(table, "2001:db8:1:2:3:4:5:6"));
    /* Mapped IPv4 addresses share their first 64 bits, and are different peers all the same. */
    assert_true(add(table, "::ffff:192.0.2.1"));
    assert_true(add(table, "::ffff:192.0.2.1"));
    assert_true(add(table, "::ffff:192.0.2.2"));
    address_count_free(table);
}

static void loopback_is_not_counted(void **state)
{
    (void)state;
    static const char *const loopbacks[] = {"127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"};
    struct address_count *table;

    assert_int_equal(address_count_new(10, 1, &table, NULL), SKEP_OK);
    for (size_t i = 0; i < sizeof(loopbacks) / sizeof(loopbacks[0]); i++)
        for (int n = 0; n < 50; n++)
            assert_true(add(table, loopbacks[i]));
    take_back(table, "127.0.0.1");
    assert_true(add(table, "192.0.2.1"));
    address_count_free(table);
}

/* Against a plain array: the table must survive any order of adding and removing. */
static void random_order_agrees_with_a_plain_array(void **state)
{
    (void)state;
    enum { ADDRESSES = 40, SHARE = 3, STEPS = 20000 };
    struct address_count *table;
    unsigned expected[ADDRESSES] = {0};
    unsigned all = 0;
    uint32_t seed = 20240607;
    char text[32];

    print_message("seed %u\n", seed);
    assert_int_equal(address_count_new(ADDRESSES * SHARE, SHARE, &table, NULL), SKEP_OK);
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        unsigned which = (seed >> 8) % ADDRESSES;
        snprintf(text, sizeof(text), "10.1.%u.%u", which % 5, which);
        if ((seed & 0x80) != 0 && expected[which] > 0) {
            take_back(table, text);
            expected[which]--;
            all--;
        } else {
            bool fits = expected[which] < SHARE;
            assert_int_equal(add(table, text), fits);
            expected[which] += fits;
            all += fits;
        }
    }
    assert_true(all > 0);
    address_count_free(table);
    address_count_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(address_over_its_share_is_refused_and_others_are_not),
        cmocka_unit_test(mapped_address_counts_as_the_ipv4_address_it_is),
        cmocka_unit_test(addresses_of_one_v6_network_count_as_one),
        cmocka_unit_test(loopback_is_not_counted),
        cmocka_unit_test(random_order_agrees_with_a_plain_array),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
