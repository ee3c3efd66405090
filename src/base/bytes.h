/* A growable buffer with a limit, and hex. Zeroed memory is an empty buffer. */
#ifndef SKEP_BASE_BYTES_H
#define SKEP_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bytes {
    uint8_t *data; /* owned: bytes_free() */
    size_t len;
    size_t cap;
};

/* Makes room for `more` bytes behind len. False if memory is short; the buffer is unchanged. */
bool bytes_reserve(struct bytes *b, size_t more);

/* Appends; false if memory is short, the buffer is unchanged then. */
bool bytes_append(struct bytes *b, const void *data, size_t len);

/* Drops n bytes (n <= len) from the front. */
void bytes_consume(struct bytes *b, size_t n);

/* Empties it and gives the memory back. NULL and zeroed are allowed. */
void bytes_free(struct bytes *b);

/* Lower-case hex with NUL; `out` has room for 2 * len + 1 characters. */
void hex_encode(char *out, const uint8_t *data, size_t len);

/* Exactly 2 * len hex digits and the end of the text; false otherwise (out may be written). */
bool hex_decode(uint8_t *out, size_t len, const char *text);

/* Little-endian numbers at any alignment. */
static inline uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t load_u64(const uint8_t *p)
{
    return (uint64_t)load_u32(p) | (uint64_t)load_u32(p + 4) << 32;
}
static inline void store_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}
static inline void store_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}
static inline void store_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

#endif
