/* Samples, medians and tables of `skep bench`. */
#include "bench/bench_stats.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/output.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

uint64_t bench_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- samples ---- */

skep_status bench_samples_reserve(struct bench_samples *s, size_t more, struct skep_error *err)
{
    if (more > BENCH_MAX_SAMPLES - s->count)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "samples: %zu more beside %zu, expected at most %d altogether", more,
                         s->count, (int)BENCH_MAX_SAMPLES);
    size_t cap = s->count + more;
    if (cap <= s->cap)
        return SKEP_OK;
    uint64_t *ns = mem_realloc(s->ns, cap * sizeof(*ns));
    if (ns == NULL)
        return error_no_memory(err, "samples", cap * sizeof(*ns));
    s->ns = ns;
    s->cap = cap;
    return SKEP_OK;
}

bool bench_samples_add(struct bench_samples *s, uint64_t ns)
{
    size_t room = BENCH_MAX_SAMPLES - s->count;

    if (s->count == s->cap) {
        size_t more = s->cap == 0 ? 1024 : s->cap;
        if (room == 0 || bench_samples_reserve(s, more < room ? more : room, NULL) != SKEP_OK)
            return false;
    }
    s->ns[s->count++] = ns;
    return true;
}

void bench_samples_clear(struct bench_samples *s)
{
    s->count = 0;
}

void bench_samples_free(struct bench_samples *s)
{
    if (s == NULL)
        return;
    mem_free(s->ns);
    *s = (struct bench_samples){0};
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The smallest value that at least `percent` of the sorted samples do not exceed. */
static double nearest_rank(const uint64_t *sorted, size_t count, size_t percent)
{
    size_t rank = (count * percent + 99) / 100;

    return (double)sorted[rank == 0 ? 0 : rank - 1];
}

struct bench_summary bench_samples_summarize(struct bench_samples *s)
{
    struct bench_summary out = {.count = s->count};
    double sum = 0;
    size_t n = s->count;

    if (n == 0)
        return out;
    qsort(s->ns, n, sizeof(s->ns[0]), compare_u64);
    for (size_t i = 0; i < n; i++)
        sum += (double)s->ns[i];
    out.min = (double)s->ns[0];
    size_t lower = (n - 1) / 2, upper = n / 2; /* the same where n is odd */
    out.median = ((double)s->ns[lower] + (double)s->ns[upper]) / 2;
    out.p90 = nearest_rank(s->ns, n, 90);
    out.p99 = nearest_rank(s->ns, n, 99);
    out.max = (double)s->ns[n - 1];
    out.mean = sum / (double)n;
    return out;
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof(values[0]), compare_double);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- results ---- */

static bool grow(struct bench_report *report)
{
    size_t cap = report->cap == 0 ? 32 : 2 * report->cap;
    size_t bytes;

    if (report->count < report->cap)
        return true;
    if (!size_mul(cap, sizeof(report->rows[0]), &bytes))
        return false;
    struct bench_row *rows = mem_realloc(report->rows, bytes);
    if (rows == NULL)
        return false;
    report->rows = rows;
    report->cap = cap;
    return true;
}

/* Cuts between characters, never inside one. */
static void copy_name(char *out, size_t cap, const char *name)
{
    size_t len = strlen(name), n = 0;

    for (size_t i = 0; i < len;) {
        size_t size = text_utf8_length(name + i, len - i);
        size_t step = size == 0 ? 1 : size;
        if (step > cap - 1 - n)
            break;
        if (size == 0)
            out[n] = '?';
        else
            memcpy(out + n, name + i, size);
        n += step;
        i += step;
    }
    out[n] = '\0';
}

skep_status bench_report_add(struct bench_report *report, const struct bench_figures *f,
                             struct skep_error *err)
{
    if (f->runs == 0)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s, %s: 0 runs, expected at least 1",
                         f->bench, f->case_name);
    if (!grow(report))
        return error_no_memory(err, "benchmark rows", sizeof(struct bench_row));

    struct bench_row *row = &report->rows[report->count++];
    *row = (struct bench_row){.runs = f->runs};
    copy_name(row->bench, sizeof(row->bench), f->bench);
    copy_name(row->case_name, sizeof(row->case_name), f->case_name);
    copy_name(row->unit, sizeof(row->unit), f->unit);
    row->value = bench_median(f->values, f->runs);
    row->low = f->values[0];
    row->high = f->values[f->runs - 1];
    row->baseline = f->baselines == NULL ? NAN : bench_median(f->baselines, f->baseline_runs);
    row->ratio = row->baseline == 0 ? NAN : row->value / row->baseline;
    return SKEP_OK;
}

void bench_report_free(struct bench_report *report)
{
    if (report == NULL)
        return;
    mem_free(report->rows);
    *report = (struct bench_report){0};
}

enum { NUMBER_BYTES = 32 };

/* Four digits where that says enough, whole numbers above; "-" if there is no such figure. */
static const char *format_number(double value, char out[static NUMBER_BYTES])
{
    double size = fabs(value);

    if (!isfinite(value))
        snprintf(out, NUMBER_BYTES, "-");
    else if (size >= 1e15)
        number_print(out, NUMBER_BYTES, "%.3e", value);
    else if (size >= 1000)
        snprintf(out, NUMBER_BYTES, "%.0f", value);
    else
        number_print(out, NUMBER_BYTES, "%.*f", size >= 100 ? 1 : size >= 10 ? 2 : 3, value);
    return out;
}

enum { COLUMNS = 8 };

struct cells {
    char text[COLUMNS][BENCH_CASE_BYTES];
};

static const struct {
    const char *heading;
    bool left; /* words are; numbers stand on the right */
} columns[COLUMNS] = {
    {"bench", true},     {"case", true},   {"value", false},       {"unit", true},
    {"baseline", false}, {"ratio", false}, {"low .. high", false}, {"runs", false},
};

static void format_row(const struct bench_row *row, struct cells *out)
{
    char low[NUMBER_BYTES], high[NUMBER_BYTES];
    size_t cap = sizeof(out->text[0]);

    snprintf(out->text[0], cap, "%s", row->bench);
    snprintf(out->text[1], cap, "%s", row->case_name);
    format_number(row->value, out->text[2]);
    snprintf(out->text[3], cap, "%s", row->unit);
    format_number(row->baseline, out->text[4]);
    format_number(row->ratio, out->text[5]);
    snprintf(out->text[6], cap, "%s .. %s", format_number(row->low, low),
             format_number(row->high, high));
    snprintf(out->text[7], cap, "%zu", row->runs);
}

static void print_row(const struct cells *cells, const int width[static COLUMNS], FILE *out)
{
    for (int i = 0; i < COLUMNS; i++)
        fprintf(out, "%s%*s", i == 0 ? "" : "  ", columns[i].left ? -width[i] : width[i],
                cells->text[i]);
    fputc('\n', out);
}

void bench_report_print(const struct bench_report *report, FILE *out)
{
    struct cells cells;
    int width[COLUMNS] = {0};

    if (report->count == 0)
        return;
    for (size_t row = 0; row <= report->count; row++) { /* the headings come last here */
        if (row < report->count)
            format_row(&report->rows[row], &cells);
        for (int i = 0; i < COLUMNS; i++) {
            if (row == report->count)
                snprintf(cells.text[i], sizeof(cells.text[i]), "%s", columns[i].heading);
            int n = (int)strlen(cells.text[i]);
            width[i] = n > width[i] ? n : width[i];
        }
    }
    print_row(&cells, width, out);
    for (size_t row = 0; row < report->count; row++) {
        format_row(&report->rows[row], &cells);
        print_row(&cells, width, out);
    }
}

/* JSON has no NaN. */
static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static char *row_text(const struct bench_row *row)
{
    json_t *object = json_pack("{s:s, s:s, s:o, s:s, s:o, s:o, s:I}", "bench", row->bench, "case",
                               row->case_name, "value", number_or_null(row->value), "unit",
                               row->unit, "baseline", number_or_null(row->baseline), "ratio",
                               number_or_null(row->ratio), "runs", (json_int_t)row->runs);
    char *text = json_dumps(object, JSON_REAL_PRECISION(7)); /* NULL for a NULL object */

    json_decref(object);
    return text;
}

skep_status bench_report_print_json(const struct bench_report *report, FILE *out,
                                    struct skep_error *err)
{
    fputs("[", out);
    for (size_t i = 0; i < report->count; i++) {
        char *text = row_text(&report->rows[i]);
        if (text == NULL)
            return error_no_memory(err, "JSON of a benchmark row", sizeof(struct bench_row));
        fprintf(out, "%s\n%s", i == 0 ? "" : ",", text);
        free(text); /* jansson's default allocator */
    }
    fputs(report->count == 0 ? "]\n" : "\n]\n", out);
    return SKEP_OK;
}

int bench_report_end(struct bench_report *report, bool json, const char *command, skep_status rc,
                     struct skep_error *err)
{
    if (rc == SKEP_OK && json)
        rc = bench_report_print_json(report, stdout, err);
    else if (rc == SKEP_OK)
        bench_report_print(report, stdout);
    bench_report_free(report);
    return rc == SKEP_OK ? CLI_DONE : cli_fail(command, err);
}
