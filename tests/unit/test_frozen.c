/*
 * Nodes whose process stands still (SIGSTOP): their system accepts connections and takes bytes, and
 * nothing ever answers. Calls go to those that answer, and lose nobody who only paused.
 */
#include "unit.h"
#include "own_swarm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <skep/log.h>
#include <skep/node.h>
#include "base/tensor.h"
#include "client/client_internal.h"
#include "until.h"

enum {
    HIDDEN = 16,
    NODES = 3,
    TESTS = 6,
    PATIENCE_MS = 60000,
    LIMIT_MS = 8000, /* of a call */
    CALLS = 8,
    SLOT_BYTES = 192,
};

/* ---- nodes in processes of their own, made before this one has threads ---- */

struct frozen_node {
    pid_t pid; /* 0: none */
    int to, from;
    char peer[SLOT_BYTES], endpoint[SLOT_BYTES], peer_id[PEER_ID_HEX_BYTES];
};

static struct frozen_node all[TESTS][NODES];
static struct frozen_node *nodes; /* this test's */
/* All join through it. It serves nothing and never freezes: a client, which no DHT peer keeps in
 * mind, may know no other way to the nodes that came later. */
static struct skep_node *bootstrap;

/* Waits for the line that names a peer to join by; serves t.1 until it is killed. */
static void serve(int in, int out)
{
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    char line[SLOT_BYTES] = "", answer[3 * SLOT_BYTES];
    const char *peer = line;

    if (read(in, line, sizeof(line) - 1) <= 0)
        _exit(0);
    skep_node_options_init(&options);
    options.swarm = own_swarm();
    options.listen = "127.0.0.1:*";
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    skep_expert_options_init(&expert);
    expert.cls = "nop";
    expert.hidden_dim = HIDDEN;
    if (skep_node_new(&options, &node, NULL) != SKEP_OK ||
        skep_node_add_expert(node, "t.1", &expert, NULL) != SKEP_OK ||
        skep_node_start(node, NULL) != SKEP_OK ||
        skep_node_wait_ready(node, PATIENCE_MS, NULL) != SKEP_OK)
        _exit(1);
    int n = snprintf(answer, sizeof(answer), "%s %s %s", skep_node_initial_peer(node),
                     skep_node_endpoint(node), skep_node_peer_id(node));
    if (write(out, answer, (size_t)n) == n)
        pause();
    _exit(1);
}

static int make_process(struct frozen_node *node)
{
    int to[2], from[2];

    if (pipe(to) != 0 || pipe(from) != 0)
        return -1;
    node->pid = fork();
    if (node->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        close(from[0]);
        serve(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    node->to = to[1];
    node->from = from[0];
    return node->pid > 0 ? 0 : -1;
}

static void end_process(struct frozen_node *node)
{
    if (node->pid <= 0)
        return;
    kill(node->pid, SIGKILL);
    waitpid(node->pid, NULL, 0);
    close(node->to);
    close(node->from);
    node->pid = 0;
}

/* Node `n` serves from now on. */
static void start_node(size_t n)
{
    const char *peer = skep_node_initial_peer(bootstrap);
    char answer[3 * SLOT_BYTES] = "";

    assert_int_equal(write(nodes[n].to, peer, strlen(peer)), strlen(peer));
    assert_true(read(nodes[n].from, answer, sizeof(answer) - 1) > 0);
    assert_int_equal(
        sscanf(answer, "%191s %191s %64s", nodes[n].peer, nodes[n].endpoint, nodes[n].peer_id), 3);
}

static void freeze(size_t n)
{
    int status;

    assert_int_equal(kill(nodes[n].pid, SIGSTOP), 0);
    assert_int_equal(waitpid(nodes[n].pid, &status, WUNTRACED), nodes[n].pid);
    assert_true(WIFSTOPPED(status));
}

static int next_test(void **state)
{
    struct skep_node_options options;

    (void)state;
    nodes = nodes == NULL ? all[0] : nodes + NODES;
    skep_node_options_init(&options);
    options.swarm = own_swarm();
    options.listen = "127.0.0.1:*";
    return skep_node_new(&options, &bootstrap, NULL) == SKEP_OK &&
                   skep_node_start(bootstrap, NULL) == SKEP_OK &&
                   skep_node_wait_ready(bootstrap, PATIENCE_MS, NULL) == SKEP_OK
               ? 0
               : -1;
}

static int end_test(void **state)
{
    (void)state;
    for (size_t n = 0; n < NODES; n++)
        end_process(&nodes[n]);
    skep_node_free(bootstrap);
    bootstrap = NULL;
    return 0;
}

/* ---- calls ---- */

static struct skep_client *start_client(void)
{
    struct skep_client_options options;
    const char *peer = skep_node_initial_peer(bootstrap);
    struct skep_client *client;
    struct skep_error err;

    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    if (skep_client_new(&options, &client, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    return client;
}

/* Finds the expert, with `count` nodes that serve it. */
static struct skep_remote_expert *find_all(struct skep_client *client, size_t count)
{
    struct skep_remote_expert *expert = NULL;

    assert_true(UNTIL(({
                          skep_remote_expert_free(expert);
                          expert = NULL;
                          (void)!skep_client_find(client, "t.1", 2000, &expert, NULL);
                          expert != NULL &&skep_remote_expert_providers(expert, NULL, 0) == count;
                      }),
                      PATIENCE_MS));
    return expert;
}

/* Waits until those who look the expert up anew find so many nodes. */
static void until_found(size_t count)
{
    struct skep_client *other = start_client();

    skep_remote_expert_free(find_all(other, count));
    skep_client_free(other);
}

static DLManagedTensor *input(void)
{
    const int64_t shape[2] = {1, HIDDEN};
    DLManagedTensor *x;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &x, NULL), SKEP_OK);
    memset(skep_tensor_data(&x->dl_tensor), 0, HIDDEN * sizeof(float));
    return x;
}

struct answer {
    skep_status status;
    char peer_id[PEER_ID_HEX_BYTES];
    struct skep_error err;
};

static struct skep_call *start_call(struct skep_remote_expert *expert, bool backward,
                                    const char *peer_id, uint32_t limit_ms,
                                    const DLManagedTensor *x)
{
    struct skep_call_options options = {.timeout_ms = limit_ms, .peer_id = peer_id};
    const DLTensor *tensor = &x->dl_tensor;
    struct skep_call *call;

    assert_int_equal(backward ? skep_remote_expert_backward_start(expert, &tensor, 1, &tensor, 1,
                                                                  &options, NULL, NULL, &call, NULL)
                              : skep_remote_expert_forward_start(expert, &tensor, 1, &options, NULL,
                                                                 NULL, &call, NULL),
                     SKEP_OK);
    return call;
}

static void end_call(struct skep_call *call, struct answer *answer)
{
    DLManagedTensor *y[2];
    size_t count = 0;

    assert_true(skep_call_wait(call, PATIENCE_MS));
    answer->status = skep_call_result(call, y, 2, &count, &answer->err);
    for (size_t i = 0; i < count; i++)
        skep_tensor_free(y[i]);
    snprintf(answer->peer_id, sizeof(answer->peer_id), "%s", skep_call_peer_id(call));
    skep_call_free(call);
}

/* @param first  who is asked first, if it has not failed lately; NULL: anyone. */
static void call(struct skep_remote_expert *expert, bool backward, const char *first,
                 struct answer *answer)
{
    DLManagedTensor *x = input();

    end_call(start_call(expert, backward, first, LIMIT_MS, x), answer);
    skep_tensor_free(x);
}

static void expect_answer(struct skep_remote_expert *expert, bool backward, const char *first,
                          size_t by)
{
    struct answer answer;

    call(expert, backward, first, &answer);
    if (answer.status != SKEP_OK)
        fail_msg("%s: %s", backward ? "backward" : "forward", answer.err.message);
    assert_string_equal(answer.peer_id, nodes[by].peer_id);
}

/* Whether the client has noticed that a node is silent, or asks it last for another reason. */
static bool is_backed_off(struct skep_client *client, size_t n)
{
    uint8_t peer_id[PEER_ID_BYTES];

    assert_true(peer_id_parse(peer_id, nodes[n].peer_id));
    pthread_mutex_lock(&client->lock);
    bool avoided = backoff_is_active(&client->backoff, peer_id, "t.1");
    pthread_mutex_unlock(&client->lock);
    return avoided;
}

static uint64_t requests(struct skep_client *client)
{
    struct skep_client_stats stats;

    skep_client_stats(client, &stats);
    return stats.requests;
}

/* ---- tests ---- */

/* The handle knows one node, which freezes; others have come since. */
static void a_handle_leaves_a_frozen_node_for_one_that_came_later(void **state)
{
    (void)state;
    start_node(0);
    struct skep_client *client = start_client();
    struct skep_remote_expert *expert = find_all(client, 1);
    expect_answer(expert, false, NULL, 0);
    start_node(1);
    start_node(2);
    until_found(3);
    assert_int_equal(skep_remote_expert_providers(expert, NULL, 0), 1);
    freeze(0);
    for (int i = 0; i < CALLS; i++) {
        struct answer answer;
        call(expert, false, NULL, &answer);
        if (answer.status != SKEP_OK)
            fail_msg("call %d: %s", i, answer.err.message);
        assert_string_not_equal(answer.peer_id, nodes[0].peer_id);
    }
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

/* A backward that was sent stays where it is, and is reported as unknown; the next ones step
 * elsewhere. */
static void backwards_leave_a_frozen_node_after_one_timeout(void **state)
{
    (void)state;
    start_node(0);
    struct skep_client *client = start_client();
    struct skep_remote_expert *expert = find_all(client, 1);
    struct answer answer;
    expect_answer(expert, true, NULL, 0);
    start_node(1);
    until_found(2);
    assert_int_equal(skep_remote_expert_providers(expert, NULL, 0), 1);
    freeze(0);
    call(expert, true, NULL, &answer);
    assert_int_equal(answer.status, SKEP_DEADLINE_EXCEEDED);
    assert_true(answer.err.outcome_unknown);
    for (int i = 0; i < CALLS; i++)
        expect_answer(expert, true, NULL, 1);
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

/* A client without a connection gets one, in the kernel's eyes, and no handshake. */
static void a_frozen_node_takes_no_whole_limit_of_a_fresh_client(void **state)
{
    (void)state;
    start_node(0);
    start_node(1);
    start_node(2);
    for (int backward = 0; backward < 2; backward++) {
        struct skep_client *client = start_client();
        struct skep_remote_expert *expert = find_all(client, 3);
        freeze(1);
        for (int i = 0; i < CALLS; i++) {
            struct answer answer;
            call(expert, backward, nodes[1].peer_id, &answer);
            if (answer.status != SKEP_OK)
                fail_msg("call %d: %s", i, answer.err.message);
            assert_string_not_equal(answer.peer_id, nodes[1].peer_id);
        }
        skep_remote_expert_free(expert);
        skep_client_free(client);
        assert_int_equal(kill(nodes[1].pid, SIGCONT), 0);
    }
}

static void two_frozen_nodes_leave_time_for_the_third(void **state)
{
    (void)state;
    for (size_t n = 0; n < NODES; n++)
        start_node(n);
    struct skep_client *client = start_client();
    struct skep_remote_expert *expert = find_all(client, 3);
    expect_answer(expert, false, nodes[1].peer_id, 1);
    freeze(1);
    freeze(2);
    expect_answer(expert, false, nodes[1].peer_id, 0);
    expect_answer(expert, true, nodes[2].peer_id, 0);
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

/* A node that is stopped for a moment and has nobody beside it: its calls wait, and are answered,
 * those that were sent and those that came while it was silent. */
static void a_pause_loses_no_call(void **state)
{
    (void)state;
    struct skep_remote_expert *expert;
    struct answer answer;
    start_node(0);
    struct skep_client *client = start_client();
    assert_int_equal(
        skep_client_expert_at(client, "t.1", nodes[0].endpoint, nodes[0].peer_id, &expert, NULL),
        SKEP_OK);
    expect_answer(expert, true, NULL, 0);
    DLManagedTensor *x = input();
    freeze(0);
    struct skep_call *sent[2], *waits[2];
    for (int backward = 0; backward < 2; backward++)
        sent[backward] = start_call(expert, backward, NULL, PATIENCE_MS, x);
    assert_true(UNTIL(is_backed_off(client, 0), PATIENCE_MS));
    for (int backward = 0; backward < 2; backward++)
        waits[backward] = start_call(expert, backward, NULL, PATIENCE_MS, x);
    assert_int_equal(kill(nodes[0].pid, SIGCONT), 0);
    for (int backward = 0; backward < 2; backward++) {
        end_call(sent[backward], &answer);
        if (answer.status != SKEP_OK)
            fail_msg("sent before the pause was noticed: %s", answer.err.message);
        end_call(waits[backward], &answer);
        if (answer.status != SKEP_OK)
            fail_msg("made during the pause: %s", answer.err.message);
    }
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

/* A backward that could not be sent anywhere else waits for the one node that there is. */
static void a_backward_returns_to_the_only_node_that_comes_back(void **state)
{
    (void)state;
    struct answer answer;
    start_node(0);
    start_node(1);
    struct skep_client *client = start_client();
    struct skep_remote_expert *expert = find_all(client, 2);
    DLManagedTensor *x = input();
    freeze(1);
    freeze(0);
    struct skep_call *call = start_call(expert, true, nodes[1].peer_id, PATIENCE_MS, x);
    assert_true(UNTIL(requests(client) >= 3, PATIENCE_MS)); /* both, and the first one again */
    assert_int_equal(kill(nodes[1].pid, SIGCONT), 0);
    end_call(call, &answer);
    if (answer.status != SKEP_OK)
        fail_msg("%s", answer.err.message);
    assert_string_equal(answer.peer_id, nodes[1].peer_id);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, next_test, end_test)

int main(void)
{
    const struct CMUnitTest tests[TESTS] = {
        TEST(a_handle_leaves_a_frozen_node_for_one_that_came_later),
        TEST(backwards_leave_a_frozen_node_after_one_timeout),
        TEST(a_frozen_node_takes_no_whole_limit_of_a_fresh_client),
        TEST(two_frozen_nodes_leave_time_for_the_third),
        TEST(a_pause_loses_no_call),
        TEST(a_backward_returns_to_the_only_node_that_comes_back),
    };

    own_swarm(); /* named by this process, for all of them */
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    for (size_t t = 0; t < TESTS; t++)
        for (size_t n = 0; n < NODES; n++)
            if (make_process(&all[t][n]) != 0)
                return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t t = 0; t < TESTS; t++)
        for (size_t n = 0; n < NODES; n++)
            end_process(&all[t][n]);
    return failed;
}
