/* SIGINT, SIGTERM and SIGHUP: the first stops in order, the second at once. */
#include "unit.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/signals.h"

static atomic_int stops;

static void stop(void *arg)
{
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void first_signal_calls_stop_and_ends_the_wait(void **state)
{
    (void)state;
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};

    for (int i = 0; i < 3; i++) {
        atomic_store(&stops, 0);
        signals_begin(stop, &stops);
        assert_false(signals_wait(clock_deadline_us(1)));
        assert_int_equal(raise(numbers[i]), 0);
        assert_int_equal(atomic_load(&stops), 1);
        assert_true(signals_wait(CLOCK_NEVER));
        assert_true(signals_wait(CLOCK_NEVER)); /* asked again: still true */
        signals_end();
    }
}

/* Of a process of its own that runs this. */
static int exit_code_of(void (*run)(void))
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        run();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void raise_two(void)
{
    signals_begin(NULL, NULL);
    raise(SIGINT);
    signals_wait(CLOCK_NEVER);
    signals_end();
    raise(SIGHUP); /* the one that does not */
    raise(SIGTERM);
    _exit(0); /* not reached */
}

static void second_signal_ends_the_process(void **state)
{
    (void)state;
    assert_int_equal(exit_code_of(raise_two), 128 + SIGTERM);
}

static void raise_one_twice(void)
{
    signals_begin(NULL, NULL);
    raise(SIGTERM);
    raise(SIGTERM);
    _exit(signals_wait(CLOCK_NEVER) ? 7 : 8);
}

/* As `timeout` sends it: to the process, and at once to its group. */
static void a_signal_that_is_sent_twice_at_once_counts_once(void **state)
{
    (void)state;
    assert_int_equal(exit_code_of(raise_one_twice), 7);
}

static void ignored_hangup_stays_ignored(void **state)
{
    (void)state;
    signal(SIGHUP, SIG_IGN);
    atomic_store(&stops, 0);
    signals_begin(stop, &stops);
    raise(SIGHUP);
    assert_int_equal(atomic_load(&stops), 0);
    assert_false(signals_wait(clock_deadline_us(1)));
    signals_end();
    signal(SIGHUP, SIG_DFL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_signal_calls_stop_and_ends_the_wait),
        cmocka_unit_test(second_signal_ends_the_process),
        cmocka_unit_test(a_signal_that_is_sent_twice_at_once_counts_once),
        cmocka_unit_test(ignored_hangup_stays_ignored),
    };
    return cmocka_run_group_tests_name("signals", tests, NULL, NULL);
}
