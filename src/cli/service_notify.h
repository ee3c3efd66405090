/*
 * What a service manager learns of a long-running command, by the protocol of sd_notify(3):
 * datagrams to the socket that NOTIFY_SOCKET names, READY=1 once it serves, STOPPING=1 when it
 * begins to stop, and WATCHDOG=1 where the manager asks for that (WATCHDOG_USEC). Without
 * NOTIFY_SOCKET all of this does nothing. One process, main thread, except as noted.
 */
#ifndef SKEP_CLI_SERVICE_NOTIFY_H
#define SKEP_CLI_SERVICE_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

/* Reads the environment and opens the socket. What is wrong with it is logged: the command runs all
 * the same. Called before signals are caught. */
void service_notify_begin(void);
/* READY=1. */
void service_notify_ready(void);
/* STOPPING=1, once. Async-signal-safe. */
void service_notify_stopping(void);

/* What a long-running command runs until its end. */
struct service_run {
    bool (*wait)(void *arg, uint32_t timeout_ms); /* true: it has ended. UINT32_MAX: for ever */
    /* Returns once its threads have answered: a WATCHDOG=1 behind it is true. It hangs if they do,
     * and the manager, which gets none then, starts the service anew. */
    void (*touch)(void *arg);
    void (*report)(void *arg); /* every report_ms; may be NULL */
    uint32_t report_ms;        /* UINT32_MAX: never */
    void *arg;
};
/* Waits for the end, with reports and WATCHDOG=1 on the way; then STOPPING=1 has been sent. */
void service_wait(const struct service_run *run);

#endif
