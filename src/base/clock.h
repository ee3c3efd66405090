/* Time. Durations and deadlines are on the monotonic clock; the wall clock is for records only. */
#ifndef SKEP_BASE_CLOCK_H
#define SKEP_BASE_CLOCK_H

#include <stdint.h>

/* Microseconds of the monotonic clock (CLOCK_MONOTONIC). */
uint64_t clock_mono_us(void);

/* Milliseconds since 1970 of the wall clock. */
int64_t clock_wall_ms(void);

/* A deadline this many milliseconds from now, in clock_mono_us() units; never overflows. */
uint64_t clock_deadline_us(uint64_t timeout_ms);

/* Milliseconds from now to a deadline, rounded up; 0 if it has passed. */
uint64_t clock_left_ms(uint64_t deadline_us);

/* A deadline that never comes. */
#define CLOCK_NEVER UINT64_MAX

#endif
