/* What each request of a connection does. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "tracker/server_internal.h"

static const char server_prefix[] = "server";
static const char key_prefix[] = "server:";

/* A sentence for the connection's end of the log, and the protocol's answer. */
static void reply(struct tracker_conn *conn, bool written)
{
    if (!written)
        tracker_conn_fail(conn, "out of memory for an answer");
}

static void reply_code(struct tracker_conn *conn, enum tracker_code code)
{
    reply(conn, tracker_write_code(&conn->out, code));
}

/* Answered FAIL, in the form that the request's answer has. */
static void reply_refused(struct tracker_conn *conn, enum tracker_code to, const char *why)
{
    log_debug("tracker: %s port %u: refused: %s", conn->host, (unsigned)conn->port, why);
    if (to == TRACKER_REQUEST)
        reply(conn, tracker_write_refusal(&conn->out, why));
    else
        reply_code(conn, TRACKER_FAIL);
}

bool tracker_assign(void *arg, struct scheduler_owner *to, const struct tracker_resource *resource,
                    uint64_t *mark)
{
    struct tracker_conn *conn =
        (struct tracker_conn *)((char *)to - offsetof(struct tracker_conn, owner));

    (void)arg;
    /* One that has just left must not swallow it: its end may not have been read yet. */
    if (!tracker_conn_is_there(conn))
        return false;
    reply(conn, tracker_write_resource(&conn->out, resource->address, resource->port,
                                       resource->match_key));
    *mark = tracker_conn_mark(conn);
    tracker_conn_touch(conn);
    return !conn->failed;
}

static struct tracker_text address_of(const struct tracker_conn *conn, struct tracker_text given)
{
    return given.data != NULL ? given : tracker_text(conn->host);
}

static void put(struct tracker_conn *conn, const struct tracker_request *r)
{
    struct skep_error err;
    const struct tracker_resource resource = {
        .address = address_of(conn, r->address),
        .port = r->port,
        .match_key = r->match_key,
    };

    if (scheduler_put(conn->server->scheduler, &conn->owner, r->key, &resource, clock_mono_us(),
                      &err) == SKEP_OK)
        reply_code(conn, TRACKER_SUCCESS);
    else
        reply_refused(conn, r->code, err.message);
}

static void request(struct tracker_conn *conn, const struct tracker_request *r)
{
    struct skep_error err;

    if (scheduler_ask(conn->server->scheduler, &conn->owner, r->key, r->user, r->priority,
                      clock_mono_us(), &err) != SKEP_OK &&
        !conn->failed)
        reply_refused(conn, r->code, err.message);
}

/* ---- info ---- */

/* The fields given now, over those given before: owned; NULL if memory is short. */
static json_t *merge(const struct tracker_conn *conn, const struct tracker_request *r)
{
    const struct tracker_text address = address_of(conn, r->address);
    const struct tracker_text before = {.data = conn->info, .len = conn->info_len};
    json_t *merged = NULL;

    if (json_object_set_new(r->info, "addr",
                            json_pack("[s%,i]", address.data, address.len, (int)r->port)) != 0)
        return NULL;
    if (before.data == NULL)
        return json_incref(r->info);
    merged = tracker_info_parse(before, NULL);
    if (merged != NULL && json_object_update(merged, r->info) != 0) {
        json_decref(merged);
        merged = NULL;
    }
    return merged;
}

static bool starts_with(struct tracker_text text, const char *prefix)
{
    size_t len = strlen(prefix);

    return text.len >= len && memcmp(text.data, prefix, len) == 0;
}

/* Under which key it is a server; absent if under none. */
static struct tracker_text served_key(struct tracker_text info_key)
{
    const size_t cut = sizeof(key_prefix) - 1;

    if (!starts_with(info_key, key_prefix))
        return (struct tracker_text){0};
    return (struct tracker_text){.data = info_key.data + cut, .len = info_key.len - cut};
}

/* All that can fail of keeping an info. @param out  owned: the connection's, by keep_info(). */
static skep_status prepare_info(const struct tracker_conn *conn, const struct bytes *text,
                                char **out, struct skep_error *err)
{
    size_t others = conn->server->info_bytes - conn->info_len;
    size_t neighbours = conn->address->info_bytes - conn->info_len;

    if (text->len > TRACKER_MAX_INFO_BYTES)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "info of %zu bytes, expected at most %d",
                         text->len, TRACKER_MAX_INFO_BYTES);
    if (text->len > TRACKER_MAX_ALL_INFO_BYTES - others)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED, "info of all servers: over %d bytes",
                         TRACKER_MAX_ALL_INFO_BYTES);
    if (text->len > TRACKER_MAX_ADDRESS_INFO_BYTES - neighbours)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "info of all servers at one address: over %d bytes",
                         TRACKER_MAX_ADDRESS_INFO_BYTES);
    *out = mem_alloc(text->len); /* without the buffer's spare room */
    if (*out == NULL)
        return error_no_memory(err, "info of a server", text->len);
    memcpy(*out, text->data, text->len);
    return SKEP_OK;
}

/* @param info  taken. */
static void keep_info(struct tracker_conn *conn, char *info, size_t len)
{
    conn->server->info_bytes += len - conn->info_len;
    conn->address->info_bytes += len - conn->info_len;
    mem_free(conn->info);
    conn->info = info;
    conn->info_len = len;
}

static void register_server(struct tracker_conn *conn, const struct tracker_request *r)
{
    bool is_server = starts_with(r->key, server_prefix);

    if (r->key.data == NULL)
        return;
    if (is_server && !conn->is_server)
        conn->server->counters.servers++;
    else if (!is_server && conn->is_server)
        conn->server->counters.servers--;
    conn->is_server = is_server;
}

static skep_status update_info(struct tracker_conn *conn, const struct tracker_request *r,
                               struct skep_error *err)
{
    struct bytes text = {0};
    json_t *merged = merge(conn, r);
    char *info = NULL;
    skep_status rc = SKEP_OK;

    if (merged == NULL || !tracker_append_info(&text, merged))
        rc = error_no_memory(err, "info of a server", TRACKER_MAX_INFO_BYTES);
    if (rc == SKEP_OK)
        rc = prepare_info(conn, &text, &info, err);
    /* The last that can fail: a refused update changes nothing. */
    if (rc == SKEP_OK && r->key.data != NULL)
        rc = scheduler_register(conn->server->scheduler, &conn->owner, served_key(r->key), err);
    if (rc == SKEP_OK) {
        keep_info(conn, info, text.len);
        info = NULL;
        register_server(conn, r);
    }
    mem_free(info);
    json_decref(merged);
    bytes_free(&text);
    return rc;
}

/* ---- lists ---- */

struct list {
    struct bytes *out;
    bool ok;
    bool begun; /* the first element is there */
};

static bool separate(struct list *list)
{
    bool ok = !list->begun || tracker_append(list->out, ", ");

    list->begun = true;
    return ok;
}

static bool add_match_key(void *arg, struct tracker_text match_key)
{
    struct list *list = arg;

    list->ok = separate(list) && tracker_append_text(list->out, match_key);
    return list->ok;
}

static void match_keys(struct tracker_conn *conn)
{
    struct list list = {.out = &conn->out, .ok = true};
    size_t start;

    if (!tracker_message_begin(list.out, &start) || !tracker_append(list.out, "["))
        list.ok = false;
    if (list.ok)
        scheduler_each_match_key(conn->server->scheduler, &conn->owner, add_match_key, &list);
    list.ok = list.ok && tracker_append(list.out, "]") && tracker_message_end(list.out, start);
    reply(conn, list.ok);
}

static bool add_key(void *arg, const struct scheduler_key_counters *counters)
{
    struct list *list = arg;
    struct bytes *out = list->out;

    list->ok = separate(list) && tracker_append_text(out, counters->key) &&
               tracker_append(out, ": {\"free\": ") &&
               tracker_append_number(out, (int64_t)counters->free) &&
               tracker_append(out, ", \"pending\": ") &&
               tracker_append_number(out, (int64_t)counters->pending) && tracker_append(out, "}");
    return list->ok;
}

bool tracker_append_summary(struct tracker_server *server, struct bytes *out)
{
    struct list queues = {.out = out, .ok = tracker_append(out, "{\"queue_info\": {")};
    struct list infos = {.out = out};

    if (queues.ok)
        scheduler_each_key(server->scheduler, add_key, &queues);
    infos.ok = queues.ok && tracker_append(out, "}, \"server_info\": [");
    for (struct list_link *l = server->conns.first; infos.ok && l != NULL; l = l->next) {
        const struct tracker_conn *c = tracker_conn_in_conns(l);
        if (c->is_server)
            infos.ok = separate(&infos) && bytes_append(out, c->info, c->info_len);
    }
    return infos.ok && tracker_append(out, "]}");
}

static void summary(struct tracker_conn *conn)
{
    struct bytes *out = &conn->out;
    size_t start;

    reply(conn, tracker_message_begin(out, &start) && tracker_append(out, "[0, ") &&
                    tracker_append_summary(conn->server, out) && tracker_append(out, "]") &&
                    tracker_message_end(out, start));
}

/* ---- DHT peers ---- */

static void dht_peers(struct tracker_conn *conn)
{
    struct tracker_server *server = conn->server;
    struct bytes json = {0};

    if (server->events.dht_peers == NULL)
        tracker_conn_fail(conn, "asked for DHT peers, but takes no part in a DHT");
    else if (server->events.dht_peers(server->arg, &json))
        reply(conn, tracker_write_message(&conn->out, (const char *)json.data, json.len));
    else
        reply(conn, tracker_write_refusal(&conn->out, "no DHT peer is known"));
    bytes_free(&json);
}

/* ---- all ---- */

/* In a time that does not tell how much of it was right. */
static bool is_stop_key(const struct tracker_server *server, struct tracker_text given)
{
    size_t len = strlen(server->stop_key);
    unsigned char different = 0;

    if (given.data == NULL || given.len != len)
        return false;
    for (size_t i = 0; i < len; i++)
        different |= (unsigned char)(given.data[i] ^ server->stop_key[i]);
    return different == 0;
}

static void stop(struct tracker_conn *conn, const struct tracker_request *r)
{
    if (!is_stop_key(conn->server, r->stop_key)) {
        log_warn("tracker: %s port %u: STOP with a wrong key", conn->host, (unsigned)conn->port);
        reply_code(conn, TRACKER_FAIL);
        return;
    }
    reply_code(conn, TRACKER_SUCCESS);
    tracker_server_request_stop(conn->server);
}

static void carry_out(struct tracker_conn *conn, const struct tracker_request *r)
{
    struct skep_error err;

    conn->server->counters.messages++;
    tracker_conn_note_arrived(conn);
    switch (r->code) {
    case TRACKER_PING:
        reply_code(conn, TRACKER_SUCCESS);
        break;
    case TRACKER_STOP:
        stop(conn, r);
        break;
    case TRACKER_PUT:
        put(conn, r);
        break;
    case TRACKER_REQUEST:
        request(conn, r);
        break;
    case TRACKER_UPDATE_INFO:
        if (update_info(conn, r, &err) == SKEP_OK)
            reply_code(conn, TRACKER_SUCCESS);
        else
            reply_refused(conn, r->code, err.message);
        break;
    case TRACKER_SUMMARY:
        summary(conn);
        break;
    case TRACKER_GET_PENDING_MATCHKEYS:
        match_keys(conn);
        break;
    case TRACKER_DHT_PEERS:
        dht_peers(conn);
        break;
    case TRACKER_FAIL:
    case TRACKER_SUCCESS:
        break; /* never parsed */
    }
}

void tracker_handle_message(struct tracker_conn *conn, struct tracker_text message)
{
    struct tracker_request r;
    struct skep_error err;
    skep_status rc = tracker_request_parse(&r, message, &err);

    if (rc == SKEP_OK)
        carry_out(conn, &r);
    else if (rc == SKEP_INVALID_ARGUMENT)
        reply_refused(conn, r.code, err.message);
    else
        tracker_conn_fail(conn, err.message);
    if (rc == SKEP_OK || rc == SKEP_INVALID_ARGUMENT)
        tracker_request_free(&r);
}
