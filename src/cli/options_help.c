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

/* What comes behind the explanation: range and default. */
static void describe_value(const struct option_table *table, const struct option_spec *spec,
                           char *out, size_t cap)
{
    const char *fallback = option_default(table, spec);
    const char *unit = spec->unit != NULL ? spec->unit : "";
    char range[96] = "";
    char low[OPTION_TIME_BYTES], high[OPTION_TIME_BYTES];
    bool is_int = spec->kind == OPTION_INT;

    if (option_measure(spec) == MEASURE_TIME)
        snprintf(range, sizeof(range), "%s to %s; ",
                 option_format_time(spec, is_int ? (double)spec->min : spec->number_min, low),
                 option_format_time(spec, is_int ? (double)spec->max : spec->number_max, high));
    else if (is_int)
        snprintf(range, sizeof(range), "%" PRId64 " to %" PRId64 "%s%s; ", spec->min, spec->max,
                 unit[0] != '\0' ? " " : "", unit);
    else if (spec->kind == OPTION_FLOAT)
        number_print(range, sizeof(range), "%g to %g%s%s; ", spec->number_min, spec->number_max,
                     unit[0] != '\0' ? " " : "", unit);
    if (spec->required)
        snprintf(out, cap, "%s (%srequired)", spec->help, range);
    else if (fallback != NULL)
        snprintf(out, cap, "%s (%sdefault: %s)", spec->help, range, fallback);
    else if (range[0] != '\0')
        snprintf(out, cap, "%s (%.*s)", spec->help, (int)strlen(range) - 2, range);
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
        print_wrapped("Times may end in ms, s, m or h: 500ms, 1.5s, 2m, 1h. A number alone is in "
                      "seconds.",
                      0, 0, out);
    if (has[MEASURE_SIZE])
        print_wrapped("Sizes may end in K, M or G, or KiB, MiB or GiB, of 1024 each: 64K, 1.5GiB. "
                      "A number alone is in bytes.",
                      0, 0, out);
}

void options_print_help(const struct option_table *table, FILE *out)
{
    if (table->example != NULL) {
        fputs("Example:\n", out);
        for (const char *line = table->example; *line != '\0';) {
            size_t len = strcspn(line, "\n");
            fprintf(out, "  %.*s\n", (int)len, line);
            line += len + (line[len] == '\n');
        }
        fputc('\n', out);
    }
    fprintf(out, "Usage: skep %s [OPTIONS]%s%s\n\n", table->command,
            table->positional != NULL ? " " : "",
            table->positional != NULL ? table->positional : "");
    print_wrapped(table->summary, 0, 0, out);
    fputs("\nOptions:\n", out);
    for (size_t i = COMMON_OPTIONS; i < option_total(table); i++)
        print_option(table, option_at(table, i), out);
    for (size_t i = 0; i < COMMON_OPTIONS; i++)
        print_option(table, option_at(table, i), out);
    fputc('\n', out);
    print_measures(table, out);
    print_wrapped(
        "Each option may also stand in the file given by --config, as a line \"name = "
        "value\", or in the environment, as SKEP_ and its name in capitals with "
        "underscores. The command line wins over the environment, and that over the file.",
        0, 0, out);
}
