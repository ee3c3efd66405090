/* See number.h. uselocale() changes the calling thread alone, and for no longer than a call. */
#include "base/number.h"

#include <locale.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* never freed; 0 if it could not be made */

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Returns what leave() takes. */
static locale_t enter(void)
{
    pthread_once(&once, make_plain);
    return plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
}

static void leave(locale_t before)
{
    if (before != (locale_t)0)
        uselocale(before);
}

int number_vprint(char *out, size_t cap, const char *format, va_list args)
{
    locale_t before = enter();
    int len = vsnprintf(out, cap, format, args);

    leave(before);
    return len;
}

int number_print(char *out, size_t cap, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int len = number_vprint(out, cap, format, args);
    va_end(args);
    return len;
}

double number_parse(const char *text, char **end)
{
    locale_t before = enter();
    double value = strtod(text, end);

    leave(before);
    return value;
}

bool ascii_same_first(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ascii_lower(a[i]) != ascii_lower(b[i]))
            return false;
        if (a[i] == '\0')
            break;
    }
    return true;
}

bool ascii_same(const char *a, const char *b)
{
    return ascii_same_first(a, b, SIZE_MAX);
}
