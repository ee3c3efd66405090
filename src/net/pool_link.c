/* One connection of the pool: connecting, carrying calls, ending. */
#include "net/pool_internal.h"
#include "net/peer_clocks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"

enum {
    /* While calls are open, a peer of which nothing has come gets a PING after the first time, and
     * then, as long as it answers, after twice as long up to the second one. */
    QUIET_FIRST_MS = 200,
    QUIET_MOST_MS = 1000,
    /* It is silent if no byte follows within so many of its round trips, within these bounds. A
     * round trip on an idle network says little about a busy one, or a busy machine. */
    SILENCE_ROUND_TRIPS = 8,
    SILENCE_LEAST_MS = 200,
    SILENCE_MOST_MS = 1000,
    /* After so much more, calls that wait try a connection of their own: this one may be dead while
     * the peer lives, as behind a router that has forgotten it. */
    SILENCE_ENDS_MS = 3000,
};

/* Idleness */

static void leave_idle(struct link *link)
{
    struct pool *pool = link->pool;

    if (!link->is_idle)
        return;
    link->is_idle = false;
    list_remove(&pool->idle, &link->in_idle);
    link->conn.due_us = CLOCK_NEVER;
}

static void become_idle(struct link *link)
{
    struct pool *pool = link->pool;

    if (link->is_idle)
        return;
    link->is_idle = true;
    list_append(&pool->idle, &link->in_idle);
    conn_set_due(&link->conn, clock_deadline_us(pool->config.idle_timeout_ms));
}

/* Out of the tables by which calls find it. */
static void detach(struct link *link)
{
    leave_idle(link);
    link->retired = true;
    if (link->peer == NULL)
        return;
    link->peer->link = NULL;
    link->peer = NULL;
}

/* It counts no more among the pool's connections. */
static void uncount(struct link *link)
{
    if (link->counted)
        link->pool->link_count--;
    link->counted = false;
}

void pool_link_close(struct link *link, const struct skep_error *why)
{
    detach(link);
    uncount(link);
    list_remove(&link->pool->links, &link->in_links);
    conn_close(&link->conn, why);
}

void pool_link_retire(struct link *link)
{
    struct skep_error why;

    detach(link);
    if (link->open_calls > 0)
        return;
    error_set(&why, SKEP_UNAVAILABLE, "closed: no more calls are made on it");
    conn_fail(&link->conn, &why);
}

bool pool_make_room(struct pool *pool)
{
    while (pool->link_count >= pool->config.max_connections) {
        struct link *link = LIST_HOLDER(pool->idle.first, struct link, in_idle);
        if (link == NULL)
            return false;
        struct peer *peer = link->peer;
        pool_link_retire(link);
        uncount(link);
        pool_peer_tidy(peer);
    }
    return true;
}

/* Whether the peer is alive */

bool pool_link_is_silent(const struct link *link)
{
    return link->silent && session_last_receive_us(link->conn.session) <= link->asked_us;
}

static void look_again(struct link *link, uint64_t at_us)
{
    link->due_us = at_us;
    conn_set_due(&link->conn, at_us);
}

static uint64_t silence_us(const struct link *link)
{
    uint64_t us = session_rtt_us(link->conn.session) * SILENCE_ROUND_TRIPS;

    if (us < SILENCE_LEAST_MS * 1000)
        return SILENCE_LEAST_MS * 1000;
    return us < SILENCE_MOST_MS * 1000 ? us : SILENCE_MOST_MS * 1000;
}

/* The first call of several: from now on the peer has something to say. */
static void begin_watch(struct link *link, uint64_t now)
{
    link->watched_since_us = now;
    link->quiet_us = QUIET_FIRST_MS * 1000;
    link->asked_us = 0;
    look_again(link, now + link->quiet_us);
}

static void tell_silent(struct link *link)
{
    struct list_link *next;

    for (struct list_link *at = link->calls.first; at != NULL; at = next) {
        next = at->next; /* callers act later, on the loop */
        pool_call_tell(LIST_HOLDER(at, struct pool_call, in_queue), POOL_PEER_SILENT);
    }
}

/* Whether what lay in front of the PING is still on its way: a slow network, not a silent peer. */
static bool is_moving(struct link *link)
{
    uint64_t waiting;
    uint64_t acknowledged = conn_acknowledged(&link->conn, &waiting);
    bool moving = link->backlogged && acknowledged > link->acknowledged;

    link->acknowledged = acknowledged;
    link->backlogged = waiting > 0;
    return moving;
}

static void ask_if_alive(struct link *link, uint64_t now)
{
    is_moving(link); /* what there is before the PING */
    link->backlogged = link->backlogged || session_backlog(link->conn.session) > 0;
    link->asked_us = now;
    link->ping_extended = false;
    session_ping(link->conn.session, now);
    look_again(link, now + silence_us(link));
}

static void judge_silence(struct link *link, uint64_t now)
{
    struct peer *peer = link->peer;
    bool held_up = now - link->due_us > SILENCE_LEAST_MS * 1000 / 2;

    if (is_moving(link) || (held_up && !link->ping_extended)) {
        link->ping_extended = link->ping_extended || held_up;
        look_again(link, now + silence_us(link));
    } else if (!link->silent) {
        link->silent = true;
        log_debug("%s: silent: a PING was unanswered for %u ms", link->name,
                  (unsigned)((now - link->asked_us) / 1000));
        look_again(link, now + SILENCE_ENDS_MS * 1000);
        tell_silent(link);
    } else if (peer != NULL) {
        pool_link_retire(link); /* its calls go on */
        pool_peer_pump(peer);
    }
}

static void look_at_peer(struct link *link)
{
    uint64_t now = clock_mono_us();
    uint64_t heard = session_last_receive_us(link->conn.session);

    if (link->asked_us != 0 && heard > link->asked_us) {
        link->asked_us = 0;
        link->silent = false;
        link->quiet_us =
            link->quiet_us * 2 < QUIET_MOST_MS * 1000 ? link->quiet_us * 2 : QUIET_MOST_MS * 1000;
    }
    if (link->asked_us != 0) {
        judge_silence(link, now);
        return;
    }
    uint64_t since = heard > link->watched_since_us ? heard : link->watched_since_us;
    if (now < since + link->quiet_us)
        look_again(link, since + link->quiet_us);
    else
        ask_if_alive(link, now);
}

static void on_pong(void *arg)
{
    struct link *link = arg;

    if (!link->silent)
        return;
    link->silent = false;
    if (link->peer != NULL)
        pool_peer_pump(link->peer);
}

/* Session events */

static void on_established(void *arg, const struct session_peer *who)
{
    struct link *link = arg;
    struct peer *peer = link->peer;

    link->established = true;
    if (who->time_ms != 0)
        peer_clocks_note(who->peer_id, who->time_ms);
    if (peer == NULL)
        return;
    atomic_store_explicit(&peer->rtt_us, session_rtt_us(link->conn.session), memory_order_relaxed);
    pool_dial_succeeded(peer);
    pool_peer_pump(peer); /* the peer may be gone now */
    if (link->peer != NULL && link->open_calls == 0)
        become_idle(link);
}

/* The connection was lost, or went out of use, before any of the call left: the call starts over on
 * a fresh one. Where we get little of the processor, that one may have been closed as idle by the
 * time that we hear of it. */
static bool retry(struct link *link, struct pool_call *call, bool sent,
                  const struct skep_error *why)
{
    if (sent || call->retries == POOL_MAX_RETRIES || why->status != SKEP_UNAVAILABLE ||
        atomic_load(&link->pool->stopping))
        return false;
    if (!link->retired)
        pool_link_retire(link);
    struct peer *peer = pool_peer_get(link->pool, &call->target);
    if (peer == NULL)
        return false;
    call->retries++;
    pool_peer_submit(peer, call);
    return true;
}

static void after_call(struct link *link)
{
    struct peer *peer = link->peer; /* not NULL until the link retires */

    if (link->retired) {
        pool_link_retire(link); /* ends it if that was the last call */
        return;
    }
    if (link->open_calls == 0 && pool_link_is_silent(link)) { /* nobody watches it any more */
        pool_link_retire(link);
        pool_peer_pump(peer);
        return;
    }
    atomic_store_explicit(&peer->rtt_us, session_rtt_us(link->conn.session), memory_order_relaxed);
    pool_peer_pump(peer); /* the peer may be gone now */
    if (link->peer != NULL && link->open_calls == 0)
        become_idle(link);
}

static void on_call_done(void *arg, struct session_stream *stream, void *user,
                         const struct reply_headers *reply, DLManagedTensor **tensors, bool sent,
                         const struct skep_error *err)
{
    struct link *link = arg;
    struct pool_call *call = user;

    (void)stream;
    call->link = NULL;
    call->stream = NULL;
    link->open_calls--;
    list_remove(&link->calls, &call->in_queue);
    if (reply != NULL)
        pool_decode_reply(call, reply, tensors, sent);
    else if (!retry(link, call, sent, err))
        pool_call_finish(call, NULL, NULL, sent, err);
    after_call(link);
}

static void on_goaway(void *arg, const char *reason)
{
    struct link *link = arg;
    struct peer *peer = link->peer;

    log_debug("%s: takes no more calls: %s", link->name, reason);
    if (peer == NULL)
        return;
    pool_link_retire(link);
    pool_peer_pump(peer);
}

static const struct session_events session_events = {
    .established = on_established,
    .call_done = on_call_done,
    .goaway = on_goaway,
    .pong = on_pong,
};

/* Calls */

/* What is encoded goes as it was to a peer that does not take it so. */
static void choose_tensors(const struct link *link, struct pool_call *call,
                           const DLTensor *tensors[static MESSAGE_MAX_TENSORS])
{
    uint64_t features = session_peer(link->conn.session)->features;

    for (size_t i = 0; i < call->headers.tensor_count; i++) {
        tensors[i] = &call->tensors[i].tensor;
        if (call->choices == NULL)
            continue;
        const struct pool_choice *choice = &call->choices[i];
        bool taken = hello_takes_encoding(features, choice->encoded.encoding);
        call->headers.tensors[i] = taken ? choice->encoded : choice->plain;
        if (!taken)
            tensors[i] = &choice->plain_tensor.tensor;
    }
}

skep_status pool_link_call(struct link *link, struct pool_call *call, struct skep_error *err)
{
    const DLTensor *tensors[MESSAGE_MAX_TENSORS];
    uint64_t now = clock_mono_us();

    choose_tensors(link, call, tensors);
    if (call->deadline.deadline_us != CLOCK_NEVER) {
        uint64_t left = clock_left_ms(call->deadline.deadline_us);
        call->headers.timeout_ms = left > 0 ? left : 1; /* 0 would say "none" */
    }
    /* Set before: the call might end inside session_call(). */
    call->state = CALL_OPEN;
    call->link = link;
    link->open_calls++;
    list_append(&link->calls, &call->in_queue);
    skep_status rc =
        session_call(link->conn.session, &call->headers, tensors, call, &call->stream, err);
    if (rc != SKEP_OK) {
        call->state = CALL_NEW;
        call->link = NULL;
        link->open_calls--;
        list_remove(&link->calls, &call->in_queue);
        return rc;
    }
    leave_idle(link);
    if (link->open_calls == 1)
        begin_watch(link, now);
    conn_touch(&link->conn);
    return SKEP_OK;
}

void pool_link_cancel(struct link *link, struct pool_call *call, const struct skep_error *why)
{
    conn_touch(&link->conn);
    session_cancel(link->conn.session, call->stream, why); /* on_call_done() runs inside */
}

/* Socket events */

static void on_connected(void *arg)
{
    struct link *link = arg;
    const struct pool_config *config = &link->pool->config;
    struct session *session;
    struct skep_error err;

    if (session_new(&link->config, &session_events, link, clock_mono_us(), &session, &err) !=
        SKEP_OK) {
        conn_fail(&link->conn, &err);
        return;
    }
    conn_attach(&link->conn, session, config->limits.stall_timeout_ms);
    conn_set_due(&link->conn, CLOCK_NEVER); /* from here the session's own time limit counts */
}

/* In the words of someone who asks why there is no connection. */
static void explain_attempt(const struct link *link, struct skep_error *err)
{
    if (link->conn.session == NULL)
        return;
    if (err->status == SKEP_DATA_LOSS)
        error_prefix(err, "not a Skep endpoint");
    else if (err->status == SKEP_UNAVAILABLE)
        error_prefix(err, "no handshake (not a Skep endpoint, or it refuses this side)");
    else if (err->status ==
             SKEP_DEADLINE_EXCEEDED) /* a node that is stopped is still connected to */
        error_prefix(err, "no handshake (it hangs or is overloaded, is not a Skep endpoint, or "
                          "refuses this side)");
}

static void on_attempt_lost(struct link *link, const struct skep_error *why)
{
    struct peer *peer = link->peer;
    struct skep_error err = *why;

    explain_attempt(link, &err);
    if (err.status != SKEP_UNAUTHENTICATED && err.status != SKEP_RESOURCE_EXHAUSTED)
        err.status = SKEP_UNAVAILABLE;
    error_prefix(&err, "%s", link->name);
    pool_link_close(link, &err);
    if (peer != NULL)
        pool_dial_failed(peer, &err);
}

static void on_lost(void *arg, const struct skep_error *why)
{
    struct link *link = arg;
    struct peer *peer = link->peer;
    struct skep_error err = *why;

    if (!link->established) {
        on_attempt_lost(link, why);
        return;
    }
    error_prefix(&err, "%s", link->name);
    if (err.status != SKEP_RESOURCE_EXHAUSTED)
        err.status = SKEP_UNAVAILABLE;
    /* First those that wait, then those it carried: some of these may start over, and must find
     * the peer without this connection. */
    detach(link);
    if (peer != NULL)
        pool_peer_pump(peer);
    pool_link_close(link, &err);
}

static void on_due(void *arg)
{
    struct link *link = arg;
    struct peer *peer = link->peer;
    struct skep_error why;

    if (!link->established) {
        error_set(&why, SKEP_UNAVAILABLE, "cannot connect: no answer in %u ms",
                  (unsigned)link->pool->config.connect_timeout_ms);
        on_attempt_lost(link, &why);
    } else if (link->is_idle) {
        error_set(&why, SKEP_UNAVAILABLE, "%s: closed: unused for %u ms", link->name,
                  (unsigned)link->pool->config.idle_timeout_ms);
        pool_link_close(link, &why);
        pool_peer_tidy(peer);
    } else if (link->open_calls > 0) {
        look_at_peer(link);
    }
}

static void on_released(void *arg)
{
    mem_free(arg);
}

static const struct conn_events conn_events = {
    .connected = on_connected,
    .lost = on_lost,
    .due = on_due,
    .released = on_released,
};

/* Opening */

static void set_name(struct link *link, const struct endpoint *endpoint,
                     const struct address *address)
{
    char text[ENDPOINT_TEXT_BYTES];
    struct endpoint numeric;

    endpoint_from_address(&numeric, (const struct sockaddr *)&address->sa);
    endpoint_format(endpoint, text);
    if (endpoint_equal(endpoint, &numeric))
        snprintf(link->name, sizeof(link->name), "%s", text);
    else
        snprintf(link->name, sizeof(link->name), "%s (%.48s)", text, numeric.host);
}

static skep_status start_connect(const struct address *address, int *out, struct skep_error *err)
{
    int fd = socket(address->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return error_set(err, SKEP_UNAVAILABLE, "cannot make a socket: %s", strerror(errno));
    fd = fd_move_high(fd);
    conn_tune_socket(fd);
    if (connect(fd, (const struct sockaddr *)&address->sa, address->len) != 0 &&
        errno != EINPROGRESS && errno != EINTR) {
        error_set(err, SKEP_UNAVAILABLE, "cannot connect: %s", strerror(errno));
        close(fd);
        return SKEP_UNAVAILABLE;
    }
    *out = fd;
    return SKEP_OK;
}

static void set_config(struct link *link, const struct pool_target *target)
{
    const struct pool_config *config = &link->pool->config;

    link->config = (struct session_config){
        .initiator = true,
        .identity = config->identity,
        .psk = config->psk,
        .plaintext = config->plaintext,
        .cipher = target->aes_gcm && noise_cipher_available(NOISE_AESGCM) ? NOISE_AESGCM
                                                                          : NOISE_CHACHAPOLY,
        .swarm = config->swarm,
        .limits = &config->limits,
        .wall_ms = clock_wall_ms,
    };
    if (target->has_peer_id) {
        memcpy(link->expected_id, target->peer_id, PEER_ID_BYTES);
        link->config.expected_peer_id = link->expected_id;
    }
}

skep_status pool_link_open(struct peer *peer, const struct pool_target *target,
                           const struct endpoint *endpoint, const struct address *address,
                           struct link **out, struct skep_error *err)
{
    struct pool *pool = peer->pool;
    int fd = -1;
    skep_status rc;
    struct link *link = mem_calloc(1, sizeof(*link));

    if (link == NULL)
        return error_no_memory(err, "connection", sizeof(*link));
    link->pool = pool;
    set_name(link, endpoint, address);
    set_config(link, target);
    if (!pool_make_room(pool)) {
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "max_connections: %u are open and in use",
                       pool->config.max_connections);
        goto fail;
    }
    rc = start_connect(address, &fd, err);
    if (rc != SKEP_OK)
        goto fail;
    rc = conn_open(&link->conn, &pool->group, fd, true, &conn_events, link, err);
    if (rc != SKEP_OK)
        goto fail;
    link->peer = peer;
    list_prepend(&pool->links, &link->in_links);
    link->counted = true;
    pool->link_count++;
    conn_set_due(&link->conn, clock_deadline_us(pool->config.connect_timeout_ms));
    *out = link;
    return SKEP_OK;

fail:
    error_prefix(err, "%s", link->name);
    if (fd >= 0)
        close(fd);
    mem_free(link);
    return rc;
}
