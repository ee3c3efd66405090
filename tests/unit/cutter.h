/*
 * A wire that can be cut: forwards TCP connections to a server on 127.0.0.1 and ends them after so
 * many bytes, as if the server's machine had died in the middle of whatever it was saying.
 */
#ifndef SKEP_TESTS_CUTTER_H
#define SKEP_TESTS_CUTTER_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit.h"
#include "base/thread.h"

enum { CUTTER_PAIRS = 64, CUTTER_NEVER = -1 };

enum cutter_side { CUTTER_CLIENT, CUTTER_SERVER };

struct cutter_pair {
    int fds[2];        /* by side; -1: unused */
    int64_t passed[2]; /* bytes that came from each */
};

struct cutter {
    uint16_t port, target_port;
    int listener, wake[2];
    struct thread thread;
    struct cutter_pair pairs[CUTTER_PAIRS]; /* the thread's alone */
    pthread_mutex_t lock;                   /* guards all below */
    int64_t after[2]; /* of each connection, from its start: bytes of each side that pass */
    int64_t left;     /* of all connections: bytes of the server that still pass */
    unsigned cuts;
    bool closing;
};

static inline void cutter_end_pair(struct cutter_pair *pair)
{
    for (int side = 0; side < 2; side++) {
        if (pair->fds[side] >= 0)
            close(pair->fds[side]);
        pair->fds[side] = -1;
        pair->passed[side] = 0;
    }
}

static inline bool cutter_send(int fd, const uint8_t *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = send(fd, bytes, count, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        bytes += n;
        count -= (size_t)n;
    }
    return true;
}

/* How many of the bytes that have come may pass; *cut: the connection ends then. */
static inline size_t cutter_allow(struct cutter *c, const struct cutter_pair *pair, int side,
                                  size_t count, bool *cut)
{
    int64_t allowed = (int64_t)count;

    *cut = false;
    pthread_mutex_lock(&c->lock);
    if (c->after[side] != CUTTER_NEVER && pair->passed[side] + allowed >= c->after[side]) {
        allowed = c->after[side] - pair->passed[side];
        allowed = allowed > 0 ? allowed : 0;
        *cut = true;
    }
    if (side == CUTTER_SERVER && c->left != CUTTER_NEVER) {
        if (allowed >= c->left) {
            allowed = c->left;
            *cut = true;
        }
        c->left -= allowed;
    }
    c->cuts += *cut;
    pthread_mutex_unlock(&c->lock);
    return (size_t)allowed;
}

static inline void cutter_forward(struct cutter *c, struct cutter_pair *pair, int side)
{
    uint8_t bytes[16384];
    ssize_t n = recv(pair->fds[side], bytes, sizeof(bytes), 0);
    bool cut = false;

    if (n > 0) {
        size_t allowed = cutter_allow(c, pair, side, (size_t)n, &cut);
        pair->passed[side] += (int64_t)allowed;
        if (!cutter_send(pair->fds[!side], bytes, allowed))
            cut = true;
    }
    if (n <= 0 || cut)
        cutter_end_pair(pair);
}

static inline void cutter_accept(struct cutter *c)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(c->target_port)};
    int client = accept(c->listener, NULL, NULL);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t i = 0;

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    while (i < CUTTER_PAIRS && c->pairs[i].fds[0] >= 0)
        i++;
    if (client < 0 || server < 0 || i == CUTTER_PAIRS ||
        connect(server, (struct sockaddr *)&to, sizeof(to)) != 0) {
        if (client >= 0)
            close(client);
        if (server >= 0)
            close(server);
        return;
    }
    c->pairs[i] = (struct cutter_pair){.fds = {client, server}};
    pthread_mutex_lock(&c->lock);
    bool dead = c->after[CUTTER_CLIENT] == 0 || c->after[CUTTER_SERVER] == 0;
    pthread_mutex_unlock(&c->lock);
    if (dead)
        cutter_end_pair(&c->pairs[i]);
}

static inline bool cutter_is_closing(struct cutter *c)
{
    pthread_mutex_lock(&c->lock);
    bool closing = c->closing;
    pthread_mutex_unlock(&c->lock);
    return closing;
}

static inline void cutter_run(void *arg)
{
    struct cutter *c = arg;

    while (!cutter_is_closing(c)) {
        struct pollfd fds[2 + 2 * CUTTER_PAIRS] = {{.fd = c->listener, .events = POLLIN},
                                                   {.fd = c->wake[0], .events = POLLIN}};
        for (size_t i = 0; i < CUTTER_PAIRS; i++)
            for (int side = 0; side < 2; side++)
                fds[2 + 2 * i + (size_t)side] =
                    (struct pollfd){.fd = c->pairs[i].fds[side], .events = POLLIN};
        if (poll(fds, 2 + 2 * CUTTER_PAIRS, -1) < 0)
            continue;
        for (size_t i = 0; i < CUTTER_PAIRS; i++)
            for (int side = 0; side < 2; side++)
                if (fds[2 + 2 * i + (size_t)side].revents != 0 && c->pairs[i].fds[side] >= 0)
                    cutter_forward(c, &c->pairs[i], side);
        if (fds[0].revents != 0)
            cutter_accept(c);
    }
    for (size_t i = 0; i < CUTTER_PAIRS; i++)
        cutter_end_pair(&c->pairs[i]);
}

static inline void cutter_start(struct cutter *c, uint16_t target_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);

    memset(c, 0, sizeof(*c));
    pthread_mutex_init(&c->lock, NULL);
    c->target_port = target_port;
    c->after[0] = c->after[1] = c->left = CUTTER_NEVER;
    for (size_t i = 0; i < CUTTER_PAIRS; i++)
        c->pairs[i].fds[0] = c->pairs[i].fds[1] = -1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(c->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(c->listener, CUTTER_PAIRS), 0);
    assert_int_equal(getsockname(c->listener, (struct sockaddr *)&at, &size), 0);
    c->port = ntohs(at.sin_port);
    assert_int_equal(pipe(c->wake), 0);
    assert_int_equal(thread_start(&c->thread, "test-cutter", cutter_run, c, NULL), SKEP_OK);
}

static inline void cutter_stop(struct cutter *c)
{
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    pthread_mutex_unlock(&c->lock);
    assert_int_equal(write(c->wake[1], "", 1), 1);
    thread_join(&c->thread);
    close(c->listener);
    close(c->wake[0]);
    close(c->wake[1]);
    pthread_mutex_destroy(&c->lock);
}

/* From now on every connection ends after so many bytes from a side, counted from its start; 0: as
 * soon as it is made; CUTTER_NEVER: does not. */
static inline void cutter_cut_each(struct cutter *c, enum cutter_side side, int64_t after)
{
    pthread_mutex_lock(&c->lock);
    c->after[side] = after;
    pthread_mutex_unlock(&c->lock);
}

/* After so many more bytes from the server the connection they came on ends; so does every later
 * one at the server's first byte, until CUTTER_NEVER is set. */
static inline void cutter_cut_in(struct cutter *c, int64_t left)
{
    pthread_mutex_lock(&c->lock);
    c->left = left;
    pthread_mutex_unlock(&c->lock);
}

static inline unsigned cutter_cuts(struct cutter *c)
{
    pthread_mutex_lock(&c->lock);
    unsigned cuts = c->cuts;
    pthread_mutex_unlock(&c->lock);
    return cuts;
}

#endif
