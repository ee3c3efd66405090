/* Bringing a node up, in the order that the descriptors of OpenDHT demand: the DHT first. */
#include <skep/version.h>
#include "node/lifecycle/node_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/cpu_count.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/log.h"
#include "net/listener.h"
#include "node/lifecycle/memory.h"
#include "wire/tensor_codec.h"

enum { CONNECTIONS_PER_ADDRESS_MIN = 16 };

static skep_status join_swarm(struct skep_node *node, struct skep_error *err)
{
    struct settings *s = &node->settings;
    struct swarm_config config = {
        .name = s->swarm,
        .key = s->has_swarm_key ? &s->swarm_key : NULL,
        .identity = &s->identity,
        .dht_listen = s->dht_listen,
        .initial_peers = (const char *const *)s->initial_peers,
        .initial_peer_count = s->initial_peer_count,
        .peers_file = s->peers_file,
        .identity_is_ours = true,
    };

    if (s->options.no_dht)
        return SKEP_OK;
    return swarm_join(&config, &node->swarm, err);
}

/* --- memory -------------------------------------------------------------------------------- */

skep_status node_check_memory(struct skep_node *node, const struct local_expert *more,
                              struct skep_error *err)
{
    const struct skep_node_options *o = &node->settings.options;
    struct memory_sum sum = {.has_copy = node->settings.checkpoint_dir != NULL};

    pthread_rwlock_rdlock(&node->roster.lock);
    for (size_t i = 0; i < node->roster.count; i++)
        memory_add(&sum, &node->roster.items[i]->description, 1);
    pthread_rwlock_unlock(&node->roster.lock);
    /* Once they are chosen, their experts are in the roster. */
    for (const struct uid_reservation *w = node->chosen_us == 0 ? node->reservations : NULL;
         w != NULL; w = w->next)
        memory_add(&sum, &w->description, w->count);
    if (more != NULL)
        memory_add(&sum, &more->description, 1);
    return memory_check(&sum, o->max_batch_size, o->max_memory, err);
}

/* --- experts and their runtime ------------------------------------------------------------- */

static void on_expert_changed(void *arg)
{
    struct skep_node *node = arg;

    pthread_mutex_lock(&node->parts);
    if (node->handler != NULL)
        handler_refresh(node->handler);
    pthread_mutex_unlock(&node->parts);
}

void node_log_progress(const char *what, size_t done, size_t total, uint64_t *next_us)
{
    if (clock_mono_us() < *next_us)
        return;
    log_info("%s: %zu of %zu", what, done, total);
    *next_us = clock_deadline_us(PROGRESS_LOG_MS);
}

/* One after the other: each is spread over all cores while its parameters are drawn. */
static skep_status make_experts(struct skep_node *node, struct skep_error *err)
{
    uint64_t next_us = clock_deadline_us(PROGRESS_LOG_MS);
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < node->roster.count && rc == SKEP_OK; i++) {
        rc = node_check_stop(node, err);
        if (rc == SKEP_OK)
            rc = local_expert_make(node->roster.items[i], err);
        node_log_progress("experts made", i + 1, node->roster.count, &next_us);
    }
    return rc;
}

skep_status node_open_local_expert(struct skep_node *node, struct local_expert *local,
                                   struct skep_error *err)
{
    const struct skep_node_options *o = &node->settings.options;
    struct local_expert_limits limits = {
        .max_batch_size = o->max_batch_size,
        .min_batch_size = o->min_batch_size,
        .batch_timeout_us = (uint64_t)o->batch_timeout_ms * 1000,
        .stall_timeout_us = (uint64_t)o->stall_timeout_ms * 1000,
        .max_queued_tasks = o->max_queued_tasks,
    };

    local->changed = on_expert_changed;
    local->changed_arg = node;
    return local_expert_open(local, node->runtime, &limits, err);
}

static skep_status open_experts(struct skep_node *node, struct skep_error *err)
{
    const struct skep_node_options *o = &node->settings.options;
    uint64_t available = o->max_memory > 0 ? o->max_memory : memory_available();
    skep_status rc = runtime_new(&node->runtime, err);

    if (rc != SKEP_OK)
        return rc;
    runtime_limit_queue(node->runtime,
                        o->max_queued_bytes > 0 ? o->max_queued_bytes : available / 4);
    roster_sort(&node->roster);
    for (size_t i = 0; i < node->roster.count && rc == SKEP_OK; i++)
        rc = node_open_local_expert(node, node->roster.items[i], err);
    if (rc == SKEP_OK)
        rc = runtime_start(node->runtime, err);
    return rc;
}

/* --- serving ------------------------------------------------------------------------------- */

static unsigned io_threads(unsigned wanted)
{
    if (wanted > 0)
        return wanted;
    /* Two CPUs are best spent on one thread of I/O and one of compute. */
    return cpu_count() > 2 ? 2 : 1;
}

static void fill_stats(void *arg, struct skep_node_stats *out)
{
    skep_node_stats(arg, out);
}

static const char *state_of(void *arg)
{
    struct skep_node *node = arg;

    if (atomic_load(&node->is_stop_asked))
        return "draining";
    pthread_mutex_lock(&node->lock);
    bool is_ready = node->is_ready;
    pthread_mutex_unlock(&node->lock);
    return is_ready ? "online" : "joining";
}

static skep_status open_service(struct skep_node *node, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct dial_back_config dial_back = {
        .identity = &s->identity,
        .psk = s->has_swarm_key ? s->swarm_key.psk : NULL,
        .plaintext = s->options.insecure_plaintext,
        .swarm = s->swarm,
        .network_id = node->swarm != NULL ? record_network_id(swarm_record(node->swarm)) : 0,
    };
    skep_status rc = idempotency_new(NULL, &node->idempotency, err);

    if (rc == SKEP_OK)
        rc = dial_back_new(&dial_back, &node->dial_back, err);
    if (rc == SKEP_OK)
        rc = node_open_leases(node, err);
    node->service = (struct service){
        .roster = &node->roster,
        .max_batch_size = s->options.max_batch_size,
        .detect_anomalies = s->options.detect_anomalies,
        .encoding = tensor_encoding_of(s->options.compression),
        .grad_encoding = tensor_encoding_of(s->options.grad_compression),
        .idempotency = node->idempotency,
        .dial_back = node->dial_back,
        .leases = node->leases,
        .stats = fill_stats,
        .state = state_of,
        .stats_arg = node,
        .version = skep_version(),
    };
    memcpy(node->service.peer_id, s->identity.peer_id, PEER_ID_BYTES);
    return rc;
}

static unsigned connections_per_address(const struct skep_node_options *o)
{
    unsigned quarter = o->max_connections / 4;

    if (o->max_connections_per_address > 0)
        return o->max_connections_per_address;
    return quarter > CONNECTIONS_PER_ADDRESS_MIN ? quarter : CONNECTIONS_PER_ADDRESS_MIN;
}

static skep_status open_server(struct skep_node *node, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct server_config config = {
        .listen = s->listen,
        .io_threads = io_threads(s->options.num_handlers),
        .max_connections = s->options.max_connections,
        .max_connections_per_address = connections_per_address(&s->options),
        .identity = &s->identity,
        .psk = s->has_swarm_key ? s->swarm_key.psk : NULL,
        .plaintext = s->options.insecure_plaintext,
        .swarm = s->swarm,
        .limits = session_default_limits,
        .handlers = service_handlers,
        .arg = &node->service,
    };
    struct server *server = NULL;
    skep_status rc;

    config.limits.message.max_message_bytes = s->options.max_message_bytes;
    rc = server_new(&config, &server, err);
    pthread_mutex_lock(&node->parts); /* its I/O threads may ask for stats already */
    node->server = server;
    pthread_mutex_unlock(&node->parts);
    return rc;
}

static void set_facts(struct skep_node *node)
{
    struct settings *s = &node->settings;
    struct endpoint dht = s->dht_listen;

    server_endpoint(node->server, &node->announce.bound);
    presence_show(&node->presence, s->identity.peer_id, &node->announce.bound);
    node->port = node->announce.bound.port;
    endpoint_format(&node->announce.bound, node->endpoint);
    node->announce.preset = s->has_announce ? &s->announce : NULL;
    if (node->swarm == NULL)
        return;
    node->dht_port = swarm_dht_port(node->swarm);
    dht.port = node->dht_port;
    if (endpoint_is_unspecified(&dht)) {
        if (s->has_announce)
            dht = (struct endpoint){.port = dht.port};
        if (s->has_announce)
            memcpy(dht.host, s->announce.host, sizeof(dht.host));
        else
            endpoint_local_host(&dht, strchr(s->dht_listen.host, ':') != NULL);
    }
    endpoint_format(&dht, node->initial_peer);
}

/* --- publishing ---------------------------------------------------------------------------- */

static bool expert_load(void *arg, const char *uid, struct record_load *out)
{
    struct skep_node *node = arg;
    struct local_expert *local = roster_hold(&node->roster, uid);
    bool is_served = local != NULL && local_expert_load(local, out);

    if (local != NULL)
        local_expert_release(local);
    return is_served;
}

static void expert_claim(void *arg, const char *uid, struct record_claim *out)
{
    struct skep_node *node = arg;
    struct local_expert *local = roster_hold(&node->roster, uid);

    if (local == NULL)
        return;
    local_expert_claim(local, out);
    local_expert_release(local);
}

static void on_published(void *arg)
{
    struct skep_node *node = arg;

    claims_published(node->claims);
}

static uint32_t features(const struct settings *s)
{
    uint32_t bits = 0;

    if (noise_cipher_available(NOISE_AESGCM))
        bits |= RECORD_FEATURE_AES_GCM;
    if (s->options.insecure_plaintext)
        bits |= RECORD_FEATURE_PLAINTEXT;
    return bits;
}

static skep_status open_handler(struct skep_node *node, struct skep_error *err)
{
    struct handler_config config = {
        .swarm = node->swarm,
        .update_period_s = node->settings.options.update_period_s,
        .features = features(&node->settings),
        .version = skep_version(),
        .expert_load = expert_load,
        .expert_claim = expert_claim,
        .published = on_published,
        .arg = node,
    };
    struct handler_expert *experts;
    struct handler *handler = NULL;
    skep_status rc;

    if (node->swarm == NULL)
        return SKEP_OK;
    experts = mem_calloc(node->roster.count, sizeof(*experts));
    if (experts == NULL)
        return error_no_memory(err, "experts", node->roster.count * sizeof(*experts));
    for (size_t i = 0; i < node->roster.count; i++) {
        experts[i].uid = node->roster.items[i]->uid;
        experts[i].cls = expert_class_name(node->roster.items[i]->expert);
        memcpy(experts[i].schema_digest, node->roster.items[i]->schema_digest,
               sizeof(experts[i].schema_digest));
    }
    config.endpoint_count = node_announce_first(node, config.endpoints);
    node_announce_tracker(node, config.endpoints, config.endpoint_count);
    rc = handler_new(&config, experts, node->roster.count, &handler, err);
    mem_free(experts);
    pthread_mutex_lock(&node->parts);
    node->handler = handler;
    pthread_mutex_unlock(&node->parts);
    return rc;
}

static skep_status open_reach(struct skep_node *node, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct reach_config config = {
        .swarm = node->swarm,
        .psk = s->has_swarm_key ? s->swarm_key.psk : NULL,
        .plaintext = s->options.insecure_plaintext,
        .swarm_name = s->swarm,
        .bound = node->announce.bound,
        .by_hand = s->has_announce,
        .dht_port = node->dht_port,
        .joins = s->initial_peer_count > 0,
    };
    struct reach *reach = NULL;
    skep_status rc;

    if (node->swarm == NULL)
        return SKEP_OK;
    rc = reach_new(&config, node->announced, node->announced_count, &reach, err);
    pthread_mutex_lock(&node->parts);
    node->reach = reach;
    pthread_mutex_unlock(&node->parts);
    return rc;
}

skep_status node_open_checkpointer(struct skep_node *node, struct skep_error *err)
{
    struct checkpointer_config config = {
        .dir = &node->checkpoints,
        .roster = &node->roster,
        .period_ms = node->settings.options.checkpoint_period_ms,
        .keep = node->settings.options.keep_checkpoints,
    };
    struct checkpointer *checkpointer = NULL;
    skep_status rc;

    if (node->checkpoints.path == NULL || node->checkpoints.lock < 0) /* nothing to save */
        return SKEP_OK;
    rc = checkpointer_new(&config, &checkpointer, err);
    pthread_mutex_lock(&node->parts); /* I/O threads may ask for stats already */
    node->checkpointer = checkpointer;
    pthread_mutex_unlock(&node->parts);
    return rc;
}

/* What would end the start anyway is told before others hear of this node and before it waits for
 * them, which may take ten seconds. */
static skep_status check_places(struct skep_node *node, struct skep_error *err)
{
    skep_status rc = listeners_check(&node->settings.listen, err);

    if (rc == SKEP_OK)
        rc = node_check_tracker_port(node, err);
    return rc == SKEP_OK ? node_open_checkpoints_as_needed(node, err) : rc;
}

/* Makes the experts, and loads those that have checkpoints; those whose UIDs others have taken
 * meanwhile make room for others. */
static skep_status make_chosen(struct skep_node *node, struct skep_error *err)
{
    bool changed = true;
    skep_status rc = SKEP_OK;

    while (changed && rc == SKEP_OK) {
        rc = make_experts(node, err);
        if (rc == SKEP_OK)
            rc = node_restore_experts(node, err);
        if (rc == SKEP_OK)
            rc = node_check_choice(node, &changed, err);
    }
    return rc;
}

skep_status node_bring_up(struct skep_node *node, struct skep_error *err)
{
    skep_status rc;

    fd_raise_limit();
    node->started_us = clock_mono_us();
    rc = node_check_memory(node, NULL, err);
    if (rc == SKEP_OK)
        rc = check_places(node, err);
    if (rc == SKEP_OK)
        rc = join_swarm(node, err);
    if (rc == SKEP_OK)
        rc = node_add_reservations(node, err);
    if (rc == SKEP_OK)
        rc = make_chosen(node, err);
    if (rc == SKEP_OK)
        rc = open_experts(node, err);
    if (rc == SKEP_OK)
        rc = open_service(node, err);
    if (rc == SKEP_OK)
        rc = open_server(node, err);
    if (rc != SKEP_OK)
        return rc;
    set_facts(node);
    own_addresses_init(&node->own_addresses);
    rc = node_open_tracking(node, features(&node->settings), err);
    if (rc == SKEP_OK)
        rc = claims_new(node, &node->claims, err);
    if (rc == SKEP_OK)
        rc = open_handler(node, err);
    if (rc == SKEP_OK)
        rc = claims_settle(node->claims, err);
    if (rc == SKEP_OK)
        rc = node_open_checkpointer(node, err);
    if (rc == SKEP_OK)
        rc = node_open_registration(node, err);
    if (rc == SKEP_OK)
        rc = open_reach(node, err);
    return rc == SKEP_OK ? claims_start(node->claims, err) : rc;
}
