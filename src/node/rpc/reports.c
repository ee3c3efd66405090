/* Results in msgpack: what info, stats and ping answer (docs/methods.md). */
#include "base/mp.h"
#include "node/rpc/answer.h"
#include "node/rpc/service.h"
#include "wire/tensor_codec.h"

struct report {
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    int bad; /* sticky: memory was short */
};

static void report_init(struct report *r)
{
    msgpack_sbuffer_init(&r->buffer);
    msgpack_packer_init(&r->pk, &r->buffer, msgpack_sbuffer_write);
    r->bad = 0;
}

static void put_map(struct report *r, const char *key, size_t fields)
{
    if (key != NULL)
        r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_map(&r->pk, fields);
}

static void put_str(struct report *r, const char *key, const char *value)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= mp_pack_str(&r->pk, value);
}

static void put_bin(struct report *r, const char *key, const uint8_t *data, size_t len)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_bin(&r->pk, len);
    r->bad |= msgpack_pack_bin_body(&r->pk, data, len);
}

static void put_uint(struct report *r, const char *key, uint64_t value)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_uint64(&r->pk, value);
}

static void put_int(struct report *r, const char *key, int64_t value)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_int64(&r->pk, value);
}

static void put_double(struct report *r, const char *key, double value)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_double(&r->pk, value);
}

static void put_bool(struct report *r, const char *key, bool value)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= value ? msgpack_pack_true(&r->pk) : msgpack_pack_false(&r->pk);
}

static void put_specs(struct report *r, const char *key, const struct skep_tensor_spec *specs,
                      size_t count)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_array(&r->pk, count);
    for (size_t i = 0; i < count; i++) {
        const char *dtype = skep_dtype_name(specs[i].dtype);

        put_map(r, NULL, 3);
        put_str(r, "name", specs[i].name);
        put_str(r, "dtype", dtype != NULL ? dtype : "unknown");
        r->bad |= mp_pack_str(&r->pk, "shape");
        r->bad |= msgpack_pack_array(&r->pk, (size_t)specs[i].ndim);
        for (int d = 0; d < specs[i].ndim; d++)
            r->bad |= msgpack_pack_int64(&r->pk, specs[i].shape[d]);
    }
}

void report_info(struct service *service, struct server_call *call,
                 const struct local_expert *local)
{
    const struct skep_expert_schema *schema = expert_schema(local->expert);
    struct task_pool_stats forward;
    struct task_pool_stats backward;
    struct report r;

    task_pool_stats(local->forward, &forward);
    task_pool_stats(local->backward, &backward);
    report_init(&r);
    put_map(&r, NULL, 13);
    put_str(&r, "uid", local->uid);
    put_str(&r, "class", expert_class_name(local->expert));
    put_str(&r, "precision", expert_precision_name(local->expert));
    put_str(&r, "compression", tensor_encoding_name(service->encoding));
    put_str(&r, "grad_compression", tensor_encoding_name(service->grad_encoding));
    put_uint(&r, "parameters", expert_parameter_count(local->expert));
    put_uint(&r, "updates", expert_update_count(local->expert));
    put_uint(&r, "skipped_steps", expert_skipped_count(local->expert));
    put_uint(&r, "max_batch_size", (uint64_t)service->max_batch_size);
    r.bad |= mp_pack_str(&r.pk, "schema_digest");
    r.bad |= mp_pack_bin(&r.pk, local->schema_digest, sizeof(local->schema_digest));
    put_specs(&r, "inputs", schema->inputs, schema->input_count);
    put_specs(&r, "outputs", schema->outputs, schema->output_count);
    put_map(&r, "load", 3);
    put_double(&r, "examples_per_s", atomic_load(&local->examples_per_s));
    put_uint(&r, "queued_tasks", forward.queued_tasks + backward.queued_tasks);
    put_bool(&r, "stalled", atomic_load(&local->stalled));
    answer_packed(call, &r.buffer, r.bad);
}

static void put_pool(struct report *r, const char *key, const struct skep_pool_stats *pool)
{
    put_map(r, key, 12);
    put_uint(r, "tasks", pool->tasks);
    put_uint(r, "batches", pool->batches);
    put_uint(r, "examples", pool->examples);
    put_uint(r, "refused", pool->refused);
    put_uint(r, "expired", pool->expired);
    put_uint(r, "cancelled", pool->cancelled);
    put_uint(r, "failed", pool->failed);
    put_uint(r, "busy_us", pool->busy_us);
    put_uint(r, "wait_us", pool->wait_us);
    put_uint(r, "work_us", pool->work_us);
    put_uint(r, "queued_tasks", pool->queued_tasks);
    put_bool(r, "stalled", pool->stalled);
}

static void put_numbers(struct report *r, const char *key, const uint64_t *numbers, size_t count)
{
    r->bad |= mp_pack_str(&r->pk, key);
    r->bad |= msgpack_pack_array(&r->pk, count);
    for (size_t i = 0; i < count; i++)
        r->bad |= msgpack_pack_uint64(&r->pk, numbers[i]);
}

static void put_tracker(struct report *r, const struct skep_tracker_stats *s)
{
    put_map(r, "tracker", 18);
    put_uint(r, "connections", s->connections_open);
    put_uint(r, "connections_accepted", s->connections_accepted);
    put_uint(r, "connections_refused", s->connections_refused);
    put_uint(r, "protocol_errors", s->protocol_errors);
    put_uint(r, "timeouts", s->timeouts);
    put_uint(r, "messages", s->messages);
    put_uint(r, "servers", s->servers);
    put_uint(r, "keys", s->keys);
    put_uint(r, "free", s->resources_free);
    put_uint(r, "pending", s->requests_pending);
    put_uint(r, "puts", s->puts);
    put_uint(r, "requests", s->requests);
    put_uint(r, "requests_served", s->requests_served);
    put_uint(r, "requests_withdrawn", s->requests_withdrawn);
    put_uint(r, "requests_undelivered", s->requests_undelivered);
    put_uint(r, "wait_us_sum", s->wait_us_sum);
    put_uint(r, "wait_us_max", s->wait_us_max);
    put_numbers(r, "waits", s->waits, SKEP_TRACKER_WAIT_BUCKETS);
}

static void put_lease(struct report *r, const struct skep_node_stats *s)
{
    put_map(r, "lease", 5);
    put_bool(r, "registered", s->is_registered);
    put_uint(r, "registrations", s->registrations);
    put_bool(r, "leased", s->is_leased);
    put_uint(r, "leases", s->leases);
    put_uint(r, "refused", s->leases_refused);
}

void report_stats(struct service *service, struct server_call *call)
{
    struct skep_node_stats s = {0};
    struct report r;

    service->stats(service->stats_arg, &s);
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"uptime_ms", s.uptime_ms},
        {"experts", s.experts},
        {"experts_stalled", s.experts_stalled},
        {"inline_batches", s.inline_batches},
        {"stalls", s.stalls},
        {"anomalies", s.anomalies},
        {"skipped_steps", s.skipped_steps},
        {"calls", s.calls},
        {"calls_refused", s.calls_refused},
        {"repeats_answered", s.repeats_answered},
        {"repeats_remembered", s.repeats_remembered},
        {"connections_open", s.connections_open},
        {"connections_accepted", s.connections_accepted},
        {"connections_refused", s.connections_refused},
        {"handshakes_failed", s.handshakes_failed},
        {"handshakes_evicted", s.handshakes_evicted},
        {"protocol_errors", s.protocol_errors},
        {"bytes_in", s.bytes_in},
        {"bytes_out", s.bytes_out},
        {"not_compressed", s.not_compressed},
        {"dht_peers", s.dht_peers},
        {"publish_rounds", s.publish_rounds},
        {"publish_rounds_failed", s.publish_rounds_failed},
        {"records_published", s.records_published},
        {"records_failed", s.records_failed},
        {"checkpoints_saved", s.checkpoints_saved},
        {"checkpoints_failed", s.checkpoints_failed},
        {"checkpoint_wait_us", s.checkpoint_wait_us},
    };
    size_t count = sizeof(numbers) / sizeof(numbers[0]);

    report_init(&r);
    put_map(&r, NULL, count + 10);
    for (size_t i = 0; i < count; i++)
        put_uint(&r, numbers[i].name, numbers[i].value);
    put_int(&r, "last_publish", s.last_publish_unix_s);
    put_int(&r, "last_checkpoint", s.last_checkpoint_unix_s);
    put_str(&r, "reachability", skep_reachability_name(s.reachability));
    put_bin(&r, "peer_id", service->peer_id, sizeof(service->peer_id));
    put_str(&r, "state", service->state(service->stats_arg));
    put_str(&r, "version", service->version);
    put_pool(&r, "forward", &s.forward);
    put_pool(&r, "backward", &s.backward);
    put_tracker(&r, &s.tracker);
    put_lease(&r, &s);
    answer_packed(call, &r.buffer, r.bad);
}

void report_empty(struct server_call *call)
{
    struct report r;

    report_init(&r);
    put_map(&r, NULL, 0);
    answer_packed(call, &r.buffer, r.bad);
}
