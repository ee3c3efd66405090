/*
 * A session on a socket. Accepted by the server or dialled by the pool: both embed a `struct conn`.
 *
 * Reads straight into the session's buffer. Sends at the end of a loop turn, so that all that one
 * turn has produced for a connection shares system calls; asks for writability only while the
 * socket refuses bytes. Connections of one loop share a `struct conn_group`.
 *
 * Thread: everything here, callbacks included, is on the loop's thread, but for what is marked.
 */
#ifndef SKEP_NET_CONN_H
#define SKEP_NET_CONN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>
#include "base/endpoint.h"
#include "base/list.h"
#include "net/loop.h"
#include "net/session.h"

struct conn;

struct conn_group {
    struct loop *loop;
    struct loop_hook hook;
    struct conn *latest;      /* borrowed: received last, polled before a sleep; may be NULL */
    struct linked_list dirty; /* have something to send, to re-time or to end */
    uint8_t *scratch;         /* CONN_SCRATCH_BYTES, for building what is sent */
    /* Only the loop's thread writes these; any thread reads. */
    _Atomic uint64_t bytes_in;
    _Atomic uint64_t bytes_out;
    _Atomic uint64_t unsent; /* connections whose socket has refused bytes */
    /* May be NULL. Some connection has got rid of its last unsent byte, or has ended with some. */
    void (*settled)(void *arg);
    void *settled_arg;
};

struct conn_events {
    /* Dialled only: the socket is connected. The owner attaches a session now, or calls
     * conn_fail(). */
    void (*connected)(void *arg);
    /*
     * The connection has ended or must end: no more comes of it. Runs once, outside of any session
     * call. The owner calls conn_close() now.
     */
    void (*lost)(void *arg, const struct skep_error *why);
    /* The time of conn_set_due() has come. Outside of any session call. May be NULL. */
    void (*due)(void *arg);
    /* conn_close() is complete: the memory is the owner's again. */
    void (*released)(void *arg);
};

struct conn {
    uv_poll_t poll;
    uv_timer_t timer;
    struct conn_group *group;
    const struct conn_events *events;
    void *arg;
    struct session *session; /* owned; NULL until attached */
    uint32_t stall_timeout_ms;
    int fd;
    int watching; /* UV_READABLE and so on, as given to uv_poll_start() */
    unsigned open_handles;
    bool connecting;
    bool failed;
    bool closing;
    bool send_broken; /* the peer takes no more; what it sent before is still read */
    bool is_dirty;
    struct list_link in_dirty;
    uint8_t *unsent; /* what the socket refused; owned */
    size_t unsent_at;
    size_t unsent_end;
    uint64_t unsent_since_us; /* the last time any of it moved */
    uint64_t sent_bytes;      /* that the socket has taken so far */
    uint64_t due_us;
    uint64_t armed_us;      /* when the timer fires; early is harmless, it is armed again then */
    struct skep_error *why; /* owned; NULL: memory was short */
};

/* On the loop's thread. @return SKEP_RESOURCE_EXHAUSTED if memory is short. */
SKEP_MUST_CHECK skep_status conn_group_init(struct conn_group *group, struct loop *loop,
                                            struct skep_error *err);
/* All connections must have been closed (their release may be outstanding). Zeroed is allowed. */
void conn_group_fini(struct conn_group *group);

/* Sets what every socket of ours wants; failures are not errors. */
void conn_tune_socket(int fd);

/*
 * Starts watching a socket.
 * @param fd          taken, on success only; non-blocking.
 * @param connecting  connect() is under way: `connected` or `lost` tells how it ends.
 * @param events      borrowed until released.
 */
SKEP_MUST_CHECK skep_status conn_open(struct conn *conn, struct conn_group *group, int fd,
                                      bool connecting, const struct conn_events *events, void *arg,
                                      struct skep_error *err);
/* @param session taken. */
void conn_attach(struct conn *conn, struct session *session, uint32_t stall_timeout_ms);
/* Something may be due to be sent, or a time may have changed: looks at it when the turn ends. */
void conn_touch(struct conn *conn);
/* On a borrowed loop: sends now what the session has. False if something is left for the loop's
 * thread, which must be woken then. */
bool conn_send_borrowed(struct conn *conn);
/* Ends the connection when the turn ends: `lost` with this reason. What the session still has to
 * say is sent if the socket takes it at once. Right inside a session's event. */
void conn_fail(struct conn *conn, const struct skep_error *why);
/* Bytes that have left this machine and were acknowledged by the peer's system, whether or not the
 * peer has read them. @param waiting set to how many still wait in the socket or for it. */
uint64_t conn_acknowledged(const struct conn *conn, uint64_t *waiting);
/* CLOCK_NEVER: not at all. Replaces the time set before. */
void conn_set_due(struct conn *conn, uint64_t due_us);
/* Frees the session (its streams end with `why`, see session_free()) and closes the socket. Not
 * inside a session's event. `released` comes later. */
void conn_close(struct conn *conn, const struct skep_error *why);

#endif
