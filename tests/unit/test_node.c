/* Nodes in this process, called over loopback through the calling side of the transport. */
#include "unit.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <skep/log.h>
#include <skep/node.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "dht/swarm.h"
#include "experts/expert.h"
#include "net/pool.h"
#include "net/server.h"

enum { HIDDEN = 16, TIMEOUT_MS = 20000, MAX_ROWS = 64 };

/* --- a caller ------------------------------------------------------------------------------ */

struct caller {
    struct identity identity;
    struct pool *pool;
    struct pool_target target;
};

static void caller_init(struct caller *caller, struct skep_node *node)
{
    struct pool_config config = {
        .identity = &caller->identity,
        .swarm = "skep",
        .limits = session_default_limits,
        .max_connections = 8,
        .connect_timeout_ms = TIMEOUT_MS,
        .idle_timeout_ms = TIMEOUT_MS,
    };
    struct skep_error err;

    memset(caller, 0, sizeof(*caller));
    assert_int_equal(identity_system_init(NULL), SKEP_OK);
    assert_int_equal(identity_generate(&caller->identity, NULL), SKEP_OK);
    if (pool_new(&config, &caller->pool, &err) != SKEP_OK)
        fail_msg("pool: %s", err.message);
    caller->target.has_peer_id = true;
    assert_true(peer_id_parse(caller->target.peer_id, skep_node_peer_id(node)));
    caller->target.endpoint_count = 1;
    assert_int_equal(
        endpoint_parse(&caller->target.endpoints[0], skep_node_endpoint(node), false, NULL),
        SKEP_OK);
}

static void caller_fini(struct caller *caller)
{
    pool_free(caller->pool);
}

/* One call and its end. */
struct reply {
    pthread_mutex_t lock; /* guards `done` */
    pthread_cond_t changed;
    bool done;
    bool answered; /* by the peer */
    skep_status status;
    char message[SKEP_ERROR_MESSAGE_BYTES];
    struct bytes result;
    size_t count;
    DLManagedTensor *tensors[4];
};

static void reply_init(struct reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    pthread_mutex_init(&reply->lock, NULL);
    cond_init(&reply->changed);
}

static void reply_fini(struct reply *reply)
{
    for (size_t i = 0; i < reply->count; i++)
        skep_tensor_free(reply->tensors[i]);
    bytes_free(&reply->result);
    pthread_cond_destroy(&reply->changed);
    pthread_mutex_destroy(&reply->lock);
}

static void on_reply(void *arg, const struct reply_headers *headers, DLManagedTensor **tensors,
                     bool sent, const struct skep_error *err)
{
    struct reply *reply = arg;

    (void)sent;
    pthread_mutex_lock(&reply->lock);
    reply->answered = headers != NULL;
    reply->status = headers != NULL ? headers->status : err->status;
    snprintf(reply->message, sizeof(reply->message), "%s",
             headers != NULL ? headers->message : err->message);
    if (headers != NULL && headers->result.len > 0)
        bytes_append(&reply->result, headers->result.data, headers->result.len);
    for (size_t i = 0; headers != NULL && i < headers->tensor_count; i++) {
        if (i < 4)
            reply->tensors[reply->count++] = tensors[i];
        else
            skep_tensor_free(tensors[i]);
    }
    reply->done = true;
    pthread_cond_broadcast(&reply->changed);
    pthread_mutex_unlock(&reply->lock);
}

/* What a test varies of a call; zero fields take what is right for the method. */
struct request {
    const char *method, *uid;
    const uint8_t *request_id;
    size_t count;
    const DLTensor *tensors[4];
    const uint8_t *params;
    size_t params_len;
};

static void start_call(struct caller *caller, const struct request *request, struct reply *reply)
{
    struct call_headers headers = {.tensor_count = request->count};
    struct skep_error err;

    reply_init(reply);
    snprintf(headers.method, sizeof(headers.method), "%s", request->method);
    snprintf(headers.uid, sizeof(headers.uid), "%s", request->uid != NULL ? request->uid : "");
    headers.params.data = (uint8_t *)(uintptr_t)request->params;
    headers.params.len = request->params_len;
    if (request->request_id != NULL) {
        headers.has_request_id = true;
        memcpy(headers.request_id, request->request_id, sizeof(headers.request_id));
    }
    for (size_t i = 0; i < request->count; i++)
        assert_int_equal(tensor_descriptor_of(&headers.tensors[i], request->tensors[i], NULL),
                         SKEP_OK);
    if (pool_call(caller->pool, &caller->target, &headers, request->tensors,
                  clock_deadline_us(TIMEOUT_MS), on_reply, reply, NULL, &err) != SKEP_OK) {
        reply->done = true;
        reply->status = err.status;
        memcpy(reply->message, err.message, sizeof(reply->message));
    }
}

static void wait_reply(struct reply *reply)
{
    pthread_mutex_lock(&reply->lock);
    while (!reply->done)
        pthread_cond_wait(&reply->changed, &reply->lock);
    pthread_mutex_unlock(&reply->lock);
}

static void call(struct caller *caller, const struct request *request, struct reply *reply)
{
    start_call(caller, request, reply);
    wait_reply(reply);
}

/* --- nodes and tensors --------------------------------------------------------------------- */

static void expert_options(struct skep_expert_options *options, const char *cls)
{
    skep_expert_options_init(options);
    options->cls = cls;
    options->hidden_dim = HIDDEN;
    options->seed = 7;
    options->learning_rate = 0.01;
}

static void node_options(struct skep_node_options *options)
{
    skep_node_options_init(options);
    options->listen = "127.0.0.1:*";
    options->no_dht = true;
    options->max_batch_size = MAX_ROWS;
}

static struct skep_node *new_node(const struct skep_node_options *options, const char *uid,
                                  const char *cls)
{
    struct skep_expert_options expert;
    struct skep_node *node;
    struct skep_error err;

    expert_options(&expert, cls);
    if (skep_node_new(options, &node, &err) != SKEP_OK ||
        (uid != NULL && skep_node_add_expert(node, uid, &expert, &err) != SKEP_OK))
        fail_msg("node: %s", err.message);
    return node;
}

static void start_node(struct skep_node *node)
{
    struct skep_error err;

    if (skep_node_start(node, &err) != SKEP_OK ||
        skep_node_wait_ready(node, TIMEOUT_MS, &err) != SKEP_OK)
        fail_msg("node: %s", err.message);
}

static struct skep_node *simple_node(const char *cls)
{
    struct skep_node_options options;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", cls);
    start_node(node);
    return node;
}

static DLManagedTensor *tensor(DLDataType dtype, int ndim, int64_t rows, int64_t width, float first)
{
    int64_t shape[3] = {rows, width, 1};
    DLManagedTensor *t;
    size_t bytes;

    assert_int_equal(skep_tensor_new(dtype, ndim, shape, &t, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&t->dl_tensor, &bytes, NULL), SKEP_OK);
    float *x = skep_tensor_data(&t->dl_tensor);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        x[i] = sinf(first + (float)i);
    return t;
}

static DLManagedTensor *rows_of(int64_t rows, float first)
{
    return tensor(DTYPE_F32, 2, rows, HIDDEN, first);
}

static void assert_same(const DLManagedTensor *a, const DLManagedTensor *b)
{
    size_t bytes;
    size_t other;

    assert_int_equal(skep_tensor_bytes(&a->dl_tensor, &bytes, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&b->dl_tensor, &other, NULL), SKEP_OK);
    assert_int_equal(bytes, other);
    assert_memory_equal(skep_tensor_data(&a->dl_tensor), skep_tensor_data(&b->dl_tensor), bytes);
}

static uint64_t updates(struct skep_node *node)
{
    struct skep_expert_stats stats;

    assert_true(skep_node_expert_stats(node, 0, &stats));
    return stats.updates;
}

static struct request forward_of(DLManagedTensor *x)
{
    return (struct request){
        .method = "forward", .uid = "t.1", .count = 1, .tensors = {&x->dl_tensor}};
}

static struct request backward_of(DLManagedTensor *x, DLManagedTensor *g, const uint8_t *id)
{
    return (struct request){.method = "backward",
                            .uid = "t.1",
                            .request_id = id,
                            .count = 2,
                            .tensors = {&x->dl_tensor, &g->dl_tensor}};
}

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
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "request_id");
    r.count = 1;
    refused(&caller, &r, SKEP_INVALID_ARGUMENT, "1 tensors, expected 1 inputs and 1 grad_outputs");
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
    skep_tensor_free(x);
    skep_tensor_free(bad);
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
        .swarm = "skep",
        .limits = session_default_limits,
        .handlers = {.started = answer_nothing},
    };
    config.listen.port = 0;
    assert_int_equal(server_new(&config, &server, NULL), SKEP_OK);
    server_endpoint(server, &bound);
    assert_true(dialled_back(&caller, bound.port));
    assert_false(dialled_back(&stranger, bound.port)); /* there, but not who asked */
    server_stop(server);
    server_free(server);
    assert_false(dialled_back(&caller, bound.port));
    refused(&caller, &no_port, SKEP_DATA_LOSS, "params");
    caller_fini(&stranger);
    caller_fini(&caller);
    skep_node_free(node);
}

/* --- lifecycle ----------------------------------------------------------------------------- */

static size_t entries_in(const char *folder)
{
    DIR *dir = opendir(folder);
    size_t count = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* The kernel takes a moment to forget a thread that was joined. */
static bool threads_return_to(size_t count)
{
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);

    while (entries_in("/proc/self/task") > count)
        if (clock_mono_us() > deadline)
            return false;
    return true;
}

static void cycle(int i)
{
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    options.no_dht = i % 4 != 0;
    options.num_handlers = 1 + (unsigned)i % 2;
    struct skep_node *node = new_node(&options, "t.1", i % 2 == 0 ? "nop" : "ffn");
    if (i % 5 == 4) { /* never started */
        skep_node_free(node);
        return;
    }
    start_node(node);
    assert_int_equal(skep_node_start(node, &err), SKEP_FAILED_PRECONDITION);
    if (i % 3 == 0) {
        struct caller caller;
        struct reply reply;

        caller_init(&caller, node);
        call(&caller, &(struct request){.method = "info", .uid = "t.1"}, &reply);
        assert_int_equal(reply.status, SKEP_OK);
        reply_fini(&reply);
        caller_fini(&caller);
    }
    if (i % 3 == 1) {
        skep_node_request_stop(node);
        assert_true(skep_node_wait(node, UINT32_MAX));
        skep_node_stop(node);
    }
    skep_node_free(node);
}

static void starts_and_stops_leave_nothing_behind(void **state)
{
    (void)state;
    cycle(0); /* what libraries keep for ever is there after one */
    cycle(1);
    size_t threads = entries_in("/proc/self/task");
    size_t fds = entries_in("/proc/self/fd");

    for (int i = 0; i < 200; i++)
        cycle(i);
    assert_true(threads_return_to(threads));
    assert_int_equal(entries_in("/proc/self/fd"), fds);
}

static void stop_asked_for_before_start_is_kept(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "nop");
    assert_int_equal(skep_node_wait_ready(node, 1, &err), SKEP_FAILED_PRECONDITION);
    skep_node_request_stop(node);
    assert_int_equal(skep_node_run(node, &err), SKEP_OK); /* returns: it stops at once */
    assert_int_equal(skep_node_wait_ready(node, 1, &err), SKEP_FAILED_PRECONDITION);
    skep_node_free(node);
}

static void busy_port_is_named_and_nothing_is_left(void **state)
{
    (void)state;
    struct skep_node *first = simple_node("nop");
    size_t threads = entries_in("/proc/self/task");
    size_t fds = entries_in("/proc/self/fd");

    for (int dht = 0; dht < 2; dht++) {
        struct skep_node_options options;
        struct skep_error err;
        char port[16];

        node_options(&options);
        options.listen = skep_node_endpoint(first);
        options.no_dht = dht == 0;
        struct skep_node *second = new_node(&options, "t.1", "nop");
        assert_int_equal(skep_node_start(second, &err), SKEP_FAILED_PRECONDITION);
        snprintf(port, sizeof(port), ":%u", (unsigned)skep_node_port(first));
        assert_non_null(strstr(err.message, port));
        assert_true(skep_node_wait(second, 0));
        skep_node_free(second);
    }
    assert_true(threads_return_to(threads));
    assert_int_equal(entries_in("/proc/self/fd"), fds);
    skep_node_free(first);
}

static void experts_are_checked_when_added(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_expert_options expert;
    struct skep_error err;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", "nop");
    expert_options(&expert, "nop");
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.1"));
    assert_int_equal(skep_node_add_expert(node, "t.01", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "t.01"));
    assert_int_equal(skep_node_add_pattern(node, "t.[0:4", 1, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(skep_node_add_pattern(node, "t.[0:4]", 5, &expert, &err),
                     SKEP_INVALID_ARGUMENT);
    expert.cls = "nonsense";
    assert_int_equal(skep_node_add_expert(node, "t.2", &expert, &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "nonsense"));
    assert_int_equal(skep_node_expert_count(node), 1);
    start_node(node);
    expert_options(&expert, "nop");
    assert_int_equal(skep_node_add_expert(node, "t.3", &expert, &err), SKEP_FAILED_PRECONDITION);
    skep_node_free(node);
}

static void experts_beyond_memory_are_refused_at_start(void **state)
{
    (void)state;
    struct skep_node_options options;
    struct skep_error err;

    node_options(&options);
    options.max_batch_size = INT32_MAX;
    struct skep_expert_options expert;
    struct skep_node *node = new_node(&options, NULL, NULL);
    expert_options(&expert, "nop");
    expert.hidden_dim = 65536;
    assert_int_equal(skep_node_add_expert(node, "t.1", &expert, &err), SKEP_OK);
    assert_int_equal(skep_node_start(node, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "MiB"));
    skep_node_free(node);
}

/* Calls without end from another thread's callbacks, until told to stop. */
enum { STORM = 32 };

static void stop_ends_every_call_under_way(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct skep_node *node = simple_node("ffn");
        struct caller caller;
        struct reply replies[STORM];
        DLManagedTensor *x = rows_of(MAX_ROWS / 4, 1); /* all fit the queue */
        struct request r = forward_of(x);
        struct reply first;

        caller_init(&caller, node);
        call(&caller, &r, &first); /* the connection is there */
        assert_int_equal(first.status, SKEP_OK);
        reply_fini(&first);
        for (int i = 0; i < STORM; i++)
            start_call(&caller, &r, &replies[i]);
        skep_node_stop(node);
        for (int i = 0; i < STORM; i++) {
            wait_reply(&replies[i]);
            if (replies[i].status != SKEP_OK && replies[i].status != SKEP_UNAVAILABLE)
                fail_msg("%s: %s", skep_status_name(replies[i].status), replies[i].message);
            reply_fini(&replies[i]);
        }
        call(&caller, &r, &first);
        assert_int_equal(first.status, SKEP_UNAVAILABLE);
        reply_fini(&first);
        caller_fini(&caller);
        skep_tensor_free(x);
        skep_node_free(node);
    }
}

static void stopper(void *arg)
{
    skep_node_stop(arg);
}

static void several_threads_may_stop_one_node(void **state)
{
    (void)state;
    struct skep_node *node = simple_node("nop");
    struct thread threads[4] = {0};

    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&threads[i], "stopper", stopper, node, NULL), SKEP_OK);
    for (int i = 0; i < 4; i++)
        thread_join(&threads[i]);
    assert_true(skep_node_wait(node, 0));
    skep_node_free(node);
}

static void every_failed_allocation_ends_in_an_error(void **state)
{
    (void)state;
    bool more = true;
    long n = 1;

    for (; more; n++) {
        struct skep_node_options options;
        struct skep_expert_options expert;
        struct skep_node *node = NULL;
        struct skep_error err;

        node_options(&options);
        expert_options(&expert, "nop");
        mem_fail_at(n);
        skep_status rc = skep_node_new(&options, &node, &err);
        if (rc == SKEP_OK)
            rc = skep_node_add_expert(node, "t.1", &expert, &err);
        if (rc == SKEP_OK)
            rc = skep_node_start(node, &err);
        more = !mem_fail_pending();
        mem_fail_at(0);
        if (!more)
            assert_int_equal(rc, SKEP_OK);
        skep_node_free(node);
        assert_true(n < 1000);
    }
    assert_true(n > 10);
}

/* --- in a swarm ---------------------------------------------------------------------------- */

struct looker {
    struct identity identity;
    struct swarm *swarm;
};

static void looker_init(struct looker *looker, const char *peer)
{
    struct swarm_config config = {
        .name = "skep",
        .identity = &looker->identity,
        .initial_peers = &peer,
        .initial_peer_count = 1,
    };
    struct skep_error err;

    assert_int_equal(identity_generate(&looker->identity, NULL), SKEP_OK);
    assert_int_equal(endpoint_parse(&config.dht_listen, "127.0.0.1:*", true, NULL), SKEP_OK);
    if (swarm_join(&config, &looker->swarm, &err) != SKEP_OK)
        fail_msg("swarm: %s", err.message);
    assert_true(swarm_wait_joined(looker->swarm, clock_deadline_us(TIMEOUT_MS)));
}

static void looker_fini(struct looker *looker)
{
    swarm_leave(looker->swarm, clock_deadline_us(1000));
}

/* Looks until the UID has a provider; the lookups themselves wait on the network. */
static struct provider look_up(struct looker *looker, const char *uid)
{
    struct lookup_result *result = calloc(1, sizeof(*result));
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);
    struct skep_error err;

    do {
        assert_int_equal(directory_get_wait(swarm_directory(looker->swarm), &uid, 1,
                                            DIRECTORY_FRESH, clock_deadline_us(2000), result, &err),
                         SKEP_OK);
        if (clock_mono_us() > deadline)
            fail_msg("%s: %s", uid, skep_status_name(result->status));
    } while (result->status != SKEP_OK);
    struct provider provider = result->providers[0];
    free(result);
    return provider;
}

static struct skep_node *swarm_node(const char *listen, const char *peer, const char *uid)
{
    struct skep_node_options options;

    node_options(&options);
    options.no_dht = false;
    options.listen = listen;
    options.initial_peers = &peer;
    options.initial_peer_count = peer != NULL ? 1 : 0;
    return new_node(&options, uid, "nop");
}

static void published_endpoint_is_the_bound_one(void **state)
{
    (void)state;
    struct skep_node *node = swarm_node("127.0.0.1:*", NULL, "t.1");
    struct looker looker;
    char text[ENDPOINT_TEXT_BYTES];
    char peer_id[PEER_ID_HEX_BYTES];

    start_node(node);
    looker_init(&looker, skep_node_initial_peer(node));
    struct provider provider = look_up(&looker, "t.1");
    assert_int_equal(provider.endpoint_count, 1);
    assert_string_equal(endpoint_format(&provider.endpoints[0], text), skep_node_endpoint(node));
    assert_int_equal(provider.endpoints[0].port, skep_node_port(node));
    peer_id_hex(provider.peer_id, peer_id);
    assert_string_equal(peer_id, skep_node_peer_id(node));
    assert_string_equal(provider.cls, "nop");
    assert_true(skep_node_port(node) > 0 && skep_node_dht_port(node) > 0);
    looker_fini(&looker);
    skep_node_free(node);
}

static void behind_a_wildcard_the_address_is_asked_for(void **state)
{
    (void)state;
    struct skep_node *first = swarm_node("127.0.0.1:*", NULL, "t.1");
    struct looker looker;

    start_node(first);
    struct skep_node *second = swarm_node("0.0.0.0:*", skep_node_initial_peer(first), "t.2");
    start_node(second);
    looker_init(&looker, skep_node_initial_peer(first));
    struct provider provider = look_up(&looker, "t.2");
    assert_string_equal(provider.endpoints[0].host, "127.0.0.1");
    assert_int_equal(provider.endpoints[0].port, skep_node_port(second));
    looker_fini(&looker);
    skep_node_free(second);
    skep_node_free(first);
}

static void patterns_take_what_is_free(void **state)
{
    (void)state;
    struct skep_node *first = swarm_node("127.0.0.1:*", NULL, NULL);
    struct skep_expert_options expert;
    struct looker looker;

    expert_options(&expert, "nop");
    assert_int_equal(skep_node_add_pattern(first, "t.[0:4]", 2, &expert, NULL), SKEP_OK);
    start_node(first);
    assert_int_equal(skep_node_expert_count(first), 2);
    looker_init(&looker, skep_node_initial_peer(first));
    for (size_t i = 0; i < 2; i++)
        look_up(&looker, skep_node_expert_uid(first, i)); /* they can be found */

    struct skep_node *second = swarm_node("127.0.0.1:*", skep_node_initial_peer(first), "t.9");
    assert_int_equal(skep_node_add_pattern(second, "t.[0:4]", 2, &expert, NULL), SKEP_OK);
    start_node(second);
    assert_int_equal(skep_node_expert_count(second), 3);
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 2; k++)
            assert_string_not_equal(skep_node_expert_uid(second, i),
                                    skep_node_expert_uid(first, k));
    assert_null(skep_node_expert_uid(second, 3));

    struct skep_node *third = swarm_node("127.0.0.1:*", skep_node_initial_peer(first), NULL);
    struct skep_error err;
    assert_int_equal(skep_node_add_pattern(third, "t.[0:4]", 4, &expert, NULL), SKEP_OK);
    assert_int_equal(skep_node_start(third, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "of 4"));
    skep_node_free(third);
    looker_fini(&looker);
    skep_node_free(second);
    skep_node_free(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_and_backward_equal_a_local_expert),
        cmocka_unit_test(bad_calls_are_refused_by_name_and_the_next_is_served),
        cmocka_unit_test(repeated_backward_steps_once),
        cmocka_unit_test(failed_step_answers_and_the_next_hundred_succeed),
        cmocka_unit_test(anomalies_are_refused_where_asked_for),
        cmocka_unit_test(info_stats_and_ping_tell_what_docs_say),
        cmocka_unit_test(dial_back_tells_whether_the_callers_port_is_reachable),
        cmocka_unit_test(starts_and_stops_leave_nothing_behind),
        cmocka_unit_test(stop_asked_for_before_start_is_kept),
        cmocka_unit_test(busy_port_is_named_and_nothing_is_left),
        cmocka_unit_test(experts_are_checked_when_added),
        cmocka_unit_test(experts_beyond_memory_are_refused_at_start),
        cmocka_unit_test(stop_ends_every_call_under_way),
        cmocka_unit_test(several_threads_may_stop_one_node),
        cmocka_unit_test(every_failed_allocation_ends_in_an_error),
        cmocka_unit_test(published_endpoint_is_the_bound_one),
        cmocka_unit_test(behind_a_wildcard_the_address_is_asked_for),
        cmocka_unit_test(patterns_take_what_is_free),
    };

    skep_log_set(SKEP_LOG_ERROR, NULL, NULL);
    return cmocka_run_group_tests_name("node", tests, NULL, NULL);
}
