/* Name resolution that nobody has to wait for. */
#include "dht/resolver.h"

#include <pthread.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/tracker_peers.h"

struct job {
    struct job *next;
    struct initial_peer peer;
    struct resolution resolution;
};

struct resolver {
    pthread_mutex_t lock; /* guards all below but thread, which is the owner's */
    pthread_cond_t changed;
    unsigned refs; /* the owner's and the thread's */
    bool closing;
    struct job *todo, **todo_last;
    struct job *answered;
    void (*wake)(void *arg);
    void *arg;
    struct thread thread;
    uint32_t network_id; /* never changes */
};

skep_status resolver_new(uint32_t network_id, void (*wake)(void *arg), void *arg,
                         struct resolver **out, struct skep_error *err)
{
    struct resolver *r = mem_calloc(1, sizeof(*r));

    *out = NULL;
    if (r == NULL)
        return error_no_memory(err, "resolver", sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    r->refs = 1;
    r->network_id = network_id;
    r->todo_last = &r->todo;
    r->wake = wake;
    r->arg = arg;
    *out = r;
    return SKEP_OK;
}

static void free_jobs(struct job *job)
{
    while (job != NULL) {
        struct job *next = job->next;
        mem_free(job);
        job = next;
    }
}

/* With the lock held, which is released. */
static void unref_unlock(struct resolver *r)
{
    bool last = --r->refs == 0;

    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (!last)
        return;
    free_jobs(r->todo);
    free_jobs(r->answered);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

static void resolve(struct job *job, uint32_t network_id)
{
    struct resolution *a = &job->resolution;

    if (job->peer.is_tracker)
        a->status = tracker_peers_ask(&job->peer.endpoint, network_id,
                                      clock_deadline_us(RESOLVER_TRACKER_MS), a->addresses,
                                      RESOLVER_MAX_ADDRESSES, &a->count, &a->err);
    else
        a->status = endpoint_resolve(&job->peer.endpoint, a->addresses, RESOLVER_MAX_ADDRESSES,
                                     &a->count, &a->err);
}

static void run(void *arg)
{
    struct resolver *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!r->closing) {
        struct job *job = r->todo;
        if (job == NULL) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        r->todo = job->next;
        if (r->todo == NULL)
            r->todo_last = &r->todo;
        pthread_mutex_unlock(&r->lock);
        resolve(job, r->network_id);
        pthread_mutex_lock(&r->lock);
        job->next = r->answered;
        r->answered = job;
        /* Under the lock, so that it cannot run once resolver_free() has set `closing`. */
        if (!r->closing)
            r->wake(r->arg);
    }
    unref_unlock(r);
}

skep_status resolver_ask(struct resolver *r, size_t tag, const struct initial_peer *peer,
                         struct skep_error *err)
{
    struct job *job = mem_calloc(1, sizeof(*job));
    skep_status rc = SKEP_OK;

    if (job == NULL)
        return error_no_memory(err, "name to resolve", sizeof(*job));
    job->peer = *peer;
    job->resolution.tag = tag;
    pthread_mutex_lock(&r->lock);
    if (!r->thread.started) {
        r->refs++;
        rc = thread_start(&r->thread, "skep-resolver", run, r, err);
        if (rc != SKEP_OK)
            r->refs--;
    }
    if (rc == SKEP_OK) {
        *r->todo_last = job;
        r->todo_last = &job->next;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    if (rc != SKEP_OK)
        mem_free(job);
    return rc;
}

bool resolver_take(struct resolver *r, struct resolution *out)
{
    pthread_mutex_lock(&r->lock);
    struct job *job = r->answered;
    if (job != NULL)
        r->answered = job->next;
    pthread_mutex_unlock(&r->lock);
    if (job == NULL)
        return false;
    *out = job->resolution;
    mem_free(job);
    return true;
}

void resolver_free(struct resolver *r, uint64_t deadline_us)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->changed);
    while (r->refs > 1 && cond_wait_until(&r->changed, &r->lock, deadline_us))
        ;
    struct thread thread = r->thread;
    bool ended = r->refs == 1;
    unref_unlock(r);

    if (!thread.started)
        return;
    if (ended) {
        thread_join(&thread);
        return;
    }
    log_debug("resolver: a name lookup still blocks, left to end by itself");
    pthread_detach(thread.id);
}
