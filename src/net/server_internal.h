/*
 * What the parts of the server share: server.c (life cycle), server_io.c (accepting, connections),
 * server_call.c (calls).
 *
 * Each I/O thread (`struct server_io`) has its own listening sockets, connections and calls, and
 * touches no other's. Shared between them: counters, the table of addresses, the handlers.
 */
#ifndef SKEP_NET_SERVER_INTERNAL_H
#define SKEP_NET_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/list.h"
#include "base/log.h"
#include "net/address_count.h"
#include "net/conn.h"
#include "net/listener.h"
#include "net/offload.h"
#include "net/server.h"

enum { SERVER_REASON_BYTES = 256 };

struct server_io;

/* One listening socket of one I/O thread. */
struct acceptor {
    uv_poll_t poll;
    int fd; /* -1: closed */
};

struct server_conn {
    struct conn conn;
    struct server_io *io;
    struct list_link in_conns, in_unfinished; /* io's; in_unfinished if is_unfinished */
    uint64_t accepted_us;
    struct session_config config; /* the session borrows it */
    struct address remote;
    bool established;
    bool is_unfinished; /* its handshake is under way */
};

struct server_io {
    struct server *server;
    struct loop *loop;
    struct conn_group group;
    struct acceptor acceptors[LISTENER_MAX_ADDRESSES];
    uv_timer_t resume; /* accepting again after the process ran out of descriptors */
    bool has_resume;
    bool draining;
    bool stopped;
    struct linked_list conns;
    struct linked_list unfinished; /* of these; the oldest first */
    struct loop_job drain;
    struct server_call *free_calls; /* kept for reuse */
    unsigned free_call_count;
    _Atomic unsigned unanswered; /* calls that are complete and not replied to. Any thread. */
    /* Only this loop's thread writes these; any thread reads. */
    _Atomic uint64_t accepted, refused, handshakes_failed, handshakes_evicted, protocol_errors,
        calls;
};

struct server {
    struct server_config config;
    char swarm[128]; /* backs config.swarm */
    struct listeners listeners;
    struct address_count *addresses;
    unsigned io_count;
    struct server_io *io; /* io_count of them */
    struct offload *offload;
    char drain_reason[SERVER_REASON_BYTES];
    atomic_bool drain_begun;
    _Atomic unsigned connections;
    _Atomic uint64_t open_calls;
    _Atomic uint64_t not_encoded;
    _Atomic unsigned idle_waiters;
    pthread_mutex_t idle_lock; /* guards nothing but the wait on idle_changed */
    pthread_cond_t idle_changed;
    struct log_limit full_gate, address_gate, descriptor_gate, handshake_gate, protocol_gate;
};

/* Adds to a counter that one thread writes. */
static inline void server_count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* The calls of an I/O thread's connections: arg is the struct server_conn. */
extern const struct session_events server_session_events;
/* Frees the calls kept for reuse. After the loop's end. */
void server_calls_free(struct server_io *io);

/* All on the io's own loop thread. */
skep_status server_io_start(struct server_io *io, struct skep_error *err);
void server_io_drain(struct server_io *io);
void server_io_stop(struct server_io *io);
void server_conn_established(void *arg, const struct session_peer *peer);

/* A call has ended, or a connection has sent its last byte: whoever waits for idleness looks. */
void server_check_idle(struct server *server);

#endif
