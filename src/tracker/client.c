/* A connection to a tracker: see client.h. Connecting is in client_connect.c. */
#include "tracker/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "tracker/client_internal.h"

enum { RECEIVE_BYTES = 64 * 1024 };

/* ---- the end ---- */

static struct tracker_call *take_call(struct tracker_client *client)
{
    struct tracker_call *call = client->first;

    client->first = call->next;
    if (client->first == NULL)
        client->end = &client->first;
    client->call_count--;
    client->sent = false;
    return call;
}

static void free_call(struct tracker_call *call)
{
    bytes_free(&call->message);
    mem_free(call);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct tracker_client *client = handle->data;

    while (client->first != NULL) {
        struct tracker_call *call = take_call(client);
        call->fn(call->arg, NULL, &client->failure);
        free_call(call);
    }
    if (client->config.closed != NULL)
        client->config.closed(client->config.arg, &client->failure);
    bytes_free(&client->out);
    tracker_input_free(&client->input);
    mem_free(client);
}

void client_fail(struct tracker_client *client, const struct skep_error *why)
{
    if (client->closing)
        return;
    client->closing = true;
    client->failure = *why;
    loop_lookup_end(client->lookup);
    client->lookup = NULL;
    client_drop_link(client);
    uv_close((uv_handle_t *)&client->timer, on_timer_closed);
}

void client_fail_with(struct tracker_client *client, skep_status status, const char *what)
{
    char name[ENDPOINT_TEXT_BYTES];
    struct skep_error err;

    error_set(&err, status, "%s: %s", endpoint_format(&client->config.tracker, name), what);
    client_fail(client, &err);
}

void tracker_client_close(struct tracker_client *client)
{
    if (client != NULL)
        client_fail_with(client, SKEP_CANCELLED, "closed");
}

/* ---- time ---- */

static uint64_t next_due(const struct tracker_client *client)
{
    uint64_t due = client->greeted ? CLOCK_NEVER : client->address_deadline_us;

    for (const struct tracker_call *call = client->first; call != NULL; call = call->next)
        if (call->deadline_us < due)
            due = call->deadline_us;
    return due;
}

static void on_timer(uv_timer_t *timer)
{
    struct tracker_client *client = timer->data;

    if (next_due(client) > clock_mono_us())
        client_arm(client);
    else if (client->greeted)
        client_fail_with(client, SKEP_DEADLINE_EXCEEDED, "has not answered in time");
    else
        client_connect_timed_out(client);
}

void client_arm(struct tracker_client *client)
{
    if (client->closing)
        return;
    uint64_t due = next_due(client);
    if (due == CLOCK_NEVER)
        uv_timer_stop(&client->timer);
    else
        uv_timer_start(&client->timer, on_timer, clock_left_ms(due), 0);
}

/* ---- sending ---- */

static size_t unsent(const struct tracker_client *client)
{
    return client->out.len - client->out_at;
}

static void lost(struct tracker_client *client, const char *doing, int error_number)
{
    char what[160];

    if (error_number == 0)
        snprintf(what, sizeof(what), "the tracker closed the connection");
    else
        snprintf(what, sizeof(what), "connection lost: %s: %s", doing, strerror(error_number));
    client_fail_with(client, SKEP_UNAVAILABLE, what);
}

void client_send(struct tracker_client *client)
{
    while (!client->closing && unsent(client) > 0) {
        ssize_t n =
            send(client->link->fd, client->out.data + client->out_at, unsent(client), MSG_NOSIGNAL);
        if (n > 0)
            client->out_at += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            break;
        else if (n < 0 && errno != EINTR)
            lost(client, "sending", errno);
    }
    if (client->closing)
        return;
    if (unsent(client) == 0) {
        client->out.len = 0;
        client->out_at = 0;
    }
    client_watch(client, unsent(client) > 0 ? UV_READABLE | UV_WRITABLE : UV_READABLE);
}

/* The first call goes out when nothing else is under way. */
static void send_first(struct tracker_client *client)
{
    struct tracker_call *call = client->first;

    if (client->closing || !client->greeted || client->sent || call == NULL)
        return;
    if (!bytes_append(&client->out, call->message.data, call->message.len)) {
        client_fail_with(client, SKEP_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    client->sent = true;
    client_send(client);
}

/* ---- receiving ---- */

static void take_reply(struct tracker_client *client, struct tracker_text message)
{
    struct skep_error err;

    if (client->first == NULL || !client->sent) {
        client_fail_with(client, SKEP_DATA_LOSS, "an answer that was not asked for");
        return;
    }
    json_t *reply = tracker_json_parse(message, &err);
    if (reply == NULL) {
        client_fail_with(client, SKEP_DATA_LOSS, err.message);
        return;
    }
    struct tracker_call *call = take_call(client);
    call->fn(call->arg, reply, NULL); /* may close the client, or call again */
    free_call(call);
    json_decref(reply);
    send_first(client);
    client_arm(client);
}

static void greeted(struct tracker_client *client)
{
    client->greeted = true;
    client_arm(client);
    if (client->config.connected != NULL)
        client->config.connected(client->config.arg, client);
    send_first(client);
}

static void handle_input(struct tracker_client *client)
{
    struct tracker_text message;
    struct skep_error err;

    while (!client->closing) {
        switch (
            tracker_input_next(&client->input, TRACKER_CLIENT_MAX_REPLY_BYTES, &message, &err)) {
        case TRACKER_INPUT_MORE:
            return;
        case TRACKER_INPUT_GREETING:
            greeted(client);
            break;
        case TRACKER_INPUT_MESSAGE:
            take_reply(client, message);
            break;
        case TRACKER_INPUT_BAD:
            if (client->greeted)
                client_fail_with(client, SKEP_DATA_LOSS, err.message);
            else
                client_is_no_tracker(client, "it answers with other bytes");
            break;
        }
    }
}

bool client_receive(struct tracker_client *client)
{
    uint8_t buffer[RECEIVE_BYTES];
    ssize_t n = recv(client->link->fd, buffer, sizeof(buffer), 0);

    if (n > 0) {
        bool ok = tracker_input_push(&client->input, buffer, (size_t)n);
        if (ok)
            handle_input(client);
        if (!client->closing && (!ok || !tracker_input_settle(&client->input)))
            client_fail_with(client, SKEP_RESOURCE_EXHAUSTED, "out of memory");
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        if (client->greeted)
            lost(client, "receiving", n == 0 ? 0 : errno);
        else
            client_is_no_tracker(client, "it closes the connection without an answer");
    } else {
        return errno == EINTR;
    }
    return true;
}

/* ---- opening, calling ---- */

skep_status tracker_client_open(const struct tracker_client_config *config,
                                struct tracker_client **out, struct skep_error *err)
{
    struct tracker_client *client = mem_calloc(1, sizeof(*client));

    *out = NULL;
    if (client == NULL)
        return error_no_memory(err, "tracker's client", sizeof(*client));
    client->config = *config;
    client->end = &client->first;
    uv_timer_init(loop_uv(config->loop), &client->timer);
    client->timer.data = client;
    client_connect(client);
    *out = client;
    return SKEP_OK;
}

skep_status tracker_client_call(struct tracker_client *client, const struct bytes *message,
                                uint64_t deadline_us, tracker_reply_fn fn, void *arg,
                                struct skep_error *err)
{
    if (client->closing)
        return error_set(err, SKEP_UNAVAILABLE, "the connection to the tracker is closed");
    if (client->call_count >= TRACKER_CLIENT_MAX_CALLS)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "%d calls wait for the tracker",
                         TRACKER_CLIENT_MAX_CALLS);
    struct tracker_call *call = mem_calloc(1, sizeof(*call));
    if (call == NULL || !bytes_append(&call->message, message->data, message->len)) {
        mem_free(call);
        return error_no_memory(err, "call of the tracker", message->len);
    }
    call->fn = fn;
    call->arg = arg;
    call->deadline_us = deadline_us;
    *client->end = call;
    client->end = &call->next;
    client->call_count++;
    send_first(client);
    client_arm(client);
    return SKEP_OK;
}
