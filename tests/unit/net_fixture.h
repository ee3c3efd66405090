/*
 * What the tests of server and pool share: a server whose handlers are chosen by the method's name,
 * a pool to call it with, and calls that can be waited for.
 *
 *   echo     a worker thread answers with the request's tensors and params
 *   inline   the same, on the loop's own thread
 *   hold     is answered by release_held() only
 *   refuse   is refused before its tensors come
 *   fail     is answered with NOT_FOUND
 */
#ifndef SKEP_TESTS_NET_FIXTURE_H
#define SKEP_TESTS_NET_FIXTURE_H

#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/tensor.h"
#include "base/thread.h"
#include "net/pool.h"
#include "net/server.h"

#define UNUSED_OK __attribute__((unused))

enum { PATIENCE_MS = 120000 }; /* far more than anything takes: only a hang gets there */

struct fixture;

/* One call on the server. */
struct served {
    struct fixture *f;
    struct server_call *call;
    struct served *next;
    bool complete;
    bool replied;
    bool finished;
};

struct fixture {
    struct identity server_id;
    struct identity client_id;
    struct server_config config;
    struct pool_config pool_config;
    struct server *server;
    struct pool *pool;
    struct endpoint endpoint;
    struct thread worker;

    pthread_mutex_t lock; /* guards all below, and struct served */
    pthread_cond_t changed;
    bool stopping;
    struct served *first; /* for the worker, in order */
    struct served **end;
    struct served *held;
    unsigned started, completed, finished, held_count, gone_seen;
};

/* ---- The serving side ---- */

static skep_status on_call_started(void *arg, struct server_call *call,
                                   const struct call_headers *headers, void **user,
                                   struct skep_error *err)
{
    struct fixture *f = arg;

    if (strcmp(headers->method, "refuse") == 0) {
        snprintf(err->message, sizeof(err->message), "the queue is full");
        err->status = SKEP_RESOURCE_EXHAUSTED;
        err->retry_after_ms = 70;
        return err->status;
    }
    struct served *s = mem_calloc(1, sizeof(*s));
    if (s == NULL)
        return SKEP_RESOURCE_EXHAUSTED;
    s->f = f;
    s->call = call;
    *user = s;
    pthread_mutex_lock(&f->lock);
    f->started++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    return SKEP_OK;
}

/* Answers with what the call brought. The object goes with the later of reply and `finished`. */
static void answer_echo(struct served *s)
{
    struct fixture *f = s->f;
    struct server_call *call = s->call;
    size_t count;
    DLManagedTensor **tensors = server_call_tensors(call, &count);
    const struct bytes *params = &server_call_headers(call)->params;
    DLManagedTensor *reply[MESSAGE_MAX_TENSORS];
    uint8_t result[64];
    size_t result_len = params->len < sizeof(result) ? params->len : 0;

    for (size_t i = 0; i < count; i++)
        reply[i] = tensors[i];
    if (result_len > 0)
        memcpy(result, params->data, result_len);
    server_call_take_tensors(call);
    if (server_call_headers(call)->has_reply_encoding)
        server_call_set_encoding(call, server_call_headers(call)->reply_encoding);
    pthread_mutex_lock(&f->lock);
    f->gone_seen += server_call_is_gone(call);
    s->replied = true;
    bool free_it = s->finished;
    pthread_mutex_unlock(&f->lock);
    if (free_it)
        mem_free(s);
    server_call_reply(call, NULL, result, result_len, reply, count);
}

static void on_call_complete(void *arg, struct server_call *call)
{
    struct fixture *f = arg;
    struct served *s = server_call_user(call);
    const char *method = server_call_headers(call)->method;
    bool answer_now = false;

    pthread_mutex_lock(&f->lock);
    f->completed++;
    s->complete = true;
    if (strcmp(method, "hold") == 0) {
        s->next = f->held;
        f->held = s;
        f->held_count++;
    } else if (strcmp(method, "echo") == 0) {
        s->next = NULL;
        *f->end = s;
        f->end = &s->next;
    } else {
        answer_now = true;
    }
    bool fails = strcmp(method, "fail") == 0;
    if (answer_now && fails)
        s->replied = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (answer_now && fails) {
        struct skep_error err = {.status = SKEP_NOT_FOUND, .message = "expert ffn.9: not here"};
        server_call_reply(call, &err, NULL, 0, NULL, 0);
    } else if (answer_now) {
        answer_echo(s);
    }
}

static void on_call_finished(void *arg, struct server_call *call, void *user)
{
    struct fixture *f = arg;
    struct served *s = user;

    (void)call;
    pthread_mutex_lock(&f->lock);
    f->finished++;
    s->finished = true;
    bool free_it = !s->complete || s->replied;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    if (free_it)
        mem_free(s);
}

static void work(void *arg)
{
    struct fixture *f = arg;

    for (;;) {
        pthread_mutex_lock(&f->lock);
        while (f->first == NULL && !f->stopping)
            pthread_cond_wait(&f->changed, &f->lock);
        struct served *s = f->first;
        if (s != NULL && (f->first = s->next) == NULL)
            f->end = &f->first;
        pthread_mutex_unlock(&f->lock);
        if (s == NULL)
            return;
        answer_echo(s);
    }
}

/* Answers all held calls. */
static UNUSED_OK void release_held(struct fixture *f)
{
    for (;;) {
        pthread_mutex_lock(&f->lock);
        struct served *s = f->held;
        if (s != NULL)
            f->held = s->next;
        pthread_mutex_unlock(&f->lock);
        if (s == NULL)
            return;
        answer_echo(s);
    }
}

/* Waits until *counter (guarded by f->lock) is at least `least`. */
static UNUSED_OK void wait_count(struct fixture *f, const unsigned *counter, unsigned least)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    bool in_time = true;

    pthread_mutex_lock(&f->lock);
    while (*counter < least && in_time)
        in_time = cond_wait_until(&f->changed, &f->lock, deadline);
    unsigned seen = *counter;
    pthread_mutex_unlock(&f->lock);
    assert_true(seen >= least);
}

static UNUSED_OK unsigned read_count(struct fixture *f, const unsigned *counter)
{
    pthread_mutex_lock(&f->lock);
    unsigned seen = *counter;
    pthread_mutex_unlock(&f->lock);
    return seen;
}

/* ---- Life ---- */

/* Fills in the configurations; a test may change them before fixture_start(). */
static void fixture_init(struct fixture *f)
{
    *f = (struct fixture){0};
    fd_raise_limit();
    assert_int_equal(identity_system_init(NULL), SKEP_OK);
    assert_int_equal(identity_generate(&f->server_id, NULL), SKEP_OK);
    assert_int_equal(identity_generate(&f->client_id, NULL), SKEP_OK);
    pthread_mutex_init(&f->lock, NULL);
    cond_init(&f->changed);
    f->end = &f->first;
    f->config = (struct server_config){
        .listen = {.host = "127.0.0.1"},
        .io_threads = 2,
        .max_connections = 4000,
        .max_connections_per_address = 1000,
        .identity = &f->server_id,
        .swarm = "test",
        .limits = session_default_limits,
        .handlers = {.started = on_call_started,
                     .complete = on_call_complete,
                     .finished = on_call_finished},
        .arg = f,
    };
    f->pool_config = (struct pool_config){
        .identity = &f->client_id,
        .swarm = "test",
        .limits = session_default_limits,
        .max_connections = 64,
        .connect_timeout_ms = 5000,
        .idle_timeout_ms = 60000,
    };
}

/* For many peers that shake hands at once, each of which then takes longer than one alone may. */
static UNUSED_OK void take_time(struct fixture *f)
{
    f->config.limits.handshake_timeout_ms = PATIENCE_MS;
    f->pool_config.limits.handshake_timeout_ms = PATIENCE_MS;
    f->pool_config.connect_timeout_ms = PATIENCE_MS;
}

static void start_server(struct fixture *f)
{
    struct skep_error err = {0};

    if (server_new(&f->config, &f->server, &err) != SKEP_OK)
        fail_msg("server: %s", err.message);
    server_endpoint(f->server, &f->endpoint);
}

static void fixture_start(struct fixture *f)
{
    start_server(f);
    assert_int_equal(pool_new(&f->pool_config, &f->pool, NULL), SKEP_OK);
    assert_int_equal(thread_start(&f->worker, "worker", work, f, NULL), SKEP_OK);
}

static void fixture_end(struct fixture *f)
{
    pool_free(f->pool);
    server_stop(f->server);
    release_held(f);
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    thread_join(&f->worker);
    server_free(f->server);
    assert_int_equal(f->started, f->finished);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
}

/* ---- The calling side ---- */

struct waiter {
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    unsigned done; /* how often `done` ran */
    bool got_reply;
    bool sent;
    skep_status status; /* of the reply, or why there is none */
    char message[SKEP_ERROR_MESSAGE_BYTES];
    uint32_t retry_after_ms;
    size_t result_len;
    uint8_t result[64];
    size_t tensor_count;
    DLManagedTensor *tensors[MESSAGE_MAX_TENSORS];
};

static void waiter_init(struct waiter *w)
{
    *w = (struct waiter){0};
    pthread_mutex_init(&w->lock, NULL);
    cond_init(&w->changed);
}

static void waiter_fini(struct waiter *w)
{
    for (size_t i = 0; i < w->tensor_count; i++)
        skep_tensor_free(w->tensors[i]);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

static void on_done(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                    bool sent, const struct skep_error *err)
{
    struct waiter *w = arg;

    pthread_mutex_lock(&w->lock);
    w->done++;
    w->got_reply = reply != NULL;
    w->sent = sent;
    w->status = reply != NULL ? reply->status : err->status;
    snprintf(w->message, sizeof(w->message), "%s", reply != NULL ? reply->message : err->message);
    if (reply != NULL) {
        w->retry_after_ms = reply->retry_after_ms;
        w->tensor_count = reply->tensor_count;
        for (size_t i = 0; i < reply->tensor_count; i++)
            w->tensors[i] = tensors[i];
        w->result_len = reply->result.len < sizeof(w->result) ? reply->result.len : 0;
        if (w->result_len > 0)
            memcpy(w->result, reply->result.data, w->result_len);
    }
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static UNUSED_OK unsigned waiter_done(struct waiter *w)
{
    pthread_mutex_lock(&w->lock);
    unsigned done = w->done;
    pthread_mutex_unlock(&w->lock);
    return done;
}

static void waiter_wait(struct waiter *w)
{
    uint64_t deadline = clock_deadline_us(PATIENCE_MS);
    bool in_time = true;

    pthread_mutex_lock(&w->lock);
    while (w->done == 0 && in_time)
        in_time = cond_wait_until(&w->changed, &w->lock, deadline);
    unsigned done = w->done;
    pthread_mutex_unlock(&w->lock);
    assert_int_equal(done, 1);
}

static struct pool_target target_of(const struct fixture *f)
{
    struct pool_target t = {.has_peer_id = true, .endpoint_count = 1};

    memcpy(t.peer_id, f->server_id.peer_id, PEER_ID_BYTES);
    t.endpoints[0] = f->endpoint;
    return t;
}

/* A tensor of `count` floats, each its own index plus `base`. */
static UNUSED_OK DLManagedTensor *floats(int64_t count, float base)
{
    DLManagedTensor *t = NULL;

    assert_int_equal(skep_tensor_new(DTYPE_F32, 1, &count, &t, NULL), SKEP_OK);
    float *data = skep_tensor_data(&t->dl_tensor);
    for (int64_t i = 0; i < count; i++)
        data[i] = base + (float)i;
    return t;
}

static skep_status start_call_to(struct pool *pool, const struct pool_target *target,
                                 const char *method, DLManagedTensor *const *tensors, size_t count,
                                 uint64_t deadline_us, struct waiter *w, struct pool_call **out)
{
    struct call_headers headers = {.tensor_count = count};
    const DLTensor *views[MESSAGE_MAX_TENSORS] = {NULL};
    uint8_t params[] = {0x92, 0x07, 0x08}; /* msgpack: [7, 8] */

    snprintf(headers.method, sizeof(headers.method), "%s", method);
    headers.params = (struct bytes){.data = params, .len = sizeof(params), .cap = sizeof(params)};
    for (size_t i = 0; i < count; i++) {
        views[i] = &tensors[i]->dl_tensor;
        assert_int_equal(tensor_descriptor_of(&headers.tensors[i], views[i], NULL), SKEP_OK);
    }
    return pool_call(pool, target, &headers, views, deadline_us, on_done, w, out, NULL);
}

static UNUSED_OK void start_plain(struct fixture *f, const char *method, struct waiter *w)
{
    struct pool_target target = target_of(f);

    assert_int_equal(start_call_to(f->pool, &target, method, NULL, 0, CLOCK_NEVER, w, NULL),
                     SKEP_OK);
}

/* A call without tensors to any target, waited for. The caller ends with waiter_fini(). */
static UNUSED_OK void call_target(struct pool *pool, const struct pool_target *target,
                                  const char *method, uint64_t deadline_us, struct waiter *w)
{
    waiter_init(w);
    assert_int_equal(start_call_to(pool, target, method, NULL, 0, deadline_us, w, NULL), SKEP_OK);
    waiter_wait(w);
}

static UNUSED_OK void assert_serves(struct fixture *f)
{
    struct waiter w;
    struct pool_target target = target_of(f);

    call_target(f->pool, &target, "echo", CLOCK_NEVER, &w);
    if (!w.got_reply || w.status != SKEP_OK)
        fail_msg("echo: %s", w.message);
    waiter_fini(&w);
}

/* ---- Raw sockets ---- */

static UNUSED_OK int raw_connect(const struct fixture *f)
{
    struct address a;

    assert_true(endpoint_to_address(&f->endpoint, &a));
    int fd = socket(a.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a.sa, a.len), 0);
    return fd_move_high(fd);
}

/* Reads to the end of the stream, or a reset; returns how many bytes came. */
static UNUSED_OK size_t raw_read_to_end(int fd)
{
    char scratch[4096];
    size_t all = 0;
    ssize_t n;
    struct timeval patience = {.tv_sec = PATIENCE_MS / 1000};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    while ((n = recv(fd, scratch, sizeof(scratch), 0)) > 0)
        all += (size_t)n;
    if (n < 0 && errno != ECONNRESET)
        fail_msg("the server did not close: %s", strerror(errno));
    return all;
}

/* Entries of a folder of /proc/self: descriptors, threads. */
static UNUSED_OK unsigned count_entries(const char *path)
{
    unsigned count = 0;
    DIR *dir = opendir(path);

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

#endif
