/*
 * Whom libopendht calls. Skep replaces five functions of OpenDHT (see opendht_ext.cpp and
 * opendht_expiry.cpp) by defining them again; the dynamic linker prefers the first definition it
 * meets, which is ours unless the process has loaded OpenDHT on its own before. This tells what it
 * chose.
 *
 * Thread: any.
 */
#ifndef SKEP_DHT_OPENDHT_OPENDHT_BINDING_H
#define SKEP_DHT_OPENDHT_OPENDHT_BINDING_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether calls of `symbol` (as the linker spells it) inside libopendht go to `function`. False
 * also if that cannot be found out. */
bool opendht_binding_is(const char *symbol, const void *function);

#ifdef __cplusplus
}
#endif

#endif
