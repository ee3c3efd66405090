/* What a process that uses OpenDHT for Skep alone does with values of types unknown to it. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "dht/opendht/opendht_ext.h"
#include "dht/opendht/runner.h"

enum { PATIENCE_MS = 60000, UNKNOWN_TYPE_INDEX = 1000 };

struct wait {
    pthread_mutex_t lock; /* guards done and good */
    pthread_cond_t changed;
    unsigned done;
    bool good;
};

static void note(struct wait *w, bool good)
{
    pthread_mutex_lock(&w->lock);
    w->done++;
    w->good = good;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void await(struct wait *w, unsigned done)
{
    uint64_t deadline_us = clock_deadline_us(PATIENCE_MS);

    pthread_mutex_lock(&w->lock);
    while (w->done < done && cond_wait_until(&w->changed, &w->lock, deadline_us))
        continue;
    unsigned seen = w->done;
    pthread_mutex_unlock(&w->lock);
    assert_true(seen >= done);
}

static void on_ping(bool ok, void *arg)
{
    note(arg, ok);
}

static void on_put_done(void *arg, bool ok)
{
    note(arg, ok);
}

static void on_release(void *arg)
{
    (void)arg;
}

static void unknown_types_are_not_stored(void **state)
{
    (void)state;
    struct record_swarm swarm = {.name = "types", .loopback = true};
    struct runner_config ours = {
        .listen = {.host = "127.0.0.1"}, .network_id = record_network_id(&swarm), .swarm = &swarm};
    struct wait w = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const struct opendht_ext_calls calls = {.done = on_put_done, .release = on_release, .arg = &w};
    static const uint8_t key[RECORD_KEY_BYTES] = {1, 2, 3};
    static const uint8_t junk[] = "junk";
    struct runner *a;
    struct runner_status status;
    struct address address;
    dht_runner_config config;
    struct skep_error err;

    cond_init(&w.changed);
    runner_own_process();
    if (runner_new(&ours, &a, &err) != SKEP_OK)
        fail_msg("runner_new: %s", err.message);
    struct endpoint e = {.host = "127.0.0.1", .port = runner_port(a)};
    assert_true(endpoint_to_address(&e, &address));

    dht_runner *stock = dht_runner_new();
    dht_runner_config_default(&config);
    config.dht_config.node_config.network = ours.network_id;
    assert_int_equal(dht_runner_run_config(stock, 0, &config), 0);
    dht_runner_ping(stock, (struct sockaddr *)&address.sa, address.len, on_ping, &w);
    await(&w, 1);
    assert_true(w.good);
    opendht_ext_put(stock, key, 7, UNKNOWN_TYPE_INDEX, junk, sizeof(junk), &calls);
    await(&w, 2);
    runner_status(a, &status);
    assert_int_equal(status.storage_values, 0);

    dht_runner_delete(stock);
    runner_free(a, clock_deadline_us(PATIENCE_MS));
    pthread_cond_destroy(&w.changed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(unknown_types_are_not_stored)};

    return cmocka_run_group_tests_name("runner_types", tests, NULL, NULL);
}
