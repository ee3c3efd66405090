/* Unicode's table 3-7 decides which bytes may follow which. */
#include "model/tokenizer/utf8_stream.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

/* Bytes of a character that begins so; 0 if none does. */
static size_t length_by_first(uint8_t first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

static bool may_follow(uint8_t first, size_t index, uint8_t byte)
{
    if (index == 1 && first == 0xe0)
        return byte >= 0xa0 && byte <= 0xbf;
    if (index == 1 && first == 0xed)
        return byte >= 0x80 && byte <= 0x9f;
    if (index == 1 && first == 0xf0)
        return byte >= 0x90 && byte <= 0xbf;
    if (index == 1 && first == 0xf4)
        return byte >= 0x80 && byte <= 0x8f;
    return byte >= 0x80 && byte <= 0xbf;
}

/* Takes one byte. It either joins the held part or ends it and begins anew. */
static bool push_byte(struct utf8_stream *s, uint8_t byte, struct bytes *out)
{
    if (s->held_len > 0 && !may_follow(s->held[0], s->held_len, byte)) {
        s->held_len = 0;
        if (!bytes_append(out, replacement, 3))
            return false;
    }
    if (s->held_len == 0 && length_by_first(byte) == 0)
        return bytes_append(out, replacement, 3);
    s->held[s->held_len++] = byte;
    if (s->held_len < length_by_first(s->held[0]))
        return true;
    size_t len = s->held_len;
    s->held_len = 0;
    return bytes_append(out, s->held, len);
}

bool utf8_stream_push(struct utf8_stream *stream, const void *bytes, size_t len, struct bytes *out)
{
    struct utf8_stream copy = *stream;
    const uint8_t *p = bytes;
    size_t before = out->len;

    for (size_t i = 0; i < len; i++)
        if (!push_byte(&copy, p[i], out)) {
            out->len = before;
            return false;
        }
    *stream = copy;
    return true;
}

bool utf8_stream_end(struct utf8_stream *stream, struct bytes *out)
{
    bool held = stream->held_len > 0;

    if (held && !bytes_append(out, replacement, 3))
        return false;
    stream->held_len = 0;
    return true;
}
