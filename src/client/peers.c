/* The nodes of a swarm: what they say of themselves, and how far away they are. */
#include <skep/watch.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mp.h"
#include "base/text.h"
#include "base/thread.h"
#include "client/client_internal.h"
#include "client/node_stats.h"
#include "dht/directory/directory_collect.h"

/* Pings of all peers at once. A ping is sent twice: the first opens the connection. Then comes the
 * question for the node's health. */
struct pings {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    size_t open;
};

/* PING_PROVES: one that nobody has named says who it is, and is asked as that peer once more. */
enum ping_step { PING_CONNECTS, PING_MEASURES, PING_STATS, PING_PROVES };

struct ping {
    struct pings *pings;
    struct skep_client *client;
    struct pool_target target;
    struct skep_peer *peer;
    struct skep_error *err; /* NULL: nobody wants to know why it failed */
    uint64_t deadline_us, sent_us;
    enum ping_step step;
};

static void send_ping(struct ping *p);

static void ping_over(struct ping *p, skep_status status, const char *why)
{
    pthread_mutex_lock(&p->pings->lock);
    p->peer->reached = status;
    if (status != SKEP_OK && p->err != NULL)
        error_set(p->err, status, "%s", why);
    p->pings->open--;
    pthread_cond_signal(&p->pings->changed);
    pthread_mutex_unlock(&p->pings->lock);
}

static uint32_t read_u32(const msgpack_object *map, const char *key)
{
    uint64_t value = 0;

    (void)mp_u64(mp_get(map, key), &value);
    return value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static void read_text(const msgpack_object *map, const char *key, char *out, size_t cap)
{
    if (!mp_str(mp_get(map, key), out, cap))
        out[0] = '\0';
    text_tame(out);
}

static void read_who(const msgpack_object *map, struct skep_peer *peer,
                     uint8_t id[static PEER_ID_BYTES])
{
    if (mp_bin_exact(mp_get(map, "peer_id"), id, PEER_ID_BYTES))
        peer_id_hex(id, peer->peer_id);
    read_text(map, "state", peer->state, sizeof(peer->state));
    read_text(map, "version", peer->version, sizeof(peer->version));
}

/* What a node leaves out stays 0 or empty. False if it is no answer at all. @param id  who it says
 * it is, if nobody has said that before: then peer->peer_id has it, too. */
static bool read_health(const struct bytes *result, struct skep_peer *peer,
                        uint8_t id[static PEER_ID_BYTES])
{
    struct mp mp = {0};
    uint64_t uptime_ms;
    bool ok = mp_parse(&mp, result->data, result->len, "stats", NULL) == SKEP_OK &&
              mp_u64(mp_get(mp.root, "uptime_ms"), &uptime_ms);

    if (ok) {
        peer->has_health = true;
        peer->experts_stalled = read_u32(mp.root, "experts_stalled");
        peer->dht_peers = read_u32(mp.root, "dht_peers");
        read_text(mp.root, "reachability", peer->reachability, sizeof(peer->reachability));
        if (peer->peer_id[0] == '\0') { /* no record has said it before */
            read_who(mp.root, peer, id);
            peer->experts = read_u32(mp.root, "experts");
            peer->queued_tasks = read_u32(mp_get(mp.root, "forward"), "queued_tasks") +
                                 read_u32(mp_get(mp.root, "backward"), "queued_tasks");
        }
    }
    mp_free(&mp);
    return ok;
}

static void on_pong(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                    bool sent, const struct skep_error *err)
{
    struct ping *p = arg;

    (void)sent;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    bool ok = reply != NULL && reply->status == SKEP_OK;
    if (p->step == PING_STATS) { /* it was reached, whatever it answers to this */
        bool is_named = p->peer->peer_id[0] != '\0';
        if (ok)
            (void)read_health(&reply->result, p->peer, p->target.peer_id);
        if (is_named || p->peer->peer_id[0] == '\0') {
            ping_over(p, SKEP_OK, "");
            return;
        }
        p->target.has_peer_id = p->target.exact = true;
        p->step = PING_PROVES;
        send_ping(p);
    } else if (ok && p->step == PING_PROVES) {
        ping_over(p, SKEP_OK, "");
    } else if (!ok) {
        ping_over(p, reply == NULL ? err->status : reply->status,
                  reply == NULL ? err->message : reply->message);
    } else {
        if (p->step == PING_MEASURES)
            p->peer->round_trip_ms = (double)(clock_mono_us() - p->sent_us) / 1000.0;
        p->step = p->step == PING_CONNECTS ? PING_MEASURES : PING_STATS;
        send_ping(p);
    }
}

static void send_ping(struct ping *p)
{
    static const struct call_headers ping = {.method = "ping"};
    static const struct call_headers stats = {.method = "stats"};
    struct skep_error err = {0};

    p->sent_us = clock_mono_us();
    skep_status rc = pool_call(p->client->pool, &p->target, p->step == PING_STATS ? &stats : &ping,
                               NULL, p->deadline_us, on_pong, p, NULL, &err);
    if (rc != SKEP_OK)
        ping_over(p, rc, err.message);
}

static void pings_init(struct pings *pings, size_t count)
{
    *pings = (struct pings){.open = count};
    pthread_mutex_init(&pings->lock, NULL);
    cond_init(&pings->changed);
}

/* Waits for all of them: each ends by its deadline. */
static void pings_finish(struct pings *pings)
{
    pthread_mutex_lock(&pings->lock);
    while (pings->open > 0)
        pthread_cond_wait(&pings->changed, &pings->lock);
    pthread_mutex_unlock(&pings->lock);
    pthread_cond_destroy(&pings->changed);
    pthread_mutex_destroy(&pings->lock);
}

static void fill_target(struct pool_target *target, const struct record *record, bool loopback)
{
    const struct record_node *node = &record->node;

    *target =
        (struct pool_target){.has_peer_id = true, .no_loopback = !loopback, .maybe_here = true};
    target->aes_gcm = (node->features & RECORD_FEATURE_AES_GCM) != 0;
    memcpy(target->peer_id, record->peer_id, PEER_ID_BYTES);
    for (size_t i = 0; i < node->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        target->endpoints[target->endpoint_count++] = node->endpoints[i];
}

static void fill_peer(struct skep_peer *out, const struct record *record)
{
    const struct record_node *node = &record->node;

    *out = (struct skep_peer){
        .experts = node->expert_count,
        .examples_per_second = node->load.examples_per_s,
        .queued_tasks = node->load.queued_tasks,
        .expires_at = record->expires_at,
        .reached = SKEP_CANCELLED,
    };
    peer_id_hex(record->peer_id, out->peer_id);
    endpoint_format(&node->endpoints[0], out->endpoint);
    snprintf(out->state, sizeof(out->state), "%s", node->state);
    snprintf(out->version, sizeof(out->version), "%s", node->version);
}

/* Pings those that have not said goodbye, and waits for all of them. */
static skep_status ping_all(struct skep_client *client, const struct record *const *records,
                            struct skep_peer *peers, size_t count, uint64_t deadline_us,
                            struct skep_error *err)
{
    struct ping *list = mem_calloc(count, sizeof(*list));
    struct pings pings;

    if (list == NULL)
        return error_no_memory(err, "pings", count * sizeof(*list));
    pings_init(&pings, count);
    for (size_t i = 0; i < count; i++) {
        struct ping *p = &list[i];
        *p = (struct ping){
            .pings = &pings, .client = client, .peer = &peers[i], .deadline_us = deadline_us};
        if (strcmp(peers[i].state, "offline") == 0) {
            ping_over(p, SKEP_CANCELLED, "");
            continue;
        }
        fill_target(&p->target, records[i], swarm_record(client->swarm)->loopback);
        send_ping(p);
    }
    pings_finish(&pings);
    mem_free(list);
    return SKEP_OK;
}

static int by_peer_newest_first(const void *a, const void *b)
{
    const struct record *x = *(const struct record *const *)a;
    const struct record *y = *(const struct record *const *)b;
    int order = memcmp(x->peer_id, y->peer_id, PEER_ID_BYTES);

    return order != 0 ? order : x->seq > y->seq ? -1 : x->seq < y->seq;
}

/* The newest record of each node, sorted by peer id. @param out owned, views of the answers. */
static skep_status list_records(const struct collect_result *answers, const struct record ***out,
                                size_t *count, struct skep_error *err)
{
    size_t all = 0, n = 0, kept = 0;

    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        all += answers[i].records != NULL ? answers[i].records->count : 0;
    const struct record **list = mem_calloc(all + 1, sizeof(*list));
    if (list == NULL)
        return error_no_memory(err, "nodes", all * sizeof(*list));
    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        for (size_t k = 0; answers[i].records != NULL && k < answers[i].records->count; k++)
            list[n++] = &answers[i].records->items[k].record;
    if (n > 1)
        qsort(list, n, sizeof(*list), by_peer_newest_first);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || memcmp(list[kept - 1]->peer_id, list[i]->peer_id, PEER_ID_BYTES) != 0)
            list[kept++] = list[i];
    *out = list;
    *count = kept;
    return SKEP_OK;
}

static skep_status nothing_found(const struct skep_client *client,
                                 const struct collect_result *answers, struct skep_error *err)
{
    skep_status status = SKEP_NOT_FOUND;
    uint8_t keys[RECORD_SHARDS][RECORD_KEY_BYTES];
    struct record_misdated misdated;
    char text[DIRECTORY_MISDATED_BYTES];

    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        if (answers[i].status != SKEP_OK && answers[i].status != SKEP_NOT_FOUND)
            status = answers[i].status;
    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        record_key_nodes_shard(swarm_record(client->swarm), i, keys[i]);
    if (status == SKEP_NOT_FOUND &&
        directory_misdated(swarm_directory(client->swarm), keys[0], RECORD_SHARDS, &misdated))
        return error_set(err, SKEP_FAILED_PRECONDITION, "nodes of swarm %s: %s", client->swarm_name,
                         directory_describe_misdated(&misdated, text));
    return error_set(err, status, "nodes of swarm %s: %s", client->swarm_name,
                     status == SKEP_NOT_FOUND     ? "none is published"
                     : status == SKEP_UNAVAILABLE ? "no DHT peer answers"
                                                  : skep_status_text(status));
}

/* What is published of a swarm's nodes. */
struct node_listing {
    struct collect_result answers[RECORD_SHARDS];
    const struct record **records; /* owned: mem_free(); views of the answers */
    size_t count;
};

static void listing_fini(struct node_listing *listing)
{
    mem_free(listing->records);
    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        collection_unref(listing->answers[i].records);
}

/* @param out  zeroed by the caller; listing_fini() in any case. */
static skep_status list_nodes(struct skep_client *client, uint64_t deadline_us,
                              struct node_listing *out, struct skep_error *err)
{
    uint8_t keys[RECORD_SHARDS * RECORD_KEY_BYTES];

    if (client->swarm == NULL)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "client: started without the DHT, so no nodes can be listed");
    for (unsigned i = 0; i < RECORD_SHARDS; i++)
        record_key_nodes_shard(swarm_record(client->swarm), i, keys + i * RECORD_KEY_BYTES);
    skep_status rc = directory_collect(swarm_directory(client->swarm), RECORD_NODE, keys,
                                       RECORD_SHARDS, "nodes", deadline_us, out->answers, err);
    if (rc == SKEP_OK)
        rc = list_records(out->answers, &out->records, &out->count, err);
    if (rc == SKEP_OK && out->count == 0)
        rc = nothing_found(client, out->answers, err);
    return rc;
}

skep_status skep_client_peers(struct skep_client *client, bool ping, uint32_t timeout_ms,
                              struct skep_peer **out, size_t *count, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(timeout_ms != 0 ? timeout_ms : client->timeout_ms);
    struct node_listing nodes = {.count = 0};
    struct skep_peer *peers = NULL;

    *out = NULL;
    *count = 0;
    skep_status rc = list_nodes(client, deadline_us, &nodes, err);
    size_t n = nodes.count;
    if (rc == SKEP_OK) {
        peers = mem_calloc(n, sizeof(*peers));
        rc = peers == NULL ? error_no_memory(err, "nodes", n * sizeof(*peers)) : SKEP_OK;
    }
    for (size_t i = 0; rc == SKEP_OK && i < n; i++)
        fill_peer(&peers[i], nodes.records[i]);
    if (rc == SKEP_OK && ping)
        rc = ping_all(client, nodes.records, peers, n, deadline_us, err);
    if (rc == SKEP_OK) {
        *out = peers;
        *count = n;
    } else {
        mem_free(peers);
    }
    listing_fini(&nodes);
    return rc;
}

/* One call of `stats`, and the thread that waits for its reply. */
struct stats_call {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool over;
    skep_status status;
    struct skep_error err;
    struct bytes result; /* owned: bytes_free() */
};

static void on_stats(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                     bool sent, const struct skep_error *err)
{
    struct stats_call *call = arg;

    (void)sent;
    for (size_t i = 0; reply != NULL && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    pthread_mutex_lock(&call->lock);
    if (reply == NULL)
        call->status = error_set(&call->err, err->status, "%s", err->message);
    else if (reply->status != SKEP_OK)
        call->status = error_set(&call->err, reply->status, "%s", reply->message);
    else if (!bytes_append(&call->result, reply->result.data, reply->result.len))
        call->status = error_no_memory(&call->err, "stats", reply->result.len);
    call->over = true;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

/* @param name  of the node, for the sentence of a failure. */
static skep_status call_stats(struct skep_client *client, const struct pool_target *target,
                              const char *name, uint64_t deadline_us, struct bytes *out,
                              struct skep_error *err)
{
    static const struct call_headers headers = {.method = "stats"};
    struct stats_call call = {.over = false};

    pthread_mutex_init(&call.lock, NULL);
    cond_init(&call.changed);
    skep_status rc = pool_call(client->pool, target, &headers, NULL, deadline_us, on_stats, &call,
                               NULL, &call.err);
    if (rc == SKEP_OK) {
        pthread_mutex_lock(&call.lock);
        while (!call.over) /* it ends by its deadline */
            pthread_cond_wait(&call.changed, &call.lock);
        pthread_mutex_unlock(&call.lock);
        rc = call.status;
    }
    if (rc == SKEP_OK)
        *out = call.result;
    else
        error_set(err, rc, "node %s: %s", name, call.err.message);
    if (rc != SKEP_OK)
        bytes_free(&call.result);
    pthread_cond_destroy(&call.changed);
    pthread_mutex_destroy(&call.lock);
    return rc;
}

/* The only node whose peer id begins so. */
static skep_status find_node(const struct node_listing *nodes, const char *beginning,
                             const struct record **out, struct skep_error *err)
{
    char hex[PEER_ID_HEX_BYTES];

    *out = NULL;
    for (size_t i = 0; i < nodes->count; i++) {
        peer_id_hex(nodes->records[i]->peer_id, hex);
        if (strncmp(hex, beginning, strlen(beginning)) != 0)
            continue;
        if (*out != NULL)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "node %s: several peer ids begin so, expected one; give more digits",
                             beginning);
        *out = nodes->records[i];
    }
    if (*out == NULL)
        return error_set(err, SKEP_NOT_FOUND,
                         "node %s: none of the swarm's %zu nodes has a peer id that begins so",
                         beginning, nodes->count);
    return strcmp((*out)->node.state, "offline") != 0
               ? SKEP_OK
               : error_set(err, SKEP_UNAVAILABLE, "node %s: it has stopped, its record says",
                           beginning);
}

skep_status client_stats_of(struct skep_client *client, const char *beginning, uint32_t timeout_ms,
                            struct bytes *out, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(timeout_ms);
    struct node_listing nodes = {.count = 0};
    const struct record *record = NULL;
    struct pool_target target;

    skep_status rc = list_nodes(client, deadline_us, &nodes, err);
    if (rc == SKEP_OK)
        rc = find_node(&nodes, beginning, &record, err);
    if (rc == SKEP_OK) {
        fill_target(&target, record, swarm_record(client->swarm)->loopback);
        rc = call_stats(client, &target, beginning, deadline_us, out, err);
    }
    listing_fini(&nodes);
    return rc;
}

skep_status client_stats_at(struct skep_client *client, const struct endpoint *endpoint,
                            uint32_t timeout_ms, struct bytes *out, struct skep_error *err)
{
    struct pool_target target = {.endpoint_count = 1, .endpoints = {*endpoint}};
    char name[ENDPOINT_TEXT_BYTES];

    return call_stats(client, &target, endpoint_format(endpoint, name),
                      clock_deadline_us(timeout_ms), out, err);
}

skep_status skep_client_peer_at(struct skep_client *client, const char *endpoint,
                                uint32_t timeout_ms, struct skep_peer *out, struct skep_error *err)
{
    struct skep_error why = {0};
    struct pings pings;
    struct skep_peer peer = {0};
    struct ping ping = {.pings = &pings,
                        .client = client,
                        .target = {.endpoint_count = 1},
                        .peer = &peer,
                        .err = &why,
                        .deadline_us =
                            clock_deadline_us(timeout_ms != 0 ? timeout_ms : client->timeout_ms)};

    *out = (struct skep_peer){0};
    skep_status rc = endpoint_parse(&ping.target.endpoints[0], endpoint, false, err);
    if (rc != SKEP_OK)
        return rc;
    endpoint_format(&ping.target.endpoints[0], peer.endpoint);
    pings_init(&pings, 1);
    send_ping(&ping);
    pings_finish(&pings);
    if (peer.reached != SKEP_OK) /* a failed connection names it already */
        return strstr(why.message, peer.endpoint) != NULL
                   ? error_set(err, peer.reached, "%s", why.message)
                   : error_set(err, peer.reached, "%s: %s", peer.endpoint, why.message);
    if (!peer.has_health)
        return error_set(err, SKEP_DATA_LOSS, "%s: its answer to stats cannot be read", endpoint);
    *out = peer;
    return SKEP_OK;
}

void skep_peers_free(struct skep_peer *peers)
{
    mem_free(peers);
}
