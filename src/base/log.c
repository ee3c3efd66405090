/* Log lines to standard error, or to whom the user names. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/number.h"
#include "base/text.h"
#include "base/thread.h"

enum {
    LINE_BYTES = 1024,
    STAMP_BYTES = 48,
    ESCAPED_BYTES = 6, /* the longest form of a byte in JSON */
};

static atomic_int threshold = SKEP_LOG_INFO;
static atomic_int format_of_lines = LOG_FORMAT_TEXT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards sink, sink_arg, line order */
static skep_log_fn sink;
static void *sink_arg;

void skep_log_set(enum skep_log_level level, skep_log_fn fn, void *arg)
{
    pthread_mutex_lock(&lock);
    atomic_store(&threshold, (int)level);
    sink = fn;
    sink_arg = arg;
    pthread_mutex_unlock(&lock);
}

bool log_enabled(enum skep_log_level level)
{
    return (int)level <= atomic_load_explicit(&threshold, memory_order_relaxed);
}

void log_set_format(enum log_format format)
{
    atomic_store(&format_of_lines, (int)format);
}

/* Local time with its offset, ISO 8601: "2026-03-01T09:30:00.125+01:00". */
static void format_now(char out[static STAMP_BYTES])
{
    int64_t now_ms = clock_wall_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm tm;
    char stamp[32];

    localtime_r(&seconds, &tm);
    strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &tm);
    int minutes = (int)(tm.tm_gmtoff / 60);
    int ahead = minutes < 0 ? -minutes : minutes;
    snprintf(out, STAMP_BYTES, "%s.%03d%c%02d:%02d", stamp, (int)(now_ms % 1000),
             minutes < 0 ? '-' : '+', ahead / 60, ahead % 60);
}

/* As a string of JSON. What is neither UTF-8 nor printable has been replaced: see log_write(). */
static void escape(const char *text, char *out, size_t cap)
{
    size_t used = 0;

    out[used++] = '"';
    for (; *text != '\0' && used + ESCAPED_BYTES + sizeof("\"") <= cap; text++) {
        if (*text == '"' || *text == '\\')
            out[used++] = '\\';
        out[used++] = *text;
    }
    out[used++] = '"';
    out[used] = '\0';
}

static void write_stderr(enum skep_log_level level, const char *line)
{
    static const char *const names[] = {"ERROR", "WARN ", "INFO ", "DEBUG"};
    static const char *const lower[] = {"error", "warning", "info", "debug"};
    char stamp[STAMP_BYTES], thread[64];
    char escaped[LINE_BYTES * 2 + 16];

    format_now(stamp);
    snprintf(thread, sizeof(thread), "%s", thread_name());
    text_tame(thread);
    if (atomic_load(&format_of_lines) == LOG_FORMAT_TEXT) {
        fprintf(stderr, "%s %s [%s] %s\n", stamp, names[level], thread, line);
        return;
    }
    escape(line, escaped, sizeof(escaped));
    char name[sizeof(thread) * 2 + 16];
    escape(thread, name, sizeof(name));
    fprintf(stderr, "{\"time\": \"%s\", \"level\": \"%s\", \"thread\": %s, \"message\": %s}\n",
            stamp, lower[level], name, escaped);
}

void log_write(enum skep_log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;

    va_start(args, format);
    number_vprint(line, sizeof(line), format, args);
    va_end(args);
    /* A peer's text may be quoted in a line: no control character reaches a terminal. */
    text_tame(line);
    pthread_mutex_lock(&lock);
    if (sink != NULL)
        sink(level, line, sink_arg);
    else
        write_stderr(level, line);
    pthread_mutex_unlock(&lock);
}

bool log_limit_passes(struct log_limit *limit, unsigned period_ms, unsigned long *suppressed)
{
    unsigned long long now = clock_mono_us();
    unsigned long long next = atomic_load(&limit->next_us);

    if (now < next ||
        !atomic_compare_exchange_strong(&limit->next_us, &next, now + period_ms * 1000ull)) {
        atomic_fetch_add(&limit->suppressed, 1);
        return false;
    }
    *suppressed = atomic_exchange(&limit->suppressed, 0);
    return true;
}

const char *log_left_out(unsigned long count, const char *things,
                         char out[static LOG_LEFT_OUT_BYTES])
{
    out[0] = '\0';
    if (count > 0)
        snprintf(out, LOG_LEFT_OUT_BYTES,
                 " (left out since the last such line: %lu about other %s, for any reason)", count,
                 things);
    return out;
}
