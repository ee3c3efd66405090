/* Tables, progress, JSON and exit codes. */
#include "cli/output.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/number.h"
#include "base/text.h"

enum {
    CELL_BYTES = 512,
    COLUMN_GAP = 2,
    BAR_CHARS = 30,
    REDRAW_US = 100000,
    LINE_US = 5000000,
};

/* ---- exit codes ---- */

int cli_exit_code(skep_status status)
{
    switch (status) {
    case SKEP_OK:
        return CLI_DONE;
    case SKEP_NOT_FOUND:
        return CLI_NOT_FOUND;
    case SKEP_DEADLINE_EXCEEDED:
        return CLI_TIMED_OUT;
    default:
        return CLI_FAILED;
    }
}

int cli_fail(const char *command, const struct skep_error *err)
{
    struct skep_error shown = *err; /* it may quote a stranger */

    text_tame(shown.message);
    fprintf(stderr, "skep %s: %s\n", command,
            shown.message[0] != '\0' ? shown.message : skep_status_text(err->status));
    return cli_exit_code(err->status);
}

int cli_fail_before(const char *command, const struct skep_error *err)
{
    int code = cli_fail(command, err);

    return code == CLI_NOT_FOUND ? CLI_FAILED : code;
}

int cli_usage_error(const char *command, const char *format, ...)
{
    va_list args;

    fprintf(stderr, "skep %s: ", command);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nTry: skep help %s\n", command);
    return CLI_USAGE;
}

bool output_is_terminal(FILE *stream)
{
    const char *term = getenv("TERM");

    return isatty(fileno(stream)) && term != NULL && strcmp(term, "dumb") != 0;
}

/* ---- standard output ---- */

enum { UNKNOWN_FAILURE = -1 };

static atomic_int output_failure; /* errno of the first one, or UNKNOWN_FAILURE */

static void note_failure(int failure)
{
    int none = 0;

    atomic_compare_exchange_strong(&output_failure, &none, failure);
}

/* A write inside the printing of something long has failed, and errno has been lost since: what is
 * wrong shows with one byte more, behind output that is not whole anyway. */
static int find_failure(void)
{
    return write(STDOUT_FILENO, "\n", 1) < 0 ? errno : UNKNOWN_FAILURE;
}

bool output_flush(void)
{
    if (fflush(stdout) != 0)
        note_failure(errno);
    else if (ferror(stdout) != 0 && atomic_load(&output_failure) == 0)
        note_failure(find_failure());
    return atomic_load(&output_failure) == 0;
}

bool output_is_gone(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO};

    if (poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLNVAL)) != 0)
        note_failure((p.revents & POLLNVAL) != 0 ? EBADF : EPIPE);
    return atomic_load(&output_failure) != 0;
}

static const char *failure_text(void)
{
    int failure = atomic_load(&output_failure);

    return failure == UNKNOWN_FAILURE ? "not all of it could be written" : strerror(failure);
}

int output_end(int code)
{
    if (output_flush())
        return code;
    fprintf(stderr, "skep: standard output: %s\n", failure_text());
    return code == CLI_DONE ? CLI_FAILED : code;
}

/* ---- tables ---- */

struct table {
    const char *const *headers; /* borrowed */
    size_t columns;
    char **cells; /* owned, each too */
    size_t count, cap;
    bool failed;
};

struct table *table_new(const char *const *headers, size_t columns)
{
    struct table *t = mem_calloc(1, sizeof(*t));

    if (t != NULL) {
        t->headers = headers;
        t->columns = columns;
    }
    return t;
}

void table_cell(struct table *t, const char *format, ...)
{
    char text[CELL_BYTES];
    va_list args;

    if (t == NULL || t->failed)
        return;
    va_start(args, format);
    number_vprint(text, sizeof(text), format, args);
    va_end(args);
    text_tame(text);
    if (t->count == t->cap) {
        size_t cap = t->cap == 0 ? 64 : t->cap * 2;
        char **cells = mem_realloc(t->cells, cap * sizeof(*cells));
        if (cells == NULL) {
            t->failed = true;
            return;
        }
        t->cells = cells;
        t->cap = cap;
    }
    t->cells[t->count] = mem_strdup(text);
    if (t->cells[t->count] == NULL)
        t->failed = true;
    else
        t->count++;
}

/* Characters on the screen: code points, which is right for nearly all names. */
static size_t width_of(const char *text)
{
    size_t n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static const char *header_text(const struct table *t, size_t column)
{
    return t->headers[column] + (t->headers[column][0] == '>');
}

static size_t column_width(const struct table *t, size_t column)
{
    size_t widest = width_of(header_text(t, column));

    for (size_t i = column; i < t->count; i += t->columns) {
        size_t width = width_of(t->cells[i]);
        widest = width > widest ? width : widest;
    }
    return widest;
}

static void print_cell(const struct table *t, size_t column, const char *text, size_t width,
                       FILE *out)
{
    int padding = (int)(width - width_of(text));
    bool right = t->headers[column][0] == '>';
    bool last = column + 1 == t->columns;

    if (right)
        fprintf(out, "%*s%s", padding, "", text);
    else
        fprintf(out, "%s%*s", text, last ? 0 : padding, "");
    fprintf(out, last ? "\n" : "%*s", COLUMN_GAP, "");
}

bool table_print(const struct table *t, FILE *out)
{
    if (t == NULL || t->failed)
        return false;
    bool bold = output_is_terminal(out);
    size_t *widths = mem_calloc(t->columns, sizeof(*widths));
    if (widths == NULL)
        return false;
    for (size_t i = 0; i < t->columns; i++)
        widths[i] = column_width(t, i);
    fputs(bold ? "\033[1m" : "", out);
    for (size_t i = 0; i < t->columns; i++)
        print_cell(t, i, header_text(t, i), widths[i], out);
    fputs(bold ? "\033[0m" : "", out);
    for (size_t i = 0; i < t->count; i++) {
        print_cell(t, i % t->columns, t->cells[i], widths[i % t->columns], out);
        if (i + 1 == t->count && (i + 1) % t->columns != 0)
            fputc('\n', out);
    }
    mem_free(widths);
    return ferror(out) == 0;
}

void table_free(struct table *t)
{
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->count; i++)
        mem_free(t->cells[i]);
    mem_free(t->cells);
    mem_free(t);
}

/* ---- progress ---- */

void progress_start(struct progress *p, const char *label, uint64_t total, bool quiet, FILE *out)
{
    *p = (struct progress){
        .out = out,
        .label = label,
        .total = total,
        .start_us = clock_mono_us(),
        .terminal = output_is_terminal(out),
        .quiet = quiet,
    };
}

static void draw(struct progress *p, const char *note)
{
    double seconds = (double)(clock_mono_us() - p->start_us) / 1e6;
    char bar[BAR_CHARS + 1] = "";

    if (p->terminal && p->total > 0) {
        double share = p->done < p->total ? (double)p->done / (double)p->total : 1;
        size_t filled = (size_t)(share * BAR_CHARS);
        memset(bar, '-', BAR_CHARS);
        memset(bar, '#', filled);
        bar[BAR_CHARS] = '\0';
    }
    fputs(p->terminal ? "\r" : "", p->out);
    fprintf(p->out, "%s ", p->label);
    if (bar[0] != '\0')
        fprintf(p->out, "[%s] ", bar);
    fprintf(p->out, "%" PRIu64, p->done);
    if (p->total > 0)
        fprintf(p->out, "/%" PRIu64, p->total);
    fprintf(p->out, "  %.1f s%s%s", seconds, note != NULL ? "  " : "", note != NULL ? note : "");
    fputs(p->terminal ? "\033[K" : "\n", p->out); /* clears what a longer line left */
    fflush(p->out);
    p->drawn = true;
}

void progress_set(struct progress *p, uint64_t done, const char *note)
{
    uint64_t now = clock_mono_us();

    p->done = done;
    if (p->quiet || now < p->next_us)
        return;
    /* Elsewhere than on a terminal, what ends within the first period needs no line but the last.
     */
    bool first_elsewhere = !p->terminal && p->next_us == 0;
    p->next_us = now + (p->terminal ? REDRAW_US : LINE_US);
    if (!first_elsewhere)
        draw(p, note);
}

void progress_end(struct progress *p, const char *note)
{
    if (p->quiet)
        return;
    draw(p, note);
    if (p->terminal)
        fputc('\n', p->out);
}

/* ---- JSON ---- */

enum {
    DIGITS_OF_MEASURES = 15, /* 0.571 prints as 0.571 */
    DIGITS_EXACT = 17,       /* each double reads back as itself */
};

static bool print_with_digits(json_t *value, size_t digits, FILE *out)
{
    if (value == NULL)
        return false;
    bool good = json_dumpf(value, out, JSON_INDENT(2) | JSON_REAL_PRECISION(digits)) == 0;

    json_decref(value);
    return good && fputc('\n', out) != EOF && fflush(out) == 0;
}

bool json_print(json_t *value, FILE *out)
{
    return print_with_digits(value, DIGITS_OF_MEASURES, out);
}

bool json_print_exact(json_t *value, FILE *out)
{
    return print_with_digits(value, DIGITS_EXACT, out);
}

void json_print_event(json_t *event)
{
    static atomic_bool told;

    if (event != NULL &&
        json_dumpf(event, stdout, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS_OF_MEASURES)) == 0)
        putchar('\n');
    json_decref(event);
    if (!output_flush() && !atomic_exchange(&told, true))
        log_warn("standard output: %s; events are lost, everything else continues", failure_text());
}
