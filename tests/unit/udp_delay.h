/*
 * A way to a UDP peer on 127.0.0.1 on which the peer's packets take their time: what is sent to
 * `port` arrives at once, what comes back is held for as long as asked for.
 */
#ifndef SKEP_TESTS_UDP_DELAY_H
#define SKEP_TESTS_UDP_DELAY_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit.h"
#include "base/clock.h"
#include "base/thread.h"

enum { UDP_DELAY_SOURCES = 8, UDP_DELAY_HELD = 1024, UDP_DELAY_PACKET = 2048 };

struct udp_delay_packet {
    uint64_t due_us; /* 0: unused */
    bool delayed;
    size_t len, source;
    uint8_t bytes[UDP_DELAY_PACKET];
};

struct udp_delay {
    uint16_t port, target_port;
    atomic_uint delay_ms; /* of packets that come from now on */
    atomic_uint late;     /* packets that arrived after having been held */
    atomic_bool closing;
    struct thread thread;
    /* The thread's alone: */
    int near, far[UDP_DELAY_SOURCES]; /* for each that sends, a socket to the peer */
    struct sockaddr_in sources[UDP_DELAY_SOURCES];
    size_t source_count;
    struct udp_delay_packet held[UDP_DELAY_HELD]; /* when it is full, packets are lost */
};

static inline int udp_delay_socket(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(address);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &len) != 0)
        abort();
    *port = ntohs(address.sin_port);
    return fd;
}

/* To the peer, from a socket of the sender's own. */
static inline void udp_delay_go(struct udp_delay *d)
{
    struct sockaddr_in source, target = {.sin_family = AF_INET,
                                         .sin_port = htons(d->target_port),
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t source_len = sizeof(source);
    uint8_t bytes[UDP_DELAY_PACKET];
    uint16_t port;
    size_t i = 0;

    ssize_t len =
        recvfrom(d->near, bytes, sizeof(bytes), 0, (struct sockaddr *)&source, &source_len);
    if (len < 0)
        return;
    while (i < d->source_count && d->sources[i].sin_port != source.sin_port)
        i++;
    if (i == UDP_DELAY_SOURCES)
        return;
    if (i == d->source_count) {
        d->far[i] = udp_delay_socket(&port);
        d->sources[d->source_count++] = source;
    }
    (void)!sendto(d->far[i], bytes, (size_t)len, 0, (struct sockaddr *)&target, sizeof(target));
}

/* From the peer: held. */
static inline void udp_delay_hold(struct udp_delay *d, size_t source)
{
    uint8_t lost[1];

    for (size_t i = 0; i < UDP_DELAY_HELD; i++) {
        struct udp_delay_packet *p = &d->held[i];
        if (p->due_us != 0)
            continue;
        ssize_t len = recv(d->far[source], p->bytes, sizeof(p->bytes), 0);
        if (len < 0)
            return;
        p->len = (size_t)len;
        p->source = source;
        unsigned delay_ms = atomic_load(&d->delay_ms);
        p->delayed = delay_ms > 0;
        p->due_us = clock_mono_us() + delay_ms * UINT64_C(1000) + 1;
        return;
    }
    (void)!recv(d->far[source], lost, sizeof(lost), 0);
}

static inline void udp_delay_deliver(struct udp_delay *d)
{
    uint64_t now_us = clock_mono_us();

    for (size_t i = 0; i < UDP_DELAY_HELD; i++) {
        struct udp_delay_packet *p = &d->held[i];
        if (p->due_us == 0 || p->due_us > now_us)
            continue;
        p->due_us = 0;
        if (p->delayed)
            atomic_fetch_add(&d->late, 1);
        (void)!sendto(d->near, p->bytes, p->len, 0, (struct sockaddr *)&d->sources[p->source],
                      sizeof(d->sources[p->source]));
    }
}

static inline void udp_delay_run(void *arg)
{
    struct udp_delay *d = arg;

    while (!atomic_load(&d->closing)) {
        struct pollfd fds[1 + UDP_DELAY_SOURCES] = {{.fd = d->near, .events = POLLIN}};
        size_t count = d->source_count;
        for (size_t i = 0; i < count; i++)
            fds[1 + i] = (struct pollfd){.fd = d->far[i], .events = POLLIN};
        if (poll(fds, 1 + count, 2) > 0) {
            if (fds[0].revents != 0)
                udp_delay_go(d);
            for (size_t i = 0; i < count; i++)
                if (fds[1 + i].revents != 0)
                    udp_delay_hold(d, i);
        }
        udp_delay_deliver(d);
    }
}

static inline void udp_delay_start(struct udp_delay *d, uint16_t target_port)
{
    memset(d, 0, sizeof(*d));
    d->target_port = target_port;
    d->near = udp_delay_socket(&d->port);
    assert_int_equal(thread_start(&d->thread, "test-delay", udp_delay_run, d, NULL), SKEP_OK);
}

static inline void udp_delay_stop(struct udp_delay *d)
{
    atomic_store(&d->closing, true);
    thread_join(&d->thread);
    close(d->near);
    for (size_t i = 0; i < d->source_count; i++)
        close(d->far[i]);
}

#endif
