/* A libuv loop on a thread of its own, with a queue of embedded jobs. */
#include "net/loop.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu_count.h"
#include "base/error.h"
#include "base/thread.h"

/* Jobs may post jobs. After so many rounds the loop looks at its sockets before it goes on. */
enum { MAX_JOB_ROUNDS = 4 };

enum {
    SHORT_SLEEPS = 4,   /* so many in a row make the loop poll before it sleeps */
    MAX_SPIN_US = 1000, /* then its other sockets and its timers have their turn */
};

struct loop {
    uv_loop_t uv;
    uv_async_t wake;
    uv_prepare_t before_sleep;
    uv_check_t after_sleep;
    struct thread thread;
    struct loop_hook *hooks; /* the loop's thread only */
    bool awake;              /* the same: it holds `turn` */
    bool may_spin;           /* set once: the peer may run on another CPU meanwhile */
    int short_sleeps;        /* the loop's thread only: in a row, at most SHORT_SLEEPS */
    uint64_t idle_since_us;  /* the same: when the loop had nothing left to do */

    /* Held by the loop's thread while it is awake, by another one that has borrowed the loop. Taken
     * before `lock`. It guards what belongs to the loop: the state of those that use it. */
    pthread_mutex_t turn;

    pthread_mutex_t lock; /* guards all below */
    struct loop_job *first;
    struct loop_job **end;
    bool asleep; /* in poll, or about to be: whoever posts must wake it, once */
    bool stopping;
};

static _Thread_local const struct loop *current;

bool loop_is_own_thread(const struct loop *loop)
{
    return current == loop;
}

uv_loop_t *loop_uv(struct loop *loop)
{
    return &loop->uv;
}

void loop_enter(struct loop *loop)
{
    if (loop->awake)
        return;
    pthread_mutex_lock(&loop->turn);
    loop->awake = true;
    pthread_mutex_lock(&loop->lock);
    loop->asleep = false;
    pthread_mutex_unlock(&loop->lock);
}

static void leave(struct loop *loop)
{
    if (!loop->awake)
        return;
    loop->awake = false;
    pthread_mutex_unlock(&loop->turn);
}

bool loop_take_over(struct loop *loop, struct loop_takeover *takeover)
{
    pthread_mutex_lock(&loop->lock);
    bool idle = loop->asleep && loop->first == NULL;
    pthread_mutex_unlock(&loop->lock);
    /* It may wake, and sleep again, in between: what counts is who has the turn. */
    if (!idle || pthread_mutex_trylock(&loop->turn) != 0)
        return false;
    takeover->own = current; /* the other thread may be another loop's thread */
    current = loop;
    return true;
}

void loop_give_back(struct loop *loop, struct loop_takeover *takeover, bool wake)
{
    current = takeover->own;
    pthread_mutex_unlock(&loop->turn);
    if (wake)
        uv_async_send(&loop->wake);
}

void loop_post(struct loop *loop, struct loop_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&loop->lock);
    *loop->end = job;
    loop->end = &job->next;
    bool wake = loop->asleep;
    loop->asleep = false; /* one wake is enough for all that is posted until it is awake */
    pthread_mutex_unlock(&loop->lock);
    /* Outside the lock: the woken thread may run at once, and wants it. */
    if (wake)
        uv_async_send(&loop->wake);
}

static struct loop_job *take_jobs(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    struct loop_job *jobs = loop->first;
    loop->first = NULL;
    loop->end = &loop->first;
    loop->asleep = false;
    pthread_mutex_unlock(&loop->lock);
    return jobs;
}

static bool run_jobs(struct loop *loop)
{
    struct loop_job *job = take_jobs(loop);

    if (job == NULL)
        return false;
    while (job != NULL) {
        struct loop_job *next = job->next; /* the job may be gone once it has run */
        job->run(job);
        job = next;
    }
    return true;
}

static void run_hooks(struct loop *loop)
{
    struct loop_hook *next;

    for (struct loop_hook *hook = loop->hooks; hook != NULL; hook = next) {
        next = hook->next;
        hook->run(hook);
    }
}

void loop_add_hook(struct loop *loop, struct loop_hook *hook)
{
    assert(loop_is_own_thread(loop));
    hook->next = loop->hooks;
    loop->hooks = hook;
}

void loop_remove_hook(struct loop *loop, struct loop_hook *hook)
{
    assert(loop_is_own_thread(loop));
    for (struct loop_hook **at = &loop->hooks; *at != NULL; at = &(*at)->next) {
        if (*at == hook) {
            *at = hook->next;
            return;
        }
    }
}

static void close_own_handles(struct loop *loop)
{
    uv_close((uv_handle_t *)&loop->wake, NULL);
    uv_close((uv_handle_t *)&loop->before_sleep, NULL);
    uv_close((uv_handle_t *)&loop->after_sleep, NULL);
}

static void run_rounds(struct loop *loop)
{
    for (int round = 0; round < MAX_JOB_ROUNDS; round++) {
        bool ran = run_jobs(loop);
        run_hooks(loop);
        if (!ran)
            break;
    }
}

static bool has_jobs(struct loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    bool has = loop->first != NULL;
    pthread_mutex_unlock(&loop->lock);
    return has;
}

static enum loop_poll poll_hooks(struct loop *loop)
{
    enum loop_poll best = LOOP_POLL_IDLE;

    for (struct loop_hook *hook = loop->hooks; hook != NULL; hook = hook->next) {
        enum loop_poll found = hook->poll != NULL ? hook->poll(hook) : LOOP_POLL_IDLE;
        if (found > best)
            best = found;
    }
    return best;
}

/* Whether libuv's own poll would find something: another socket, a wake-up. */
static bool others_ready(struct loop *loop)
{
    struct pollfd backend = {.fd = uv_backend_fd(&loop->uv), .events = POLLIN};

    return poll(&backend, 1, 0) != 0;
}

/* Polls instead of sleeping. Every job and message that comes prolongs it, up to MAX_SPIN_US. */
static void spin(struct loop *loop)
{
    uint64_t now = loop->idle_since_us, most = now + MAX_SPIN_US;

    while (now < loop->idle_since_us + LOOP_SPIN_US && now < most) {
        enum loop_poll found = poll_hooks(loop);
        if (found == LOOP_POLL_DONE || has_jobs(loop)) {
            run_rounds(loop);
            loop->idle_since_us = clock_mono_us();
        } else if (found == LOOP_POLL_IDLE || others_ready(loop)) {
            return;
        } else {
            sched_yield(); /* the peer may need this CPU to answer */
        }
        now = clock_mono_us();
    }
}

static void on_before_sleep(uv_prepare_t *handle)
{
    struct loop *loop = handle->data;

    run_rounds(loop);
    loop->idle_since_us = clock_mono_us();
    if (loop->may_spin && loop->short_sleeps == SHORT_SLEEPS)
        spin(loop);

    pthread_mutex_lock(&loop->lock);
    bool empty = loop->first == NULL;
    bool stop = loop->stopping && empty;
    loop->asleep = empty && !stop;
    pthread_mutex_unlock(&loop->lock);
    if (stop)
        close_own_handles(loop);
    else if (!empty)
        uv_async_send(&loop->wake); /* makes the coming poll return at once */
    else
        leave(loop);
}

static void on_after_sleep(uv_check_t *handle)
{
    struct loop *loop = handle->data;

    loop_enter(loop);
    if (clock_mono_us() - loop->idle_since_us > LOOP_SHORT_SLEEP_US)
        loop->short_sleeps = 0;
    else if (loop->short_sleeps < SHORT_SLEEPS)
        loop->short_sleeps++;
}

static void on_wake(uv_async_t *handle)
{
    (void)handle; /* jobs are run before the next sleep, together with what the sockets bring */
}

static void run_thread(void *arg)
{
    struct loop *loop = arg;

    current = loop;
    loop_enter(loop);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    leave(loop);
    current = NULL;
}

static skep_status init_handles(struct loop *loop, struct skep_error *err)
{
    int rc = uv_async_init(&loop->uv, &loop->wake, on_wake);

    if (rc != 0)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "event loop: cannot make its wake-up: %s",
                         uv_strerror(rc));
    uv_prepare_init(&loop->uv, &loop->before_sleep);
    uv_check_init(&loop->uv, &loop->after_sleep);
    loop->before_sleep.data = loop;
    loop->after_sleep.data = loop;
    uv_prepare_start(&loop->before_sleep, on_before_sleep);
    uv_check_start(&loop->after_sleep, on_after_sleep);
    return SKEP_OK;
}

skep_status loop_new(const char *thread_name, struct loop **out, struct skep_error *err)
{
    skep_status rc;
    struct loop *loop = mem_calloc(1, sizeof(*loop));

    *out = NULL;
    if (loop == NULL)
        return error_no_memory(err, "event loop", sizeof(*loop));
    int uv = uv_loop_init(&loop->uv);
    if (uv != 0) {
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "event loop: cannot start: %s",
                       uv_strerror(uv));
        goto fail_memory;
    }
    pthread_mutex_init(&loop->lock, NULL);
    pthread_mutex_init(&loop->turn, NULL);
    loop->end = &loop->first;
    loop->may_spin = cpu_count() > 1;
    rc = init_handles(loop, err);
    if (rc != SKEP_OK)
        goto fail_loop;
    rc = thread_start(&loop->thread, thread_name, run_thread, loop, err);
    if (rc == SKEP_OK) {
        *out = loop;
        return SKEP_OK;
    }
    close_own_handles(loop);
    uv_run(&loop->uv, UV_RUN_DEFAULT);

fail_loop:
    uv_loop_close(&loop->uv);
    pthread_mutex_destroy(&loop->turn);
    pthread_mutex_destroy(&loop->lock);
fail_memory:
    mem_free(loop);
    return rc;
}

struct call_job {
    struct loop_job job;
    void (*fn)(void *arg);
    void *arg;
    pthread_mutex_t lock; /* guards done */
    pthread_cond_t ended;
    bool done;
};

static void run_call(struct loop_job *job)
{
    struct call_job *call = (struct call_job *)((char *)job - offsetof(struct call_job, job));

    call->fn(call->arg);
    pthread_mutex_lock(&call->lock);
    call->done = true;
    pthread_cond_signal(&call->ended); /* with the lock held: the waiter's stack holds `call` */
    pthread_mutex_unlock(&call->lock);
}

void loop_call(struct loop *loop, void (*fn)(void *arg), void *arg)
{
    struct call_job call = {.job.run = run_call, .fn = fn, .arg = arg};

    assert(!loop_is_own_thread(loop));
    pthread_mutex_init(&call.lock, NULL);
    cond_init(&call.ended);
    loop_post(loop, &call.job);
    pthread_mutex_lock(&call.lock);
    while (!call.done)
        pthread_cond_wait(&call.ended, &call.lock);
    pthread_mutex_unlock(&call.lock);
    pthread_cond_destroy(&call.ended);
    pthread_mutex_destroy(&call.lock);
}

void loop_free(struct loop *loop)
{
    if (loop == NULL)
        return;
    assert(!loop_is_own_thread(loop));
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    bool wake = loop->asleep;
    loop->asleep = false;
    pthread_mutex_unlock(&loop->lock);
    if (wake)
        uv_async_send(&loop->wake);
    thread_join(&loop->thread);

    current = loop; /* what callbacks of closing handles have posted still runs "on the loop" */
    while (run_jobs(loop))
        continue;
    current = NULL;
    int rc = uv_loop_close(&loop->uv);
    assert(rc == 0); /* a handle was left open */
    (void)rc;
    pthread_mutex_destroy(&loop->turn);
    pthread_mutex_destroy(&loop->lock);
    mem_free(loop);
}
