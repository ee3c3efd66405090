/* See join_check.h. */
#include "dht/bootstrap/join_check.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fd.h"
#include "dht/opendht/udp_ping.h"
#include "wire/frame.h"
#include "wire/tracker_frame.h"

enum {
    PING_AGAIN_MS = 250,
    DATAGRAM_BYTES = 1500,
    READS_A_LOOK = 8,
    AS_PEER = 0, /* index of the connections */
    AS_TRACKERS_CLIENT = 1,
    REFUSAL_HEAD_BYTES = 6, /* of a refusal (docs/protocol.md), up to its flags */
    FIRST_FAR_PORT = 61001, /* above those that Linux hands out by itself */
};

/* --- sockets ------------------------------------------------------------------------------- */

static int open_socket(const struct join_check *c, int type, uint16_t port)
{
    struct address to = c->address;
    int fd = socket(to.sa.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    fd = fd_move_high(fd);
    if (port != 0)
        address_set_port(&to, port);
    if (connect(fd, (const struct sockaddr *)&to.sa, to.len) == 0 || errno == EINPROGRESS)
        return fd;
    int error_number = errno;
    close(fd);
    errno = error_number;
    return -1;
}

static void close_socket(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool is_no_way(int error_number)
{
    return error_number == EHOSTUNREACH || error_number == ENETUNREACH ||
           error_number == EHOSTDOWN || error_number == ENETDOWN || error_number == EACCES ||
           error_number == EPERM || error_number == EINVAL || error_number == EADDRNOTAVAIL;
}

static void begin_tcp(struct join_check *c, size_t which)
{
    c->tcp[which].fd = open_socket(c, SOCK_STREAM, 0);
    c->tcp[which].is_begun = true;
    c->tcp[which].is_over = c->tcp[which].fd < 0;
}

void join_check_begin(struct join_check *c, const struct address *address,
                      const struct join_networks *networks)
{
    *c = (struct join_check){
        .networks = networks,
        .address = *address,
        .due_us = clock_deadline_us(JOIN_CHECK_MS),
        .answered = -1,
    };
    c->udp = open_socket(c, SOCK_DGRAM, 0);
    if (c->udp < 0 && is_no_way(errno))
        c->no_way = errno;
    for (size_t i = 0; i < JOIN_CHECK_FAR; i++)
        c->far[i] = open_socket(
            c, SOCK_DGRAM,
            (uint16_t)(FIRST_FAR_PORT + randombytes_uniform(UINT16_MAX - FIRST_FAR_PORT)));
    for (size_t i = 0; i < JOIN_CHECK_TCP; i++)
        c->tcp[i].fd = -1;
    begin_tcp(c, AS_PEER);
    for (size_t i = 0; i < networks->count; i++)
        c->ids[i] = randombytes_random();
}

void join_check_end(struct join_check *c)
{
    close_socket(&c->udp);
    for (size_t i = 0; i < JOIN_CHECK_FAR; i++)
        close_socket(&c->far[i]);
    for (size_t i = 0; i < JOIN_CHECK_TCP; i++)
        close_socket(&c->tcp[i].fd);
}

/* --- UDP ----------------------------------------------------------------------------------- */

/* Takes the error that an earlier datagram has met, which the system reports with a later call. */
static void take_error(struct join_check *c, int error_number)
{
    if (error_number == ECONNREFUSED)
        c->is_refused = true;
    else if (is_no_way(error_number))
        c->no_way = error_number;
}

static void ping(struct join_check *c)
{
    uint8_t packet[UDP_PING_MAX_BYTES];

    if (c->udp < 0 || clock_mono_us() < c->ping_us)
        return;
    c->ping_us = clock_deadline_us(PING_AGAIN_MS);
    for (size_t i = 0; i < c->networks->count; i++) {
        size_t len = udp_ping_write(c->networks->ids[i], c->ids[i], packet);
        if (send(c->udp, packet, len, MSG_DONTWAIT) < 0)
            take_error(c, errno);
    }
    for (size_t i = 0; i < JOIN_CHECK_FAR; i++)
        if (c->far[i] >= 0)
            (void)send(c->far[i], "", 0, MSG_DONTWAIT);
}

static void take_datagram(struct join_check *c, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < c->networks->count; i++)
        if (udp_ping_is_answer(data, len, c->ids[i]) && (c->answered < 0 || i == 0))
            c->answered = (int)i;
}

static void look_at_udp(struct join_check *c)
{
    uint8_t data[DATAGRAM_BYTES];

    for (int i = 0; i < READS_A_LOOK && c->udp >= 0; i++) {
        ssize_t len = recv(c->udp, data, sizeof(data), MSG_DONTWAIT);
        if (len > 0)
            take_datagram(c, data, (size_t)len);
        else if (len < 0 && errno != EAGAIN)
            take_error(c, errno);
    }
    for (size_t i = 0; i < JOIN_CHECK_FAR; i++)
        if (c->far[i] >= 0 && recv(c->far[i], data, sizeof(data), MSG_DONTWAIT) < 0 &&
            errno == ECONNREFUSED)
            c->is_far_refused = true;
}

/* --- TCP ----------------------------------------------------------------------------------- */

/* A peer of a version that nobody speaks: who speaks another says so, without a handshake. */
static size_t write_question(size_t which, uint8_t out[static PREAMBLE_BYTES])
{
    const struct preamble nobody = {.major = 0, .mode = PREAMBLE_CHACHAPOLY};

    if (which == AS_PEER) {
        preamble_encode(out, &nobody);
        return PREAMBLE_BYTES;
    }
    store_u32(out, TRACKER_MAGIC);
    return TRACKER_MAGIC_BYTES;
}

static void end_tcp(struct join_tcp *tcp)
{
    tcp->is_over = true;
    close_socket(&tcp->fd);
}

static void look_at_tcp(struct join_check *c, size_t which)
{
    struct join_tcp *tcp = &c->tcp[which];
    struct pollfd writable = {.fd = tcp->fd, .events = POLLOUT};
    uint8_t question[PREAMBLE_BYTES];
    size_t wanted = which == AS_PEER ? REFUSAL_HEAD_BYTES : TRACKER_MAGIC_BYTES;

    if (!tcp->is_begun || tcp->is_over || (!tcp->asked && poll(&writable, 1, 0) != 1))
        return;
    if (!tcp->asked) {
        size_t len = write_question(which, question);
        tcp->asked = send(tcp->fd, question, len, MSG_NOSIGNAL) == (ssize_t)len;
        if (!tcp->asked)
            end_tcp(tcp);
        return;
    }
    ssize_t len =
        recv(tcp->fd, tcp->answer + tcp->len, sizeof(tcp->answer) - tcp->len, MSG_DONTWAIT);
    if (len > 0)
        tcp->len += (size_t)len;
    if (tcp->len >= wanted || len == 0 || (len < 0 && errno != EAGAIN && errno != EINTR))
        end_tcp(tcp);
}

/* A refusal begins with a length of 0, which is never valid there. */
static bool is_skep(const struct join_check *c)
{
    const struct join_tcp *tcp = &c->tcp[AS_PEER];

    return tcp->len >= REFUSAL_HEAD_BYTES && tcp->answer[0] == 0 && tcp->answer[1] == 0 &&
           tcp->answer[2] != 0;
}

static bool has_key(const struct join_check *c)
{
    return (c->tcp[AS_PEER].answer[5] & 1) != 0;
}

static bool is_tracker(const struct join_check *c)
{
    const struct join_tcp *tcp = &c->tcp[AS_TRACKERS_CLIENT];

    return tcp->len >= TRACKER_MAGIC_BYTES && load_u32(tcp->answer) == TRACKER_MAGIC;
}

/* --- conclusions --------------------------------------------------------------------------- */

bool join_check_look(struct join_check *c)
{
    ping(c);
    look_at_udp(c);
    for (size_t i = 0; i < JOIN_CHECK_TCP; i++)
        look_at_tcp(c, i);
    /* Who speaks our protocol is spared the tracker's: it would be a stranger in its log. */
    if (c->tcp[AS_PEER].is_over && !c->tcp[AS_TRACKERS_CLIENT].is_begun) {
        if (c->tcp[AS_PEER].asked && !is_skep(c))
            begin_tcp(c, AS_TRACKERS_CLIENT);
        else
            c->tcp[AS_TRACKERS_CLIENT].is_begun = c->tcp[AS_TRACKERS_CLIENT].is_over = true;
    }
    return c->answered >= 0 || clock_mono_us() >= c->due_us ||
           ((c->is_refused || c->no_way != 0) && c->tcp[AS_PEER].is_over &&
            c->tcp[AS_TRACKERS_CLIENT].is_over);
}

static bool is_loopback(const struct join_check *c)
{
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&c->address.sa);
    return endpoint_is_loopback(&e);
}

enum join_finding join_check_finding(const struct join_check *c)
{
    if (c->answered >= 0)
        return c->answered == 0 ? JOIN_ANSWERS : JOIN_OTHER;
    bool is_taken = !c->is_refused && c->no_way == 0 && (c->is_far_refused || is_loopback(c));
    if (is_skep(c) && !is_taken)
        return JOIN_CALLS;
    if (is_tracker(c) && !is_taken)
        return JOIN_TRACKER;
    if (is_taken)
        return JOIN_TAKEN;
    if (c->is_refused)
        return JOIN_NOTHING;
    return c->no_way != 0 ? JOIN_NO_WAY : JOIN_SILENT;
}

/* Something is there: what a Skep node on the same TCP port tells of the key. */
static const char *key_hint(const struct join_check *c)
{
    if (!is_skep(c) || has_key(c) == c->networks->has_key)
        return "";
    return has_key(c) ? " (the Skep node that serves calls there wants a --swarm-key)"
                      : " (the Skep node that serves calls there has no --swarm-key)";
}

const char *join_check_say(const struct join_check *c, char out[static JOIN_CHECK_TEXT_BYTES])
{
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&c->address.sa);
    unsigned port = e.port;
    switch (join_check_finding(c)) {
    case JOIN_ANSWERS:
        snprintf(out, JOIN_CHECK_TEXT_BYTES, "a DHT peer of this swarm answers there now");
        break;
    case JOIN_OTHER:
        snprintf(out, JOIN_CHECK_TEXT_BYTES,
                 "%s answers there: give its --swarm and --swarm-key, "
                 "or another peer",
                 c->networks->texts[c->answered]);
        break;
    case JOIN_CALLS:
        snprintf(out, JOIN_CHECK_TEXT_BYTES,
                 "port %u is the TCP port on which a Skep node serves calls: give its DHT port "
                 "(UDP), which its log names after --initial-peers",
                 port);
        break;
    case JOIN_TRACKER:
        snprintf(out, JOIN_CHECK_TEXT_BYTES,
                 "port %u is the TCP port of a tracker: write tracker:// before it", port);
        break;
    case JOIN_TAKEN:
        snprintf(out, JOIN_CHECK_TEXT_BYTES,
                 "UDP port %u is open, but no DHT peer of this swarm answers: another --swarm or "
                 "--swarm-key%s, a process that hangs, or another program",
                 port, key_hint(c));
        break;
    case JOIN_NOTHING:
        snprintf(out, JOIN_CHECK_TEXT_BYTES,
                 "nothing listens on UDP port %u: the port is wrong, or the peer has ended", port);
        break;
    case JOIN_NO_WAY:
        snprintf(out, JOIN_CHECK_TEXT_BYTES, "it cannot be reached from here: %s",
                 strerror(c->no_way));
        break;
    case JOIN_SILENT:
    case JOIN_FINDINGS:
        snprintf(
            out, JOIN_CHECK_TEXT_BYTES,
            "UDP port %u gives no sign: the host is down, address or port is wrong, a firewall "
            "drops UDP, or the peer is of another --swarm or --swarm-key",
            port);
        break;
    }
    return out;
}
