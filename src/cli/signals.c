/* See signals.h. */
#include "cli/signals.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/service_notify.h"

enum {
    EXIT_BY_SIGNAL = 128, /* shells add the signal's number */
    /* `timeout` signals its command and then the whole group: nobody means two by that. */
    SAME_US = 200 * 1000,
};

static sem_t came; /* posted by the first signal */
static atomic_int count;
static atomic_int first_number;
static atomic_ullong first_us; /* when the first one came */
static void (*_Atomic stop_fn)(void *arg);
static void *stop_arg; /* written before the handler is installed */

static void on_signal(int number)
{
    int saved = errno;

    /* A closing terminal is told twice, by the shell and by the kernel. */
    if (number == SIGHUP && atomic_load(&count) > 0)
        return;
    if (atomic_load(&count) > 0 && number == atomic_load(&first_number) &&
        clock_mono_us() < atomic_load(&first_us) + SAME_US)
        return;
    if (atomic_load(&count) == 0) {
        atomic_store(&first_number, number);
        atomic_store(&first_us, clock_mono_us());
    }
    if (atomic_fetch_add(&count, 1) > 0)
        _exit(EXIT_BY_SIGNAL + number);
    service_notify_stopping();
    void (*stop)(void *) = atomic_load(&stop_fn);
    if (stop != NULL)
        stop(stop_arg);
    sem_post(&came);
    errno = saved;
}

void signals_begin(void (*stop)(void *arg), void *arg)
{
    /* SA_RESTART: nobody here waits for a signal inside a system call but signals_wait(). */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct sigaction before;

    sem_init(&came, 0, 0);
    atomic_store(&count, 0);
    stop_arg = arg;
    atomic_store(&stop_fn, stop);
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    /* A closed terminal; nohup has it ignored, and that is to stay so. */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

bool signals_wait(uint64_t deadline_us)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_us / 1000000u),
                             .tv_nsec = (long)(deadline_us % 1000000u) * 1000};

    /* Both calls end with EINTR when the handler runs; the signal itself is counted, not the wake:
     * so the answer stays the same when asked again. */
    while (atomic_load(&count) == 0) {
        int rc = deadline_us == CLOCK_NEVER ? sem_wait(&came)
                                            : sem_clockwait(&came, CLOCK_MONOTONIC, &until);
        if (rc != 0 && errno == ETIMEDOUT)
            break;
    }
    return atomic_load(&count) > 0;
}

void signals_end(void)
{
    atomic_store(&stop_fn, NULL);
}
