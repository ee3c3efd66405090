#include "unit.h"

#include <pty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/output.h"

/* A stream into memory, which is no terminal. */
static struct {
    FILE *f;
    char *text;
    size_t len;
} capture;

static void capture_start(void)
{
    capture.f = open_memstream(&capture.text, &capture.len);
    assert_non_null(capture.f);
}

static void capture_expect(const char *expected)
{
    fclose(capture.f);
    assert_string_equal(capture.text, expected);
    free(capture.text);
}

static void columns_are_aligned_by_characters(void **state)
{
    (void)state;
    static const char *const headers[] = {"UID", ">rows", "peer"};
    struct table *t = table_new(headers, 3);

    table_cell(t, "ffn.%d", 1);
    table_cell(t, "%d", 7);
    table_cell(t, "ab");
    table_cell(t, "\xd1\x8d\xd0\xba.1");
    table_cell(t, "1000000");
    table_cell(t, "c");
    capture_start();
    assert_true(table_print(t, capture.f));
    capture_expect("UID       rows  peer\n"
                   "ffn.1        7  ab\n"
                   "\xd1\x8d\xd0\xba.1   1000000  c\n");
    table_free(t);
}

static void control_characters_do_not_reach_the_terminal(void **state)
{
    (void)state;
    static const char *const headers[] = {"a"};
    struct table *t = table_new(headers, 1);

    table_cell(t, "%s", "x\n\x1b[2J\xff\xc2\x9by");
    capture_start();
    assert_true(table_print(t, capture.f));
    capture_expect("a\nx??[2J???y\n");
    table_free(t);
}

static void short_memory_is_told_when_printing(void **state)
{
    (void)state;
    static const char *const headers[] = {"a"};
    struct table *t = table_new(headers, 1);

    mem_fail_at(1);
    table_cell(t, "x");
    table_cell(t, "y");
    assert_false(table_print(t, stderr));
    table_free(t);
    mem_fail_at(1);
    assert_null(table_new(headers, 1));
    table_cell(NULL, "x");
    assert_false(table_print(NULL, stderr));
    table_free(NULL);
}

static void progress_elsewhere_than_on_a_terminal_is_lines(void **state)
{
    (void)state;
    struct progress p;

    capture_start();
    progress_start(&p, "training", 10, false, capture.f);
    for (uint64_t i = 0; i <= 10; i++)
        progress_set(&p, i, NULL);
    progress_end(&p, "loss 0.1");
    fclose(capture.f);
    assert_int_equal(strncmp(capture.text, "training 10/10  ", 16), 0);
    assert_non_null(strstr(capture.text, "  loss 0.1\n"));
    assert_null(strchr(capture.text, '\r'));
    free(capture.text);
    capture_start();
    progress_start(&p, "training", 10, true, capture.f);
    progress_set(&p, 10, NULL);
    progress_end(&p, NULL);
    capture_expect("");
}

/* Opens a terminal to write to; what was written is read from *master. */
static FILE *open_terminal(int *master)
{
    int slave;

    setenv("TERM", "xterm", 1);
    if (openpty(master, &slave, NULL, NULL, NULL) != 0)
        return NULL;
    return fdopen(slave, "w");
}

/* What came out of the terminal so far; all of it is there once the writer has closed. */
static void read_terminal(int master, char *out, size_t cap)
{
    size_t used = 0;
    ssize_t n;

    while (used + 1 < cap && (n = read(master, out + used, cap - 1 - used)) > 0)
        used += (size_t)n;
    out[used] = '\0';
    close(master);
}

static void terminal_gets_a_bar_and_bold_headers(void **state)
{
    (void)state;
    static const char *const headers[] = {"a"};
    struct table *t = table_new(headers, 1);
    struct progress p;
    char seen[2048];
    int master;
    FILE *terminal = open_terminal(&master);

    if (terminal == NULL)
        skip();
    progress_start(&p, "training", 10, false, terminal);
    progress_set(&p, 5, NULL);
    progress_end(&p, "done");
    assert_true(table_print(t, terminal));
    fclose(terminal);
    table_free(t);
    read_terminal(master, seen, sizeof(seen));
    assert_non_null(strstr(seen, "\rtraining [###############---------------] 5/10"));
    assert_non_null(strstr(seen, "\033[1ma\r\n\033[0m"));
    setenv("TERM", "dumb", 1);
}

static void json_is_printed_whole_or_reported(void **state)
{
    (void)state;
    capture_start();
    assert_true(json_print(json_pack("[{s:i}]", "a", 1), capture.f));
    capture_expect("[\n  {\n    \"a\": 1\n  }\n]\n");
    assert_false(json_print(NULL, stderr));
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL)
        skip();
    assert_false(json_print(json_array(), full));
    fclose(full);
}

static void each_status_has_its_exit_code(void **state)
{
    (void)state;
    assert_int_equal(cli_exit_code(SKEP_OK), 0);
    assert_int_equal(cli_exit_code(SKEP_NOT_FOUND), 3);
    assert_int_equal(cli_exit_code(SKEP_DEADLINE_EXCEEDED), 4);
    assert_int_equal(cli_exit_code(SKEP_INVALID_ARGUMENT), 1);
    assert_int_equal(cli_exit_code(SKEP_UNAVAILABLE), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_aligned_by_characters),
        cmocka_unit_test(control_characters_do_not_reach_the_terminal),
        cmocka_unit_test(short_memory_is_told_when_printing),
        cmocka_unit_test(progress_elsewhere_than_on_a_terminal_is_lines),
        cmocka_unit_test(terminal_gets_a_bar_and_bold_headers),
        cmocka_unit_test(json_is_printed_whole_or_reported),
        cmocka_unit_test(each_status_has_its_exit_code),
    };
    return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
