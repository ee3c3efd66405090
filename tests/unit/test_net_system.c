/* What the system may do to a pool: names that lead astray or nowhere, sockets that cannot send. */
#include "net_fixture.h"

#include <dlfcn.h>
#include <netdb.h>
#include <sys/syscall.h>

/* ---- The system's functions, made to misbehave ---- */

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER; /* guards release_names */
static pthread_cond_t names_changed = PTHREAD_COND_INITIALIZER;
static bool release_names;
static atomic_int next_send_fails; /* with this errno, once; 0: it does not */

static const struct {
    const char *name;
    const char *address;
} made_up_names[] = {
    {"loopback.test", "127.0.0.1"},
    {"other.test", "127.8.9.1"},
    {"any.test", "0.0.0.0"},
    {"six.test", "::1"},
    {"mapped.test", "::ffff:127.0.0.1"},
    {"slow.test", "127.0.0.1"},
};

enum { NAMES = sizeof(made_up_names) / sizeof(made_up_names[0]) };

static void wait_for_release(void)
{
    pthread_mutex_lock(&names_lock);
    while (!release_names)
        pthread_cond_wait(&names_changed, &names_lock);
    pthread_mutex_unlock(&names_lock);
}

static void set_release(bool release)
{
    pthread_mutex_lock(&names_lock);
    release_names = release;
    pthread_cond_broadcast(&names_changed);
    pthread_mutex_unlock(&names_lock);
}

/* In the place of the C library's, for libuv too. */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    union {
        void *symbol;
        int (*function)(const char *node, const char *service, const struct addrinfo *hints,
                        struct addrinfo **out);
    } real = {.symbol = dlsym(RTLD_NEXT, "getaddrinfo")};

    for (size_t i = 0; i < NAMES && node != NULL; i++) {
        if (strcmp(node, made_up_names[i].name) != 0)
            continue;
        if (hints != NULL && (hints->ai_flags & AI_NUMERICHOST) != 0)
            return EAI_NONAME;
        if (strcmp(node, "slow.test") == 0)
            wait_for_release();
        return real.function(made_up_names[i].address, service, hints, out);
    }
    return real.function(node, service, hints, out);
}

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

    set_release(false);
    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 200;
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    target.endpoint_count = 2;
    target.endpoints[1] = target.endpoints[0];
    set_host(&target, 0, "slow.test");
    call_target(f.pool, &target, "echo", clock_deadline_us(PATIENCE_MS), &w);
    assert_int_equal(w.status, SKEP_OK);
    waiter_fini(&w);
    set_release(true);
    fixture_end(&f);
}

static void names_looked_up_at_once_are_bounded(void **state)
{
    (void)state;
    struct fixture f;
    static struct waiter w[POOL_MAX_LOOKUPS];
    struct waiter more;

    set_release(false);
    fixture_init(&f);
    f.pool_config.connect_timeout_ms = 10 * PATIENCE_MS;
    fixture_start(&f);
    struct pool_target target = target_of(&f);
    target.has_peer_id = false;
    set_host(&target, 0, "slow.test");
    for (size_t i = 0; i < POOL_MAX_LOOKUPS; i++) {
        waiter_init(&w[i]);
        target.endpoints[0].port = (uint16_t)(1 + i);
        assert_int_equal(start_call_to(f.pool, &target, "echo", NULL, 0, CLOCK_NEVER, &w[i], NULL),
                         SKEP_OK);
    }
    target.endpoints[0].port = POOL_MAX_LOOKUPS + 1;
    call_target(f.pool, &target, "echo", CLOCK_NEVER, &more);
    assert_int_equal(more.status, SKEP_UNAVAILABLE);
    assert_non_null(strstr(more.message, "too many names"));
    waiter_fini(&more);
    assert_serves(&f); /* addresses need no looking up */
    set_release(true);
    pool_free(f.pool);
    f.pool = NULL;
    for (size_t i = 0; i < POOL_MAX_LOOKUPS; i++) {
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
        cmocka_unit_test(slow_name_is_given_up_for_the_next_endpoint),
        cmocka_unit_test(names_looked_up_at_once_are_bounded),
        cmocka_unit_test(socket_that_cannot_send_ends_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
