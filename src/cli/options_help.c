/* Help texts out of an option table. */
#include <inttypes.h>
#include <string.h>

#include "cli/options_internal.h"
#include "base/number.h"

enum {
    HELP_WIDTH = 92,
    HELP_COLUMN = 34, /* where the explanations start */
};

static const char *placeholder(const struct option_spec *spec)
{
    if (spec->placeholder != NULL)
        return spec->placeholder;
    switch (spec->kind) {
    case OPTION_INT:
    case OPTION_FLOAT:
        return option_measure(spec) == MEASURE_TIME   ? "TIME"
               : option_measure(spec) == MEASURE_SIZE ? "BYTES"
                                                      : "N";
    case OPTION_ENDPOINT:
        return "HOST:PORT";
    case OPTION_CHOICE:
        return spec->choices;
    case OPTION_LIST:
        return "A,B,...";
    case OPTION_STRING:
        return "TEXT";
    case OPTION_FLAG:
        break;
    }
    return "";
}

/* Prints text from column `at` on, broken at spaces, later lines starting at `indent`. */
static void print_wrapped(const char *text, size_t at, size_t indent, FILE *out)
{
    while (*text != '\0') {
        size_t word = strcspn(text, " \n");
        if (at > indent && at + 1 + word > HELP_WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            at = indent;
        } else if (at > indent) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, word, out);
        at += word;
        text += word;
        text += *text != '\0';
    }
    fputc('\n', out);
}

/* "1 to 64 rows"; without limits that are only those of the type. Empty if none is left. */
static void describe_range(const struct option_spec *spec, char *out, size_t cap)
{
    const char *unit = spec->unit != NULL ? spec->unit : "";
    const char *space = unit[0] != '\0' ? " " : "";
    char low[OPTION_TIME_BYTES], high[OPTION_TIME_BYTES];
    bool is_int = spec->kind == OPTION_INT;

    out[0] = '\0';
    if (option_measure(spec) == MEASURE_TIME)
        snprintf(out, cap, "%s to %s",
                 option_format_time(spec, is_int ? (double)spec->min : spec->number_min, low),
                 option_format_time(spec, is_int ? (double)spec->max : spec->number_max, high));
    else if (is_int && spec->min == INT64_MIN && spec->max == INT64_MAX)
        snprintf(out, cap, "any integer");
    else if (is_int && spec->min <= 1 && (spec->max == INT32_MAX || spec->max == INT64_MAX))
        return;
    else if (is_int && spec->max >= INT64_MAX - 1)
        snprintf(out, cap, "at least %" PRId64 "%s%s", spec->min, space, unit);
    else if (is_int)
        snprintf(out, cap, "%" PRId64 " to %" PRId64 "%s%s", spec->min, spec->max, space, unit);
    else if (spec->kind == OPTION_FLOAT)
        number_print(out, cap, "%g to %g%s%s", spec->number_min, spec->number_max, space, unit);
}

/* The explanation, then default and range: "(default: 5m; 10ms to 1000h)". */
static void describe_value(const struct option_table *table, const struct option_spec *spec,
                           char *out, size_t cap)
{
    const char *fallback = option_default(table, spec);
    char range[96];

    if (fallback == NULL)
        fallback = spec->unset;
    describe_range(spec, range, sizeof(range));
    const char *between = range[0] != '\0' ? "; " : "";
    if (spec->required)
        snprintf(out, cap, "%s (required%s%s)", spec->help, between, range);
    else if (fallback != NULL)
        snprintf(out, cap, "%s (default: %s%s%s)", spec->help, fallback, between, range);
    else if (range[0] != '\0')
        snprintf(out, cap, "%s (%s)", spec->help, range);
    else
        snprintf(out, cap, "%s", spec->help);
}

/* Appends choices too many for the left column to the explanation, where they can be wrapped. */
static void append_choices(const char *choices, char *out, size_t cap)
{
    size_t used = strlen(out);

    used += (size_t)snprintf(out + used, cap - used, "; NAME: ");
    for (; *choices != '\0' && used + 3 < cap; choices++) {
        out[used++] = *choices == '|' ? ',' : *choices;
        if (*choices == '|')
            out[used++] = ' ';
    }
    if (used < cap)
        out[used] = '\0';
}

static void print_option(const struct option_table *table, const struct option_spec *spec,
                         FILE *out)
{
    char left[128], right[1024];
    const char *value = placeholder(spec);
    bool is_long = spec->kind == OPTION_CHOICE && strlen(value) > HELP_WIDTH - HELP_COLUMN;

    if (is_long)
        value = "NAME";
    snprintf(left, sizeof(left), "  --%s%s%s", spec->name, value[0] != '\0' ? " " : "", value);
    describe_value(table, spec, right, sizeof(right));
    if (is_long)
        append_choices(spec->choices, right, sizeof(right));
    int used = fprintf(out, "%s", left);
    if (used >= HELP_COLUMN) {
        fputc('\n', out);
        used = 0;
    }
    fprintf(out, "%*s", HELP_COLUMN - (used > 0 ? used : 0), "");
    print_wrapped(right, HELP_COLUMN, HELP_COLUMN, out);
}

/* What may stand behind numbers, if the command has any that take it. */
static void print_measures(const struct option_table *table, FILE *out)
{
    bool has[] = {[MEASURE_OTHER] = false, [MEASURE_TIME] = false, [MEASURE_SIZE] = false};

    for (size_t i = 0; i < table->count; i++)
        has[option_measure(&table->specs[i])] = true;
    if (has[MEASURE_TIME])
        print_wrapped("Times take a unit: 500ms, 1.5s, 2m, 1h. A number alone is in seconds.", 0, 0,
                      out);
    if (has[MEASURE_SIZE])
        print_wrapped("Sizes take K, M or G (or KiB, MiB, GiB), powers of 1024: 64K, 1.5GiB. A "
                      "number alone is in bytes.",
                      0, 0, out);
}

static void print_examples(const char *example, FILE *out)
{
    fputs(strchr(example, '\n') != NULL ? "\nExamples:\n" : "\nExample:\n", out);
    for (const char *line = example; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        fprintf(out, "  %.*s\n", (int)len, line);
        line += len + (line[len] == '\n');
    }
}

void options_print_help(const struct option_table *table, FILE *out)
{
    bool has_sections = false;

    fprintf(out, "Usage: skep %s [OPTIONS]%s%s\n\n", table->command,
            table->positional != NULL ? " " : "",
            table->positional != NULL ? table->positional : "");
    print_wrapped(table->summary, 0, 0, out);
    if (table->example != NULL)
        print_examples(table->example, out);
    for (size_t i = COMMON_OPTIONS; i < option_total(table); i++) {
        const struct option_spec *spec = option_at(table, i);
        if (spec->section != NULL)
            fprintf(out, "\n%s:\n", spec->section);
        else if (i == COMMON_OPTIONS)
            fputs("\nOptions:\n", out);
        has_sections |= spec->section != NULL;
        print_option(table, spec, out);
    }
    if (has_sections)
        fputs("\nGeneral:\n", out);
    for (size_t i = 0; i < COMMON_OPTIONS; i++)
        print_option(table, option_at(table, i), out);
    fputc('\n', out);
    print_measures(table, out);
    print_wrapped(
        "Options can also be set in the --config file, as lines \"name = value\", or in the "
        "environment, as SKEP_NAME with underscores. The command line overrides the "
        "environment, which overrides the file.",
        0, 0, out);
}
