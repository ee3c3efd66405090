/* Threads over pthreads. */
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum { THREAD_NAME_BYTES = 16 }; /* the kernel's limit, with the NUL */

struct start {
    void (*run)(void *);
    void *arg;
    char name[THREAD_NAME_BYTES];
};

static _Thread_local char own_name[THREAD_NAME_BYTES] = "main";

static void *thread_main(void *opaque)
{
    struct start start = *(struct start *)opaque;

    mem_free(opaque);
    memcpy(own_name, start.name, sizeof(own_name));
    pthread_setname_np(pthread_self(), own_name);
    start.run(start.arg);
    return NULL;
}

skep_status thread_start(struct thread *t, const char *name, void (*run)(void *), void *arg,
                         struct skep_error *err)
{
    struct start *start = mem_alloc(sizeof(*start));
    sigset_t all;
    sigset_t before;

    if (start == NULL)
        return error_no_memory(err, name, sizeof(*start));
    start->run = run;
    start->arg = arg;
    snprintf(start->name, sizeof(start->name), "%s", name);

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&t->id, NULL, thread_main, start);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        mem_free(start);
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "thread %s: cannot start: %s", name,
                         strerror(rc));
    }
    t->started = true;
    return SKEP_OK;
}

void thread_join(struct thread *t)
{
    if (!t->started)
        return;
    pthread_join(t->id, NULL);
    t->started = false;
}

const char *thread_name(void)
{
    return own_name;
}

void cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_us)
{
    if (deadline_us == CLOCK_NEVER) {
        pthread_cond_wait(cond, lock);
        return true;
    }
    struct timespec until = {
        .tv_sec = (time_t)(deadline_us / 1000000u),
        .tv_nsec = (long)(deadline_us % 1000000u) * 1000,
    };
    return pthread_cond_timedwait(cond, lock, &until) != ETIMEDOUT;
}
