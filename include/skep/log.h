/**
 * @file skep/log.h
 * Where Skep's log lines go. By default: standard error, level info and above, one line each.
 */
#ifndef SKEP_LOG_H
#define SKEP_LOG_H

#include <skep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum skep_log_level {
    SKEP_LOG_ERROR = 0,
    SKEP_LOG_WARNING = 1,
    SKEP_LOG_INFO = 2,
    SKEP_LOG_DEBUG = 3,
};

/**
 * Receives one log line.
 * @param level  how grave it is.
 * @param line   borrowed; the text without a line end.
 * @param arg    what was given to skep_log_set().
 * Runs on whichever thread logs, one at a time, with the log's lock held: it must not log and must
 * not call Skep.
 */
typedef void (*skep_log_fn)(enum skep_log_level level, const char *line, void *arg);

/**
 * Sets the minimum severity that is shown and, if `fn` is not NULL, who gets the lines instead of
 * standard error. Thread: any; takes effect at once.
 */
SKEP_API void skep_log_set(enum skep_log_level level, skep_log_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
