/* See lookup.h. */
#include "base/lookup.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"

struct lookup {
    struct endpoint name;
    lookup_fn fn;
    void *arg;
    struct lookup_answer result; /* the thread's */

    pthread_mutex_t lock; /* guards all below; held while fn runs */
    unsigned refs;        /* the owner's and the thread's */
    bool ended;           /* by its owner */
    bool told;            /* fn has run */
};

static _Atomic unsigned threads;

/* With the lock held, which is released. */
static void unref_unlock(struct lookup *lookup)
{
    bool last = --lookup->refs == 0;

    pthread_mutex_unlock(&lookup->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&lookup->lock);
    mem_free(lookup);
}

static void run(void *arg)
{
    struct lookup *lookup = arg;
    struct lookup_answer *r = &lookup->result;

    r->status =
        endpoint_resolve(&lookup->name, r->addresses, LOOKUP_MAX_ADDRESSES, &r->count, &r->err);
    atomic_fetch_sub(&threads, 1);
    pthread_mutex_lock(&lookup->lock);
    if (!lookup->ended) {
        lookup->told = true;
        lookup->fn(lookup->arg, r);
    }
    unref_unlock(lookup);
}

static skep_status start_thread(struct lookup *lookup, unsigned most, struct skep_error *err)
{
    struct thread thread = {0};
    skep_status rc;

    if (atomic_fetch_add(&threads, 1) >= most)
        rc =
            error_set(err, SKEP_RESOURCE_EXHAUSTED,
                      "host \"%s\": %u names are being looked up already", lookup->name.host, most);
    else
        rc = thread_start(&thread, "skep-lookup", run, lookup, err);
    if (rc == SKEP_OK)
        pthread_detach(thread.id); /* nobody could join it in time */
    else
        atomic_fetch_sub(&threads, 1);
    return rc;
}

skep_status lookup_start(const struct endpoint *name, bool foreign, lookup_fn fn, void *arg,
                         struct lookup **out, struct skep_error *err)
{
    struct lookup *lookup = mem_calloc(1, sizeof(*lookup));

    *out = NULL;
    if (lookup == NULL)
        return error_no_memory(err, "name to look up", sizeof(*lookup));
    lookup->name = *name;
    lookup->fn = fn;
    lookup->arg = arg;
    lookup->refs = 2;
    pthread_mutex_init(&lookup->lock, NULL);
    /* Before the thread can tell: who is told may want to end it. */
    *out = lookup;
    skep_status rc = start_thread(lookup, foreign ? LOOKUP_MAX_FOREIGN : LOOKUP_MAX_THREADS, err);
    if (rc != SKEP_OK) {
        *out = NULL;
        pthread_mutex_destroy(&lookup->lock);
        mem_free(lookup);
    }
    return rc;
}

bool lookup_end(struct lookup *lookup)
{
    pthread_mutex_lock(&lookup->lock);
    bool told = lookup->told;
    lookup->ended = true;
    unref_unlock(lookup);
    return told;
}
