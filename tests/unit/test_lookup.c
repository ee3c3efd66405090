/* Looking up names whose resolver takes as long as it likes. */
#include "unit.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/lookup.h"
#include "base/thread.h"
#include "tracker/client.h"

enum { PATIENCE_MS = 20000 };

/* ---- a resolver that waits to be told ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of these */
static pthread_cond_t changed;
static bool released;
static unsigned asked, answered;

static void wait_for(const unsigned *count, unsigned least)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);

    pthread_mutex_lock(&lock);
    while (*count < least && cond_wait_until(&changed, &lock, deadline))
        ;
    assert_true(*count >= least);
    pthread_mutex_unlock(&lock);
}

static void set_released(bool to)
{
    pthread_mutex_lock(&lock);
    released = to;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* In the place of the C library's. */
__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    union {
        void *symbol;
        int (*function)(const char *node, const char *service, const struct addrinfo *hints,
                        struct addrinfo **out);
    } real = {.symbol = dlsym(RTLD_NEXT, "getaddrinfo")};

    if (node == NULL || strcmp(node, "slow.test") != 0)
        return real.function(node, service, hints, out);
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return EAI_NONAME;
    pthread_mutex_lock(&lock);
    asked++;
    pthread_cond_broadcast(&changed);
    while (!released)
        pthread_cond_wait(&changed, &lock);
    answered++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return real.function("127.0.0.1", service, hints, out);
}

static int setup(void **state)
{
    (void)state;
    asked = answered = 0;
    set_released(false);
    return 0;
}

/* All that were left behind end, so that none is there when the next test counts. */
static int teardown(void **state)
{
    (void)state;
    set_released(true);
    wait_for(&answered, asked);
    return 0;
}

/* ---- lookups ---- */

struct told {
    unsigned times;
    struct lookup_answer result;
};

static void on_told(void *arg, const struct lookup_answer *result)
{
    struct told *told = arg;

    pthread_mutex_lock(&lock);
    told->result = *result;
    told->times++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static struct endpoint named(const char *host)
{
    struct endpoint e = {.port = 9190};

    snprintf(e.host, sizeof(e.host), "%s", host);
    return e;
}

static void a_name_leads_to_its_addresses(void **state)
{
    (void)state;
    struct endpoint name = named("slow.test"), found;
    struct told told = {0};
    struct lookup *lookup;

    assert_int_equal(lookup_start(&name, on_told, &told, &lookup, NULL), SKEP_OK);
    set_released(true);
    wait_for(&told.times, 1);
    assert_true(lookup_end(lookup));
    assert_int_equal(told.result.status, SKEP_OK);
    assert_int_equal(told.result.count, 1);
    endpoint_from_address(&found, (const struct sockaddr *)&told.result.addresses[0].sa);
    assert_string_equal(found.host, "127.0.0.1");
    assert_int_equal(found.port, 9190);
}

static void a_name_that_does_not_exist_is_told_so(void **state)
{
    (void)state;
    struct endpoint name = named("");
    struct told told = {0};
    struct lookup *lookup;

    assert_int_equal(lookup_start(&name, on_told, &told, &lookup, NULL), SKEP_OK);
    wait_for(&told.times, 1);
    assert_true(lookup_end(lookup));
    assert_int_equal(told.result.status, SKEP_UNAVAILABLE);
    assert_int_equal(told.result.count, 0);
}

static void who_ends_it_is_not_told(void **state)
{
    (void)state;
    struct endpoint name = named("slow.test");
    struct told told = {0};
    struct lookup *lookup;

    assert_int_equal(lookup_start(&name, on_told, &told, &lookup, NULL), SKEP_OK);
    wait_for(&asked, 1);
    assert_false(lookup_end(lookup)); /* returns although the resolver does not */
    set_released(true);
    wait_for(&answered, 1);
    assert_int_equal(told.times, 0);
}

/* So that names that nobody answers cannot pile up threads without end. */
static void so_many_at_once_and_no_more(void **state)
{
    (void)state;
    struct endpoint name = named("slow.test");
    struct told told = {0};
    struct lookup *lookups[LOOKUP_MAX_THREADS + 1];
    struct skep_error err;
    unsigned started = 0;

    while (lookup_start(&name, on_told, &told, &lookups[started], &err) == SKEP_OK) {
        started++;
        assert_true(started <= LOOKUP_MAX_THREADS);
    }
    /* Those of the tests before may be about to end. */
    assert_true(started > LOOKUP_MAX_THREADS - 8);
    assert_int_equal(err.status, SKEP_RESOURCE_EXHAUSTED);
    assert_null(lookups[started]);
    wait_for(&asked, started);
    for (unsigned i = 0; i < started; i++)
        assert_false(lookup_end(lookups[i]));
}

/* ---- who asks a tracker ---- */

static void a_tracker_whose_name_hangs_is_given_up_in_time(void **state)
{
    (void)state;
    struct endpoint name = named("slow.test");
    struct bytes message = {0};
    struct skep_error err;
    json_t *reply;

    assert_true(tracker_write_plain(&message, TRACKER_SUMMARY));
    assert_int_equal(tracker_ask(&name, &message, clock_deadline_us(200), &reply, &err),
                     SKEP_DEADLINE_EXCEEDED);
    assert_null(reply);
    assert_non_null(strstr(err.message, "slow.test"));
    wait_for(&asked, 1);
    pthread_mutex_lock(&lock);
    assert_int_equal(answered, 0); /* it has not waited for the resolver */
    pthread_mutex_unlock(&lock);
    bytes_free(&message);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_name_leads_to_its_addresses),
        TEST(a_name_that_does_not_exist_is_told_so),
        TEST(who_ends_it_is_not_told),
        TEST(so_many_at_once_and_no_more),
        TEST(a_tracker_whose_name_hangs_is_given_up_in_time),
    };

    cond_init(&changed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
