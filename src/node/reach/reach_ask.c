/* See reach_ask.h. */
#include "node/reach/reach_ask.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/text.h"
#include "base/thread.h"

enum {
    /* A peer gives its own try up after five seconds; connecting to it takes time too. */
    ASK_MS = 9000,
    MAX_AT_ONCE = 4,
};

struct dht_request {
    const struct reach_waiter *waiter;
    struct pool_call *call; /* while it is open; guarded by the waiter's lock, as all else */
    struct reach_answer *out;
    bool open;
};

/* Text of a stranger, for people: what it could do to a terminal is taken out. */
static void copy_text(const msgpack_object *o, char *out, size_t cap)
{
    char text[256];

    if (!mp_str(o, text, sizeof(text)))
        text[0] = '\0';
    text_tame(text);
    snprintf(out, cap, "%s", text);
}

skep_status reach_read_answer(const uint8_t *data, size_t len, struct reach_answer *out,
                              struct skep_error *err)
{
    struct mp mp = {0};
    char text[ENDPOINT_TEXT_BYTES];
    struct endpoint dialled;
    skep_status rc = mp_parse(&mp, data, len, "dial_back: result", err);

    if (rc == SKEP_OK && (!mp_str(mp_get(mp.root, "endpoint"), text, sizeof(text)) ||
                          !mp_bool(mp_get(mp.root, "reachable"), &out->reachable)))
        rc = error_set(err, SKEP_DATA_LOSS, "dial_back: result without endpoint or reachable");
    if (rc == SKEP_OK)
        rc = endpoint_parse(&dialled, text, false, err);
    if (rc == SKEP_OK) {
        struct address numeric;

        if (!endpoint_to_address(&dialled, &numeric))
            rc = error_set(err, SKEP_DATA_LOSS, "dial_back: endpoint is not an address");
        else
            out->dialled = dialled;
        out->has_dht = mp_bool(mp_get(mp.root, "dht_reachable"), &out->dht_reachable);
        copy_text(mp_get(mp.root, "message"), out->message, sizeof(out->message));
    }
    mp_free(&mp);
    return rc;
}

static void on_reply(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                     bool sent, const struct skep_error *err)
{
    struct dht_request *ask = arg;
    struct reach_answer *out = ask->out;
    struct skep_error local = {0};

    (void)sent;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    pthread_mutex_lock(ask->waiter->lock);
    if (reply == NULL) {
        out->status = err->status;
        snprintf(out->message, sizeof(out->message), "%s", err->message);
    } else if (reply->status != SKEP_OK) {
        out->status = reply->status;
        snprintf(out->message, sizeof(out->message), "%s: %s", skep_status_name(reply->status),
                 reply->message);
        text_tame(out->message);
    } else if (out->dialled.port != 0) { /* a dial_back: see reach_ask() */
        out->status = reach_read_answer(reply->result.data, reply->result.len, out, &local);
        if (out->status != SKEP_OK)
            snprintf(out->message, sizeof(out->message), "%s", local.message);
    }
    ask->open = false;
    ask->call = NULL;
    pthread_cond_broadcast(ask->waiter->changed);
    pthread_mutex_unlock(ask->waiter->lock);
}

static void start(struct dht_request *ask, struct pool *pool, const struct pool_target *target,
                  const struct call_headers *headers, uint32_t timeout_ms)
{
    struct skep_error err = {0};

    /* With the lock held, so that on_reply() comes after `call` has been written. */
    pthread_mutex_lock(ask->waiter->lock);
    ask->open = true;
    ask->out->status = pool_call(pool, target, headers, NULL, clock_deadline_us(timeout_ms),
                                 on_reply, ask, &ask->call, &err);
    if (ask->out->status != SKEP_OK) {
        ask->open = false;
        snprintf(ask->out->message, sizeof(ask->out->message), "%s", err.message);
    }
    pthread_mutex_unlock(ask->waiter->lock);
}

/* Each ends by its deadline, or soon after it was cancelled. */
static void wait_all(const struct reach_waiter *waiter, struct pool *pool, struct dht_request *asks,
                     size_t count)
{
    bool cancelled = false;

    pthread_mutex_lock(waiter->lock);
    for (size_t i = 0; i < count;) {
        if (!asks[i].open) {
            i++;
            continue;
        }
        if (*waiter->closing && !cancelled) {
            cancelled = true;
            for (size_t k = i; k < count; k++)
                if (asks[k].open)
                    pool_cancel(pool, asks[k].call);
        }
        pthread_cond_wait(waiter->changed, waiter->lock);
    }
    pthread_mutex_unlock(waiter->lock);
}

void reach_ask(const struct reach_waiter *waiter, struct pool *pool,
               const struct pool_target *const *targets, size_t count, uint16_t port,
               uint16_t dht_port, struct reach_answer *out)
{
    struct dht_request asks[MAX_AT_ONCE];
    msgpack_sbuffer params;
    msgpack_packer pk;

    if (count > MAX_AT_ONCE)
        count = MAX_AT_ONCE;
    msgpack_sbuffer_init(&params);
    msgpack_packer_init(&pk, &params, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, dht_port != 0 ? 2 : 1);
    bad |= mp_pack_str(&pk, "port");
    bad |= msgpack_pack_uint16(&pk, port);
    if (dht_port != 0) {
        bad |= mp_pack_str(&pk, "dht_port");
        bad |= msgpack_pack_uint16(&pk, dht_port);
    }
    struct call_headers headers = {.method = "dial_back",
                                   .params = {.data = (uint8_t *)params.data, .len = params.size}};
    for (size_t i = 0; i < count; i++) {
        out[i] = (struct reach_answer){.status = SKEP_RESOURCE_EXHAUSTED, .dialled.port = port};
        asks[i] = (struct dht_request){.waiter = waiter, .out = &out[i]};
        if (bad == 0)
            start(&asks[i], pool, targets[i], &headers, ASK_MS);
    }
    wait_all(waiter, pool, asks, count);
    msgpack_sbuffer_destroy(&params);
}

bool reach_dial_self(const struct reach_waiter *waiter, struct pool *pool,
                     const uint8_t peer_id[static PEER_ID_BYTES], const struct endpoint *endpoint,
                     uint32_t timeout_ms)
{
    struct pool_target target = {.has_peer_id = true, .exact = true, .endpoint_count = 1};
    struct call_headers headers = {.method = "ping"};
    struct reach_answer got = {0};
    struct dht_request ask = {.waiter = waiter, .out = &got};

    memcpy(target.peer_id, peer_id, PEER_ID_BYTES);
    target.endpoints[0] = *endpoint;
    start(&ask, pool, &target, &headers, timeout_ms);
    wait_all(waiter, pool, &ask, 1);
    return got.status == SKEP_OK;
}
