/*
 * Numbers as Python's json takes them and jansson does not: whole ones of more than 64 bits,
 * Infinity and NaN; and reals, whose text is to come back as it came.
 *
 * Before jansson sees a request, such a number becomes a string that holds its text:
 *
 *     [5, {"a": 1e400, "b": "\u0001x"}]  ->  [5, {"a": "\u0001n1e400", "b": "\u0001\u0001x"}]
 *
 * A string of the request that begins with U+0001 gets one more, so that none is taken for a
 * number. Names of members stay as they are. Whole numbers of up to 18 digits stay numbers.
 */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "tracker/protocol.h"
#include "tracker/protocol_numbers.h"

static const char mark[] = "\\u0001"; /* as JSON has it */

enum {
    MARK_LEN = sizeof(mark) - 1,
    INT_DIGITS = 18,     /* any number of so many digits fits 64 bits */
    LONGEST_TOKEN = 1024 /* Python 3.11 reads no whole number of more than 4,300 digits */
};

/* ---- tokens ---- */

static bool is_token_char(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
           c == '-' || c == '.';
}

static size_t count_digits(const char *p, const char *end)
{
    size_t n = 0;

    while (p + n < end && p[n] >= '0' && p[n] <= '9')
        n++;
    return n;
}

static bool equals(const char *p, const char *end, const char *word)
{
    return (size_t)(end - p) == strlen(word) && memcmp(p, word, strlen(word)) == 0;
}

enum token {
    TOKEN_OTHER, /* left to jansson, which may refuse it */
    TOKEN_INT,   /* it fits 64 bits and is written as it came */
    TOKEN_BIG,   /* a whole number of more digits, or -0 */
    TOKEN_REAL,
    TOKEN_INFINITE, /* or not a number */
};

static enum token classify(const char *p, const char *end)
{
    const char *first = p;

    if (p < end && *p == '-')
        p++;
    if (equals(p, end, "Infinity") || equals(first, end, "NaN"))
        return TOKEN_INFINITE;
    size_t digits = count_digits(p, end);
    if (digits == 0 || (digits > 1 && *p == '0'))
        return TOKEN_OTHER;
    bool is_zero = *p == '0';
    p += digits;
    if (p == end)
        return digits > INT_DIGITS || (is_zero && *first == '-') ? TOKEN_BIG : TOKEN_INT;
    if (*p == '.') {
        digits = count_digits(p + 1, end);
        if (digits == 0)
            return TOKEN_OTHER;
        p += 1 + digits;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        p += p < end && (*p == '+' || *p == '-');
        digits = count_digits(p, end);
        if (digits == 0)
            return TOKEN_OTHER;
        p += digits;
    }
    return p == end ? TOKEN_REAL : TOKEN_OTHER;
}

/* Behind the closing quote of a string; the end of the text if it has none. */
static const char *string_end(const char *p, const char *end)
{
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\')
            p++;
    return p < end ? p + 1 : end;
}

static bool is_name(const char *behind, const char *end)
{
    while (behind < end && strchr(" \t\r\n", *behind) != NULL)
        behind++;
    return behind < end && *behind == ':';
}

/* ---- rewriting ---- */

/* One token of the text, for which other bytes may be wanted. False: memory is short. */
typedef bool (*rewrite_fn)(struct bytes *out, const char *p, const char *end, enum token token);

static bool append(struct bytes *out, const char *p, const char *end)
{
    return bytes_append(out, p, (size_t)(end - p));
}

static bool rewrite_string(struct bytes *out, const char *p, const char *end, bool marks)
{
    size_t len = (size_t)(end - p);

    if (!marks || len < MARK_LEN + 2 || memcmp(p + 1, mark, MARK_LEN) != 0)
        return append(out, p, end);
    return bytes_append(out, "\"", 1) && bytes_append(out, mark, MARK_LEN) &&
           append(out, p + 1, end);
}

/* @param marks  strings are marked too. */
static skep_status rewrite(struct tracker_text text, bool marks, rewrite_fn fn, struct bytes *out,
                           struct skep_error *err)
{
    const char *p = text.data;
    const char *end = text.data + text.len;
    bool ok = true;

    while (ok && p < end) {
        const char *next = p + 1;
        if (*p == '"') {
            next = string_end(p, end);
            ok = rewrite_string(out, p, next, marks && !is_name(next, end));
        } else if (is_token_char(*p)) {
            while (next < end && is_token_char(*next))
                next++;
            enum token token = is_name(next, end) ? TOKEN_OTHER : classify(p, next);
            if (token != TOKEN_OTHER && next - p > LONGEST_TOKEN)
                return error_set(err, SKEP_DATA_LOSS, "a number of %zu characters, limit %d",
                                 (size_t)(next - p), LONGEST_TOKEN);
            ok = fn(out, p, next, token);
        } else {
            ok = append(out, p, next);
        }
        p = next;
    }
    return ok ? SKEP_OK : error_no_memory(err, "JSON", text.len);
}

static bool mark_token(struct bytes *out, const char *p, const char *end, enum token token)
{
    if (token == TOKEN_OTHER || token == TOKEN_INT)
        return append(out, p, end);
    return bytes_append(out, "\"", 1) && bytes_append(out, mark, MARK_LEN) &&
           bytes_append(out, "n", 1) && append(out, p, end) && bytes_append(out, "\"", 1);
}

skep_status tracker_numbers_mark(struct tracker_text text, struct bytes *out,
                                 struct skep_error *err)
{
    return rewrite(text, true, mark_token, out, err);
}

/* As near as jansson comes. */
static bool soften_token(struct bytes *out, const char *p, const char *end, enum token token)
{
    const struct tracker_text text = {.data = p, .len = (size_t)(end - p)};

    if (token == TOKEN_OTHER || token == TOKEN_INT)
        return append(out, p, end);
    if (!isfinite(tracker_number_value(text)))
        return bytes_append(out, "null", 4);
    return append(out, p, end) && (token == TOKEN_REAL || bytes_append(out, ".0", 2));
}

skep_status tracker_numbers_soften(struct tracker_text text, struct bytes *out,
                                   struct skep_error *err)
{
    return rewrite(text, false, soften_token, out, err);
}

/* ---- reading ---- */

bool tracker_number(const json_t *value, struct tracker_text *token)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);

    if (text == NULL || len < 2 || text[0] != '\x01' || text[1] != 'n')
        return false;
    *token = (struct tracker_text){.data = text + 2, .len = len - 2};
    return true;
}

struct tracker_text tracker_marked_text(const json_t *value)
{
    const char *text = json_string_value(value);
    size_t len = json_string_length(value);
    struct tracker_text number;

    if (text == NULL || tracker_number(value, &number))
        return (struct tracker_text){0};
    bool is_escaped = len > 1 && text[0] == '\x01' && text[1] == '\x01';
    return (struct tracker_text){.data = text + is_escaped, .len = len - is_escaped};
}

double tracker_number_value(struct tracker_text token)
{
    char text[LONGEST_TOKEN + 1];
    size_t len = token.len < sizeof(text) ? token.len : sizeof(text) - 1;

    memcpy(text, token.data, len);
    text[len] = '\0';
    return number_parse(text, NULL); /* which reads "Infinity" and "NaN" too */
}
