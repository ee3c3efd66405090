/* Connections of the tracker: reading, sending, time limits, their end. */
#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "tracker/server_internal.h"

enum {
    READS_PER_TURN = 4,    /* one connection's share, so that a flood does not hold up others */
    LOG_PERIOD_MS = 10000, /* of messages that strangers can provoke */
    KEEP_OUT_BYTES = 512,  /* larger send buffers are given back when they are empty */
};

static void on_poll(uv_poll_t *handle, int status, int events);

/* ---- lists ---- */

void tracker_conn_touch(struct tracker_conn *conn)
{
    if (conn->dirty || conn->closed)
        return;
    conn->dirty = true;
    list_prepend(&conn->server->dirty, &conn->in_dirty);
}

static void untouch(struct tracker_conn *conn)
{
    if (!conn->dirty)
        return;
    conn->dirty = false;
    list_remove(&conn->server->dirty, &conn->in_dirty);
}

static void enter_list(struct tracker_server *server, struct tracker_conn *conn)
{
    list_append(&server->conns, &conn->in_conns);
    conn->silent = true;
    conn->accepted_us = clock_mono_us();
    list_append(&server->unidentified_conns, &conn->in_silent);
    server->counters.connections_open++;
}

static void leave_silent(struct tracker_conn *conn)
{
    if (!conn->silent)
        return;
    conn->silent = false;
    list_remove(&conn->server->unidentified_conns, &conn->in_silent);
}

static void leave_list(struct tracker_server *server, struct tracker_conn *conn)
{
    leave_silent(conn);
    list_remove(&server->conns, &conn->in_conns);
    server->counters.connections_open--;
}

void tracker_log_seldom(struct log_limit *gate, const struct tracker_conn *conn, const char *what)
{
    unsigned long left_out;
    char others[LOG_LEFT_OUT_BYTES];

    if (!log_limit_passes(gate, LOG_PERIOD_MS, &left_out))
        return;
    log_warn("tracker: %s port %u: %s%s", conn->host, (unsigned)conn->port, what,
             log_left_out(left_out, "connections", others));
}

/* ---- deadlines ---- */

static void on_timer(uv_timer_t *timer)
{
    struct tracker_server *server = timer->data;

    server->armed_us = CLOCK_NEVER;
    tracker_run_deadlines(server, clock_mono_us());
    tracker_arm_timer(server);
}

/* A deadline that has moved away leaves the timer alone: it fires early then, and is armed anew. */
void tracker_arm_timer(struct tracker_server *server)
{
    const struct deadline_entry *first = deadline_heap_first(&server->deadlines);

    if (first == NULL || first->deadline_us >= server->armed_us)
        return;
    server->armed_us = first->deadline_us;
    uv_timer_start(&server->timer, on_timer, clock_left_ms(first->deadline_us), 0);
}

static void update_due(struct tracker_conn *conn)
{
    struct deadline_heap *heap = &conn->server->deadlines;
    uint64_t due =
        conn->message_due_us < conn->unsent_due_us ? conn->message_due_us : conn->unsent_due_us;

    if (conn->due.index != 0 && conn->due.deadline_us == due)
        return;
    deadline_heap_remove(heap, &conn->due);
    conn->due.deadline_us = due;
    if (due == CLOCK_NEVER)
        return;
    if (!deadline_heap_add(heap, &conn->due))
        tracker_conn_fail(conn, "out of memory");
    else
        tracker_arm_timer(conn->server);
}

static uint64_t from_now(const struct tracker_conn *conn)
{
    return conn->server->timeout_ms > 0 ? clock_deadline_us(conn->server->timeout_ms) : CLOCK_NEVER;
}

static struct tracker_conn *conn_of_due(struct deadline_entry *entry)
{
    return (struct tracker_conn *)((char *)entry - offsetof(struct tracker_conn, due));
}

/* Else the kernel would keep what is unsent for one who does not read it. */
static void reset_on_close(int fd)
{
    static const struct linger now = {.l_onoff = 1};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void tracker_run_deadlines(struct tracker_server *server, uint64_t now_us)
{
    struct deadline_entry *first = deadline_heap_first(&server->deadlines);

    for (; first != NULL && first->deadline_us <= now_us;
         first = deadline_heap_first(&server->deadlines)) {
        struct tracker_conn *conn = conn_of_due(first);
        server->counters.timeouts++;
        if (conn->unsent_due_us <= now_us) {
            tracker_log_seldom(&server->protocol_gate, conn, "reads no answers: closed");
            reset_on_close(conn->fd);
            conn->loss = LOSS_CLOSED;
        } else {
            log_debug("tracker: %s: sent no whole message in time: closed", conn->host);
        }
        tracker_conn_close(conn);
    }
}

/* ---- closing ---- */

void tracker_conn_fail(struct tracker_conn *conn, const char *why)
{
    if (conn->failed || conn->closed)
        return;
    conn->failed = true;
    if (why != NULL) {
        conn->server->counters.protocol_errors++;
        tracker_log_seldom(&conn->server->protocol_gate, conn, why);
    }
    tracker_conn_touch(conn);
}

/* @param error_number  what the system says; 0: it has closed. */
static void lost(struct tracker_conn *conn, int error_number)
{
    if (conn->failed || conn->closed)
        return;
    conn->loss = error_number == ECONNRESET ? LOSS_RESET : LOSS_CLOSED;
    tracker_conn_fail(conn, NULL);
}

/* How much of what was sent has not been acknowledged, or (SIOCOUTQNSD) never left. */
static uint64_t under_way(const struct tracker_conn *conn, unsigned long what)
{
    int bytes = 0;

    if (ioctl(conn->fd, what, &bytes) != 0 || bytes < 0 || (uint64_t)bytes > conn->sent)
        return 0;
    return (uint64_t)bytes;
}

void tracker_conn_note_arrived(struct tracker_conn *conn)
{
    if (conn->owner.given.first != NULL)
        scheduler_arrived(conn->server->scheduler, &conn->owner,
                          conn->sent - under_way(conn, SIOCOUTQ));
}

/* What its other end has for certain not got is free again. */
static void settle_given(struct tracker_conn *conn)
{
    uint64_t arrived = conn->sent;

    if (conn->owner.given.first == NULL)
        return;
    if (conn->server->ending || conn->server->state != SERVER_RUNNING)
        arrived = UINT64_MAX; /* nobody would get it any more */
    else if (conn->loss != LOSS_NONE)
        arrived -= under_way(conn, conn->loss == LOSS_CLOSED ? SIOCOUTQ : SIOCOUTQNSD);
    scheduler_arrived(conn->server->scheduler, &conn->owner, arrived);
}

static void on_closed(uv_handle_t *handle)
{
    mem_free(handle->data);
}

void tracker_conn_close(struct tracker_conn *conn)
{
    struct tracker_server *server = conn->server;

    if (conn->closed)
        return;
    conn->closed = true;
    settle_given(conn);
    scheduler_owner_gone(server->scheduler, &conn->owner, clock_mono_us());
    deadline_heap_remove(&server->deadlines, &conn->due);
    leave_list(server, conn);
    if (conn->is_server)
        server->counters.servers--;
    server->info_bytes -= conn->info_len;
    conn->address->info_bytes -= conn->info_len;
    tracker_address_release(server, conn->address);
    conn->address = NULL;
    conn->owner.account = NULL;
    mem_free(conn->info);
    conn->info = NULL;
    bytes_free(&conn->out);
    tracker_input_free(&conn->input);
    untouch(conn);
    uv_close((uv_handle_t *)&conn->poll, on_closed);
    close(conn->fd);
    conn->fd = -1;
}

bool tracker_make_room(struct tracker_server *server, const char *why)
{
    struct tracker_conn *conn =
        LIST_HOLDER(server->unidentified_conns.first, struct tracker_conn, in_silent);
    char what[128];

    if (conn == NULL ||
        clock_mono_us() < conn->accepted_us + server->greeting_grace_ms * UINT64_C(1000))
        return false;
    snprintf(what, sizeof(what), "closed to make room: %s, and it sent no magic number", why);
    server->counters.timeouts++;
    tracker_log_seldom(&server->refused_gate, conn, what);
    tracker_conn_close(conn);
    return true;
}

/* ---- reading ---- */

static size_t unsent(const struct tracker_conn *conn)
{
    return conn->out.len - conn->out_at;
}

uint64_t tracker_conn_mark(const struct tracker_conn *conn)
{
    return conn->sent + unsent(conn);
}

static void handle_input(struct tracker_conn *conn)
{
    struct skep_error err;
    struct tracker_text message;

    while (!conn->failed) {
        conn->paused = unsent(conn) > conn->server->max_unsent_bytes;
        if (conn->paused)
            break;
        switch (tracker_input_next(&conn->input, TRACKER_MAX_MESSAGE_BYTES, &message, &err)) {
        case TRACKER_INPUT_MORE:
            return;
        case TRACKER_INPUT_GREETING:
            conn->message_due_us = CLOCK_NEVER; /* what follows has a time of its own */
            leave_silent(conn);
            if (!tracker_write_magic(&conn->out))
                tracker_conn_fail(conn, "out of memory");
            break;
        case TRACKER_INPUT_MESSAGE:
            conn->message_due_us = CLOCK_NEVER;
            tracker_handle_message(conn, message);
            break;
        case TRACKER_INPUT_BAD:
            tracker_conn_fail(conn, err.message);
            break;
        }
    }
}

/* After input was handled: what is left is kept, and its end is waited for only so long. */
static void settle_input(struct tracker_conn *conn)
{
    if (!tracker_input_settle(&conn->input)) {
        tracker_conn_fail(conn, "out of memory");
        return;
    }
    if (conn->paused || !tracker_input_is_partial(&conn->input))
        conn->message_due_us = CLOCK_NEVER;
    else if (conn->message_due_us == CLOCK_NEVER)
        conn->message_due_us = from_now(conn);
    update_due(conn);
}

/* Returns whether more may be there. */
static bool read_once(struct tracker_conn *conn)
{
    uint8_t *buffer = conn->server->receive_buffer;
    ssize_t n = recv(conn->fd, buffer, TRACKER_RECEIVE_BYTES, 0);

    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            lost(conn, n == 0 ? 0 : errno);
        return false;
    }
    conn->server->counters.bytes_in += (uint64_t)n;
    if (!tracker_input_push(&conn->input, buffer, (size_t)n)) {
        tracker_conn_fail(conn, "out of memory");
        return false;
    }
    handle_input(conn);
    settle_input(conn);
    return n == TRACKER_RECEIVE_BYTES;
}

static void read_some(struct tracker_conn *conn)
{
    for (int i = 0; i < READS_PER_TURN && !conn->failed && !conn->paused; i++)
        if (!read_once(conn))
            return;
}

bool tracker_conn_is_there(struct tracker_conn *conn)
{
    char byte;

    if (conn->failed || conn->closed)
        return false;
    ssize_t n = recv(conn->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return true;
    lost(conn, n == 0 ? 0 : errno);
    return false;
}

/* ---- sending ---- */

static void send_out(struct tracker_conn *conn)
{
    size_t before = conn->out_at;

    while (unsent(conn) > 0) {
        ssize_t n = send(conn->fd, conn->out.data + conn->out_at, unsent(conn), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            lost(conn, errno);
        if (n <= 0)
            break;
        conn->out_at += (size_t)n;
        conn->sent += (uint64_t)n;
        conn->server->counters.bytes_out += (uint64_t)n;
    }
    if (unsent(conn) == 0) {
        conn->out.len = 0;
        conn->out_at = 0;
        if (conn->out.cap > KEEP_OUT_BYTES)
            bytes_free(&conn->out);
        conn->unsent_due_us = CLOCK_NEVER;
    } else if (conn->out_at > before || conn->unsent_due_us == CLOCK_NEVER) {
        conn->unsent_due_us = from_now(conn);
    }
}

static void watch(struct tracker_conn *conn)
{
    int events = (conn->paused ? 0 : UV_READABLE) | (unsent(conn) > 0 ? UV_WRITABLE : 0);

    if (events == conn->watching)
        return;
    conn->watching = events;
    if (uv_poll_start(&conn->poll, events, on_poll) != 0)
        conn->failed = true;
}

/* What is sent may make room to handle what has been kept. */
static void finish_turn(struct tracker_conn *conn)
{
    do {
        send_out(conn);
        if (!conn->paused || conn->failed || unsent(conn) > conn->server->max_unsent_bytes / 2)
            break;
        handle_input(conn);
        settle_input(conn);
    } while (unsent(conn) > 0);
    if (!conn->failed)
        watch(conn);
    if (!conn->failed && conn->server->state == SERVER_DRAINING && unsent(conn) == 0)
        conn->failed = true;
    if (conn->failed)
        tracker_conn_close(conn);
    else
        update_due(conn);
}

void tracker_flush(struct tracker_server *server)
{
    while (server->dirty.first != NULL) {
        struct tracker_conn *conn = LIST_HOLDER(server->dirty.first, struct tracker_conn, in_dirty);
        untouch(conn);
        finish_turn(conn);
    }
}

static int socket_error(int fd)
{
    int error_number = 0;
    socklen_t len = sizeof(error_number);

    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &len);
    return error_number;
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct tracker_conn *conn = handle->data;

    loop_enter(conn->server->loop);
    if (conn->closed)
        return;
    if (status < 0)
        lost(conn, socket_error(conn->fd));
    else if ((events & UV_READABLE) != 0)
        read_some(conn);
    tracker_conn_touch(conn);
}

void tracker_conn_begin(struct tracker_conn *conn)
{
    enter_list(conn->server, conn);
    settle_input(conn); /* the magic has to come in time */
    watch(conn);
}
