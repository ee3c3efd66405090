/* A session on a socket: reading, sending, timing. What it is used for is its owner's business. */
#include "net/conn.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"

enum {
    /* Several whole messages share a send, and it still fits the second-level cache. */
    CONN_SCRATCH_BYTES = 256 * 1024,
    SESSION_SEND_MIN_BYTES = 70000, /* session_send()'s least cap */
    /*
     * One connection's share of a turn for receiving, and the same for sending, after a first full
     * buffer each: so a large transfer does not hold up small calls. In time, since a buffer costs
     * from 10 us (plaintext, in the cache) to 200 us (encrypted, into fresh memory).
     */
    TURN_US = 200,
    FULL_BYTES = CONN_SCRATCH_BYTES / 2, /* so much to send at once: more is likely to follow */
    MAX_DISCARDS = 64,
};

static void on_poll(uv_poll_t *handle, int status, int events);
static void run_dirty(struct loop_hook *hook);
static enum loop_poll poll_latest(struct loop_hook *hook);

skep_status conn_group_init(struct conn_group *group, struct loop *loop, struct skep_error *err)
{
    *group = (struct conn_group){.loop = loop, .hook = {.run = run_dirty, .poll = poll_latest}};
    group->scratch = mem_alloc(CONN_SCRATCH_BYTES);
    if (group->scratch == NULL) {
        group->loop = NULL;
        return error_no_memory(err, "send buffer", CONN_SCRATCH_BYTES);
    }
    loop_add_hook(loop, &group->hook);
    return SKEP_OK;
}

void conn_group_fini(struct conn_group *group)
{
    if (group->loop == NULL)
        return;
    assert(group->dirty.first == NULL);
    loop_remove_hook(group->loop, &group->hook);
    mem_free(group->scratch);
    group->scratch = NULL;
    group->loop = NULL;
}

/* One writer, so a plain load and store do; atomic because other threads read it. */
static void count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

void conn_tune_socket(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

static void unlink_dirty(struct conn *conn)
{
    if (!conn->is_dirty)
        return;
    conn->is_dirty = false;
    list_remove(&conn->group->dirty, &conn->in_dirty);
}

void conn_touch(struct conn *conn)
{
    if (conn->is_dirty || conn->closing)
        return;
    conn->is_dirty = true;
    list_prepend(&conn->group->dirty, &conn->in_dirty);
}

static void watch(struct conn *conn, int events)
{
    if (conn->watching == events)
        return;
    conn->watching = events;
    if (events == 0)
        uv_poll_stop(&conn->poll);
    else
        uv_poll_start(&conn->poll, events, on_poll);
}

void conn_fail(struct conn *conn, const struct skep_error *why)
{
    if (conn->failed || conn->closing)
        return;
    conn->failed = true;
    conn->why = mem_alloc(sizeof(*conn->why));
    if (conn->why != NULL)
        *conn->why = *why;
    conn_touch(conn);
}

static void fail_errno(struct conn *conn, const char *doing, int error_number)
{
    struct skep_error err;

    if (error_number == ECONNRESET || error_number == EPIPE)
        error_set(&err, SKEP_UNAVAILABLE, "connection lost: the peer reset it");
    else
        error_set(&err, SKEP_UNAVAILABLE, "connection lost: %s: %s", doing, strerror(error_number));
    conn_fail(conn, &err);
}

/* Reading */

enum read_result {
    READ_NOTHING, /* there is nothing at present, or never will be */
    READ_ALL,     /* all that was there */
    READ_PART,    /* more may be there */
};

static enum read_result read_once(struct conn *conn)
{
    uint8_t *data;
    size_t cap;
    struct skep_error err;

    session_receive_buffer(conn->session, &data, &cap);
    ssize_t n = recv(conn->fd, data, cap, 0);
    if (n > 0) {
        count(&conn->group->bytes_in, (uint64_t)n);
        if (session_received(conn->session, (size_t)n, clock_mono_us(), &err) != SKEP_OK)
            conn_fail(conn, &err);
        conn->group->latest = conn;
        return !conn->failed && (size_t)n == cap ? READ_PART : READ_ALL;
    }
    if (n == 0) {
        error_set(&err, SKEP_UNAVAILABLE, "connection lost: the peer closed it");
        conn_fail(conn, &err);
    } else if (errno == EINTR) {
        return READ_PART;
    } else if (errno != EAGAIN) {
        fail_errno(conn, "receiving", errno);
    }
    return READ_NOTHING;
}

/* Whether the share of a turn is used up that began at the first question (*end_us is 0 before it).
 * Only asked once a buffer was full: small messages pay for no clock. */
static bool share_is_used(uint64_t *end_us)
{
    uint64_t now_us = clock_mono_us();

    if (*end_us == 0)
        *end_us = now_us + TURN_US;
    return now_us >= *end_us;
}

static void read_some(struct conn *conn)
{
    uint64_t end_us = 0;

    /* What is left makes the socket readable again in the loop's next turn. */
    while (read_once(conn) == READ_PART)
        if (share_is_used(&end_us))
            return;
}

/* Whoever was served last is the likeliest to send next. A connection that has bytes to send waits
 * for its socket, which only the loop's poll can see. */
static enum loop_poll poll_latest(struct loop_hook *hook)
{
    struct conn_group *group =
        (struct conn_group *)((char *)hook - offsetof(struct conn_group, hook));
    struct conn *conn = group->latest;

    if (conn == NULL || conn->failed || conn->watching != UV_READABLE)
        return LOOP_POLL_IDLE;
    if (read_once(conn) == READ_NOTHING && !conn->failed)
        return LOOP_POLL_EMPTY;
    conn_touch(conn);
    return LOOP_POLL_DONE;
}

/* The socket is broken: what came before that is still worth having (a reply, a reason). */
static void read_rest(struct conn *conn)
{
    conn->watching = 0; /* libuv has stopped watching by itself */
    if (conn->session != NULL)
        while (!conn->failed)
            if (read_once(conn) != READ_PART && !conn->failed)
                break;
    if (!conn->failed) {
        int error_number = 0;
        socklen_t len = sizeof(error_number);

        getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error_number, &len);
        fail_errno(conn, "socket error", error_number != 0 ? error_number : ECONNRESET);
    }
}

static void finish_connect(struct conn *conn)
{
    int error_number = 0;
    socklen_t len = sizeof(error_number);
    struct skep_error err;

    getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error_number, &len);
    if (error_number != 0) {
        error_set(&err, SKEP_UNAVAILABLE, "cannot connect: %s", strerror(error_number));
        conn_fail(conn, &err);
        return;
    }
    conn->connecting = false;
    conn->events->connected(conn->arg);
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct conn *conn = handle->data;

    loop_enter(conn->group->loop);
    if (conn->failed) {
        if (status < 0)
            conn->watching = 0;
    } else if (conn->connecting) {
        if (status < 0)
            conn->watching = 0;
        finish_connect(conn);
        if (conn->session != NULL && !conn->failed)
            watch(conn, UV_READABLE);
    } else if (status < 0) {
        read_rest(conn);
    } else if ((events & (UV_READABLE | UV_DISCONNECT)) != 0) {
        read_some(conn);
    }
    conn_touch(conn);
}

/* Sending */

static void drop_unsent(struct conn *conn)
{
    if (conn->unsent == NULL)
        return;
    mem_free(conn->unsent);
    conn->unsent = NULL;
    conn->unsent_at = 0;
    conn->unsent_end = 0;
    atomic_fetch_sub(&conn->group->unsent, 1);
    if (conn->group->settled != NULL)
        conn->group->settled(conn->group->settled_arg);
}

/* How many bytes the socket took; fewer than len if it is full or broken. */
static size_t send_bytes(struct conn *conn, const uint8_t *data, size_t len)
{
    ssize_t n;

    do
        n = send(conn->fd, data, len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n >= 0) {
        count(&conn->group->bytes_out, (uint64_t)n);
        conn->sent_bytes += (uint64_t)n;
        return (size_t)n;
    }
    if (errno == EAGAIN)
        return 0;
    conn->send_broken = true;
    /* A peer that has gone: reading will find out, after what is still to be read. Of anything else
     * (no buffers, say) reading might never hear. */
    if (errno != EPIPE && errno != ECONNRESET)
        fail_errno(conn, "sending", errno);
    return 0;
}

/* Returns whether nothing is left of what an earlier turn could not send. */
static bool send_unsent(struct conn *conn)
{
    if (conn->unsent == NULL)
        return true;
    size_t n = send_bytes(conn, conn->unsent + conn->unsent_at, conn->unsent_end - conn->unsent_at);
    conn->unsent_at += n;
    if (n > 0)
        conn->unsent_since_us = clock_mono_us();
    if (conn->unsent_at < conn->unsent_end && !conn->send_broken)
        return false;
    drop_unsent(conn);
    return !conn->send_broken;
}

uint64_t conn_acknowledged(const struct conn *conn, uint64_t *waiting)
{
    int queued = 0;

    if (ioctl(conn->fd, SIOCOUTQ, &queued) != 0 || queued < 0)
        queued = 0;
    *waiting = (uint64_t)queued + (conn->unsent_end - conn->unsent_at);
    return conn->sent_bytes - (uint64_t)queued;
}

static size_t fill_scratch(struct conn *conn)
{
    uint8_t *scratch = conn->group->scratch;
    size_t len = 0;

    while (CONN_SCRATCH_BYTES - len >= SESSION_SEND_MIN_BYTES) {
        size_t n =
            session_send(conn->session, scratch + len, CONN_SCRATCH_BYTES - len, clock_mono_us());
        if (n == 0)
            break;
        len += n;
    }
    return len;
}

static void keep_unsent(struct conn *conn, const uint8_t *data, size_t len)
{
    struct skep_error err;

    conn->unsent = mem_alloc(len);
    if (conn->unsent == NULL) {
        error_no_memory(&err, "bytes to send", len);
        conn_fail(conn, &err);
        return;
    }
    memcpy(conn->unsent, data, len);
    conn->unsent_at = 0;
    conn->unsent_end = len;
    conn->unsent_since_us = clock_mono_us();
    atomic_fetch_add(&conn->group->unsent, 1);
}

enum send_result {
    ALL_SENT,
    MORE_TO_SEND, /* the turn's share is used up, or the socket is full */
};

static enum send_result send_due(struct conn *conn)
{
    if (conn->send_broken)
        return ALL_SENT;
    if (!send_unsent(conn))
        return conn->send_broken ? ALL_SENT : MORE_TO_SEND;
    uint64_t end_us = 0;
    size_t len;

    while ((len = fill_scratch(conn)) > 0) {
        size_t n = send_bytes(conn, conn->group->scratch, len);
        if (conn->send_broken)
            return ALL_SENT;
        if (n < len) {
            keep_unsent(conn, conn->group->scratch + n, len - n);
            return MORE_TO_SEND;
        }
        if (len >= FULL_BYTES && share_is_used(&end_us))
            return MORE_TO_SEND;
    }
    return ALL_SENT;
}

/* Timing */

static uint64_t next_due(const struct conn *conn)
{
    uint64_t due = conn->due_us;

    if (conn->session != NULL) {
        uint64_t tick = session_next_tick(conn->session);
        if (tick < due)
            due = tick;
    }
    if (conn->unsent != NULL && conn->stall_timeout_ms > 0) {
        uint64_t stall = conn->unsent_since_us + conn->stall_timeout_ms * UINT64_C(1000);
        if (stall < due)
            due = stall;
    }
    return due;
}

static void on_timer(uv_timer_t *timer);

/* A time that has moved away leaves the timer alone: the busy connection touches no timer at all,
 * and each idle one fires now and then only to be armed again. */
static void arm(struct conn *conn)
{
    uint64_t due = next_due(conn);

    if (due >= conn->armed_us)
        return;
    conn->armed_us = due;
    uv_timer_start(&conn->timer, on_timer, clock_left_ms(due), 0);
}

static void check_stall(struct conn *conn, uint64_t now_us)
{
    struct skep_error err;

    if (conn->unsent == NULL || conn->stall_timeout_ms == 0 ||
        now_us < conn->unsent_since_us + conn->stall_timeout_ms * UINT64_C(1000))
        return;
    error_set(&err, SKEP_UNAVAILABLE, "connection lost: the peer has read nothing for %u ms",
              (unsigned)conn->stall_timeout_ms);
    conn_fail(conn, &err);
}

static void on_timer(uv_timer_t *timer)
{
    struct conn *conn = timer->data;
    uint64_t now = clock_mono_us();
    struct skep_error err;

    conn->armed_us = CLOCK_NEVER;
    if (conn->failed)
        return;
    if (conn->session != NULL && session_next_tick(conn->session) <= now &&
        session_tick(conn->session, now, &err) != SKEP_OK)
        conn_fail(conn, &err);
    check_stall(conn, now);
    conn_touch(conn);
    if (!conn->failed && conn->due_us <= now) {
        conn->due_us = CLOCK_NEVER;
        conn->events->due(conn->arg); /* last: may close the connection */
    }
}

void conn_set_due(struct conn *conn, uint64_t due_us)
{
    conn->due_us = due_us;
    conn_touch(conn);
}

/* The end of a turn */

static void lose(struct conn *conn)
{
    struct skep_error why = {
        .status = SKEP_UNAVAILABLE,
        .message = "connection lost: out of memory",
    };

    if (conn->session != NULL && !conn->connecting)
        (void)send_due(conn); /* a GOAWAY with the reason, if the peer takes it */
    if (conn->why != NULL)
        why = *conn->why;
    conn->events->lost(conn->arg, &why);
}

static void end_turn(struct conn *conn)
{
    if (!conn->failed && conn->session != NULL) {
        bool more = send_due(conn) == MORE_TO_SEND;

        /* watching is 0 after a socket error: then `failed` is set as well. */
        if (!conn->failed)
            watch(conn, more ? UV_READABLE | UV_WRITABLE : UV_READABLE);
    }
    if (conn->failed)
        lose(conn);
    else
        arm(conn);
}

bool conn_send_borrowed(struct conn *conn)
{
    bool all_sent = !conn->failed && send_due(conn) == ALL_SENT;
    /* Watching and timing are libuv's, whose functions are the loop's thread's alone. */
    bool settled = all_sent && !conn->failed && conn->watching == UV_READABLE &&
                   next_due(conn) >= conn->armed_us;

    if (settled)
        unlink_dirty(conn);
    else
        conn_touch(conn);
    return settled;
}

static void run_dirty(struct loop_hook *hook)
{
    struct conn_group *group =
        (struct conn_group *)((char *)hook - offsetof(struct conn_group, hook));

    /* Sending can make others dirty (an answered call frees what another one waits for). */
    while (group->dirty.first != NULL) {
        struct conn *conn = LIST_HOLDER(group->dirty.first, struct conn, in_dirty);

        unlink_dirty(conn);
        end_turn(conn);
    }
}

/* Opening and closing */

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *conn = handle->data;

    if (--conn->open_handles == 0)
        conn->events->released(conn->arg);
}

skep_status conn_open(struct conn *conn, struct conn_group *group, int fd, bool connecting,
                      const struct conn_events *events, void *arg, struct skep_error *err)
{
    *conn = (struct conn){
        .group = group,
        .events = events,
        .arg = arg,
        .fd = fd,
        .connecting = connecting,
        .due_us = CLOCK_NEVER,
        .armed_us = CLOCK_NEVER,
    };
    int rc = uv_poll_init(loop_uv(group->loop), &conn->poll, fd);
    if (rc != 0)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "cannot watch a socket: %s",
                         uv_strerror(rc));
    uv_timer_init(loop_uv(group->loop), &conn->timer);
    conn->poll.data = conn;
    conn->timer.data = conn;
    conn->open_handles = 2;
    watch(conn, connecting ? UV_WRITABLE : UV_READABLE);
    return SKEP_OK;
}

void conn_attach(struct conn *conn, struct session *session, uint32_t stall_timeout_ms)
{
    conn->session = session;
    conn->stall_timeout_ms = stall_timeout_ms;
    conn_touch(conn);
}

/* Closing a socket with unread bytes makes the kernel send a reset, which would overtake the last
 * words just sent. */
static void discard_input(struct conn *conn)
{
    shutdown(conn->fd, SHUT_WR);
    for (int i = 0; i < MAX_DISCARDS; i++)
        if (recv(conn->fd, conn->group->scratch, CONN_SCRATCH_BYTES, 0) <= 0)
            return;
}

void conn_close(struct conn *conn, const struct skep_error *why)
{
    if (conn->closing)
        return;
    unlink_dirty(conn);
    conn->closing = true;
    if (conn->group->latest == conn)
        conn->group->latest = NULL;
    if (conn->session != NULL) {
        session_free(conn->session, why);
        conn->session = NULL;
        discard_input(conn);
    }
    uv_close((uv_handle_t *)&conn->poll, on_handle_closed);
    uv_close((uv_handle_t *)&conn->timer, on_handle_closed);
    close(conn->fd);
    conn->fd = -1;
    drop_unsent(conn);
    mem_free(conn->why);
    conn->why = NULL;
}
