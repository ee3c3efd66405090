/*
 * Baselines: raw TCP between two processes, and the cipher alone.
 *
 * The far end of the echo is a forked process, not a thread, because the node that it stands for is
 * one: scheduling, caches and wake-ups then cost the same on both sides of the comparison.
 */
#include "bench/bench_baseline.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/fd.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STALL_SECONDS = 60 }; /* far above what a busy machine may take */

static skep_status check_bytes(size_t bytes, struct skep_error *err)
{
    if (bytes == 0 || bytes > BENCH_BASELINE_MAX_BYTES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "baseline: %zu bytes, expected 1 to %d", bytes,
                         (int)BENCH_BASELINE_MAX_BYTES);
    return SKEP_OK;
}

/* ---- TCP ---- */

static skep_status socket_error(struct skep_error *err, const char *what)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return error_set(err, SKEP_DEADLINE_EXCEEDED, "TCP baseline: %s: nothing moved for %d s",
                         what, (int)STALL_SECONDS);
    if (errno == ECONNRESET || errno == EPIPE)
        return error_set(err, SKEP_UNAVAILABLE, "TCP baseline: %s: the far end went away", what);
    return error_set(err, status_from_errno(errno), "TCP baseline: %s: %s", what, strerror(errno));
}

static int set_options(int fd)
{
    int on = 1;
    struct timeval stall = {.tv_sec = STALL_SECONDS};

    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &stall, sizeof(stall)) != 0)
        return -1;
    return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &stall, sizeof(stall));
}

/* Whether what was accepted is what we dialled: any local process may dial the port. */
static bool same_connection(int near, int far)
{
    struct sockaddr_in ours = {0}, theirs = {0};
    socklen_t a = sizeof(ours), b = sizeof(theirs);

    return getsockname(near, (struct sockaddr *)&ours, &a) == 0 &&
           getpeername(far, (struct sockaddr *)&theirs, &b) == 0 &&
           ours.sin_port == theirs.sin_port && ours.sin_addr.s_addr == theirs.sin_addr.s_addr;
}

/* A listener on loopback at any port. */
static int listen_anywhere(struct sockaddr_in *address)
{
    socklen_t len = sizeof(*address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && (set_options(fd) != 0 || bind(fd, (struct sockaddr *)address, len) != 0 ||
                    listen(fd, 1) != 0 || getsockname(fd, (struct sockaddr *)address, &len) != 0)) {
        int failed = errno;
        close(fd);
        errno = failed;
        return -1;
    }
    return fd;
}

/* Two ends of one connection over loopback; -1 each on failure. */
static skep_status connect_pair(int *near, int *far, struct skep_error *err)
{
    struct sockaddr_in address;
    skep_status rc = SKEP_OK;
    int listener = listen_anywhere(&address);

    *near = *far = -1;
    if (listener < 0)
        return socket_error(err, "cannot listen");
    *near = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*near < 0 || set_options(*near) != 0 ||
        connect(*near, (struct sockaddr *)&address, sizeof(address)) != 0)
        rc = socket_error(err, "cannot connect");
    else if ((*far = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0 || set_options(*far) != 0)
        rc = socket_error(err, "cannot accept");
    else if (!same_connection(*near, *far))
        rc = error_set(err, SKEP_UNAVAILABLE, "TCP baseline: another process dialled its port");
    close(listener);
    if (*near >= 0)
        *near = fd_move_high(*near);
    return rc;
}

/* False with errno set; ECONNRESET at the end of the connection. */
static bool send_all(int fd, const uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, uint8_t *data, size_t len)
{
    while (len > 0) {
        ssize_t n = recv(fd, data, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ECONNRESET;
        if (n <= 0)
            return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* The far end. The process it was forked from may have threads, so no function is called here that
 * could wait for a lock of theirs; and it keeps none of the descriptors it inherited, so that no
 * port of the parent's stays open with it. */
static _Noreturn void echo_for_ever(int fd, uint8_t *buffer, size_t bytes, pid_t parent)
{
    enum { KEPT = 3 };

    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    if (fd != KEPT && dup2(fd, KEPT) < 0)
        _exit(1);
    if (close_range(KEPT + 1, ~0u, 0) != 0)
        _exit(1);
    while (receive_all(KEPT, buffer, bytes) && send_all(KEPT, buffer, bytes))
        continue;
    _exit(0);
}

static skep_status exchange(int fd, uint8_t *buffer, size_t bytes, struct skep_error *err)
{
    if (!send_all(fd, buffer, bytes))
        return socket_error(err, "cannot send");
    if (!receive_all(fd, buffer, bytes))
        return socket_error(err, "cannot receive");
    return SKEP_OK;
}

static skep_status run_echo(int fd, uint8_t *buffer, size_t bytes, size_t warmup, size_t rounds,
                            struct bench_samples *samples, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    /* One more than asked for: the first after a fork pays for the copies of the buffer's pages. */
    for (size_t i = 0; i <= warmup && rc == SKEP_OK; i++)
        rc = exchange(fd, buffer, bytes, err);
    for (size_t i = 0; i < rounds && rc == SKEP_OK; i++) {
        uint64_t start = bench_now_ns();
        rc = exchange(fd, buffer, bytes, err);
        if (rc == SKEP_OK && !bench_samples_add(samples, bench_now_ns() - start))
            rc = error_no_memory(err, "samples", rounds * sizeof(uint64_t));
    }
    return rc;
}

/* The child ends when its connection does, or by the kill if it hangs; either way it is waited for.
 */
static void reap(pid_t child)
{
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        continue;
}

skep_status bench_tcp_echo(size_t bytes, size_t warmup, size_t rounds,
                           struct bench_samples *samples, struct skep_error *err)
{
    int near = -1, far = -1;
    pid_t child = -1, self = getpid();
    uint8_t *buffer = NULL;
    skep_status rc = check_bytes(bytes, err);

    if (rc == SKEP_OK)
        rc = bench_samples_reserve(samples, rounds, err);
    if (rc != SKEP_OK)
        return rc;
    buffer = mem_alloc(bytes); /* the child gets its own copy by the fork */
    if (buffer == NULL)
        return error_no_memory(err, "TCP baseline", bytes);
    rc = connect_pair(&near, &far, err);
    if (rc != SKEP_OK)
        goto out;
    memset(buffer, 0x5a, bytes);
    child = fork();
    if (child == 0)
        echo_for_ever(far, buffer, bytes, self);
    if (child < 0) {
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "TCP baseline: cannot fork: %s",
                       strerror(errno));
        goto out;
    }
    close(far); /* else the end of the child would not end the connection */
    far = -1;
    rc = run_echo(near, buffer, bytes, warmup, rounds, samples, err);

out:
    if (near >= 0)
        close(near);
    if (far >= 0)
        close(far);
    if (child > 0)
        reap(child);
    mem_free(buffer);
    return rc;
}

/* ---- cipher ---- */

enum { MESSAGE_PLAIN = NOISE_MAX_MESSAGE - NOISE_TAG_BYTES };

/* Both directions of both ends. */
struct cipher_ends {
    struct noise_channel send;
    struct noise_channel receive;
};

/* One way: everything through both ends of one direction. The buffer has room for a tag behind each
 * message, so it is worked on message by message in a window that slides. */
static skep_status pass_through(struct cipher_ends *ends, uint8_t *buffer, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t n = bytes - at < MESSAGE_PLAIN ? bytes - at : MESSAGE_PLAIN;
        uint8_t *message = buffer + at + at / MESSAGE_PLAIN * NOISE_TAG_BYTES;
        skep_status rc = noise_channel_encrypt(&ends->send, message, n, message);
        if (rc == SKEP_OK)
            rc = noise_channel_decrypt(&ends->receive, message, n + NOISE_TAG_BYTES, message);
        if (rc != SKEP_OK)
            return rc;
        at += n;
    }
    return SKEP_OK;
}

skep_status bench_cipher_echo(enum noise_cipher cipher, size_t bytes, size_t warmup, size_t rounds,
                              struct bench_samples *samples, struct skep_error *err)
{
    struct cipher_ends there, back;
    const uint8_t keys[2][32] = {{1}, {2}}; /* the cost of a cipher does not depend on its key */
    skep_status rc = check_bytes(bytes, err);

    if (rc == SKEP_OK)
        rc = bench_samples_reserve(samples, rounds, err);
    if (rc != SKEP_OK)
        return rc;
    if (!noise_cipher_available(cipher))
        return error_set(err, SKEP_UNIMPLEMENTED, "cipher baseline: this CPU lacks cipher %d",
                         (int)cipher);
    size_t room = bytes + (bytes / MESSAGE_PLAIN + 1) * NOISE_TAG_BYTES;
    uint8_t *buffer = mem_alloc(room);
    if (buffer == NULL)
        return error_no_memory(err, "cipher baseline", room);
    memset(buffer, 0x5a, room);
    noise_channel_init(&there.send, cipher, keys[0]);
    noise_channel_init(&there.receive, cipher, keys[0]);
    noise_channel_init(&back.send, cipher, keys[1]);
    noise_channel_init(&back.receive, cipher, keys[1]);

    for (size_t i = 0; i < warmup + rounds && rc == SKEP_OK; i++) {
        uint64_t start = bench_now_ns();
        rc = pass_through(&there, buffer, bytes);
        if (rc == SKEP_OK)
            rc = pass_through(&back, buffer, bytes);
        if (rc != SKEP_OK)
            rc = error_set(err, SKEP_INTERNAL, "cipher baseline: %s", skep_status_text(rc));
        else if (i >= warmup && !bench_samples_add(samples, bench_now_ns() - start))
            rc = error_no_memory(err, "samples", rounds * sizeof(uint64_t));
    }
    noise_channel_wipe(&there.send);
    noise_channel_wipe(&there.receive);
    noise_channel_wipe(&back.send);
    noise_channel_wipe(&back.receive);
    mem_free(buffer);
    return rc;
}
