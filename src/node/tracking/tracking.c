/* See tracking.h. */
#include "node/tracking/tracking.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "node/tracking/resource_lending.h"

enum {
    PEERS_TOLD = 16,
    PEERS_AGE_US = 1000 * 1000, /* how old an answer to "dht_peers" may be */
};

struct tracking {
    struct tracking_config config;
    struct tracker_server *server;
    struct tracker_registry *registry; /* NULL without DHT; guarded by `lock` once it is closing */
    struct tracker_registry *loop_registry; /* the same, for the tracker's loop */
    struct federation *federation;          /* NULL without DHT or where it is not wanted */
    struct resource_lending *lending;       /* the same */
    /* The tracker's loop only: the answer to those who ask for DHT peers. */
    struct bytes peers;
    uint64_t peers_us;

    pthread_mutex_t lock; /* guards `closed`, and that the parts live while somebody uses them */
    bool closed;
};

/* ---- the tracker's events, on its loop ---- */

static void on_key_changed(void *arg, const struct scheduler_key_counters *counters)
{
    struct tracking *t = arg;

    if (t->loop_registry != NULL)
        tracker_registry_changed(t->loop_registry, counters);
}

static void on_waiting(void *arg, const struct scheduler_request *request)
{
    struct tracking *t = arg;

    if (t->federation != NULL)
        federation_waiting(t->federation, request);
}

static void on_ended(void *arg, uint64_t id, struct tracker_text key, enum scheduler_end how)
{
    struct tracking *t = arg;

    (void)key;
    (void)how;
    if (t->federation != NULL)
        federation_ended(t->federation, id);
}

static void on_stopped(void *arg)
{
    struct tracking *t = arg;

    if (t->config.stopped != NULL)
        t->config.stopped(t->config.arg);
}

/* ---- DHT peers ---- */

static bool append_peer(struct bytes *out, const struct endpoint *e, bool *first)
{
    char text[ENDPOINT_TEXT_BYTES], quoted[ENDPOINT_TEXT_BYTES + 4];

    endpoint_format(e, text);
    int n = snprintf(quoted, sizeof(quoted), "%s\"%s\"", *first ? "" : ", ", text);
    *first = false;
    return bytes_append(out, quoted, (size_t)n);
}

static bool append_peers(const struct tracking *t, struct bytes *out)
{
    struct address known[PEERS_TOLD];
    size_t count = runner_known_peers(swarm_runner(t->config.swarm), known, PEERS_TOLD);
    struct endpoint own = t->config.dht_listen;
    bool first = true, ok = bytes_append(out, ", \"peers\": [", 12);

    own.port = swarm_dht_port(t->config.swarm);
    if (ok && !endpoint_is_unspecified(&own))
        ok = append_peer(out, &own, &first);
    for (size_t i = 0; i < count && ok; i++) {
        struct endpoint e;
        endpoint_from_address(&e, (const struct sockaddr *)&known[i].sa);
        ok = append_peer(out, &e, &first);
    }
    return ok && bytes_append(out, "]}]", 3);
}

/* The swarm's name goes without saying in a private one: only members know it. */
static bool make_peers(const struct tracking *t, struct bytes *out)
{
    const struct record_swarm *swarm = swarm_record(t->config.swarm);
    char text[64];
    bool ok = bytes_append(out, "[0, {", 5);

    if (ok && swarm->key == NULL)
        ok = bytes_append(out, "\"swarm\": ", 9) &&
             tracker_append_text(out, tracker_text(t->config.swarm_name)) &&
             bytes_append(out, ", ", 2);
    int n = snprintf(text, sizeof(text), "\"network\": %u", record_network_id(swarm));
    ok = ok && bytes_append(out, text, (size_t)n);
    if (ok && endpoint_is_unspecified(&t->config.dht_listen)) {
        n = snprintf(text, sizeof(text), ", \"dht_port\": %u",
                     (unsigned)swarm_dht_port(t->config.swarm));
        ok = bytes_append(out, text, (size_t)n);
    }
    return ok && append_peers(t, out);
}

static bool on_dht_peers(void *arg, struct bytes *json)
{
    struct tracking *t = arg;
    uint64_t now = clock_mono_us();

    if (t->peers.len == 0 || t->peers_us + PEERS_AGE_US <= now) {
        t->peers.len = 0;
        t->peers_us = now;
        if (!make_peers(t, &t->peers))
            t->peers.len = 0;
    }
    return t->peers.len > 0 && bytes_append(json, t->peers.data, t->peers.len);
}

/* ---- what is published ---- */

struct gathering {
    struct tracking *tracking;
    const char *key;
    struct endpoint *out;
    size_t cap, count;
};

static bool gather(void *arg, const struct tracker_resource *resource)
{
    struct gathering *g = arg;
    struct endpoint *e = &g->out[g->count];

    if (resource->address.len > 0 && resource->address.len < sizeof(e->host) &&
        resource->port != 0) {
        *e = (struct endpoint){.port = resource->port};
        memcpy(e->host, resource->address.data, resource->address.len);
        g->count++;
    }
    return g->count < g->cap;
}

static void gather_on_loop(void *arg)
{
    struct gathering *g = arg;

    scheduler_each_free(tracker_server_scheduler(g->tracking->server), tracker_text(g->key), gather,
                        g);
}

static size_t addresses(void *arg, const char *key, struct endpoint *out, size_t cap)
{
    struct gathering g = {.tracking = arg, .key = key, .out = out, .cap = cap};

    loop_call(tracker_server_loop(g.tracking->server), gather_on_loop, &g);
    return g.count;
}

void tracking_announce(struct tracking *t, const struct endpoint *endpoints, size_t count)
{
    struct endpoint tvm;

    tracker_server_endpoint(t->server, &tvm);
    if (endpoint_is_unspecified(&tvm))
        snprintf(tvm.host, sizeof(tvm.host), "%s", count > 0 ? endpoints[0].host : "");
    pthread_mutex_lock(&t->lock);
    if (t->registry != NULL && !t->closed) {
        if (!swarm_record(t->config.swarm)->loopback && endpoint_is_loopback(&tvm))
            tvm.host[0] = '\0';
        tracker_registry_set_endpoints(t->registry, endpoints, count, &tvm);
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- life ---- */

static skep_status open_server(struct tracking *t, const struct tracking_config *config,
                               struct skep_error *err)
{
    struct tracker_server_config server = {
        .host = config->host,
        .port = config->port,
        .port_end = config->port_end,
        .reuse_addr = config->reuse_addr,
        .silent = config->silent,
        .report_interval_s = config->report_interval_s,
        .timeout_ms = config->timeout_ms,
        .max_connections = config->max_connections,
        .stop_key = config->stop_key,
        .events = {.key_changed = on_key_changed,
                   .waiting = on_waiting,
                   .ended = on_ended,
                   .dht_peers = config->swarm != NULL ? on_dht_peers : NULL,
                   .stopped = on_stopped},
        .arg = t,
    };

    return tracker_server_new(&server, &t->server, err);
}

/* Before the server, whose events use them. */
static skep_status open_parts(struct tracking *t, struct skep_error *err)
{
    const struct federation_config federation = {
        .swarm = t->config.swarm,
        .psk = t->config.psk,
        .swarm_name = t->config.swarm_name,
        .plaintext = t->config.plaintext,
    };
    const struct tracker_registry_config registry = {
        .swarm = t->config.swarm,
        .update_period_s = t->config.update_period_s,
        .features = t->config.features,
        .version = t->config.version,
        .addresses = addresses,
        .arg = t,
    };
    skep_status rc = SKEP_OK;

    if (t->config.swarm == NULL)
        return SKEP_OK;
    if (t->config.federation)
        rc = federation_new(&federation, &t->federation, err);
    if (rc == SKEP_OK)
        rc = tracker_registry_new(&registry, &t->registry, err);
    t->loop_registry = t->registry;
    return rc;
}

skep_status tracking_new(const struct tracking_config *config, struct tracking **out,
                         struct skep_error *err)
{
    struct tracking *t = mem_calloc(1, sizeof(*t));
    skep_status rc;

    *out = NULL;
    if (t == NULL)
        return error_no_memory(err, "tracker", sizeof(*t));
    t->config = *config;
    pthread_mutex_init(&t->lock, NULL);
    rc = open_parts(t, err);
    if (rc == SKEP_OK)
        rc = open_server(t, config, err);
    if (rc == SKEP_OK && t->federation != NULL) {
        federation_begin(t->federation, t->server);
        rc = resource_lending_new(t->server, &t->lending, err);
    }
    if (rc != SKEP_OK) {
        tracking_close(t, 0);
        tracking_free(t);
        return rc;
    }
    *out = t;
    return SKEP_OK;
}

static void stop_telling(void *arg)
{
    struct tracking *t = arg;

    t->loop_registry = NULL;
}

void tracking_close(struct tracking *t, uint64_t deadline_us)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&t->lock);
    bool closed = t->closed;
    t->closed = true;
    pthread_mutex_unlock(&t->lock);
    if (closed)
        return;
    resource_lending_close(t->lending);
    federation_close(t->federation);
    if (t->server != NULL) {
        tracker_server_request_stop(t->server);
        tracker_server_wait(t->server, deadline_us);
        tracker_server_end(t->server);
        loop_call(tracker_server_loop(t->server), stop_telling, t);
    }
    tracker_registry_free(t->registry, deadline_us);
}

void tracking_free(struct tracking *t)
{
    if (t == NULL)
        return;
    tracker_server_free(t->server);
    resource_lending_free(t->lending);
    federation_free(t->federation);
    bytes_free(&t->peers);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

/* ---- facts and methods ---- */

void tracking_endpoint(const struct tracking *t, struct endpoint *out)
{
    tracker_server_endpoint(t->server, out);
}

const char *tracking_stop_key(const struct tracking *t)
{
    return tracker_server_stop_key(t->server);
}

void tracking_request(struct tracking *t, struct server_call *call)
{
    resource_lending_request(t != NULL ? t->lending : NULL, call);
}

void tracking_summary(struct tracking *t, struct server_call *call)
{
    resource_lending_summary(t != NULL ? t->lending : NULL, call);
}

skep_status tracking_key_stats(struct tracking *t, struct key_stats **out, struct skep_error *err)
{
    return key_stats_take(t->server, out, err);
}

void tracking_stats(struct tracking *t, struct tracking_stats *out)
{
    memset(out, 0, sizeof(*out));
    tracker_server_stats(t->server, &out->server);
    if (t->federation != NULL)
        federation_stats(t->federation, &out->federation);
    pthread_mutex_lock(&t->lock);
    if (t->registry != NULL && !t->closed)
        tracker_registry_stats(t->registry, &out->registry);
    pthread_mutex_unlock(&t->lock);
}
