/* Text from strangers, and the log that quotes it. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

static char last_line[1024];

static void keep_line(enum skep_log_level level, const char *line, void *arg)
{
    (void)level;
    (void)arg;
    snprintf(last_line, sizeof(last_line), "%s", line);
}

static const struct {
    const char *given;
    const char *tamed;
} texts[] = {
    {"plain", "plain"},
    {"", ""},
    {"a\033[31mb\n\x7f", "a?[31mb??"},
    {"\xc2\x9b"
     "31m",
     "??31m"}, /* C1: the same escape in one character */
    {"\xc2\x80\xc2\x9f\xc2\xa0", "????\xc2\xa0"},
    {"\x9b"
     "31m\xff",
     "?31m?"}, /* no UTF-8 */
    {"caf\xc3\xa9 \xe2\x82\xac", "caf\xc3\xa9 \xe2\x82\xac"},
    {"cut \xe2\x82", "cut ??"},
    /* Marks of direction, embeddings, overrides, isolates, separators; their neighbours show. */
    {"\xe2\x80\x8d\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\x90", "\xe2\x80\x8d??????\xe2\x80\x90"},
    {"\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xaa\xe2\x80\xae\xe2\x80\xaf",
     "\xe2\x80\xa7?????????\xe2\x80\xaf"},
    {"\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xb0", "\xe2\x81\xa5??????\xe2\x81\xb0"},
    {"\xd8\x9b\xd8\x9c\xd8\x9d", "\xd8\x9b??\xd8\x9d"},
};

static void terminals_see_no_control_character(void **state)
{
    (void)state;
    char text[64];

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        snprintf(text, sizeof(text), "%s", texts[i].given);
        text_tame(text);
        assert_string_equal(text, texts[i].tamed);
    }
}

static void log_lines_are_tame(void **state)
{
    (void)state;

    skep_log_set(SKEP_LOG_INFO, keep_line, NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        log_warn("%s", texts[i].given);
        assert_string_equal(last_line, texts[i].tamed);
    }
    skep_log_set(SKEP_LOG_INFO, NULL, NULL);
}

static void sizes_are_exact_or_near_and_never_0_for_something(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *down, *up;
    } rows[] = {
        {0, "0 bytes", "0 bytes"},
        {1, "1 byte", "1 byte"},
        {1000, "1000 bytes", "1000 bytes"},
        {1024, "1 KiB", "1 KiB"},
        {1025, "1025 bytes", "1025 bytes"},
        {10 * 1024 + 1, "10 KiB", "11 KiB"},
        {1500000, "1464 KiB", "1465 KiB"},
        {1 << 20, "1 MiB", "1 MiB"},
        {(1 << 20) + 1, "1024 KiB", "1025 KiB"},
        {(100 << 20) - 1, "99 MiB", "100 MiB"},
        {(uint64_t)3 << 29, "1536 MiB", "1536 MiB"},
        {(uint64_t)8 << 30, "8 GiB", "8 GiB"},
        {UINT64_MAX, "17592186044415 MiB", "17592186044416 MiB"},
    };
    char text[TEXT_SIZE_BYTES];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_string_equal(text_size(rows[i].bytes, false, text), rows[i].down);
        assert_string_equal(text_size(rows[i].bytes, true, text), rows[i].up);
    }
}

static void brackets_of_json_are_counted_outside_strings(void **state)
{
    (void)state;
    static const struct {
        const char *json;
        size_t opened, depth;
    } cases[] = {
        {"", 0, 0},
        {"7", 0, 0},
        {"[]", 1, 1},
        {"[[],{}]", 3, 2},
        {"[{\"a\":[1]}]", 3, 3},
        {"[\"[[{\"]", 1, 1},
        {"[\"\\\"[\"]", 1, 1},
        {"[\"\\\\\",[]]", 2, 2},
        {"]]][", 1, 1},
        {"[[[", 3, 3},
        {"\"\\", 0, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct text_brackets found = text_count_brackets(cases[i].json, strlen(cases[i].json));
        if (found.opened != cases[i].opened || found.depth != cases[i].depth)
            fail_msg("%s: %zu opened, %zu deep", cases[i].json, found.opened, found.depth);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terminals_see_no_control_character),
        cmocka_unit_test(log_lines_are_tame),
        cmocka_unit_test(sizes_are_exact_or_near_and_never_0_for_something),
        cmocka_unit_test(brackets_of_json_are_counted_outside_strings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
