/* Choosing random UIDs of a pattern that nobody has yet. */
#ifndef SKEP_NODE_LIFECYCLE_PATTERN_H
#define SKEP_NODE_LIFECYCLE_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/record/uid.h"

/* Asks which of `count` UIDs are taken: writes taken[i]. Another status than SKEP_OK ends it. */
typedef skep_status (*pattern_taken_fn)(void *arg, const char *const *uids, size_t count,
                                        bool *taken, struct skep_error *err);

/*
 * @param uids    room for `wanted` UIDs; all different, none taken.
 * @param chosen  how many: fewer than wanted if no more are free.
 */
SKEP_MUST_CHECK skep_status pattern_choose(const struct uid_pattern *pattern, size_t wanted,
                                           pattern_taken_fn taken, void *arg,
                                           char (*uids)[UID_BYTES], size_t *chosen,
                                           struct skep_error *err);
/* SKEP_RESOURCE_EXHAUSTED: so many UIDs were free, and more are wanted. */
skep_status pattern_refuse(const struct uid_pattern *pattern, size_t free_count, size_t wanted,
                           struct skep_error *err);

#endif
