/* The arithmetic and output of benchmarks, and their baselines. No time is asserted. */
#include "unit.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/alloc.h"
#include "bench/bench_baseline.h"
#include "bench/bench_stats.h"
#include "crypto/identity.h"

/* ---- samples ---- */

static struct bench_summary summary_of(const uint64_t *values, size_t count)
{
    struct bench_samples s = {0};

    for (size_t i = 0; i < count; i++)
        assert_true(bench_samples_add(&s, values[i]));
    struct bench_summary out = bench_samples_summarize(&s);
    bench_samples_free(&s);
    return out;
}

static void summaries_of_none_one_and_two(void **state)
{
    (void)state;
    struct bench_summary none = summary_of(NULL, 0);
    struct bench_summary one = summary_of((const uint64_t[]){7}, 1);
    struct bench_summary two = summary_of((const uint64_t[]){9, 4}, 2);

    assert_int_equal(none.count, 0);
    assert_true(none.median == 0 && none.p99 == 0 && none.max == 0);
    assert_true(one.min == 7 && one.median == 7 && one.p90 == 7 && one.p99 == 7 && one.max == 7);
    assert_true(two.min == 4 && two.median == 6.5 && two.p90 == 9 && two.max == 9);
    assert_true(two.mean == 6.5);
}

/* 1 to n in an order that is not theirs, so that every percentile can be told. */
static void percentiles_are_nearest_ranks(void **state)
{
    (void)state;
    enum { N = 1000 };
    uint64_t values[N];

    for (size_t i = 0; i < N; i++)
        values[i] = (i * 7919) % N + 1;
    struct bench_summary s = summary_of(values, N);
    assert_int_equal(s.count, N);
    assert_true(s.min == 1 && s.max == N);
    assert_true(s.median == 500.5);
    assert_true(s.p90 == 900);
    assert_true(s.p99 == 990);
    assert_true(s.mean == 500.5);
    s = summary_of(values, 99); /* 99% of 99 rounds up to the last */
    assert_true(s.p99 == s.max);
}

static void samples_larger_than_a_double_holds_do_not_overflow(void **state)
{
    (void)state;
    struct bench_summary s = summary_of((const uint64_t[]){UINT64_MAX, UINT64_MAX}, 2);

    assert_true(s.median == s.max && s.max > 1.8e19);
}

static void reserved_room_is_enough_and_bounded(void **state)
{
    (void)state;
    struct bench_samples s = {0};
    struct skep_error err;

    assert_int_equal(bench_samples_reserve(&s, 10, NULL), SKEP_OK);
    mem_fail_at(1);
    for (uint64_t i = 0; i < 10; i++)
        assert_true(bench_samples_add(&s, i));
    assert_true(mem_fail_pending());
    assert_false(bench_samples_add(&s, 10)); /* the eleventh needs memory */
    assert_int_equal(s.count, 10);
    assert_int_equal(bench_samples_reserve(&s, (size_t)BENCH_MAX_SAMPLES, &err),
                     SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(bench_samples_reserve(&s, SIZE_MAX, &err), SKEP_RESOURCE_EXHAUSTED);
    bench_samples_clear(&s);
    assert_int_equal(s.count, 0);
    assert_int_equal(s.cap, 10);
    bench_samples_free(&s);
    bench_samples_free(NULL);
}

static void medians_of_runs(void **state)
{
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};

    assert_true(bench_median(odd, 3) == 2);
    assert_true(bench_median(even, 4) == 2.5);
    assert_true(isnan(bench_median(even, 0)));
}

/* ---- reports ---- */

static void add(struct bench_report *report, const char *name, double value, double baseline)
{
    double values[] = {value * 3, value / 2, value}; /* not in order; the median is `value` */
    double baselines[] = {baseline};

    const struct bench_figures figures = {
        "rpc", name, "us", values, 3, isnan(baseline) ? NULL : baselines, 1};

    assert_int_equal(bench_report_add(report, &figures, NULL), SKEP_OK);
}

static char *printed(const struct bench_report *report, bool json)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    if (json)
        assert_int_equal(bench_report_print_json(report, out, NULL), SKEP_OK);
    else
        bench_report_print(report, out);
    fclose(out);
    return text;
}

static void rows_hold_median_spread_and_ratio(void **state)
{
    (void)state;
    struct bench_report report = {0};

    add(&report, "with", 50, 40);
    add(&report, "without", 50, NAN);
    add(&report, "nothing to compare", 50, 0);
    assert_int_equal(report.count, 3);
    assert_true(report.rows[0].value == 50 && report.rows[0].ratio == 1.25);
    assert_true(report.rows[0].low == 25 && report.rows[0].high == 150);
    assert_int_equal(report.rows[0].runs, 3);
    assert_true(isnan(report.rows[1].baseline) && isnan(report.rows[1].ratio));
    assert_true(report.rows[2].baseline == 0 && isnan(report.rows[2].ratio));
    bench_report_free(&report);
    bench_report_free(NULL);
}

static void json_is_an_array_with_exactly_the_stated_fields(void **state)
{
    (void)state;
    static const char *const fields[] = {"bench",    "case",  "value", "unit",
                                         "baseline", "ratio", "runs"};
    struct bench_report report = {0};

    add(&report, "a \"quoted\"\n name", 0.1, 0.2);
    add(&report, "no baseline", 123456789, NAN);
    char *text = printed(&report, true);
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_array_size(root), 2);
    const json_t *first = json_array_get(root, 0), *second = json_array_get(root, 1);
    assert_int_equal(json_object_size(first), 7);
    for (size_t i = 0; i < 7; i++)
        assert_non_null(json_object_get(first, fields[i]));
    assert_string_equal(json_string_value(json_object_get(first, "case")), "a \"quoted\"\n name");
    assert_true(json_real_value(json_object_get(first, "value")) == 0.1);
    assert_true(json_real_value(json_object_get(first, "ratio")) == 0.5);
    assert_int_equal(json_integer_value(json_object_get(first, "runs")), 3);
    assert_true(json_real_value(json_object_get(second, "value")) == 123456800); /* 7 digits */
    assert_true(json_is_null(json_object_get(second, "baseline")));
    assert_true(json_is_null(json_object_get(second, "ratio")));
    json_decref(root);
    free(text);
    bench_report_free(&report);
}

static void an_empty_report_is_an_empty_array_and_no_table(void **state)
{
    (void)state;
    struct bench_report report = {0};
    char *json = printed(&report, true), *table = printed(&report, false);

    assert_string_equal(json, "[]\n");
    assert_string_equal(table, "");
    free(json);
    free(table);
}

static void table_columns_line_up(void **state)
{
    (void)state;
    struct bench_report report = {0};
    char *line, *rest;
    size_t length = 0, lines = 0;

    add(&report, "short", 0.0123, 1);
    add(&report, "a case with a much longer name", 987654321, NAN);
    char *text = printed(&report, false);
    for (line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (lines++ == 0)
            length = strlen(line);
        assert_int_equal(strlen(line), length);
    }
    assert_int_equal(lines, 3);
    free(text);
    bench_report_free(&report);
}

static void long_and_broken_names_are_cut_between_characters(void **state)
{
    (void)state;
    struct bench_report report = {0};
    char name[200] = "";

    for (int i = 0; i < 60; i++)
        memcpy(name + 3 * i, "\xe2\x82\xac", 3); /* euro signs */
    add(&report, name, 1, 1);
    add(&report, "bad \xff\xe2\x82", 1, 1);
    assert_int_equal(strlen(report.rows[0].case_name), (BENCH_CASE_BYTES - 1) / 3 * 3);
    assert_string_equal(report.rows[1].case_name, "bad ???");
    char *text = printed(&report, true);
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    free(text);
    bench_report_free(&report);
}

static void bad_rows_and_short_memory_leave_the_report_alone(void **state)
{
    (void)state;
    struct bench_report report = {0};
    double value = 1;
    struct bench_figures figures = {"a", "b", "c", &value, 0, NULL, 0};

    assert_int_equal(bench_report_add(&report, &figures, NULL), SKEP_INVALID_ARGUMENT);
    figures.runs = 1;
    mem_fail_at(1);
    assert_int_equal(bench_report_add(&report, &figures, NULL), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(report.count, 0);
    bench_report_free(&report);
}

/* ---- baselines ---- */

static void tcp_echo_gives_a_sample_a_round_and_leaves_no_child(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 20, 65536, 8 << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct bench_samples s = {0};
        assert_int_equal(bench_tcp_echo(sizes[i], 1, 3, &s, NULL), SKEP_OK);
        assert_int_equal(s.count, 3);
        bench_samples_free(&s);
        errno = 0;
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
    }
}

static void cipher_echo_gives_a_sample_a_round(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 65518, 65519, 65520, 200000};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (int cipher = NOISE_CHACHAPOLY; cipher <= NOISE_AESGCM; cipher++) {
            struct bench_samples s = {0};
            skep_status rc = bench_cipher_echo((enum noise_cipher)cipher, sizes[i], 1, 3, &s, NULL);
            if (noise_cipher_available((enum noise_cipher)cipher)) {
                assert_int_equal(rc, SKEP_OK);
                assert_int_equal(s.count, 3);
            } else {
                assert_int_equal(rc, SKEP_UNIMPLEMENTED);
            }
            bench_samples_free(&s);
        }
    }
}

static void baselines_refuse_sizes_out_of_range(void **state)
{
    (void)state;
    struct bench_samples s = {0};
    const size_t large = (size_t)BENCH_BASELINE_MAX_BYTES + 1;

    assert_int_equal(bench_tcp_echo(0, 0, 1, &s, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(bench_tcp_echo(large, 0, 1, &s, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(bench_tcp_echo(1, 0, SIZE_MAX, &s, NULL), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(bench_cipher_echo(NOISE_CHACHAPOLY, 0, 0, 1, &s, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(bench_cipher_echo(NOISE_CHACHAPOLY, large, 0, 1, &s, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(s.count, 0);
}

static void baselines_survive_each_failed_allocation(void **state)
{
    (void)state;

    for (long nth = 1; nth <= 2; nth++) {
        struct bench_samples s = {0};
        mem_fail_at(nth);
        assert_int_equal(bench_tcp_echo(100, 0, 1, &s, NULL), SKEP_RESOURCE_EXHAUSTED);
        assert_false(mem_fail_pending());
        bench_samples_free(&s);
        mem_fail_at(nth);
        assert_int_equal(bench_cipher_echo(NOISE_CHACHAPOLY, 100, 0, 1, &s, NULL),
                         SKEP_RESOURCE_EXHAUSTED);
        assert_false(mem_fail_pending());
        bench_samples_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(summaries_of_none_one_and_two),
        cmocka_unit_test(percentiles_are_nearest_ranks),
        cmocka_unit_test(samples_larger_than_a_double_holds_do_not_overflow),
        cmocka_unit_test(reserved_room_is_enough_and_bounded),
        cmocka_unit_test(medians_of_runs),
        cmocka_unit_test(rows_hold_median_spread_and_ratio),
        cmocka_unit_test(json_is_an_array_with_exactly_the_stated_fields),
        cmocka_unit_test(an_empty_report_is_an_empty_array_and_no_table),
        cmocka_unit_test(table_columns_line_up),
        cmocka_unit_test(long_and_broken_names_are_cut_between_characters),
        cmocka_unit_test(bad_rows_and_short_memory_leave_the_report_alone),
        cmocka_unit_test(tcp_echo_gives_a_sample_a_round_and_leaves_no_child),
        cmocka_unit_test(cipher_echo_gives_a_sample_a_round),
        cmocka_unit_test(baselines_refuse_sizes_out_of_range),
        cmocka_unit_test(baselines_survive_each_failed_allocation),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
