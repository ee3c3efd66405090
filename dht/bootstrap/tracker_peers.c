/* The client's side of code 100, with plain sockets: one short exchange, once in a while. */
#include "dht/bootstrap/tracker_peers.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"

enum {
    MAGIC = 0x2F271,
    MAX_ANSWER_BYTES = 65536, /* a few dozen addresses take 2 KB */
    MAX_PEERS_READ = 256,
};

/* ---- the exchange ---- */

static skep_status wait_for(int fd, short events, const struct tracker_peers_patience *patience,
                            struct skep_error *err)
{
    struct pollfd p[] = {{.fd = fd, .events = events}, {.fd = patience->stop_fd, .events = POLLIN}};

    for (;;) {
        uint64_t left_ms = clock_left_ms(patience->deadline_us);
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

static skep_status dial(const struct address *a, const struct tracker_peers_patience *patience,
                        int *out, struct skep_error *err)
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
            rc = wait_for(fd, POLLOUT, patience, err);
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
static skep_status wait_after(int fd, short events, const struct tracker_peers_patience *patience,
                              struct skep_error *err)
{
    if (errno != EAGAIN && errno != EINTR)
        return error_set(err, SKEP_UNAVAILABLE, "connection lost: %s", strerror(errno));
    return wait_for(fd, events, patience, err);
}

static skep_status send_all(int fd, const uint8_t *data, size_t len,
                            const struct tracker_peers_patience *patience, struct skep_error *err)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            len -= (size_t)n;
            continue;
        }
        skep_status rc = wait_after(fd, POLLOUT, patience, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

static skep_status receive(int fd, uint8_t *data, size_t len,
                           const struct tracker_peers_patience *patience, struct skep_error *err)
{
    while (len > 0) {
        ssize_t n = recv(fd, data, len, 0);
        if (n == 0)
            return error_set(err, SKEP_DATA_LOSS,
                             "it closed the connection: not a tracker, or one without a DHT");
        if (n > 0) {
            data += n;
            len -= (size_t)n;
            continue;
        }
        skep_status rc = wait_after(fd, POLLIN, patience, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

/* Asks over a connection. @param text  on success owned: mem_free(). */
static skep_status exchange(int fd, const struct tracker_peers_patience *patience, char **text,
                            size_t *len, struct skep_error *err)
{
    static const char question[] = "[100]";
    uint8_t out[4 + 4 + sizeof(question) - 1], head[4];

    store_u32(out, MAGIC);
    store_u32(out + 4, sizeof(question) - 1);
    memcpy(out + 8, question, sizeof(question) - 1);
    skep_status rc = send_all(fd, out, sizeof(out), patience, err);
    if (rc == SKEP_OK)
        rc = receive(fd, head, sizeof(head), patience, err);
    if (rc == SKEP_OK && load_u32(head) != MAGIC)
        rc = error_set(err, SKEP_DATA_LOSS, "what answers there is not a tracker");
    if (rc == SKEP_OK)
        rc = receive(fd, head, sizeof(head), patience, err);
    if (rc != SKEP_OK)
        return rc;
    *len = load_u32(head);
    if (*len == 0 || *len > MAX_ANSWER_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "answer of %zu bytes, expected 1 to %d", *len,
                         MAX_ANSWER_BYTES);
    uint8_t *data = mem_alloc(*len);
    if (data == NULL)
        return error_no_memory(err, "tracker's answer", *len);
    rc = receive(fd, data, *len, patience, err);
    if (rc == SKEP_OK)
        *text = (char *)data;
    else
        mem_free(data);
    return rc;
}

/* ---- the answer ---- */

static void add(const struct address *a, struct address *out, size_t cap, size_t *count)
{
    if (*count < cap)
        out[(*count)++] = *a;
}

static void add_peers(const json_t *list, const struct address *at, struct address *out, size_t cap,
                      size_t *count)
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
            add(&a, out, cap, count);
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
                              struct address *out, size_t cap, size_t *count,
                              struct skep_error *err)
{
    const json_t *network = json_object_get(facts, "network");
    struct address own;

    if (!json_is_integer(network))
        return error_set(err, SKEP_DATA_LOSS, "its answer names no network");
    if (json_integer_value(network) != (json_int_t)network_id)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "it is of another swarm (another name, or another swarm key)");
    if (own_peer(json_object_get(facts, "dht_port"), at, &own))
        add(&own, out, cap, count);
    add_peers(json_object_get(facts, "peers"), at, out, cap, count);
    return *count > 0 ? SKEP_OK : error_set(err, SKEP_NOT_FOUND, "it names no DHT peer");
}

skep_status tracker_peers_parse(const char *text, size_t len, uint32_t network_id,
                                const struct address *at, struct address *out, size_t cap,
                                size_t *count, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    json_t *root = json_loadb(text, len, 0, NULL);
    const json_t *code = json_array_get(root, 0);

    *count = 0;
    if (!json_is_integer(code))
        rc = error_set(err, SKEP_DATA_LOSS, "its answer is not a tracker's");
    else if (json_integer_value(code) != 0)
        rc = error_set(err, SKEP_NOT_FOUND, "it takes no part in a DHT");
    else
        rc = read_facts(json_array_get(root, 1), network_id, at, out, cap, count, err);
    json_decref(root);
    return rc;
}

static skep_status ask_one(const struct address *a, uint32_t network_id,
                           const struct tracker_peers_patience *patience, struct address *out,
                           size_t cap, size_t *count, struct skep_error *err)
{
    char *text = NULL;
    size_t len = 0;
    int fd = -1;
    skep_status rc = dial(a, patience, &fd, err);

    if (rc != SKEP_OK)
        return rc;
    rc = exchange(fd, patience, &text, &len, err);
    if (rc == SKEP_OK)
        rc = tracker_peers_parse(text, len, network_id, a, out, cap, count, err);
    mem_free(text);
    close(fd);
    return rc;
}

skep_status tracker_peers_ask(const struct address *tracker, size_t tracker_count,
                              uint32_t network_id, const struct tracker_peers_patience *patience,
                              struct address *out, size_t cap, size_t *count,
                              struct skep_error *err)
{
    skep_status rc = SKEP_UNAVAILABLE;

    *count = 0;
    for (size_t i = 0; i < tracker_count && rc != SKEP_OK && rc != SKEP_CANCELLED; i++) {
        /* The rest of the time is shared among those not tried yet. */
        uint64_t now = clock_mono_us(), until = patience->deadline_us;
        uint64_t share = now < until ? (until - now) / (tracker_count - i) : 0;
        struct tracker_peers_patience part = {now + share, patience->stop_fd};
        rc = ask_one(&tracker[i], network_id, &part, out, cap, count, err);
    }
    return rc;
}
