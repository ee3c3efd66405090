/* Printable Latin-1 characters stand for themselves; the other 68 bytes take U+0100 and up, in
 * order. */
#include "model/tokenizer/byte_alphabet.h"

enum { FIRST_MOVED = 0x100 };

static bool stands_for_itself(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

/* Moved bytes below `byte`: 0x00..0x20 come first, then 0x7f..0xa0, then 0xad. */
static unsigned moved_before(unsigned byte)
{
    if (byte <= 0x20)
        return byte;
    return byte <= 0xa0 ? 0x21 + (byte - 0x7f) : 0x43;
}

static bool byte_of(uint32_t character, uint8_t *out)
{
    uint32_t moved = character - FIRST_MOVED;

    if (character < FIRST_MOVED) {
        *out = (uint8_t)character;
        return stands_for_itself(character);
    }
    if (moved > 0x43)
        return false;
    *out = (uint8_t)(moved <= 0x20 ? moved : moved < 0x43 ? moved - 0x21 + 0x7f : 0xad);
    return true;
}

size_t byte_alphabet_encode(uint8_t byte, char out[static 2])
{
    unsigned character = stands_for_itself(byte) ? byte : FIRST_MOVED + moved_before(byte);

    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    out[0] = (char)(0xc0 | character >> 6);
    out[1] = (char)(0x80 | (character & 0x3f));
    return 2;
}

bool byte_alphabet_decode(const char *text, size_t len, struct bytes *out)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t before = out->len;
    size_t i = 0;

    if (!bytes_reserve(out, len))
        return false;
    while (i < len) {
        bool two = p[i] >= 0xc2 && p[i] <= 0xdf && i + 1 < len && (p[i + 1] & 0xc0) == 0x80;
        uint32_t character = two ? (uint32_t)(p[i] & 0x1f) << 6 | (p[i + 1] & 0x3f) : p[i];
        uint8_t byte;
        if ((!two && p[i] >= 0x80) || !byte_of(character, &byte)) {
            out->len = before;
            return bytes_append(out, text, len);
        }
        out->data[out->len++] = byte;
        i += two ? 2 : 1;
    }
    return true;
}
