/*
 * Nodes for the tests of mixtures: real servers in a real swarm, whose experts compute
 * tanh(a x + b) element by element, in float32 or float64, and fail in whatever way is asked for.
 */
#ifndef SKEP_TESTS_MOE_NET_H
#define SKEP_TESTS_MOE_NET_H

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <skep/moe.h>
#include "base/error.h"
#include "base/tensor.h"
#include "cutter.h"
#include "dht_net.h"
#include "net/server.h"
#include "own_swarm.h"

enum fake_way {
    FAKE_GOOD,
    FAKE_REFUSE,
    FAKE_ERROR,
    FAKE_HANG,
    FAKE_LATE, /* answers when fake_release() is called */
    FAKE_DIE,  /* its whole node ends while the call is there */
    FAKE_CUT,  /* its node's connections end in the middle of the answer; see fake_mend() */
    FAKE_NAN,
    FAKE_INF,
    FAKE_WRONG_WIDTH,
    FAKE_WRONG_ROWS,
    FAKE_WRONG_TYPE,
    FAKE_TWO_TENSORS,
    FAKE_NO_TENSOR,
    FAKE_WAYS,
};

enum {
    FAKE_EXPERTS = 512,
    FAKE_HELD = 1024,
    FAKE_PATIENCE_MS = 60000,
    FAKE_CUT_BYTES = 40, /* of an answer that is cut: fewer than any has */
};

struct fake_expert {
    char uid[UID_BYTES];
    double a, b;
    uint32_t queued_tasks; /* as its record says; set before fake_start() */
    _Atomic(enum fake_way) forward, backward;
    atomic_uint forward_calls, backward_calls, rows; /* begun; rows of whole requests */
    atomic_uint steps;                               /* backward calls carried out */
    /* Guarded by the node's lock: */
    double grad_sum; /* of the gradients of its last backward */
    uint8_t last_id[SKEP_REQUEST_ID_BYTES];
    unsigned repeats; /* backward calls with the id of the one before */
    /* How its last call's tensors came, and were to go back: forward, backward. */
    enum tensor_encoding came[2][2], wished[2];
};

struct fake_node {
    struct net_node net;
    struct server *server;
    struct handler *handler;
    struct fake_expert *experts;
    size_t expert_count;
    struct cutter cutter; /* between callers and the server */
    struct thread undertaker;
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    struct server_call *held[FAKE_HELD];
    size_t held_count;
    bool dies, closing, dead;
};

static inline struct fake_expert *fake_find(struct fake_node *node, const char *uid)
{
    for (size_t i = 0; i < node->expert_count; i++)
        if (strcmp(node->experts[i].uid, uid) == 0)
            return &node->experts[i];
    return NULL;
}

static inline double fake_value(const struct fake_expert *e, double x)
{
    return tanh(e->a * x + e->b);
}

static inline double fake_slope(const struct fake_expert *e, double x)
{
    double y = fake_value(e, x);

    return e->a * (1 - y * y);
}

/* ---- answering */

static inline double fake_read(const DLTensor *t, size_t i)
{
    const void *data = skep_tensor_data(t);

    return t->dtype.bits == 64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static inline void fake_write(DLTensor *t, size_t i, double value)
{
    void *data = skep_tensor_data(t);

    if (t->dtype.bits == 64)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

static inline size_t fake_count(const DLTensor *t)
{
    size_t n = 0;

    (void)shape_count(t->ndim, t->shape, &n);
    return n;
}

static inline DLManagedTensor *fake_tensor(const DLTensor *like, enum fake_way way)
{
    DLManagedTensor *out = NULL;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
    DLDataType dtype = like->dtype;

    memcpy(shape, like->shape, (size_t)like->ndim * sizeof(*shape));
    if (way == FAKE_WRONG_WIDTH)
        shape[like->ndim - 1]++;
    if (way == FAKE_WRONG_ROWS)
        shape[0]++;
    if (way == FAKE_WRONG_TYPE)
        dtype.bits = dtype.bits == 64 ? 32 : 64;
    if (skep_tensor_new(dtype, like->ndim, shape, &out, NULL) != SKEP_OK)
        abort();
    memset(skep_tensor_data(&out->dl_tensor), 0, fake_count(&out->dl_tensor) * dtype.bits / 8);
    return out;
}

static inline void fake_compute(struct fake_expert *e, const DLTensor *x, const DLTensor *grad,
                                DLTensor *out)
{
    for (size_t i = 0; i < fake_count(x) && i < fake_count(out); i++) {
        double at = fake_read(x, i);
        fake_write(out, i,
                   grad == NULL ? fake_value(e, at) : fake_read(grad, i) * fake_slope(e, at));
    }
}

static inline void fake_answer(struct fake_node *node, struct server_call *call,
                               struct fake_expert *e, bool backward, enum fake_way way)
{
    size_t count;
    DLManagedTensor **in = server_call_tensors(call, &count);
    DLManagedTensor *out[2] = {fake_tensor(&in[0]->dl_tensor, way), NULL};
    size_t out_count = way == FAKE_NO_TENSOR ? 0 : way == FAKE_TWO_TENSORS ? 2 : 1;

    fake_compute(e, &in[0]->dl_tensor, backward ? &in[1]->dl_tensor : NULL, &out[0]->dl_tensor);
    if (backward) {
        double sum = 0;
        for (size_t i = 0; i < fake_count(&in[1]->dl_tensor); i++)
            sum += fake_read(&in[1]->dl_tensor, i);
        pthread_mutex_lock(&node->lock);
        const struct call_headers *headers = server_call_headers(call);
        e->grad_sum = sum;
        e->repeats += memcmp(e->last_id, headers->request_id, sizeof(e->last_id)) == 0;
        memcpy(e->last_id, headers->request_id, sizeof(e->last_id));
        atomic_fetch_add(&e->steps, 1);
        pthread_mutex_unlock(&node->lock);
    }
    if (way == FAKE_NAN || way == FAKE_INF)
        fake_write(&out[0]->dl_tensor, 0, way == FAKE_NAN ? (double)NAN : (double)INFINITY);
    if (way == FAKE_TWO_TENSORS)
        out[1] = fake_tensor(&in[0]->dl_tensor, FAKE_GOOD);
    if (way == FAKE_NO_TENSOR)
        skep_tensor_free(out[0]);
    server_call_reply(call, NULL, NULL, 0, out, out_count);
}

static inline skep_status fake_started(void *arg, struct server_call *call,
                                       const struct call_headers *headers, void **user,
                                       struct skep_error *err)
{
    struct fake_node *node = arg;
    struct fake_expert *e = fake_find(node, headers->uid);
    bool backward = strcmp(headers->method, "backward") == 0;

    (void)call;
    (void)user;
    if (e == NULL)
        return error_set(err, SKEP_NOT_FOUND, "expert %s: not here", headers->uid);
    atomic_fetch_add(backward ? &e->backward_calls : &e->forward_calls, 1);
    pthread_mutex_lock(&node->lock);
    for (size_t i = 0; i < headers->tensor_count && i < 2; i++)
        e->came[backward][i] = headers->tensors[i].encoding;
    e->wished[backward] = headers->has_reply_encoding ? headers->reply_encoding : ENCODING_COUNT;
    pthread_mutex_unlock(&node->lock);
    enum fake_way way = backward ? e->backward : e->forward;
    if (way == FAKE_REFUSE)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "expert %s: full", e->uid);
    if (way == FAKE_ERROR)
        return error_set(err, SKEP_INTERNAL, "expert %s: broken", e->uid);
    return SKEP_OK;
}

static inline void fake_complete(void *arg, struct server_call *call)
{
    struct fake_node *node = arg;
    const struct call_headers *headers = server_call_headers(call);
    bool backward = strcmp(headers->method, "backward") == 0;
    struct fake_expert *e = fake_find(node, headers->uid);
    enum fake_way way = backward ? e->backward : e->forward;
    size_t count;

    atomic_fetch_add(&e->rows, (unsigned)server_call_tensors(call, &count)[0]->dl_tensor.shape[0]);
    if (way == FAKE_CUT)
        cutter_cut_in(&node->cutter, FAKE_CUT_BYTES);
    if (way != FAKE_HANG && way != FAKE_LATE && way != FAKE_DIE) {
        fake_answer(node, call, e, backward, way);
        return;
    }
    pthread_mutex_lock(&node->lock);
    if (node->held_count == FAKE_HELD)
        abort();
    node->held[node->held_count++] = call;
    if (way == FAKE_DIE)
        node->dies = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
}

static inline void fake_finished(void *arg, struct server_call *call, void *user)
{
    (void)arg;
    (void)call;
    (void)user;
}

/* Answers what is held, as well as late. */
static inline void fake_release(struct fake_node *node)
{
    struct server_call *held[FAKE_HELD];

    pthread_mutex_lock(&node->lock);
    size_t count = node->held_count;
    memcpy(held, node->held, count * sizeof(struct server_call *));
    node->held_count = 0;
    pthread_mutex_unlock(&node->lock);
    for (size_t i = 0; i < count; i++) {
        const struct call_headers *headers = server_call_headers(held[i]);
        fake_answer(node, held[i], fake_find(node, headers->uid),
                    strcmp(headers->method, "backward") == 0, FAKE_GOOD);
    }
}

/* After FAKE_CUT: connections hold again. */
static inline void fake_mend(struct fake_node *node)
{
    cutter_cut_in(&node->cutter, CUTTER_NEVER);
}

/* Whether at least so many calls are held. */
static inline bool fake_holds(struct fake_node *node, size_t at_least)
{
    pthread_mutex_lock(&node->lock);
    bool holds = node->held_count >= at_least;
    pthread_mutex_unlock(&node->lock);
    return holds;
}

/* Whether the callers of all calls that are held have left. */
static inline bool fake_held_are_gone(struct fake_node *node, size_t at_least)
{
    pthread_mutex_lock(&node->lock);
    bool gone = node->held_count >= at_least;
    for (size_t i = 0; i < node->held_count; i++)
        gone = gone && server_call_is_gone(node->held[i]);
    pthread_mutex_unlock(&node->lock);
    return gone;
}

static inline bool fake_load(void *arg, const char *uid, struct record_load *out)
{
    const struct fake_expert *e = fake_find(arg, uid);

    *out = (struct record_load){.queued_tasks = e != NULL ? e->queued_tasks : 0};
    return true;
}

/* Ends the server of a node that is to die: not on one of the server's own threads. */
static inline void fake_undertake(void *arg)
{
    struct fake_node *node = arg;

    pthread_mutex_lock(&node->lock);
    while (!node->dies && !node->closing)
        pthread_cond_wait(&node->changed, &node->lock);
    bool dies = node->dies && !node->closing;
    node->dead = dies;
    pthread_mutex_unlock(&node->lock);
    if (dies)
        server_stop(node->server);
}

/* ---- life */

/* Starts a node that serves these experts, joined through `peer` (0: none), and publishes the first
 * of them. */
static inline void fake_start_some(struct fake_node *node, uint16_t peer,
                                   struct fake_expert *experts, size_t count, size_t published)
{
    struct handler_expert list[FAKE_EXPERTS];
    struct skep_error err;

    memset(node, 0, sizeof(*node));
    node->experts = experts;
    node->expert_count = count;
    pthread_mutex_init(&node->lock, NULL);
    cond_init(&node->changed);
    net_start(&node->net, peer);
    struct server_config config = {
        .io_threads = 1,
        .max_connections = 64,
        .max_connections_per_address = 64,
        .identity = &node->net.identity,
        .swarm = own_swarm(),
        .limits = session_default_limits,
        .handlers = {.started = fake_started, .complete = fake_complete, .finished = fake_finished},
        .arg = node,
    };
    assert_int_equal(endpoint_parse(&config.listen, "127.0.0.1:*", true, NULL), SKEP_OK);
    if (server_new(&config, &node->server, &err) != SKEP_OK)
        fail_msg("server: %s", err.message);
    struct handler_config handler = {
        .swarm = node->net.swarm, .endpoint_count = 1, .expert_load = fake_load, .arg = node};
    server_endpoint(node->server, &handler.endpoints[0]);
    cutter_start(&node->cutter, handler.endpoints[0].port);
    handler.endpoints[0].port = node->cutter.port;
    assert_true(count <= FAKE_EXPERTS);
    for (size_t i = 0; i < published; i++)
        list[i] = (struct handler_expert){.uid = experts[i].uid, .cls = "fake"};
    if (peer != 0)
        assert_true(swarm_wait_joined(node->net.swarm, net_deadline()));
    if (published > 0 && handler_new(&handler, list, published, &node->handler, &err) != SKEP_OK)
        fail_msg("handler: %s", err.message);
    assert_int_equal(thread_start(&node->undertaker, "test-undertaker", fake_undertake, node, NULL),
                     SKEP_OK);
}

static inline void fake_start(struct fake_node *node, uint16_t peer, struct fake_expert *experts,
                              size_t count)
{
    fake_start_some(node, peer, experts, count, count);
}

static inline void fake_stop(struct fake_node *node)
{
    pthread_mutex_lock(&node->lock);
    node->closing = true;
    pthread_cond_broadcast(&node->changed);
    pthread_mutex_unlock(&node->lock);
    thread_join(&node->undertaker);
    handler_free(node->handler, clock_deadline_us(500));
    fake_release(node);
    cutter_stop(&node->cutter);
    server_stop(node->server);
    server_free(node->server);
    net_stop(&node->net);
    pthread_cond_destroy(&node->changed);
    pthread_mutex_destroy(&node->lock);
}

static inline struct skep_client *fake_client(uint16_t peer)
{
    struct skep_client_options options;
    struct skep_client *client;
    struct skep_error err;
    char text[32];
    const char *peers[] = {text};

    snprintf(text, sizeof(text), "127.0.0.1:%u", (unsigned)peer);
    skep_client_options_init(&options);
    options.swarm = own_swarm();
    options.initial_peers = peers;
    options.initial_peer_count = 1;
    options.timeout_ms = FAKE_PATIENCE_MS;
    if (skep_client_new(&options, &client, &err) != SKEP_OK ||
        skep_client_wait_joined(client, FAKE_PATIENCE_MS, &err) != SKEP_OK)
        fail_msg("client: %s", err.message);
    return client;
}

#endif
