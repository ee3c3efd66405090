/* See resolver.h. */
#include "dht/bootstrap/resolver.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/lookup.h"
#include "base/thread.h"
#include "dht/bootstrap/tracker_peers.h"

enum { NAMES_AT_ONCE = 16 }; /* looked up; they must leave threads for others of the process */

enum job_state {
    JOB_NEW,      /* its name is to be looked up */
    JOB_NAME,     /* being looked up */
    JOB_TRACKER,  /* its addresses are those of a tracker, which is to be asked */
    JOB_ANSWERED, /* to be taken */
};

struct job {
    struct resolver *resolver;
    struct job *next; /* as state and resolution, guarded by the resolver's lock */
    enum job_state state;
    struct initial_peer peer; /* never changes */
    struct lookup *lookup;    /* NULL: not begun, or there is no name. The owner's alone */
    struct resolution resolution;
};

/*
 * Locks: a lookup's is taken before ours (it is held while on_looked_up() runs), so lookup_end() is
 * not called under ours.
 */
struct resolver {
    void (*wake)(void *arg); /* this and the three below never change */
    void *arg;
    uint32_t network_id;
    int stop_fd; /* an eventfd; -1: there is no thread */
    struct thread thread;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct job *jobs; /* oldest first; only the owner, who asks and takes, adds and removes */
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
    r->network_id = network_id;
    r->wake = wake;
    r->arg = arg;
    r->stop_fd = -1;
    *out = r;
    return SKEP_OK;
}

/* The oldest job in a state. With the lock held. */
static struct job *find(const struct resolver *r, enum job_state state)
{
    struct job *job = r->jobs;

    while (job != NULL && job->state != state)
        job = job->next;
    return job;
}

enum resolver_scope resolver_scope_of(const struct endpoint *host)
{
    struct address numeric;

    if (endpoint_is_loopback(host))
        return RESOLVER_LOOPBACK;
    return endpoint_to_address(host, &numeric) ? RESOLVER_ELSEWHERE : RESOLVER_NOWHERE;
}

/* Where all of these are. */
static enum resolver_scope place_of(const struct address *addresses, size_t count)
{
    enum resolver_scope place = RESOLVER_NOWHERE;

    for (size_t i = 0; i < count && place != RESOLVER_ELSEWHERE; i++) {
        struct endpoint e;
        endpoint_from_address(&e, (const struct sockaddr *)&addresses[i].sa);
        place = resolver_scope_of(&e);
    }
    return place;
}

static void set_addresses(struct resolution *to, const struct address *addresses, size_t count)
{
    to->count = count < RESOLVER_MAX_ADDRESSES ? count : RESOLVER_MAX_ADDRESSES;
    memcpy(to->addresses, addresses, to->count * sizeof(to->addresses[0]));
}

/* --- trackers ------------------------------------------------------------------------------ */

static void ask_tracker(struct resolver *r, struct resolution *a)
{
    const struct tracker_peers_wait limit = {clock_deadline_us(RESOLVER_TRACKER_MS), r->stop_fd};
    struct address tracker[RESOLVER_MAX_ADDRESSES];
    size_t count = a->count;
    struct tracker_peers peers = {.addresses = a->addresses, .cap = RESOLVER_MAX_ADDRESSES};

    memcpy(tracker, a->addresses, count * sizeof(tracker[0]));
    a->status = tracker_peers_ask(tracker, count, r->network_id, &limit, &peers, &a->err);
    a->count = peers.count;
}

static void run(void *arg)
{
    struct resolver *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!r->closing) {
        struct job *job = find(r, JOB_TRACKER);
        if (job == NULL) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        ask_tracker(r, &job->resolution); /* ours alone until it is answered */
        pthread_mutex_lock(&r->lock);
        job->state = JOB_ANSWERED;
        pthread_mutex_unlock(&r->lock);
        r->wake(r->arg);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
}

static skep_status start_thread(struct resolver *r, struct skep_error *err)
{
    if (r->thread.started)
        return SKEP_OK;
    if (r->stop_fd < 0) {
        int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (fd < 0)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED, "eventfd: %s", strerror(errno));
        r->stop_fd = fd_move_high(fd);
    }
    return thread_start(&r->thread, "skep-resolver", run, r, err);
}

/* --- names --------------------------------------------------------------------------------- */

/* On the lookup's thread, or on the owner's if there is none. */
static void on_looked_up(void *arg, const struct lookup_answer *answer)
{
    struct job *job = arg;
    struct resolver *r = job->resolver;

    pthread_mutex_lock(&r->lock);
    bool answered = !job->peer.is_tracker || answer->status != SKEP_OK;
    job->resolution.status = answer->status;
    job->resolution.err = answer->err;
    set_addresses(&job->resolution, answer->addresses, answer->count);
    job->resolution.place = place_of(answer->addresses, answer->count);
    job->state = answered ? JOB_ANSWERED : JOB_TRACKER;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (answered)
        r->wake(r->arg);
}

/* The next name to be looked up, marked so; NULL if there is none, or no room. */
static struct job *next_name(struct resolver *r)
{
    struct job *job = NULL;
    unsigned under_way = 0;

    pthread_mutex_lock(&r->lock);
    for (const struct job *j = r->jobs; j != NULL; j = j->next)
        under_way += j->state == JOB_NAME;
    if (under_way < NAMES_AT_ONCE)
        job = find(r, JOB_NEW);
    if (job != NULL)
        job->state = JOB_NAME;
    pthread_mutex_unlock(&r->lock);
    return job;
}

static void look_up_names(struct resolver *r)
{
    struct lookup_answer failure = {0};
    struct job *job;

    while ((job = next_name(r)) != NULL) {
        failure.status =
            lookup_start(&job->peer.endpoint, false, on_looked_up, job, &job->lookup, &failure.err);
        if (failure.status != SKEP_OK)
            on_looked_up(job, &failure);
    }
}

/* --- asking -------------------------------------------------------------------------------- */

skep_status resolver_ask(struct resolver *r, size_t tag, const struct initial_peer *peer,
                         struct skep_error *err)
{
    struct address numeric;
    skep_status rc = peer->is_tracker ? start_thread(r, err) : SKEP_OK;

    if (rc != SKEP_OK)
        return rc;
    struct job *job = mem_calloc(1, sizeof(*job)), **end = &r->jobs;
    if (job == NULL)
        return error_no_memory(err, "name to resolve", sizeof(*job));
    job->resolver = r;
    job->peer = *peer;
    job->resolution.tag = tag;
    if (peer->is_tracker && endpoint_to_address(&peer->endpoint, &numeric)) {
        set_addresses(&job->resolution, &numeric, 1);
        job->resolution.place = place_of(&numeric, 1);
        job->state = JOB_TRACKER;
    }
    pthread_mutex_lock(&r->lock);
    while (*end != NULL)
        end = &(*end)->next;
    *end = job;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    look_up_names(r);
    return SKEP_OK;
}

static void free_job(struct job *job)
{
    if (job->lookup != NULL)
        lookup_end(job->lookup);
    mem_free(job);
}

bool resolver_take(struct resolver *r, struct resolution *out)
{
    pthread_mutex_lock(&r->lock);
    struct job *job = find(r, JOB_ANSWERED);
    if (job != NULL) {
        struct job **at = &r->jobs;
        while (*at != job)
            at = &(*at)->next;
        *at = job->next;
    }
    pthread_mutex_unlock(&r->lock);
    look_up_names(r); /* an answer makes room */
    if (job == NULL)
        return false;
    *out = job->resolution;
    free_job(job);
    return true;
}

void resolver_free(struct resolver *r)
{
    struct job *next;

    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    r->closing = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->stop_fd >= 0)
        eventfd_write(r->stop_fd, 1);
    thread_join(&r->thread);
    for (struct job *job = r->jobs; job != NULL; job = next) {
        next = job->next;
        free_job(job);
    }
    if (r->stop_fd >= 0)
        close(r->stop_fd);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
