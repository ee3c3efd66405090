/* See service_notify.h. */
#include "cli/service_notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/text.h"

enum { SEND_TIMEOUT_S = 2 };

static int notify_fd = -1; /* written before any signal is caught */
static struct sockaddr_un manager;
static socklen_t manager_len;
static atomic_flag is_stopping = ATOMIC_FLAG_INIT;
static uint64_t watchdog_us; /* 0: not asked for */

/* Async-signal-safe. */
static bool send_state(const char *state, int flags)
{
    if (notify_fd < 0)
        return true;
    return sendto(notify_fd, state, strlen(state), flags | MSG_NOSIGNAL,
                  (const struct sockaddr *)&manager, manager_len) >= 0;
}

static bool parse_socket(const char *name)
{
    size_t len = strlen(name);
    char quoted[TEXT_QUOTE_BYTES];
    const char *why = NULL;

    if (name[0] != '/' && name[0] != '@')
        why = "expected an absolute path, or @ and the name of an abstract socket";
    else if (len < 2 || len >= sizeof(manager.sun_path))
        why = "is too short or too long for the name of a socket";
    if (why != NULL) {
        log_warn("NOTIFY_SOCKET: %s: %s; the service manager learns nothing of this process",
                 text_quote(name, len, quoted), why);
        return false;
    }
    manager = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(manager.sun_path, name, len);
    bool is_abstract = name[0] == '@';
    if (is_abstract)
        manager.sun_path[0] = '\0'; /* the name is all of the bytes behind it */
    manager_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + !is_abstract);
    return true;
}

/* How often the manager wants to hear from us, if it is this process that it asks. */
static uint64_t read_watchdog(void)
{
    const char *text = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    char quoted[TEXT_QUOTE_BYTES];
    char *end;

    if (text == NULL || (pid != NULL && strtoll(pid, NULL, 10) != (long long)getpid()))
        return 0;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (text[0] >= '1' && text[0] <= '9' && *end == '\0' && errno == 0)
        return number;
    log_warn("WATCHDOG_USEC: %s: expected microseconds; no WATCHDOG=1 is sent",
             text_quote(text, strlen(text), quoted));
    return 0;
}

void service_notify_begin(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    const struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};

    if (name == NULL || name[0] == '\0' || !parse_socket(name))
        return;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        log_warn("NOTIFY_SOCKET: no socket: %s", strerror(errno));
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
    notify_fd = fd_move_high(fd);
    watchdog_us = read_watchdog();
}

void service_notify_ready(void)
{
    char quoted[TEXT_QUOTE_BYTES];
    const char *name = getenv("NOTIFY_SOCKET");

    if (!send_state("READY=1", 0))
        log_warn("NOTIFY_SOCKET: %s: READY=1 not sent: %s",
                 text_quote(name != NULL ? name : "", name != NULL ? strlen(name) : 0, quoted),
                 strerror(errno));
}

void service_notify_stopping(void)
{
    if (!atomic_flag_test_and_set(&is_stopping))
        (void)send_state("STOPPING=1", MSG_DONTWAIT);
}

static uint64_t left_ms(uint64_t deadline_us)
{
    return deadline_us == CLOCK_NEVER ? UINT32_MAX : clock_left_ms(deadline_us);
}

void service_wait(const struct service_run *run)
{
    bool reports = run->report != NULL && run->report_ms != UINT32_MAX;
    uint64_t report_at = reports ? clock_deadline_us(run->report_ms) : CLOCK_NEVER;
    /* Twice as often as asked for, as sd_watchdog_enabled(3) advises. */
    uint64_t alive_at = watchdog_us > 0 ? clock_mono_us() : CLOCK_NEVER;

    for (;;) {
        if (alive_at <= clock_mono_us()) {
            run->touch(run->arg);
            (void)send_state("WATCHDOG=1", MSG_DONTWAIT);
            alive_at = clock_mono_us() + watchdog_us / 2;
        }
        uint64_t wait_ms = left_ms(alive_at < report_at ? alive_at : report_at);
        if (run->wait(run->arg, wait_ms < UINT32_MAX ? (uint32_t)wait_ms : UINT32_MAX))
            break;
        if (report_at <= clock_mono_us()) {
            run->report(run->arg);
            report_at += (uint64_t)run->report_ms * 1000;
            if (report_at < clock_mono_us()) /* it had been stopped: no reports in a row */
                report_at = clock_deadline_us(run->report_ms);
        }
    }
    service_notify_stopping();
}
