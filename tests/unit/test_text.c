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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(terminals_see_no_control_character),
        cmocka_unit_test(log_lines_are_tame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
