#include "unit.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "dht/record/uid.h"
#include "golden_dir.h"

/* Texts with a NUL inside can be asked about by length only. */
static bool has_nul(const char *text, size_t len)
{
    return memchr(text, 0, len) != NULL;
}

static void check_parts(const struct uid *uid, const json_t *row)
{
    const json_t *coords = json_object_get(row, "coords");
    const json_t *prefixes = json_object_get(row, "prefixes");
    char number[32];

    const char *name = json_string_value(json_object_get(row, "name"));
    assert_int_equal(uid->name_len, strlen(name));
    assert_memory_equal(uid->text, name, uid->name_len);
    assert_int_equal(uid->coord_count, json_array_size(coords));
    assert_int_equal(uid->coord_count, json_array_size(prefixes));
    for (size_t i = 0; i < uid->coord_count; i++) {
        snprintf(number, sizeof(number), "%" PRId64, uid->coords[i]);
        assert_string_equal(number, json_string_value(json_array_get(coords, i)));
        const char *prefix = json_string_value(json_array_get(prefixes, i));
        assert_int_equal(uid->prefix_len[i], strlen(prefix));
        assert_memory_equal(uid->text, prefix, uid->prefix_len[i]);
        assert_true(uid_prefix_is_valid(uid->text, uid->prefix_len[i]));
    }
}

static bool has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text_is_control(text + i, 1))
            return true;
    return false;
}

static void check_case(const json_t *row)
{
    const json_t *text_value = json_object_get(row, "text");
    const char *text = json_string_value(text_value);
    size_t len = json_string_length(text_value);
    /* hivemind takes control characters in names; here they would reach terminals and logs. */
    bool may_refuse = json_is_true(json_object_get(row, "may_refuse")) || has_control(text, len);
    bool valid_uid = json_is_true(json_object_get(row, "valid_uid"));
    bool valid_prefix = json_is_true(json_object_get(row, "valid_prefix"));
    bool uid_seen = uid_is_valid(text, len);
    bool prefix_seen = uid_prefix_is_valid(text, len);
    struct uid uid;
    struct skep_error err;

    if ((uid_seen != valid_uid && !(may_refuse && valid_uid)) ||
        (prefix_seen != valid_prefix && !(may_refuse && valid_prefix)))
        fail_msg("%s: uid %d, expected %d; prefix %d, expected %d", text, uid_seen, valid_uid,
                 prefix_seen, valid_prefix);
    if (has_nul(text, len))
        return;
    skep_status rc = uid_parse(&uid, text, &err);
    assert_int_equal(rc == SKEP_OK, uid_seen);
    if (rc == SKEP_OK)
        check_parts(&uid, row);
    else
        assert_int_equal(err.status, SKEP_INVALID_ARGUMENT);
}

static void control_characters_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"a\nb.1", "\"\\x0a\" at character 2 is a control character"},
        {"\x1b[31mred.1", "\"\\x1b\" at character 1 is a control character"},
        {"tab\t.1", "\"\\x09\" at character 4 is a control character"},
        {"del\x7f.1", "\"\\x7f\" at character 4 is a control character"},
        {"c1\xc2\x85.1", "\"\\xc2\\x85\" at character 3 is a control character"},
        {"turn\xe2\x80\xae.1", "\"\\xe2\\x80\\xae\" at character 5 is a control character"},
    };
    struct uid uid;
    struct uid_pattern pattern;
    struct skep_error err;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(uid_parse(&uid, cases[i].text, &err), SKEP_INVALID_ARGUMENT);
        if (strstr(err.message, cases[i].part) == NULL)
            fail_msg("%s; expected %s", err.message, cases[i].part);
        assert_int_equal(uid_pattern_parse(&pattern, cases[i].text, &err), SKEP_INVALID_ARGUMENT);
        if (strstr(err.message, cases[i].part) == NULL)
            fail_msg("%s; expected %s", err.message, cases[i].part);
    }
    assert_false(uid_prefix_is_valid("a\nb.", 4));
}

static void golden_cases_agree(void **state)
{
    (void)state;
    char path[GOLDEN_PATH_BYTES];
    json_error_t error;
    size_t i;
    json_t *row;
    json_t *root = json_load_file(golden_path("uids/uids.json", path), JSON_ALLOW_NUL, &error);

    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 0);
    json_array_foreach(cases, i, row) check_case(row);
    json_decref(root);
}

/* B76 and more: each message quotes the text and the part that is wrong. */
static void message_names_the_wrong_part(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "name before the first dot is empty"},
        {".1", "name before the first dot is empty"},
        {"ffn", "no coordinate"},
        {"ffn.", "\"\" at character 5 is empty"},
        {"ffn.1.", "\"\" at character 7 is empty"},
        {"ffn..1", "\"\" at character 5 is empty"},
        {"ffn.01", "\"01\" at character 5 has a leading zero"},
        {"ffn.-1", "\"-1\" at character 5 is no number"},
        {"ffn.0x1", "\"0x1\" at character 5 is no number"},
        {"a.b.1", "\"b\" at character 3 is no number"},
        {"ffn.99999999999999999999", "out of range"},
        {"ffn.9223372036854775808", "out of range"},
        {"ffn.1 ", "\"1 \" at character 5 is no number"},
        {"\xff.1", "no UTF-8"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct uid uid = {.coord_count = 99};
        struct skep_error err = {0};
        assert_int_equal(uid_parse(&uid, rows[i].text, &err), SKEP_INVALID_ARGUMENT);
        if (strstr(err.message, rows[i].part) == NULL)
            fail_msg("%s; expected %s", err.message, rows[i].part);
        assert_int_equal(uid.coord_count, 99); /* untouched */
    }
}

static void length_limit_is_exact(void **state)
{
    (void)state;
    char text[11000];
    struct uid uid;

    memset(text, 'n', sizeof(text));
    memcpy(text + UID_BYTES - 3, ".1", 3);
    assert_int_equal(uid_parse(&uid, text, NULL), SKEP_OK);
    memset(text, 'n', sizeof(text));
    memcpy(text + UID_BYTES - 2, ".1", 3);
    assert_int_equal(uid_parse(&uid, text, NULL), SKEP_INVALID_ARGUMENT);
    memset(text, 'n', sizeof(text));
    memcpy(text + sizeof(text) - 3, ".1", 3);
    assert_int_equal(uid_parse(&uid, text, NULL), SKEP_INVALID_ARGUMENT);
    assert_false(uid_prefix_is_valid(text, sizeof(text)));
}

static void most_coordinates_that_fit_are_read(void **state)
{
    (void)state;
    char text[UID_BYTES + 2] = "n";
    struct uid uid;

    for (size_t i = 0; i < UID_MAX_COORDS; i++)
        memcpy(text + 1 + 2 * i, ".0", 3);
    assert_int_equal(uid_parse(&uid, text, NULL), SKEP_OK);
    assert_int_equal(uid.coord_count, UID_MAX_COORDS);
    memcpy(text + 1 + 2 * UID_MAX_COORDS, ".0", 3);
    assert_int_equal(uid_parse(&uid, text, NULL), SKEP_INVALID_ARGUMENT);
}

static void pattern_lists_its_uids_in_row_major_order(void **state)
{
    (void)state;
    static const char *const expected[] = {"ffn.7.3.0", "ffn.7.3.1", "ffn.7.3.2",
                                           "ffn.7.4.0", "ffn.7.4.1", "ffn.7.4.2"};
    struct uid_pattern pattern;
    char text[UID_BYTES];

    assert_int_equal(uid_pattern_parse(&pattern, "ffn.7.[3:5].[0:3]", NULL), SKEP_OK);
    assert_string_equal(pattern.name, "ffn");
    assert_int_equal(pattern.dims, 3);
    assert_int_equal(uid_pattern_count(&pattern), 6);
    for (uint64_t i = 0; i < 6; i++) {
        uid_pattern_at(&pattern, i, text);
        assert_string_equal(text, expected[i]);
        assert_true(uid_is_valid(text, strlen(text)));
    }
}

static void pattern_has_what_it_lists_and_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_in;
    } rows[] = {
        {"ffn.7.3.0", true},  {"ffn.7.4.2", true},   {"ffn.7.5.0", false}, {"ffn.7.2.0", false},
        {"ffn.7.3.3", false}, {"ffn.6.3.0", false},  {"ffn.7.3", false},   {"ffn.7.3.0.0", false},
        {"ff.7.3.0", false},  {"ffnn.7.3.0", false},
    };
    struct uid_pattern pattern;
    struct uid uid;

    assert_int_equal(uid_pattern_parse(&pattern, "ffn.7.[3:5].[0:3]", NULL), SKEP_OK);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(uid_parse(&uid, rows[i].text, NULL), SKEP_OK);
        if (uid_pattern_has(&pattern, &uid) != rows[i].is_in)
            fail_msg("%s", rows[i].text);
    }
}

static void huge_pattern_saturates(void **state)
{
    (void)state;
    struct uid_pattern pattern;
    char text[UID_BYTES];

    assert_int_equal(uid_pattern_parse(
                         &pattern, "a.[0:9223372036854775807].[0:9223372036854775807].[5:6]", NULL),
                     SKEP_OK);
    assert_true(uid_pattern_count(&pattern) == UINT64_MAX);
    uid_pattern_at(&pattern, UINT64_MAX - 1, text);
    assert_true(uid_is_valid(text, strlen(text)));
}

static void wrong_part_of_a_pattern_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"", "name before the first dot is empty"},
        {"ffn", "no coordinate"},
        {"ffn.", "\"\" at character 5 is empty"},
        {"ffn.[3:1]", "\"[3:1]\" at character 5 is an empty range"},
        {"ffn.[3:3]", "\"[3:3]\" at character 5 is an empty range"},
        {"ffn.[a:b]", "\"a\" at character 6 is no number"},
        {"ffn.[0:b]", "\"b\" at character 8 is no number"},
        {"ffn.[:4]", "\"\" at character 6 is empty"},
        {"ffn.[0:]", "\"\" at character 8 is empty"},
        {"ffn.[0:4", "has no ]"},
        {"ffn.[0:4.[0:4]", "has no ]"},
        {"ffn.[04]", "\"[04]\" at character 5 has no colon"},
        {"ffn.[0:04]", "\"04\" at character 8 has a leading zero"},
        {"ffn.[0:4]x", "\"x\" at character 10 follows a range"},
        {"ffn.[0:4][0:4]", "\"[0:4]\" at character 10 follows a range"},
        {"ffn.[0:1:2]", "\"1:2\" at character 8 is no number"},
        {"ffn.[0:4].", "\"\" at character 11 is empty"},
        {"ffn.*", "\"*\" at character 5 is no number"},
        {"ffn.[-1:4]", "\"-1\" at character 6 is no number"},
        {"ffn.[0:9223372036854775808]", "out of range"},
        {"ffn.9223372036854775807", "out of range"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct uid_pattern pattern;
        struct skep_error err = {0};
        assert_int_equal(uid_pattern_parse(&pattern, rows[i].text, &err), SKEP_INVALID_ARGUMENT);
        if (strstr(err.message, rows[i].part) == NULL)
            fail_msg("%s; expected %s", err.message, rows[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases_agree),
        cmocka_unit_test(control_characters_are_refused_by_name),
        cmocka_unit_test(message_names_the_wrong_part),
        cmocka_unit_test(length_limit_is_exact),
        cmocka_unit_test(most_coordinates_that_fit_are_read),
        cmocka_unit_test(pattern_lists_its_uids_in_row_major_order),
        cmocka_unit_test(pattern_has_what_it_lists_and_nothing_else),
        cmocka_unit_test(huge_pattern_saturates),
        cmocka_unit_test(wrong_part_of_a_pattern_is_named),
    };
    return cmocka_run_group_tests_name("uid", tests, NULL, NULL);
}
