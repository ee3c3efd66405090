/* Texts of options into values, and the nearest name to a misspelt one. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "base/text.h"
#include "cli/options_internal.h"
#include "crypto/identity.h"
#include "dht/bootstrap/initial_peer.h"
#include "dht/record/swarm_name.h"

enum { NEAREST_MAX_CHARS = 63 };

/* What may stand behind a number, as `times / per` of the option's unit. */
struct suffix {
    const char *unit, *text;
    int64_t times, per;
};
/* A number alone. Times are in seconds then, whatever they are counted in: an option must not mean
 * a thousandth of what the same number means to another. */
static const struct suffix plain = {"", "", 1, 1};
static const struct suffix plain_ms = {"ms", "", 1000, 1};
static const struct suffix suffixes[] = {
    {"s", "ms", 1, 1000},       {"s", "s", 1, 1},
    {"s", "m", 60, 1},          {"s", "h", 3600, 1},
    {"ms", "ms", 1, 1},         {"ms", "s", 1000, 1},
    {"ms", "m", 60000, 1},      {"ms", "h", 3600000, 1},
    {"bytes", "K", 1 << 10, 1}, {"bytes", "KiB", 1 << 10, 1},
    {"bytes", "M", 1 << 20, 1}, {"bytes", "MiB", 1 << 20, 1},
    {"bytes", "G", 1 << 30, 1}, {"bytes", "GiB", 1 << 30, 1},
};

enum option_measure option_measure(const struct option_spec *spec)
{
    if (spec->unit != NULL && (strcmp(spec->unit, "s") == 0 || strcmp(spec->unit, "ms") == 0))
        return MEASURE_TIME;
    return spec->unit != NULL && strcmp(spec->unit, "bytes") == 0 ? MEASURE_SIZE : MEASURE_OTHER;
}

static skep_status refuse(const struct option_spec *spec, const char *text, const char *where,
                          struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES], expected[OPTION_WHERE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s: %s, expected %s", where,
                     text_quote(text, strlen(text), quoted),
                     option_expected(spec, expected, sizeof(expected)));
}

const char *option_format_time(const struct option_spec *spec, double value,
                               char out[static OPTION_TIME_BYTES])
{
    static const struct {
        int64_t ms;
        const char *unit;
    } units[] = {{3600000, "h"}, {60000, "m"}, {1000, "s"}, {1, "ms"}};
    int64_t ms = llround(strcmp(spec->unit, "ms") == 0 ? value : value * 1000);
    size_t i = 0;

    while (ms % units[i].ms != 0)
        i++;
    snprintf(out, OPTION_TIME_BYTES, "%" PRId64 "%s", ms / units[i].ms,
             ms != 0 ? units[i].unit : "");
    return out;
}

/* Of an option that takes a time. */
static void expect_time(const struct option_spec *spec, char *out, size_t cap)
{
    bool is_whole = spec->kind == OPTION_INT;
    bool is_ms = strcmp(spec->unit, "ms") == 0;
    char low[OPTION_TIME_BYTES], high[OPTION_TIME_BYTES];

    option_format_time(spec, is_whole ? (double)spec->min : spec->number_min, low);
    option_format_time(spec, is_whole ? (double)spec->max : spec->number_max, high);
    snprintf(out, cap, "a time from %s to %s%s, such as %s, 2m or 1h; a number alone is in seconds",
             low, high,
             !is_whole ? ""
             : is_ms   ? " in whole milliseconds"
                       : " in whole seconds",
             is_whole && !is_ms ? "90s" : "500ms, 1.5s");
}

const char *option_expected(const struct option_spec *spec, char *out, size_t cap)
{
    const char *unit = spec->unit != NULL ? spec->unit : "";
    const char *space = spec->unit != NULL ? " " : "";
    const char *form = option_measure(spec) == MEASURE_SIZE
                           ? ", or with K, M or G (or KiB, MiB, GiB) behind it"
                           : "";

    if (option_measure(spec) == MEASURE_TIME) {
        expect_time(spec, out, cap);
        return out;
    }
    switch (spec->kind) {
    case OPTION_FLAG:
        snprintf(out, cap, "true or false");
        break;
    case OPTION_INT:
        snprintf(out, cap, "a whole number from %" PRId64 " to %" PRId64 "%s%s%s", spec->min,
                 spec->max, space, unit, form);
        break;
    case OPTION_FLOAT:
        number_print(out, cap, "a number from %g to %g%s%s%s", spec->number_min, spec->number_max,
                     space, unit, form);
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

/* The suffix behind a number; NULL if the option's unit has no such suffix. Sizes in any case. */
static const struct suffix *find_suffix(const struct option_spec *spec, const char *text)
{
    bool any_case = option_measure(spec) == MEASURE_SIZE;

    if (text[0] == '\0')
        return spec->unit != NULL && strcmp(spec->unit, plain_ms.unit) == 0 ? &plain_ms : &plain;
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (spec->unit != NULL && strcmp(spec->unit, suffixes[i].unit) == 0 &&
            (any_case ? ascii_same(text, suffixes[i].text) : strcmp(text, suffixes[i].text) == 0))
            return &suffixes[i];
    return NULL;
}

/* Reads the digits behind a point as `numerator / denominator`; how many there were. */
static size_t read_fraction(const char *text, int64_t *numerator, int64_t *denominator)
{
    enum { MOST_DIGITS = 9 };
    size_t n = 0;

    *numerator = 0;
    *denominator = 1;
    for (; text[n] >= '0' && text[n] <= '9' && n < MOST_DIGITS; n++) {
        *numerator = *numerator * 10 + (text[n] - '0');
        *denominator *= 10;
    }
    return n;
}

/* A whole number; with a suffix also a fraction, where that makes a whole number of the unit. */
static bool parse_int(const struct option_spec *spec, const char *text, int64_t *out)
{
    char *end;
    int64_t numerator = 0;
    int64_t denominator = 1;
    int64_t whole, part;

    if (text[0] != '-' && (text[0] < '0' || text[0] > '9'))
        return false; /* strtoll would skip spaces and take a plus sign */
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (errno != 0 || end == text)
        return false;
    bool has_point = *end == '.';
    if (has_point) {
        size_t digits = read_fraction(end + 1, &numerator, &denominator);
        end += 1 + digits;
        if (digits == 0 || number < 0 || text[0] == '-')
            return false;
    }
    const struct suffix *suffix = find_suffix(spec, end);
    if (suffix == NULL || (has_point && suffix == &plain))
        return false;
    /* number * times / per + numerator * times / (denominator * per), over one denominator */
    if (__builtin_mul_overflow((int64_t)number, suffix->times, &whole) ||
        __builtin_mul_overflow(numerator, suffix->times, &part))
        return false;
    __int128 sum = (__int128)whole * denominator + part;
    __int128 per = (__int128)denominator * suffix->per;
    if (sum % per != 0 || sum / per > INT64_MAX)
        return false;
    *out = (int64_t)(sum / per);
    return *out >= spec->min && *out <= spec->max;
}

static bool parse_float(const struct option_spec *spec, const char *text, double *out)
{
    /* strtod would skip spaces and take hexadecimal, "inf" and "nan". */
    size_t digits = strspn(text, "0123456789+-.eE");
    char *end;

    *out = number_parse(text, &end);
    const struct suffix *suffix = find_suffix(spec, end);
    if (end == text || (size_t)(end - text) != digits || suffix == NULL)
        return false;
    *out = *out * (double)suffix->times / (double)suffix->per;
    return isfinite(*out) && *out >= spec->number_min && *out <= spec->number_max;
}

static bool parse_flag(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};

    for (size_t i = 0; i < sizeof(yes) / sizeof(yes[0]); i++) {
        if (ascii_same(text, yes[i]) || ascii_same(text, no[i])) {
            *out = ascii_same(text, yes[i]);
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

skep_status options_check_swarm(const char *text, struct skep_error *err)
{
    return swarm_name_check(text, err);
}

skep_status options_check_peer_id(const char *text, struct skep_error *err)
{
    uint8_t id[PEER_ID_BYTES];
    char quoted[TEXT_QUOTE_BYTES];

    if (peer_id_parse(id, text))
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "%s, expected 64 hex digits",
                     text_quote(text, strlen(text), quoted));
}

/* From a quote to its other half, of one element: how far that is. NULL: there is none. */
static const char *closing_quote(const char *p)
{
    return strchr(p + 1, *p);
}

skep_status option_unquote(char *text, bool is_list, const char *where, struct skep_error *err)
{
    char quoted[TEXT_QUOTE_BYTES];
    char *out = text;
    const char *p = text;

    text_quote(text, strlen(text), quoted); /* as it was */
    for (;;) {
        const char *first = p + strspn(p, " \t");
        const char *end; /* of the element: its comma, or the end of the text */
        size_t len;
        if (*first == '"' || *first == '\'') {
            const char *close = closing_quote(first);
            if (close == NULL)
                return error_set(err, SKEP_INVALID_ARGUMENT,
                                 "%s: %s begins with a quote that nothing closes", where, quoted);
            end = close + 1 + strspn(close + 1, " \t");
            if (*end != '\0' && !(is_list && *end == ','))
                return error_set(err, SKEP_INVALID_ARGUMENT,
                                 "%s: %s goes on behind its closing quote", where, quoted);
            p = first + 1;
            len = (size_t)(close - p);
        } else {
            end = is_list ? strchrnul(p, ',') : p + strlen(p);
            len = (size_t)(end - p);
            if (len > 0 && end[-1] == '"' && memchr(p, '"', len - 1) == NULL)
                return error_set(err, SKEP_INVALID_ARGUMENT,
                                 "%s: %s ends with a quote that nothing opens", where, quoted);
        }
        memmove(out, p, len);
        out += len;
        if (*end == '\0')
            break;
        *out++ = ',';
        p = end + 1;
    }
    *out = '\0';
    return SKEP_OK;
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

/* A name that the other one ends with as a whole word: --listen and --dht-listen. */
static const char *same_last_words(const char *text, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *longer = strlen(text) > strlen(names[i]) ? text : names[i];
        const char *shorter = longer == text ? names[i] : text;
        const char *tail = longer + strlen(longer) - strlen(shorter);
        if (tail > longer && tail[-1] == '-' && strcmp(tail, shorter) == 0)
            return names[i];
    }
    return NULL;
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
        found = same_last_words(name, names, count);
    if (found == NULL)
        snprintf(out, cap, "%s", "");
    else
        snprintf(out, cap, ", did you mean %s%s?", dashes, found);
    return out;
}
