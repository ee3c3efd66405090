/*
 * File descriptors. OpenDHT waits in select(2), so descriptors below FD_LOW_LIMIT are left to it
 * and every descriptor of ours that stays open is moved above (docs/decisions/dependencies.md).
 */
#ifndef SKEP_BASE_FD_H
#define SKEP_BASE_FD_H

#include <skep/status.h>

enum { FD_LOW_LIMIT = 1024 }; /* FD_SETSIZE */

/*
 * Moves fd to a free number at or above FD_LOW_LIMIT, close-on-exec, and closes the old one. If
 * that is impossible (limit on open files too low) the descriptor stays where it is: never an
 * error. Returns the descriptor to use.
 */
int fd_move_high(int fd);

/* Raises the soft limit on open files to the hard one. Returns the soft limit then in force. */
unsigned long fd_raise_limit(void);

/*
 * Checks that OpenDHT could open `needed` descriptors below FD_LOW_LIMIT right now.
 * @return SKEP_RESOURCE_EXHAUSTED, with the number found, if not.
 */
SKEP_MUST_CHECK skep_status fd_check_low_free(int needed, struct skep_error *err);

#endif
