/*
 * Named threads and condition variables with deadlines. Locks are plain pthread mutexes.
 * Every thread has a name (at most 15 characters, shown by ps -L and in log lines) and is joined.
 */
#ifndef SKEP_BASE_THREAD_H
#define SKEP_BASE_THREAD_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>

struct thread {
    pthread_t id;
    bool started; /* false: thread_join() does nothing */
};

/*
 * Starts a thread with all signals blocked, so that signals reach the main thread only.
 * @param arg  borrowed until the thread ends.
 * @return SKEP_RESOURCE_EXHAUSTED if the system refuses.
 */
SKEP_MUST_CHECK skep_status thread_start(struct thread *t, const char *name, void (*run)(void *),
                                         void *arg, struct skep_error *err);

/* Waits for its end; does nothing for a thread that was never started or is joined already. */
void thread_join(struct thread *t);

/* The name of the calling thread, as given to thread_start(); "main" otherwise. */
const char *thread_name(void);

/* A condition variable on the monotonic clock. */
void cond_init(pthread_cond_t *cond);

/* Waits with `lock` held until signalled or the deadline (clock_mono_us() units; CLOCK_NEVER waits
 * for ever). Returns false when the deadline has passed. Wakes spuriously, as all of them do. */
bool cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_us);

#endif
