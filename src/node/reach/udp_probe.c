/* See udp_probe.h. */
#include "node/reach/udp_probe.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "dht/opendht/udp_ping.h"

enum {
    TRIES = 3,
    TRY_MS = 1000,
    ANSWER_BYTES = 1500,
    READS_A_TURN = 4,
};

struct udp_probe {
    struct loop_job job; /* first, so that the pointers convert */
    struct udp_probes *probes;
    struct list_link in_all;
    struct address address;
    uv_poll_t poll;
    int fd; /* ours to close, not libuv's; -1: not open */
    uv_timer_t timer;
    unsigned handles; /* open: the timer, and the poll too */
    unsigned tries;
    bool ended;
    uint32_t id;
    size_t ping_len;
    uint8_t ping[UDP_PING_MAX_BYTES];
    udp_probe_fn done;
    void *arg;
};

void udp_probes_init(struct udp_probes *probes)
{
    *probes = (struct udp_probes){0};
    pthread_mutex_init(&probes->lock, NULL);
}

static void on_closed(uv_handle_t *handle)
{
    struct udp_probe *p = handle->data;

    if (--p->handles == 0)
        mem_free(p);
}

static void end(struct udp_probe *p, bool answered)
{
    if (p->ended)
        return;
    p->ended = true;
    list_remove(&p->probes->all, &p->in_all);
    p->done(p->arg, answered);
    uv_close((uv_handle_t *)&p->timer, on_closed);
    if (p->handles > 1)
        uv_close((uv_handle_t *)&p->poll, on_closed);
    if (p->fd >= 0)
        close(p->fd);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct udp_probe *p = poll->data;
    uint8_t answer[ANSWER_BYTES];
    ssize_t len;

    (void)status;
    (void)events;
    loop_enter(p->probes->loop);
    /* An error is "port unreachable" of an earlier ping; a later one may still be answered. The
     * socket is connected, so nobody else gets through. */
    for (int i = 0; i < READS_A_TURN; i++) {
        len = recv(p->fd, answer, sizeof(answer), MSG_DONTWAIT);
        if (len > 0 && udp_ping_is_answer(answer, (size_t)len, p->id)) {
            end(p, true);
            return;
        }
    }
}

static void on_time(uv_timer_t *timer)
{
    struct udp_probe *p = timer->data;

    if (p->tries++ == TRIES)
        end(p, false);
    else if (send(p->fd, p->ping, p->ping_len, MSG_DONTWAIT) < 0)
        log_debug("probe: ping not sent: %s", strerror(errno)); /* as good as lost */
}

/* False if that failed; what is open then, end() closes. */
static bool open_socket(struct udp_probe *p, uv_loop_t *loop)
{
    const struct sockaddr *sa = (const struct sockaddr *)&p->address.sa;

    p->fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (p->fd < 0)
        return false;
    p->fd = fd_move_high(p->fd);
    if (connect(p->fd, sa, p->address.len) != 0 || uv_poll_init(loop, &p->poll, p->fd) != 0)
        return false;
    p->poll.data = p;
    p->handles++;
    return uv_poll_start(&p->poll, UV_READABLE, on_readable) == 0;
}

static void begin(struct loop_job *job)
{
    struct udp_probe *p = (struct udp_probe *)job;
    struct udp_probes *probes = p->probes;
    uv_loop_t *loop = loop_uv(probes->loop);

    list_append(&probes->all, &p->in_all);
    uv_timer_init(loop, &p->timer); /* never fails */
    p->timer.data = p;
    p->handles = 1;
    if (!open_socket(p, loop))
        end(p, false);
    else
        uv_timer_start(&p->timer, on_time, 0, TRY_MS);
}

static void end_all(void *arg)
{
    struct udp_probes *probes = arg;

    while (probes->all.first != NULL)
        end(LIST_HOLDER(probes->all.first, struct udp_probe, in_all), false);
}

void udp_probes_fini(struct udp_probes *probes)
{
    if (probes->loop != NULL) {
        loop_call(probes->loop, end_all, probes);
        loop_free(probes->loop);
    }
    probes->loop = NULL;
    pthread_mutex_destroy(&probes->lock);
}

skep_status udp_probe_start(struct udp_probes *probes, const struct address *address,
                            uint32_t network_id, udp_probe_fn done, void *arg,
                            struct skep_error *err)
{
    struct udp_probe *p = mem_calloc(1, sizeof(*p));
    skep_status rc = SKEP_OK;

    if (p == NULL)
        return error_no_memory(err, "UDP probe", sizeof(*p));
    pthread_mutex_lock(&probes->lock);
    if (probes->loop == NULL)
        rc = loop_new("skep-probe", &probes->loop, err);
    pthread_mutex_unlock(&probes->lock);
    if (rc != SKEP_OK) {
        mem_free(p);
        return rc;
    }
    *p = (struct udp_probe){.job = {.run = begin},
                            .probes = probes,
                            .address = *address,
                            .fd = -1,
                            .id = randombytes_random(),
                            .done = done,
                            .arg = arg};
    p->ping_len = udp_ping_write(network_id, p->id, p->ping);
    loop_post(probes->loop, &p->job);
    return SKEP_OK;
}
