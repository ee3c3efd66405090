/* One I/O thread of the server: accepting, limits on connections, connections' lives. */
#include "net/server_internal.h"
#include "net/peer_clocks.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

enum {
    ACCEPTS_PER_TURN = 64, /* so that a flood of connections does not hold up calls */
    ACCEPT_PAUSE_MS = 100, /* out of descriptors: accepting at once again would only spin */
    LOG_PERIOD_MS = 10000, /* of messages that strangers can provoke */
    MOST_LOOKED_AT = 4096, /* connections without a handshake, in search of one of an address */
};

static void on_listening(uv_poll_t *handle, int status, int events);

static void remote_text(const struct address *a, char text[static ENDPOINT_TEXT_BYTES])
{
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&a->sa);
    endpoint_format(&e, text);
}

/* Says why a connection is not taken or was dropped, seldom enough that no log can be flooded. */
static void log_seldom(struct log_limit *gate, const struct address *remote, const char *what)
{
    unsigned long left_out;
    char text[ENDPOINT_TEXT_BYTES] = "a connection";
    char others[LOG_LEFT_OUT_BYTES];

    if (!log_limit_passes(gate, LOG_PERIOD_MS, &left_out))
        return;
    if (remote != NULL)
        remote_text(remote, text);
    log_warn("%s: %s%s", text, what, log_left_out(left_out, "connections", others));
}

/* Connections */

/* The unfinished: those whose handshake is under way, in order of arrival. */

static void leave_unfinished(struct server_conn *c)
{
    if (!c->is_unfinished)
        return;
    c->is_unfinished = false;
    list_remove(&c->io->unfinished, &c->in_unfinished);
}

static void forget_connection(struct server_conn *c)
{
    struct server *server = c->io->server;

    leave_unfinished(c);
    list_remove(&c->io->conns, &c->in_conns);
    address_count_remove(server->addresses, (const struct sockaddr *)&c->remote.sa);
    atomic_fetch_sub(&server->connections, 1);
}

static bool is_protocol_error(skep_status status)
{
    return status != SKEP_UNAVAILABLE && status != SKEP_OK && status != SKEP_DEADLINE_EXCEEDED &&
           status != SKEP_RESOURCE_EXHAUSTED && status != SKEP_CANCELLED;
}

static void on_lost(void *arg, const struct skep_error *why)
{
    struct server_conn *c = arg;
    struct server *server = c->io->server;

    if (!c->established && why->status != SKEP_DEADLINE_EXCEEDED &&
        session_was_probe(c->conn.session)) {
        char text[ENDPOINT_TEXT_BYTES];
        server_count(&c->io->handshakes_failed);
        remote_text(&c->remote, text);
        log_debug("%s: no handshake: %s", text, why->message);
    } else if (!c->established) {
        server_count(&c->io->handshakes_failed);
        log_seldom(&server->handshake_gate, &c->remote, why->message);
    } else if (is_protocol_error(why->status)) {
        server_count(&c->io->protocol_errors);
        log_seldom(&server->protocol_gate, &c->remote, why->message);
    } else {
        char text[ENDPOINT_TEXT_BYTES];
        if (log_enabled(SKEP_LOG_DEBUG)) {
            remote_text(&c->remote, text);
            log_debug("%s: %s", text, why->message);
        }
    }
    forget_connection(c);
    conn_close(&c->conn, why);
}

static void on_released(void *arg)
{
    mem_free(arg);
}

static const struct conn_events conn_events = {.lost = on_lost, .released = on_released};

void server_conn_established(void *arg, const struct session_peer *peer)
{
    struct server_conn *c = arg;

    c->established = true;
    if (peer->time_ms != 0)
        peer_clocks_note(peer->peer_id, peer->time_ms);
    leave_unfinished(c);
    if (c->io->draining) /* its handshake was under way when draining began */
        session_goaway(c->conn.session, c->io->server->drain_reason);
}

/* @param fd taken on success. */
static skep_status start_connection(struct server_io *io, int fd, const struct address *remote,
                                    struct skep_error *err)
{
    const struct server_config *config = &io->server->config;
    struct session *session;
    struct server_conn *c = mem_calloc(1, sizeof(*c));

    if (c == NULL)
        return error_no_memory(err, "connection", sizeof(*c));
    c->io = io;
    c->remote = *remote;
    c->accepted_us = clock_mono_us();
    c->config = (struct session_config){
        .initiator = false,
        .identity = config->identity,
        .psk = config->psk,
        .plaintext = config->plaintext,
        .swarm = config->swarm,
        .limits = &config->limits,
        .wall_ms = clock_wall_ms,
    };
    skep_status rc =
        session_new(&c->config, &server_session_events, c, clock_mono_us(), &session, err);
    if (rc != SKEP_OK)
        goto fail;
    rc = conn_open(&c->conn, &io->group, fd, false, &conn_events, c, err);
    if (rc != SKEP_OK) {
        session_free(session, NULL);
        goto fail;
    }
    conn_attach(&c->conn, session, config->limits.stall_timeout_ms);
    list_append(&io->conns, &c->in_conns);
    list_append(&io->unfinished, &c->in_unfinished);
    c->is_unfinished = true;
    return SKEP_OK;

fail:
    mem_free(c);
    return rc;
}

/* Accepting */

/* An IPv4 peer of a dual-stack socket is shown, and counted, as the IPv4 address it is. */
static void unmap_v4(struct address *a)
{
    struct sockaddr_in6 in6;
    struct sockaddr_in in = {.sin_family = AF_INET};

    if (a->sa.ss_family != AF_INET6)
        return;
    memcpy(&in6, &a->sa, sizeof(in6));
    if (!IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr))
        return;
    in.sin_port = in6.sin6_port;
    memcpy(&in.sin_addr, in6.sin6_addr.s6_addr + 12, 4);
    memset(&a->sa, 0, sizeof(a->sa));
    memcpy(&a->sa, &in, sizeof(in));
    a->len = sizeof(in);
}

static void refuse(struct server_io *io, int fd)
{
    server_count(&io->refused);
    close(fd);
}

/* The oldest connection, of this address unless it is NULL, that has had its time for a handshake
 * and not made one. NULL if there is none. Those of other I/O threads are out of reach; the kernel
 * spreads strangers and peers over the threads alike, so what fills the server fills this one's
 * list too. */
static struct server_conn *oldest_silent(struct server_io *io, const struct address *of)
{
    uint64_t grace_us = io->server->config.handshake_grace_ms * UINT64_C(1000);
    uint64_t now = clock_mono_us();
    int left = MOST_LOOKED_AT;

    for (struct list_link *l = io->unfinished.first; l != NULL && left-- > 0; l = l->next) {
        struct server_conn *c = LIST_HOLDER(l, struct server_conn, in_unfinished);
        if (now < c->accepted_us + grace_us)
            return NULL; /* later ones have had even less */
        if (of == NULL || address_count_same((const struct sockaddr *)&c->remote.sa,
                                             (const struct sockaddr *)&of->sa))
            return c;
    }
    return NULL;
}

/* Ends such a connection. @param limit  what is used up. */
static bool make_room(struct server_io *io, const struct address *of, struct log_limit *gate,
                      const char *limit)
{
    struct server_conn *c = oldest_silent(io, of);
    struct skep_error why;

    if (c == NULL)
        return false;
    error_set(&why, SKEP_RESOURCE_EXHAUSTED,
              "closed to make room: %s, and this connection made no handshake", limit);
    server_count(&io->handshakes_failed);
    server_count(&io->handshakes_evicted);
    log_seldom(gate, &c->remote, why.message);
    forget_connection(c);
    conn_close(&c->conn, &why);
    return true;
}

/* Counts one more connection of the address, which may take the place of a silent one. */
static bool admit_address(struct server_io *io, const struct address *remote)
{
    struct server *server = io->server;
    const struct sockaddr *sa = (const struct sockaddr *)&remote->sa;

    return address_count_add(server->addresses, sa) ||
           (make_room(io, remote, &server->address_gate,
                      "max_connections_per_address are open from there") &&
            address_count_add(server->addresses, sa));
}

static void admit(struct server_io *io, int fd, const struct address *remote)
{
    struct server *server = io->server;
    struct skep_error err;

    if (atomic_fetch_add(&server->connections, 1) >= server->config.max_connections &&
        !make_room(io, NULL, &server->full_gate, "max_connections are open")) {
        atomic_fetch_sub(&server->connections, 1);
        log_seldom(&server->full_gate, remote, "refused: max_connections are open");
        refuse(io, fd);
        return;
    }
    if (!admit_address(io, remote)) {
        atomic_fetch_sub(&server->connections, 1);
        log_seldom(&server->address_gate, remote,
                   "refused: max_connections_per_address are open from there");
        refuse(io, fd);
        return;
    }
    conn_tune_socket(fd);
    if (start_connection(io, fd, remote, &err) != SKEP_OK) {
        address_count_remove(server->addresses, (const struct sockaddr *)&remote->sa);
        atomic_fetch_sub(&server->connections, 1);
        log_seldom(&server->descriptor_gate, remote, err.message);
        refuse(io, fd);
        return;
    }
    server_count(&io->accepted);
}

static void watch_listeners(struct server_io *io, bool on)
{
    for (size_t i = 0; i < io->server->listeners.addresses; i++) {
        if (io->acceptors[i].fd < 0)
            continue;
        if (on)
            uv_poll_start(&io->acceptors[i].poll, UV_READABLE, on_listening);
        else
            uv_poll_stop(&io->acceptors[i].poll);
    }
}

static void on_resume(uv_timer_t *timer)
{
    watch_listeners(timer->data, true);
}

/* Connections wait in the kernel's queue meanwhile. */
static void pause_accepting(struct server_io *io, int error_number)
{
    char what[128];

    snprintf(what, sizeof(what), "cannot be accepted: %s; accepting pauses",
             strerror(error_number));
    log_seldom(&io->server->descriptor_gate, NULL, what);
    watch_listeners(io, false);
    uv_timer_start(&io->resume, on_resume, ACCEPT_PAUSE_MS, 0);
}

/* What is wrong with one connection that was about to be accepted says nothing of the next. */
static bool is_passing_error(int error_number)
{
    return error_number == ECONNABORTED || error_number == EINTR || error_number == EPROTO ||
           error_number == EPERM || error_number == ENETDOWN || error_number == ENETUNREACH ||
           error_number == EHOSTUNREACH || error_number == EHOSTDOWN ||
           error_number == ENOPROTOOPT || error_number == ENONET || error_number == EOPNOTSUPP;
}

static bool is_out_of_descriptors(int error_number)
{
    return error_number == EMFILE || error_number == ENFILE;
}

static void on_listening(uv_poll_t *handle, int status, int events)
{
    struct server_io *io = handle->data;
    struct acceptor *acceptor =
        (struct acceptor *)((char *)handle - offsetof(struct acceptor, poll));

    (void)status;
    (void)events;
    loop_enter(io->loop);
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct address remote = {.len = sizeof(remote.sa)};
        int fd = accept4(acceptor->fd, (struct sockaddr *)&remote.sa, &remote.len,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            unmap_v4(&remote);
            admit(io, fd_move_high(fd), &remote);
        } else if (errno == EAGAIN) {
            return;
        } else {
            int error_number = errno;
            if (is_out_of_descriptors(error_number) && !listener_has_waiting(acceptor->fd))
                return;
            if (is_passing_error(error_number) ||
                (is_out_of_descriptors(error_number) &&
                 make_room(io, NULL, &io->server->descriptor_gate, "file descriptors are used up")))
                continue;
            pause_accepting(io, error_number);
            return;
        }
    }
}

static void close_listeners(struct server_io *io)
{
    for (size_t i = 0; i < io->server->listeners.addresses; i++) {
        if (io->acceptors[i].fd < 0)
            continue;
        uv_close((uv_handle_t *)&io->acceptors[i].poll, NULL);
        close(io->acceptors[i].fd);
        io->acceptors[i].fd = -1;
    }
    if (io->has_resume)
        uv_close((uv_handle_t *)&io->resume, NULL);
    io->has_resume = false;
}

/* Start, drain, stop */

static void on_settled(void *arg)
{
    server_check_idle(arg);
}

skep_status server_io_start(struct server_io *io, struct skep_error *err)
{
    struct listeners *l = &io->server->listeners;
    size_t own = (size_t)(io - io->server->io);
    skep_status rc = conn_group_init(&io->group, io->loop, err);

    if (rc != SKEP_OK)
        return rc;
    block_cache_set_taker(offload_give_back, io->server->offload);
    io->group.settled = on_settled;
    io->group.settled_arg = io->server;
    uv_timer_init(loop_uv(io->loop), &io->resume);
    io->resume.data = io;
    io->has_resume = true;
    for (size_t i = 0; i < l->addresses; i++) {
        struct acceptor *acceptor = &io->acceptors[i];
        int uv = uv_poll_init(loop_uv(io->loop), &acceptor->poll, l->fds[i][own]);
        if (uv != 0)
            return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot watch a listening socket: %s",
                             uv_strerror(uv));
        acceptor->poll.data = io;
        acceptor->fd = l->fds[i][own];
        l->fds[i][own] = -1; /* closed by close_listeners() from here on */
    }
    watch_listeners(io, true);
    return SKEP_OK;
}

void server_io_drain(struct server_io *io)
{
    if (io->draining || io->stopped)
        return;
    io->draining = true;
    close_listeners(io);
    for (struct list_link *l = io->conns.first; l != NULL; l = l->next) {
        struct server_conn *c = LIST_HOLDER(l, struct server_conn, in_conns);
        if (!c->established)
            continue;
        session_goaway(c->conn.session, io->server->drain_reason);
        conn_touch(&c->conn);
    }
}

void server_io_stop(struct server_io *io)
{
    struct skep_error why;

    if (io->stopped)
        return;
    io->stopped = true;
    error_set(&why, SKEP_UNAVAILABLE, "the server is shutting down");
    close_listeners(io);
    while (io->conns.first != NULL) {
        struct server_conn *c = LIST_HOLDER(io->conns.first, struct server_conn, in_conns);
        forget_connection(c);
        conn_close(&c->conn, &why);
    }
    conn_group_fini(&io->group);
    block_cache_set_taker(NULL, NULL); /* the codec threads end before this one */
}
