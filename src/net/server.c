/* The server's life: start, counters, drain, stop. */
#include "net/server_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"

/* A few round trips to the far side of the world, and our own work for a crowd of others. */
enum { HANDSHAKE_GRACE_MS = 1000 };

/* Start */

struct start {
    struct server_io *io;
    skep_status rc;
    struct skep_error *err;
};

static void start_on_loop(void *arg)
{
    struct start *start = arg;

    start->rc = server_io_start(start->io, start->err);
}

static void drain_on_loop(struct loop_job *job)
{
    server_io_drain((struct server_io *)((char *)job - offsetof(struct server_io, drain)));
}

static skep_status start_io(struct server *server, unsigned i, struct skep_error *err)
{
    struct server_io *io = &server->io[i];
    char name[16];

    io->server = server;
    io->drain.run = drain_on_loop;
    for (size_t a = 0; a < LISTENER_MAX_ADDRESSES; a++)
        io->acceptors[a].fd = -1;
    snprintf(name, sizeof(name), "skep-io-%u", i);
    skep_status rc = loop_new(name, &io->loop, err);
    if (rc != SKEP_OK)
        return rc;
    struct start start = {.io = io, .err = err};
    loop_call(io->loop, start_on_loop, &start);
    return start.rc;
}

static skep_status check_config(const struct server_config *config, struct skep_error *err)
{
    if (config->io_threads < 1 || config->io_threads > LISTENER_MAX_THREADS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "io_threads: %u, expected 1 to %d",
                         config->io_threads, LISTENER_MAX_THREADS);
    if (config->max_connections < 1 || config->max_connections_per_address < 1)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "max_connections: %u (%u an address), expected at least 1",
                         config->max_connections, config->max_connections_per_address);
    if (strlen(config->swarm) >= sizeof(((struct server *)NULL)->swarm))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "swarm name: %zu characters, expected at most %zu", strlen(config->swarm),
                         sizeof(((struct server *)NULL)->swarm) - 1);
    return SKEP_OK;
}

skep_status server_new(const struct server_config *config, struct server **out,
                       struct skep_error *err)
{
    *out = NULL;
    skep_status rc = check_config(config, err);
    if (rc != SKEP_OK)
        return rc;
    struct server *server = mem_calloc(1, sizeof(*server));
    if (server == NULL)
        return error_no_memory(err, "server", sizeof(*server));
    pthread_mutex_init(&server->idle_lock, NULL);
    cond_init(&server->idle_changed);
    server->config = *config;
    if (config->handshake_grace_ms == 0)
        server->config.handshake_grace_ms = HANDSHAKE_GRACE_MS;
    snprintf(server->swarm, sizeof(server->swarm), "%s", config->swarm);
    server->config.swarm = server->swarm;

    rc = listeners_open(&server->listeners, &config->listen, config->io_threads, err);
    if (rc != SKEP_OK)
        goto fail;
    rc = address_count_new(config->max_connections, config->max_connections_per_address,
                           &server->addresses, err);
    if (rc != SKEP_OK)
        goto fail;
    server->io = mem_calloc(config->io_threads, sizeof(*server->io));
    if (server->io == NULL) {
        rc = error_no_memory(err, "I/O threads", config->io_threads * sizeof(*server->io));
        goto fail;
    }
    rc = offload_new(&server->offload, err);
    if (rc != SKEP_OK)
        goto fail;
    for (unsigned i = 0; i < config->io_threads; i++) {
        server->io_count = i + 1;
        rc = start_io(server, i, err);
        if (rc != SKEP_OK)
            goto fail;
    }
    *out = server;
    return SKEP_OK;

fail:
    server_free(server);
    return rc;
}

void server_endpoint(const struct server *server, struct endpoint *out)
{
    *out = server->listeners.bound;
}

void server_counters(const struct server *server, struct server_counters *out)
{
    *out = (struct server_counters){.connections_open = atomic_load(&server->connections),
                                    .not_encoded = atomic_load(&server->not_encoded)};
    for (unsigned i = 0; i < server->io_count; i++) {
        const struct server_io *io = &server->io[i];
        out->connections_accepted += atomic_load(&io->accepted);
        out->connections_refused += atomic_load(&io->refused);
        out->handshakes_failed += atomic_load(&io->handshakes_failed);
        out->handshakes_evicted += atomic_load(&io->handshakes_evicted);
        out->protocol_errors += atomic_load(&io->protocol_errors);
        out->calls += atomic_load(&io->calls);
        out->bytes_in += atomic_load(&io->group.bytes_in);
        out->bytes_out += atomic_load(&io->group.bytes_out);
    }
}

/* Drain */

void server_drain(struct server *server, const char *reason)
{
    if (atomic_exchange(&server->drain_begun, true))
        return; /* the jobs are embedded: each can be posted once */
    snprintf(server->drain_reason, sizeof(server->drain_reason), "%s",
             reason != NULL ? reason : "shutting down");
    for (unsigned i = 0; i < server->io_count; i++)
        loop_post(server->io[i].loop, &server->io[i].drain);
}

void server_check_idle(struct server *server)
{
    if (atomic_load(&server->idle_waiters) == 0)
        return;
    pthread_mutex_lock(&server->idle_lock);
    pthread_cond_broadcast(&server->idle_changed);
    pthread_mutex_unlock(&server->idle_lock);
}

/* No call is open, and no reply's last bytes wait for their socket. */
static bool looks_idle(struct server *server)
{
    if (atomic_load(&server->open_calls) > 0)
        return false;
    for (unsigned i = 0; i < server->io_count; i++)
        if (atomic_load(&server->io[i].group.unsent) > 0)
            return false;
    return true;
}

static void do_nothing(void *arg)
{
    (void)arg;
}

void server_touch(struct server *server)
{
    for (unsigned i = 0; i < server->io_count; i++)
        loop_call(server->io[i].loop, do_nothing, NULL);
}

/* A reply's last bytes leave the session a moment before they reach the socket or the count of
 * unsent ones. Once each loop has come round, they have. */
static bool is_idle(struct server *server)
{
    if (!looks_idle(server))
        return false;
    server_touch(server);
    return looks_idle(server);
}

bool server_wait_idle(struct server *server, uint64_t deadline_us)
{
    bool in_time = true;

    /* Counted before looking, so that whoever changes something after the look sees a waiter. */
    atomic_fetch_add(&server->idle_waiters, 1);
    bool idle = is_idle(server);
    while (!idle && in_time) {
        pthread_mutex_lock(&server->idle_lock);
        if (!looks_idle(server))
            in_time = cond_wait_until(&server->idle_changed, &server->idle_lock, deadline_us);
        pthread_mutex_unlock(&server->idle_lock);
        idle = is_idle(server);
    }
    atomic_fetch_sub(&server->idle_waiters, 1);
    return idle;
}

/* Stop */

static void stop_on_loop(void *arg)
{
    server_io_stop(arg);
}

void server_stop(struct server *server)
{
    if (server == NULL)
        return;
    for (unsigned i = 0; i < server->io_count; i++)
        if (server->io[i].loop != NULL)
            loop_call(server->io[i].loop, stop_on_loop, &server->io[i]);
    listeners_close(&server->listeners);
    if (server->offload == NULL)
        return;
    offload_drain(server->offload);
    for (unsigned i = 0; i < server->io_count; i++) /* what they have handed back is done with */
        if (server->io[i].loop != NULL)
            loop_call(server->io[i].loop, do_nothing, NULL);
}

void server_free(struct server *server)
{
    if (server == NULL)
        return;
    server_stop(server);
    offload_free(server->offload);
    for (unsigned i = 0; i < server->io_count; i++) {
        loop_free(server->io[i].loop);
        server_calls_free(&server->io[i]);
    }
    mem_free(server->io);
    address_count_free(server->addresses);
    pthread_cond_destroy(&server->idle_changed);
    pthread_mutex_destroy(&server->idle_lock);
    mem_free(server);
}
