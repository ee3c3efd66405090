/* What every unit test includes: cmocka in its required order. */
#ifndef SKEP_TESTS_UNIT_H
#define SKEP_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

/* The whole program under another locale, as users' programs may be; skipped where there is none of
 * that name. What the system says of its errors stays English: tests look for that. */
static const char *test_locale __attribute__((unused));

__attribute__((constructor)) static void use_test_locale(void)
{
    const char *name = getenv("SKEP_TEST_LOCALE");

    if (name != NULL && setlocale(LC_ALL, name) == NULL) {
        printf("skipped: locale %s is not here (LOCPATH is %s)\n", name,
               getenv("LOCPATH") != NULL ? getenv("LOCPATH") : "not set");
        exit(77);
    }
    setlocale(LC_MESSAGES, "C");
    test_locale = name;
    unsetenv("SKEP_TEST_LOCALE"); /* programs take such variables for options */
}

#endif
