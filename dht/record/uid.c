/*
 * The grammar of expert UIDs, prefixes and grid patterns: the one place that knows it.
 *
 *     uid      name ("." coordinate)+
 *     prefix   name ("." coordinate)* "."
 *     pattern  name ("." coordinate | ".[" coordinate ":" coordinate "]")+
 *
 * A name is any UTF-8 text without dots and control characters: those would reach terminals, logs
 * and file names.
 */
#include "dht/record/uid.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

/* A UID of one-character name and one-digit coordinates fills the text before the arrays. */
static_assert(2 * UID_MAX_COORDS + 1 < UID_BYTES && 2 * UID_MAX_COORDS + 3 >= UID_BYTES,
              "UID_MAX_COORDS is what fits UID_BYTES");

/* What is read, and where the reading stands. */
struct reader {
    const char *text;
    size_t len;
    size_t pos;
};

/* Says what is wrong with the part from `from` to `to`. */
static skep_status bad_part(const struct reader *r, const char *what, size_t from, size_t to,
                            const char *why, struct skep_error *err)
{
    char whole[TEXT_QUOTE_BYTES];
    char part[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s %s: %s at character %zu %s", what,
                     text_quote(r->text, r->len, whole),
                     text_quote(r->text + from, to - from, part), from + 1, why);
}

static skep_status bad_whole(const struct reader *r, const char *what, const char *why,
                             struct skep_error *err)
{
    char whole[TEXT_QUOTE_BYTES];

    return error_set(err, SKEP_INVALID_ARGUMENT, "%s %s: %s", what,
                     text_quote(r->text, r->len, whole), why);
}

/* Reads the name and stops at the first dot. */
static skep_status read_name(struct reader *r, const char *what, struct skep_error *err)
{
    if (r->len >= UID_BYTES)
        return bad_whole(r, what, "too long, expected at most 255 bytes", err);
    const char *dot = memchr(r->text, '.', r->len);
    size_t len = dot != NULL ? (size_t)(dot - r->text) : r->len;

    if (len == 0)
        return bad_whole(r, what, "the name before the first dot is empty", err);
    for (size_t i = 0; i < len;) {
        size_t n = text_utf8_length(r->text + i, len - i);
        if (n == 0)
            return bad_part(r, what, i, i + 1, "is no UTF-8 text", err);
        if (text_is_control(r->text + i, n))
            return bad_part(r, what, i, i + n,
                            "is a control character, expected a name without them", err);
        i += n;
    }
    r->pos = len;
    return SKEP_OK;
}

/* Where the part that starts at pos ends: at a dot or the end, or at one of `stops`. */
static size_t part_end(const struct reader *r, const char *stops)
{
    size_t end = r->pos;

    while (end < r->len && r->text[end] != '.' &&
           (r->text[end] == '\0' || strchr(stops, r->text[end]) == NULL))
        end++;
    return end;
}

/* The number within [from, to); NULL, or why it is none. */
static const char *read_number(const struct reader *r, size_t from, size_t to, int64_t *out)
{
    int64_t value = 0;

    if (from == to)
        return "is empty, expected a number";
    for (size_t i = from; i < to; i++) {
        char c = r->text[i];
        if (c < '0' || c > '9')
            return "is no number, expected decimal digits";
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(c - '0'), &value))
            return "is out of range, expected at most 9223372036854775807";
    }
    if (r->text[from] == '0' && to - from > 1)
        return "has a leading zero";
    *out = value;
    return NULL;
}

/* Reads ".coordinate" parts into uid until the end, or until a final dot if `prefix`. */
static skep_status read_coords(struct reader *r, bool prefix, struct uid *uid,
                               struct skep_error *err)
{
    const char *what = prefix ? "prefix" : "expert UID";

    while (r->pos < r->len) {
        r->pos++; /* the dot */
        if (prefix && r->pos == r->len)
            return SKEP_OK;
        size_t end = part_end(r, "");
        int64_t value;
        const char *why = read_number(r, r->pos, end, &value);
        if (why == NULL && uid->coord_count == UID_MAX_COORDS)
            why = "is one coordinate too many";
        if (why != NULL)
            return bad_part(r, what, r->pos, end, why, err);
        uid->prefix_len[uid->coord_count] = r->pos;
        uid->coords[uid->coord_count++] = value;
        r->pos = end;
    }
    if (prefix)
        return bad_whole(r, what, "no dot at the end", err);
    if (uid->coord_count == 0)
        return bad_whole(r, what, "no coordinate, expected name.number, such as ffn.3", err);
    return SKEP_OK;
}

static skep_status parse(struct uid *out, const char *text, size_t len, bool prefix,
                         struct skep_error *err)
{
    struct reader r = {.text = text, .len = len};
    struct uid uid = {0};
    skep_status rc = read_name(&r, prefix ? "prefix" : "expert UID", err);

    if (rc != SKEP_OK)
        return rc;
    uid.name_len = r.pos;
    rc = read_coords(&r, prefix, &uid, err);
    if (rc != SKEP_OK || out == NULL)
        return rc;
    memcpy(uid.text, text, len);
    *out = uid;
    return SKEP_OK;
}

skep_status uid_parse(struct uid *out, const char *text, struct skep_error *err)
{
    skep_status rc = error_if_null(text, "uid", err);

    return rc == SKEP_OK ? parse(out, text, strlen(text), false, err) : rc;
}

bool uid_is_valid(const char *text, size_t len)
{
    return parse(NULL, text, len, false, NULL) == SKEP_OK;
}

bool uid_prefix_is_valid(const char *text, size_t len)
{
    return parse(NULL, text, len, true, NULL) == SKEP_OK;
}

/* Reads "[first:end]"; pos is at the bracket. */
static skep_status read_range(struct reader *r, struct uid_pattern *out, struct skep_error *err)
{
    const size_t open = r->pos;
    int64_t first, end;

    r->pos++;
    size_t colon = part_end(r, ":]");
    r->pos = colon;
    size_t close = part_end(r, "]");
    if (close == r->len || r->text[close] != ']')
        return bad_part(r, "pattern", open, close, "has no ], expected [first:end]", err);
    if (r->text[colon] != ':')
        return bad_part(r, "pattern", open, close + 1, "has no colon, expected [first:end]", err);
    const char *why = read_number(r, open + 1, colon, &first);
    if (why != NULL)
        return bad_part(r, "pattern", open + 1, colon, why, err);
    why = read_number(r, colon + 1, close, &end);
    if (why != NULL)
        return bad_part(r, "pattern", colon + 1, close, why, err);
    if (first >= end)
        return bad_part(r, "pattern", open, close + 1,
                        "is an empty range, expected the first below the end", err);
    out->range[out->dims].first = first;
    out->range[out->dims].end = end;
    r->pos = close + 1;
    if (r->pos < r->len && r->text[r->pos] != '.')
        return bad_part(r, "pattern", r->pos, r->len, "follows a range, expected a dot", err);
    return SKEP_OK;
}

static skep_status read_fixed(struct reader *r, struct uid_pattern *out, struct skep_error *err)
{
    size_t end = part_end(r, "");
    int64_t value = 0;
    const char *why = read_number(r, r->pos, end, &value);

    /* The end of the range is one more than the coordinate and must fit as well. */
    if (why == NULL && value == INT64_MAX)
        why = "is out of range, expected at most 9223372036854775806 in a pattern";
    if (why != NULL)
        return bad_part(r, "pattern", r->pos, end, why, err);
    out->range[out->dims].first = value;
    out->range[out->dims].end = value + 1;
    r->pos = end;
    return SKEP_OK;
}

/* No UID of a pattern is longer than the pattern: "[first:end]" has more characters than any
 * number below its end. So the limit on the text is the limit on them. */
skep_status uid_pattern_parse(struct uid_pattern *out, const char *text, struct skep_error *err)
{
    skep_status rc = error_if_null(text, "pattern", err);

    if (rc != SKEP_OK)
        return rc;
    struct reader r = {.text = text, .len = strlen(text)};
    struct uid_pattern pattern = {0};
    rc = read_name(&r, "pattern", err);
    if (rc != SKEP_OK)
        return rc;
    memcpy(pattern.name, text, r.pos);
    while (r.pos < r.len) {
        r.pos++; /* the dot */
        if (pattern.dims == UID_MAX_COORDS)
            return bad_whole(&r, "pattern", "too many coordinates", err);
        bool range = r.pos < r.len && r.text[r.pos] == '[';
        rc = range ? read_range(&r, &pattern, err) : read_fixed(&r, &pattern, err);
        if (rc != SKEP_OK)
            return rc;
        pattern.dims++;
    }
    if (pattern.dims == 0)
        return bad_whole(&r, "pattern", "no coordinate, expected such as ffn.[0:4].[0:4]", err);
    *out = pattern;
    return SKEP_OK;
}

uint64_t uid_pattern_count(const struct uid_pattern *pattern)
{
    uint64_t count = pattern->dims > 0 ? 1 : 0;

    for (size_t i = 0; i < pattern->dims; i++)
        if (__builtin_mul_overflow(
                count, (uint64_t)(pattern->range[i].end - pattern->range[i].first), &count))
            return UINT64_MAX;
    return count;
}

void uid_pattern_at(const struct uid_pattern *pattern, uint64_t i, char out[static UID_BYTES])
{
    int64_t coords[UID_MAX_COORDS] = {0};
    size_t used = (size_t)snprintf(out, UID_BYTES, "%s", pattern->name);

    for (size_t d = pattern->dims; d-- > 0;) {
        uint64_t width = (uint64_t)(pattern->range[d].end - pattern->range[d].first);
        coords[d] = pattern->range[d].first + (int64_t)(i % width);
        i /= width;
    }
    for (size_t d = 0; d < pattern->dims && used < UID_BYTES; d++)
        used += (size_t)snprintf(out + used, UID_BYTES - used, ".%" PRId64, coords[d]);
}

bool uid_pattern_has(const struct uid_pattern *pattern, const struct uid *uid)
{
    if (uid->coord_count != pattern->dims || strlen(pattern->name) != uid->name_len ||
        memcmp(pattern->name, uid->text, uid->name_len) != 0)
        return false;
    for (size_t i = 0; i < pattern->dims; i++)
        if (uid->coords[i] < pattern->range[i].first || uid->coords[i] >= pattern->range[i].end)
            return false;
    return true;
}
