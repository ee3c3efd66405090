/* UTF-8 and quoting. */
#include "base/text.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

size_t text_utf8_length(const char *text, size_t len)
{
    const uint8_t *p = (const uint8_t *)text;

    if (len == 0)
        return 0;
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > len)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    /* Overlong, surrogate and too large numbers all show in the second byte. */
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

bool text_is_utf8(const char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = text_utf8_length(text + i, len - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

/* U+200E, U+200F, U+2028 to U+202E, U+2066 to U+206F; of three bytes. */
static bool is_direction_or_separator(const uint8_t p[static 3])
{
    return p[0] == 0xe2 &&
           ((p[1] == 0x80 && (p[2] == 0x8e || p[2] == 0x8f || (p[2] >= 0xa8 && p[2] <= 0xae))) ||
            (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xaf));
}

bool text_is_control(const char *character, size_t n)
{
    const uint8_t *p = (const uint8_t *)character;

    switch (n) {
    case 1:
        return p[0] < 0x20 || p[0] == 0x7f;
    case 2:
        return (p[0] == 0xc2 && p[1] < 0xa0) || (p[0] == 0xd8 && p[1] == 0x9c); /* C1; U+061C */
    case 3:
        return is_direction_or_separator(p);
    default:
        return false;
    }
}

void text_tame(char *text)
{
    size_t left = strlen(text);

    while (left > 0) {
        size_t n = text_utf8_length(text, left);
        bool bad = n == 0 || text_is_control(text, n);
        if (n == 0)
            n = 1;
        if (bad)
            memset(text, '?', n);
        text += n;
        left -= n;
    }
}

const char *text_quote(const char *text, size_t len, char out[static TEXT_QUOTE_BYTES])
{
    static const char hex[] = "0123456789abcdef";
    const size_t room = TEXT_QUOTE_BYTES - sizeof("...\"");
    size_t used = 0;
    size_t i = 0;

    out[used++] = '"';
    while (i < len) {
        size_t n = text_utf8_length(text + i, len - i);
        bool plain = n > 0 && !text_is_control(text + i, n) && text[i] != '"' && text[i] != '\\';
        size_t taken = n > 0 && plain ? n : 1;
        if (used + (plain ? taken : 4) > room)
            break;
        if (plain) {
            memcpy(out + used, text + i, taken);
            used += taken;
        } else {
            uint8_t byte = (uint8_t)text[i];
            memcpy(out + used, (char[4]){'\\', 'x', hex[byte >> 4], hex[byte & 15]}, 4);
            used += 4;
        }
        i += taken;
    }
    if (i < len) {
        memcpy(out + used, "...", 3);
        used += 3;
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}

const char *text_size(uint64_t bytes, bool up, char out[static TEXT_SIZE_BYTES])
{
    static const struct {
        unsigned shift;
        bool inexact; /* also used from ten of them on */
        const char *name;
    } units[] = {{30, false, "GiB"}, {20, true, "MiB"}, {10, true, "KiB"}};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        uint64_t whole = bytes >> units[i].shift;
        bool is_exact = whole << units[i].shift == bytes;

        if (is_exact ? whole == 0 : !units[i].inexact || whole < 10)
            continue;
        snprintf(out, TEXT_SIZE_BYTES, "%" PRIu64 " %s", whole + (up && !is_exact ? 1 : 0),
                 units[i].name);
        return out;
    }
    snprintf(out, TEXT_SIZE_BYTES, "%" PRIu64 " byte%s", bytes, text_plural(bytes));
    return out;
}

struct text_brackets text_count_brackets(const char *json, size_t len)
{
    struct text_brackets count = {0};
    bool in_string = false;
    size_t depth = 0;

    for (size_t i = 0; i < len; i++) {
        char c = json[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            count.opened++;
            if (++depth > count.depth)
                count.depth = depth;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        }
    }
    return count;
}
