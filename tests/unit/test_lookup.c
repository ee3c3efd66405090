/* Looking up names whose resolver takes as long as it likes. */
#include "unit.h"

#include <stdio.h>

#include "base/lookup.h"
#include "made_up_names.h"
#include "tracker/client.h"

/* ---- lookups ---- */

struct told {
    unsigned times; /* this and the result are guarded by names_lock */
    struct lookup_answer result;
};

static void on_told(void *arg, const struct lookup_answer *result)
{
    struct told *told = arg;

    pthread_mutex_lock(&names_lock);
    told->result = *result;
    told->times++;
    pthread_cond_broadcast(&names_changed);
    pthread_mutex_unlock(&names_lock);
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

    assert_int_equal(lookup_start(&name, false, on_told, &told, &lookup, NULL), SKEP_OK);
    names_set_released(true);
    assert_true(names_reach(&told.times, 1));
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

    assert_int_equal(lookup_start(&name, false, on_told, &told, &lookup, NULL), SKEP_OK);
    assert_true(names_reach(&told.times, 1));
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

    assert_int_equal(lookup_start(&name, false, on_told, &told, &lookup, NULL), SKEP_OK);
    assert_true(names_reach(&names_asked, 1));
    assert_false(lookup_end(lookup)); /* returns although the resolver does not */
    names_set_released(true);
    assert_true(names_reach(&names_answered, 1));
    assert_int_equal(told.times, 0);
}

/* So that names that nobody answers cannot pile up threads without end, nor those that strangers
 * chose take them all. */
static void so_many_at_once_and_no_more(void **state)
{
    (void)state;
    struct endpoint name = named("slow.test");
    struct told told = {0};
    struct lookup *lookups[LOOKUP_MAX_THREADS + 1];
    struct skep_error err;
    unsigned started = 0;

    while (lookup_start(&name, true, on_told, &told, &lookups[started], &err) == SKEP_OK) {
        started++;
        assert_true(started <= LOOKUP_MAX_FOREIGN);
    }
    /* Those of the tests before may be about to end. */
    assert_true(started > LOOKUP_MAX_FOREIGN - 8);
    assert_int_equal(err.status, SKEP_RESOURCE_EXHAUSTED);
    assert_null(lookups[started]);
    while (lookup_start(&name, false, on_told, &told, &lookups[started], &err) == SKEP_OK) {
        started++;
        assert_true(started <= LOOKUP_MAX_THREADS);
    }
    assert_true(started > LOOKUP_MAX_THREADS - 8);
    assert_int_equal(err.status, SKEP_RESOURCE_EXHAUSTED);
    assert_null(lookups[started]);
    assert_true(names_reach(&names_asked, started));
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
    assert_true(names_reach(&names_asked, 1));
    assert_int_equal(names_count(&names_answered), 0); /* it has not waited for the resolver */
    bytes_free(&message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        NAMES_TEST(a_name_leads_to_its_addresses),
        NAMES_TEST(a_name_that_does_not_exist_is_told_so),
        NAMES_TEST(who_ends_it_is_not_told),
        NAMES_TEST(so_many_at_once_and_no_more),
        NAMES_TEST(a_tracker_whose_name_hangs_is_given_up_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
