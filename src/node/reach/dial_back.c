/* See dial_back.h and docs/methods.md. */
#include "node/reach/dial_back.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/thread.h"
#include "net/pool.h"
#include "node/rpc/answer.h"
#include "node/reach/udp_probe.h"

enum {
    MAX_UNDER_WAY = 16,
    MAX_OF_ONE_ADDRESS = 4, /* of these */
    TIMEOUT_MS = 5000,      /* of one try, whatever the caller allows */
    IDLE_MS = 1000,         /* the connection has done its work once the ping is answered */
};

enum dht_answer { DHT_NOT_ASKED, DHT_SILENT, DHT_ANSWERS };

/* One call: a try of the TCP port and perhaps one of the UDP port; the last to end answers. */
struct attempt {
    struct dial_back *dial_back;
    struct attempt *next;
    struct server_call *call;
    struct endpoint endpoint;
    uint16_t dht_port;  /* 0: not asked for */
    atomic_int open;    /* tries under way */
    skep_status status; /* this and the next: written by the TCP try */
    char message[256];
    enum dht_answer dht; /* written by the UDP try */
};

struct dial_back {
    struct dial_back_config config;
    pthread_mutex_t lock;   /* guards the making of `pool`, and the next six */
    pthread_cond_t started; /* no call is being started any more */
    unsigned starting;      /* calls that are using `pool` and `probes` to begin */
    bool closed;            /* nothing begins any more */
    struct pool *pool;      /* owned; NULL until needed */
    struct attempt *attempts;
    int under_way;
    struct udp_probes probes;
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
    cond_init(&dial_back->started);
    udp_probes_init(&dial_back->probes);
    return SKEP_OK;
}

void dial_back_close(struct dial_back *dial_back)
{
    if (dial_back == NULL)
        return;
    pthread_mutex_lock(&dial_back->lock);
    bool closed = dial_back->closed;
    dial_back->closed = true;
    while (dial_back->starting > 0) /* they block on nothing */
        pthread_cond_wait(&dial_back->started, &dial_back->lock);
    pthread_mutex_unlock(&dial_back->lock);
    if (closed)
        return;
    pool_free(dial_back->pool);
    udp_probes_fini(&dial_back->probes);
}

void dial_back_free(struct dial_back *dial_back)
{
    if (dial_back == NULL)
        return;
    dial_back_close(dial_back);
    pthread_cond_destroy(&dial_back->started);
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

static skep_status read_params(struct server_call *call, struct attempt *attempt,
                               struct skep_error *err)
{
    const struct bytes *params = &server_call_headers(call)->params;
    struct mp mp = {0};
    uint64_t port = 0;
    uint64_t dht_port = 0;
    skep_status rc = mp_parse(&mp, params->data, params->len, "dial_back: params", err);

    if (rc == SKEP_OK && (!mp_u64(mp_get(mp.root, "port"), &port) || port < 1 || port > UINT16_MAX))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "dial_back: no port, expected 1 to 65535");
    if (rc == SKEP_OK && mp_get(mp.root, "dht_port") != NULL &&
        (!mp_u64(mp_get(mp.root, "dht_port"), &dht_port) || dht_port < 1 || dht_port > UINT16_MAX))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "dial_back: bad dht_port, expected 1 to 65535");
    mp_free(&mp);
    server_call_peer_address(call, &attempt->endpoint);
    attempt->endpoint.port = (uint16_t)port;
    attempt->dht_port = (uint16_t)dht_port;
    return rc;
}

/* --- attempts ------------------------------------------------------------------------------ */

/* Counts it in: at most so many at once, and of one address. */
static skep_status enter(struct attempt *attempt, struct skep_error *err)
{
    struct dial_back *dial_back = attempt->dial_back;
    int of_address = 0;
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&dial_back->lock);
    for (const struct attempt *a = dial_back->attempts; a != NULL; a = a->next)
        of_address += strcmp(a->endpoint.host, attempt->endpoint.host) == 0;
    if (dial_back->under_way >= MAX_UNDER_WAY)
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "dial_back: %d under way, try later",
                       MAX_UNDER_WAY);
    else if (of_address >= MAX_OF_ONE_ADDRESS)
        rc = error_set(err, SKEP_RESOURCE_EXHAUSTED, "dial_back: %d of %s under way, try later",
                       MAX_OF_ONE_ADDRESS, attempt->endpoint.host);
    if (rc == SKEP_OK) {
        attempt->next = dial_back->attempts;
        dial_back->attempts = attempt;
        dial_back->under_way++;
    }
    pthread_mutex_unlock(&dial_back->lock);
    return rc;
}

static void leave(struct attempt *attempt)
{
    struct dial_back *dial_back = attempt->dial_back;
    struct attempt **at = &dial_back->attempts;

    pthread_mutex_lock(&dial_back->lock);
    while (*at != attempt)
        at = &(*at)->next;
    *at = attempt->next;
    dial_back->under_way--;
    pthread_mutex_unlock(&dial_back->lock);
}

static void answer(const struct attempt *attempt)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    char text[ENDPOINT_TEXT_BYTES];
    int bad;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    bad = msgpack_pack_map(&pk, attempt->dht == DHT_NOT_ASKED ? 4 : 5);
    bad |= mp_pack_str(&pk, "endpoint");
    bad |= mp_pack_str(&pk, endpoint_format(&attempt->endpoint, text));
    bad |= mp_pack_str(&pk, "reachable");
    bad |= attempt->status == SKEP_OK ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk);
    bad |= mp_pack_str(&pk, "status");
    bad |= mp_pack_str(&pk, skep_status_name(attempt->status));
    bad |= mp_pack_str(&pk, "message");
    bad |= mp_pack_str(&pk, attempt->message);
    if (attempt->dht != DHT_NOT_ASKED) {
        bad |= mp_pack_str(&pk, "dht_reachable");
        bad |= attempt->dht == DHT_ANSWERS ? msgpack_pack_true(&pk) : msgpack_pack_false(&pk);
    }
    answer_packed(attempt->call, &buffer, bad);
}

static void try_ended(struct attempt *attempt)
{
    if (atomic_fetch_sub(&attempt->open, 1) > 1)
        return;
    leave(attempt);
    answer(attempt);
    mem_free(attempt);
}

static void on_dialled(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                       bool sent, const struct skep_error *err)
{
    struct attempt *attempt = arg;

    (void)sent;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    if (reply == NULL) { /* else, whatever it said, it is there and is who it should be */
        attempt->status = err->status;
        snprintf(attempt->message, sizeof(attempt->message), "%s", err->message);
    }
    try_ended(attempt);
}

static void on_probed(void *arg, bool answered)
{
    struct attempt *attempt = arg;

    attempt->dht = answered ? DHT_ANSWERS : DHT_SILENT;
    try_ended(attempt);
}

static skep_status dial(struct attempt *attempt, struct pool *pool, struct skep_error *err)
{
    struct pool_target target = {.has_peer_id = true, .exact = true, .endpoint_count = 1};
    struct call_headers headers = {.method = "ping"};
    uint64_t deadline = clock_deadline_us(TIMEOUT_MS);

    target.endpoints[0] = attempt->endpoint;
    memcpy(target.peer_id, server_call_peer_id(attempt->call), PEER_ID_BYTES);
    if (server_call_deadline_us(attempt->call) < deadline)
        deadline = server_call_deadline_us(attempt->call);
    return pool_call(pool, &target, &headers, NULL, deadline, on_dialled, attempt, NULL, err);
}

/* What cannot be tried is left out of the answer. */
static void probe(struct attempt *attempt)
{
    struct dial_back *dial_back = attempt->dial_back;
    struct endpoint endpoint = attempt->endpoint;
    struct address address;
    struct skep_error err;

    if (attempt->dht_port == 0 || dial_back->config.network_id == 0)
        return;
    endpoint.port = attempt->dht_port;
    if (!endpoint_to_address(&endpoint, &address))
        return;
    atomic_fetch_add(&attempt->open, 1);
    if (udp_probe_start(&dial_back->probes, &address, dial_back->config.network_id, on_probed,
                        attempt, &err) != SKEP_OK)
        try_ended(attempt);
}

static skep_status start(struct attempt *attempt, struct skep_error *err)
{
    struct pool *pool;
    skep_status rc = read_params(attempt->call, attempt, err);

    if (rc == SKEP_OK)
        rc = get_pool(attempt->dial_back, &pool, err);
    if (rc == SKEP_OK)
        rc = enter(attempt, err);
    if (rc != SKEP_OK)
        return rc;
    atomic_init(&attempt->open, 2); /* the TCP try's, and ours until both have been started */
    rc = dial(attempt, pool, err);
    if (rc != SKEP_OK) {
        leave(attempt);
        return rc;
    }
    probe(attempt);
    try_ended(attempt);
    return SKEP_OK;
}

/* False if it is closed; else end_start() follows. */
static bool begin_start(struct dial_back *dial_back)
{
    pthread_mutex_lock(&dial_back->lock);
    bool open = !dial_back->closed;
    dial_back->starting += open;
    pthread_mutex_unlock(&dial_back->lock);
    return open;
}

static void end_start(struct dial_back *dial_back)
{
    pthread_mutex_lock(&dial_back->lock);
    if (--dial_back->starting == 0)
        pthread_cond_broadcast(&dial_back->started);
    pthread_mutex_unlock(&dial_back->lock);
}

static void start_call(struct dial_back *dial_back, struct server_call *call)
{
    struct skep_error err;
    struct attempt *attempt = mem_calloc(1, sizeof(*attempt));

    if (attempt == NULL) {
        error_no_memory(&err, "dial_back", sizeof(*attempt));
        answer_refuse(call, &err);
        return;
    }
    attempt->dial_back = dial_back;
    attempt->call = call;
    if (start(attempt, &err) != SKEP_OK) {
        answer_refuse(call, &err);
        mem_free(attempt);
    }
}

void dial_back_start(struct dial_back *dial_back, struct server_call *call)
{
    struct skep_error err;

    if (dial_back == NULL) {
        error_set(&err, SKEP_UNIMPLEMENTED, "dial_back: not offered by this node");
        answer_refuse(call, &err);
        return;
    }
    if (!begin_start(dial_back)) {
        error_set(&err, SKEP_UNAVAILABLE, "dial_back: the node stops");
        answer_refuse(call, &err);
        return;
    }
    start_call(dial_back, call);
    end_start(dial_back);
}
