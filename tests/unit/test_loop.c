#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu_count.h"
#include "base/thread.h"
#include "net/loop.h"

enum { POSTERS = 4, JOBS_EACH = 5000 };

struct gathered {
    struct loop *loop;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    unsigned ran;
    unsigned next_of[POSTERS];
    bool out_of_order;
    bool wrong_thread;
};

struct numbered_job {
    struct loop_job job;
    struct gathered *to;
    unsigned poster;
    unsigned number;
};

static void gather(struct loop_job *job)
{
    struct numbered_job *n =
        (struct numbered_job *)((char *)job - offsetof(struct numbered_job, job));
    struct gathered *g = n->to;

    pthread_mutex_lock(&g->lock);
    g->ran++;
    if (g->next_of[n->poster]++ != n->number)
        g->out_of_order = true;
    if (!loop_is_own_thread(g->loop))
        g->wrong_thread = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gathered_init(struct gathered *g, struct loop *loop)
{
    *g = (struct gathered){.loop = loop};
    pthread_mutex_init(&g->lock, NULL);
    cond_init(&g->changed);
}

static bool wait_for(struct gathered *g, unsigned count)
{
    uint64_t deadline = clock_deadline_us(20000);
    bool in_time = true;

    pthread_mutex_lock(&g->lock);
    while (g->ran < count && in_time)
        in_time = cond_wait_until(&g->changed, &g->lock, deadline);
    pthread_mutex_unlock(&g->lock);
    return in_time;
}

static void gathered_fini(struct gathered *g)
{
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

struct poster {
    struct gathered *to;
    unsigned number;
    struct numbered_job *jobs;
};

static void post_all(void *arg)
{
    struct poster *p = arg;

    for (unsigned i = 0; i < JOBS_EACH; i++) {
        p->jobs[i] =
            (struct numbered_job){.job.run = gather, .to = p->to, .poster = p->number, .number = i};
        loop_post(p->to->loop, &p->jobs[i].job);
    }
}

static void jobs_of_each_thread_run_in_order_on_the_loop(void **state)
{
    (void)state;
    struct loop *loop;
    struct gathered g;
    struct poster posters[POSTERS];
    struct thread threads[POSTERS] = {0};

    assert_int_equal(loop_new("test-loop", &loop, NULL), SKEP_OK);
    gathered_init(&g, loop);
    for (unsigned i = 0; i < POSTERS; i++) {
        posters[i] = (struct poster){
            .to = &g, .number = i, .jobs = mem_alloc(JOBS_EACH * sizeof(struct numbered_job))};
        assert_non_null(posters[i].jobs);
        assert_int_equal(thread_start(&threads[i], "poster", post_all, &posters[i], NULL), SKEP_OK);
    }
    for (unsigned i = 0; i < POSTERS; i++)
        thread_join(&threads[i]);
    assert_true(wait_for(&g, POSTERS * JOBS_EACH));
    loop_free(loop);
    assert_int_equal(g.ran, POSTERS * JOBS_EACH);
    assert_false(g.out_of_order);
    assert_false(g.wrong_thread);
    for (unsigned i = 0; i < POSTERS; i++)
        mem_free(posters[i].jobs);
    gathered_fini(&g);
}

static void count_up(void *arg)
{
    (*(unsigned *)arg)++;
}

static void call_returns_after_the_function_has_run(void **state)
{
    (void)state;
    struct loop *loop;
    unsigned count = 0;

    assert_int_equal(loop_new("test-loop", &loop, NULL), SKEP_OK);
    for (unsigned i = 1; i <= 1000; i++) {
        loop_call(loop, count_up, &count);
        assert_int_equal(count, i);
    }
    assert_false(loop_is_own_thread(loop));
    loop_free(loop);
}

struct chain {
    struct loop_job job;
    struct loop *loop;
    unsigned left;
    bool inside; /* a job is running: another must not run within it */
    bool nested;
};

static void run_link(struct loop_job *job)
{
    struct chain *chain = (struct chain *)((char *)job - offsetof(struct chain, job));

    if (chain->inside)
        chain->nested = true;
    chain->inside = true;
    if (--chain->left > 0)
        loop_post(chain->loop, &chain->job);
    chain->inside = false;
}

static void jobs_that_post_jobs_all_run_before_the_loop_is_freed(void **state)
{
    (void)state;
    struct chain chain = {.job.run = run_link, .left = 1000};

    assert_int_equal(loop_new("test-loop", &chain.loop, NULL), SKEP_OK);
    loop_post(chain.loop, &chain.job);
    loop_free(chain.loop);
    assert_int_equal(chain.left, 0);
    assert_false(chain.nested);
}

struct hooked {
    struct loop_hook hook;
    struct loop *loop;
    unsigned jobs;
    unsigned jobs_seen; /* by the hook */
};

static void see_jobs(struct loop_hook *hook)
{
    struct hooked *h = (struct hooked *)((char *)hook - offsetof(struct hooked, hook));

    h->jobs_seen = h->jobs;
}

static void add_hook(void *arg)
{
    struct hooked *h = arg;

    loop_add_hook(h->loop, &h->hook);
}

static void remove_hook(void *arg)
{
    struct hooked *h = arg;

    loop_remove_hook(h->loop, &h->hook);
}

static void count_job(void *arg)
{
    ((struct hooked *)arg)->jobs++;
}

static void hooks_run_after_the_jobs_of_a_turn_until_removed(void **state)
{
    (void)state;
    struct hooked h = {.hook.run = see_jobs};

    assert_int_equal(loop_new("test-loop", &h.loop, NULL), SKEP_OK);
    loop_call(h.loop, add_hook, &h);
    loop_call(h.loop, count_job, &h);
    loop_call(h.loop, remove_hook, &h); /* the hook has run between the two calls */
    loop_call(h.loop, count_job, &h);
    loop_free(h.loop);
    assert_int_equal(h.jobs, 2);
    assert_int_equal(h.jobs_seen, 1);
}

/* Polling before a sleep. The counters belong to the loop's thread. */

struct polled {
    struct hooked hooked; /* first: hooks are found by it */
    bool message;         /* what the next poll finds */
    unsigned runs, polls, runs_after_message;
};

struct timed_polls {
    struct polled *of;
    struct gathered *to;
    uv_timer_t timer;
    unsigned fired, polls;
};

static void count_run(struct loop_hook *hook)
{
    struct polled *p = (struct polled *)((char *)hook - offsetof(struct hooked, hook));

    p->runs++;
}

static enum loop_poll find_message(struct loop_hook *hook)
{
    struct polled *p = (struct polled *)((char *)hook - offsetof(struct hooked, hook));

    p->polls++;
    if (!p->message)
        return LOOP_POLL_EMPTY;
    p->message = false;
    p->runs_after_message = p->runs + 1;
    return LOOP_POLL_DONE;
}

static void send_message(void *arg)
{
    ((struct polled *)arg)->message = true;
}

struct polled_seen {
    struct polled *of;
    unsigned runs, polls, runs_after_message;
};

static void look(void *arg)
{
    struct polled_seen *seen = arg;

    seen->runs = seen->of->runs;
    seen->polls = seen->of->polls;
    seen->runs_after_message = seen->of->runs_after_message;
}

static void short_sleeps_make_the_loop_poll_its_hooks(void **state)
{
    (void)state;
    struct polled p = {.hooked.hook = {.run = count_run, .poll = find_message}};
    struct polled_seen seen = {.of = &p};
    uint64_t deadline = clock_deadline_us(20000);

    if (cpu_count() < 2)
        skip(); /* one CPU: polling would keep it from the peer */
    assert_int_equal(loop_new("test-loop", &p.hooked.loop, NULL), SKEP_OK);
    loop_call(p.hooked.loop, add_hook, &p.hooked);
    /* Each call follows at once upon the one before: the loop sleeps shortly or not at all. */
    do
        loop_call(p.hooked.loop, look, &seen);
    while (seen.polls == 0 && clock_left_ms(deadline) > 0);
    assert_true(seen.polls > 0);
    loop_call(p.hooked.loop, send_message, &p);
    do
        loop_call(p.hooked.loop, look, &seen);
    while ((seen.runs_after_message == 0 || seen.runs < seen.runs_after_message) &&
           clock_left_ms(deadline) > 0); /* jobs run before the hook: they may see it in between */
    assert_true(seen.runs_after_message > 0);
    assert_true(seen.runs >= seen.runs_after_message); /* what came was dealt with and sent */
    loop_call(p.hooked.loop, remove_hook, &p.hooked);
    loop_free(p.hooked.loop);
}

static void repeat_timer(uv_timer_t *timer)
{
    struct timed_polls *t = timer->data;

    t->polls = t->of->polls;
    if (++t->fired < 8)
        return;
    uv_close((uv_handle_t *)timer, NULL);
    pthread_mutex_lock(&t->to->lock);
    t->to->ran++;
    pthread_cond_broadcast(&t->to->changed);
    pthread_mutex_unlock(&t->to->lock);
}

static void start_repeating(void *arg)
{
    struct timed_polls *t = arg;

    uv_timer_init(loop_uv(t->of->hooked.loop), &t->timer);
    t->timer.data = t;
    uv_timer_start(&t->timer, repeat_timer, 5, 5);
}

static void a_loop_that_sleeps_long_does_not_poll(void **state)
{
    (void)state;
    struct gathered g;
    struct polled p = {.hooked.hook = {.run = count_run, .poll = find_message}};
    struct timed_polls t = {.of = &p, .to = &g};

    assert_int_equal(loop_new("test-loop", &p.hooked.loop, NULL), SKEP_OK);
    gathered_init(&g, p.hooked.loop);
    loop_call(p.hooked.loop, add_hook, &p.hooked);
    loop_call(p.hooked.loop, start_repeating, &t);
    assert_true(wait_for(&g, 1));
    assert_int_equal(t.polls, 0);
    loop_call(p.hooked.loop, remove_hook, &p.hooked);
    loop_free(p.hooked.loop);
    gathered_fini(&g);
}

struct timed {
    struct loop *loop;
    uv_timer_t timer;
    struct gathered *to;
};

static void on_timer(uv_timer_t *timer)
{
    struct timed *t = timer->data;

    uv_close((uv_handle_t *)timer, NULL);
    pthread_mutex_lock(&t->to->lock);
    t->to->ran++;
    pthread_cond_broadcast(&t->to->changed);
    pthread_mutex_unlock(&t->to->lock);
}

static void start_timer(void *arg)
{
    struct timed *t = arg;

    uv_timer_init(loop_uv(t->loop), &t->timer);
    t->timer.data = t;
    uv_timer_start(&t->timer, on_timer, 1, 0);
}

static void timers_of_the_loop_fire(void **state)
{
    (void)state;
    struct gathered g;
    struct timed t = {.to = &g};

    assert_int_equal(loop_new("test-loop", &t.loop, NULL), SKEP_OK);
    gathered_init(&g, t.loop);
    loop_call(t.loop, start_timer, &t);
    assert_true(wait_for(&g, 1));
    loop_free(t.loop);
    gathered_fini(&g);
}

struct shared_count {
    struct loop_job job;
    struct loop *loop;
    unsigned long count; /* guarded by nothing but the loop's turn */
    unsigned left;
};

static void count_shared(struct loop_job *job)
{
    struct shared_count *s =
        (struct shared_count *)((char *)job - offsetof(struct shared_count, job));

    s->count++;
    if (--s->left > 0)
        loop_post(s->loop, &s->job);
}

static bool borrow_in_time(struct loop *loop, struct loop_takeover *takeover)
{
    uint64_t deadline = clock_deadline_us(20000);

    while (!loop_take_over(loop, takeover))
        if (clock_mono_us() > deadline)
            return false;
    return true;
}

static void borrower_and_loop_exclude_each_other(void **state)
{
    (void)state;
    enum { ROUNDS = 500, JOBS = 20 };
    struct shared_count s = {.job.run = count_shared};
    struct loop_takeover takeover;

    assert_int_equal(loop_new("test-loop", &s.loop, NULL), SKEP_OK);
    for (int i = 0; i < ROUNDS; i++) {
        assert_true(borrow_in_time(s.loop, &takeover));
        assert_true(loop_is_own_thread(s.loop));
        s.count++;
        s.left = JOBS;
        loop_post(s.loop, &s.job); /* wakes the loop, which has to wait for its turn */
        s.count++;
        loop_give_back(s.loop, &takeover, false);
        assert_false(loop_is_own_thread(s.loop));
    }
    assert_true(borrow_in_time(s.loop, &takeover)); /* only when no job is left */
    assert_int_equal(s.count, ROUNDS * (JOBS + 2));
    loop_give_back(s.loop, &takeover, true);
    loop_free(s.loop);
}

struct attempt {
    struct loop *loop;
    struct thread thread;
    bool borrowed;
};

static void try_to_borrow(void *arg)
{
    struct attempt *a = arg;
    struct loop_takeover takeover;

    a->borrowed = loop_take_over(a->loop, &takeover);
    if (a->borrowed)
        loop_give_back(a->loop, &takeover, false);
}

static void try_from_a_thread(void *arg)
{
    struct attempt *a = arg;

    if (thread_start(&a->thread, "borrower", try_to_borrow, a, NULL) == SKEP_OK)
        thread_join(&a->thread);
    else
        a->borrowed = true;
}

static void busy_loop_cannot_be_borrowed(void **state)
{
    (void)state;
    struct attempt a = {.borrowed = true};

    assert_int_equal(loop_new("test-loop", &a.loop, NULL), SKEP_OK);
    loop_call(a.loop, try_from_a_thread, &a); /* a job runs all the while */
    assert_false(a.borrowed);
    loop_free(a.loop);
}

static void failing_allocations_leave_nothing_behind(void **state)
{
    (void)state;
    struct loop *loop = NULL;
    long nth = 0;

    do {
        mem_fail_at(++nth);
        skep_status rc = loop_new("test-loop", &loop, NULL);
        bool failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, failed ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK);
        if (failed)
            assert_null(loop);
    } while (loop == NULL);
    assert_true(nth > 1);
    loop_free(loop);
    loop_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_of_each_thread_run_in_order_on_the_loop),
        cmocka_unit_test(call_returns_after_the_function_has_run),
        cmocka_unit_test(jobs_that_post_jobs_all_run_before_the_loop_is_freed),
        cmocka_unit_test(hooks_run_after_the_jobs_of_a_turn_until_removed),
        cmocka_unit_test(short_sleeps_make_the_loop_poll_its_hooks),
        cmocka_unit_test(a_loop_that_sleeps_long_does_not_poll),
        cmocka_unit_test(timers_of_the_loop_fire),
        cmocka_unit_test(borrower_and_loop_exclude_each_other),
        cmocka_unit_test(busy_loop_cannot_be_borrowed),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
