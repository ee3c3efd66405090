/* What every unit test includes: cmocka in its required order. */
#ifndef SKEP_TESTS_UNIT_H
#define SKEP_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#endif
