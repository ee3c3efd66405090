/*
 * Loaded before the C library (LD_PRELOAD): the wall clock of a process is shifted by as many
 * seconds as CLOCK_SHIFT_S says. The monotonic clock stays.
 */
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static time_t shift(void)
{
    const char *text = getenv("CLOCK_SHIFT_S");

    return text != NULL ? (time_t)strtol(text, NULL, 10) : 0;
}

EXPORTED int clock_gettime(clockid_t clock, struct timespec *out)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, out);

    if (rc == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        out->tv_sec += shift();
    return rc;
}

EXPORTED time_t time(time_t *out)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (out != NULL)
        *out = now.tv_sec;
    return now.tv_sec;
}

EXPORTED int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
