/* Numbers as text and letters. Runs once more under locales that have other ones. */
#include "unit.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include <skep/log.h>
#include "base/error.h"
#include "base/log.h"
#include "base/number.h"

/* The test would show nothing under a locale that writes numbers as C does. */
static void the_locale_is_another_one(void **state)
{
    (void)state;
    char text[8];

    snprintf(text, sizeof(text), "%.1f", 0.5);
    assert_string_equal(text, test_locale != NULL ? "0,5" : "0.5");
}

static void numbers_are_written_and_read_with_a_point(void **state)
{
    (void)state;
    static const double values[] = {0, 0.5, -1.5, 0.0015, 1e300, DBL_MIN, DBL_MAX, 123456.75};
    char text[64];
    char *end;

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        int len = number_print(text, sizeof(text), "%.17g", values[i]);
        assert_int_equal(len, strlen(text));
        assert_null(strchr(text, ','));
        assert_true(number_parse(text, &end) == values[i]);
        assert_int_equal(*end, '\0');
    }
    assert_true(number_parse("0,5", &end) == 0);
    assert_string_equal(end, ",5");
    number_print(text, sizeof(text), "%.2f %e %d", 1234567.5, 0.25, 1234567);
    assert_string_equal(text, "1234567.50 2.500000e-01 1234567");
}

/* The locale of the program stays what its author has set. */
static void the_program_keeps_its_locale(void **state)
{
    (void)state;
    char before[32], after[32], text[32];

    snprintf(before, sizeof(before), "%.3f", 1.25);
    number_print(text, sizeof(text), "%g", 0.5);
    (void)number_parse("0.5", NULL);
    snprintf(after, sizeof(after), "%.3f", 1.25);
    assert_string_equal(before, after);
}

static char last_line[256];

static void keep_line(enum skep_log_level level, const char *line, void *arg)
{
    (void)level;
    (void)arg;
    snprintf(last_line, sizeof(last_line), "%s", line);
}

static void messages_and_log_lines_have_points(void **state)
{
    (void)state;
    struct skep_error err;

    error_set(&err, SKEP_INVALID_ARGUMENT, "beta1: %g", 1.5);
    error_prefix(&err, "at %.2f", 0.25);
    assert_string_equal(err.message, "at 0.25: beta1: 1.5");
    skep_log_set(SKEP_LOG_INFO, keep_line, NULL);
    log_info("took %.1f ms", 0.5);
    skep_log_set(SKEP_LOG_INFO, NULL, NULL);
    assert_string_equal(last_line, "took 0.5 ms");
}

static void letters_are_those_of_ascii(void **state)
{
    (void)state;
    for (int c = -128; c < 128; c++) {
        char lower = ascii_lower((char)c), upper = ascii_upper((char)c);
        bool small = c >= 'a' && c <= 'z', large = c >= 'A' && c <= 'Z';
        assert_int_equal(lower, large ? c + 32 : c);
        assert_int_equal(upper, small ? c - 32 : c);
        assert_int_equal(ascii_is_alnum((char)c), small || large || (c >= '0' && c <= '9'));
    }
    assert_true(ascii_same("MIB", "mib")); /* in Turkish, "I" and "i" are different letters */
    assert_true(ascii_same("", ""));
    assert_false(ascii_same("mi", "mib"));
    assert_false(ascii_same("mib", "mi"));
    assert_true(ascii_same_first("INITIAL", "init", 4));
    assert_false(ascii_same_first("INI", "init", 4));
    assert_true(ascii_same_first("a", "a", 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_locale_is_another_one),
        cmocka_unit_test(numbers_are_written_and_read_with_a_point),
        cmocka_unit_test(the_program_keeps_its_locale),
        cmocka_unit_test(messages_and_log_lines_have_points),
        cmocka_unit_test(letters_are_those_of_ascii),
    };
    return cmocka_run_group_tests_name("number", tests, NULL, NULL);
}
