#include "unit.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/endpoint.h"
#include "base/text.h"

static struct endpoint make(const char *host, uint16_t port)
{
    struct endpoint e = {.port = port};

    snprintf(e.host, sizeof(e.host), "%s", host);
    return e;
}

static void accepted_forms_keep_host_and_port(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host;
        unsigned port;
    } rows[] = {
        {"127.0.0.1:1", "127.0.0.1", 1},
        {"host:65535", "host", 65535},
        {"a-b_c.example.org.:4222", "a-b_c.example.org.", 4222},
        {"[::1]:4222", "::1", 4222},
        {"[fe80::1%lo]:80", "fe80::1%lo", 80},
        {"[::ffff:1.2.3.4]:80", "::ffff:1.2.3.4", 80},
        {"4you.example:80", "4you.example", 80},
        {"0.0.0.0:9", "0.0.0.0", 9},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct endpoint e;
        struct skep_error err;
        char text[ENDPOINT_TEXT_BYTES];
        if (endpoint_parse(&e, rows[i].text, false, &err) != SKEP_OK)
            fail_msg("%s", err.message);
        assert_string_equal(e.host, rows[i].host);
        assert_int_equal(e.port, rows[i].port);
        assert_string_equal(endpoint_format(&e, text), rows[i].text);
    }
}

static void any_port_is_for_those_who_ask(void **state)
{
    (void)state;
    struct endpoint e;
    char text[ENDPOINT_TEXT_BYTES];

    assert_int_equal(endpoint_parse(&e, "[::]:*", true, NULL), SKEP_OK);
    assert_int_equal(e.port, 0);
    assert_string_equal(endpoint_format(&e, text), "[::]:*");
    assert_int_equal(endpoint_parse(&e, "h:0", true, NULL), SKEP_OK);
    assert_int_equal(endpoint_parse(&e, "h:*", false, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(endpoint_parse(&e, "h:0", false, NULL), SKEP_INVALID_ARGUMENT);
}

/* B34: each is refused with its own text and a reason. */
static void misread_forms_are_refused_with_a_reason(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } rows[] = {
        {"", "empty"},
        {"::1", "without brackets"},
        {"::1:4222", "without brackets"},
        {"host", "no port"},
        {"host:", "port is empty"},
        {"host:99999", "out of range"},
        {"host:65536", "out of range"},
        {"host:99999999999999999999999", "out of range"},
        {"host:-1", "not a number"},
        {"host:+1", "not a number"},
        {"host:1x", "not a number"},
        {"host:080", "starts with a zero"},
        {":4222", "host is empty"},
        {"[]:4222", "host is empty"},
        {"a b", "space"},
        {" host:1", "space"},
        {"host:1 ", "space"},
        {"1.2.3.4:4222,5.6.7.8", "comma"},
        {"1.2.3.4:4222,", "comma"},
        {"[::1]", "no port"},
        {"[::1]4222", "no port"},
        {"[::1:4222", "no ]"},
        {"[1.2.3.4]:1", "no IPv6 address"},
        {"[zz]:1", "no IPv6 address"},
        {"[fe80::1%]:1", "no IPv6 address"},
        {"1.2.3:1", "IPv4"},
        {"256.1.1.1:1", "IPv4"},
        {"01.2.3.4:1", "IPv4"},
        {"0x7f.1:1", "IPv4"},
        {"0x7f000001:1", "IPv4"},
        {"2130706433:1", "IPv4"},
        {"a..b:1", "empty part"},
        {".a:1", "empty part"},
        {"http://host:80", "a URL, expected host:port"},
        {"tcp://1.2.3.4:80", "a URL, expected host:port"},
        {"/ip4/192.0.2.1/tcp/4222", "a multiaddr, expected host:port, here 192.0.2.1:4222"},
        {"/ip4/192.0.2.1/udp/4222/quic/p2p/QmX", "expected host:port, here 192.0.2.1:4222"},
        {"/ip6/2001:db8::1/tcp/4222", "expected host:port, here [2001:db8::1]:4222"},
        {"/dns4/host.example/tcp/80/ws", "expected host:port, here host.example:80"},
        {"/ip4/192.0.2.1", "a multiaddr, expected host:port"},
        {"/ip4/", "a multiaddr, expected host:port"},
        {"/dnsaddr/host.example/p2p/QmX", "a multiaddr, expected host:port"},
        {"/etc/hosts", "a path, expected host:port"},
        {"/", "a path, expected host:port"},
        {"us!er:80", "character"},
        {"h\xc3\xb6st:80", "character"},
        {"ho\nst:80", "character"},
        {"*:80", "character"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct endpoint e = make("untouched", 7);
        struct skep_error err = {0};
        char quoted[TEXT_QUOTE_BYTES];
        assert_int_equal(endpoint_parse(&e, rows[i].text, true, &err), SKEP_INVALID_ARGUMENT);
        text_quote(rows[i].text, strlen(rows[i].text), quoted);
        if (strstr(err.message, quoted) == NULL || strstr(err.message, rows[i].reason) == NULL)
            fail_msg("%s: expected %s", err.message, rows[i].reason);
        assert_string_equal(e.host, "untouched");
    }
}

static void long_hosts_are_refused_at_the_limit(void **state)
{
    (void)state;
    char text[600];
    struct endpoint e;

    for (size_t len = 1; len < 500; len++) {
        for (size_t i = 0; i < len; i++)
            text[i] = i % 50 == 49 && i + 1 < len ? '.' : 'a';
        snprintf(text + len, sizeof(text) - len, ":1");
        skep_status rc = endpoint_parse(&e, text, false, NULL);
        assert_int_equal(rc, len <= 253 ? SKEP_OK : SKEP_INVALID_ARGUMENT);
    }
    memset(text, 'a', 64);
    memcpy(text + 64, ":1", 3);
    assert_int_equal(endpoint_parse(&e, text, false, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(endpoint_parse(&e, text + 1, false, NULL), SKEP_OK);
}

static void kinds_of_host_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *host;
        int loopback, unspecified;
    } rows[] = {
        {"127.0.0.1", 1, 0},
        {"127.9.9.9", 1, 0},
        {"::1", 1, 0},
        {"localhost", 1, 0},
        {"LocalHost", 1, 0},
        {"localhost.", 1, 0},
        {"evil.localhost", 1, 0},
        {"a.b.LOCALHOST.", 1, 0},
        {"notlocalhost", 0, 0},
        {"localhost..", 0, 0},
        {".", 0, 0},
        {"::ffff:127.0.0.1", 1, 0},
        {"127.1", 1, 0},
        {"::1%1", 1, 0},
        {"::ffff:127.0.0.1%1", 1, 0},
        {"", 0, 1},
        {"0.0.0.0", 0, 1},
        {"0", 0, 1},
        {"0x0", 0, 1},
        {"000.0.0.0", 0, 1},
        {"::", 0, 1},
        {"0:0:0:0:0:0:0:0", 0, 1},
        {"::ffff:0.0.0.0", 0, 1},
        {"::ffff:0:0", 0, 1},
        {"::%1", 0, 1},
        {"fe80::1%lo", 0, 0},
        {"10.0.0.1", 0, 0},
        {"2001:db8::1", 0, 0},
        {"host", 0, 0},
        {"localhost.evil.x", 0, 0},
        {"128.0.0.1", 0, 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct endpoint e = make(rows[i].host, 9);
        if (endpoint_is_loopback(&e) != (rows[i].loopback == 1) ||
            endpoint_is_unspecified(&e) != (rows[i].unspecified == 1) ||
            endpoint_is_usable(&e) == (rows[i].unspecified == 1))
            fail_msg("\"%s\"", rows[i].host);
        e.port = 0;
        assert_false(endpoint_is_usable(&e));
    }
}

static void equality_looks_through_spelling(void **state)
{
    (void)state;
    struct endpoint a = make("::1", 1), b = make("0:0:0:0:0:0:0:1", 1);
    struct endpoint c = make("Host.Example", 1), d = make("host.example", 1);
    struct endpoint e = make("host.example", 2);

    assert_true(endpoint_equal(&a, &b));
    assert_true(endpoint_equal(&c, &d));
    assert_false(endpoint_equal(&d, &e));
    assert_false(endpoint_equal(&a, &d));
    struct endpoint f = make("fe80::1%a", 1), g = make("fe80:0::1%a", 1), h = make("fe80::1%b", 1);
    assert_true(endpoint_equal(&f, &g));
    assert_false(endpoint_equal(&f, &h));
}

static void numeric_hosts_convert_without_dns(void **state)
{
    (void)state;
    static const char *const texts[] = {"127.0.0.1:4222", "[::1]:4222", "[2001:db8::7]:1"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct endpoint e, back;
        struct address address;
        assert_int_equal(endpoint_parse(&e, texts[i], false, NULL), SKEP_OK);
        assert_true(endpoint_to_address(&e, &address));
        endpoint_from_address(&back, (const struct sockaddr *)&address.sa);
        assert_true(endpoint_equal(&e, &back));
    }
    struct address address;
    struct endpoint name = make("localhost", 1), empty = make("", 1);
    assert_false(endpoint_to_address(&name, &address));
    assert_false(endpoint_to_address(&empty, &address));
    struct endpoint unknown = make("left over", 3);
    endpoint_from_address(&unknown, &(struct sockaddr){.sa_family = AF_UNIX});
    assert_false(endpoint_is_usable(&unknown));
}

static void resolve_counts_addresses_and_names_the_host(void **state)
{
    (void)state;
    struct endpoint e = make("127.0.0.1", 42), bad = make("no.such.host.invalid", 1);
    struct endpoint empty = make("", 1);
    struct address out[4];
    size_t count = 9;
    struct skep_error err;

    assert_int_equal(endpoint_resolve(&e, out, 4, &count, &err), SKEP_OK);
    assert_int_equal(count, 1);
    assert_int_equal(((struct sockaddr_in *)&out[0].sa)->sin_port, htons(42));
    assert_int_equal(endpoint_resolve(&bad, out, 4, &count, &err), SKEP_UNAVAILABLE);
    assert_int_equal(count, 0);
    assert_non_null(strstr(err.message, "no.such.host.invalid"));
    assert_int_equal(endpoint_resolve(&empty, out, 4, &count, &err), SKEP_UNAVAILABLE);
}

static void local_host_is_numeric_and_of_the_family(void **state)
{
    (void)state;

    for (int v6 = 0; v6 < 2; v6++) {
        struct endpoint e = {.host = "::", .port = 4222};
        struct address a;

        endpoint_local_host(&e, v6);
        assert_true(endpoint_is_usable(&e));
        assert_int_equal(e.port, 4222);
        assert_true(endpoint_to_address(&e, &a));
        assert_int_equal(a.sa.ss_family, v6 ? AF_INET6 : AF_INET);
    }
}

static void quoting_hides_what_drives_a_terminal(void **state)
{
    (void)state;
    char out[TEXT_QUOTE_BYTES];
    char text[300];

    assert_string_equal(text_quote("a\n\x1b[2J\"\\", 8, out), "\"a\\x0a\\x1b[2J\\x22\\x5c\"");
    assert_string_equal(text_quote("\xc3\xb6\xff\xc2\x9b", 5, out), "\"\xc3\xb6\\xff\\xc2\\x9b\"");
    assert_string_equal(text_quote("", 0, out), "\"\"");
    for (size_t n = 0; n < sizeof(text); n++) {
        memset(text, n % 2 == 0 ? 'x' : '\n', sizeof(text));
        text_quote(text, n, out);
        size_t len = strlen(out);
        assert_true(len < TEXT_QUOTE_BYTES && out[len - 1] == '"');
        assert_int_equal(strstr(out, "...") != NULL, n > (n % 2 == 0 ? 114 : 28));
    }
}

static void utf8_is_checked_strictly(void **state)
{
    (void)state;
    static const char *const good[] = {"",
                                       "a",
                                       "\xc2\x80",
                                       "\xe0\xa0\x80",
                                       "\xed\x9f\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    static const char *const wrong[] = {"\x80",
                                        "\xc1\xbf",
                                        "\xc2",
                                        "\xe0\x9f\xbf",
                                        "\xed\xa0\x80",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xe2\x82"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(text_is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_false(text_is_utf8(wrong[i], strlen(wrong[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_forms_keep_host_and_port),
        cmocka_unit_test(any_port_is_for_those_who_ask),
        cmocka_unit_test(misread_forms_are_refused_with_a_reason),
        cmocka_unit_test(long_hosts_are_refused_at_the_limit),
        cmocka_unit_test(kinds_of_host_are_told_apart),
        cmocka_unit_test(equality_looks_through_spelling),
        cmocka_unit_test(numeric_hosts_convert_without_dns),
        cmocka_unit_test(resolve_counts_addresses_and_names_the_host),
        cmocka_unit_test(local_host_is_numeric_and_of_the_family),
        cmocka_unit_test(quoting_hides_what_drives_a_terminal),
        cmocka_unit_test(utf8_is_checked_strictly),
    };
    return cmocka_run_group_tests_name("endpoint", tests, NULL, NULL);
}
