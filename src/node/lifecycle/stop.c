/* Taking a node down: also what is left of one that did not come up. */
#include "node/lifecycle/node_internal.h"

#include "base/clock.h"
#include "base/log.h"

enum {
    WITHDRAW_MS = 1500,  /* for telling the DHT that we go */
    TRACKER_MS = 300,    /* of it at least for the tracker, and for what its clients are owed */
    FLUSH_MS = 200,      /* for the last refusals to reach their callers */
    LAST_BATCH_MS = 500, /* at least, for the batch at work */
    LEAVE_MS = 1000,     /* for OpenDHT to send what it has queued */
};

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct handler *take_handler(struct skep_node *node)
{
    pthread_mutex_lock(&node->parts);
    struct handler *handler = node->handler;
    struct handler_stats stats = {0};

    if (handler != NULL) {
        handler_stats(handler, &stats);
        node->last.publish_rounds = stats.rounds;
        node->last.publish_rounds_failed = stats.failed_rounds;
        node->last.records_published = stats.records_published;
        node->last.records_failed = stats.records_failed;
        node->last.last_publish_unix_s = stats.last_success_unix_s;
    }
    node->handler = NULL;
    pthread_mutex_unlock(&node->parts);
    return handler;
}

static struct reach *take_reach(struct skep_node *node)
{
    pthread_mutex_lock(&node->parts);
    struct reach *reach = node->reach;

    if (reach != NULL) {
        reach_result(reach, &node->last_reach);
        node->last.reachability = node->last_reach.state;
    }
    node->reach = NULL;
    pthread_mutex_unlock(&node->parts);
    return reach;
}

static void free_dial_back(struct skep_node *node)
{
    dial_back_free(node->dial_back);
    node->dial_back = NULL;
    node->service.dial_back = NULL;
}

static void stop_serving(struct skep_node *node, struct server *server, uint64_t deadline)
{
    bool ended = true;

    if (server != NULL && !server_wait_idle(server, deadline))
        log_warn("node: stopping with calls under way, which are refused");
    if (node->runtime != NULL)
        ended = runtime_stop(node->runtime, later(deadline, clock_deadline_us(LAST_BATCH_MS)));
    dial_back_close(node->dial_back);
    node->is_stuck = !ended;
    if (server == NULL) {
        free_dial_back(node);
        return;
    }
    server_wait_idle(server, clock_deadline_us(FLUSH_MS));
    pthread_mutex_lock(&node->parts);
    node_collect_parts(node, &node->last);
    node->last.uptime_ms = (clock_mono_us() - node->started_us) / 1000 + 1; /* not 0: it ran */
    node->last.connections_open = 0;
    node->server = NULL;
    pthread_mutex_unlock(&node->parts);
    server_stop(server);
    free_dial_back(node); /* no I/O thread runs a handler any more */
    if (ended)
        server_free(server);
}

/* The experts rest now: what they have learned since their last checkpoints is saved. */
static void save_experts(struct skep_node *node)
{
    struct checkpointer *checkpointer = node->checkpointer; /* only this thread ends it */
    size_t lost = 0;

    checkpointer_stop(checkpointer);
    if (checkpointer != NULL)
        lost = checkpointer_finish(checkpointer);
    pthread_mutex_lock(&node->parts);
    node_collect_parts(node, &node->last);
    node->last.experts_lost = lost;
    node->checkpointer = NULL;
    pthread_mutex_unlock(&node->parts);
    checkpointer_free(checkpointer);
    checkpoint_dir_close(&node->checkpoints);
}

void node_shut_down(struct skep_node *node)
{
    uint64_t deadline = clock_deadline_us(node->settings.options.drain_timeout_ms);
    struct server *server = node->server; /* only this thread ends it */
    struct swarm *swarm;
    uint64_t withdraw_by;

    pthread_mutex_lock(&node->changes); /* waits for an expert that is being added or removed */
    node->is_closed = true;
    pthread_mutex_unlock(&node->changes);
    claims_stop(node->claims); /* it uses most of what ends below */
    reach_close(node->reach);  /* only this thread ends it */
    presence_end(&node->presence);
    if (server != NULL) {
        log_info("node: stopping");
        server_drain(server, "the node is stopping");
        runtime_drain(node->runtime);
    }
    node_close_registration(node);
    withdraw_by = earlier(deadline, clock_deadline_us(WITHDRAW_MS));
    handler_free(take_handler(node), withdraw_by);
    node_close_tracking(node, later(withdraw_by, clock_deadline_us(TRACKER_MS)));
    stop_serving(node, server, deadline);
    node_free_tracking(node);
    save_experts(node);
    reach_free(take_reach(node));

    pthread_mutex_lock(&node->parts);
    swarm = node->swarm;
    node->swarm = NULL;
    node->last.dht_peers = 0;
    pthread_mutex_unlock(&node->parts);
    swarm_leave(swarm, clock_deadline_us(LEAVE_MS));
    settings_unlock(&node->settings);
    if (server != NULL)
        log_info("node: stopped");
}
