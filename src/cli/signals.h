/*
 * SIGINT, SIGTERM and SIGHUP: the first asks the program to stop in order, the second ends it at
 * once, unless it is SIGHUP, which a closing terminal sends twice. SIGHUP stays ignored where the
 * program was started so (nohup).
 * SIGPIPE is ignored: a closed socket or pipe is an error value. Process-wide; main thread.
 */
#ifndef SKEP_CLI_SIGNALS_H
#define SKEP_CLI_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Starts catching. @param stop  called once, inside the signal handler of the first signal: only
 * async-signal-safe work is allowed there. NULL: use signals_wait() alone.
 * @param arg  borrowed until signals_end().
 */
void signals_begin(void (*stop)(void *arg), void *arg);
/* Waits until a signal has come or the deadline (clock_mono_us() units; CLOCK_NEVER). Returns
 * whether one has. */
bool signals_wait(uint64_t deadline_us);
/* `stop` is not called any more; a further signal still ends the program at once. */
void signals_end(void);

#endif
