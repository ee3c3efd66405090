/* A node that publishes an endpoint where something else is: callers find that out once, and then
 * ask others first. */
#include "unit.h"
#include "own_swarm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <skep/client.h>
#include <skep/node.h>
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/tensor.h"
#include "base/thread.h"

enum { HIDDEN = 16, TIMEOUT_MS = 10000, CALLS = 20, PROVIDERS = 4, MOST_HELD = 64 };

/* --- a door where nobody lives ------------------------------------------------------------- */

struct trap {
    int fd;
    bool silent; /* keeps who knocks waiting, instead of shutting the door */
    struct endpoint endpoint;
    atomic_uint knocks;
    int held[MOST_HELD]; /* the thread's alone */
    struct thread thread;
};

static void open_and_shut(void *arg)
{
    struct trap *trap = arg;
    int fd;

    while ((fd = accept(trap->fd, NULL, NULL)) >= 0) { /* until it is shut down */
        unsigned knock = atomic_fetch_add(&trap->knocks, 1);
        if (trap->silent && knock < MOST_HELD)
            trap->held[knock] = fd; /* until the end */
        else
            close(fd);
    }
}

static void trap_start(struct trap *trap, bool silent)
{
    struct address address;

    memset(trap, 0, sizeof(*trap));
    trap->silent = silent;
    for (size_t i = 0; i < MOST_HELD; i++)
        trap->held[i] = -1;
    assert_int_equal(endpoint_parse(&trap->endpoint, "127.0.0.1:1", false, NULL), SKEP_OK);
    assert_true(endpoint_to_address(&trap->endpoint, &address));
    address_set_port(&address, 0);
    trap->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(trap->fd >= 0);
    assert_int_equal(bind(trap->fd, (struct sockaddr *)&address.sa, address.len), 0);
    assert_int_equal(listen(trap->fd, 16), 0);
    address.len = sizeof(address.sa);
    assert_int_equal(getsockname(trap->fd, (struct sockaddr *)&address.sa, &address.len), 0);
    endpoint_from_address(&trap->endpoint, (struct sockaddr *)&address.sa);
    assert_int_equal(thread_start(&trap->thread, "trap", open_and_shut, trap, NULL), SKEP_OK);
}

static void trap_stop(struct trap *trap)
{
    shutdown(trap->fd, SHUT_RDWR);
    thread_join(&trap->thread);
    for (size_t i = 0; i < MOST_HELD; i++)
        if (trap->held[i] >= 0)
            close(trap->held[i]);
    close(trap->fd);
}

/* --- nodes and calls ----------------------------------------------------------------------- */

static struct skep_node *start_node(const char *peer, const char *announce, uint32_t hidden_dim)
{
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    skep_node_options_init(&options);

    options.swarm = own_swarm();
    options.listen = "127.0.0.1:*";
    options.announce = announce;
    options.initial_peers = &peer;
    options.initial_peer_count = peer != NULL ? 1 : 0;
    skep_expert_options_init(&expert);
    expert.cls = "nop";
    expert.hidden_dim = hidden_dim;
    skep_status rc = skep_node_new(&options, &node, &err);
    if (rc == SKEP_OK)
        rc = skep_node_add_expert(node, "t.1", &expert, &err);
    if (rc == SKEP_OK)
        rc = skep_node_start(node, &err);
    if (rc == SKEP_OK)
        rc = skep_node_wait_ready(node, TIMEOUT_MS, &err);
    if (rc != SKEP_OK)
        fail_msg("node: %s", err.message);
    return node;
}

/* Finds the expert with both who claim to serve it. */
static struct skep_remote_expert *find_both(struct skep_client *client)
{
    struct skep_provider providers[PROVIDERS];
    struct skep_remote_expert *expert;
    uint64_t deadline = clock_deadline_us(3 * TIMEOUT_MS);

    for (;;) {
        if (skep_client_find(client, "t.1", 2000, &expert, NULL) == SKEP_OK) {
            if (skep_remote_expert_providers(expert, providers, PROVIDERS) == 2)
                return expert;
            skep_remote_expert_free(expert);
        }
        assert_true(clock_mono_us() < deadline);
    }
}

static skep_status try_forward(struct skep_remote_expert *expert, int64_t width,
                               struct skep_error *err)
{
    const int64_t shape[2] = {1, width};
    DLManagedTensor *x;
    DLManagedTensor *y;
    struct skep_call_options options = {.timeout_ms = TIMEOUT_MS};
    size_t count = 0;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &x, NULL), SKEP_OK);
    memset(skep_tensor_data(&x->dl_tensor), 0, (size_t)width * sizeof(float));
    const DLTensor *inputs[1] = {&x->dl_tensor};
    skep_status rc = skep_remote_expert_forward(expert, inputs, 1, &options, &y, 1, &count, err);
    if (rc == SKEP_OK)
        skep_tensor_free(y);
    skep_tensor_free(x);
    return rc;
}

static void forward(struct skep_remote_expert *expert)
{
    struct skep_error err;

    if (try_forward(expert, HIDDEN, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
}

static struct skep_client *start_client(const char *peer)
{
    struct skep_client_options options;
    struct skep_client *client;

    skep_client_options_init(&options);

    options.swarm = own_swarm();
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    assert_int_equal(skep_client_new(&options, &client, NULL), SKEP_OK);
    return client;
}

static void asked_last(bool silent)
{
    struct trap trap;
    char announce[ENDPOINT_TEXT_BYTES];

    trap_start(&trap, silent);
    struct skep_node *good = start_node(NULL, NULL, HIDDEN);
    const char *peer = skep_node_initial_peer(good);
    struct skep_node *bad = start_node(peer, endpoint_format(&trap.endpoint, announce), HIDDEN);
    struct skep_client *client = start_client(peer);
    struct skep_remote_expert *expert = find_both(client);

    /* The node's own check of its reachability may knock too: it has nothing to do with this. */
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);
    unsigned before = atomic_load(&trap.knocks);
    while (atomic_load(&trap.knocks) == before && clock_mono_us() < deadline)
        forward(expert); /* each succeeds, by whom it may */
    before = atomic_load(&trap.knocks);
    for (int i = 0; i < CALLS; i++)
        forward(expert);
    /* Again after a second, two, four: not with every call. */
    assert_true(atomic_load(&trap.knocks) - before <= CALLS / 4);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(bad);
    skep_node_free(good);
    trap_stop(&trap);
}

static void an_endpoint_that_failed_is_asked_last(void **state)
{
    (void)state;
    asked_last(false);
}

/* It takes a share of a call's time, not all of it: each call succeeds. */
static void an_endpoint_that_says_nothing_is_asked_last(void **state)
{
    (void)state;
    asked_last(true);
}

static uint64_t refused_by(struct skep_node *node)
{
    struct skep_node_stats stats;

    skep_node_stats(node, &stats);
    return stats.calls_refused;
}

/* A node that serves something else under the same name: calls are answered by the other one, and
 * the caller's own mistakes are still told, with who says so. */
static void who_finds_fault_with_what_others_do_is_asked_last(void **state)
{
    struct skep_error err;
    bool told = false;
    (void)state;

    struct skep_node *good = start_node(NULL, NULL, HIDDEN);
    const char *peer = skep_node_initial_peer(good);
    struct skep_node *other = start_node(peer, NULL, 2 * HIDDEN);
    struct skep_client *client = start_client(peer);
    struct skep_remote_expert *expert = find_both(client);
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);

    while (refused_by(other) == 0 && clock_mono_us() < deadline)
        forward(expert);
    uint64_t before = refused_by(other);
    assert_true(before > 0);
    for (int i = 0; i < CALLS; i++)
        forward(expert);
    assert_true(refused_by(other) - before <= CALLS / 4);

    assert_int_equal(try_forward(expert, 3 * HIDDEN, &err), SKEP_INVALID_ARGUMENT);
    for (int i = 0; i < 2; i++)
        told = told || strstr(err.message, skep_node_endpoint(i == 0 ? good : other)) != NULL;
    if (!told)
        fail_msg("nobody is named: %s", err.message);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(other);
    skep_node_free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_endpoint_that_failed_is_asked_last),
        cmocka_unit_test(an_endpoint_that_says_nothing_is_asked_last),
        cmocka_unit_test(who_finds_fault_with_what_others_do_is_asked_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
