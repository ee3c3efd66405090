/*
 * The file of --config: `name = value` lines, comments from '#' or ';', no sections. A value may go
 * on in the next line if that is indented, with or without a comma before it; only lists make sense
 * there. Every name must be an option of the command.
 *
 * inih finds lines, names and continuations. The values are cut out of the lines here: inih knows
 * no quotes, and takes '#' behind a value for a part of it.
 */
#include <errno.h>
#include <ini.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/options_internal.h"

/* State of one reading. */
struct reading {
    struct options *o;
    const char *path;
    const char *p, *end; /* what has not been read */
    unsigned line;       /* of the last line handed to inih */
    const char *text;    /* that line, view: up to end_of_line */
    const char *end_of_line;
    bool has_name;  /* some line before had one, which an indented line may go on with */
    skep_status rc; /* the first failure; the rest is then skipped */
    struct skep_error *err;
};

static void fail_line(struct reading *r, const char *why)
{
    r->rc = error_set(r->err, SKEP_INVALID_ARGUMENT, "%s:%u: %s", r->path, r->line, why);
}

/* inih's source of lines, as fgets(). A line too long for inih would be cut without a word. */
static char *next_line(char *out, int cap, void *arg)
{
    struct reading *r = arg;

    if (r->rc != SKEP_OK || r->p == r->end)
        return NULL;
    const char *newline = memchr(r->p, '\n', (size_t)(r->end - r->p));
    size_t len = (size_t)((newline != NULL ? newline : r->end) - r->p);
    r->line++;
    r->text = r->p;
    r->end_of_line = r->p + len;
    if (len + 2 > (size_t)cap) {
        char why[128];
        snprintf(why, sizeof(why),
                 "%zu characters in a line, expected at most %d; lists may go on in an indented "
                 "line",
                 len, cap - 2);
        fail_line(r, why);
        return NULL;
    }
    memcpy(out, r->p, len);
    out[len] = '\n';
    out[len + 1] = '\0';
    r->p = newline != NULL ? newline + 1 : r->end;
    return out;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* What stands in the last line behind its name, or all of a line that goes on with a value; without
 * spaces around it and a comment behind it. A quote keeps what would begin a comment. */
static void cut_value(const struct reading *r, char *out, size_t cap)
{
    const char *p = r->text;
    const char *end = r->end_of_line;
    bool goes_on = r->has_name && p < end && is_space(*p);
    char quote = '\0';

    while (!goes_on && p < end && *p != '=' && *p != ':')
        p++;
    p += !goes_on && p < end;
    while (p < end && is_space(*p))
        p++;
    const char *start = p;
    for (bool is_first = true; p < end; p++) { /* of a value, or of an element of a list */
        if (quote != '\0')
            quote = *p == quote ? '\0' : quote;
        else if (is_first && (*p == '"' || *p == '\'') && memchr(p + 1, *p, (size_t)(end - p - 1)))
            quote = *p;
        else if ((*p == ';' || *p == '#') && (p == start || is_space(p[-1])))
            break;
        is_first = quote == '\0' && (*p == ',' || (is_first && is_space(*p)));
    }
    while (p > start && is_space(p[-1]))
        p--;
    snprintf(out, cap, "%.*s", (int)(p - start), start);
}

/* Whether what comes next, but for empty lines and comments, is indented: more of this value. */
static bool is_continued(const struct reading *r)
{
    for (const char *p = r->p; p < r->end;) {
        const char *newline = memchr(p, '\n', (size_t)(r->end - p));
        const char *end = newline != NULL ? newline : r->end;
        const char *first = p;
        while (first < end && strchr(" \t\r", *first) != NULL)
            first++;
        if (first < end && *first != ';' && *first != '#')
            return first > p;
        p = newline != NULL ? newline + 1 : r->end;
    }
    return false;
}

/* The comma between the elements of two lines may end the first of them. */
static void drop_last_comma(const struct reading *r, char *text)
{
    size_t len = strlen(text);

    if (len > 0 && text[len - 1] == ',' && is_continued(r))
        text[len - 1] = '\0';
}

static int set_value(void *arg, const char *section, const char *name, const char *value)
{
    struct reading *r = arg;
    (void)value; /* see cut_value() */
    const struct option_table *table = r->o->table;
    char where[OPTION_WHERE_BYTES], text[OPTION_WHERE_BYTES], hint[OPTION_WHERE_BYTES];
    char quoted[TEXT_QUOTE_BYTES];
    size_t i = option_find(table, name, strlen(name));

    if (r->rc != SKEP_OK)
        return 1;
    if (section[0] != '\0') {
        fail_line(r, "in a section, expected name = value without sections");
        return 1;
    }
    text_quote(name, strlen(name), quoted);
    if (strcmp(name, "config") == 0 || (i < option_total(table) && option_is_answered(i))) {
        snprintf(where, sizeof(where), "%s: cannot be set in a file", quoted);
        fail_line(r, where);
        return 1;
    }
    if (i == option_total(table)) {
        snprintf(where, sizeof(where), "%s: unknown option of skep %s%s", quoted, table->command,
                 option_suggestion(table, name, "", hint, sizeof(hint)));
        fail_line(r, where);
        return 1;
    }
    cut_value(r, text, sizeof(text));
    r->has_name = true;
    if (option_at(table, i)->kind == OPTION_LIST)
        drop_last_comma(r, text);
    if (option_at(table, i)->kind != OPTION_LIST && r->o->values[i].in_file) {
        snprintf(where, sizeof(where), "%s: is there twice", quoted);
        fail_line(r, where);
        return 1;
    }
    snprintf(where, sizeof(where), "%s:%u: %s", r->path, r->line, name);
    r->rc = option_assign(r->o, i, SOURCE_FILE, text, where, r->err);
    r->o->values[i].in_file = true;
    return 1;
}

skep_status option_read_config(struct options *o, const char *path, const char *text, size_t len,
                               struct skep_error *err)
{
    struct reading r = {.o = o, .path = path, .p = text, .end = text, .err = err};

    if (len == 0)
        return SKEP_OK;
    r.end = text + len;
    if (memchr(text, 0, len) != NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: contains a NUL, expected text", path);
    int line = ini_parse_stream(next_line, &r, set_value, &r);
    if (r.rc == SKEP_OK && line > 0) { /* set_value() never fails towards inih */
        r.line = (unsigned)line;
        fail_line(&r, "not understood, expected name = value");
    }
    if (r.rc == SKEP_OK && line < 0)
        return error_no_memory(err, path, len);
    return r.rc;
}

skep_status option_load_config(struct options *o, const char *path, struct skep_error *err)
{
    struct bytes text = {0};
    skep_status rc = SKEP_OK;
    FILE *f = fopen(path, "re");
    size_t n = 1;

    if (f == NULL)
        return error_set(err, status_from_errno(errno), "--config: %s: cannot open: %s", path,
                         strerror(errno));
    while (rc == SKEP_OK && n > 0) {
        uint8_t chunk[4096];
        n = fread(chunk, 1, sizeof(chunk), f);
        if (n > 0 && !bytes_append(&text, chunk, n))
            rc = error_no_memory(err, path, n);
        else if (text.len > CONFIG_LIMIT_BYTES)
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "--config: %s: longer than %d bytes", path,
                           CONFIG_LIMIT_BYTES);
        else if (ferror(f))
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "--config: %s: cannot read: %s", path,
                           strerror(errno));
    }
    fclose(f);
    if (rc == SKEP_OK)
        rc = option_read_config(o, path, (const char *)text.data, text.len, err);
    bytes_free(&text);
    return rc;
}
