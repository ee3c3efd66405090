/* Names of swarms. */
#ifndef SKEP_DHT_RECORD_SWARM_NAME_H
#define SKEP_DHT_RECORD_SWARM_NAME_H

#include <skep/status.h>

enum { SWARM_NAME_MAX = 127 }; /* what a hello has room for */

/* 1 to SWARM_NAME_MAX bytes of UTF-8 without control characters, which logs and terminals would
 * obey. @return SKEP_INVALID_ARGUMENT with a sentence that begins with "swarm". */
SKEP_MUST_CHECK skep_status swarm_name_check(const char *name, struct skep_error *err);

#endif
