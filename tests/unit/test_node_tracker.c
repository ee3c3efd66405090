/* A node's own tracker: its port, and what is told of it. */
#include "node_caller.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mp.h"

enum { FIRST = 9190, LAST = 9198 };

static uint16_t tracker_port(const struct skep_node *node)
{
    const char *text = skep_node_tracker_endpoint(node);
    struct endpoint e;

    assert_int_equal(endpoint_parse(&e, text, false, NULL), SKEP_OK);
    return e.port;
}

/* A socket that listens there; -1 if somebody else does. */
static int take_port(uint16_t port)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;

    assert_true(fd >= 0);
    /* As trackers do: connections of earlier ones may linger there. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0)
        return fd;
    close(fd);
    return -1;
}

static void a_node_too_many_for_the_range_has_another_port(void **state)
{
    (void)state;
    int taken[LAST - FIRST + 1];
    bool in_range = true;

    memset(taken, -1, sizeof(taken));
    /* Other programs come and go: a port that one has left meanwhile is taken the next time. */
    for (int attempt = 0; attempt < 20 && in_range; attempt++) {
        for (int i = 0; i <= LAST - FIRST; i++)
            if (taken[i] < 0)
                taken[i] = take_port((uint16_t)(FIRST + i));
        struct skep_node *node = simple_node("nop");
        in_range = tracker_port(node) >= FIRST && tracker_port(node) <= LAST;
        skep_node_free(node);
    }
    assert_false(in_range);
    for (int i = 0; i <= LAST - FIRST; i++)
        if (taken[i] >= 0)
            close(taken[i]);
}

static void a_node_that_asks_for_a_port_has_it_or_does_not_start(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    struct skep_error err;
    char text[64], port[16];
    int taken = take_port(0);

    assert_true(taken >= 0);
    assert_int_equal(getsockname(taken, (struct sockaddr *)&at, &len), 0);
    snprintf(port, sizeof(port), "%u", (unsigned)ntohs(at.sin_port));
    snprintf(text, sizeof(text), "127.0.0.1:%s", port);
    node_options(&options);
    options.tracker_listen = text;
    struct skep_node *node = new_node(&options, "t.1", "nop");
    assert_int_equal(skep_node_start(node, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, port));
    skep_node_free(node);
    close(taken);
}

static struct skep_node *registered_node(void)
{
    struct skep_node_options options;
    struct skep_node_stats stats;
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);

    node_options(&options);
    options.no_dht = false;
    options.tracker_listen = "127.0.0.1:*";
    options.tracker_any_port = true;
    options.tracker_key = "bees";
    struct skep_node *node = new_node(&options, "t.1", "nop");
    start_node(node);
    do
        skep_node_stats(node, &stats);
    while (stats.tracker.resources_free == 0 && clock_mono_us() < deadline);
    assert_int_equal(stats.tracker.resources_free, 1);
    assert_int_equal(stats.tracker.servers, 1);
    return node;
}

static uint64_t number(const msgpack_object *map, const char *name)
{
    uint64_t value = UINT64_MAX;

    assert_true(mp_u64(mp_get(map, name), &value));
    return value;
}

static void assert_waits(const msgpack_object *map)
{
    const msgpack_object *waits;
    size_t count;

    assert_true(mp_array(mp_get(map, "waits"), &waits, &count));
    assert_int_equal(count, SKEP_TRACKER_WAIT_BUCKETS);
}

static void the_stats_method_tells_of_tracker_and_lease(void **state)
{
    (void)state;
    struct skep_node *node = registered_node();
    struct caller caller;
    struct reply reply;
    struct mp mp = {0};
    bool registered = false;

    caller_init(&caller, node);
    call(&caller, &(struct request){.method = "stats"}, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_int_equal(mp_parse(&mp, reply.result.data, reply.result.len, "stats", NULL), SKEP_OK);
    assert_int_equal(number(mp.root, "handshakes_evicted"), 0);
    const msgpack_object *tracker = mp_get(mp.root, "tracker");
    assert_int_equal(number(tracker, "free"), 1);
    assert_int_equal(number(tracker, "servers"), 1);
    assert_int_equal(number(tracker, "puts"), 1);
    assert_waits(tracker);
    assert_true(mp_bool(mp_get(mp_get(mp.root, "lease"), "registered"), &registered));
    assert_true(registered);
    mp_free(&mp);
    reply_fini(&reply);
    caller_fini(&caller);
    skep_node_free(node);
}

static void the_summary_method_tells_of_each_key(void **state)
{
    (void)state;
    struct skep_node *node = registered_node();
    struct caller caller;
    struct reply reply;
    struct mp mp = {0};
    const msgpack_object *keys;
    const uint8_t *name;
    size_t count, len;

    caller_init(&caller, node);
    call(&caller, &(struct request){.method = "tracker.summary"}, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_int_equal(mp_parse(&mp, reply.result.data, reply.result.len, "summary", NULL), SKEP_OK);
    assert_int_equal(number(mp.root, "key_count"), 1);
    assert_true(mp_array(mp_get(mp.root, "keys"), &keys, &count));
    assert_int_equal(count, 1);
    assert_true(mp_bin(mp_get(&keys[0], "key"), &name, &len));
    assert_int_equal(len, 4);
    assert_memory_equal(name, "bees", 4);
    assert_int_equal(number(&keys[0], "free"), 1);
    assert_int_equal(number(&keys[0], "puts"), 1);
    assert_int_equal(number(&keys[0], "requests_served"), 0);
    assert_waits(&keys[0]);
    mp_free(&mp);
    reply_fini(&reply);
    caller_fini(&caller);
    skep_node_free(node);
}

struct seen {
    struct skep_node *node;
    int count;
};

static bool see(void *arg, const struct skep_tracker_key_stats *s)
{
    struct seen *seen = arg;
    struct skep_node_stats stats;

    assert_string_equal(s->key, "bees");
    assert_int_equal(s->servers, 1);
    skep_node_stats(seen->node, &stats); /* no lock is held */
    seen->count++;
    return true;
}

static void keys_of_a_node_are_walked_while_it_has_a_tracker(void **state)
{
    (void)state;
    struct skep_node *node = registered_node();
    struct seen seen = {.node = node};

    assert_int_equal(skep_node_tracker_each_key(node, see, &seen, NULL), SKEP_OK);
    assert_int_equal(seen.count, 1);
    skep_node_stop(node);
    assert_int_equal(skep_node_tracker_each_key(node, see, &seen, NULL), SKEP_OK);
    assert_int_equal(seen.count, 1);
    skep_node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_too_many_for_the_range_has_another_port),
        cmocka_unit_test(a_node_that_asks_for_a_port_has_it_or_does_not_start),
        cmocka_unit_test(the_stats_method_tells_of_tracker_and_lease),
        cmocka_unit_test(the_summary_method_tells_of_each_key),
        cmocka_unit_test(keys_of_a_node_are_walked_while_it_has_a_tracker),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
