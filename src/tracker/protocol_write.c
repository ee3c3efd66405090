/*
 * Messages as Python's json.dumps() writes them: a space after commas and colons, everything
 * outside printable ASCII as lower-case \uXXXX, reals as the shortest text that reads back equal.
 */
#include "tracker/protocol.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/text.h"
#include "tracker/protocol_numbers.h"

bool tracker_append(struct bytes *out, const char *json)
{
    return bytes_append(out, json, strlen(json));
}

bool tracker_append_number(struct bytes *out, int64_t number)
{
    char text[24];
    int len = snprintf(text, sizeof(text), "%" PRId64, number);

    return bytes_append(out, text, (size_t)len);
}

/* ---- strings ---- */

static bool append_unit(struct bytes *out, unsigned unit)
{
    char text[8];
    int len = snprintf(text, sizeof(text), "\\u%04x", unit);

    return bytes_append(out, text, (size_t)len);
}

static bool append_code_point(struct bytes *out, uint32_t c)
{
    if (c < 0x10000)
        return append_unit(out, (unsigned)c);
    c -= 0x10000;
    return append_unit(out, 0xd800 + (unsigned)(c >> 10)) &&
           append_unit(out, 0xdc00 + (unsigned)(c & 0x3ff));
}

static uint32_t decode_utf8(const uint8_t *p, size_t n)
{
    static const uint8_t first_bits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
    uint32_t c = p[0] & first_bits[n];

    for (size_t i = 1; i < n; i++)
        c = c << 6 | (p[i] & 0x3fu);
    return c;
}

static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

/* One character that is not plain. @param used  gets its length. */
static bool append_special(struct bytes *out, const char *text, size_t len, size_t *used)
{
    static const char named[] = "\"\\\n\r\t\f\b";
    static const char letters[] = "\"\\nrtfb";
    const char *found = text[0] != '\0' ? strchr(named, text[0]) : NULL;

    *used = 1;
    if (found != NULL)
        return bytes_append(out, (char[2]){'\\', letters[found - named]}, 2);
    *used = text_utf8_length(text, len);
    if (*used == 0) { /* our own callers' text only; strangers' has been checked */
        *used = 1;
        return append_unit(out, 0xfffd);
    }
    return append_code_point(out, decode_utf8((const uint8_t *)text, *used));
}

bool tracker_append_text(struct bytes *out, struct tracker_text text)
{
    size_t start = out->len;

    if (text.data == NULL)
        return tracker_append(out, "null");
    bool ok = bytes_append(out, "\"", 1);
    for (size_t i = 0; ok && i < text.len;) {
        size_t run = 0;
        while (i + run < text.len && is_plain(text.data[i + run]))
            run++;
        ok = bytes_append(out, text.data + i, run);
        i += run;
        if (ok && i < text.len) {
            size_t used;
            ok = append_special(out, text.data + i, text.len - i, &used);
            i += used;
        }
    }
    ok = ok && bytes_append(out, "\"", 1);
    if (!ok)
        out->len = start;
    return ok;
}

size_t tracker_text_written(struct tracker_text text)
{
    enum { UNIT = 6, PAIR = 12, SHORT = 2 }; /* \\u0000; two of them; \\n */
    size_t total = 2;

    if (text.data == NULL)
        return 4;
    for (size_t i = 0; i < text.len;) {
        size_t n = is_plain(text.data[i]) ? 1 : text_utf8_length(text.data + i, text.len - i);
        if (is_plain(text.data[i]))
            total++;
        else if (text.data[i] != '\0' && strchr("\"\\\n\r\t\f\b", text.data[i]) != NULL)
            total += SHORT;
        else
            total += n == 4 ? PAIR : UNIT;
        i += n > 0 ? n : 1;
    }
    return total;
}

/* ---- numbers ---- */

/* The shortest digits that read back as `value`, and the exponent of the first. */
static void shortest_digits(double value, char digits[static 24], int *exponent)
{
    char text[40];

    for (int precision = 0; precision < 17; precision++) {
        number_print(text, sizeof(text), "%.*e", precision, value);
        if (number_parse(text, NULL) == value)
            break;
    }
    char *e = strchr(text, 'e');
    size_t n = 0;
    for (const char *p = text; p < e && n < 23; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    digits[n] = '\0';
    *exponent = (int)strtol(e + 1, NULL, 10);
}

/* As Python's repr(): plain from 1e-4 up to 1e16, scientific beyond. */
static bool append_real(struct bytes *out, double value)
{
    char digits[24];
    char text[64];
    int exponent;
    int len;

    shortest_digits(fabs(value), digits, &exponent);
    int count = (int)strlen(digits);
    const char *sign = signbit(value) ? "-" : "";
    if (exponent < -4 || exponent >= 16)
        len = snprintf(text, sizeof(text), "%s%c%s%se%c%02d", sign, digits[0], count > 1 ? "." : "",
                       digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    else if (exponent < 0)
        len = snprintf(text, sizeof(text), "%s0.%.*s%s", sign, -exponent - 1, "0000", digits);
    else if (count <= exponent + 1)
        len = snprintf(text, sizeof(text), "%s%s%.*s.0", sign, digits, exponent + 1 - count,
                       "0000000000000000");
    else
        len = snprintf(text, sizeof(text), "%s%.*s.%s", sign, exponent + 1, digits,
                       digits + exponent + 1);
    return bytes_append(out, text, (size_t)len);
}

/* ---- values ---- */

static bool append_any(struct bytes *out, const json_t *value, bool is_info);

static bool append_array(struct bytes *out, const json_t *array, bool is_info)
{
    bool ok = tracker_append(out, "[");

    for (size_t i = 0; ok && i < json_array_size(array); i++)
        ok = (i == 0 || tracker_append(out, ", ")) &&
             append_any(out, json_array_get(array, i), is_info);
    return ok && tracker_append(out, "]");
}

static bool append_object(struct bytes *out, const json_t *object, bool is_info)
{
    bool ok = tracker_append(out, "{");
    json_t *walked = (json_t *)(uintptr_t)object; /* walking changes nothing */
    bool first = true;

    for (void *at = json_object_iter(walked); ok && at != NULL;
         at = json_object_iter_next(walked, at)) {
        ok = (first || tracker_append(out, ", ")) &&
             tracker_append_text(out, tracker_text(json_object_iter_key(at))) &&
             tracker_append(out, ": ") && append_any(out, json_object_iter_value(at), is_info);
        first = false;
    }
    return ok && tracker_append(out, "}");
}

/* As deep as the value is: no deeper than TRACKER_MAX_DEPTH for what strangers sent. */
static bool append_any(struct bytes *out, const json_t *value, bool is_info)
{
    struct tracker_text number;

    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return append_object(out, value, is_info);
    case JSON_ARRAY:
        return append_array(out, value, is_info);
    case JSON_STRING:
        if (is_info && tracker_number(value, &number))
            return bytes_append(out, number.data, number.len);
        return tracker_append_text(out,
                                   is_info ? tracker_marked_text(value) : tracker_json_text(value));
    case JSON_INTEGER:
        return tracker_append_number(out, json_integer_value(value));
    case JSON_REAL:
        return append_real(out, json_real_value(value));
    case JSON_TRUE:
        return tracker_append(out, "true");
    case JSON_FALSE:
        return tracker_append(out, "false");
    case JSON_NULL:
        break;
    }
    return tracker_append(out, "null");
}

static bool append_whole(struct bytes *out, const json_t *value, bool is_info)
{
    size_t start = out->len;
    bool ok = append_any(out, value, is_info);

    if (!ok)
        out->len = start;
    return ok;
}

bool tracker_append_value(struct bytes *out, const json_t *value)
{
    return append_whole(out, value, false);
}

bool tracker_append_info(struct bytes *out, const json_t *value)
{
    return append_whole(out, value, true);
}

/* ---- messages ---- */

bool tracker_write_code(struct bytes *out, enum tracker_code code)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append_number(out, code);

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_resource(struct bytes *out, struct tracker_text address, uint16_t port,
                            struct tracker_text match_key)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[0, [") &&
              tracker_append_text(out, address) && tracker_append(out, ", ") &&
              tracker_append_number(out, port) && tracker_append(out, ", ") &&
              tracker_append_text(out, match_key) && tracker_append(out, "]]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_refusal(struct bytes *out, const char *sentence)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[-1, ") &&
              tracker_append_text(out, tracker_text(sentence)) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_request(struct bytes *out, struct tracker_text key, struct tracker_text user,
                           int64_t priority)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[4, ") &&
              tracker_append_text(out, key) && tracker_append(out, ", ") &&
              tracker_append_text(out, user) && tracker_append(out, ", ") &&
              tracker_append_number(out, priority) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_put(struct bytes *out, struct tracker_text key, uint16_t port,
                       struct tracker_text match_key, struct tracker_text address)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[3, ") &&
              tracker_append_text(out, key) && tracker_append(out, ", [") &&
              tracker_append_number(out, port) && tracker_append(out, ", ") &&
              tracker_append_text(out, match_key) && tracker_append(out, "], ") &&
              tracker_append_text(out, address) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_stop(struct bytes *out, struct tracker_text stop_key)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[2, ") &&
              tracker_append_text(out, stop_key) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_update_info(struct bytes *out, const json_t *info)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[5, ") &&
              tracker_append_value(out, info) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}

bool tracker_write_plain(struct bytes *out, enum tracker_code code)
{
    size_t start;
    bool ok = tracker_message_begin(out, &start) && tracker_append(out, "[") &&
              tracker_append_number(out, code) && tracker_append(out, "]");

    return tracker_message_finish(out, start, ok);
}
