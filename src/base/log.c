/* Log lines to standard error, or to whom the user names. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"

enum { LINE_BYTES = 1024 };

static atomic_int threshold = SKEP_LOG_INFO;
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

static void write_stderr(enum skep_log_level level, const char *line)
{
    static const char *const names[] = {"ERROR", "WARN ", "INFO ", "DEBUG"};
    int64_t now_ms = clock_wall_ms();
    time_t seconds = (time_t)(now_ms / 1000);
    struct tm tm;
    char stamp[32];

    localtime_r(&seconds, &tm);
    strftime(stamp, sizeof(stamp), "%H:%M:%S", &tm);
    fprintf(stderr, "%s.%03d %s [%s] %s\n", stamp, (int)(now_ms % 1000), names[level],
            thread_name(), line);
}

void log_write(enum skep_log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
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

bool log_gate_open(struct log_gate *gate, unsigned period_ms, unsigned long *suppressed)
{
    unsigned long long now = clock_mono_us();
    unsigned long long next = atomic_load(&gate->next_us);

    if (now < next ||
        !atomic_compare_exchange_strong(&gate->next_us, &next, now + period_ms * 1000ull)) {
        atomic_fetch_add(&gate->suppressed, 1);
        return false;
    }
    *suppressed = atomic_exchange(&gate->suppressed, 0);
    return true;
}
