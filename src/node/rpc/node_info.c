/* What a node tells of itself: facts, counters and log lines. */
#include "node/lifecycle/check_alive.h"
#include "node/lifecycle/node_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

enum { EXPERTS_LOGGED = 32 }; /* one by one; more are counted */

const char *skep_node_peer_id(const struct skep_node *node)
{
    return node->settings.peer_id;
}

const char *skep_node_endpoint(const struct skep_node *node)
{
    return node->endpoint;
}

uint16_t skep_node_port(const struct skep_node *node)
{
    return node->port;
}

uint16_t skep_node_dht_port(const struct skep_node *node)
{
    return node->dht_port;
}

const char *skep_node_initial_peer(const struct skep_node *node)
{
    return node->initial_peer;
}

const char *skep_node_tracker_endpoint(const struct skep_node *node)
{
    return node->tracker_endpoint;
}

const char *skep_node_tracker_stop_key(const struct skep_node *node)
{
    return node->tracker_stop_key;
}

/* Reading it changes nothing but its lock and counts of holders. */
static struct roster *roster_of(const struct skep_node *node)
{
    return (struct roster *)(uintptr_t)&node->roster;
}

static struct local_expert *hold_at(const struct skep_node *node, size_t index)
{
    return roster_hold_at(roster_of(node), index);
}

size_t skep_node_expert_count(const struct skep_node *node)
{
    return roster_count(roster_of(node));
}

const char *skep_node_expert_uid(const struct skep_node *node, size_t index)
{
    struct local_expert *local = hold_at(node, index);

    if (local == NULL)
        return NULL;
    local_expert_release(local);
    return local->uid; /* the roster keeps the text also of one that it retires */
}

/* 33088 as "33,088". */
static const char *with_commas(uint64_t n, char *out, size_t cap)
{
    char digits[24];
    int len = snprintf(digits, sizeof(digits), "%" PRIu64, n);
    size_t used = 0;

    for (int i = 0; i < len && used + 2 < cap; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = digits[i];
    }
    out[used] = '\0';
    return out;
}

static void log_experts(const struct skep_node *node)
{
    size_t count = skep_node_expert_count(node);
    struct local_expert *local;
    char text[32];

    for (size_t i = 0; i < EXPERTS_LOGGED && (local = hold_at(node, i)) != NULL; i++) {
        log_info("expert %s: %s in %s, %s parameter%s", local->uid,
                 expert_class_name(local->expert), expert_precision_name(local->expert),
                 with_commas(expert_parameter_count(local->expert), text, sizeof(text)),
                 text_plural(expert_parameter_count(local->expert)));
        local_expert_release(local);
    }
    if (count == 0)
        log_info("hosting no experts");
    if (count > EXPERTS_LOGGED)
        log_info("and %zu more", count - EXPERTS_LOGGED);
}

void node_log_info(struct skep_node *node)
{
    char announced[ENDPOINT_TEXT_BYTES];
    struct endpoint e = node->settings.announce;

    if (e.port == 0)
        e.port = node->port;
    endpoint_format(&e, announced);
    if (node->settings.options.insecure_plaintext)
        log_warn("insecure_plaintext: calls are neither encrypted nor authenticated");
    log_info("node %s of swarm \"%s\"", node->settings.peer_id, node->settings.swarm);
    if (node->settings.has_announce)
        log_info("serving on %s, announced as %s", node->endpoint, announced);
    else
        log_info("serving on %s", node->endpoint);
    if (node->tracker_endpoint[0] != '\0')
        log_info("tracker on %s", node->tracker_endpoint);
    log_experts(node);
    if (node->swarm == NULL)
        return;
    log_info("DHT on UDP port %u", (unsigned)node->dht_port);
    swarm_log_join(node->swarm, "the next node joins with", node->initial_peer);
}

void node_log_stats(struct skep_node *node)
{
    struct skep_node_stats s;

    skep_node_stats(node, &s);
    log_info("stats: calls %" PRIu64 ", refused %" PRIu64 "; forward %" PRIu64
             " examples in %" PRIu64 " batches, backward %" PRIu64 " in %" PRIu64
             "; queued %" PRIu64 ", connections %" PRIu64 ", DHT peers %" PRIu64,
             s.calls, s.calls_refused, s.forward.examples, s.forward.batches, s.backward.examples,
             s.backward.batches, s.forward.queued_tasks + s.backward.queued_tasks,
             s.connections_open, s.dht_peers);
}

static void collect_server(const struct server *server, struct skep_node_stats *out)
{
    struct server_counters c = {0};

    server_counters(server, &c);
    out->connections_open = c.connections_open;
    out->connections_accepted = c.connections_accepted;
    out->connections_refused = c.connections_refused;
    out->handshakes_failed = c.handshakes_failed;
    out->handshakes_evicted = c.handshakes_evicted;
    out->protocol_errors = c.protocol_errors;
    out->calls = c.calls;
    out->bytes_in = c.bytes_in;
    out->bytes_out = c.bytes_out;
    out->not_compressed = c.not_encoded;
}

static void collect_checkpoints(struct checkpointer *checkpointer, struct skep_node_stats *out)
{
    struct checkpointer_stats c = {0};

    checkpointer_stats(checkpointer, &c);
    out->checkpoints_saved = c.saved;
    out->checkpoints_failed = c.failed;
    out->last_checkpoint_unix_s = c.last_unix_s;
    out->checkpoint_wait_us = c.longest_wait_us;
}

static void collect_tracking(struct tracking *tracking, struct skep_node_stats *out)
{
    struct tracking_stats t;

    tracking_stats(tracking, &t);
    out->tracker = t.server;
    out->tracker_requests_federated = t.federation.served;
    out->tracker_records_published = t.registry.records_published;
    out->tracker_records_failed = t.registry.records_failed;
}

static void collect_registration(struct tracker_registration *registration,
                                 struct skep_node_stats *out)
{
    struct tracker_registration_stats r;

    tracker_registration_stats(registration, &r);
    out->registrations = r.registrations;
    out->is_registered = r.is_registered;
}

static void collect_leases(struct lease_server *leases, struct skep_node_stats *out)
{
    struct lease_server_stats l;

    lease_server_stats(leases, &l);
    out->leases = l.begun;
    out->leases_refused = l.refused;
    out->is_leased = l.is_held;
}

void node_collect_parts(struct skep_node *node, struct skep_node_stats *out)
{
    struct handler_stats h = {0};

    if (node->server != NULL)
        collect_server(node->server, out);
    if (node->swarm != NULL)
        out->dht_peers = swarm_peer_count(node->swarm);
    if (node->checkpointer != NULL)
        collect_checkpoints(node->checkpointer, out);
    if (node->tracking != NULL)
        collect_tracking(node->tracking, out);
    if (node->registration != NULL)
        collect_registration(node->registration, out);
    if (node->leases != NULL)
        collect_leases(node->leases, out);
    if (node->reach != NULL) {
        struct diagnosis diagnosis;

        reach_result(node->reach, &diagnosis);
        out->reachability = diagnosis.state;
    }
    if (node->handler == NULL)
        return;
    handler_stats(node->handler, &h);
    out->publish_rounds = h.rounds;
    out->publish_rounds_failed = h.failed_rounds;
    out->records_published = h.records_published;
    out->records_failed = h.records_failed;
    out->last_publish_unix_s = h.last_success_unix_s;
}

void node_check_alive(struct skep_node *node)
{
    struct skep_node_stats stats;

    pthread_mutex_lock(&node->parts);
    if (node->server != NULL)
        server_touch(node->server);
    pthread_mutex_unlock(&node->parts);
    skep_node_stats(node, &stats); /* which asks the others */
}

void skep_node_stats(struct skep_node *node, struct skep_node_stats *out)
{
    struct runtime_stats runtime = {0};
    struct idempotency_stats idempotency = {0};

    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&node->parts);
    bool started = node->server != NULL || node->last.uptime_ms > 0;
    if (started) {
        *out = node->last;
        node_collect_parts(node, out);
    }
    bool serves = node->server != NULL;
    pthread_mutex_unlock(&node->parts);
    if (!started)
        return;
    if (serves)
        out->uptime_ms = (clock_mono_us() - node->started_us) / 1000;
    runtime_stats(node->runtime, &runtime);
    idempotency_stats(node->idempotency, &idempotency);
    out->experts = roster_count(&node->roster);
    out->inline_batches = runtime.inline_batches;
    out->stalls = runtime.stalls;
    out->calls_refused = atomic_load(&node->service.refused);
    out->anomalies = atomic_load(&node->service.anomalies);
    out->repeats_answered = idempotency.repeats;
    out->repeats_remembered = idempotency.entries;
    struct local_expert *local;
    for (size_t i = 0; (local = roster_hold_at(&node->roster, i)) != NULL; i++) {
        struct skep_expert_stats expert;

        local_expert_stats(local, &expert);
        local_expert_release(local);
        out->skipped_steps += expert.skipped_steps;
        out->experts_stalled += expert.forward.stalled || expert.backward.stalled;
        pool_stats_add(&out->forward, &expert.forward);
        pool_stats_add(&out->backward, &expert.backward);
    }
}

const char *skep_reachability_name(enum skep_reachability state)
{
    switch (state) {
    case SKEP_REACH_REACHABLE:
        return "reachable";
    case SKEP_REACH_UNCHECKED:
        return "unchecked";
    case SKEP_REACH_TCP_BLOCKED:
        return "tcp_blocked";
    case SKEP_REACH_UDP_BLOCKED:
        return "udp_blocked";
    case SKEP_REACH_WRONG_ADDRESS:
        return "wrong_address";
    case SKEP_REACH_UNKNOWN:
        break;
    }
    return "unknown";
}

enum skep_reachability skep_node_reachability(struct skep_node *node,
                                              char message[SKEP_REACHABILITY_BYTES])
{
    struct diagnosis diagnosis;

    pthread_mutex_lock(&node->parts);
    diagnosis = node->last_reach;
    if (node->reach != NULL)
        reach_result(node->reach, &diagnosis);
    pthread_mutex_unlock(&node->parts);
    if (message != NULL)
        memcpy(message, diagnosis.message, sizeof(diagnosis.message));
    return diagnosis.state;
}

skep_status skep_node_tracker_each_key(struct skep_node *node, skep_tracker_key_fn fn, void *arg,
                                       struct skep_error *err)
{
    struct key_stats *keys = NULL;
    skep_status rc = SKEP_OK;

    pthread_mutex_lock(&node->parts);
    if (node->tracking != NULL)
        rc = tracking_key_stats(node->tracking, &keys, err);
    pthread_mutex_unlock(&node->parts);
    if (keys != NULL)
        key_stats_walk(keys, fn, arg); /* with no lock held */
    key_stats_free(keys);
    return rc;
}

bool skep_node_expert_stats(struct skep_node *node, size_t index, struct skep_expert_stats *out)
{
    struct local_expert *local = roster_hold_at(&node->roster, index);

    memset(out, 0, sizeof(*out));
    if (local == NULL)
        return false;
    local_expert_stats(local, out);
    local_expert_release(local);
    return true;
}
