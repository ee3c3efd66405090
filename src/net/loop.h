/*
 * A libuv loop on a thread of its own. Other threads reach it only by loop_post().
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

SKEP_MUST_CHECK skep_status loop_new(const char *thread_name, struct loop **out,
                                     struct skep_error *err);
/*
 * Runs a job on the loop's thread, in order of posting. The job is borrowed until it runs.
 * Thread: any, the loop's own included (it runs later then, never inside this call).
 * Jobs posted after loop_stop() began are run by it too, before it returns.
 */
void loop_post(struct loop *loop, struct loop_job *job);
/* Runs fn on the loop's thread and waits for its end. Not from the loop's own thread. */
void loop_call(struct loop *loop, void (*fn)(void *arg), void *arg);
bool loop_is_own_thread(const struct loop *loop);
uv_loop_t *loop_uv(struct loop *loop); /* for use on its thread only */
/* All handles must have been closed by their owners. Ends the thread, frees. NULL is allowed. */
void loop_free(struct loop *loop);

#endif
