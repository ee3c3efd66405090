#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "tracker/protocol.h"

/* ---- helpers ---- */

static skep_status parse(const char *json, struct tracker_request *r)
{
    struct skep_error err = {0};
    skep_status rc = tracker_request_parse(r, tracker_text(json), &err);

    if (rc != SKEP_OK)
        assert_true(err.status == rc && err.message[0] != '\0');
    return rc;
}

static skep_status status_of(const char *json)
{
    struct tracker_request r;
    skep_status rc = parse(json, &r);

    if (rc == SKEP_OK || rc == SKEP_INVALID_ARGUMENT)
        tracker_request_free(&r);
    return rc;
}

static void assert_text(struct tracker_text text, const char *expected)
{
    assert_int_equal(text.len, strlen(expected));
    assert_memory_equal(text.data, expected, text.len);
}

/* The bytes of one message, without its length. */
static void assert_message(const struct bytes *out, const char *json)
{
    assert_true(out->len >= 4);
    assert_int_equal(load_u32(out->data), out->len - 4);
    assert_int_equal(out->len - 4, strlen(json));
    assert_memory_equal(out->data + 4, json, strlen(json));
}

/* ---- requests ---- */

static void each_request_is_understood(void **state)
{
    (void)state;
    struct tracker_request r;

    assert_int_equal(parse("[1]", &r), SKEP_OK);
    assert_int_equal(r.code, TRACKER_PING);
    tracker_request_free(&r);

    assert_int_equal(parse("[2, \"tracker:1\"]", &r), SKEP_OK);
    assert_text(r.stop_key, "tracker:1");
    tracker_request_free(&r);

    assert_int_equal(parse("[3, \"a:b\", [9090, \"a:b:0.1\"], \"10.1.2.3\"]", &r), SKEP_OK);
    assert_text(r.key, "a:b");
    assert_text(r.match_key, "a:b:0.1");
    assert_text(r.address, "10.1.2.3");
    assert_int_equal(r.port, 9090);
    tracker_request_free(&r);

    assert_int_equal(parse("[4, \"k\", \"me\", -3]", &r), SKEP_OK);
    assert_text(r.key, "k");
    assert_text(r.user, "me");
    assert_int_equal(r.priority.exact, -3);
    tracker_request_free(&r);

    assert_int_equal(parse("[5, {\"key\": \"server:k\", \"addr\": [null, 1], \"x\": []}]", &r),
                     SKEP_OK);
    assert_text(r.key, "server:k");
    assert_null(r.address.data);
    assert_int_equal(r.port, 1);
    tracker_request_free(&r);

    assert_int_equal(status_of("[6]"), SKEP_OK);
    assert_int_equal(status_of("[7]"), SKEP_OK);
}

/* The C++ server writes numbers as strings, and leaves the address out or quotes it. */
static void small_differences_of_real_peers_are_understood(void **state)
{
    (void)state;
    struct tracker_request r;
    static const char *const same[] = {
        "[3, \"k\", [65535, \"m\"]]",
        "[3, \"k\", [65535, \"m\"], null]",
        "[3, \"k\", [65535, \"m\"], \"\"]",
        "[3,\"k\",[\"65535\",\"m\"],null]",
        " [ 3 , \"k\" , [ 65535 , \"m\" ] , null, \"more\" ] ",
        "[3, \"k\", [65535, \"m\", \"more\", Infinity]]",
    };

    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        assert_int_equal(parse(same[i], &r), SKEP_OK);
        assert_text(r.key, "k");
        assert_text(r.match_key, "m");
        assert_null(r.address.data);
        assert_int_equal(r.port, 65535);
        tracker_request_free(&r);
    }
    assert_int_equal(parse("[5, {\"key\": \"server:k\", \"addr\": [\"h\", \"9091\"]}]", &r),
                     SKEP_OK);
    assert_text(r.address, "h");
    assert_int_equal(r.port, 9091);
    tracker_request_free(&r);
    assert_int_equal(parse("[5, {\"addr\": [\"h\", 9091, \"more\"]}, \"more\"]", &r), SKEP_OK);
    assert_text(r.address, "h");
    assert_int_equal(r.port, 9091);
    tracker_request_free(&r);
    assert_int_equal(status_of("[4, \"k\", null, 1]"), SKEP_OK);
}

static void keys_hold_any_character(void **state)
{
    (void)state;
    struct tracker_request r;

    assert_int_equal(parse("[4, \"\\u0000:\\ud83d\\ude00\\n\", \"\", 0]", &r), SKEP_OK);
    assert_int_equal(r.key.len, 7);
    assert_memory_equal(r.key.data, "\0:\xf0\x9f\x98\x80\n", 7);
    tracker_request_free(&r);
    assert_int_equal(status_of("[4, \"\", \"\", 0]"), SKEP_OK);
}

static void what_is_no_request_ends_the_connection(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "x",
        "{}",
        "[]",
        "1",
        "\"3\"",
        "null",
        "[",
        "[1",
        "[1]x",
        "[1] [1]",
        "[\"3\"]",
        "[null]",
        "[true]",
        "[1.5]",
        "[[1]]",
        "[3]",
        "[3, \"k\"]",
        "[3, \"k\", [1]]",
        "[3, 1, [1, \"m\"]]",
        "[3, \"k\", [1, 2]]",
        "[3, \"k\", [null, \"m\"]]",
        "[3, \"k\", [\"x\", \"m\"]]",
        "[3, \"k\", [[1], \"m\"]]",
        "[3, \"k\", {\"port\": 1}]",
        "[3, \"k\", [1, \"m\"], 7]",
        "[3, null, [1, \"m\"]]",
        "[4]",
        "[4, \"k\"]",
        "[4, \"k\", \"\"]",
        "[4, \"k\", \"\", \"1\"]",
        "[4, \"k\", \"\", null]",
        "[4, \"k\", {}, 1]",
        "[4, [\"k\"], \"\", 1]",
        "[4, [\"k\", \"\", 1]]",
        "[5]",
        "[5, {}]",
        "[5, []]",
        "[5, {\"addr\": []}]",
        "[5, {\"addr\": [null]}]",
        "[5, {\"addr\": \"h:1\"}]",
        "[5, {\"addr\": [1, 1]}]",
        "[5, {\"addr\": [null, null]}]",
        "[5, {\"addr\": [null, 1], \"key\": 5}]",
        "[2]",
        "[4, \"k\", \"\", nan]",
        "[4, \"k\", \"\", Infinit]",
        "[4, \"k\", \"\", +Infinity]",
        "[4, \"k\", \"\", +1]",
        "[4, \"k\", \"\", 01]",
        "[4, \"k\", \"\", 1.]",
        "[4, \"k\", \"\", .5]",
        "[4, \"k\", \"\", 1e]",
        "[4, \"k\", \"\", -]",
        "[4, \"k\", \"\", \"\\u0001n1\"]",
        "[4, 1.5, \"\", 1]",
        "[4, \"k\", 1.5, 1]",
        "[4, \"k\", \"\", 1.5 2.5]",
        "[5, {\"addr\": [null, 1], 1.5: 2}]",
        "[5, {\"addr\": [null, 1], \"a\": 1.5 : 2}]",
        "[5, {\"addr\": [1.5, 1]}]",
        "[5, {\"addr\": [null, 1], \"key\": 5.5}]",
        "[3, \"k\", [1, 1e5]]",
        "[4, \"\xff\", \"\", 1]",
        "[4, \"\xc0\x80\", \"\", 1]",
        "[4, \"\\ud800\", \"\", 1]",
        "{\"0\": 1}",
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (status_of(bad[i]) != SKEP_DATA_LOSS)
            fail_msg("%s: %s", bad[i], skep_status_name(status_of(bad[i])));
}

static void unknown_codes_are_told_apart(void **state)
{
    (void)state;
    static const char *const unknown[] = {"[0]",
                                          "[-1]",
                                          "[8]",
                                          "[99]",
                                          "[-9223372036854775808]",
                                          "[9223372036854775807]",
                                          "[1267650600228229401496703205376]"};

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        assert_int_equal(status_of(unknown[i]), SKEP_UNIMPLEMENTED);
}

static void ports_that_do_not_exist_are_refused(void **state)
{
    (void)state;
    static const char *const ports[] = {"0",
                                        "-1",
                                        "65536",
                                        "8589934592",
                                        "9090.5",
                                        "9090.0",
                                        "1e3",
                                        "\"0\"",
                                        "\"65536\"",
                                        "\"99999999999999999999\"",
                                        "\"\"",
                                        "18446744073709551617",
                                        "-18446744073709551616"};
    char json[96];
    struct tracker_request r;

    for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
        snprintf(json, sizeof(json), "[3, \"k\", [%s, \"m\"]]", ports[i]);
        assert_int_equal(parse(json, &r), SKEP_INVALID_ARGUMENT);
        assert_int_equal(r.code, TRACKER_PUT);
        tracker_request_free(&r);
        snprintf(json, sizeof(json), "[5, {\"addr\": [null, %s]}]", ports[i]);
        assert_int_equal(status_of(json), SKEP_INVALID_ARGUMENT);
    }
    assert_int_equal(status_of("[3, \"k\", [1, \"m\"], \"a b\"]"), SKEP_INVALID_ARGUMENT);
    assert_int_equal(status_of("[3, \"k\", [1, \"m\"], \"a\\nb\"]"), SKEP_INVALID_ARGUMENT);
}

static char *nested(size_t depth, const char *tail)
{
    char *json = mem_alloc(depth + strlen(tail) + 1);

    assert_non_null(json);
    memset(json, '[', depth);
    memcpy(json + depth, tail, strlen(tail) + 1);
    return json;
}

static void nesting_is_bounded_before_it_is_parsed(void **state)
{
    (void)state;
    char *open = nested(10000, "");
    char *many = nested(1 << 20, "");
    char json[256];

    assert_int_equal(status_of(open), SKEP_DATA_LOSS);
    assert_int_equal(status_of(many), SKEP_DATA_LOSS);
    mem_free(open);
    mem_free(many);
    /* Brackets in strings are text. */
    snprintf(json, sizeof(json), "[4, \"%s\\\"[[[[\", \"\", 1]",
             "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[{{{{{{{{{{");
    assert_int_equal(status_of(json), SKEP_OK);
    snprintf(json, sizeof(json), "[5, {\"addr\": [null, 1], \"x\": %.30s%.30s}]",
             "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]");
    assert_int_equal(status_of(json), SKEP_OK); /* 32 deep */
    snprintf(json, sizeof(json), "[5, {\"addr\": [null, 1], \"x\": %.31s%.31s}]",
             "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]");
    assert_int_equal(status_of(json), SKEP_DATA_LOSS);
}

static void long_keys_end_the_connection(void **state)
{
    (void)state;
    char *json = mem_alloc(1 << 20);
    static const size_t lengths[] = {TRACKER_MAX_KEY_BYTES, TRACKER_MAX_KEY_BYTES + 1, 1000000};

    assert_non_null(json);
    for (size_t i = 0; i < 3; i++) {
        size_t n = (size_t)snprintf(json, 16, "[4, \"");
        memset(json + n, 'k', lengths[i]);
        snprintf(json + n + lengths[i], 16, "\", \"\", 1]");
        assert_int_equal(status_of(json), i == 0 ? SKEP_OK : SKEP_DATA_LOSS);
    }
    mem_free(json);
}

/* ---- priorities ---- */

static struct tracker_priority priority_of(const char *number)
{
    char json[128];
    struct tracker_request r;

    snprintf(json, sizeof(json), "[4, \"k\", \"\", %s]", number);
    assert_int_equal(parse(json, &r), SKEP_OK);
    struct tracker_priority p = r.priority;
    tracker_request_free(&r);
    return p;
}

static void priorities_of_any_size_are_in_order(void **state)
{
    (void)state;
    static const char *const ascending[] = {
        "-Infinity",
        "-1e300",
        "-18446744073709551616",
        "-9223372036854775808",
        "-1099511627776",
        "-1",
        "-0.5",
        "0",
        "0.5",
        "1",
        "1.5",
        "2",
        "1099511627776",
        "9007199254740993",
        "9223372036854775806",
        "9223372036854775807",
        "18446744073709551616",
        "1e300",
        "Infinity",
    };
    size_t count = sizeof(ascending) / sizeof(ascending[0]);

    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < count; k++) {
            int order =
                tracker_priority_compare(priority_of(ascending[i]), priority_of(ascending[k]));
            assert_int_equal((order > 0) - (order < 0), (i > k) - (i < k));
        }
    static const char *const equal[][2] = {
        {"1.0", "1"},          {"true", "1"},        {"false", "0"},          {"-0", "0"},
        {"1e999", "Infinity"}, {"NaN", "-Infinity"}, {"-1e999", "-Infinity"},
    };
    for (size_t i = 0; i < sizeof(equal) / sizeof(equal[0]); i++)
        assert_int_equal(
            tracker_priority_compare(priority_of(equal[i][0]), priority_of(equal[i][1])), 0);
}

/* ---- numbers of info ---- */

static void numbers_of_info_come_out_as_they_came_in(void **state)
{
    (void)state;
    static const char *const values[] = {
        "0",
        "-0",
        "1.50",
        "1E5",
        "-1.5e-7",
        "123456789012345678",
        "1234567890123456789",
        "-9223372036854775809",
        "18446744073709551616",
        "1e999",
        "Infinity",
        "-Infinity",
        "NaN",
        "0.1000000000000000055511151231257827",
        "\"\\u0001n5\"",
        "\"\\u0001\\u0001\"",
        "\"\\u0001\"",
        "{\"\\u0001n7\": [1.0, -Infinity, \"1.0\"]}",
        "[[], {}, null, true]",
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        char json[256], expected[256];
        struct bytes out = {0};
        struct tracker_request r;
        snprintf(json, sizeof(json), "[5,{\"addr\":[null,7],\"x\":%s}]", values[i]);
        snprintf(expected, sizeof(expected), "{\"addr\": [null, 7], \"x\": %s}", values[i]);
        assert_int_equal(parse(json, &r), SKEP_OK);
        assert_int_equal(r.port, 7);
        assert_true(tracker_append_info(&out, r.info));
        if (out.len != strlen(expected) || memcmp(out.data, expected, out.len) != 0)
            fail_msg("%.*s, expected %s", (int)out.len, (const char *)out.data, expected);
        tracker_request_free(&r);
        bytes_free(&out);
    }
    /* Python reads no number of more than 4,300 digits. */
    char json[1200] = "[5, {\"addr\": [null, 7], \"x\": ";
    size_t len = strlen(json);
    memset(json + len, '9', 1025);
    memcpy(json + len + 1025, "}]", 3);
    assert_int_equal(status_of(json), SKEP_DATA_LOSS);
}

static void answers_hold_numbers_that_jansson_has_not(void **state)
{
    (void)state;
    json_t *value = tracker_json_parse(
        tracker_text("[0, {\"\\u0000\": 1, \"a\": Infinity, \"b\": 18446744073709551616, "
                     "\"c\": -1e999, \"d\": 1.5, \"e\": \"Infinity\"}]"),
        NULL);
    const json_t *fields = json_array_get(value, 1);

    assert_non_null(value);
    assert_int_equal(json_object_size(fields), 6);
    assert_true(json_is_null(json_object_get(fields, "a")));
    assert_true(json_real_value(json_object_get(fields, "b")) == 18446744073709551616.0);
    assert_true(json_is_null(json_object_get(fields, "c")));
    assert_true(json_real_value(json_object_get(fields, "d")) == 1.5);
    assert_string_equal(json_string_value(json_object_get(fields, "e")), "Infinity");
    json_decref(value);
}

/* ---- writing ---- */

static void answers_are_written_as_stock_peers_expect(void **state)
{
    (void)state;
    struct bytes out = {0};

    assert_true(tracker_write_code(&out, TRACKER_SUCCESS));
    assert_message(&out, "0");
    out.len = 0;
    assert_true(tracker_write_code(&out, TRACKER_FAIL));
    assert_message(&out, "-1");
    out.len = 0;
    assert_true(
        tracker_write_resource(&out, tracker_text("127.0.0.1"), 9090, tracker_text("k:0.25\"\\")));
    assert_message(&out, "[0, [\"127.0.0.1\", 9090, \"k:0.25\\\"\\\\\"]]");
    out.len = 0;
    assert_true(tracker_write_refusal(&out, "no"));
    assert_message(&out, "[-1, \"no\"]");
    out.len = 0;
    assert_true(
        tracker_write_put(&out, tracker_text("k"), 1, tracker_text("m"), tracker_text(NULL)));
    assert_message(&out, "[3, \"k\", [1, \"m\"], null]");
    out.len = 0;
    assert_true(tracker_write_request(&out, tracker_text("k"), tracker_text(""), -5));
    assert_message(&out, "[4, \"k\", \"\", -5]");
    bytes_free(&out);
}

static void assert_rewritten(const char *json, const char *expected)
{
    struct bytes out = {0};
    json_t *value = tracker_json_parse(tracker_text(json), NULL);

    assert_non_null(value);
    assert_true(tracker_append_value(&out, value));
    if (out.len != strlen(expected) || memcmp(out.data, expected, out.len) != 0)
        fail_msg("%s: %.*s, expected %s", json, (int)out.len, (const char *)out.data, expected);
    json_decref(value);
    bytes_free(&out);
}

/* jansson has no names of members with NUL; a backslash before an escape's makes text of it. */
static void nul_in_a_name_is_read_as_another_character(void **state)
{
    (void)state;
    assert_rewritten("{\"a\\u0000b\": \"c\\u0000\", \"\\\\u0000\": 1, \"\\\\\\u0000\": 2}",
                     "{\"a\\ufffdb\": \"c\\ufffd\", \"\\\\u0000\": 1, \"\\\\\\ufffd\": 2}");
    assert_null(tracker_json_parse(tracker_text("{\"\\u0000\": 1"), NULL));
    assert_null(tracker_json_parse(tracker_text("{\"\\u0000\": \"\\"), NULL));
}

/* Each right side is what json.dumps(json.loads(left)) gives in Python 3. */
static void values_are_written_as_python_does(void **state)
{
    (void)state;
    assert_rewritten("{\"b\":1,\"a\":[true,false,null,\"x\"]}",
                     "{\"b\": 1, \"a\": [true, false, null, \"x\"]}");
    assert_rewritten("[]", "[]");
    assert_rewritten("{}", "{}");
    assert_rewritten("\"\\u00e9\\ud83d\\ude00\\u007f\\u0000\\u001f\\b\\f\\n\\r\\t\\/\\\\\\\"~ \"",
                     "\"\\u00e9\\ud83d\\ude00\\u007f\\u0000\\u001f\\b\\f\\n\\r\\t/\\\\\\\"~ \"");
    static const char *const reals[][2] = {
        {"0.1", "0.1"},
        {"1.0", "1.0"},
        {"-0.0", "-0.0"},
        {"1e15", "1000000000000000.0"},
        {"1e16", "1e+16"},
        {"1.5e16", "1.5e+16"},
        {"123456789.125", "123456789.125"},
        {"0.0001", "0.0001"},
        {"0.00012", "0.00012"},
        {"0.00001", "1e-05"},
        {"1.25e-7", "1.25e-07"},
        {"1e300", "1e+300"},
        {"5e-324", "5e-324"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"100.5", "100.5"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"12345678901234567.0", "1.2345678901234568e+16"},
        {"9007199254740993.0", "9007199254740992.0"},
        {"-2.5", "-2.5"},
    };
    for (size_t i = 0; i < sizeof(reals) / sizeof(reals[0]); i++)
        assert_rewritten(reals[i][0], reals[i][1]);
    assert_rewritten("[9223372036854775807, -9223372036854775808]",
                     "[9223372036854775807, -9223372036854775808]");
}

static void writing_survives_failing_allocations(void **state)
{
    (void)state;
    for (long nth = 1;; nth++) {
        struct bytes out = {0};
        char key[2000];
        memset(key, 0x01, sizeof(key) - 1);
        key[sizeof(key) - 1] = '\0';
        mem_fail_at(nth);
        bool ok = tracker_write_resource(&out, tracker_text("h"), 1, tracker_text(key));
        bool reached = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(ok, !reached);
        if (!ok)
            assert_int_equal(out.len, 0);
        bytes_free(&out);
        if (!reached)
            return;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_request_is_understood),
        cmocka_unit_test(small_differences_of_real_peers_are_understood),
        cmocka_unit_test(keys_hold_any_character),
        cmocka_unit_test(what_is_no_request_ends_the_connection),
        cmocka_unit_test(unknown_codes_are_told_apart),
        cmocka_unit_test(ports_that_do_not_exist_are_refused),
        cmocka_unit_test(nesting_is_bounded_before_it_is_parsed),
        cmocka_unit_test(long_keys_end_the_connection),
        cmocka_unit_test(priorities_of_any_size_are_in_order),
        cmocka_unit_test(numbers_of_info_come_out_as_they_came_in),
        cmocka_unit_test(answers_hold_numbers_that_jansson_has_not),
        cmocka_unit_test(answers_are_written_as_stock_peers_expect),
        cmocka_unit_test(values_are_written_as_python_does),
        cmocka_unit_test(nul_in_a_name_is_read_as_another_character),
        cmocka_unit_test(writing_survives_failing_allocations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
