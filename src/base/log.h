/* Log lines: level, thread and text. Each macro costs one comparison when its level is off. */
#ifndef SKEP_BASE_LOG_H
#define SKEP_BASE_LOG_H

#include <stdbool.h>
#include <skep/log.h>

/* The form of lines on standard error. */
enum log_format {
    LOG_FORMAT_TEXT, /* date, time and zone, severity, thread, text */
    LOG_FORMAT_JSON, /* an object: time, level, thread, message; whole UTF-8 whatever was logged */
};
/* Thread: any; takes effect at once. Lines that go to a function of skep_log_set() have no form. */
void log_set_format(enum log_format format);

bool log_enabled(enum skep_log_level level);
void log_write(enum skep_log_level level, const char *format, ...) SKEP_PRINTF(2, 3);

#define LOG_AT(level, ...)                                                                         \
    do {                                                                                           \
        if (log_enabled(level))                                                                    \
            log_write(level, __VA_ARGS__);                                                         \
    } while (0)
#define log_error(...) LOG_AT(SKEP_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) LOG_AT(SKEP_LOG_WARNING, __VA_ARGS__)
#define log_info(...) LOG_AT(SKEP_LOG_INFO, __VA_ARGS__)
#define log_debug(...) LOG_AT(SKEP_LOG_DEBUG, __VA_ARGS__)

/*
 * For messages that a peer could provoke without end: true at most once every `period_ms` for this
 * limit; `*suppressed` is then how many were left out since. A limit is a zeroed static.
 */
struct log_limit {
    _Atomic unsigned long long next_us;
    _Atomic unsigned long suppressed;
};
bool log_limit_passes(struct log_limit *limit, unsigned period_ms, unsigned long *suppressed);

enum { LOG_LEFT_OUT_BYTES = 128 };
/* What a line says of those left out before it; "" of none. A limit serves events whose reasons
 * differ, so the text does not claim that they were alike.
 * @param things  what they were about, plural. @return out. */
const char *log_left_out(unsigned long count, const char *things,
                         char out[static LOG_LEFT_OUT_BYTES]);

#endif
