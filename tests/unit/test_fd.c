#include "unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/fd.h"

/* Whether this process may hold descriptors at or above the limit. */
static bool high_numbers_allowed(void)
{
    return fd_raise_limit() > FD_LOW_LIMIT + 64;
}

static void raised_limit_is_the_hard_one(void **state)
{
    (void)state;
    struct rlimit limit;
    unsigned long seen = fd_raise_limit();

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(limit.rlim_cur == limit.rlim_max);
    assert_true(seen == limit.rlim_cur);
}

static void moved_descriptor_is_high_and_the_old_one_closed(void **state)
{
    (void)state;
    int ends[2];

    if (!high_numbers_allowed())
        skip();
    assert_int_equal(pipe(ends), 0);
    int high = fd_move_high(ends[1]);
    assert_true(high >= FD_LOW_LIMIT);
    assert_int_equal(fcntl(high, F_GETFD), FD_CLOEXEC);
    assert_int_equal(fcntl(ends[1], F_GETFD), -1);
    assert_int_equal(write(high, "x", 1), 1);
    char c;
    assert_int_equal(read(ends[0], &c, 1), 1);
    assert_int_equal(fd_move_high(high), high);
    close(high);
    close(ends[0]);
}

static void descriptor_that_cannot_move_stays_usable(void **state)
{
    (void)state;
    struct rlimit before, low;

    assert_int_equal(fd_move_high(-1), -1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 256;
    int fd = open("/dev/null", O_WRONLY);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    int same = fd_move_high(fd);
    int flags = fcntl(same, F_GETFD);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(same, fd);
    assert_int_equal(flags, FD_CLOEXEC);
    close(fd);
}

static void low_numbers_are_counted(void **state)
{
    (void)state;
    struct rlimit before, low;
    struct skep_error err;

    assert_int_equal(fd_check_low_free(16, NULL), SKEP_OK);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = 16;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    skep_status rc = fd_check_low_free(16, &err); /* 0, 1 and 2 are taken at least */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "of the limit of 16 are free, expected at least 16; raise "
                                        "the limit with ulimit -n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(raised_limit_is_the_hard_one),
        cmocka_unit_test(moved_descriptor_is_high_and_the_old_one_closed),
        cmocka_unit_test(descriptor_that_cannot_move_stays_usable),
        cmocka_unit_test(low_numbers_are_counted),
    };
    return cmocka_run_group_tests_name("fd", tests, NULL, NULL);
}
