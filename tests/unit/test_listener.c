#include "unit.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "net/listener.h"

static struct endpoint at(const char *host, unsigned port)
{
    struct endpoint e = {.port = (uint16_t)port};

    snprintf(e.host, sizeof(e.host), "%s", host);
    return e;
}

static bool connects(const char *host, unsigned port)
{
    struct endpoint e = at(host, port);
    struct address a;

    if (!endpoint_to_address(&e, &a))
        fail_msg("%s is not numeric", host);
    int fd = socket(a.sa.ss_family, SOCK_STREAM, 0);
    if (fd < 0)
        return false;
    int rc = connect(fd, (struct sockaddr *)&a.sa, a.len);
    close(fd);
    return rc == 0;
}

static bool has_ipv6(void)
{
    struct endpoint e = at("::1", 0);
    struct address a;
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool ok =
        fd >= 0 && endpoint_to_address(&e, &a) && bind(fd, (struct sockaddr *)&a.sa, a.len) == 0;

    if (fd >= 0)
        close(fd);
    return ok;
}

static void all_threads_sockets_share_the_port_picked(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("127.0.0.1", 0);

    assert_int_equal(listeners_open(&l, &e, 4, NULL), SKEP_OK);
    assert_int_equal(l.addresses, 1);
    assert_int_not_equal(l.bound.port, 0);
    assert_string_equal(l.bound.host, "127.0.0.1");
    for (size_t t = 0; t < 4; t++) {
        struct sockaddr_in in;
        socklen_t len = sizeof(in);
        assert_int_equal(getsockname(l.fds[0][t], (struct sockaddr *)&in, &len), 0);
        assert_int_equal(ntohs(in.sin_port), l.bound.port);
    }
    assert_true(connects("127.0.0.1", l.bound.port));
    listeners_close(&l);
    assert_false(connects("127.0.0.1", l.bound.port));
}

static void sockets_stay_out_of_the_low_numbers(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("127.0.0.1", 0);

    if (fd_raise_limit() < FD_LOW_LIMIT + 64)
        skip();
    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    assert_true(l.fds[0][0] >= FD_LOW_LIMIT);
    assert_true(l.fds[0][1] >= FD_LOW_LIMIT);
    listeners_close(&l);
}

static void port_of_a_running_server_is_refused_by_name(void **state)
{
    (void)state;
    struct listeners first, second;
    struct endpoint e = at("127.0.0.1", 0);
    struct skep_error err = {0};
    char port[16];

    assert_int_equal(listeners_open(&first, &e, 2, NULL), SKEP_OK);
    e.port = first.bound.port;
    assert_int_equal(listeners_open(&second, &e, 2, &err), SKEP_FAILED_PRECONDITION);
    snprintf(port, sizeof(port), ":%u", (unsigned)e.port);
    assert_non_null(strstr(err.message, port));
    assert_non_null(strstr(err.message, "in use"));
    listeners_close(&second);
    listeners_close(&first);
    /* And is free again at once, whatever connections it had. */
    assert_int_equal(listeners_open(&second, &e, 2, &err), SKEP_OK);
    listeners_close(&second);
}

/* And whoever asks is not in the way of who serves. */
static void a_check_tells_what_listening_would(void **state)
{
    (void)state;
    struct listeners l, other;
    struct endpoint e = at("127.0.0.1", 0);
    struct skep_error err = {0}, same = {0};

    assert_int_equal(listeners_check(&e, NULL), SKEP_OK);
    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    e.port = l.bound.port;
    assert_int_equal(listeners_check(&e, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(listeners_open(&other, &e, 1, &same), SKEP_FAILED_PRECONDITION);
    assert_string_equal(err.message, same.message);
    listeners_close(&l);
    assert_int_equal(listeners_check(&e, NULL), SKEP_OK);
    assert_false(connects("127.0.0.1", e.port));
    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    listeners_close(&l);
    e = at("192.0.2.77", 4000);
    assert_int_equal(listeners_check(&e, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "192.0.2.77"));
}

static void foreign_address_and_unknown_name_are_unavailable(void **state)
{
    (void)state;
    struct listeners l;
    struct skep_error err = {0};
    struct endpoint e = at("192.0.2.77", 0); /* of no machine: RFC 5737 */

    assert_int_equal(listeners_open(&l, &e, 1, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "192.0.2.77"));
    e = at("no-such-host.invalid", 0);
    assert_int_equal(listeners_open(&l, &e, 1, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, "no-such-host.invalid"));
}

static void wildcard_of_ipv6_serves_ipv4_too(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("::", 0);

    if (!has_ipv6())
        skip();
    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    assert_true(connects("::1", l.bound.port));
    assert_true(connects("127.0.0.1", l.bound.port));
    listeners_close(&l);
}

static void wildcard_of_ipv4_serves_no_ipv6(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("0.0.0.0", 0);

    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    assert_true(connects("127.0.0.1", l.bound.port));
    assert_false(connects("::1", l.bound.port));
    listeners_close(&l);
}

static void name_is_listened_on_at_each_of_its_addresses(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("localhost", 0);
    struct address all[LISTENER_MAX_ADDRESSES];
    size_t count;

    assert_int_equal(endpoint_resolve(&e, all, LISTENER_MAX_ADDRESSES, &count, NULL), SKEP_OK);
    assert_int_equal(listeners_open(&l, &e, 2, NULL), SKEP_OK);
    for (size_t i = 0; i < count; i++) {
        struct endpoint one;
        endpoint_from_address(&one, (struct sockaddr *)&all[i].sa);
        if (all[i].sa.ss_family == AF_INET6 && !has_ipv6())
            continue;
        assert_true(connects(one.host, l.bound.port));
    }
    listeners_close(&l);
}

static void count_of_threads_is_checked(void **state)
{
    (void)state;
    struct listeners l;
    struct endpoint e = at("127.0.0.1", 0);

    assert_int_equal(listeners_open(&l, &e, 0, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(listeners_open(&l, &e, LISTENER_MAX_THREADS + 1, NULL), SKEP_INVALID_ARGUMENT);
    listeners_close(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_threads_sockets_share_the_port_picked),
        cmocka_unit_test(sockets_stay_out_of_the_low_numbers),
        cmocka_unit_test(port_of_a_running_server_is_refused_by_name),
        cmocka_unit_test(a_check_tells_what_listening_would),
        cmocka_unit_test(foreign_address_and_unknown_name_are_unavailable),
        cmocka_unit_test(wildcard_of_ipv6_serves_ipv4_too),
        cmocka_unit_test(wildcard_of_ipv4_serves_no_ipv6),
        cmocka_unit_test(name_is_listened_on_at_each_of_its_addresses),
        cmocka_unit_test(count_of_threads_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
