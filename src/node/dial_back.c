/* See dial_back.h and docs/methods.md. */
#include "node/dial_back.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "net/pool.h"

enum {
    MAX_UNDER_WAY = 16,
    TIMEOUT_MS = 5000, /* of one try, whatever the caller allows */
    IDLE_MS = 1000,    /* the connection has done its work once the ping is answered */
};

struct dial_back {
    struct dial_back_config config;
    pthread_mutex_t lock; /* guards the making of `pool` */
    struct pool *pool;    /* owned; NULL until needed */
    atomic_int under_way;
};

struct attempt {
    struct dial_back *dial_back;
    struct server_call *call;
    struct endpoint endpoint;
};

skep_status dial_back_new(const struct dial_back_config *config, struct dial_back **out,
                          struct skep_error *err)
{
    struct dial_back *dial_back = mem_calloc(1, sizeof(*dial_back));

    *out = dial_back;
    if (dial_back == NULL)
        return error_no_memory(err, "dial_back", sizeof(*dial_back));
    dial_back->config = *config;
    pthread_mutex_init(&dial_back->lock, NULL);
    return SKEP_OK;
}

void dial_back_free(struct dial_back *dial_back)
{
    if (dial_back == NULL)
        return;
    pool_free(dial_back->pool);
    pthread_mutex_destroy(&dial_back->lock);
    mem_free(dial_back);
}

static skep_status get_pool(struct dial_back *dial_back, struct pool **out, struct skep_error *err)
{
    const struct dial_back_config *config = &dial_back->config;
    struct pool_config pool_config = {
        .identity = config->identity,
        .psk = config->psk,
        .plaintext = config->plaintext,
        .swarm = config->swarm,
        .limits = session_default_limits,
        .max_connections = MAX_UNDER_WAY,
        .connect_timeout_ms = TIMEOUT_MS,
        .idle_timeout_ms = IDLE_MS,
    };
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&dial_back->lock);
    if (dial_back->pool == NULL)
        rc = pool_new(&pool_config, &dial_back->pool, err);
    *out = dial_back->pool;
    pthread_mutex_unlock(&dial_back->lock);
    return rc;
}

static void refuse(struct server_call *call, const struct skep_error *err)
{
    server_call_reply(call, err, NULL, 0, NULL, 0);
}

static skep_status read_port(struct server_call *call, uint16_t *port, struct skep_error *err)
{
    const struct bytes *params = &server_call_headers(call)->params;
    struct mp mp = {0};
    uint64_t value = 0;
    skep_status rc = mp_parse(&mp, params->data, params->len, "dial_back: params", err);

    if (rc == SKEP_OK &&
        (!mp_u64(mp_get(mp.root, "port"), &value) || value < 1 || value > UINT16_MAX))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "dial_back: no port, expected 1 to 65535");
    mp_free(&mp);
    *port = (uint16_t)value;
    return rc;
}

static void answer(struct attempt *attempt, skep_status status, const char *message)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    char text[ENDPOINT_TEXT_BYTES];
    struct skep_error err;
    int bad;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    bad = msgpack_pack_map(&pk, 4);
    bad |= mp_pack_str(&pk, "endpoint");
    bad |= mp_pack_str(&pk, endpoint_format(&attempt->endpoint, text));
    bad |= mp_pack_str(&pk, "reachable");
    bad |= status == SKEP_OK ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk);
    bad |= mp_pack_str(&pk, "status");
    bad |= mp_pack_str(&pk, skep_status_name(status));
    bad |= mp_pack_str(&pk, "message");
    bad |= mp_pack_str(&pk, message);
    if (bad != 0) {
        error_no_memory(&err, "reply", buffer.size);
        refuse(attempt->call, &err);
    } else {
        server_call_reply(attempt->call, NULL, (const uint8_t *)buffer.data, buffer.size, NULL, 0);
    }
    msgpack_sbuffer_destroy(&buffer);
}

static void on_done(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                    bool sent, const struct skep_error *err)
{
    struct attempt *attempt = arg;

    (void)sent;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    atomic_fetch_sub(&attempt->dial_back->under_way, 1);
    if (reply != NULL) /* whatever it said, it is there and is who it should be */
        answer(attempt, SKEP_OK, "");
    else
        answer(attempt, err->status, err->message);
    mem_free(attempt);
}

static skep_status dial(struct dial_back *dial_back, struct server_call *call,
                        struct skep_error *err)
{
    struct pool_target target = {.has_peer_id = true, .endpoint_count = 1};
    struct call_headers headers = {.method = "ping"};
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);
    struct attempt *attempt = NULL;
    struct pool *pool;
    uint16_t port;
    skep_status rc = read_port(call, &port, err);

    if (rc == SKEP_OK)
        rc = get_pool(dial_back, &pool, err);
    if (rc != SKEP_OK)
        return rc;
    attempt = mem_calloc(1, sizeof(*attempt));
    if (attempt == NULL)
        return error_no_memory(err, "dial_back", sizeof(*attempt));
    attempt->dial_back = dial_back;
    attempt->call = call;
    server_call_peer_address(call, &attempt->endpoint);
    attempt->endpoint.port = port;
    target.endpoints[0] = attempt->endpoint;
    memcpy(target.peer_id, server_call_peer_id(call), PEER_ID_BYTES);
    if (server_call_deadline_us(call) < deadline)
        deadline = server_call_deadline_us(call);
    rc = pool_call(pool, &target, &headers, NULL, deadline, on_done, attempt, NULL, err);
    if (rc != SKEP_OK)
        mem_free(attempt);
    return rc;
}

void dial_back_start(struct dial_back *dial_back, struct server_call *call)
{
    struct skep_error err;

    if (dial_back == NULL) {
        error_set(&err, SKEP_UNIMPLEMENTED, "dial_back: not offered by this node");
        refuse(call, &err);
        return;
    }
    if (atomic_fetch_add(&dial_back->under_way, 1) >= MAX_UNDER_WAY)
        error_set(&err, SKEP_RESOURCE_EXHAUSTED, "dial_back: %d under way, try later",
                  MAX_UNDER_WAY);
    else if (dial(dial_back, call, &err) == SKEP_OK)
        return; /* on_done() answers and counts */
    atomic_fetch_sub(&dial_back->under_way, 1);
    refuse(call, &err);
}
