/*
 * What the server's files share: server.c (life, and what other modules call), server_listen.c
 * (ports), server_accept.c (new connections), server_conn.c (sockets), server_request.c (what
 * requests do).
 */
#ifndef SKEP_TRACKER_SERVER_INTERNAL_H
#define SKEP_TRACKER_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/log.h"
#include "net/deadline_heap.h"
#include "net/listener.h"
#include "base/hash_table.h"
#include "tracker/server.h"

enum {
    TRACKER_HOST_TEXT_BYTES = 72, /* an IPv6 address with its zone */
    TRACKER_RECEIVE_BYTES = 64 * 1024,
    /* Of all servers' info. With the keys' 64 MiB (scheduler.h) an answer to SUMMARY stays below
     * TRACKER_CLIENT_MAX_REPLY_BYTES, however many fill it. */
    TRACKER_MAX_ALL_INFO_BYTES = 128 << 20,
    TRACKER_MAX_ADDRESS_INFO_BYTES = 32 << 20, /* of the connections of one address */
};

/* What the connections of one remote address hold together: of one IPv4 address, or of one /64. */
struct tracker_address {
    struct hash_node by_bytes;
    struct scheduler_account account;
    size_t info_bytes;
    size_t connections;
    size_t len;
    uint8_t bytes[8];
};

/* Whether the other end went, and what that says of the answers that it was sent. */
enum conn_loss {
    LOSS_NONE,   /* we end it: what the system has taken is delivered */
    LOSS_CLOSED, /* it closed, or no sign of it came: it has not got what it did not acknowledge */
    LOSS_RESET,  /* it may have read what it did not acknowledge: it has not got what never left */
};

struct tracker_conn {
    struct tracker_server *server;
    uv_poll_t poll;
    int fd;
    int watching;               /* events of the poll handle */
    struct list_link in_conns;  /* of the server, in order of coming */
    struct list_link in_silent; /* the same, if silent */
    bool silent;                /* has not sent the magic number */
    uint64_t accepted_us;
    struct list_link in_dirty; /* if dirty */
    bool dirty;                /* to be looked at before the loop sleeps */
    bool failed;               /* to be closed then */
    bool closed;
    bool paused;                     /* too much is unsent: what it asks has to wait */
    bool is_server;                  /* its info begins with "server" */
    struct tracker_address *address; /* shared: tracker_address_release() */
    struct scheduler_owner owner;
    struct tracker_input input;
    struct bytes out;
    size_t out_at; /* sent already */
    uint64_t sent; /* bytes since it began */
    enum conn_loss loss;
    /* The nearer of two: the end of a message, CLOCK_NEVER if none is under way; the next byte that
     * is read of what is unsent. */
    struct deadline_entry due;
    uint64_t message_due_us, unsent_due_us;
    char *info; /* owned: JSON, not terminated; NULL: none */
    size_t info_len;
    char host[TRACKER_HOST_TEXT_BYTES];
    uint16_t port;
};

enum server_state {
    SERVER_RUNNING,
    SERVER_DRAINING, /* only what is answered already is sent */
    SERVER_STOPPED,
};

struct tracker_server {
    struct loop *loop;
    struct loop_hook hook;
    struct scheduler *scheduler;
    struct tracker_server_events events;
    void *arg;
    bool silent;
    uint32_t report_interval_s;
    uint32_t timeout_ms;
    uint32_t greeting_grace_ms;
    unsigned max_connections;
    size_t max_unsent_bytes;
    char *stop_key; /* owned */
    struct endpoint bound;

    /* The loop's thread only. */
    struct listeners listeners;
    uv_poll_t listening[LISTENER_MAX_ADDRESSES];
    size_t listening_count;
    uv_async_t stop;         /* a stop was asked for */
    uv_timer_t timer;        /* the nearest deadline of a connection, or the drain's end */
    uv_timer_t accept_pause; /* out of descriptors */
    uv_timer_t report;
    uint64_t armed_us;
    struct deadline_heap deadlines;
    struct linked_list conns, dirty;
    struct linked_list unidentified_conns; /* of conns: those that have not sent the magic number */
    struct hash_table addresses;           /* of connections */
    uint8_t *receive_buffer;               /* owned */
    size_t info_bytes;
    bool handles_open;
    bool ending; /* all connections are being closed: nothing is handed out anew */
    struct tracker_server_counters counters;
    struct tracker_server_counters at_report; /* as they were when last logged */
    struct log_limit refused_gate, protocol_gate;

    pthread_mutex_t lock; /* guards state */
    pthread_cond_t changed;
    enum server_state state; /* written by the loop's thread */
};

static inline struct tracker_conn *tracker_conn_in_conns(struct list_link *link)
{
    return LIST_HOLDER(link, struct tracker_conn, in_conns);
}

/* server_listen.c. Binds the first free port of the range. @param out  NULL: says only whether
 * there is one, without listening. */
SKEP_MUST_CHECK skep_status tracker_listen(struct listeners *out, const char *host, uint16_t port,
                                           uint32_t port_end, bool reuse_addr,
                                           struct skep_error *err);

/* server_accept.c */
void tracker_accept(uv_poll_t *handle, int status, int events);

/* server_address.c. NULL if memory is short. */
struct tracker_address *tracker_address_take(struct tracker_server *server,
                                             const struct sockaddr *sa);
void tracker_address_release(struct tracker_server *server,
                             struct tracker_address *address); /* NULL is allowed */

/* server_conn.c */
/* The connection is whole: it is one of the server's, and read from. */
void tracker_conn_begin(struct tracker_conn *conn);
void tracker_conn_touch(struct tracker_conn *conn);
/* Logs why, unless it is NULL, and has it closed before the loop sleeps. */
void tracker_conn_fail(struct tracker_conn *conn, const char *why);
void tracker_conn_close(struct tracker_conn *conn);
/* Closes the oldest connection that has had its time for the magic number and not sent it. False if
 * there is none. @param why  what is used up. */
bool tracker_make_room(struct tracker_server *server, const char *why);
/* Sends, closes and watches what has been touched. */
void tracker_flush(struct tracker_server *server);
void tracker_arm_timer(struct tracker_server *server);
/* Closes connections whose time is up. */
void tracker_run_deadlines(struct tracker_server *server, uint64_t now_us);
/* A warning about one connection, of which a log gets few: strangers can provoke it. */
void tracker_log_seldom(struct log_limit *gate, const struct tracker_conn *conn, const char *what);
/* Where in all that it is sent the bytes end that are to be sent so far. */
uint64_t tracker_conn_mark(const struct tracker_conn *conn);
/* Notes which answers its other end has. */
void tracker_conn_note_arrived(struct tracker_conn *conn);
/* Whether its other end is there, as far as this machine knows; if not, it is closed before the
 * loop sleeps. */
bool tracker_conn_is_there(struct tracker_conn *conn);

/* server_request.c */
void tracker_handle_message(struct tracker_conn *conn, struct tracker_text message);
bool tracker_assign(void *arg, struct scheduler_owner *to, const struct tracker_resource *resource,
                    uint64_t *mark);
bool tracker_append_summary(struct tracker_server *server, struct bytes *out);

#endif
