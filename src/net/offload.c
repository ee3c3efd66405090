/* Two threads and two queues; see offload.h. */
#include "net/offload.h"

#include <pthread.h>
#include <stdbool.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "base/error.h"
#include "base/thread.h"

enum size_class { SMALL, LARGE, CLASS_COUNT };

struct queue {
    struct offload_job *first;
    struct offload_job **end;
};

struct offload {
    struct thread any, small_only;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t posted;
    pthread_cond_t idle;
    size_t pending; /* posted or running */
    struct queue queues[CLASS_COUNT];
    bool large_first; /* whose turn it is at the thread that takes both */
    bool stopping;
};

static struct offload_job *pop(struct queue *queue)
{
    struct offload_job *job = queue->first;

    if (job == NULL)
        return NULL;
    queue->first = job->next;
    if (queue->first == NULL)
        queue->end = &queue->first;
    return job;
}

/* By turns, so that neither kind waits for ever. The lock is held. */
static struct offload_job *next_job(struct offload *offload, bool small_only)
{
    struct offload_job *job;

    if (small_only)
        return pop(&offload->queues[SMALL]);
    enum size_class first = offload->large_first ? LARGE : SMALL;
    offload->large_first = !offload->large_first;
    job = pop(&offload->queues[first]);
    return job != NULL ? job : pop(&offload->queues[first == LARGE ? SMALL : LARGE]);
}

static void work(struct offload *offload, bool small_only)
{
    struct offload_job *job;

    pthread_mutex_lock(&offload->lock);
    for (;;) {
        job = next_job(offload, small_only);
        if (job != NULL) {
            pthread_mutex_unlock(&offload->lock);
            job->run(job); /* it may be gone afterwards */
            pthread_mutex_lock(&offload->lock);
            if (--offload->pending == 0)
                pthread_cond_broadcast(&offload->idle);
        } else if (offload->stopping) {
            break;
        } else {
            pthread_cond_wait(&offload->posted, &offload->lock);
        }
    }
    pthread_mutex_unlock(&offload->lock);
}

static void run_any(void *arg)
{
    work(arg, false);
}

static void run_small(void *arg)
{
    work(arg, true);
}

skep_status offload_new(struct offload **out, struct skep_error *err)
{
    struct offload *offload = mem_calloc(1, sizeof(*offload));
    skep_status rc;

    *out = NULL;
    if (offload == NULL)
        return error_no_memory(err, "codec threads", sizeof(*offload));
    pthread_mutex_init(&offload->lock, NULL);
    cond_init(&offload->posted);
    cond_init(&offload->idle);
    for (int c = 0; c < CLASS_COUNT; c++)
        offload->queues[c].end = &offload->queues[c].first;
    rc = thread_start(&offload->any, "skep-codec", run_any, offload, err);
    if (rc == SKEP_OK)
        rc = thread_start(&offload->small_only, "skep-codec-s", run_small, offload, err);
    if (rc != SKEP_OK) {
        offload_free(offload);
        return rc;
    }
    *out = offload;
    return SKEP_OK;
}

void offload_post(struct offload *offload, struct offload_job *job)
{
    struct queue *queue = &offload->queues[job->bytes <= OFFLOAD_SMALL_BYTES ? SMALL : LARGE];

    job->next = NULL;
    pthread_mutex_lock(&offload->lock);
    *queue->end = job;
    queue->end = &job->next;
    offload->pending++;
    /* Both wake: the one that takes small jobs only could take the signal of a large one. */
    pthread_cond_broadcast(&offload->posted);
    pthread_mutex_unlock(&offload->lock);
}

static void run_give_back(struct offload_job *job)
{
    block_give_back(job);
}

void offload_give_back(void *offload, void *block, size_t capacity)
{
    struct offload_job *job = block; /* nobody else has a use for its bytes */

    *job = (struct offload_job){.run = run_give_back, .bytes = capacity};
    offload_post(offload, job);
}

void offload_drain(struct offload *offload)
{
    pthread_mutex_lock(&offload->lock);
    while (offload->pending > 0)
        pthread_cond_wait(&offload->idle, &offload->lock);
    pthread_mutex_unlock(&offload->lock);
}

void offload_free(struct offload *offload)
{
    if (offload == NULL)
        return;
    pthread_mutex_lock(&offload->lock);
    offload->stopping = true;
    pthread_cond_broadcast(&offload->posted);
    pthread_mutex_unlock(&offload->lock);
    thread_join(&offload->any);
    thread_join(&offload->small_only);
    pthread_cond_destroy(&offload->posted);
    pthread_cond_destroy(&offload->idle);
    pthread_mutex_destroy(&offload->lock);
    mem_free(offload);
}
