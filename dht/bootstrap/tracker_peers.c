/*
 * The client's side of code 100, with plain sockets: one short exchange, once in a while. The
 * stream's messages are those of wire/tracker_frame.h.
 */
#include "dht/bootstrap/tracker_peers.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "wire/tracker_frame.h"

enum {
    RECEIVE_BYTES = 4096,
    MAX_ANSWER_BYTES = 65536, /* a few dozen addresses take 2 KB */
    MAX_PEERS_READ = 256,
};

/* ---- the exchange ---- */

static skep_status wait_for(int fd, short events, const struct tracker_peers_wait *limit,
                            struct skep_error *err)
{
    struct pollfd p[] = {{.fd = fd, .events = events}, {.fd = limit->stop_fd, .events = POLLIN}};

    for (;;) {
        uint64_t left_ms = clock_left_ms(limit->deadline_us);
        int n = poll(p, 2, left_ms > INT32_MAX ? INT32_MAX : (int)left_ms);
        if (n > 0 && p[1].revents != 0)
            return error_set(err, SKEP_CANCELLED, "not waited for any longer");
        if (n > 0)
            return SKEP_OK;
        if (n < 0 && errno != EINTR)
            return error_set(err, SKEP_INTERNAL, "poll: %s", strerror(errno));
        if (left_ms == 0)
            return error_set(err, SKEP_DEADLINE_EXCEEDED, "no answer in time");
    }
}

static skep_status dial(const struct address *a, const struct tracker_peers_wait *limit, int *out,
                        struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    int failure = 0;
    socklen_t len = sizeof(failure);
    int fd = fd_move_high(
        socket(a->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));

    if (fd < 0)
        return error_set(err, status_from_errno(errno), "socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)&a->sa, a->len) != 0) {
        failure = errno;
        if (failure == EINPROGRESS) {
            rc = wait_for(fd, POLLOUT, limit, err);
            if (rc == SKEP_OK && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &len) != 0)
                failure = errno;
        }
        if (rc == SKEP_OK && failure != 0)
            rc = error_set(err, SKEP_UNAVAILABLE, "cannot connect: %s", strerror(failure));
    }
    if (rc == SKEP_OK)
        *out = fd;
    else
        close(fd);
    return rc;
}

/* After a call that has moved no byte, and set errno. */
static skep_status wait_after(int fd, short events, const struct tracker_peers_wait *limit,
                              struct skep_error *err)
{
    if (errno != EAGAIN && errno != EINTR)
        return error_set(err, SKEP_UNAVAILABLE, "connection lost: %s", strerror(errno));
    return wait_for(fd, events, limit, err);
}

static skep_status send_all(int fd, const uint8_t *data, size_t len,
                            const struct tracker_peers_wait *limit, struct skep_error *err)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            len -= (size_t)n;
            continue;
        }
        skep_status rc = wait_after(fd, POLLOUT, limit, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* What comes next. @param chunk  holds it until the next call. */
static skep_status receive(int fd, uint8_t chunk[static RECEIVE_BYTES],
                           const struct tracker_peers_wait *limit, size_t *len,
                           struct skep_error *err)
{
    for (;;) {
        ssize_t n = recv(fd, chunk, RECEIVE_BYTES, 0);
        if (n == 0)
            return error_set(err, SKEP_DATA_LOSS,
                             "it closed the connection: not a tracker, or one without a DHT");
        if (n > 0) {
            *len = (size_t)n;
            return SKEP_OK;
        }
        skep_status rc = wait_after(fd, POLLIN, limit, err);
        if (rc != SKEP_OK)
            return rc;
    }
}

static skep_status ask_question(int fd, const struct tracker_peers_wait *limit,
                                struct skep_error *err)
{
    static const char question[] = "[100]";
    struct bytes out = {0};
    skep_status rc = SKEP_OK;

    if (!tracker_write_magic(&out) || !tracker_write_message(&out, question, sizeof(question) - 1))
        rc = error_no_memory(err, "question to a tracker", sizeof(question));
    else
        rc = send_all(fd, out.data, out.len, limit, err);
    bytes_free(&out);
    return rc;
}

/* @param more  whether the message is not whole yet; the greeting is passed over. */
static skep_status next_message(struct tracker_input *in, struct tracker_text *message, bool *more,
                                struct skep_error *err)
{
    enum tracker_input_result result;

    do
        result = tracker_input_next(in, MAX_ANSWER_BYTES, message, err);
    while (result == TRACKER_INPUT_GREETING);
    *more = result == TRACKER_INPUT_MORE;
    if (result != TRACKER_INPUT_BAD)
        return SKEP_OK;
    return in->greeted ? SKEP_DATA_LOSS
                       : error_set(err, SKEP_DATA_LOSS, "what answers there is not a tracker");
}

/* ---- the answer ---- */

static void add(const struct address *a, struct tracker_peers *out)
{
    if (out->count < out->cap)
        out->addresses[out->count++] = *a;
}

static void add_peers(const json_t *list, const struct address *at, struct tracker_peers *out)
{
    struct endpoint tracker;

    endpoint_from_address(&tracker, (const struct sockaddr *)&at->sa);
    for (size_t i = 0; i < json_array_size(list) && i < MAX_PEERS_READ; i++) {
        const char *text = json_string_value(json_array_get(list, i));
        struct endpoint e;
        struct address a;
        /* Numeric only: a tracker must not make us ask the DNS for names of its choice. */
        if (text == NULL || endpoint_parse(&e, text, false, NULL) != SKEP_OK ||
            !endpoint_is_usable(&e) || !endpoint_to_address(&e, &a))
            continue;
        if (!endpoint_is_loopback(&e) || endpoint_is_loopback(&tracker))
            add(&a, out);
    }
}

/* The tracker's own DHT peer: its port at the address where we reached the tracker. */
static bool own_peer(const json_t *port, const struct address *at, struct address *out)
{
    struct endpoint e;

    if (!json_is_integer(port) || json_integer_value(port) < 1 ||
        json_integer_value(port) > UINT16_MAX)
        return false;
    endpoint_from_address(&e, (const struct sockaddr *)&at->sa);
    e.port = (uint16_t)json_integer_value(port);
    return endpoint_to_address(&e, out);
}

static skep_status read_facts(const json_t *facts, uint32_t network_id, const struct address *at,
                              struct tracker_peers *out, struct skep_error *err)
{
    const json_t *network = json_object_get(facts, "network");
    struct address own;

    if (!json_is_integer(network))
        return error_set(err, SKEP_DATA_LOSS, "its answer names no network");
    if (json_integer_value(network) != (json_int_t)network_id)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "it is of another swarm (another name, or another swarm key)");
    if (own_peer(json_object_get(facts, "dht_port"), at, &own))
        add(&own, out);
    add_peers(json_object_get(facts, "peers"), at, out);
    return out->count > 0 ? SKEP_OK : error_set(err, SKEP_NOT_FOUND, "it names no DHT peer");
}

skep_status tracker_peers_parse(struct tracker_text answer, uint32_t network_id,
                                const struct address *at, struct tracker_peers *out,
                                struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    json_t *root = json_loadb(answer.data, answer.len, 0, NULL);
    const json_t *code = json_array_get(root, 0);

    out->count = 0;
    if (!json_is_integer(code))
        rc = error_set(err, SKEP_DATA_LOSS, "its answer is not a tracker's");
    else if (json_integer_value(code) != TRACKER_SUCCESS)
        rc = error_set(err, SKEP_NOT_FOUND, "it takes no part in a DHT");
    else
        rc = read_facts(json_array_get(root, 1), network_id, at, out, err);
    json_decref(root);
    return rc;
}

/* ---- one tracker after the other ---- */

static skep_status read_answer(int fd, const struct address *at, uint32_t network_id,
                               const struct tracker_peers_wait *limit, struct tracker_peers *out,
                               struct skep_error *err)
{
    struct tracker_input in = {0};
    struct tracker_text message;
    uint8_t chunk[RECEIVE_BYTES];
    size_t len = 0;
    skep_status rc;

    for (bool more = true; more;) {
        rc = receive(fd, chunk, limit, &len, err);
        if (rc == SKEP_OK && !tracker_input_push(&in, chunk, len))
            rc = error_no_memory(err, "tracker's answer", len);
        if (rc == SKEP_OK)
            rc = next_message(&in, &message, &more, err);
        if (rc == SKEP_OK && !more)
            rc = tracker_peers_parse(message, network_id, at, out, err);
        if (rc == SKEP_OK && more && !tracker_input_settle(&in))
            rc = error_no_memory(err, "tracker's answer", len);
        more = more && rc == SKEP_OK;
    }
    tracker_input_free(&in);
    return rc;
}

static skep_status ask_one(const struct address *a, uint32_t network_id,
                           const struct tracker_peers_wait *limit, struct tracker_peers *out,
                           struct skep_error *err)
{
    int fd = -1;
    skep_status rc = dial(a, limit, &fd, err);

    if (rc != SKEP_OK)
        return rc;
    rc = ask_question(fd, limit, err);
    if (rc == SKEP_OK)
        rc = read_answer(fd, a, network_id, limit, out, err);
    close(fd);
    return rc;
}

skep_status tracker_peers_ask(const struct address *tracker, size_t tracker_count,
                              uint32_t network_id, const struct tracker_peers_wait *limit,
                              struct tracker_peers *out, struct skep_error *err)
{
    skep_status rc = SKEP_UNAVAILABLE;

    out->count = 0;
    for (size_t i = 0; i < tracker_count && rc != SKEP_OK && rc != SKEP_CANCELLED; i++) {
        /* The rest of the time is shared among those not tried yet. */
        uint64_t now = clock_mono_us(), until = limit->deadline_us;
        uint64_t share = now < until ? (until - now) / (tracker_count - i) : 0;
        struct tracker_peers_wait part = {now + share, limit->stop_fd};
        rc = ask_one(&tracker[i], network_id, &part, out, err);
    }
    return rc;
}
