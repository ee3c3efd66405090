/*
 * Reaching a tracker: its name, then its addresses one after the other until one greets. What
 * failed is gathered into one sentence.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "tracker/client_internal.h"

static void try_next(struct tracker_client *client);
static void on_poll(uv_poll_t *handle, int status, int events);

/* ---- sockets ---- */

static void on_link_closed(uv_handle_t *handle)
{
    mem_free(handle->data);
}

void client_drop_link(struct tracker_client *client)
{
    struct client_link *link = client->link;

    if (link == NULL)
        return;
    client->link = NULL;
    link->client = NULL;
    uv_close((uv_handle_t *)&link->poll, on_link_closed);
    close(link->fd);
}

void client_watch(struct tracker_client *client, int events)
{
    struct client_link *link = client->link;

    if (link->watching == events)
        return;
    link->watching = events;
    uv_poll_start(&link->poll, events, on_poll);
}

static bool open_link(struct tracker_client *client, const struct address *to)
{
    int on = 1;
    int fd = socket(to->sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct client_link *link = mem_calloc(1, sizeof(*link));

    if (fd >= 0)
        fd = fd_move_high(fd);
    if (fd < 0 || link == NULL ||
        (connect(fd, (const struct sockaddr *)&to->sa, to->len) != 0 && errno != EINPROGRESS) ||
        uv_poll_init(loop_uv(client->config.loop), &link->poll, fd) != 0) {
        int error_number = errno;
        mem_free(link);
        if (fd >= 0)
            close(fd);
        errno = error_number;
        return false;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    link->fd = fd;
    link->client = client;
    link->poll.data = link;
    client->link = link;
    client_watch(client, UV_WRITABLE);
    return true;
}

/* ---- failures ---- */

/* Adds one address's failure to the sentence. What is no tracker says more than what is not there.
 */
static void add_failure(struct tracker_client *client, skep_status status, const char *what)
{
    struct skep_error *all = &client->failure;
    size_t len = strlen(all->message);
    char name[ENDPOINT_TEXT_BYTES], address[ENDPOINT_TEXT_BYTES];
    struct endpoint e;

    endpoint_from_address(&e, (const struct sockaddr *)&client->addresses[client->address_at].sa);
    endpoint_format(&e, address);
    if (len == 0 && strcmp(e.host, client->config.tracker.host) == 0)
        error_set(all, status, "%s: %s", address, what);
    else if (len == 0)
        error_set(all, status, "%s: %s: %s", endpoint_format(&client->config.tracker, name),
                  address, what);
    else
        snprintf(all->message + len, sizeof(all->message) - len, "; %s: %s", address, what);
    if (status == SKEP_FAILED_PRECONDITION ||
        (status == SKEP_DEADLINE_EXCEEDED && all->status == SKEP_UNAVAILABLE))
        all->status = status;
}

static void address_failed(struct tracker_client *client, skep_status status, const char *what)
{
    struct skep_error why;

    add_failure(client, status, what);
    client_drop_link(client);
    tracker_input_free(&client->input);
    client->out.len = 0;
    client->out_at = 0;
    client->address_at++;
    if (client->address_at < client->address_count) {
        try_next(client);
        return;
    }
    why = client->failure;
    client_fail(client, &why);
}

void client_is_no_tracker(struct tracker_client *client, const char *why)
{
    char what[160];

    snprintf(what, sizeof(what), "this is not a tracker: %s", why);
    address_failed(client, SKEP_FAILED_PRECONDITION, what);
}

void client_connect_timed_out(struct tracker_client *client)
{
    char what[160];
    unsigned waited = (unsigned)client->config.connect_timeout_ms;

    if (client->lookup != NULL) {
        client_fail_with(client, SKEP_DEADLINE_EXCEEDED, "the name was not resolved in time");
        return;
    }
    if (client->link != NULL && client->link->connected)
        snprintf(what, sizeof(what),
                 "accepts the connection and stays silent (limit %u ms): is this a tracker?",
                 waited);
    else
        snprintf(what, sizeof(what), "cannot connect: no answer (limit %u ms)", waited);
    address_failed(client, SKEP_DEADLINE_EXCEEDED, what);
}

/* ---- connecting ---- */

static void on_connected(struct tracker_client *client)
{
    int error_number = 0;
    socklen_t len = sizeof(error_number);
    char what[160];

    getsockopt(client->link->fd, SOL_SOCKET, SO_ERROR, &error_number, &len);
    if (error_number != 0) {
        snprintf(what, sizeof(what), "cannot connect: %s", strerror(error_number));
        address_failed(client, SKEP_UNAVAILABLE, what);
        return;
    }
    client->link->connected = true;
    if (!tracker_write_magic(&client->out))
        client_fail_with(client, SKEP_RESOURCE_EXHAUSTED, "out of memory");
    else
        client_send(client);
}

/* The socket is broken, and libuv has stopped watching it: what came before that still counts. */
static void read_rest(struct tracker_client *client, struct client_link *link)
{
    link->watching = 0;
    while (client->link == link)
        if (!client_receive(client))
            break;
    if (client->link != link)
        return;
    address_failed(client, SKEP_UNAVAILABLE, "connection lost: the socket has an error");
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct client_link *link = handle->data;
    struct tracker_client *client = link->client;

    if (client == NULL)
        return;
    loop_enter(client->config.loop);
    if (!link->connected)
        on_connected(client);
    else if (status < 0)
        read_rest(client, link);
    else if ((events & UV_READABLE) != 0)
        client_receive(client);
    else
        client_send(client);
}

/* Each address gets its share of the time that is left, so that a dead one leaves some. */
static void try_next(struct tracker_client *client)
{
    uint64_t left = clock_left_ms(client->connect_deadline_us);
    char what[160];

    client->address_deadline_us =
        clock_deadline_us(left / (client->address_count - client->address_at));
    client_arm(client);
    if (open_link(client, &client->addresses[client->address_at]))
        return;
    snprintf(what, sizeof(what), "cannot connect: %s", strerror(errno));
    address_failed(client, SKEP_UNAVAILABLE, what);
}

/* ---- names ---- */

static void on_looked_up(void *arg, const struct lookup_answer *answer)
{
    struct tracker_client *client = arg;

    client->lookup = NULL;
    client->address_count = answer->count;
    memcpy(client->addresses, answer->addresses, answer->count * sizeof(answer->addresses[0]));
    if (answer->status == SKEP_OK)
        try_next(client);
    else
        client_fail(client, &answer->err); /* it names the host */
}

static void look_up(struct tracker_client *client)
{
    struct skep_error err;

    if (loop_lookup_start(client->config.loop, &client->config.tracker, false, on_looked_up, client,
                          &client->lookup, &err) == SKEP_OK)
        client_arm(client);
    else
        client_fail(client, &err);
}

void client_connect(struct tracker_client *client)
{
    client->connect_deadline_us = clock_deadline_us(client->config.connect_timeout_ms);
    client->address_deadline_us = client->connect_deadline_us;
    if (endpoint_to_address(&client->config.tracker, &client->addresses[0])) {
        client->address_count = 1;
        try_next(client);
    } else {
        look_up(client);
    }
}
