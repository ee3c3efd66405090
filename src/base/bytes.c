/* Growable buffers and hex. */
#include "base/bytes.h"

#include <string.h>

#include "base/alloc.h"

enum { SMALLEST_CAP = 256 };

bool bytes_reserve(struct bytes *b, size_t more)
{
    size_t need;

    if (!size_add(b->len, more, &need))
        return false;
    if (need <= b->cap)
        return true;
    size_t cap = b->cap < SMALLEST_CAP ? SMALLEST_CAP : b->cap;
    while (cap < need)
        cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    uint8_t *data = mem_realloc(b->data, cap);
    if (data == NULL)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

bool bytes_append(struct bytes *b, const void *data, size_t len)
{
    if (len == 0)
        return true;
    if (!bytes_reserve(b, len))
        return false;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return true;
}

void bytes_consume(struct bytes *b, size_t n)
{
    if (n < b->len)
        memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
}

void bytes_free(struct bytes *b)
{
    if (b == NULL)
        return;
    mem_free(b->data);
    *b = (struct bytes){0};
}

void hex_encode(char *out, const uint8_t *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < len; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * len] = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hex_decode(uint8_t *out, size_t len, const char *text)
{
    for (size_t i = 0; i < len; i++) {
        int high = hex_digit(text[2 * i]);
        int low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);
        if (low < 0)
            return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return text[2 * len] == '\0';
}
