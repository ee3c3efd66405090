/* A small swarm inside one test process: real runners on 127.0.0.1, each with its directory. */
#ifndef SKEP_TESTS_DHT_NET_H
#define SKEP_TESTS_DHT_NET_H

#include <stdio.h>
#include <string.h>

#include "unit.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/publish/handler.h"
#include "dht/swarm/swarm.h"
#include "until.h"
#include "own_swarm.h"

enum { NET_PATIENCE_MS = 60000 }; /* far above what anything here takes, on a busy machine too */

struct net_node {
    struct identity identity;
    struct swarm *swarm;
};

struct net_options {
    const char *name;            /* NULL: own_swarm() */
    const struct swarm_key *key; /* NULL: public */
    const struct identity *identity;
    const char *peers_file;
    int64_t (*wall_ms)(void);
    uint32_t minute_ms;
    uint16_t port;
    bool identity_is_ours;
};

static inline uint64_t net_deadline(void)
{
    return clock_deadline_us(NET_PATIENCE_MS);
}

/* Waits until a condition holds; false if it never does. */
#define NET_UNTIL(condition) UNTIL(condition, NET_PATIENCE_MS)

/* Waits until the clock that dates records shows another millisecond. */
static inline void net_next_ms(void)
{
    const int64_t now = clock_wall_ms();

    assert_true(NET_UNTIL(clock_wall_ms() > now));
}

/* Starts a node that knows the nodes at `ports`; does not wait. */
static inline void net_start_with(struct net_node *node, const uint16_t *ports, size_t count,
                                  const struct net_options *options)
{
    char texts[8][32];
    const char *peers[8];
    struct skep_error err = {0};

    assert_true(count <= 8);
    for (size_t i = 0; i < count; i++) {
        snprintf(texts[i], sizeof(texts[i]), "127.0.0.1:%u", (unsigned)ports[i]);
        peers[i] = texts[i];
    }
    memset(node, 0, sizeof(*node));
    if (options->identity != NULL)
        node->identity = *options->identity;
    else
        assert_int_equal(identity_generate(&node->identity, &err), SKEP_OK);
    struct swarm_config config = {
        .name = options->name != NULL ? options->name : own_swarm(),
        .key = options->key,
        .identity = &node->identity,
        .dht_listen = {.host = "127.0.0.1", .port = options->port},
        .initial_peers = peers,
        .initial_peer_count = count,
        .peers_file = options->peers_file,
        .wall_ms = options->wall_ms,
        .bootstrap_minute_ms = options->minute_ms,
        .identity_is_ours = options->identity_is_ours,
    };
    if (swarm_join(&config, &node->swarm, &err) != SKEP_OK)
        fail_msg("swarm_join: %s", err.message);
}

static inline void net_start(struct net_node *node, uint16_t peer_port)
{
    const struct net_options options = {0};

    net_start_with(node, &peer_port, peer_port != 0 ? 1 : 0, &options);
}

static inline uint16_t net_port(const struct net_node *node)
{
    return swarm_dht_port(node->swarm);
}

static inline void net_stop(struct net_node *node)
{
    swarm_leave(node->swarm, clock_deadline_us(2000));
    node->swarm = NULL;
}

/* `count` nodes that all joined through the first. */
static inline void net_start_many(struct net_node *nodes, size_t count)
{
    net_start(&nodes[0], 0);
    for (size_t i = 1; i < count; i++)
        net_start(&nodes[i], net_port(&nodes[0]));
    for (size_t i = 1; i < count; i++)
        assert_true(swarm_wait_joined(nodes[i].swarm, net_deadline()));
}

static inline void net_stop_many(struct net_node *nodes, size_t count)
{
    for (size_t i = count; i-- > 0;)
        net_stop(&nodes[i]);
}

static inline struct directory *net_directory(const struct net_node *node)
{
    return swarm_directory(node->swarm);
}

/* An expert record as a node at 127.0.0.1:port would publish it. */
static inline struct record net_expert(const struct net_node *node, const char *uid, uint16_t port,
                                       uint32_t lifetime_s)
{
    struct record r = {
        .kind = RECORD_EXPERT,
        .expires_at = directory_now_ms(net_directory(node)) / 1000 + lifetime_s,
        .expert = {.endpoint_count = 1, .cls = "nop"},
    };

    snprintf(r.expert.uid, sizeof(r.expert.uid), "%s", uid);
    snprintf(r.expert.endpoints[0].host, sizeof(r.expert.endpoints[0].host), "127.0.0.1");
    r.expert.endpoints[0].port = port;
    return r;
}

/* Waits for the end of a declare or an asynchronous get. */
struct net_event {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    unsigned count;
    uint64_t number;
};

static inline void net_event_init(struct net_event *e)
{
    memset(e, 0, sizeof(*e));
    pthread_mutex_init(&e->lock, NULL);
    cond_init(&e->cond);
}

static inline void net_event_fini(struct net_event *e)
{
    pthread_cond_destroy(&e->cond);
    pthread_mutex_destroy(&e->lock);
}

static inline void net_event_set(struct net_event *e, uint64_t number)
{
    pthread_mutex_lock(&e->lock);
    e->count++;
    e->number = number;
    pthread_cond_broadcast(&e->cond);
    pthread_mutex_unlock(&e->lock);
}

static inline bool net_event_wait(struct net_event *e, unsigned count)
{
    uint64_t deadline = net_deadline();

    pthread_mutex_lock(&e->lock);
    while (e->count < count)
        if (!cond_wait_until(&e->cond, &e->lock, deadline))
            break;
    bool reached = e->count >= count;
    pthread_mutex_unlock(&e->lock);
    return reached;
}

static inline void net_on_declared(void *arg, struct declaration *declarations, size_t count)
{
    (void)declarations;
    net_event_set(arg, count);
}

/* Declares and waits; outcomes are in the declarations. */
static inline void net_declare(const struct net_node *node, struct declaration *declarations,
                               size_t count)
{
    struct net_event event;

    net_event_init(&event);
    assert_int_equal(directory_declare(net_directory(node), declarations, count, net_deadline(),
                                       net_on_declared, &event, NULL),
                     SKEP_OK);
    assert_true(net_event_wait(&event, 1));
    net_event_fini(&event);
}

/* Declares one expert; returns the outcome. */
static inline skep_status net_declare_expert(const struct net_node *node, const char *uid,
                                             uint16_t port, uint32_t lifetime_s, bool offline)
{
    struct record record = net_expert(node, uid, port, lifetime_s);
    struct declaration declaration = {.record = &record};

    record.expert.offline = offline;
    record_key_expert(swarm_record(node->swarm), uid, declaration.key);
    net_declare(node, &declaration, 1);
    return declaration.outcome;
}

static inline struct lookup_result *net_get(const struct net_node *node, const char *uid,
                                            unsigned flags)
{
    struct lookup_result *result = mem_calloc(1, sizeof(*result));
    struct skep_error err = {0};

    assert_non_null(result);
    if (directory_get_wait(net_directory(node), &uid, 1, flags, net_deadline(), result, &err) !=
        SKEP_OK)
        fail_msg("directory_get_wait: %s", err.message);
    return result;
}

static inline skep_status net_get_status(const struct net_node *node, const char *uid,
                                         unsigned flags)
{
    struct lookup_result *result = net_get(node, uid, flags);
    skep_status status = result->status;

    mem_free(result);
    return status;
}

/* The port of the freshest provider; 0 if there is none. */
static inline uint16_t net_get_port(const struct net_node *node, const char *uid, unsigned flags)
{
    struct lookup_result *result = net_get(node, uid, flags);
    uint16_t port = result->status == SKEP_OK ? result->providers[0].endpoints[0].port : 0;

    mem_free(result);
    return port;
}

#endif
