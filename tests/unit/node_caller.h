/* What the tests of nodes share: a caller over the transport's calling side, nodes, tensors. */
#ifndef SKEP_TESTS_NODE_CALLER_H
#define SKEP_TESTS_NODE_CALLER_H

#include "unit.h"
#include "own_swarm.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <skep/node.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "net/pool.h"

enum { HIDDEN = 16, TIMEOUT_MS = 20000, MAX_ROWS = 64 };

/* --- a caller ------------------------------------------------------------------------------ */

struct caller {
    struct identity identity;
    struct pool *pool;
    struct pool_target target;
};

static inline void caller_init(struct caller *caller, struct skep_node *node)
{
    struct pool_config config = {
        .identity = &caller->identity,
        .swarm = own_swarm(),
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

static inline void caller_fini(struct caller *caller)
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

static inline void reply_init(struct reply *reply)
{
    memset(reply, 0, sizeof(*reply));
    pthread_mutex_init(&reply->lock, NULL);
    cond_init(&reply->changed);
}

static inline void reply_fini(struct reply *reply)
{
    for (size_t i = 0; i < reply->count; i++)
        skep_tensor_free(reply->tensors[i]);
    bytes_free(&reply->result);
    pthread_cond_destroy(&reply->changed);
    pthread_mutex_destroy(&reply->lock);
}

static inline void on_reply(void *arg, const struct reply_headers *headers,
                            DLManagedTensor **tensors, bool sent, const struct skep_error *err)
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

static inline void start_call(struct caller *caller, const struct request *request,
                              struct reply *reply)
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

static inline void wait_reply(struct reply *reply)
{
    pthread_mutex_lock(&reply->lock);
    while (!reply->done)
        pthread_cond_wait(&reply->changed, &reply->lock);
    pthread_mutex_unlock(&reply->lock);
}

static inline void call(struct caller *caller, const struct request *request, struct reply *reply)
{
    start_call(caller, request, reply);
    wait_reply(reply);
}

/* --- nodes and tensors --------------------------------------------------------------------- */

static inline void expert_options(struct skep_expert_options *options, const char *cls)
{
    skep_expert_options_init(options);
    options->cls = cls;
    options->hidden_dim = HIDDEN;
    options->seed = 7;
    options->learning_rate = 0.01;
}

static inline void node_options(struct skep_node_options *options)
{
    skep_node_options_init(options);
    options->swarm = own_swarm();
    options->listen = "127.0.0.1:*";
    options->no_dht = true;
    options->max_batch_size = MAX_ROWS;
}

static inline struct skep_node *new_node(const struct skep_node_options *options, const char *uid,
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

static inline void start_node(struct skep_node *node)
{
    struct skep_error err;

    if (skep_node_start(node, &err) != SKEP_OK ||
        skep_node_wait_ready(node, TIMEOUT_MS, &err) != SKEP_OK)
        fail_msg("node: %s", err.message);
}

static inline struct skep_node *simple_node(const char *cls)
{
    struct skep_node_options options;

    node_options(&options);
    struct skep_node *node = new_node(&options, "t.1", cls);
    start_node(node);
    return node;
}

static inline DLManagedTensor *tensor(DLDataType dtype, int ndim, int64_t rows, int64_t width,
                                      float first)
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

static inline DLManagedTensor *rows_of(int64_t rows, float first)
{
    return tensor(DTYPE_F32, 2, rows, HIDDEN, first);
}

static inline void assert_same(const DLManagedTensor *a, const DLManagedTensor *b)
{
    size_t bytes;
    size_t other;

    assert_int_equal(skep_tensor_bytes(&a->dl_tensor, &bytes, NULL), SKEP_OK);
    assert_int_equal(skep_tensor_bytes(&b->dl_tensor, &other, NULL), SKEP_OK);
    assert_int_equal(bytes, other);
    assert_memory_equal(skep_tensor_data(&a->dl_tensor), skep_tensor_data(&b->dl_tensor), bytes);
}

static inline uint64_t updates(struct skep_node *node)
{
    struct skep_expert_stats stats;

    assert_true(skep_node_expert_stats(node, 0, &stats));
    return stats.updates;
}

static inline struct request forward_of(DLManagedTensor *x)
{
    return (struct request){
        .method = "forward", .uid = "t.1", .count = 1, .tensors = {&x->dl_tensor}};
}

static inline struct request backward_of(DLManagedTensor *x, DLManagedTensor *g, const uint8_t *id)
{
    return (struct request){.method = "backward",
                            .uid = "t.1",
                            .request_id = id,
                            .count = 2,
                            .tensors = {&x->dl_tensor, &g->dl_tensor}};
}

#endif
