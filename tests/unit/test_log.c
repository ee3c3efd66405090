/* The forms of log lines on standard error. */
#include "unit.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

/* What one line is on standard error, without its end. Owned: free(). */
static char *logged(const char *text)
{
    int saved = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    char *line = calloc(1, 8192);

    assert_non_null(file);
    assert_non_null(line);
    fflush(stderr);
    dup2(fileno(file), STDERR_FILENO);
    log_write(SKEP_LOG_WARNING, "%s", text);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    size_t len = fread(line, 1, 8191, file);
    fclose(file);
    assert_true(len > 0 && line[len - 1] == '\n');
    assert_ptr_equal(memchr(line, '\n', len), line + len - 1);
    line[len - 1] = '\0';
    return line;
}

/* Whether a stamp is of now, in local time with this offset. */
static void check_stamp(const char *stamp, const char *offset, long offset_s)
{
    struct tm tm = {0};
    const char *rest = strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm);

    if (rest == NULL || rest - stamp != 19 || rest[0] != '.' || strspn(rest + 1, "0123456789") != 3)
        fail_msg("%s", stamp);
    assert_int_equal(strncmp(rest + 4, offset, 6), 0);
    time_t then = timegm(&tm) - offset_s;
    time_t now = time(NULL);
    assert_true(then <= now && then > now - 60);
}

static void set_zone(const char *zone)
{
    setenv("TZ", zone, 1);
    tzset();
}

static void lines_have_date_time_and_zone(void **state)
{
    (void)state;
    static const struct {
        const char *zone, *offset;
        long seconds;
    } zones[] = {
        {"UTC0", "+00:00", 0},
        {"IST-5:30", "+05:30", 19800},
        {"NST3:30", "-03:30", -12600},
        {"XXX0:30", "-00:30", -1800},
    };

    for (size_t i = 0; i < sizeof(zones) / sizeof(zones[0]); i++) {
        set_zone(zones[i].zone);
        char *line = logged("a \"line\"");
        check_stamp(line, zones[i].offset, zones[i].seconds);
        assert_string_equal(line + 29, " WARN  [main] a \"line\"");
        free(line);
    }
    unsetenv("TZ");
    tzset();
}

static json_t *parsed(const char *text)
{
    char *line = logged(text);
    json_error_t why;
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, &why);

    if (object == NULL)
        fail_msg("%s: %s", why.text, line);
    free(line);
    return object;
}

static void json_lines_are_json_for_all_bytes(void **state)
{
    (void)state;
    char text[3000];

    set_zone("IST-5:30");
    log_set_format(LOG_FORMAT_JSON);
    json_t *object = parsed("a \"line\" \\ \xc3\xa4");
    assert_string_equal(json_string_value(json_object_get(object, "message")),
                        "a \"line\" \\ \xc3\xa4");
    assert_string_equal(json_string_value(json_object_get(object, "level")), "warning");
    assert_string_equal(json_string_value(json_object_get(object, "thread")), "main");
    check_stamp(json_string_value(json_object_get(object, "time")), "+05:30", 19800);
    json_decref(object);
    for (int c = 1; c < 256; c++) {
        snprintf(text, sizeof(text), "x%cy", c);
        json_decref(parsed(text));
    }
    /* As long as lines get, where each byte takes the most room, and cut within a character. */
    memset(text, '"', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    object = parsed(text);
    assert_int_equal(json_string_length(json_object_get(object, "message")), 1023);
    json_decref(object);
    for (size_t start = 0; start < 4; start++) {
        memset(text, 'x', start);
        for (size_t i = start; i + 4 < sizeof(text); i += 4)
            memcpy(text + i, "\xf0\x9f\x90\x9d", 5);
        json_decref(parsed(text));
    }
    log_set_format(LOG_FORMAT_TEXT);
    unsetenv("TZ");
    tzset();
}

/* One gate serves events of unlike reasons. */
static void lines_left_out_are_counted_and_not_called_alike(void **state)
{
    (void)state;
    char text[LOG_LEFT_OUT_BYTES];

    assert_string_equal(log_left_out(0, "connections", text), "");
    assert_string_equal(
        log_left_out(7, "connections", text),
        " (left out since the last such line: 7 about other connections, for any reason)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_date_time_and_zone),
        cmocka_unit_test(json_lines_are_json_for_all_bytes),
        cmocka_unit_test(lines_left_out_are_counted_and_not_called_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
