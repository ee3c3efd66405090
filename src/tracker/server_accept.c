/* New connections of the tracker. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/number.h"
#include "tracker/server_internal.h"

enum {
    ACCEPTS_PER_TURN = 64,
    ACCEPT_PAUSE_MS = 100,
    /* A peer whose machine died says nothing; its resources must not stay for ever. */
    KEEPALIVE_IDLE_S = 60,
    KEEPALIVE_INTERVAL_S = 15,
    KEEPALIVE_COUNT = 4,
};

static void tune(int fd)
{
    static const int on = 1, idle = KEEPALIVE_IDLE_S, interval = KEEPALIVE_INTERVAL_S,
                     count = KEEPALIVE_COUNT;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

/* An IPv4 peer of an IPv6 socket has an address that IPv4 clients cannot dial. */
static void copy_host(char out[static TRACKER_HOST_TEXT_BYTES], const char *host)
{
    static const char mapped[] = "::ffff:";
    const size_t cut = sizeof(mapped) - 1;
    bool is_mapped = ascii_same_first(host, mapped, cut) && strchr(host + cut, '.') != NULL;

    snprintf(out, TRACKER_HOST_TEXT_BYTES, "%s", is_mapped ? host + cut : host);
}

static struct tracker_conn *new_conn(struct tracker_server *server, int fd,
                                     const struct sockaddr *sa, const struct endpoint *remote)
{
    struct tracker_conn *conn = mem_calloc(1, sizeof(*conn));

    if (conn == NULL)
        return NULL;
    conn->server = server;
    conn->fd = fd;
    conn->message_due_us = CLOCK_NEVER;
    conn->unsent_due_us = CLOCK_NEVER;
    conn->port = remote->port;
    copy_host(conn->host, remote->host);
    conn->address = tracker_address_take(server, sa);
    if (conn->address == NULL || uv_poll_init(loop_uv(server->loop), &conn->poll, fd) != 0) {
        tracker_address_release(server, conn->address);
        mem_free(conn);
        return NULL;
    }
    conn->owner.account = &conn->address->account;
    conn->poll.data = conn;
    return conn;
}

static void refuse(struct tracker_server *server, const struct endpoint *remote, const char *why)
{
    struct tracker_conn shown = {.port = remote->port};

    snprintf(shown.host, sizeof(shown.host), "%s", remote->host);
    server->counters.connections_refused++;
    tracker_log_seldom(&server->refused_gate, &shown, why);
}

static void take_connection(struct tracker_server *server, int fd, const struct sockaddr *sa)
{
    struct endpoint remote;
    char why[96];

    endpoint_from_address(&remote, sa);
    if (server->counters.connections_open >= server->max_connections &&
        !tracker_make_room(server, "all connections are taken")) {
        snprintf(why, sizeof(why), "refused: all %u connections are taken",
                 server->max_connections);
        refuse(server, &remote, why);
        close(fd);
        return;
    }
    fd = fd_move_high(fd);
    tune(fd);
    struct tracker_conn *conn = new_conn(server, fd, sa, &remote);
    if (conn == NULL) {
        refuse(server, &remote, "refused: out of memory");
        close(fd);
        return;
    }
    server->counters.connections_accepted++;
    tracker_conn_begin(conn);
}

static void accept_again(uv_timer_t *timer)
{
    struct tracker_server *server = timer->data;

    for (size_t i = 0; i < server->listening_count; i++)
        uv_poll_start(&server->listening[i], UV_READABLE, tracker_accept);
}

/* Out of descriptors: trying at once again would only spin. */
static void pause_accepting(struct tracker_server *server, int error_number)
{
    struct endpoint nobody = {.host = "(next)"};
    char why[128];

    snprintf(why, sizeof(why), "cannot accept: %s", strerror(error_number));
    refuse(server, &nobody, why);
    for (size_t i = 0; i < server->listening_count; i++)
        uv_poll_stop(&server->listening[i]);
    uv_timer_start(&server->accept_pause, accept_again, ACCEPT_PAUSE_MS, 0);
}

static bool is_shortage(int error_number)
{
    return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
           error_number == ENOMEM;
}

void tracker_accept(uv_poll_t *handle, int status, int events)
{
    struct tracker_server *server = handle->data;
    uv_os_fd_t listener;

    (void)events;
    loop_enter(server->loop);
    if (status < 0 || uv_fileno((uv_handle_t *)handle, &listener) != 0)
        return;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        int error_number;
        struct sockaddr_storage sa;
        socklen_t len = sizeof(sa);
        int fd = accept4(listener, (struct sockaddr *)&sa, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            take_connection(server, fd, (const struct sockaddr *)&sa);
            continue;
        }
        error_number = errno;
        if (is_shortage(error_number)) {
            bool descriptors = error_number == EMFILE || error_number == ENFILE;
            if (descriptors && !listener_has_waiting(listener))
                return;
            if (descriptors && tracker_make_room(server, "file descriptors are used up"))
                continue;
            pause_accepting(server, error_number);
            return;
        }
        if (error_number != EINTR && error_number != ECONNABORTED)
            return;
    }
}
