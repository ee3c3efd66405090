/* See tracker_json.h. */
#include "cli/tracker_json.h"

enum { MAX_KEYS = 1024 }; /* of one line that programs read; "keys" counts all */

json_t *json_waits(const uint64_t waits[static SKEP_TRACKER_WAIT_BUCKETS])
{
    json_t *list = json_array();

    for (size_t i = 0; i < SKEP_TRACKER_WAIT_BUCKETS; i++)
        json_array_append_new(list, json_integer((json_int_t)waits[i]));
    return list;
}

static bool add_key(void *arg, const struct skep_tracker_key_stats *s)
{
    json_t *list = arg;

    json_array_append_new(
        list, json_pack("{s:s%, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "key", s->key,
                        s->key_bytes, "servers", (json_int_t)s->servers, "free",
                        (json_int_t)s->free, "pending", (json_int_t)s->pending, "puts",
                        (json_int_t)s->puts, "requests", (json_int_t)s->requests, "requests_served",
                        (json_int_t)s->requests_served, "wait_us_sum", (json_int_t)s->wait_us_sum,
                        "wait_us_max", (json_int_t)s->wait_us_max, "waits", json_waits(s->waits)));
    return json_array_size(list) < MAX_KEYS;
}

json_t *json_tracker_keys(struct skep_tracker *tracker)
{
    json_t *list = json_array();

    (void)!skep_tracker_each_key(tracker, add_key, list, NULL);
    return list;
}

json_t *json_node_tracker_keys(struct skep_node *node)
{
    json_t *list = json_array();

    (void)!skep_node_tracker_each_key(node, add_key, list, NULL);
    return list;
}

json_t *json_tracker_stats(const struct skep_tracker_stats *s)
{
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, "
        "s:I, s:I, s:o}",
        "connections", (json_int_t)s->connections_open, "connections_accepted",
        (json_int_t)s->connections_accepted, "connections_refused",
        (json_int_t)s->connections_refused, "protocol_errors", (json_int_t)s->protocol_errors,
        "timeouts", (json_int_t)s->timeouts, "messages", (json_int_t)s->messages, "servers",
        (json_int_t)s->servers, "keys", (json_int_t)s->keys, "free", (json_int_t)s->resources_free,
        "pending", (json_int_t)s->requests_pending, "puts", (json_int_t)s->puts, "requests",
        (json_int_t)s->requests, "requests_served", (json_int_t)s->requests_served,
        "requests_withdrawn", (json_int_t)s->requests_withdrawn, "requests_undelivered",
        (json_int_t)s->requests_undelivered, "bytes_in", (json_int_t)s->bytes_in, "bytes_out",
        (json_int_t)s->bytes_out, "wait_us_sum", (json_int_t)s->wait_us_sum, "wait_us_max",
        (json_int_t)s->wait_us_max, "waits", json_waits(s->waits));
}

json_t *json_node_tracker_stats(const struct skep_node_stats *s)
{
    json_t *stats = json_tracker_stats(&s->tracker);

    json_object_set_new(stats, "requests_federated",
                        json_integer((json_int_t)s->tracker_requests_federated));
    json_object_set_new(stats, "records_published",
                        json_integer((json_int_t)s->tracker_records_published));
    json_object_set_new(stats, "records_failed",
                        json_integer((json_int_t)s->tracker_records_failed));
    return stats;
}
