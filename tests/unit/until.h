/* Waiting for what other threads or nodes bring about and nothing tells of: looking again and again
 * until it is so, with a deadline. Where there is an event, wait for that instead. */
#ifndef SKEP_TESTS_UNTIL_H
#define SKEP_TESTS_UNTIL_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"

enum { UNTIL_TURN_MS = 2 }; /* between two looks: leaves the core to those who are waited for */

/* Whether the condition comes to hold within the time; it is evaluated once more at the end. */
#define UNTIL(condition, patience_ms)                                                              \
    ({                                                                                             \
        uint64_t until_deadline = clock_deadline_us(patience_ms);                                  \
        bool until_held = false;                                                                   \
        while (!(until_held = (condition)) && clock_mono_us() < until_deadline)                    \
            poll(NULL, 0, UNTIL_TURN_MS);                                                          \
        until_held;                                                                                \
    })

#endif
