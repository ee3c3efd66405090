/* Checks and copies options. */
#include "node/lifecycle/settings.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "dht/record/swarm_name.h"
#include "wire/tensor_codec.h"

enum {
    UPDATE_PERIOD_MAX_S = 1800, /* records live twice as long, at most an hour */
    HANDLERS_MAX = 64,
    CONNECTIONS_MAX = 1 << 20,
    MESSAGE_BYTES_MIN = 4096,
    CHECKPOINT_PERIOD_MIN_MS = 10,
    LEASE_MIN_MS = 100,
};
static const int64_t batch_size_max = INT32_MAX; /* oneDNN's dimensions are counted in int too */

void skep_node_options_init(struct skep_node_options *options)
{
    *options = (struct skep_node_options){
        .size = sizeof(*options),
        .listen = "0.0.0.0:*",
        .swarm = "skep",
        .update_period_s = 30,
        .max_batch_size = 4096,
        .min_batch_size = 1,
        .max_queued_tasks = 1024,
        .stall_timeout_ms = 60000,
        .max_connections = 4096,
        .max_message_bytes = (uint64_t)1 << 30,
        .drain_timeout_ms = 3000,
        .checkpoint_period_ms = 300000,
        .keep_checkpoints = 2,
        .tracker_reuse_addr = true,
        .tracker_report_interval_s = 60,
        .tracker_timeout_ms = 10000,
        .tracker_max_connections = 65536,
        .lease_timeout_ms = 600000,
        .lease_silence_ms = 15000,
    };
}

static skep_status check_range(const char *name, int64_t value, int64_t low, int64_t high,
                               struct skep_error *err)
{
    if (value >= low && value <= high)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "%s: %" PRId64 ", expected %" PRId64 " to %" PRId64, name, value, low, high);
}

static skep_status check_numbers(const struct skep_node_options *o, struct skep_error *err)
{
    const struct {
        const char *name;
        int64_t value, low, high;
    } rows[] = {
        {"update_period", o->update_period_s, 1, UPDATE_PERIOD_MAX_S},
        {"max_batch_size", o->max_batch_size, 1, batch_size_max},
        {"min_batch_size", o->min_batch_size, 1, o->max_batch_size},
        {"max_queued_tasks", o->max_queued_tasks > INT32_MAX ? -1 : (int64_t)o->max_queued_tasks, 1,
         INT32_MAX},
        {"checkpoint_period_ms", o->checkpoint_period_ms, CHECKPOINT_PERIOD_MIN_MS, UINT32_MAX},
        {"keep_checkpoints", o->keep_checkpoints, 1, INT32_MAX},
        {"tracker_max_connections", o->tracker_max_connections, 1, CONNECTIONS_MAX},
        {"tracker_port_end", o->tracker_port_end, 0, UINT16_MAX + 1},
        {"lease_timeout_ms", o->lease_timeout_ms, LEASE_MIN_MS, UINT32_MAX},
        {"lease_silence_ms", o->lease_silence_ms, LEASE_MIN_MS, UINT32_MAX},
        {"num_handlers", o->num_handlers, 0, HANDLERS_MAX},
        {"max_connections", o->max_connections, 1, CONNECTIONS_MAX},
        {"max_connections_per_address", o->max_connections_per_address, 0, CONNECTIONS_MAX},
        {"max_message_bytes",
         o->max_message_bytes > INT64_MAX ? INT64_MAX : (int64_t)o->max_message_bytes,
         MESSAGE_BYTES_MIN, INT64_MAX - 1},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        skep_status rc = check_range(rows[i].name, rows[i].value, rows[i].low, rows[i].high, err);
        if (rc != SKEP_OK)
            return rc;
    }
    return SKEP_OK;
}

static skep_status parse_endpoint(struct endpoint *out, const char *text, const char *name,
                                  struct skep_error *err)
{
    skep_status rc;

    if (text == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: not given, expected host:port", name);
    rc = endpoint_parse(out, text, true, err);
    if (rc != SKEP_OK && err != NULL)
        error_prefix(err, "%s", name);
    return rc;
}

static skep_status parse_endpoints(struct settings *s, const struct skep_node_options *o,
                                   struct skep_error *err)
{
    skep_status rc = parse_endpoint(&s->listen, o->listen, "listen", err);

    if (rc != SKEP_OK)
        return rc;
    if (o->dht_listen != NULL) {
        rc = parse_endpoint(&s->dht_listen, o->dht_listen, "dht_listen", err);
        if (rc != SKEP_OK)
            return rc;
    } else {
        s->dht_listen = s->listen;
        s->dht_listen.port = 0;
    }
    if (o->announce == NULL)
        return SKEP_OK;
    s->has_announce = true;
    rc = parse_endpoint(&s->announce, o->announce, "announce", err);
    if (rc == SKEP_OK && endpoint_is_unspecified(&s->announce))
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "announce: %s is no address others can dial, expected this machine's own",
                       o->announce);
    return rc;
}

static skep_status parse_trackers(struct settings *s, const struct skep_node_options *o,
                                  struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    if (o->tracker_listen != NULL) {
        if (o->no_tracker)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "tracker_listen: given together with no_tracker");
        rc = parse_endpoint(&s->tracker_listen, o->tracker_listen, "tracker_listen", err);
        s->has_tracker_listen = rc == SKEP_OK;
    }
    if (rc != SKEP_OK)
        return rc;
    if (o->tracker != NULL) {
        if (o->tracker_key == NULL)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "tracker: given without a tracker_key to register under");
        rc = endpoint_parse(&s->tracker, o->tracker, false, err);
        if (rc == SKEP_OK && endpoint_is_unspecified(&s->tracker))
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s is no address that can be reached",
                           o->tracker);
        if (rc != SKEP_OK)
            error_prefix(err, "tracker");
        s->has_tracker = rc == SKEP_OK;
    } else if (o->tracker_key != NULL && o->no_tracker) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "tracker_key: no tracker to register with: own one off, no other given");
    }
    return rc;
}

static skep_status copy_text(char **out, const char *text, struct skep_error *err)
{
    if (text == NULL)
        return SKEP_OK;
    *out = mem_strdup(text);
    return *out != NULL ? SKEP_OK : error_no_memory(err, "option", strlen(text) + 1);
}

static skep_status copy_texts(struct settings *s, const struct skep_node_options *o,
                              struct skep_error *err)
{
    skep_status rc = copy_text(&s->swarm, o->swarm, err);

    if (rc == SKEP_OK)
        rc = copy_text(&s->peers_file, o->peers_file, err);
    if (rc == SKEP_OK)
        rc = copy_text(&s->identity_path, o->identity, err);
    if (rc == SKEP_OK)
        rc = copy_text(&s->checkpoint_dir, o->checkpoint_dir, err);
    if (rc == SKEP_OK)
        rc = copy_text(&s->tracker_key, o->tracker_key, err);
    if (rc == SKEP_OK)
        rc = copy_text(&s->tracker_stop_key, o->tracker_stop_key, err);
    if (rc != SKEP_OK || o->initial_peer_count == 0)
        return rc;
    s->initial_peers = mem_calloc(o->initial_peer_count, sizeof(char *));
    if (s->initial_peers == NULL)
        return error_no_memory(err, "initial_peers", o->initial_peer_count * sizeof(char *));
    for (; s->initial_peer_count < o->initial_peer_count && rc == SKEP_OK; s->initial_peer_count++)
        rc = copy_text(&s->initial_peers[s->initial_peer_count],
                       o->initial_peers[s->initial_peer_count], err);
    return rc;
}

static skep_status take_identity(struct settings *s, struct skep_error *err)
{
    skep_status rc = identity_system_init(err);

    if (rc != SKEP_OK)
        return rc;
    if (s->identity_path == NULL) {
        rc = identity_generate(&s->identity, err);
    } else {
        rc = identity_load_or_create(&s->identity, s->identity_path, err);
        if (rc == SKEP_OK)
            rc = identity_lock(s->identity_path, &s->identity_lock, err);
    }
    if (rc == SKEP_OK)
        peer_id_hex(s->identity.peer_id, s->peer_id);
    return rc;
}

skep_status settings_init(struct settings *s, const struct skep_node_options *options,
                          struct skep_error *err)
{
    struct skep_node_options *o = &s->options;
    skep_status rc;

    memset(s, 0, sizeof(*s));
    s->identity_lock = -1;
    skep_node_options_init(o);
    rc = error_if_null(options, "options", err);
    if (rc != SKEP_OK)
        return rc;
    if (options->size == 0 || options->size > sizeof(*o))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "node options: size %zu, expected at most %zu: use "
                         "skep_node_options_init() of this library",
                         options->size, sizeof(*o));
    memcpy(o, options, options->size);

    rc = check_numbers(o, err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("compression", o->compression, err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("grad_compression", o->grad_compression, err);
    if (rc == SKEP_OK)
        rc = swarm_name_check(o->swarm, err);
    if (rc == SKEP_OK && !o->no_dht)
        rc = error_if_null_in(o->initial_peers, o->initial_peer_count, "initial_peers", err);
    if (rc == SKEP_OK)
        rc = parse_endpoints(s, o, err);
    if (rc == SKEP_OK)
        rc = parse_trackers(s, o, err);
    if (rc == SKEP_OK)
        rc = copy_texts(s, o, err);
    if (rc == SKEP_OK)
        rc = take_identity(s, err);
    if (rc == SKEP_OK && o->swarm_key != NULL) {
        rc = swarm_key_load(&s->swarm_key, o->swarm_key, err);
        s->has_swarm_key = rc == SKEP_OK;
    }
    if (rc != SKEP_OK)
        settings_fini(s);
    return rc;
}

void settings_unlock(struct settings *s)
{
    if (s->identity_lock >= 0)
        identity_unlock(s->identity_path, s->identity_lock);
    s->identity_lock = -1;
}

void settings_fini(struct settings *s)
{
    settings_unlock(s);
    identity_wipe(&s->identity);
    swarm_key_wipe(&s->swarm_key);
    for (size_t i = 0; i < s->initial_peer_count; i++)
        mem_free(s->initial_peers[i]);
    mem_free(s->initial_peers);
    s->initial_peers = NULL;
    s->initial_peer_count = 0;
    mem_free(s->swarm);
    mem_free(s->peers_file);
    mem_free(s->identity_path);
    mem_free(s->checkpoint_dir);
    mem_free(s->tracker_key);
    mem_free(s->tracker_stop_key);
    s->tracker_key = s->tracker_stop_key = NULL;
    s->swarm = s->peers_file = s->identity_path = s->checkpoint_dir = NULL;
}
