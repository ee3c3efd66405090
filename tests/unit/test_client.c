/* The client against real nodes in this process, and against a server that misbehaves on purpose.
 */
#include "unit.h"
#include "own_swarm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <skep/client.h>
#include <skep/log.h>
#include <skep/moe.h>
#include <skep/node.h>
#include <skep/watch.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "crypto/identity.h"
#include "net/server.h"

enum { HIDDEN = 16, TIMEOUT_MS = 10000 };

/* ---- nodes and clients */

/* @param announce the endpoint that it publishes; NULL: its own. */
static struct skep_node *start_node_at(const char *uid, const char *cls, const char *peer,
                                       const char *announce)
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
    expert.cls = cls;
    expert.hidden_dim = HIDDEN;
    expert.seed = 7;
    skep_status rc = skep_node_new(&options, &node, &err);
    if (rc == SKEP_OK)
        rc = skep_node_add_expert(node, uid, &expert, &err);
    if (rc == SKEP_OK)
        rc = skep_node_start(node, &err);
    if (rc == SKEP_OK)
        rc = skep_node_wait_ready(node, TIMEOUT_MS, &err);
    if (rc != SKEP_OK)
        fail_msg("node: %s", err.message);
    return node;
}

static struct skep_node *start_node(const char *uid, const char *cls, const char *peer)
{
    return start_node_at(uid, cls, peer, NULL);
}

static struct skep_client *start_client(const char *peer)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;

    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.initial_peers = &peer;
    options.initial_peer_count = 1;
    options.no_dht = peer == NULL;
    if (skep_client_new(&options, &client, &err) != SKEP_OK ||
        (peer != NULL && skep_client_wait_joined(client, TIMEOUT_MS, &err) != SKEP_OK))
        fail_msg("client: %s", err.message);
    return client;
}

static struct skep_remote_expert *find(struct skep_client *client, const char *uid)
{
    struct skep_remote_expert *expert;
    struct skep_error err;
    uint64_t deadline_us = clock_deadline_us(TIMEOUT_MS);

    /* A record may take a moment to spread; each look-up waits on the network itself. */
    while (skep_client_find(client, uid, 2000, &expert, &err) != SKEP_OK)
        if (clock_mono_us() > deadline_us)
            fail_msg("find: %s", err.message);
    return expert;
}

static DLManagedTensor *rows(int64_t n, float first)
{
    DLManagedTensor *t;
    int64_t shape[2] = {n, HIDDEN};

    assert_int_equal(skep_tensor_new(DTYPE_F32, 2, shape, &t, NULL), SKEP_OK);
    float *x = skep_tensor_data(&t->dl_tensor);
    for (int64_t i = 0; i < n * HIDDEN; i++)
        x[i] = first + (float)i / 100.0f;
    return t;
}

static skep_status forward(struct skep_remote_expert *expert, DLManagedTensor *x,
                           DLManagedTensor **y, uint32_t timeout_ms, struct skep_error *err)
{
    const DLTensor *inputs[1] = {&x->dl_tensor};
    struct skep_call_options options = {.timeout_ms = timeout_ms};
    size_t count = 0;

    return skep_remote_expert_forward(expert, inputs, 1, &options, y, 1, &count, err);
}

static skep_status backward(struct skep_remote_expert *expert, DLManagedTensor *x,
                            const uint8_t *request_id, uint32_t timeout_ms, struct skep_error *err)
{
    const DLTensor *inputs[1] = {&x->dl_tensor};
    struct skep_call_options options = {.timeout_ms = timeout_ms, .request_id = request_id};
    DLManagedTensor *grad;
    size_t count = 0;

    skep_status rc =
        skep_remote_expert_backward(expert, inputs, 1, inputs, 1, &options, &grad, 1, &count, err);
    if (rc == SKEP_OK)
        skep_tensor_free(grad);
    return rc;
}

static void finds_and_calls_an_expert(void **state)
{
    (void)state;
    struct skep_node *node = start_node("t.1", "nop", NULL);
    struct skep_client *client = start_client(skep_node_initial_peer(node));
    struct skep_remote_expert *expert = find(client, "t.1");
    DLManagedTensor *x = rows(3, 1.0f);
    DLManagedTensor *y;
    struct skep_provider provider;

    assert_int_equal(skep_remote_expert_providers(expert, &provider, 1), 1);
    assert_string_equal(provider.peer_id, skep_node_peer_id(node));
    assert_string_equal(provider.endpoint, skep_node_endpoint(node));
    assert_int_equal(forward(expert, x, &y, 0, NULL), SKEP_OK);
    assert_memory_equal(skep_tensor_data(&y->dl_tensor), skep_tensor_data(&x->dl_tensor),
                        3 * HIDDEN * sizeof(float));
    skep_tensor_free(y);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(node);
}

/* B82: nobody answers at the address that it publishes (RFC 5737: it is nowhere). */
static void a_node_of_this_machine_is_reached_whatever_it_publishes(void **state)
{
    (void)state;
    struct skep_node *node = start_node_at("t.1", "nop", NULL, "192.0.2.1:4000");
    struct skep_client *client = start_client(skep_node_initial_peer(node));
    struct skep_remote_expert *expert = find(client, "t.1");
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;
    struct skep_provider provider;
    struct skep_error err;

    assert_int_equal(skep_remote_expert_providers(expert, &provider, 1), 1);
    assert_string_equal(provider.endpoint, "192.0.2.1:4000");
    if (forward(expert, x, &y, TIMEOUT_MS, &err) != SKEP_OK)
        fail_msg("forward: %s", err.message);
    skep_tensor_free(y);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(node);
}

static void client_without_memory_for_its_first_things_is_refused(void **state)
{
    (void)state;
    struct skep_client_options options;
    struct skep_error err;

    skep_client_options_init(&options);
    options.swarm = NULL; /* the default one */
    for (long n = 1; n <= 2; n++) {
        struct skep_client *client;
        mem_fail_at(n);
        assert_int_equal(skep_client_new(&options, &client, &err), SKEP_RESOURCE_EXHAUSTED);
        assert_null(client);
    }
}

/* As of a program that was built against the header of another version, or forgot the _init. */
static void options_of_an_unknown_size_are_refused(void **state)
{
    (void)state;
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;
    const size_t known = sizeof(options), sizes[] = {0, 1, known + 1, SIZE_MAX};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        skep_client_options_init(&options);
        options.no_dht = true;
        options.size = sizes[i];
        assert_int_equal(skep_client_new(&options, &client, &err), SKEP_INVALID_ARGUMENT);
        assert_null(client);
        assert_non_null(strstr(err.message, "skep_client_options_init"));
    }
    /* What an earlier version did not have is left alone, whatever lies there. */
    skep_client_options_init(&options);
    options.no_dht = true;
    options.size = offsetof(struct skep_client_options, compression);
    options.compression = (enum skep_compression)77;
    assert_int_equal(skep_client_new(&options, &client, &err), SKEP_OK);
    skep_client_free(client);
}

/* What a program passes by mistake is an error like others, told by the argument's name. */
#define assert_refused(call, text)                                                                 \
    do {                                                                                           \
        memset(&err, 0, sizeof(err));                                                              \
        assert_int_equal(call, SKEP_INVALID_ARGUMENT);                                             \
        if (strstr(err.message, text) == NULL)                                                     \
            fail_msg("%s: \"%s\", expected \"%s\" in it", #call, err.message, text);               \
    } while (0)

static void null_for_options_and_initial_peers_is_refused(void **state)
{
    (void)state;
    const char *const peers[2] = {"127.0.0.1:9", NULL};
    struct skep_client_options options;
    struct skep_node_options node_options;
    struct skep_client *client;
    struct skep_node *node;
    struct skep_moe *moe;
    struct skep_switch_moe *switch_moe;
    struct skep_error err;

    assert_refused(skep_client_new(NULL, &client, &err), "options: NULL");
    assert_null(client);
    assert_int_equal(skep_client_new(NULL, &client, NULL), SKEP_INVALID_ARGUMENT);
    assert_refused(skep_node_new(NULL, &node, &err), "options: NULL");
    assert_null(node);
    skep_client_options_init(&options);
    skep_node_options_init(&node_options);
    options.initial_peer_count = node_options.initial_peer_count = 2;
    assert_refused(skep_client_new(&options, &client, &err), "initial_peers: NULL");
    assert_refused(skep_node_new(&node_options, &node, &err), "initial_peers: NULL");
    options.initial_peers = node_options.initial_peers = peers;
    assert_refused(skep_client_new(&options, &client, &err), "initial_peers[1]: NULL");
    assert_refused(skep_node_new(&node_options, &node, &err), "initial_peers[1]: NULL");
    client = start_client(NULL);
    assert_refused(skep_moe_new(client, NULL, &moe, &err), "options: NULL");
    assert_refused(skep_switch_moe_new(client, NULL, &switch_moe, &err), "options: NULL");
    skep_client_free(client);
    skep_node_options_init(&node_options);
    assert_int_equal(skep_node_new(&node_options, &node, &err), SKEP_OK);
    assert_refused(skep_node_add_expert(node, "e.1", NULL, &err), "options: NULL");
    assert_refused(skep_node_add_pattern(node, "e.[0:2]", 1, NULL, &err), "options: NULL");
    struct skep_expert_options expert;
    skep_expert_options_init(&expert);
    expert.hidden_dim = HIDDEN;
    assert_refused(skep_node_add_expert(node, NULL, &expert, &err), "uid: NULL");
    assert_refused(skep_node_add_pattern(node, NULL, 1, &expert, &err), "pattern: NULL");
    skep_node_free(node);
}

static void null_for_names_is_refused(void **state)
{
    (void)state;
    struct skep_client *client = start_client(NULL);
    const char *uids[2] = {"t.1", NULL};
    struct skep_remote_expert *experts[2];
    skep_status statuses[2];
    struct skep_tracked_resource *resources;
    struct skep_client_lease *lease;
    struct skep_watch *watch;
    struct skep_peer peer;
    struct skep_error err;
    size_t count;

    assert_refused(skep_client_find(client, NULL, TIMEOUT_MS, experts, &err), "uid: NULL");
    assert_null(experts[0]);
    assert_refused(skep_client_find_many(client, uids, 2, TIMEOUT_MS, experts, statuses, &err),
                   "uids[1]: NULL");
    assert_refused(skep_client_find_many(client, NULL, 2, TIMEOUT_MS, experts, NULL, &err),
                   "uids: NULL");
    assert_int_equal(statuses[0], SKEP_INVALID_ARGUMENT);
    assert_null(experts[1]);
    assert_refused(skep_client_expert_at(client, NULL, "127.0.0.1:9", NULL, experts, &err),
                   "uid: NULL");
    assert_refused(skep_client_expert_at(client, "t.1", NULL, NULL, experts, &err),
                   "endpoint: NULL");
    assert_refused(skep_client_peer_at(client, NULL, TIMEOUT_MS, &peer, &err), "endpoint: NULL");
    assert_refused(skep_client_find_resources(client, NULL, TIMEOUT_MS, &resources, &count, &err),
                   "key: NULL");
    assert_refused(
        skep_client_lease_begin(client, "127.0.0.1:9", NULL, NULL, 0, TIMEOUT_MS, &lease, &err),
        "match_key: NULL");
    assert_refused(skep_client_lease_begin(client, NULL, NULL, "k", 0, TIMEOUT_MS, &lease, &err),
                   "endpoint: NULL");
    assert_int_equal(skep_watch_new(client, NULL, NULL, NULL, &watch, &err),
                     SKEP_FAILED_PRECONDITION); /* it has no DHT: said first */
    skep_client_free(client);
}

static void null_for_tensors_is_refused(void **state)
{
    (void)state;
    struct skep_client *client = start_client(NULL);
    struct skep_remote_expert *expert;
    struct skep_call *call;
    struct skep_error err;
    DLManagedTensor *x = rows(1, 0.0f), *outputs[2];
    const DLTensor *good[1] = {&x->dl_tensor}, *bad[2] = {&x->dl_tensor, NULL};
    size_t count;

    assert_int_equal(skep_client_expert_at(client, "t.1", "127.0.0.1:9", NULL, &expert, &err),
                     SKEP_OK);
    assert_refused(skep_remote_expert_forward(expert, bad, 2, NULL, outputs, 2, &count, &err),
                   "expert t.1: inputs[1]: NULL");
    assert_refused(skep_remote_expert_forward(expert, NULL, 1, NULL, outputs, 2, &count, &err),
                   "inputs: NULL");
    assert_refused(skep_remote_expert_forward_start(expert, bad, 2, NULL, NULL, NULL, &call, &err),
                   "inputs[1]: NULL");
    assert_null(call);
    assert_refused(
        skep_remote_expert_backward(expert, bad, 2, good, 1, NULL, outputs, 2, &count, &err),
        "inputs[1]: NULL");
    assert_refused(
        skep_remote_expert_backward(expert, good, 1, bad, 2, NULL, outputs, 2, &count, &err),
        "grad_outputs[1]: NULL");
    assert_refused(
        skep_remote_expert_backward_start(expert, good, 1, NULL, 1, NULL, NULL, NULL, &call, &err),
        "grad_outputs: NULL");
    assert_refused(skep_tensor_bytes(NULL, &count, &err), "tensor: NULL");
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
}

static void a_client_without_the_dht_says_so_of_what_needs_it(void **state)
{
    (void)state;
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_remote_expert *experts[2];
    const char *uids[2] = {"t.1", "t.2"};
    skep_status statuses[2];
    struct skep_error err;

    skep_client_options_init(&options);
    options.no_dht = true;
    assert_int_equal(skep_client_new(&options, &client, &err), SKEP_OK);
    assert_int_equal(skep_client_wait_joined(client, TIMEOUT_MS, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(skep_client_find(client, "t.1", TIMEOUT_MS, experts, &err),
                     SKEP_FAILED_PRECONDITION);
    assert_int_equal(skep_client_find_many(client, uids, 2, TIMEOUT_MS, experts, statuses, &err),
                     SKEP_FAILED_PRECONDITION);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(statuses[i], SKEP_FAILED_PRECONDITION);
        assert_null(experts[i]);
    }
    skep_client_free(client);
}

static void absent_and_invalid_uids_are_told_apart(void **state)
{
    (void)state;
    struct skep_node *node = start_node("t.1", "nop", NULL);
    struct skep_client *client = start_client(skep_node_initial_peer(node));
    struct skep_remote_expert *expert;
    const char *uids[3] = {"t.2", "t.1", "t.01"};
    struct skep_remote_expert *experts[3];
    skep_status statuses[3];
    struct skep_error err;

    skep_remote_expert_free(find(client, "t.1"));
    assert_int_equal(skep_client_find(client, "t.2", TIMEOUT_MS, &expert, &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, "t.2"));
    assert_int_equal(skep_client_find(client, "t.01", TIMEOUT_MS, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_client_find_many(client, uids, 3, TIMEOUT_MS, experts, statuses, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(statuses[0], SKEP_NOT_FOUND);
    assert_int_equal(statuses[1], SKEP_OK);
    assert_int_equal(statuses[2], SKEP_INVALID_ARGUMENT);
    /* The same sentence as for one: which part is wrong. */
    struct skep_error alone;
    assert_int_equal(skep_client_find(client, "t.01", TIMEOUT_MS, &expert, &alone),
                     SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, alone.message);
    assert_non_null(strstr(err.message, "\"t.01\""));
    assert_null(experts[0]);
    assert_non_null(experts[1]);
    skep_remote_expert_free(experts[1]);
    skep_client_free(client);
    skep_node_free(node);
}

static void a_stopped_node_is_replaced_by_the_other(void **state)
{
    (void)state;
    struct skep_node *first = start_node("t.1", "nop", NULL);
    struct skep_node *second = start_node("t.1", "nop", skep_node_initial_peer(first));
    struct skep_client *client = start_client(skep_node_initial_peer(first));
    struct skep_remote_expert *expert = find(client, "t.1");
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;
    struct skep_error err;

    skep_node_stop(second);
    for (int i = 0; i < 5; i++) {
        if (forward(expert, x, &y, 0, &err) != SKEP_OK)
            fail_msg("forward: %s", err.message);
        skep_tensor_free(y);
    }
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(second);
    skep_node_free(first);
}

static void a_repeated_request_id_steps_once(void **state)
{
    (void)state;
    struct skep_node *node = start_node("t.1", "ffn", NULL);
    struct skep_client *client = start_client(skep_node_initial_peer(node));
    struct skep_remote_expert *expert = find(client, "t.1");
    DLManagedTensor *x = rows(2, 0.5f);
    uint8_t id[SKEP_REQUEST_ID_BYTES] = {1, 2, 3};
    struct skep_expert_info info;
    struct skep_error err;

    for (int i = 0; i < 3; i++)
        if (backward(expert, x, id, 0, &err) != SKEP_OK)
            fail_msg("backward: %s", err.message);
    assert_int_equal(skep_remote_expert_info(expert, 0, &info, &err), SKEP_OK);
    assert_int_equal(info.update_count, 1);
    assert_int_equal(backward(expert, x, NULL, 0, &err), SKEP_OK);
    assert_int_equal(skep_remote_expert_info(expert, 0, &info, &err), SKEP_OK);
    assert_int_equal(info.update_count, 2);
    assert_string_equal(info.cls, "ffn");
    assert_string_equal(info.uid, "t.1");
    assert_string_equal(info.peer_id, skep_node_peer_id(node));
    assert_int_equal(info.schema.input_count, 1);
    assert_int_equal(info.schema.inputs[0].shape[1], HIDDEN);
    assert_true(info.parameter_count > 0);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    skep_node_free(node);
}

/* ---- a server that misbehaves */

enum misbehaviour { REFUSE_FULL, NEVER_ANSWER, DRIVE_TERMINALS };

/* An answer to info whose texts are escapes, marks of direction and no UTF-8. */
static const char driving_info[] = "\x88\xa3uid\xa3x.1\xa5"
                                   "class\xa5"
                                   "a\033[2J\xa9precision\xa4"
                                   "f\xe2\x80\xae\xaaparameters\x01\xa7updates\x02\xae"
                                   "max_batch_size\x04\xa6inputs\x91\x83\xa4name\xa2\xff\x07\xa5"
                                   "dtype\xa3"
                                   "F32\xa5shape\x92\xff\x04\xa7outputs\x90";

struct bad_server {
    enum misbehaviour how;
    struct identity identity;
    struct server *server;
    char endpoint[ENDPOINT_TEXT_BYTES];
    char peer_id[PEER_ID_HEX_BYTES];
    pthread_mutex_t lock; /* guards held and hold_count */
    pthread_cond_t held_cond;
    struct server_call *held[64];
    size_t held_count;
    atomic_int calls;
};

static skep_status bad_started(void *arg, struct server_call *call,
                               const struct call_headers *headers, void **user,
                               struct skep_error *err)
{
    struct bad_server *bad = arg;

    (void)call;
    (void)headers;
    (void)user;
    atomic_fetch_add(&bad->calls, 1);
    if (bad->how != REFUSE_FULL)
        return SKEP_OK;
    (void)error_set(err, SKEP_RESOURCE_EXHAUSTED, "expert x: the queue is full");
    err->retry_after_ms = 250;
    return SKEP_RESOURCE_EXHAUSTED;
}

static void bad_complete(void *arg, struct server_call *call)
{
    struct bad_server *bad = arg;

    if (bad->how == DRIVE_TERMINALS) {
        server_call_reply(call, NULL, (const uint8_t *)driving_info, sizeof(driving_info) - 1, NULL,
                          0);
        return;
    }
    pthread_mutex_lock(&bad->lock);
    bad->held[bad->held_count++] = call;
    pthread_cond_broadcast(&bad->held_cond);
    pthread_mutex_unlock(&bad->lock);
}

static void bad_finished(void *arg, struct server_call *call, void *user)
{
    (void)arg;
    (void)call;
    (void)user;
}

static void bad_wait_held(struct bad_server *bad, size_t count)
{
    uint64_t deadline_us = clock_deadline_us(TIMEOUT_MS);

    pthread_mutex_lock(&bad->lock);
    while (bad->held_count < count && cond_wait_until(&bad->held_cond, &bad->lock, deadline_us))
        continue;
    bool ok = bad->held_count >= count;
    pthread_mutex_unlock(&bad->lock);
    assert_true(ok);
}

static void bad_start(struct bad_server *bad, enum misbehaviour how)
{
    struct server_config config = {
        .io_threads = 1,
        .max_connections = 16,
        .max_connections_per_address = 16,
        .swarm = own_swarm(),
        .limits = session_default_limits,
        .handlers = {.started = bad_started, .complete = bad_complete, .finished = bad_finished},
        .arg = bad,
    };
    struct endpoint bound;
    struct skep_error err;

    memset(bad, 0, sizeof(*bad));
    bad->how = how;
    pthread_mutex_init(&bad->lock, NULL);
    cond_init(&bad->held_cond);
    assert_int_equal(identity_system_init(NULL), SKEP_OK);
    assert_int_equal(identity_generate(&bad->identity, NULL), SKEP_OK);
    peer_id_hex(bad->identity.peer_id, bad->peer_id);
    config.identity = &bad->identity;
    assert_int_equal(endpoint_parse(&config.listen, "127.0.0.1:*", true, NULL), SKEP_OK);
    if (server_new(&config, &bad->server, &err) != SKEP_OK)
        fail_msg("server: %s", err.message);
    server_endpoint(bad->server, &bound);
    endpoint_format(&bound, bad->endpoint);
}

static void bad_stop(struct bad_server *bad)
{
    pthread_mutex_lock(&bad->lock);
    for (size_t i = 0; i < bad->held_count; i++)
        server_call_reply(bad->held[i], NULL, NULL, 0, NULL, 0);
    bad->held_count = 0;
    pthread_mutex_unlock(&bad->lock);
    server_stop(bad->server);
    server_free(bad->server);
    pthread_cond_destroy(&bad->held_cond);
    pthread_mutex_destroy(&bad->lock);
}

static struct skep_remote_expert *expert_of(struct skep_client *client, struct bad_server *bad)
{
    struct skep_remote_expert *expert;

    assert_int_equal(
        skep_client_expert_at(client, "x.1", bad->endpoint, bad->peer_id, &expert, NULL), SKEP_OK);
    return expert;
}

static void a_full_queue_carries_its_retry_hint(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;

    bad_start(&bad, REFUSE_FULL);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    assert_int_equal(forward(expert, x, &y, TIMEOUT_MS, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(err.retry_after_ms, 250);
    assert_int_equal(atomic_load(&bad.calls), 1);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void what_a_node_tells_of_an_expert_is_fit_to_be_shown(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_expert_info info;
    struct skep_error err = {0};

    bad_start(&bad, DRIVE_TERMINALS);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    if (skep_remote_expert_info(expert, TIMEOUT_MS, &info, &err) != SKEP_OK)
        fail_msg("info: %s", err.message);
    assert_int_equal(info.update_count, 2);
    assert_string_equal(info.cls, "a?[2J");
    assert_string_equal(info.precision, "f???");
    assert_string_equal(info.schema.inputs[0].name, "??");
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void a_silent_node_ends_in_deadline_exceeded(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;

    bad_start(&bad, NEVER_ANSWER);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    assert_int_equal(forward(expert, x, &y, 200, &err), SKEP_DEADLINE_EXCEEDED);
    assert_non_null(strstr(err.message, "limit of the call: 200 ms")); /* B13 */
    assert_false(err.outcome_unknown);
    assert_int_equal(backward(expert, x, NULL, 200, &err), SKEP_DEADLINE_EXCEEDED);
    assert_true(err.outcome_unknown);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void a_lost_backward_is_not_sent_twice(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    struct skep_call *call;
    DLManagedTensor *x = rows(1, 0.0f);
    const DLTensor *inputs[1] = {&x->dl_tensor};
    DLManagedTensor *grad;
    size_t count;

    bad_start(&bad, NEVER_ANSWER);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    assert_int_equal(skep_remote_expert_backward_start(expert, inputs, 1, inputs, 1, NULL, NULL,
                                                       NULL, &call, NULL),
                     SKEP_OK);
    bad_wait_held(&bad, 1);
    server_stop(bad.server); /* the connection is gone, the request was there */
    assert_true(skep_call_wait(call, TIMEOUT_MS));
    assert_int_equal(skep_call_result(call, &grad, 1, &count, &err), SKEP_UNAVAILABLE);
    assert_true(err.outcome_unknown);
    assert_int_equal(atomic_load(&bad.calls), 1);
    skep_call_free(call);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void count_end(struct skep_call *call, void *arg)
{
    (void)call;
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void cancel_still_calls_back_once(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    struct skep_call *call;
    atomic_int ends = 0;
    DLManagedTensor *x = rows(1, 0.0f);
    const DLTensor *inputs[1] = {&x->dl_tensor};
    DLManagedTensor *y;
    size_t count;

    bad_start(&bad, NEVER_ANSWER);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    for (int i = 0; i < 2; i++) { /* once under way, once at any moment before */
        assert_int_equal(skep_remote_expert_forward_start(expert, inputs, 1, NULL, count_end, &ends,
                                                          &call, NULL),
                         SKEP_OK);
        if (i == 0)
            bad_wait_held(&bad, 1);
        assert_int_equal(skep_call_result(call, &y, 1, &count, &err), SKEP_FAILED_PRECONDITION);
        skep_call_cancel(call);
        skep_call_cancel(call);
        assert_true(skep_call_wait(call, TIMEOUT_MS));
        assert_int_equal(skep_call_result(call, &y, 1, &count, &err), SKEP_CANCELLED);
        skep_call_free(call);
    }
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    assert_int_equal(atomic_load(&ends), 2);
    bad_stop(&bad);
}

static void a_wrong_identity_is_refused_before_anything_is_sent(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    struct skep_remote_expert *expert;
    char other[PEER_ID_HEX_BYTES];
    struct identity stranger;
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;

    bad_start(&bad, NEVER_ANSWER);
    assert_int_equal(identity_generate(&stranger, NULL), SKEP_OK);
    peer_id_hex(stranger.peer_id, other);
    assert_int_equal(skep_client_expert_at(client, "x.1", bad.endpoint, other, &expert, NULL),
                     SKEP_OK);
    assert_int_equal(forward(expert, x, &y, TIMEOUT_MS, &err), SKEP_UNAUTHENTICATED);
    assert_int_equal(atomic_load(&bad.calls), 0);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void calls_beyond_the_limit_are_refused(void **state)
{
    (void)state;
    struct bad_server bad;
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_call *calls[2];
    struct skep_call *third;
    DLManagedTensor *x = rows(1, 0.0f);
    const DLTensor *inputs[1] = {&x->dl_tensor};

    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.no_dht = true;
    options.max_in_flight = 2;
    assert_int_equal(skep_client_new(&options, &client, NULL), SKEP_OK);
    bad_start(&bad, NEVER_ANSWER);
    struct skep_remote_expert *expert = expert_of(client, &bad);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            skep_remote_expert_forward_start(expert, inputs, 1, NULL, NULL, NULL, &calls[i], NULL),
            SKEP_OK);
    assert_int_equal(
        skep_remote_expert_forward_start(expert, inputs, 1, NULL, NULL, NULL, &third, NULL),
        SKEP_RESOURCE_EXHAUSTED);
    for (int i = 0; i < 2; i++)
        skep_call_free(calls[i]);
    skep_tensor_free(x);
    skep_remote_expert_free(expert);
    skep_client_free(client);
    bad_stop(&bad);
}

static void nobody_at_the_endpoint_is_unavailable(void **state)
{
    (void)state;
    struct skep_client *client = start_client(NULL);
    struct skep_error err = {0};
    struct skep_remote_expert *expert;
    struct bad_server bad;
    char endpoint[ENDPOINT_TEXT_BYTES];
    DLManagedTensor *x = rows(1, 0.0f);
    DLManagedTensor *y;

    bad_start(&bad, NEVER_ANSWER); /* a port that was ours and is closed now */
    memcpy(endpoint, bad.endpoint, sizeof(endpoint));
    bad_stop(&bad);
    assert_int_equal(skep_client_expert_at(client, "x.1", endpoint, NULL, &expert, NULL), SKEP_OK);
    assert_int_equal(forward(expert, x, &y, TIMEOUT_MS, &err), SKEP_UNAVAILABLE);
    assert_non_null(strstr(err.message, endpoint));
    assert_int_equal(backward(expert, x, NULL, TIMEOUT_MS, &err), SKEP_UNAVAILABLE);
    assert_false(err.outcome_unknown);
    skep_remote_expert_free(expert);
    assert_int_equal(skep_client_find(client, "x.1", 100, &expert, &err), SKEP_FAILED_PRECONDITION);
    skep_tensor_free(x);
    skep_client_free(client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_and_calls_an_expert),
        cmocka_unit_test(a_node_of_this_machine_is_reached_whatever_it_publishes),
        cmocka_unit_test(client_without_memory_for_its_first_things_is_refused),
        cmocka_unit_test(options_of_an_unknown_size_are_refused),
        cmocka_unit_test(null_for_options_and_initial_peers_is_refused),
        cmocka_unit_test(null_for_names_is_refused),
        cmocka_unit_test(null_for_tensors_is_refused),
        cmocka_unit_test(a_client_without_the_dht_says_so_of_what_needs_it),
        cmocka_unit_test(absent_and_invalid_uids_are_told_apart),
        cmocka_unit_test(a_stopped_node_is_replaced_by_the_other),
        cmocka_unit_test(a_repeated_request_id_steps_once),
        cmocka_unit_test(a_full_queue_carries_its_retry_hint),
        cmocka_unit_test(what_a_node_tells_of_an_expert_is_fit_to_be_shown),
        cmocka_unit_test(a_silent_node_ends_in_deadline_exceeded),
        cmocka_unit_test(a_lost_backward_is_not_sent_twice),
        cmocka_unit_test(cancel_still_calls_back_once),
        cmocka_unit_test(a_wrong_identity_is_refused_before_anything_is_sent),
        cmocka_unit_test(calls_beyond_the_limit_are_refused),
        cmocka_unit_test(nobody_at_the_endpoint_is_unavailable),
    };
    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
