/* Leases of a real node in this process: granted once, held, renewed, and ended in every way. */
#include "unit.h"
#include "own_swarm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <skep/client.h>
#include <skep/log.h>
#include <skep/node.h>
#include "base/clock.h"
#include "base/tensor.h"
#include "node/tracking/lease_server.h"
#include "tracker/client.h"
#include "until.h"

enum { PATIENCE_MS = 60000, HIDDEN = 16 };

static struct skep_node *start_node_with(uint32_t lease_timeout_ms, uint32_t lease_silence_ms)
{
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    skep_node_options_init(&options);

    options.swarm = own_swarm();
    options.listen = "127.0.0.1:*";
    options.no_dht = true;
    options.tracker_listen = "127.0.0.1:*";
    options.tracker_any_port = true;
    options.tracker_key = "k";
    options.lease_timeout_ms = lease_timeout_ms;
    if (lease_silence_ms > 0)
        options.lease_silence_ms = lease_silence_ms;
    skep_expert_options_init(&expert);
    expert.cls = "nop";
    expert.hidden_dim = HIDDEN;
    skep_status rc = skep_node_new(&options, &node, &err);
    if (rc == SKEP_OK)
        rc = skep_node_add_expert(node, "t.1", &expert, &err);
    if (rc == SKEP_OK)
        rc = skep_node_start(node, &err);
    if (rc != SKEP_OK)
        fail_msg("node: %s", err.message);
    return node;
}

static struct skep_node *start_node(uint32_t lease_timeout_ms)
{
    return start_node_with(lease_timeout_ms, 0);
}

static struct skep_client *start_client(void)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;

    skep_client_options_init(&options);

    options.swarm = own_swarm();
    options.no_dht = true;
    if (skep_client_new(&options, &client, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    return client;
}

/* Asks the node's own tracker, and waits for a match key. */
static void request(const struct skep_node *node, char *match_key, size_t cap)
{
    struct bytes message = {0};
    struct endpoint tracker;
    struct skep_error err;
    json_t *reply = NULL;

    assert_int_equal(endpoint_parse(&tracker, skep_node_tracker_endpoint(node), false, NULL),
                     SKEP_OK);
    assert_true(tracker_write_request(&message, tracker_text("k"), tracker_text(""), 0));
    if (tracker_ask(&tracker, &message, clock_deadline_us(PATIENCE_MS), &reply, &err) != SKEP_OK)
        fail_msg("request: %s", err.message);
    const json_t *resource = json_array_get(reply, 1);
    assert_int_equal(json_integer_value(json_array_get(resource, 1)), skep_node_port(node));
    snprintf(match_key, cap, "%s", json_string_value(json_array_get(resource, 2)));
    json_decref(reply);
    bytes_free(&message);
}

static struct skep_client_lease *lease(struct skep_client *client, const struct skep_node *node,
                                       uint32_t duration_ms)
{
    struct skep_client_lease *out;
    struct skep_error err;
    char match_key[256];

    request(node, match_key, sizeof(match_key));
    if (skep_client_lease_begin(client, skep_node_endpoint(node), skep_node_peer_id(node),
                                match_key, duration_ms, PATIENCE_MS, &out, &err) != SKEP_OK)
        fail_msg("lease: %s", err.message);
    return out;
}

static struct skep_node_stats stats_of(struct skep_node *node)
{
    struct skep_node_stats s;

    skep_node_stats(node, &s);
    return s;
}

static bool is_leased(struct skep_node *node)
{
    return stats_of(node).is_leased;
}

static bool is_on_offer(struct skep_node *node)
{
    return stats_of(node).tracker.resources_free == 1;
}

static void a_match_key_is_good_once(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);
    struct skep_client *client = start_client();
    struct skep_client_lease *first, *none;
    char match_key[256], wrong[256];
    const char *endpoint = skep_node_endpoint(node), *peer_id = skep_node_peer_id(node);
    struct skep_error err;

    request(node, match_key, sizeof(match_key));
    snprintf(wrong, sizeof(wrong), "%s", match_key);
    wrong[strlen(wrong) - 1] ^= 1;
    assert_int_equal(
        skep_client_lease_begin(client, endpoint, peer_id, wrong, 0, PATIENCE_MS, &none, &err),
        SKEP_PERMISSION_DENIED);
    assert_null(none);
    assert_int_equal(
        skep_client_lease_begin(client, endpoint, peer_id, match_key, 0, PATIENCE_MS, &first, &err),
        SKEP_OK);
    assert_true(is_leased(node));
    assert_int_equal(skep_client_lease_duration_ms(first), 60000);
    assert_int_equal(
        skep_client_lease_begin(client, endpoint, peer_id, match_key, 0, PATIENCE_MS, &none, &err),
        SKEP_PERMISSION_DENIED);
    skep_client_lease_free(first);
    assert_true(UNTIL(!is_leased(node) && is_on_offer(node), PATIENCE_MS));
    assert_int_equal(
        skep_client_lease_begin(client, endpoint, peer_id, match_key, 0, PATIENCE_MS, &none, &err),
        SKEP_PERMISSION_DENIED);
    assert_int_equal(stats_of(node).leases, 1);
    assert_int_equal(stats_of(node).leases_refused, 3);
    skep_client_free(client);
    skep_node_free(node);
}

static void experts_of_a_lease_are_called(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);
    struct skep_client *client = start_client();
    struct skep_client_lease *held = lease(client, node, 0);
    struct skep_remote_expert *expert;
    DLManagedTensor *x, *y;
    const int64_t shape[2] = {3, HIDDEN};
    size_t count = 0;

    assert_int_equal(skep_client_lease_expert(held, "t.1", &expert, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &x, NULL), SKEP_OK);
    memset(skep_tensor_data(&x->dl_tensor), 0, 3 * HIDDEN * sizeof(float));
    const DLTensor *inputs[] = {&x->dl_tensor};
    assert_int_equal(skep_remote_expert_forward(expert, inputs, 1, NULL, &y, 1, &count, NULL),
                     SKEP_OK);
    skep_tensor_free(x);
    skep_tensor_free(y);
    skep_remote_expert_free(expert);
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
}

static void a_lease_expires_unless_it_is_renewed(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);
    struct skep_client *client = start_client();
    struct skep_client_lease *held = lease(client, node, 2000);

    assert_int_equal(skep_client_lease_duration_ms(held), 2000);
    assert_int_equal(skep_client_lease_renew(held, 50000, PATIENCE_MS, NULL), SKEP_OK);
    assert_int_equal(skep_client_lease_duration_ms(held), 50000);
    assert_false(skep_client_lease_wait_ended(held, 2100)); /* it would be over by now */
    assert_int_equal(skep_client_lease_renew(held, 10, PATIENCE_MS, NULL), SKEP_OK);
    assert_true(skep_client_lease_wait_ended(held, PATIENCE_MS));
    assert_int_equal(skep_client_lease_renew(held, 0, PATIENCE_MS, NULL), SKEP_PERMISSION_DENIED);
    assert_true(UNTIL(is_on_offer(node), PATIENCE_MS));
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
}

static void a_lease_lasts_no_longer_than_the_node_allows(void **state)
{
    (void)state;
    struct skep_node *node = start_node(200);
    struct skep_client *client = start_client();
    struct skep_client_lease *held = lease(client, node, 60000);

    assert_int_equal(skep_client_lease_duration_ms(held), 200);
    assert_true(skep_client_lease_wait_ended(held, PATIENCE_MS));
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
}

static void another_client_can_neither_end_nor_renew_it(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);
    struct skep_client *client = start_client(), *other = start_client();
    struct skep_client_lease *held = lease(client, node, 0);
    struct skep_client_lease *none;

    /* Nor is there anything to guess while it lasts. */
    assert_int_equal(skep_client_lease_begin(other, skep_node_endpoint(node), NULL, "k", 0,
                                             PATIENCE_MS, &none, NULL),
                     SKEP_PERMISSION_DENIED);
    assert_true(is_leased(node));
    skep_client_free(other);
    assert_true(is_leased(node));
    assert_false(skep_client_lease_wait_ended(held, 0));
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
}

static void a_node_that_stops_ends_its_lease(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);
    struct skep_client *client = start_client();
    struct skep_client_lease *held = lease(client, node, 0);

    skep_node_stop(node);
    assert_true(skep_client_lease_wait_ended(held, PATIENCE_MS));
    assert_false(stats_of(node).is_leased);
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
}

/* ---- a holder that vanishes: another process, made before this one has threads ---- */

struct holder {
    pid_t pid;
    int to, from; /* pipes */
};
static struct holder holders[2]; /* one for each test that needs one */

/* In the child: leases what it is told, says so, and waits for its end. */
static void hold(int in, int out)
{
    char line[1024] = "", *endpoint = line, *match_key;
    struct skep_client_lease *held;

    if (read(in, line, sizeof(line) - 1) <= 0)
        _exit(0);
    match_key = strchr(line, ' ');
    *match_key++ = '\0';
    struct skep_client *client = start_client();
    bool ok = skep_client_lease_begin(client, endpoint, NULL, match_key, 0, PATIENCE_MS, &held,
                                      NULL) == SKEP_OK;
    if (write(out, ok ? "1" : "0", 1) == 1)
        pause();
    _exit(1);
}

static void make_holder(struct holder *out)
{
    int to[2], from[2];

    assert_int_equal(pipe(to), 0);
    assert_int_equal(pipe(from), 0);
    out->pid = fork();
    assert_true(out->pid >= 0);
    if (out->pid == 0) {
        close(to[1]);
        close(from[0]);
        hold(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    out->to = to[1];
    out->from = from[0];
}

/* The other process leases the node. */
static void lease_elsewhere(struct skep_node *node, const struct holder *holder)
{
    char match_key[256], line[1024], answer = '0';

    request(node, match_key, sizeof(match_key));
    int n = snprintf(line, sizeof(line), "%s %s", skep_node_endpoint(node), match_key);
    assert_int_equal(write(holder->to, line, (size_t)n), n);
    assert_int_equal(read(holder->from, &answer, 1), 1);
    assert_int_equal(answer, '1');
    assert_int_equal(stats_of(node).leases, 1);
}

static void end_holder(struct holder *holder)
{
    if (holder->pid <= 0)
        return;
    kill(holder->pid, SIGKILL);
    waitpid(holder->pid, NULL, 0);
    holder->pid = 0;
}

static void a_holder_that_is_killed_gives_the_node_back(void **state)
{
    (void)state;
    struct skep_node *node = start_node(60000);

    lease_elsewhere(node, &holders[0]);
    assert_true(is_leased(node));
    end_holder(&holders[0]);
    assert_true(UNTIL(!is_leased(node) && is_on_offer(node), PATIENCE_MS));
    skep_node_free(node);
}

/* Its connection stays open, as that of a machine that has lost its power: only silence tells. */
static void a_holder_that_falls_silent_gives_the_node_back(void **state)
{
    (void)state;
    struct skep_node *node = start_node_with(10 * PATIENCE_MS, 2000);

    lease_elsewhere(node, &holders[1]);
    assert_int_equal(kill(holders[1].pid, SIGSTOP), 0);
    assert_true(UNTIL(!is_leased(node) && is_on_offer(node), PATIENCE_MS));
    end_holder(&holders[1]);
    skep_node_free(node);
}

static bool has_expired, has_vanished; /* written by the node's threads before its lease is over */

static void watch_log(enum skep_log_level level, const char *text, void *arg)
{
    (void)arg;
    (void)level;
    has_expired = has_expired || strstr(text, ": expired") != NULL;
    has_vanished = has_vanished || strstr(text, ": vanished") != NULL;
}

/* It has nothing to say for several times as long, but answers when asked. */
static void a_holder_that_answers_is_left_alone(void **state)
{
    (void)state;
    struct skep_node *node = start_node_with(60000, 3000);
    struct skep_client *client = start_client();

    has_expired = has_vanished = false;
    skep_log_set(SKEP_LOG_INFO, watch_log, NULL);
    struct skep_client_lease *held = lease(client, node, 7000);
    assert_true(skep_client_lease_wait_ended(held, PATIENCE_MS));
    skep_client_lease_free(held);
    skep_client_free(client);
    skep_node_free(node);
    skep_log_set(SKEP_LOG_WARNING, NULL, NULL);
    assert_true(has_expired);
    assert_false(has_vanished);
}

/* ---- without a node ---- */

static void nothing_is_offered_while_it_is_closed(void **state)
{
    (void)state;
    const struct lease_server_config config = {.max_duration_ms = 1000};
    const uint8_t somebody[PEER_ID_BYTES] = {1};
    struct lease_server *leases;
    struct lease_server_stats stats;

    assert_int_equal(lease_server_new(&config, &leases, NULL), SKEP_OK);
    assert_true(lease_server_offer(leases, "a"));
    assert_true(lease_server_is_on_offer(leases));
    assert_true(lease_server_offer(leases, NULL));
    assert_false(lease_server_is_on_offer(leases));
    assert_true(lease_server_tick(leases, clock_mono_us()) == CLOCK_NEVER);
    assert_int_equal(lease_server_priority(leases, somebody), 0);
    assert_int_equal(lease_server_priority(NULL, somebody), 0);
    lease_server_close(leases);
    assert_false(lease_server_offer(leases, "b"));
    lease_server_stats(leases, &stats);
    assert_int_equal(stats.begun, 0);
    lease_server_free(leases);
    lease_server_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_holder_that_is_killed_gives_the_node_back),
        cmocka_unit_test(a_holder_that_falls_silent_gives_the_node_back),
        cmocka_unit_test(a_holder_that_answers_is_left_alone),
        cmocka_unit_test(a_match_key_is_good_once),
        cmocka_unit_test(experts_of_a_lease_are_called),
        cmocka_unit_test(a_lease_expires_unless_it_is_renewed),
        cmocka_unit_test(a_lease_lasts_no_longer_than_the_node_allows),
        cmocka_unit_test(another_client_can_neither_end_nor_renew_it),
        cmocka_unit_test(a_node_that_stops_ends_its_lease),
        cmocka_unit_test(nothing_is_offered_while_it_is_closed),
    };

    own_swarm(); /* named by this process: the holders are of the same one */
    make_holder(&holders[0]);
    make_holder(&holders[1]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    end_holder(&holders[0]);
    end_holder(&holders[1]);
    return failed;
}
