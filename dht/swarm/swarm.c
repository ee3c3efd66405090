/* Membership in a swarm: runner, directory and bootstrap, started in this order. */
#include "dht/swarm/swarm.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "dht/bootstrap/bootstrap.h"
#include "dht/bootstrap/peers_file.h"

enum {
    DEFAULT_CLOCK_SKEW_S = 60,
    SWARM_NAME_QUOTED_BYTES = 520,
    NETWORK_TEXT_BYTES = 192, /* a name has up to 127 bytes */
    OPENDHT_PUBLIC_NETWORK = 0,
};
static const char DEFAULT_NAME[] = "skep";

struct swarm {
    char *name;
    struct record_swarm record;
    const struct identity *identity; /* borrowed */
    struct runner *runner;
    struct directory *directory;
    struct bootstrap *bootstrap;
    struct endpoint listen; /* what the DHT listens on; not a name */
    bool has_peers;         /* initial or saved ones were given */
    atomic_bool is_placed;
    struct join_networks networks;
    char public_text[NETWORK_TEXT_BYTES];
};

/* What has to be read and parsed before anything is started. */
struct peers {
    struct initial_peer *configured; /* owned */
    size_t configured_count;
    struct address *saved; /* owned */
    size_t saved_count;
};

static void free_peers(struct peers *peers)
{
    mem_free(peers->configured);
    mem_free(peers->saved);
}

static skep_status read_peers(struct peers *peers, const struct swarm_config *config,
                              struct skep_error *err)
{
    if (config->initial_peer_count > BOOTSTRAP_MAX_PEERS)
        return error_set(err, SKEP_INVALID_ARGUMENT, "%zu initial peers, expected at most %d",
                         config->initial_peer_count, BOOTSTRAP_MAX_PEERS);
    peers->configured = mem_calloc(config->initial_peer_count, sizeof(*peers->configured));
    peers->saved = mem_calloc(PEERS_FILE_MAX, sizeof(*peers->saved));
    if (peers->configured == NULL || peers->saved == NULL)
        return error_no_memory(err, "initial peers",
                               config->initial_peer_count * sizeof(*peers->configured));
    for (size_t i = 0; i < config->initial_peer_count; i++) {
        skep_status rc = initial_peer_parse(&peers->configured[i], config->initial_peers[i], err);
        if (rc != SKEP_OK) {
            error_prefix(err, "initial peer %zu", i + 1);
            return rc;
        }
    }
    peers->configured_count = config->initial_peer_count;
    if (config->peers_file != NULL)
        peers->saved_count = peers_file_load(config->peers_file, peers->saved, PEERS_FILE_MAX);
    return SKEP_OK;
}

/* Where those are whose address is known. */
static enum resolver_scope place_of(const struct peers *peers)
{
    enum resolver_scope place = RESOLVER_NOWHERE;

    for (size_t i = 0; i < peers->configured_count && place != RESOLVER_ELSEWHERE; i++) {
        enum resolver_scope one = resolver_scope_of(&peers->configured[i].endpoint);
        place = one != RESOLVER_NOWHERE ? one : place;
    }
    for (size_t i = 0; i < peers->saved_count && place != RESOLVER_ELSEWHERE; i++) {
        struct endpoint e;
        endpoint_from_address(&e, (const struct sockaddr *)&peers->saved[i].sa);
        place = resolver_scope_of(&e);
    }
    return place;
}

/* swarm.h has the rule. On the thread of swarm_join() first, then on the bootstrap's. */
static void on_placed(void *arg, enum resolver_scope place)
{
    struct swarm *swarm = arg;
    bool any_host = endpoint_is_unspecified(&swarm->listen);

    atomic_store(&swarm->record.loopback,
                 any_host ? place == RESOLVER_LOOPBACK
                          : endpoint_is_loopback(&swarm->listen) && place != RESOLVER_ELSEWHERE);
    atomic_store(&swarm->is_placed, !any_host || !swarm->has_peers || place != RESOLVER_NOWHERE);
}

/*
 * A name becomes an address here, and 127.0.1.1 (the machine's own name on Debian) 127.0.0.1: where
 * OpenDHT is told of a peer on loopback, it takes the teller's address with that peer's port, so
 * all the peers of a machine must be at one address.
 */
static skep_status resolve_listen(struct swarm *swarm, const struct endpoint *wanted,
                                  struct skep_error *err)
{
    struct address address;
    size_t count;

    swarm->listen = *wanted;
    if (endpoint_is_unspecified(wanted) || endpoint_to_address(wanted, &address))
        return SKEP_OK;
    skep_status rc = endpoint_resolve(wanted, &address, 1, &count, err);
    if (rc != SKEP_OK)
        return rc;
    (void)address_to_first_loopback(&address);
    endpoint_from_address(&swarm->listen, (const struct sockaddr *)&address.sa);
    return SKEP_OK;
}

static skep_status start_runner(struct swarm *swarm, const struct swarm_config *config,
                                struct skep_error *err)
{
    uint8_t dht_id[RECORD_KEY_BYTES];
    const struct runner_config runner = {
        .listen = swarm->listen,
        .network_id = record_network_id(&swarm->record),
        .dht_id = config->identity_is_ours ? dht_id : NULL,
        .swarm = &swarm->record,
        .bootstrap_only = config->bootstrap_only,
        .is_client = config->is_client,
        .raise_rate_limits = config->raise_rate_limits,
    };

    record_dht_id(&swarm->record, config->identity->peer_id, dht_id);
    return runner_new(&runner, &swarm->runner, err);
}

static skep_status start_directory(struct swarm *swarm, const struct swarm_config *config,
                                   struct skep_error *err)
{
    const struct directory_config directory = {
        .runner = swarm->runner,
        .identity = config->identity,
        .swarm = &swarm->record,
        .wall_ms = config->wall_ms,
    };

    return directory_new(&directory, &swarm->directory, err);
}

static void add_network(struct swarm *swarm, uint32_t id, const char *text)
{
    struct join_networks *n = &swarm->networks;

    for (size_t i = 0; i < n->count; i++)
        if (n->ids[i] == id)
            return;
    n->ids[n->count] = id;
    n->texts[n->count++] = text;
}

/* Our network, and those whose peers people take for peers of ours. */
static void list_networks(struct swarm *swarm)
{
    const struct record_swarm public_swarm = {.name = swarm->name};
    const struct record_swarm default_swarm = {.name = DEFAULT_NAME};

    swarm->networks.has_key = swarm->record.key != NULL;
    snprintf(swarm->public_text, sizeof(swarm->public_text),
             "a DHT peer of swarm \"%s\" without a swarm key", swarm->name);
    add_network(swarm, record_network_id(&swarm->record), "a DHT peer of this swarm");
    add_network(swarm, record_network_id(&public_swarm), swarm->public_text);
    add_network(swarm, record_network_id(&default_swarm),
                "a DHT peer of the default swarm (\"skep\", without a swarm key)");
    add_network(swarm, OPENDHT_PUBLIC_NETWORK,
                "a DHT peer of OpenDHT's public network, which is no swarm,");
}

static skep_status start_bootstrap(struct swarm *swarm, const struct swarm_config *config,
                                   const struct peers *peers, struct skep_error *err)
{
    const struct bootstrap_config bootstrap = {
        .runner = swarm->runner,
        .listen = swarm->listen,
        .network_id = record_network_id(&swarm->record),
        .peers = peers->configured,
        .peer_count = peers->configured_count,
        .saved = peers->saved,
        .saved_count = peers->saved_count,
        .peers_file = config->peers_file,
        .minute_ms = config->bootstrap_minute_ms,
        .placed = on_placed,
        .arg = swarm,
        .networks = &swarm->networks,
    };

    return bootstrap_new(&bootstrap, &swarm->bootstrap, err);
}

skep_status swarm_join(const struct swarm_config *config, struct swarm **out,
                       struct skep_error *err)
{
    struct peers peers = {0};
    skep_status rc = SKEP_OK;

    *out = NULL;
    struct swarm *swarm = mem_calloc(1, sizeof(*swarm));
    if (swarm == NULL)
        return error_no_memory(err, "swarm", sizeof(*swarm));
    swarm->identity = config->identity;
    swarm->name = mem_strdup(config->name != NULL ? config->name : DEFAULT_NAME);
    if (swarm->name == NULL) {
        rc = error_no_memory(err, "swarm name", 0);
        goto out;
    }
    rc = read_peers(&peers, config, err);
    if (rc != SKEP_OK)
        goto out;
    swarm->has_peers = peers.configured_count + peers.saved_count > 0;
    swarm->record = (struct record_swarm){
        .name = swarm->name,
        .key = config->key,
        .clock_skew_s = config->clock_skew_s ? config->clock_skew_s : DEFAULT_CLOCK_SKEW_S,
    };
    rc = resolve_listen(swarm, &config->dht_listen, err);
    on_placed(swarm, place_of(&peers));
    list_networks(swarm);
    if (rc == SKEP_OK)
        rc = start_runner(swarm, config, err);
    if (rc == SKEP_OK)
        rc = start_directory(swarm, config, err);
    if (rc == SKEP_OK)
        rc = start_bootstrap(swarm, config, &peers, err);

out:
    free_peers(&peers);
    if (rc != SKEP_OK)
        swarm_leave(swarm, 0);
    else
        *out = swarm;
    return rc;
}

void swarm_leave(struct swarm *swarm, uint64_t deadline_us)
{
    if (swarm == NULL)
        return;
    /* Without peers OpenDHT keeps puts back and there is nothing to wait for. */
    bool alone = swarm->bootstrap == NULL || bootstrap_peer_count(swarm->bootstrap) == 0;
    bootstrap_free(swarm->bootstrap);
    directory_free(swarm->directory);
    runner_free(swarm->runner, alone ? 0 : deadline_us);
    mem_free(swarm->name);
    mem_free(swarm);
}

bool swarm_wait_joined(struct swarm *swarm, uint64_t deadline_us)
{
    return bootstrap_wait_joined(swarm->bootstrap, deadline_us);
}

bool swarm_is_placed(const struct swarm *swarm)
{
    return atomic_load(&swarm->is_placed);
}

bool swarm_explain(struct swarm *swarm, uint64_t deadline_us, char *out, size_t cap)
{
    return bootstrap_explain(swarm->bootstrap, deadline_us, out, cap);
}

unsigned swarm_peer_count(struct swarm *swarm)
{
    return bootstrap_peer_count(swarm->bootstrap);
}

/* As a word of a shell. False if it does not fit. */
static bool add_quoted(const char *text, char *out, size_t cap)
{
    size_t n = 0;

    out[n++] = '\'';
    for (const char *p = text; *p != '\0'; p++) {
        const char *piece = *p == '\'' ? "'\\''" : (char[]){*p, '\0'};
        size_t len = strlen(piece);

        if (n + len + 2 > cap)
            return false;
        memcpy(out + n, piece, len);
        n += len;
    }
    out[n++] = '\'';
    out[n] = '\0';
    return true;
}

const char *swarm_join_options(const struct swarm *swarm, const char *peer,
                               char out[static SWARM_JOIN_BYTES])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    char quoted[SWARM_NAME_QUOTED_BYTES];
    const char *name = swarm->name;
    bool is_default = strcmp(name, DEFAULT_NAME) == 0;

    if (name[strspn(name, plain)] != '\0')
        name = add_quoted(name, quoted, sizeof(quoted)) ? quoted : "NAME";
    snprintf(out, SWARM_JOIN_BYTES, "--initial-peers %s%s%s%s", peer, is_default ? "" : " --swarm ",
             is_default ? "" : name,
             swarm->record.key != NULL ? " --swarm-key FILE (the same key)" : "");
    return out;
}

void swarm_log_join(struct swarm *swarm, const char *what, const char *peer)
{
    char options[SWARM_JOIN_BYTES], line[SWARM_JOIN_BYTES + 64];
    struct skep_error err;

    snprintf(line, sizeof(line), "%s: %s", what, swarm_join_options(swarm, peer, options));
    if (bootstrap_log_joined(swarm->bootstrap, line, &err) != SKEP_OK)
        log_warn("%s", err.message);
}

struct directory *swarm_directory(struct swarm *swarm)
{
    return swarm->directory;
}

struct runner *swarm_runner(struct swarm *swarm)
{
    return swarm->runner;
}

const struct record_swarm *swarm_record(const struct swarm *swarm)
{
    return &swarm->record;
}

const struct identity *swarm_identity(const struct swarm *swarm)
{
    return swarm->identity;
}

uint16_t swarm_dht_port(const struct swarm *swarm)
{
    return runner_port(swarm->runner);
}
