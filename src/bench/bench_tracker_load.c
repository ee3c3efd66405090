/* See bench_tracker_load.h. Plain epoll: what is measured is the other side. */
#include "bench/bench_tracker_load.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fd.h"
#include "tracker/protocol.h"

enum {
    SPARE_FILES = 64,
    EVENTS = 256,
    INPUT_BYTES = 256, /* longer than any answer but that of SUMMARY */
    STALL_MS = 10000,
    SUMMARY_BYTES = 256 << 10, /* read at once */
    SUMMARY_PAUSE_NS = 100000000,
    REGISTERED_BYTES = 4 + 5 + 5, /* magic, and two messages "0" */
};

static const char match_prefix[] = "\"bench:";
/* As a tracker tells of a server that registered as these do. */
static const char echoed_info[] = "{\"key\": \"server:bench\", \"addr\": [\"127.0.0.1\", 9090]}";
enum { INFO_BYTES = sizeof(echoed_info) - 1 };

struct load_peer {
    int fd;
    enum { PEER_SERVER, PEER_CLIENT, PEER_WATCHER } kind;
    uint32_t sequence; /* of a server's match keys */
    uint64_t start_ns;
    size_t have;          /* of input */
    uint64_t summary_len; /* of the answer coming in, with its prefix; 0: not known yet */
    uint64_t summary_have;
    uint8_t input[INPUT_BYTES];
};

/* ---- sockets ---- */

static int connect_to(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    /* Closed by a reset: thousands of lingering connections would use the ports up. */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
    return fd;
}

static bool send_all(int fd, const struct bytes *out)
{
    return send(fd, out->data, out->len, MSG_NOSIGNAL) == (ssize_t)out->len;
}

static bool write_put(struct bytes *out, size_t index, uint32_t sequence)
{
    char match_key[48];

    snprintf(match_key, sizeof(match_key), "bench:%zu.%u", index, (unsigned)sequence);
    return tracker_write_put(out, tracker_text("bench"), 9090, tracker_text(match_key),
                             tracker_text(NULL));
}

static bool write_registration(struct bytes *out, size_t index)
{
    static const char info[] = "[5, {\"key\": \"server:bench\", \"addr\": [null, 9090]}]";

    return tracker_write_magic(out) && tracker_write_message(out, info, sizeof(info) - 1) &&
           write_put(out, index, 0);
}

static bool receive_exactly(int fd, size_t len)
{
    uint8_t data[REGISTERED_BYTES];

    return len <= sizeof(data) && recv(fd, data, len, MSG_WAITALL) == (ssize_t)len;
}

/* All of them first, then their answers: else it would be one round trip a server. */
static bool greet_all(struct bench_load *load, struct bytes *out)
{
    size_t count = load->servers + load->clients + 1;

    for (size_t i = 0; i < count; i++) {
        struct load_peer *peer = &load->peers[i];
        out->len = 0;
        bool ok = peer->kind == PEER_SERVER ? write_registration(out, i) : tracker_write_magic(out);
        peer->fd = connect_to(load->port);
        if (!ok || peer->fd < 0 || !send_all(peer->fd, out))
            return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct load_peer *peer = &load->peers[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = peer};
        if (!receive_exactly(peer->fd, peer->kind == PEER_SERVER ? REGISTERED_BYTES : 4) ||
            epoll_ctl(load->epoll, EPOLL_CTL_ADD, peer->fd, &event) != 0)
            return false;
    }
    return true;
}

skep_status bench_load_open(struct bench_load *load, uint16_t port, size_t servers, size_t clients,
                            struct skep_error *err)
{
    size_t count = servers + clients + 1;
    unsigned long limit = fd_raise_limit();
    struct bytes out = {0};
    skep_status rc = SKEP_OK;

    *load = (struct bench_load){.port = port, .servers = servers, .clients = clients};
    if (limit < count + SPARE_FILES)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "limit of %lu open files, needed for %zu connections: %zu", limit, count,
                         count + SPARE_FILES);
    load->peers = mem_calloc(count, sizeof(*load->peers));
    if (load->peers == NULL)
        return error_no_memory(err, "connections", count * sizeof(*load->peers));
    for (size_t i = 0; i < count; i++) {
        load->peers[i].fd = -1;
        load->peers[i].kind = i < servers     ? PEER_SERVER
                              : i < count - 1 ? PEER_CLIENT
                                              : PEER_WATCHER;
    }
    load->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (load->epoll < 0 || !greet_all(load, &out))
        rc = error_set(err, SKEP_UNAVAILABLE, "%zu connections to 127.0.0.1:%u: %s", count,
                       (unsigned)port, strerror(errno));
    bytes_free(&out);
    if (rc != SKEP_OK)
        bench_load_close(load);
    return rc;
}

void bench_load_close(struct bench_load *load)
{
    size_t count = load->servers + load->clients + 1;

    for (size_t i = 0; load->peers != NULL && i < count; i++)
        if (load->peers[i].fd >= 0)
            close(load->peers[i].fd);
    if (load->epoll > 0)
        close(load->epoll);
    mem_free(load->peers);
    *load = (struct bench_load){0};
}

/* ---- answers ---- */

static bool ask(struct load_peer *client)
{
    static const char request[] = "[4, \"bench\", \"\", 1]";
    uint8_t message[4 + sizeof(request)];

    store_u32(message, sizeof(request) - 1);
    memcpy(message + 4, request, sizeof(request) - 1);
    client->start_ns = bench_now_ns();
    return send(client->fd, message, sizeof(request) + 3, MSG_NOSIGNAL) ==
           (ssize_t)sizeof(request) + 3;
}

/* The server whose resource this is puts itself back. */
static bool put_back(struct bench_load *load, const char *message, size_t len)
{
    static struct bytes out;
    const char *at = memmem(message, len, match_prefix, sizeof(match_prefix) - 1);
    size_t index = at != NULL ? (size_t)strtoul(at + sizeof(match_prefix) - 1, NULL, 10) : SIZE_MAX;

    if (index >= load->servers)
        return false;
    out.len = 0;
    return write_put(&out, index, ++load->peers[index].sequence) &&
           send_all(load->peers[index].fd, &out);
}

static bool take_message(struct bench_load *load, struct load_peer *peer, const char *message,
                         size_t len)
{
    if (peer->kind == PEER_SERVER) {
        load->puts++;
        return len == 1 && message[0] == '0';
    }
    load->requests++;
    if (load->latency != NULL)
        bench_samples_add(load->latency, bench_now_ns() - peer->start_ns);
    return put_back(load, message, len) && (load->requests >= load->stop_at || ask(peer));
}

static bool take_input(struct bench_load *load, struct load_peer *peer)
{
    ssize_t n =
        recv(peer->fd, peer->input + peer->have, INPUT_BYTES - 1 - peer->have, MSG_DONTWAIT);
    size_t used = 0;

    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    peer->have += (size_t)n;
    peer->input[peer->have] = '\0'; /* for strtoul() */
    while (peer->have - used >= 4) {
        size_t len = load_u32(peer->input + used);
        if (len > peer->have - used - 4)
            break;
        if (!take_message(load, peer, (const char *)peer->input + used + 4, len))
            return false;
        used += 4 + len;
    }
    peer->have -= used;
    memmove(peer->input, peer->input + used, peer->have);
    return true;
}

static bool ask_summary(struct bench_load *load)
{
    static const uint8_t message[] = {3, 0, 0, 0, '[', '6', ']'};
    struct load_peer *watcher = &load->peers[load->servers + load->clients];

    watcher->start_ns = bench_now_ns();
    watcher->summary_len = 0;
    watcher->summary_have = 0;
    return send(watcher->fd, message, sizeof(message), MSG_NOSIGNAL) == (ssize_t)sizeof(message);
}

/* Only its length is looked at. */
static bool take_summary(struct bench_load *load, struct load_peer *watcher)
{
    static uint8_t data[SUMMARY_BYTES];
    ssize_t n = recv(watcher->fd, data, sizeof(data), MSG_DONTWAIT);

    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    if (watcher->summary_have == 0 && n < 4)
        return false;
    if (watcher->summary_have == 0)
        watcher->summary_len = 4 + (uint64_t)load_u32(data);
    watcher->summary_have += (uint64_t)n;
    if (watcher->summary_have < watcher->summary_len)
        return true;
    bench_samples_add(load->summary, bench_now_ns() - watcher->start_ns);
    load->next_summary_ns = bench_now_ns() + SUMMARY_PAUSE_NS;
    load->summary_bytes = watcher->summary_len;
    return watcher->summary_have == watcher->summary_len;
}

/* ---- running ---- */

static skep_status turn(struct bench_load *load, struct skep_error *err)
{
    struct epoll_event events[EVENTS];
    int count = epoll_wait(load->epoll, events, EVENTS, STALL_MS);

    if (count <= 0)
        return error_set(err, SKEP_DEADLINE_EXCEEDED, "no answer for %d ms", STALL_MS);
    for (int i = 0; i < count; i++) {
        struct load_peer *peer = events[i].data.ptr;
        bool ok = peer->kind == PEER_WATCHER ? take_summary(load, peer) : take_input(load, peer);
        if (!ok)
            return error_set(err, SKEP_UNAVAILABLE,
                             "a connection ended or an answer was not as expected");
    }
    return SKEP_OK;
}

skep_status bench_load_run(struct bench_load *load, size_t clients, uint64_t pairs,
                           struct bench_samples *latency, struct bench_samples *summary,
                           double *rate, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    uint64_t end = load->requests + pairs;
    uint64_t start_ns = bench_now_ns();
    size_t asked = summary != NULL ? summary->count : 0;

    load->latency = latency;
    load->summary = summary;
    load->stop_at = end > clients ? end - clients + 1 : 1; /* each has one more under way then */
    load->next_summary_ns = start_ns;
    for (size_t i = 0; i < clients; i++)
        if (!ask(&load->peers[load->servers + i]))
            return error_set(err, SKEP_UNAVAILABLE, "sending: %s", strerror(errno));
    while (rc == SKEP_OK && (load->requests < end || load->puts < load->requests)) {
        if (summary != NULL && summary->count == asked && bench_now_ns() >= load->next_summary_ns &&
            load->requests < end) {
            asked++;
            if (!ask_summary(load))
                return error_set(err, SKEP_UNAVAILABLE, "sending: %s", strerror(errno));
        }
        rc = turn(load, err);
    }
    *rate = (double)pairs * 1e9 / (double)(bench_now_ns() - start_ns);
    while (rc == SKEP_OK && summary != NULL && summary->count < asked)
        rc = turn(load, err);
    return rc;
}

skep_status bench_load_summaries(struct bench_load *load, size_t count,
                                 struct bench_samples *summary, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    load->summary = summary;
    for (size_t i = 0; i < count && rc == SKEP_OK; i++) {
        size_t before = summary->count;
        if (!ask_summary(load))
            return error_set(err, SKEP_UNAVAILABLE, "sending: %s", strerror(errno));
        while (rc == SKEP_OK && summary->count == before)
            rc = turn(load, err);
    }
    return rc;
}

/* ---- the baseline ---- */

/* What a tracker with these servers, all of them free, answers to SUMMARY. */
static bool write_summary(struct bytes *out, size_t servers)
{
    char head[128];
    size_t start;
    int len = snprintf(head, sizeof(head),
                       "[0, {\"queue_info\": {\"bench\": {\"free\": %zu, \"pending\": 0}}, "
                       "\"server_info\": [",
                       servers);
    bool ok = tracker_message_begin(out, &start) && bytes_append(out, head, (size_t)len);

    for (size_t i = 0; i < servers && ok; i++)
        ok = (i == 0 || bytes_append(out, ", ", 2)) && bytes_append(out, echoed_info, INFO_BYTES);
    return ok && bytes_append(out, "]}]", 3) && tracker_message_end(out, start);
}

/* Answers what one read has brought; every message here fits in one. */
static void echo(int fd, size_t servers, const struct bytes *summary, size_t *next)
{
    uint8_t in[4096];
    struct bytes out = {0};
    char text[64];
    ssize_t n = recv(fd, in, sizeof(in), MSG_DONTWAIT);
    size_t at = 0;

    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            close(fd);
        return;
    }
    while (at + 4 <= (size_t)n) {
        uint32_t len = load_u32(in + at);
        if (len == TRACKER_MAGIC) {
            bytes_append(&out, in + at, 4);
            at += 4;
            continue;
        }
        if (in[at + 5] == '4') {
            int size = snprintf(text, sizeof(text), "[0, [\"127.0.0.1\", 9090, \"bench:%zu.1\"]]",
                                (*next)++ % servers);
            tracker_write_message(&out, text, (size_t)size);
        } else if (in[at + 5] == '6') {
            bytes_append(&out, summary->data, summary->len);
        } else {
            tracker_write_message(&out, "0", 1);
        }
        at += 4 + (size_t)len;
    }
    send(fd, out.data, out.len, MSG_NOSIGNAL);
    bytes_free(&out);
}

static void echo_for_ever(int listener, size_t servers)
{
    struct epoll_event events[EVENTS];
    struct epoll_event first = {.events = EPOLLIN, .data.fd = listener};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    int on = 1;
    size_t next = 0;
    struct bytes summary = {0};

    if (!write_summary(&summary, servers))
        return;
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &first);
    for (;;) {
        int count = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd != listener) {
                echo(events[i].data.fd, servers, &summary, &next);
                continue;
            }
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
            epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        }
    }
}

skep_status bench_tracker_echo(size_t servers, uint16_t *port, pid_t *pid, struct skep_error *err)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (listener < 0 || bind(listener, (const struct sockaddr *)&at, sizeof(at)) != 0 ||
        listen(listener, 4096) != 0 || getsockname(listener, (struct sockaddr *)&at, &len) != 0) {
        if (listener >= 0)
            close(listener);
        return error_set(err, SKEP_UNAVAILABLE, "baseline: %s", strerror(errno));
    }
    fd_raise_limit();
    *port = ntohs(at.sin_port);
    *pid = fork();
    if (*pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        echo_for_ever(listener, servers);
        _exit(0);
    }
    close(listener);
    if (*pid < 0)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "fork: %s", strerror(errno));
    return SKEP_OK;
}
