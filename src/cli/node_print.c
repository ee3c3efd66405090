/* See node_print.h. */
#include "cli/node_print.h"

#include <jansson.h>

#include "cli/output.h"
#include "cli/tracker_json.h"
#include "crypto/keyed_hash.h"

static json_t *json_experts(struct skep_node *node)
{
    json_t *list = json_array();
    struct skep_expert_stats expert;

    for (size_t i = 0; skep_node_expert_stats(node, i, &expert); i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:I}", "uid", expert.uid, "class",
                                              expert.cls, "precision", expert.precision,
                                              "parameters", (json_int_t)expert.parameters));
    return list;
}

void node_print_ready(struct skep_node *node)
{
    const char *tracker = skep_node_tracker_endpoint(node);

    json_print_event(json_pack("{s:s, s:s, s:s, s:i, s:s, s:s?, s:o}", "event", "ready", "peer_id",
                               skep_node_peer_id(node), "endpoint", skep_node_endpoint(node),
                               "dht_port", (int)skep_node_dht_port(node), "initial_peers",
                               skep_node_initial_peer(node), "tracker",
                               tracker[0] != '\0' ? tracker : NULL, "experts", json_experts(node)));
}

static json_t *json_pool(const struct skep_pool_stats *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "tasks",
                     (json_int_t)p->tasks, "batches", (json_int_t)p->batches, "examples",
                     (json_int_t)p->examples, "refused", (json_int_t)p->refused, "expired",
                     (json_int_t)p->expired, "cancelled", (json_int_t)p->cancelled, "failed",
                     (json_int_t)p->failed, "busy_us", (json_int_t)p->busy_us, "wait_us",
                     (json_int_t)p->wait_us, "work_us", (json_int_t)p->work_us, "queued_tasks",
                     (json_int_t)p->queued_tasks, "stalled", p->stalled);
}

static json_t *json_tracker(struct skep_node *node, const struct skep_node_stats *s)
{
    json_t *tracker = json_node_tracker_stats(s);

    json_object_set_new(tracker, "by_key", json_node_tracker_keys(node));
    return tracker;
}

static json_t *json_leases(const struct skep_node_stats *s)
{
    return json_pack("{s:b, s:I, s:b, s:I, s:I}", "registered", (int)s->is_registered,
                     "registrations", (json_int_t)s->registrations, "leased", (int)s->is_leased,
                     "leases", (json_int_t)s->leases, "refused", (json_int_t)s->leases_refused);
}

void node_print_stats(struct skep_node *node, const char *event)
{
    struct skep_node_stats s;

    skep_node_stats(node, &s);
    json_print_event(json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:I, s:s, "
        "s:o, "
        "s:o, s:o, s:o}",
        "event", event, "uptime_ms", (json_int_t)s.uptime_ms, "connections",
        (json_int_t)s.connections_open, "handshakes_failed", (json_int_t)s.handshakes_failed,
        "handshakes_evicted", (json_int_t)s.handshakes_evicted, "calls", (json_int_t)s.calls,
        "calls_refused", (json_int_t)s.calls_refused, "inline_batches",
        (json_int_t)s.inline_batches, "stalls", (json_int_t)s.stalls, "anomalies",
        (json_int_t)s.anomalies, "skipped_steps", (json_int_t)s.skipped_steps, "bytes_in",
        (json_int_t)s.bytes_in, "bytes_out", (json_int_t)s.bytes_out, "not_compressed",
        (json_int_t)s.not_compressed, "dht_peers", (json_int_t)s.dht_peers, "publish_rounds",
        (json_int_t)s.publish_rounds, "publish_rounds_failed", (json_int_t)s.publish_rounds_failed,
        "checkpoints_saved", (json_int_t)s.checkpoints_saved, "checkpoints_failed",
        (json_int_t)s.checkpoints_failed, "checkpoint_wait_us", (json_int_t)s.checkpoint_wait_us,
        "reachability", skep_reachability_name(s.reachability), "forward", json_pool(&s.forward),
        "backward", json_pool(&s.backward), "tracker", json_tracker(node, &s), "lease",
        json_leases(&s)));
}

uint64_t node_experts_mark(struct skep_node *node)
{
    uint64_t mark[2] = {0};
    const char *uid;

    for (size_t i = 0; (uid = skep_node_expert_uid(node, i)) != NULL; i++) {
        mark[1] = skep_expert_seed(0, uid);
        mark[0] = keyed_hash(mark, sizeof(mark));
    }
    return mark[0];
}

void node_print_experts(struct skep_node *node, uint64_t *last)
{
    uint64_t mark = node_experts_mark(node);

    if (mark != *last)
        json_print_event(
            json_pack("{s:s, s:o}", "event", "experts", "experts", json_experts(node)));
    *last = mark;
}

void node_print_reachability(struct skep_node *node, enum skep_reachability *last)
{
    char message[SKEP_REACHABILITY_BYTES];
    enum skep_reachability state = skep_node_reachability(node, message);

    if (state != *last)
        json_print_event(json_pack("{s:s, s:s, s:s}", "event", "reachability", "state",
                                   skep_reachability_name(state), "message", message));
    *last = state;
}
