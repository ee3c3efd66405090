/* 2,000 connections at once, none of them on a descriptor that OpenDHT's select() needs. */
#include "net_fixture.h"

#include <sys/resource.h>
#include <sys/stat.h>

enum { MANY = 2000, OTHER_DESCRIPTORS = 500 };

static unsigned low_sockets(void)
{
    unsigned count = 0;
    struct stat st;

    for (int fd = 3; fd < FD_LOW_LIMIT; fd++)
        count += fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
    return count;
}

static double cpu_seconds(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void two_thousand_connections_keep_off_the_low_descriptors(void **state)
{
    (void)state;
    struct fixture f;
    static struct waiter w[MANY];
    struct server_counters c;

    /* Both ends of each connection are in this process. */
    if (fd_raise_limit() < FD_LOW_LIMIT + 2 * MANY + OTHER_DESCRIPTORS) {
        print_message("skipped: the limit on open files is below %d\n",
                      FD_LOW_LIMIT + 2 * MANY + OTHER_DESCRIPTORS);
        skip();
    }
    fixture_init(&f);
    snprintf(f.config.listen.host, sizeof(f.config.listen.host), "0.0.0.0");
    f.pool_config.max_connections = MANY;
    take_time(&f);
    unsigned before = low_sockets();
    fixture_start(&f);
    double cpu = cpu_seconds();
    for (int i = 0; i < MANY; i++) {
        struct pool_target own = target_of(&f);
        waiter_init(&w[i]);
        own.has_peer_id = false; /* connections are by endpoint then */
        snprintf(own.endpoints[0].host, sizeof(own.endpoints[0].host), "127.1.%d.%d", i / 200,
                 1 + i % 200);
        assert_int_equal(start_call_to(f.pool, &own, "hold", NULL, 0, CLOCK_NEVER, &w[i], NULL),
                         SKEP_OK);
    }
    wait_count(&f, &f.held_count, MANY);
    print_message("%d connections with a call each: %.2f s of CPU\n", MANY, cpu_seconds() - cpu);
    server_counters(f.server, &c);
    assert_int_equal(c.connections_open, MANY);
    assert_int_equal(low_sockets(), before);
    assert_int_equal(fd_check_low_free(64, NULL), SKEP_OK);

    release_held(&f);
    for (int i = 0; i < MANY; i++) {
        waiter_wait(&w[i]);
        assert_int_equal(w[i].status, SKEP_OK);
        waiter_fini(&w[i]);
    }
    /* All idle and open: one more peer still gets through beside them. */
    server_counters(f.server, &c);
    assert_int_equal(c.connections_open, MANY);
    snprintf(f.endpoint.host, sizeof(f.endpoint.host), "127.0.0.1");
    assert_serves(&f);
    fixture_end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_thousand_connections_keep_off_the_low_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
