/* What the system may do to a pool: names that lead astray or nowhere, sockets that cannot send. */
#include "net_fixture.h"

#include <sys/syscall.h>

#include "base/lookup.h"
#include "made_up_names.h"

static atomic_int next_send_fails; /* with this errno, once; 0: it does not */

/* In the place of the C library's. */
ssize_t send(int fd, const void *data, size_t len, int flags)
{
    int error_number = atomic_exchange(&next_send_fails, 0);

    if (error_number != 0) {
        errno = error_number;
        return -1;
    }
    return syscall(SYS_sendto, fd, data, len, flags, NULL, 0);
}

static void set_host(struct pool_target *target, size_t i, const char *host)
{
    snprintf(target->endpoints[i].host, sizeof(target->endpoints[i].host), "%s", host);
}

/* ---- Names ---- */

static void record_does_not_lead_to_this_machine(void **state)
{
    (void)state;
    static const char *const hosts[] = {"loopback.test", "other.test",      "any.test",
                                        "six.test",      "mapped.test",     "127.0.0.1",
                                        "::1",           "::ffff:127.0.0.1"};
    struct fixture f;
    struct server_counters c;

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    target.no_loopback = true;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        struct waiter w;
        set_host(&target, 0, hosts[i]);
        call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
        if (w.status != SKEP_UNAVAILABLE || strstr(w.message, hosts[i]) == NULL ||
            strstr(w.message, "of this machine") == NULL)
            fail_msg("%s: %s: %s", hosts[i], skep_status_name(w.status), w.message);
        waiter_fini(&w);
    }
    server_counters(f.server, &c);
    assert_int_equal(c.connections_accepted, 0);
    /* The same for someone who was told the address by its user. */
    target.no_loopback = false;
    struct waiter w;
    set_host(&target, 0, "loopback.test");
    call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);
    fixture_end(&f);
}

static void slow_name_is_given_up_for_the_next_endpoint(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 1000; /* enough for the other one */
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    target.endpoint_count = 2;
    target.endpoints[1] = target.endpoints[0];
    set_host(&target, 0, "slow.test");
    call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);
    fixture_end(&f);
    assert_int_equal(names_count(&names_answered), 0);
}

static void name_that_does_not_exist_is_told_so(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    set_host(&target, 0, "none.test");
    call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
    assert_int_equal(w.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(w.message, "\"none.test\": cannot resolve: "));
    waiter_fini(&w);
    fixture_end(&f);
}

enum { HANGING = 8 };

/* Starts calls that wait for slow names, each for one of its own. */
static void start_hanging(struct fixture *f, struct waiter *w, size_t count, uint64_t deadline_us,
                          bool foreign)
{
    struct pool_target target = target_of(f);

    target.has_peer_id = false;
    target.no_loopback = foreign;
    for (size_t i = 0; i < count; i++) {
        snprintf(target.endpoints[0].host, sizeof(target.endpoints[0].host), "slow-%zu.test", i);
        waiter_init(&w[i]);
        assert_int_equal(start_call_to(f->pool, &target, "echo", NULL, 0, deadline_us, &w[i], NULL),
                         SKEP_OK);
    }
}

static void names_that_hang_hold_up_no_other(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter hanging[HANGING], w;

    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    start_hanging(&f, hanging, HANGING, CLOCK_NEVER, false);
    assert_true(names_reach(&names_asked, HANGING));
    struct pool_target target = target_of(&f);
    set_host(&target, 0, "loopback.test");
    call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);
    /* They do not hold up the end either. */
    pool_free(f.pool);
    f.pool = NULL;
    assert_int_equal(names_count(&names_answered), 0);
    for (size_t i = 0; i < HANGING; i++) {
        assert_int_equal(waiter_done(&hanging[i]), 1);
        assert_int_equal(hanging[i].status, SKEP_CANCELLED);
        waiter_fini(&hanging[i]);
    }
    fixture_end(&f);
}

static void a_call_ends_in_time_though_its_name_hangs(void **state)
{
    (void)state;
    struct fixture f;
    struct waiter w;

    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    start_hanging(&f, &w, 1, clock_deadline_us(100), false);
    waiter_wait(&w);
    assert_int_equal(w.status, SKEP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(w.message, "while looking up slow-0.test"));
    waiter_fini(&w);
    fixture_end(&f);
    assert_int_equal(names_count(&names_answered), 0);
}

static void names_of_strangers_looked_up_at_once_are_bounded(void **state)
{
    (void)state;
    struct fixture f;
    static struct waiter w[LOOKUP_MAX_FOREIGN];
    struct waiter more;

    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    start_hanging(&f, w, LOOKUP_MAX_FOREIGN, CLOCK_NEVER, true);
    struct pool_target target = target_of(&f);
    target.no_loopback = true;
    set_host(&target, 0, "loopback.test");
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &more);
    assert_int_equal(more.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(more.message, "names are being looked up already"));
    waiter_fini(&more);
    /* Those that our own user gives are looked up all the same. */
    target.no_loopback = false;
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &more);
    assert_int_equal(more.status, SKEP_OK);
    waiter_fini(&more);
    pool_free(f.pool);
    f.pool = NULL;
    for (size_t i = 0; i < LOOKUP_MAX_FOREIGN; i++) {
        assert_int_equal(waiter_done(&w[i]), 1);
        waiter_fini(&w[i]);
    }
    fixture_end(&f);
}

/* ---- Sending ---- */

static void socket_that_cannot_send_ends_the_connection(void **state)
{
    (void)state;
    static const int causes[] = {ENOBUFS, ENOMEM};
    struct fixture f;

    fixture_init(&f);
    fixture_start(&f);
    for (size_t i = 0; i < sizeof(causes) / sizeof(causes[0]); i++) {
        struct waiter w;
        assert_serves(&f); /* the connection is there and idle: the next bytes are the call's */
        waiter_init(&w);
        atomic_store(&next_send_fails, causes[i]);
        start_plain(&f, "echo", &w);
        waiter_wait(&w);
        assert_int_equal(w.status, SKEP_UNAVAILABLE);
        assert_non_null(strstr(w.message, strerror(causes[i])));
        waiter_fini(&w);
    }
    assert_serves(&f);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(record_does_not_lead_to_this_machine),
        NAMES_TEST(slow_name_is_given_up_for_the_next_endpoint),
        cmocka_unit_test(name_that_does_not_exist_is_told_so),
        NAMES_TEST(names_that_hang_hold_up_no_other),
        NAMES_TEST(a_call_ends_in_time_though_its_name_hangs),
        NAMES_TEST(names_of_strangers_looked_up_at_once_are_bounded),
        cmocka_unit_test(socket_that_cannot_send_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
