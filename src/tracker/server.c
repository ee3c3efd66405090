/* The tracker's life, and what other modules ask of it. */
#include "tracker/server.h"

#include <assert.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/thread.h"
#include "tracker/server_internal.h"

enum {
    DEFAULT_MAX_CONNECTIONS = 65536,
    DEFAULT_MAX_UNSENT_BYTES = 256 * 1024,
    GREETING_GRACE_MS = 1000,
    DRAIN_MS = 1000,
    STOP_KEY_RANDOM_BYTES = 16,
};

static const char stop_key_prefix[] = "tracker:";

/* ---- the end ---- */

static void stop_listening(struct tracker_server *server)
{
    for (size_t i = 0; i < server->listening_count; i++)
        uv_close((uv_handle_t *)&server->listening[i], NULL);
    server->listening_count = 0;
    listeners_close(&server->listeners);
    uv_timer_stop(&server->accept_pause);
}

static void set_state(struct tracker_server *server, enum server_state state)
{
    pthread_mutex_lock(&server->lock);
    server->state = state;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->lock);
}

static void close_all(struct tracker_server *server)
{
    server->ending = true;
    while (server->conns.first != NULL)
        tracker_conn_close(tracker_conn_in_conns(server->conns.first));
}

/* Nothing of it goes on but its handles for stop and time, which stay until it is freed. */
static void become_stopped(struct tracker_server *server)
{
    if (server->state == SERVER_STOPPED)
        return;
    stop_listening(server);
    close_all(server);
    uv_timer_stop(&server->timer);
    uv_timer_stop(&server->report);
    set_state(server, SERVER_STOPPED);
    if (server->events.stopped != NULL)
        server->events.stopped(server->arg);
}

static void on_drained(uv_timer_t *timer)
{
    become_stopped(timer->data);
}

static void on_stop(uv_async_t *handle)
{
    struct tracker_server *server = handle->data;

    loop_enter(server->loop);
    if (server->state != SERVER_RUNNING)
        return;
    stop_listening(server);
    set_state(server, SERVER_DRAINING);
    server->armed_us = 0; /* the timer is the drain's from now on */
    uv_timer_start(&server->timer, on_drained, DRAIN_MS, 0);
    for (struct list_link *l = server->conns.first; l != NULL; l = l->next)
        tracker_conn_touch(tracker_conn_in_conns(l));
}

static void end_now(void *arg)
{
    become_stopped(arg);
}

void tracker_server_end(struct tracker_server *server)
{
    loop_call(server->loop, end_now, server);
}

void tracker_server_request_stop(struct tracker_server *server)
{
    uv_async_send(&server->stop); /* async-signal-safe, as libuv's manual says */
}

bool tracker_server_wait(struct tracker_server *server, uint64_t deadline_us)
{
    bool in_time = true;

    pthread_mutex_lock(&server->lock);
    while (server->state != SERVER_STOPPED && in_time)
        in_time = cond_wait_until(&server->changed, &server->lock, deadline_us);
    bool stopped = server->state == SERVER_STOPPED;
    pthread_mutex_unlock(&server->lock);
    return stopped;
}

/* ---- each turn ---- */

static void run_hook(struct loop_hook *hook)
{
    struct tracker_server *server =
        (struct tracker_server *)((char *)hook - offsetof(struct tracker_server, hook));

    tracker_flush(server);
    scheduler_changes(server->scheduler, server->events.key_changed, server->arg);
    if (server->state == SERVER_DRAINING && server->conns.first == NULL)
        become_stopped(server);
}

/* The time, a bucket's upper end, in which 99 of 100 requests were answered of those that were
 * between two moments; 0: there were none, UINT64_MAX: it was longer than the buckets tell. */
static uint64_t usual_wait_ms(const struct scheduler_totals *now,
                              const struct scheduler_totals *before)
{
    uint64_t count = 0, seen = 0;

    for (size_t i = 0; i < SCHEDULER_WAIT_BUCKETS; i++)
        count += now->waits[i] - before->waits[i];
    if (count == 0)
        return 0;
    for (size_t i = 0; i < SCHEDULER_WAIT_BUCKETS - 1; i++) {
        seen += now->waits[i] - before->waits[i];
        if (seen * 100 >= count * 99)
            return UINT64_C(1) << i;
    }
    return UINT64_MAX;
}

static void format_wait(uint64_t ms, char *out, size_t cap)
{
    if (ms == 0)
        snprintf(out, cap, "none");
    else if (ms == UINT64_MAX)
        snprintf(out, cap, "more than %u ms", 1u << (SCHEDULER_WAIT_BUCKETS - 2));
    else
        snprintf(out, cap, "at most %" PRIu64 " ms", ms);
}

/* A line now and then, unless nobody is there and nobody was. */
static void on_report(uv_timer_t *timer)
{
    struct tracker_server *server = timer->data;
    struct tracker_server_counters now = server->counters;
    const struct scheduler_totals *before = &server->at_report.scheduler;
    char wait[32];

    scheduler_totals(server->scheduler, &now.scheduler);
    format_wait(usual_wait_ms(&now.scheduler, before), wait, sizeof(wait));
    if (now.connections_open > 0 ||
        now.connections_accepted != server->at_report.connections_accepted)
        log_info("tracker: %" PRIu64 " connections, %" PRIu64
                 " of servers; %zu keys, %zu free, %zu pending; in the last %" PRIu32 " s %" PRIu64
                 " put, %" PRIu64 " requested, %" PRIu64 " answered, wait of 99 in 100: %s",
                 now.connections_open, now.servers, now.scheduler.keys, now.scheduler.free,
                 now.scheduler.pending, server->report_interval_s,
                 now.scheduler.puts - before->puts, now.scheduler.requests - before->requests,
                 now.scheduler.served + now.scheduler.answered - before->served - before->answered,
                 wait);
    server->at_report = now;
}

/* ---- the beginning ---- */

struct start {
    struct tracker_server *server;
    skep_status rc;
    struct skep_error *err;
};

static skep_status watch_listeners(struct tracker_server *server, struct skep_error *err)
{
    for (size_t i = 0; i < server->listeners.addresses; i++) {
        int rc =
            uv_poll_init(loop_uv(server->loop), &server->listening[i], server->listeners.fds[i][0]);
        if (rc != 0)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot watch a socket: %s",
                             uv_strerror(rc));
        server->listening[i].data = server;
        server->listening_count++;
        uv_poll_start(&server->listening[i], UV_READABLE, tracker_accept);
    }
    return SKEP_OK;
}

static void begin(void *arg)
{
    struct start *start = arg;
    struct tracker_server *server = start->server;
    uv_loop_t *uv = loop_uv(server->loop);

    start->rc = watch_listeners(server, start->err);
    if (start->rc == SKEP_OK && uv_async_init(uv, &server->stop, on_stop) != 0)
        start->rc = error_set(start->err, SKEP_RESOURCE_EXHAUSTED, "cannot make a wake-up");
    if (start->rc != SKEP_OK) {
        stop_listening(server);
        return;
    }
    uv_timer_init(uv, &server->timer);
    uv_timer_init(uv, &server->accept_pause);
    uv_timer_init(uv, &server->report);
    server->stop.data = server;
    server->timer.data = server;
    server->accept_pause.data = server;
    server->report.data = server;
    if (!server->silent && server->report_interval_s > 0)
        uv_timer_start(&server->report, on_report, server->report_interval_s * UINT64_C(1000),
                       server->report_interval_s * UINT64_C(1000));
    server->hook.run = run_hook;
    loop_add_hook(server->loop, &server->hook);
    server->handles_open = true;
    set_state(server, SERVER_RUNNING);
}

static void end(void *arg)
{
    struct tracker_server *server = arg;

    if (!server->handles_open)
        return;
    become_stopped(server);
    loop_remove_hook(server->loop, &server->hook);
    uv_close((uv_handle_t *)&server->stop, NULL);
    uv_close((uv_handle_t *)&server->timer, NULL);
    uv_close((uv_handle_t *)&server->accept_pause, NULL);
    uv_close((uv_handle_t *)&server->report, NULL);
    server->handles_open = false;
}

static char *make_stop_key(const char *given)
{
    uint8_t random[STOP_KEY_RANDOM_BYTES];
    char key[sizeof(stop_key_prefix) + 2 * STOP_KEY_RANDOM_BYTES];

    if (given != NULL)
        return mem_strdup(given);
    randombytes_buf(random, sizeof(random));
    memcpy(key, stop_key_prefix, sizeof(stop_key_prefix));
    hex_encode(key + sizeof(stop_key_prefix) - 1, random, sizeof(random));
    return mem_strdup(key);
}

static void apply(struct tracker_server *server, const struct tracker_server_config *config)
{
    server->events = config->events;
    server->arg = config->arg;
    server->silent = config->silent;
    server->report_interval_s = config->report_interval_s;
    server->timeout_ms = config->timeout_ms;
    server->greeting_grace_ms =
        config->greeting_grace_ms > 0 ? config->greeting_grace_ms : GREETING_GRACE_MS;
    server->max_connections =
        config->max_connections > 0 ? config->max_connections : DEFAULT_MAX_CONNECTIONS;
    server->max_unsent_bytes =
        config->max_unsent_bytes > 0 ? config->max_unsent_bytes : DEFAULT_MAX_UNSENT_BYTES;
    server->armed_us = CLOCK_NEVER;
    server->state = SERVER_STOPPED;
    pthread_mutex_init(&server->lock, NULL);
    cond_init(&server->changed);
}

static skep_status make_parts(struct tracker_server *server,
                              const struct tracker_server_config *config, struct skep_error *err)
{
    const struct scheduler_events events = {
        .assign = tracker_assign,
        .waiting = config->events.waiting,
        .ended = config->events.ended,
    };

    server->stop_key = make_stop_key(config->stop_key);
    server->receive_buffer = mem_alloc(TRACKER_RECEIVE_BYTES);
    if (server->stop_key == NULL || server->receive_buffer == NULL ||
        !hash_table_init(&server->addresses, 0))
        return error_no_memory(err, "tracker", TRACKER_RECEIVE_BYTES);
    return scheduler_new(&config->limits, &events, config->arg, &server->scheduler, err);
}

skep_status tracker_server_new(const struct tracker_server_config *config,
                               struct tracker_server **out, struct skep_error *err)
{
    struct tracker_server *server = mem_calloc(1, sizeof(*server));
    skep_status rc;

    *out = NULL;
    if (server == NULL)
        return error_no_memory(err, "tracker", sizeof(*server));
    apply(server, config);
    if (sodium_init() < 0)
        rc = error_set(err, SKEP_INTERNAL, "libsodium does not start");
    else
        rc = make_parts(server, config, err);
    if (rc == SKEP_OK)
        rc = tracker_listen(&server->listeners, config->host, config->port, config->port_end,
                            config->reuse_addr, err);
    if (rc != SKEP_OK)
        goto fail;
    server->bound = server->listeners.bound;
    rc = loop_new("skep-tracker", &server->loop, err);
    if (rc != SKEP_OK)
        goto fail;
    struct start start = {.server = server, .err = err};
    loop_call(server->loop, begin, &start);
    rc = start.rc;
    if (rc != SKEP_OK)
        goto fail;
    *out = server;
    return SKEP_OK;

fail:
    tracker_server_free(server);
    return rc;
}

void tracker_server_free(struct tracker_server *server)
{
    if (server == NULL)
        return;
    if (server->loop != NULL)
        loop_call(server->loop, end, server);
    loop_free(server->loop);
    listeners_close(&server->listeners);
    scheduler_free(server->scheduler);
    hash_table_fini(&server->addresses);
    deadline_heap_fini(&server->deadlines);
    mem_free(server->receive_buffer);
    mem_free(server->stop_key);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->lock);
    mem_free(server);
}

/* ---- facts ---- */

uint16_t tracker_server_port(const struct tracker_server *server)
{
    return server->bound.port;
}

void tracker_server_endpoint(const struct tracker_server *server, struct endpoint *out)
{
    *out = server->bound;
}

const char *tracker_server_stop_key(const struct tracker_server *server)
{
    return server->stop_key;
}

struct loop *tracker_server_loop(struct tracker_server *server)
{
    return server->loop;
}

struct counters_call {
    struct tracker_server *server;
    struct tracker_server_counters *out;
};

static void copy_counters(void *arg)
{
    struct counters_call *call = arg;

    *call->out = call->server->counters;
    scheduler_totals(call->server->scheduler, &call->out->scheduler);
}

void tracker_server_counters(struct tracker_server *server, struct tracker_server_counters *out)
{
    struct counters_call call = {.server = server, .out = out};

    loop_call(server->loop, copy_counters, &call);
}

void tracker_server_stats(struct tracker_server *server, struct skep_tracker_stats *out)
{
    struct tracker_server_counters c;

    tracker_server_counters(server, &c);
    *out = (struct skep_tracker_stats){
        .connections_open = c.connections_open,
        .connections_accepted = c.connections_accepted,
        .connections_refused = c.connections_refused,
        .protocol_errors = c.protocol_errors,
        .timeouts = c.timeouts,
        .messages = c.messages,
        .servers = c.servers,
        .keys = c.scheduler.keys,
        .resources_free = c.scheduler.free,
        .requests_pending = c.scheduler.pending,
        .puts = c.scheduler.puts,
        .requests = c.scheduler.requests,
        .requests_served = c.scheduler.served + c.scheduler.answered,
        .requests_withdrawn = c.scheduler.withdrawn,
        .requests_undelivered = c.scheduler.undelivered,
        .wait_us_sum = c.scheduler.wait_us_sum,
        .wait_us_max = c.scheduler.wait_us_max,
        .bytes_in = c.bytes_in,
        .bytes_out = c.bytes_out,
    };
    memcpy(out->waits, c.scheduler.waits, sizeof(out->waits));
}

struct summary_call {
    struct tracker_server *server;
    struct bytes *out;
    bool ok;
};

static void write_summary(void *arg)
{
    struct summary_call *call = arg;

    call->ok = tracker_append_summary(call->server, call->out);
}

skep_status tracker_server_summary(struct tracker_server *server, struct bytes *out,
                                   struct skep_error *err)
{
    struct summary_call call = {.server = server, .out = out};
    size_t before = out->len;

    loop_call(server->loop, write_summary, &call);
    if (call.ok)
        return SKEP_OK;
    out->len = before;
    return error_no_memory(err, "summary", out->cap);
}

/* ---- other trackers ---- */

struct scheduler *tracker_server_scheduler(struct tracker_server *server)
{
    assert(loop_is_own_thread(server->loop));
    return server->scheduler;
}

bool tracker_server_answer(struct tracker_server *server, struct tracker_text key,
                           const struct tracker_resource *resource)
{
    assert(loop_is_own_thread(server->loop));
    return scheduler_answer(server->scheduler, key, resource, clock_mono_us());
}

uint64_t tracker_server_take(struct tracker_server *server, struct tracker_text key,
                             struct tracker_resource *resource)
{
    assert(loop_is_own_thread(server->loop));
    return scheduler_take(server->scheduler, key, resource);
}

void tracker_server_confirm(struct tracker_server *server, uint64_t taken)
{
    assert(loop_is_own_thread(server->loop));
    scheduler_confirm(server->scheduler, taken);
}

bool tracker_server_return(struct tracker_server *server, uint64_t taken)
{
    assert(loop_is_own_thread(server->loop));
    return scheduler_return(server->scheduler, taken, clock_mono_us());
}
