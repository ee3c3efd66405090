/* Teams of threads, and what becomes of one when the system refuses threads. */
#include "unit.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <skep/log.h>
#include "base/clock.h"
#include "base/thread.h"
#include "experts/parallel.h"

/* What oneDNN calls for a loop on fewer threads than the team has. */
extern void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads, unsigned flags);

enum {
    TEAM = 4,
    ITEMS = 4096,
    OTHER_USER = 61235, /* nobody's: root is exempt from the limit */
    WAIT_MS = 60000,
};

static void add_range(void *arg, size_t first, size_t last, unsigned part)
{
    atomic_size_t *sum = arg;

    (void)part;
    for (size_t i = first; i < last; i++)
        atomic_fetch_add(sum, i);
}

static bool adds_up(void)
{
    atomic_size_t sum = 0;

    parallel_range(ITEMS, 1, 1, add_range, &sum);
    return sum == (size_t)ITEMS * (ITEMS - 1) / 2;
}

static void do_nothing(void *data)
{
    (void)data;
}

static void set_limit(rlim_t soft)
{
    struct rlimit limit;

    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = soft < limit.rlim_max ? soft : limit.rlim_max;
    setrlimit(RLIMIT_NPROC, &limit);
}

/* In a process of its own: its exit code tells which step went wrong, 0 if none. */
static int shrink_and_grow(void)
{
    uint64_t deadline;

    if (geteuid() == 0 && setuid(OTHER_USER) != 0)
        return 1;
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    if (parallel_team_make(TEAM, NULL) != SKEP_OK || !adds_up())
        return 2;
    GOMP_parallel(do_nothing, NULL, 2, 0); /* lets two threads go */
    set_limit(1);
    /* The check is due some milliseconds after the last one, and the two end in their own time. */
    deadline = clock_deadline_us(WAIT_MS);
    while (parallel_team_check() != 2)
        if (clock_mono_us() > deadline)
            return 3;
    if (parallel_parts(ITEMS, 1) != 2 || !adds_up())
        return 4;
    set_limit(RLIM_INFINITY);
    deadline = clock_deadline_us(WAIT_MS);
    while (parallel_team_check() != TEAM)
        if (clock_mono_us() > deadline)
            return 5;
    return parallel_parts(ITEMS, 1) == TEAM && adds_up() ? 0 : 6;
}

static int no_team_at_all(void)
{
    struct skep_error err;

    if (geteuid() == 0 && setuid(OTHER_USER) != 0)
        return 1;
    set_limit(1);
    if (parallel_team_make(TEAM, &err) != SKEP_RESOURCE_EXHAUSTED)
        return 2;
    if (strstr(err.message, "4 threads to compute with") == NULL)
        return 3;
    return parallel_parts(ITEMS, 1) == 1 && adds_up() ? 0 : 4;
}

static int in_child(int (*run)(void))
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0)
        _exit(run());
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void team_goes_on_with_the_threads_it_has_left(void **state)
{
    (void)state;
    assert_int_equal(in_child(shrink_and_grow), 0);
}

static void team_that_cannot_be_made_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(in_child(no_team_at_all), 0);
}

static void single_means_one_part_and_back(void **state)
{
    (void)state;
    assert_int_equal(parallel_team_make(TEAM, NULL), SKEP_OK);
    int token = parallel_single();
    assert_int_equal(parallel_parts(ITEMS, 1), 1);
    int inner = parallel_single();
    parallel_restore(inner);
    assert_int_equal(parallel_parts(ITEMS, 1), 1);
    parallel_restore(token);
    assert_int_equal(parallel_parts(ITEMS, 1), TEAM);
    assert_true(adds_up());
}

static void count_parts(void *arg)
{
    *(unsigned *)arg = parallel_parts(ITEMS * 64, 1);
}

static void other_threads_have_the_default_team(void **state)
{
    (void)state;
    struct thread thread = {0};
    unsigned parts = 0;

    assert_int_equal(thread_start(&thread, "other", count_parts, &parts, NULL), SKEP_OK);
    thread_join(&thread);
    assert_int_equal(parts, parallel_default());
}

int main(void)
{
    /* Those that fork first: a child has none of its parent's threads. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(team_goes_on_with_the_threads_it_has_left),
        cmocka_unit_test(team_that_cannot_be_made_is_an_error),
        cmocka_unit_test(single_means_one_part_and_back),
        cmocka_unit_test(other_threads_have_the_default_team),
    };

    return cmocka_run_group_tests_name("parallel", tests, NULL, NULL);
}
