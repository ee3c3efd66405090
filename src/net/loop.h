/*
 * A libuv loop on a thread of its own. Other threads reach it only by loop_post().
 *
 * One turn of the loop: expired timers; then the jobs posted meanwhile; then the hooks, which send
 * what all of these have produced, so that many small results share one system call; then it
 * sleeps. While its last sleeps were short, it first polls its hooks for LOOP_SPIN_US: to be woken
 * costs 5 to 40 us, as much as a small call. Descriptors: libuv's own four of a loop (epoll,
 * eventfd, a pipe for signals) have no interface by which they could be moved above FD_LOW_LIMIT,
 * and stay low.
 */
#ifndef SKEP_NET_LOOP_H
#define SKEP_NET_LOOP_H

#include <stdbool.h>
#include <uv.h>
#include <skep/status.h>

struct loop;

/* Embedded in whatever is posted, so that posting allocates nothing and cannot fail. */
struct loop_job {
    void (*run)(struct loop_job *job); /* on the loop's thread, no lock held */
    struct loop_job *next;             /* the loop's */
};

enum loop_poll {
    LOOP_POLL_IDLE,  /* there is nothing worth polling */
    LOOP_POLL_EMPTY, /* nothing has come yet */
    LOOP_POLL_DONE,  /* something came and is dealt with: the hooks run again */
};

/* Runs on the loop's thread each time before the loop sleeps, after the posted jobs. */
struct loop_hook {
    void (*run)(struct loop_hook *hook);
    /* May be NULL. Looks, without blocking, for what would end the coming sleep most likely. */
    enum loop_poll (*poll)(struct loop_hook *hook);
    struct loop_hook *next; /* the loop's */
};

enum {
    LOOP_SPIN_US = 100,        /* the longest wait that is polled for before a sleep */
    LOOP_SHORT_SLEEP_US = 200, /* polling starts after several sleeps of at most this */
};

/* @param thread_name  borrowed for the call. @param out  owned: loop_free(). */
SKEP_MUST_CHECK skep_status loop_new(const char *thread_name, struct loop **out,
                                     struct skep_error *err);
/*
 * Runs a job on the loop's thread, in order of posting. The job is borrowed until it runs.
 * Thread: any, the loop's own included (it runs later then, never inside this call).
 * A job posted while loop_free() runs, by another job or hook, is run too before loop_free()
 * returns; a call of loop_post() on another thread must have returned before loop_free() is called.
 */
void loop_post(struct loop *loop, struct loop_job *job);
/* Adds or removes a hook. Borrowed until removed. On the loop's thread only, not from a hook. */
void loop_add_hook(struct loop *loop, struct loop_hook *hook);
void loop_remove_hook(struct loop *loop, struct loop_hook *hook);
/* Runs fn on the loop's thread and waits for its end. Not from the loop's own thread. */
void loop_call(struct loop *loop, void (*fn)(void *arg), void *arg);
/*
 * Taking over: another thread does a small piece of the loop's work itself while the loop sleeps,
 * which saves the loop's wake-up where every microsecond counts. While a takeover lasts the loop's
 * thread waits, and loop_is_own_thread() is true for the other thread, who must not touch libuv and
 * must not block.
 *
 * So that this excludes each other, every callback that libuv runs from its poll (of a uv_poll_t,
 * of a request) begins with loop_enter(). Timers, jobs and hooks need not.
 */
struct loop_takeover {
    const struct loop *own; /* the loop whose thread the other thread is, or NULL */
};
void loop_enter(struct loop *loop);
/* @return false if the loop is awake or has jobs: the caller takes nothing over then. Not from its
 * thread. */
bool loop_take_over(struct loop *loop, struct loop_takeover *takeover);
/* @param wake  something is left for the loop's thread to do. */
void loop_give_back(struct loop *loop, struct loop_takeover *takeover, bool wake);
bool loop_is_own_thread(const struct loop *loop);
uv_loop_t *loop_uv(struct loop *loop); /* for use on its thread only */
/* All handles must have been closed by their owners (or be closing); requests under way are waited
 * for. Ends the thread, frees. NULL is allowed. Not from the loop's own thread. */
void loop_free(struct loop *loop);

#endif
