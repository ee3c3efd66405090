/* Clocks. */
#include "base/clock.h"

#include <time.h>

uint64_t clock_mono_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

int64_t clock_wall_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

uint64_t clock_deadline_us(uint64_t timeout_ms)
{
    uint64_t now = clock_mono_us();

    return timeout_ms > (CLOCK_NEVER - now) / 1000 ? CLOCK_NEVER : now + timeout_ms * 1000;
}

uint64_t clock_left_ms(uint64_t deadline_us)
{
    uint64_t now = clock_mono_us();

    if (deadline_us <= now)
        return 0;
    uint64_t left = deadline_us - now;
    return left / 1000 + (left % 1000 != 0);
}
