/* Texts of options into values, and the nearest name to a misspelt one. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/options_internal.h"
#include "dht/initial_peer.h"

enum { NEAREST_MAX_CHARS = 63 };

static const struct {
    const char *unit, *suffix;
    int64_t factor;
} suffixes[] = {
    {"s", "s", 1},           {"s", "m", 60},          {"s", "h", 3600},
    {"ms", "ms", 1},         {"ms", "s", 1000},       {"ms", "m", 60000},
    {"bytes", "K", 1 << 10}, {"bytes", "M", 1 << 20}, {"bytes", "G", 1 << 30},
};

static skep_status refuse(const struct option_spec *spec, const char *text, const char *where,
                          struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES], expected[OPTION_WHERE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s, expected %s", where,
                     text_quote(text, strlen(text), quoted),
                     option_expected(spec, expected, sizeof(expected)));
}

const char *option_expected(const struct option_spec *spec, char *out, size_t cap)
{
    const char *unit = spec->unit != NULL ? spec->unit : "";
    const char *space = spec->unit != NULL ? " " : "";

    switch (spec->kind) {
    case OPTION_FLAG:
        snprintf(out, cap, "true or false");
        break;
    case OPTION_INT:
        snprintf(out, cap, "a whole number from %" PRId64 " to %" PRId64 "%s%s", spec->min,
                 spec->max, space, unit);
        break;
    case OPTION_FLOAT:
        snprintf(out, cap, "a number from %g to %g%s%s", spec->number_min, spec->number_max, space,
                 unit);
        break;
    case OPTION_ENDPOINT:
        snprintf(out, cap, "host:port");
        break;
    case OPTION_CHOICE:
        snprintf(out, cap, "one of %s", spec->choices);
        break;
    case OPTION_LIST:
        snprintf(out, cap, "%s", spec->placeholder != NULL ? spec->placeholder : "a list");
        break;
    case OPTION_STRING:
        snprintf(out, cap, "%s", spec->placeholder != NULL ? spec->placeholder : "a text");
        break;
    }
    return out;
}

/* The factor of a suffix behind a number; 0 if the option's unit has no such suffix. */
static int64_t suffix_factor(const struct option_spec *spec, const char *suffix)
{
    if (suffix[0] == '\0')
        return 1;
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (spec->unit != NULL && strcmp(spec->unit, suffixes[i].unit) == 0 &&
            strcmp(suffix, suffixes[i].suffix) == 0)
            return suffixes[i].factor;
    return 0;
}

static bool parse_int(const struct option_spec *spec, const char *text, int64_t *out)
{
    char *end;

    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false; /* strtoll would skip spaces and take a plus sign */
    errno = 0;
    long long number = strtoll(text, &end, 10);
    int64_t factor = suffix_factor(spec, end);
    if (errno != 0 || end == text || factor == 0 ||
        __builtin_mul_overflow((int64_t)number, factor, out))
        return false;
    return *out >= spec->min && *out <= spec->max;
}

static bool parse_float(const struct option_spec *spec, const char *text, double *out)
{
    /* strtod would skip spaces and take hexadecimal, "inf" and "nan". */
    size_t digits = strspn(text, "0123456789+-.eE");
    char *end;

    *out = strtod(text, &end);
    int64_t factor = suffix_factor(spec, end);
    if (end == text || (size_t)(end - text) != digits || factor == 0)
        return false;
    *out *= (double)factor;
    return isfinite(*out) && *out >= spec->number_min && *out <= spec->number_max;
}

static bool parse_flag(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        if (strcasecmp(text, yes[i]) == 0 || strcasecmp(text, no[i]) == 0) {
            *out = strcasecmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t len = strlen(text);

    for (const char *p = choices; *p != '\0';) {
        const char *end = strchrnul(p, '|');
        if ((size_t)(end - p) == len && memcmp(p, text, len) == 0)
            return true;
        p = *end == '|' ? end + 1 : end;
    }
    return false;
}

skep_status option_parse_text(const struct option_spec *spec, const char *text, const char *where,
                              struct option_value *value, struct skep_error *err)
{
    bool good = true;
    skep_status rc = SKEP_OK;

    switch (spec->kind) {
    case OPTION_FLAG:
        good = parse_flag(text, &value->flag);
        break;
    case OPTION_INT:
        good = parse_int(spec, text, &value->integer);
        break;
    case OPTION_FLOAT:
        good = parse_float(spec, text, &value->number);
        break;
    case OPTION_CHOICE:
        good = is_choice(spec->choices, text);
        break;
    case OPTION_ENDPOINT:
        rc = endpoint_parse(&value->endpoint, text, spec->any_port, err);
        break;
    case OPTION_STRING:
        good = text[0] != '\0';
        break;
    case OPTION_LIST: /* an element, which is never empty */
        break;
    }
    if (!good)
        return refuse(spec, text, where, err);
    if (rc == SKEP_OK && spec->check != NULL)
        rc = spec->check(text, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", where);
    return rc;
}

skep_status options_check_endpoint(const char *text, struct skep_error *err)
{
    struct endpoint e;

    return endpoint_parse(&e, text, false, err);
}

skep_status options_check_initial_peer(const char *text, struct skep_error *err)
{
    struct initial_peer peer;

    return initial_peer_parse(&peer, text, err);
}

/* Insertions, deletions and substitutions between two short names, row by row. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[NEAREST_MAX_CHARS + 1];
    size_t a_len = strlen(a);
    size_t b_len = strlen(b);

    if (a_len > NEAREST_MAX_CHARS || b_len > NEAREST_MAX_CHARS)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_len; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_len];
}

const char *options_nearest(const char *text, const char *const *names, size_t count)
{
    /* A third of the letters may be wrong: beyond that a suggestion confuses more than it helps. */
    size_t nearest = strlen(text) < 6 ? 2 : strlen(text) / 3;
    const char *found = NULL;

    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(text, names[i]);
        if (distance < nearest || (distance == nearest && found == NULL)) {
            nearest = distance;
            found = names[i];
        }
    }
    /* Nothing is near by letters: someone may have expected a shorter form to do. */
    for (size_t i = 0; found == NULL && strlen(text) >= 3 && i < count; i++)
        if (strncmp(text, names[i], strlen(text)) == 0)
            found = names[i];
    return found;
}

const char *option_suggestion(const struct option_table *table, const char *name,
                              const char *dashes, char *out, size_t cap)
{
    const char *found = NULL;
    enum { MOST_NAMES = 128 };
    const char *names[MOST_NAMES];
    size_t count = 0;

    for (size_t i = 0; i < option_total(table) && count < MOST_NAMES; i++)
        names[count++] = option_at(table, i)->name;
    found = options_nearest(name, names, count);
    if (found == NULL)
        snprintf(out, cap, "%s", "");
    else
        snprintf(out, cap, ", did you mean %s%s?", dashes, found);
    return out;
}
