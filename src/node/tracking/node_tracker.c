/* The tracker that runs beside a node, and the node's own registration with one. */
#include <skep/version.h>
#include "node/lifecycle/node_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

enum { FIRST_PORT = 9190, PORT_END = 9199 };

/* --- leases -------------------------------------------------------------------------------- */

static void on_lease_changed(void *arg)
{
    struct skep_node *node = arg;

    pthread_mutex_lock(&node->parts);
    tracker_registration_wake(node->registration);
    pthread_mutex_unlock(&node->parts);
}

skep_status node_open_leases(struct skep_node *node, struct skep_error *err)
{
    const struct lease_server_config config = {
        .max_duration_ms = node->settings.options.lease_timeout_ms,
        .silence_ms = node->settings.options.lease_silence_ms,
        .changed = on_lease_changed,
        .arg = node,
    };

    if (node->settings.tracker_key == NULL)
        return SKEP_OK;
    return lease_server_new(&config, &node->leases, err);
}

/* --- the tracker --------------------------------------------------------------------------- */

static void on_tracker_stopped(void *arg)
{
    struct skep_node *node = arg;

    if (node->settings.options.stop_with_tracker)
        skep_node_request_stop(node);
}

static bool asks_for_port(const struct settings *s)
{
    return s->has_tracker_listen && s->tracker_listen.port != 0;
}

/* Which ports to try. */
static void choose_ports(const struct settings *s, struct tracking_config *out)
{
    out->host = s->has_tracker_listen ? s->tracker_listen.host : "127.0.0.1";
    if (asks_for_port(s)) {
        out->port = s->tracker_listen.port;
        out->port_end =
            s->options.tracker_port_end > out->port ? s->options.tracker_port_end : out->port + 1u;
    } else if (!s->options.tracker_any_port) {
        out->port = FIRST_PORT;
        out->port_end = PORT_END;
    } else {
        out->port_end = 1; /* port 0: any */
    }
}

static void set_tracker_counters(struct skep_node *node, struct tracking *tracking)
{
    struct endpoint bound;

    tracking_endpoint(tracking, &bound);
    endpoint_format(&bound, node->tracker_endpoint);
    snprintf(node->tracker_stop_key, sizeof(node->tracker_stop_key), "%s",
             tracking_stop_key(tracking));
    pthread_mutex_lock(&node->parts);
    node->tracking = tracking;
    pthread_mutex_unlock(&node->parts);
    atomic_store(&node->service.tracking, tracking);
}

skep_status node_check_tracker_port(const struct skep_node *node, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct tracking_config ports;

    if (s->options.no_tracker || !asks_for_port(s))
        return SKEP_OK;
    choose_ports(s, &ports);
    const struct tracker_server_config config = {
        .host = ports.host,
        .port = ports.port,
        .port_end = ports.port_end,
        .reuse_addr = s->options.tracker_reuse_addr,
    };
    skep_status rc = tracker_server_check(&config, err);
    if (rc != SKEP_OK)
        error_prefix(err, "tracker");
    return rc;
}

skep_status node_open_tracking(struct skep_node *node, uint32_t features, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct tracking_config config = {
        .reuse_addr = s->options.tracker_reuse_addr,
        .silent = s->options.tracker_silent,
        .report_interval_s = s->options.tracker_report_interval_s,
        .timeout_ms = s->options.tracker_timeout_ms,
        .max_connections = s->options.tracker_max_connections,
        .stop_key = s->tracker_stop_key,
        .stopped = on_tracker_stopped,
        .arg = node,
        .swarm = node->swarm,
        .dht_listen = s->dht_listen,
        .psk = s->has_swarm_key ? s->swarm_key.psk : NULL,
        .swarm_name = s->swarm,
        .plaintext = s->options.insecure_plaintext,
        .federation = !s->options.no_federation,
        .update_period_s = s->options.update_period_s,
        .features = features,
        .version = skep_version(),
    };
    struct tracking *tracking;
    struct skep_error why;

    if (s->options.no_tracker)
        return SKEP_OK;
    choose_ports(s, &config);
    skep_status rc = tracking_new(&config, &tracking, &why);
    /* A machine may have more nodes than the range has ports; who asked for no port gets another.
     */
    if (rc == SKEP_FAILED_PRECONDITION && config.port == FIRST_PORT && !asks_for_port(s)) {
        config.port = 0;
        config.port_end = 1;
        rc = tracking_new(&config, &tracking, &why);
        if (rc == SKEP_OK)
            log_info("tracker: ports %d to %d are taken, so it has another", FIRST_PORT,
                     PORT_END - 1);
    }
    if (rc == SKEP_OK) {
        set_tracker_counters(node, tracking);
        return SKEP_OK;
    }
    /* Most nodes need no TVM port. */
    if (!s->has_tracker_listen && (s->tracker_key == NULL || s->has_tracker)) {
        log_warn("node: without a tracker of its own: %s; --tracker-listen chooses another port",
                 why.message);
        return SKEP_OK;
    }
    if (err != NULL)
        *err = why;
    error_prefix(err, "tracker");
    return rc;
}

void node_announce_tracker(struct skep_node *node, const struct endpoint *endpoints, size_t count)
{
    /* Only the thread that calls this, and that which ends the tracker after it, change it. */
    if (node->tracking != NULL)
        tracking_announce(node->tracking, endpoints, count);
}

/* --- registration -------------------------------------------------------------------------- */

/* Our own tracker, as one of its clients: behind a wildcard it is reached by loopback. */
static void own_tracker(const struct skep_node *node, struct endpoint *out)
{
    tracking_endpoint(node->tracking, out);
    if (endpoint_is_unspecified(out))
        snprintf(out->host, sizeof(out->host), "%s",
                 strchr(out->host, ':') != NULL ? "::1" : "127.0.0.1");
}

/* The host to offer: what was announced or is listened on; else the one the tracker sees. */
static const char *offered_host(const struct skep_node *node)
{
    if (node->settings.has_announce)
        return node->settings.announce.host;
    return endpoint_is_unspecified(&node->announce.bound) ? NULL : node->announce.bound.host;
}

skep_status node_open_registration(struct skep_node *node, struct skep_error *err)
{
    const struct settings *s = &node->settings;
    struct tracker_registration_config config = {
        .key = s->tracker_key,
        .address = offered_host(node),
        .port = s->has_announce && s->announce.port != 0 ? s->announce.port : node->port,
        .peer_id = s->peer_id,
        .endpoint = node->endpoint,
        .expert_count = node->roster.count,
        .leases = node->leases,
    };
    struct tracker_registration *registration = NULL;
    const char **experts;

    if (s->tracker_key == NULL)
        return SKEP_OK;
    if (s->has_tracker)
        config.tracker = s->tracker;
    else
        own_tracker(node, &config.tracker);
    experts = mem_calloc(node->roster.count, sizeof(*experts));
    if (experts == NULL)
        return error_no_memory(err, "registration", node->roster.count * sizeof(*experts));
    for (size_t i = 0; i < node->roster.count; i++)
        experts[i] = node->roster.items[i]->uid;
    config.experts = experts;
    skep_status rc = tracker_registration_new(&config, &registration, err);
    mem_free(experts);
    pthread_mutex_lock(&node->parts);
    node->registration = registration;
    pthread_mutex_unlock(&node->parts);
    /* A lease that began meanwhile was not told of. */
    tracker_registration_wake(registration);
    return rc;
}

/* --- the end ------------------------------------------------------------------------------- */

void node_close_registration(struct skep_node *node)
{
    pthread_mutex_lock(&node->parts);
    node_collect_parts(node, &node->last);
    node->last.is_registered = node->last.is_leased = false;
    struct tracker_registration *registration = node->registration;
    node->registration = NULL;
    pthread_mutex_unlock(&node->parts);
    tracker_registration_free(registration);
    lease_server_close(node->leases);
}

void node_close_tracking(struct skep_node *node, uint64_t deadline_us)
{
    pthread_mutex_lock(&node->parts);
    node_collect_parts(node, &node->last);
    struct skep_tracker_stats *last = &node->last.tracker;
    last->connections_open = last->servers = 0;
    last->keys = last->resources_free = last->requests_pending = 0;
    struct tracking *tracking = node->tracking;
    pthread_mutex_unlock(&node->parts);
    tracking_close(tracking, deadline_us);
}

void node_free_tracking(struct skep_node *node)
{
    pthread_mutex_lock(&node->parts);
    struct tracking *tracking = node->tracking;
    node->tracking = NULL;
    pthread_mutex_unlock(&node->parts);
    atomic_store(&node->service.tracking, NULL);
    tracking_free(tracking);
    if (node->is_stuck)
        return; /* its calls may still ask whose they are */
    pthread_mutex_lock(&node->parts);
    struct lease_server *leases = node->leases;
    node->leases = NULL;
    pthread_mutex_unlock(&node->parts);
    lease_server_free(leases);
}
