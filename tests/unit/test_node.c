/* Calls to a node in this process: what is answered, refused, remembered. */
#include "own_swarm.h"
#include "node_caller.h"

#include <skep/log.h>
#include "base/mp.h"
#include "experts/expert.h"
#include "net/server.h"

/* --- calls --------------------------------------------------------------------------------- */

static void forward_and_backward_equal_a_local_expert(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("ffn");
    struct skep_expert_options options;
    struct expert *local;
    struct caller caller;

    expert_options(&options, "ffn");
    assert_int_equal(expert_new(&options, &local, NULL), SKEP_OK);
    caller_init(&caller, node);
    for (uint8_t step = 0; step < 3; step++) {
        uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {step};
        DLManagedTensor *x = rows_of(3 + step, step);
        DLManagedTensor *g = rows_of(3 + step, 10.0f + step);
        DLManagedTensor *y = rows_of(3 + step, 0);
        struct request request = forward_of(x);
        struct reply reply;

        call(&caller, &request, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        assert_int_equal(expert_forward(local, &x->dl_tensor, &y->dl_tensor, NULL), SKEP_OK);
        assert_same(reply.tensors[0], y);
        reply_fini(&reply);

        request = backward_of(x, g, id);
        call(&caller, &request, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        assert_int_equal(expert_backward(local, &x->dl_tensor, &g->dl_tensor, &y->dl_tensor, NULL),
                         SKEP_OK);
        assert_same(reply.tensors[0], y);
        reply_fini(&reply);
        skep_tensor_free(x);
        skep_tensor_free(g);
        skep_tensor_free(y);
    }
    assert_int_equal(updates(node), 3);
    caller_fini(&caller);
    skep_node_free(node);
    expert_free(local);
}

static void refused(struct caller *caller, const struct request *request, skep_status status,
                    const char *part)
{
    struct reply reply;

    call(caller, request, &reply);
    if (reply.status != status || strstr(reply.message, part) == NULL)
        fail_msg("%s: %s, expected %s and \"%s\"", skep_status_name(reply.status), reply.message,
                 skep_status_name(status), part);
    assert_true(reply.answered);
    reply_fini(&reply);
}

static void bad_calls_are_refused_by_name_and_the_next_is_served(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("ffn");
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {1};
    struct caller caller;
    struct skep_node_stats stats;
    DLManagedTensor *good = rows_of(2, 1);
    const struct {
        DLManagedTensor *t;
        const char *part;
    } bad[] = {
        {tensor(DTYPE_F32, 2, 2, HIDDEN + 1, 1), "17"},
        {tensor(DTYPE_F32, 1, 2, 0, 1), "input 0"},
        {tensor(DTYPE_F32, 3, 2, HIDDEN, 1), "input 0"},
        {tensor(DTYPE_I64, 2, 2, HIDDEN, 1), "I64"},
        {tensor(DTYPE_F32, 2, 0, HIDDEN, 1), "0 rows"},
        {tensor(DTYPE_F32, 2, MAX_ROWS + 1, HIDDEN, 1), "max_batch_size 64"},
    };
    struct request r;

    caller_init(&caller, node);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        r = forward_of(bad[i].t);
        refused(&caller, &r, SKEP_INVALID_ARGUMENT, bad[i].part);
        r = backward_of(bad[i].t, good, id);
        refused(&caller, &r, SKEP_INVALID_ARGUMENT, "t.1");
        if (i < 5) {
            r = backward_of(good, bad[i].t, id);
            refused(&caller, &r, SKEP_INVALID_ARGUMENT, "grad_output 0");
        }
        skep_tensor_free(bad[i].t);
    }
    r = backward_of(good, good, id);
    r.request_id = NULL;
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "no request id (id in the headers)");
    r.count = 1;
    refused(&caller, &r, SKEP_INVALID_ARGUMENT,
            "1 tensor, expected 2 (inputs: 1, grad_outputs: 1)");
    r = forward_of(good);
    r.count = 0;
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "0 tensors");
    DLManagedTensor *one = rows_of(1, 0);
    r = backward_of(good, one, id);
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "1 rows, expected 2");
    r = forward_of(good);
    r.uid = "t.2";
    refused(&caller, &r, SKEP_NOT_FOUND, "t.2");
    r.uid = "\x1b[2J";
    refused(&caller, &r, SKEP_NOT_FOUND, "\\x1b");
    r.uid = NULL;
    refused(&caller, &r, SKEP_NOT_FOUND, "\"\"");
    r.method = "conquer";
    refused(&caller, &r, SKEP_UNIMPLEMENTED, "conquer");
    r.method = "ping";
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "ping");

    struct reply reply;
    r = forward_of(good);
    call(&caller, &r, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    reply_fini(&reply);
    assert_int_equal(updates(node), 0);
    skep_node_stats(node, &stats);
    assert_int_equal(stats.forward.tasks, 1);
    assert_int_equal(stats.backward.tasks, 0);
    assert_true(stats.calls_refused >= 20);
    assert_int_equal(stats.connections_open, 1); /* not one of them cost the connection */
    skep_tensor_free(good);
    skep_tensor_free(one);
    caller_fini(&caller);
    skep_node_free(node);
}

static void repeated_backward_steps_once(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("ffn");
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {1, 2, 3};
    struct caller caller;
    struct caller other;
    DLManagedTensor *x = rows_of(4, 1);
    DLManagedTensor *g = rows_of(4, 2);
    struct request r = backward_of(x, g, id);
    struct reply replies[6];
    struct skep_node_stats stats;

    caller_init(&caller, node);
    caller_init(&other, node);
    for (size_t i = 0; i < 5; i++) /* whether they meet it under way or ended */
        start_call(&caller, &r, &replies[i]);
    for (size_t i = 0; i < 5; i++) {
        wait_reply(&replies[i]);
        assert_int_equal(replies[i].status, SKEP_OK);
        assert_same(replies[i].tensors[0], replies[0].tensors[0]);
    }
    call(&caller, &r, &replies[5]);
    assert_same(replies[5].tensors[0], replies[0].tensors[0]);
    assert_int_equal(updates(node), 1);
    for (size_t i = 0; i < 6; i++)
        reply_fini(&replies[i]);
    skep_node_stats(node, &stats);
    assert_int_equal(stats.repeats_answered, 5);
    assert_int_equal(stats.repeats_remembered, 1);

    call(&other, &r, &replies[0]); /* another peer's same id is another call */
    assert_int_equal(replies[0].status, SKEP_OK);
    assert_int_equal(updates(node), 2);
    reply_fini(&replies[0]);
    skep_tensor_free(x);
    skep_tensor_free(g);
    caller_fini(&other);
    caller_fini(&caller);
    skep_node_free(node);
}

static uint64_t number_in(const struct reply *reply, const char *key)
{
    struct mp mp = {0};
    uint64_t value = UINT64_MAX;

    assert_int_equal(mp_parse(&mp, reply->result.data, reply->result.len, "result", NULL), SKEP_OK);
    assert_true(mp_u64(mp_get(mp.root, key), &value));
    mp_free(&mp);
    return value;
}

static void failed_step_answers_and_the_next_hundred_succeed(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("ffn");
    struct caller caller;
    DLManagedTensor *x = rows_of(2, 1);
    DLManagedTensor *bad = rows_of(2, 1);
    struct reply reply;

    ((float *)skep_tensor_data(&bad->dl_tensor))[3] = NAN;
    caller_init(&caller, node);
    for (uint8_t i = 0; i < 100; i++) {
        const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {i};
        struct request r = i == 0 ? backward_of(x, bad, id) : backward_of(x, x, id);

        call(&caller, &r, &reply);
        assert_int_equal(reply.status, i == 0 ? SKEP_INVALID_ARGUMENT : SKEP_OK);
        reply_fini(&reply);
    }
    assert_int_equal(updates(node), 99);
    struct skep_node_stats stats;
    skep_node_stats(node, &stats);
    assert_int_equal(stats.backward.failed, 1);
    assert_int_equal(stats.anomalies, 1);
    assert_int_equal(stats.skipped_steps, 1);
    call(&caller, &(struct request){.method = "info", .uid = "t.1"}, &reply);
    assert_int_equal(number_in(&reply, "skipped_steps"), 1);
    reply_fini(&reply);
    skep_tensor_free(x);
    skep_tensor_free(bad);
    caller_fini(&caller);
    skep_node_free(node);
}

static void anomalies_are_refused_where_asked_for(void **state)
{
    (void)state;
    struct skep_node_options options;
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {9};
    struct caller caller;
    DLManagedTensor *x = rows_of(2, 1);
    DLManagedTensor *bad = rows_of(2, 1);
    struct request r;

    ((float *)skep_tensor_data(&bad->dl_tensor))[3] = INFINITY;
    node_options(&options);
    options.detect_anomalies = true;
    struct skep_node *node = new_node(&options, "t.1", "ffn");
    start_node(node);
    caller_init(&caller, node);
    r = forward_of(bad);
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "input 0 holds NaN or infinity");
    r = backward_of(x, bad, id);
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "grad_output 0 holds NaN or infinity");
    assert_int_equal(updates(node), 0);
    struct skep_node_stats stats;
    skep_node_stats(node, &stats);
    assert_int_equal(stats.anomalies, 2);
    assert_int_equal(stats.calls_refused, 2);
    skep_tensor_free(x);
    skep_tensor_free(bad);
    caller_fini(&caller);
    skep_node_free(node);
}

static void an_expert_in_bfloat16_serves_and_says_so(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert;
    const uint8_t id[MESSAGE_REQUEST_ID_BYTES] = {7};
    struct skep_node *node;
    struct caller caller;
    DLManagedTensor *x = rows_of(2, 1);
    struct reply reply;
    struct mp mp = {0};
    char text[64];

    node_options(&options);
    skep_expert_options_init(&expert);
    expert.hidden_dim = HIDDEN;
    expert.precision = "bfloat16";
    assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, NULL), SKEP_OK);
    start_node(node);
    caller_init(&caller, node);
    struct request r = backward_of(x, x, id);
    call(&caller, &r, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    reply_fini(&reply);
    call(&caller, &(struct request){.method = "info", .uid = "t.1"}, &reply);
    assert_int_equal(mp_parse(&mp, reply.result.data, reply.result.len, "info", NULL), SKEP_OK);
    assert_true(mp_str(mp_get(mp.root, "precision"), text, sizeof(text)));
    assert_string_equal(text, "bfloat16");
    mp_free(&mp);
    reply_fini(&reply);
    skep_tensor_free(x);
    caller_fini(&caller);
    skep_node_free(node);
}

static void experts_over_max_memory_are_refused_before_they_are_made(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    node_options(&options);
    options.max_memory = (uint64_t)1 << 40;
    skep_expert_options_init(&expert);
    expert.hidden_dim = 65536; /* 1.2 TB with their gradients each: making one would fail loudly */
    assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, NULL), SKEP_OK);
    assert_int_equal(skep_node_add_pattern(node, "p.[0:9]", 3, &expert, NULL), SKEP_OK);
    assert_int_equal(skep_node_start(node, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "4 experts"));
    assert_non_null(strstr(err.message, "at most 1024 GiB (max_memory)"));
    skep_node_free(node);
}

static void bad_options_of_a_pattern_are_refused_when_it_is_added(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    node_options(&options);
    skep_expert_options_init(&expert);
    expert.schedule = "sometimes";
    assert_int_equal(skep_node_new(&options, &node, NULL), SKEP_OK);
    assert_int_equal(skep_node_add_pattern(node, "p.[0:9]", 1, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "\"sometimes\" is not known"));
    skep_node_free(node);
}

static void info_stats_and_ping_tell_what_docs_say(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("ffn");
    struct caller caller;
    struct reply reply;
    struct mp mp = {0};
    char text[64];
    const msgpack_object *items;
    size_t count;

    caller_init(&caller, node);
    call(&caller, &(struct request){.method = "info", .uid = "t.1"}, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_int_equal(mp_parse(&mp, reply.result.data, reply.result.len, "info", NULL), SKEP_OK);
    assert_true(mp_str(mp_get(mp.root, "class"), text, sizeof(text)));
    assert_string_equal(text, "ffn");
    assert_true(mp_str(mp_get(mp.root, "precision"), text, sizeof(text)));
    assert_string_equal(text, "float32");
    assert_true(mp_array(mp_get(mp.root, "inputs"), &items, &count));
    assert_int_equal(count, 1);
    assert_true(mp_str(mp_get(&items[0], "dtype"), text, sizeof(text)));
    assert_string_equal(text, "F32");
    assert_non_null(mp_get(mp_get(mp.root, "load"), "queued_tasks"));
    mp_free(&mp);
    assert_true(number_in(&reply, "parameters") > 0);
    assert_int_equal(number_in(&reply, "max_batch_size"), MAX_ROWS);
    reply_fini(&reply);

    call(&caller, &(struct request){.method = "ping"}, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    reply_fini(&reply);
    call(&caller, &(struct request){.method = "stats"}, &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_int_equal(number_in(&reply, "experts"), 1);
    assert_int_equal(number_in(&reply, "connections_open"), 1);
    reply_fini(&reply);
    caller_fini(&caller);
    skep_node_free(node);
}

/* --- dial_back ----------------------------------------------------------------------------- */

static skep_status answer_nothing(void *arg, struct server_call *server_call,
                                  const struct call_headers *headers, void **user,
                                  struct skep_error *err)
{
    (void)arg;
    (void)server_call;
    (void)headers;
    (void)user;
    return error_set(err, SKEP_UNIMPLEMENTED, "nothing is served here");
}

static bool dialled_back(struct caller *caller, uint16_t port)
{
    /* {"port": uint16} */
    uint8_t params[] = {0x81, 0xa4, 'p', 'o', 'r', 't', 0xcd, (uint8_t)(port >> 8), (uint8_t)port};
    struct reply reply;
    struct mp mp = {0};
    bool reachable = false;

    call(caller,
         &(struct request){.method = "dial_back", .params = params, .params_len = sizeof(params)},
         &reply);
    assert_int_equal(reply.status, SKEP_OK);
    assert_int_equal(mp_parse(&mp, reply.result.data, reply.result.len, "result", NULL), SKEP_OK);
    assert_true(mp_bool(mp_get(mp.root, "reachable"), &reachable));
    mp_free(&mp);
    reply_fini(&reply);
    return reachable;
}

static void dial_back_tells_whether_the_callers_port_is_reachable(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("nop");
    struct caller caller;
    struct caller stranger;
    struct server *server;
    struct endpoint bound;
    struct request no_port = {.method = "dial_back"};

    caller_init(&caller, node);
    caller_init(&stranger, node);
    struct server_config config = {
        .listen = caller.target.endpoints[0],
        .io_threads = 1,
        .max_connections = 4,
        .max_connections_per_address = 4,
        .identity = &caller.identity,
        .swarm = own_swarm(),
        .limits = session_default_limits,
        .handlers = {.started = answer_nothing},
    };
    config.listen.port = 0;
    assert_int_equal(server_new(&config, &server, NULL), SKEP_OK);
    server_endpoint(server, &bound);
    assert_true(dialled_back(&caller, bound.port));
    /* The connection that this has left does not vouch for another port. */
    assert_false(dialled_back(&caller, bound.port == 65535 ? 65534 : (uint16_t)(bound.port + 1)));
    assert_false(dialled_back(&stranger, bound.port)); /* there, but not who asked */
    server_stop(server);
    server_free(server);
    assert_false(dialled_back(&caller, bound.port));
    refused(&caller, &no_port, SKEP_DATA_LOSS, "params");
    caller_fini(&stranger);
    caller_fini(&caller);
    skep_node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_and_backward_equal_a_local_expert),
        cmocka_unit_test(bad_calls_are_refused_by_name_and_the_next_is_served),
        cmocka_unit_test(repeated_backward_steps_once),
        cmocka_unit_test(failed_step_answers_and_the_next_hundred_succeed),
        cmocka_unit_test(anomalies_are_refused_where_asked_for),
        cmocka_unit_test(an_expert_in_bfloat16_serves_and_says_so),
        cmocka_unit_test(experts_over_max_memory_are_refused_before_they_are_made),
        cmocka_unit_test(bad_options_of_a_pattern_are_refused_when_it_is_added),
        cmocka_unit_test(info_stats_and_ping_tell_what_docs_say),
        cmocka_unit_test(dial_back_tells_whether_the_callers_port_is_reachable),
    };

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
