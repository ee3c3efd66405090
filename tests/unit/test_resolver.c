/* Names and trackers to addresses, whose resolver takes as long as it likes. */
#include "unit.h"

#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "dht/bootstrap/resolver.h"
#include "made_up_names.h"

enum { NETWORK = 77 };

struct fixture {
    struct resolver *resolver;
    pthread_mutex_t lock; /* guards woken */
    pthread_cond_t changed;
    unsigned woken;
};

static void wake(void *arg)
{
    struct fixture *f = arg;

    pthread_mutex_lock(&f->lock);
    f->woken++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void start(struct fixture *f)
{
    *f = (struct fixture){.lock = PTHREAD_MUTEX_INITIALIZER};
    cond_init(&f->changed);
    assert_int_equal(resolver_new(NETWORK, wake, f, &f->resolver, NULL), SKEP_OK);
}

static void stop(struct fixture *f)
{
    resolver_free(f->resolver);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
}

static void ask(struct fixture *f, size_t tag, const char *text)
{
    struct initial_peer peer;

    assert_int_equal(initial_peer_parse(&peer, text, NULL), SKEP_OK);
    assert_int_equal(resolver_ask(f->resolver, tag, &peer, NULL), SKEP_OK);
}

/* The next answer. */
static struct resolution answer(struct fixture *f)
{
    uint64_t deadline = clock_deadline_us(NAMES_PATIENCE_MS);
    struct resolution r = {0};
    unsigned seen;
    bool in_time = true;

    do {
        pthread_mutex_lock(&f->lock);
        seen = f->woken;
        pthread_mutex_unlock(&f->lock);
        if (resolver_take(f->resolver, &r))
            return r;
        pthread_mutex_lock(&f->lock);
        while (in_time && f->woken == seen)
            in_time = cond_wait_until(&f->changed, &f->lock, deadline);
        pthread_mutex_unlock(&f->lock);
    } while (in_time);
    fail_msg("no answer");
    return r;
}

static void a_name_that_hangs_holds_up_no_other(void **state)
{
    (void)state;
    struct fixture f;
    struct endpoint e;

    start(&f);
    ask(&f, 7, "slow.test:4222");
    assert_true(names_reach(&names_asked, 1));
    ask(&f, 8, "other.test:4222");
    struct resolution r = answer(&f);
    assert_int_equal(r.tag, 8);
    assert_int_equal(r.status, SKEP_OK);
    assert_int_equal(r.count, 1);
    endpoint_from_address(&e, (const struct sockaddr *)&r.addresses[0].sa);
    assert_string_equal(e.host, "127.8.9.1");
    assert_int_equal(e.port, 4222);
    names_set_released(true);
    assert_int_equal(answer(&f).tag, 7);
    stop(&f);
}

static void what_hangs_does_not_hold_up_the_end(void **state)
{
    (void)state;
    struct fixture f;

    start(&f);
    ask(&f, 0, "slow-0.test:4222");
    ask(&f, 1, "tracker://slow-1.test:9190");
    assert_true(names_reach(&names_asked, 2));
    stop(&f);
    assert_int_equal(names_count(&names_answered), 0);
    assert_int_equal(f.woken, 0);
}

static void a_name_that_leads_nowhere_is_told_so(void **state)
{
    (void)state;
    struct fixture f;

    start(&f);
    ask(&f, 0, "none.test:4222");
    struct resolution r = answer(&f);
    assert_int_equal(r.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(r.err.message, "none.test"));
    assert_int_equal(r.count, 0);
    ask(&f, 1, "tracker://none.test:9190");
    r = answer(&f);
    assert_int_equal(r.tag, 1);
    assert_int_equal(r.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(r.err.message, "none.test"));
    stop(&f);
}

/* More than are looked up at once: each has its turn. */
static void many_names_are_all_answered(void **state)
{
    (void)state;
    enum { NAMES = 100 };
    struct fixture f;
    bool answered[NAMES] = {false};
    char text[64];

    start(&f);
    for (size_t i = 0; i < NAMES; i++) {
        snprintf(text, sizeof(text), "slow-%zu.test:4222", i);
        ask(&f, i, text);
    }
    assert_true(names_reach(&names_asked, 2));
    names_set_released(true);
    for (size_t i = 0; i < NAMES; i++) {
        struct resolution r = answer(&f);
        assert_int_equal(r.status, SKEP_OK);
        assert_true(r.tag < NAMES && !answered[r.tag]);
        answered[r.tag] = true;
    }
    stop(&f);
}

static void a_tracker_is_asked_at_what_its_name_leads_to(void **state)
{
    (void)state;
    struct fixture f;
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(sa);
    char text[64];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    start(&f);
    /* Nobody listens there. */
    snprintf(text, sizeof(text), "tracker://loopback.test:%u", ntohs(sa.sin_port));
    ask(&f, 3, text);
    struct resolution r = answer(&f);
    assert_int_equal(r.tag, 3);
    assert_int_equal(r.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(r.err.message, "cannot connect"));
    /* The kernel accepts for it; nobody answers, and that does not hold up the end. */
    assert_int_equal(listen(fd, 4), 0);
    ask(&f, 3, text);
    snprintf(text, sizeof(text), "tracker://127.0.0.1:%u", ntohs(sa.sin_port));
    ask(&f, 4, text);
    stop(&f);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NAMES_TEST(a_name_that_hangs_holds_up_no_other),
        NAMES_TEST(what_hangs_does_not_hold_up_the_end),
        NAMES_TEST(a_name_that_leads_nowhere_is_told_so),
        NAMES_TEST(many_names_are_all_answered),
        NAMES_TEST(a_tracker_is_asked_at_what_its_name_leads_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
