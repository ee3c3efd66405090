/**
 * @file skep/version.h
 * Which Skep a program runs with, for those that load the library at run time.
 */
#ifndef SKEP_VERSION_H
#define SKEP_VERSION_H

#include <skep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The number of the binary interface: structures, functions and constants of these headers. A
 * program or a language binding made for one number must not use a library of another.
 */
#define SKEP_ABI 2

/** SKEP_ABI of the library that was loaded. Thread: any. */
SKEP_API unsigned skep_abi(void);

/** Its version, such as "0.1.0". A constant string. Thread: any. */
SKEP_API const char *skep_version(void);

#ifdef __cplusplus
}
#endif
#endif
