/*
 * Numbers and letters in files, protocols, options and messages: the same under every locale. A
 * program that uses the library may call setlocale(); then printf() writes "0,5" in German,
 * strtod() reads no "0.5", and tolower() knows other letters. So nothing that is read again goes
 * through those. Thread: any.
 */
#ifndef SKEP_BASE_NUMBER_H
#define SKEP_BASE_NUMBER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <skep/status.h>

/* snprintf() and vsnprintf() as in the C locale. */
int number_print(char *out, size_t cap, const char *format, ...) SKEP_PRINTF(3, 4);
int number_vprint(char *out, size_t cap, const char *format, va_list args);

/* strtod() as in the C locale. */
double number_parse(const char *text, char **end);

/* ASCII alone; other bytes are left as they are, and are no letters. */
static inline char ascii_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

static inline char ascii_upper(char c)
{
    return c >= 'a' && c <= 'z' ? (char)(c - ('a' - 'A')) : c;
}

static inline bool ascii_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static inline bool ascii_is_alnum(char c)
{
    char lower = ascii_lower(c);

    return ascii_is_digit(c) || (lower >= 'a' && lower <= 'z');
}

static inline bool ascii_is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Whether two texts are equal but for the case of their ASCII letters. */
bool ascii_same(const char *a, const char *b);
/* The same of their first n characters, or up to their ends. */
bool ascii_same_first(const char *a, const char *b, size_t n);

#endif
