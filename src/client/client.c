/* The client's life, and looking experts up. */
#include "client/client_internal.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/fd.h"
#include "dht/bootstrap/initial_peer.h"
#include "dht/record/swarm_name.h"

enum {
    DEFAULT_TIMEOUT_MS = 30000,
    DEFAULT_MAX_IN_FLIGHT = 4096,
    MAX_CONNECTIONS = 1024,
    /* Each: whoever needs more is passed over while others serve the same. */
    CONNECT_TIMEOUT_MS = 3000,
    HANDSHAKE_TIMEOUT_MS = 3000,
    CONNECTION_IDLE_MS = 60000,
    LEAVE_TIMEOUT_MS = 3000,
    EXPLAIN_MORE_MS =
        1000, /* beyond the time in which joining failed, to say why on a busy machine */
    /* A node alone behind a wildcard learns its address from its first peer, and publishes then. If
     * that peer is this client, what it looks for comes to be found a moment later. */
    NEW_HERE_MS = 5000,  /* since this client was made */
    ASK_AGAIN_MS = 2000, /* for how long it asks again then */
    ASK_PAUSE_MS = 50,
};

void skep_client_options_init(struct skep_client_options *options)
{
    *options = (struct skep_client_options){
        .size = sizeof(*options),
        .swarm = "skep",
        .timeout_ms = DEFAULT_TIMEOUT_MS,
        .max_in_flight = DEFAULT_MAX_IN_FLIGHT,
        .max_message_bytes = message_default_limits.max_message_bytes,
    };
}

skep_status client_take_options(void *out, size_t size, const void *given, const char *init,
                                struct skep_error *err)
{
    size_t given_size;
    skep_status rc = error_if_null(given, "options", err);

    if (rc != SKEP_OK)
        return rc;
    memcpy(&given_size, given, sizeof(given_size));
    if (given_size < sizeof(given_size) || given_size > size)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "options: size %zu, expected at most %zu: use %s() of this library",
                         given_size, size, init);
    memcpy(out, given, given_size);
    return SKEP_OK;
}

/* Where no DHT socket was asked for: loopback if all initial peers are, for then the swarm is on
 * this machine and so are we; the wildcard, which is both families, if they are of both. */
static const char *default_dht_listen(const struct skep_client_options *options)
{
    bool v4 = false, v6 = false;

    for (size_t i = 0; i < options->initial_peer_count; i++) {
        struct initial_peer peer;
        if (initial_peer_parse(&peer, options->initial_peers[i], NULL) != SKEP_OK ||
            !endpoint_is_loopback(&peer.endpoint))
            return "0.0.0.0:*";
        *(strchr(peer.endpoint.host, ':') != NULL ? &v6 : &v4) = true;
    }
    if (v4 == v6)
        return "0.0.0.0:*";
    return v4 ? "127.0.0.1:*" : "[::1]:*";
}

static skep_status load_keys(struct skep_client *client, const struct skep_client_options *options,
                             struct skep_error *err)
{
    skep_status rc = identity_system_init(err);

    if (rc == SKEP_OK)
        rc = options->identity_path != NULL
                 ? identity_load_or_create(&client->identity, options->identity_path, err)
                 : identity_generate(&client->identity, err);
    if (rc == SKEP_OK && options->swarm_key_path != NULL) {
        rc = swarm_key_load(&client->key, options->swarm_key_path, err);
        client->has_key = rc == SKEP_OK;
    }
    peer_id_hex(client->identity.peer_id, client->peer_id);
    return rc;
}

static skep_status join(struct skep_client *client, const struct skep_client_options *options,
                        struct skep_error *err)
{
    const char *listen = options->dht_listen;
    struct swarm_config config = {
        .name = client->swarm_name,
        .key = client->has_key ? &client->key : NULL,
        .identity = &client->identity,
        .initial_peers = options->initial_peers,
        .initial_peer_count = options->initial_peer_count,
        .is_client = true,
    };

    if (listen == NULL)
        listen = default_dht_listen(options);
    skep_status rc = endpoint_parse(&config.dht_listen, listen, true, err);
    if (rc != SKEP_OK) {
        error_prefix(err, "dht_listen");
        return rc;
    }
    return swarm_join(&config, &client->swarm, err);
}

static skep_status open_pool(struct skep_client *client, const struct skep_client_options *options,
                             struct skep_error *err)
{
    struct pool_config config = {
        .identity = &client->identity,
        .psk = client->has_key ? client->key.psk : NULL,
        .plaintext = options->insecure_plaintext,
        .swarm = client->swarm_name,
        .limits = session_default_limits,
        .max_connections = MAX_CONNECTIONS,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS,
        .idle_timeout_ms = CONNECTION_IDLE_MS,
    };

    config.limits.message.max_message_bytes = options->max_message_bytes;
    config.limits.handshake_timeout_ms = HANDSHAKE_TIMEOUT_MS;
    return pool_new(&config, &client->pool, err);
}

skep_status skep_client_new(const struct skep_client_options *given, struct skep_client **out,
                            struct skep_error *err)
{
    skep_status rc;
    struct skep_client *client;
    struct skep_client_options known;
    const struct skep_client_options *options = &known;

    *out = NULL;
    skep_client_options_init(&known);
    rc = client_take_options(&known, sizeof(known), given, "skep_client_options_init", err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("compression", options->compression, err);
    if (rc == SKEP_OK)
        rc = tensor_encoding_check("grad_compression", options->grad_compression, err);
    if (rc == SKEP_OK && options->swarm != NULL)
        rc = swarm_name_check(options->swarm, err);
    if (rc == SKEP_OK && !options->no_dht)
        rc = error_if_null_in(options->initial_peers, options->initial_peer_count, "initial_peers",
                              err);
    if (rc != SKEP_OK)
        return rc;
    client = mem_calloc(1, sizeof(*client));
    if (client == NULL)
        return error_no_memory(err, "client", sizeof(*client));
    pthread_mutex_init(&client->lock, NULL);
    client->started_us = clock_mono_us();
    client->hedge_after_ms = options->hedge_after_ms;
    randombytes_buf(&client->random, sizeof(client->random));
    client->plaintext = options->insecure_plaintext;
    client->compression = options->compression;
    client->grad_compression = options->grad_compression;
    client->timeout_ms = options->timeout_ms != 0 ? options->timeout_ms : DEFAULT_TIMEOUT_MS;
    client->max_in_flight =
        options->max_in_flight != 0 ? options->max_in_flight : DEFAULT_MAX_IN_FLIGHT;
    client->swarm_name = mem_strdup(options->swarm != NULL ? options->swarm : "skep");
    if (client->swarm_name == NULL) {
        rc = error_no_memory(err, "client", 0);
        goto out;
    }
    fd_raise_limit();
    rc = load_keys(client, options, err);
    /* The DHT comes before any other socket: OpenDHT needs the low descriptors. */
    if (rc == SKEP_OK && !options->no_dht)
        rc = join(client, options, err);
    if (rc == SKEP_OK)
        rc = open_pool(client, options, err);
    if (rc == SKEP_OK) {
        *out = client;
        client = NULL;
    }

out:
    skep_client_free(client);
    return rc;
}

void skep_client_free(struct skep_client *client)
{
    if (client == NULL)
        return;
    pool_free(client->pool);
    swarm_leave(client->swarm, clock_deadline_us(LEAVE_TIMEOUT_MS));
    identity_wipe(&client->identity);
    swarm_key_wipe(&client->key);
    pthread_mutex_destroy(&client->lock);
    mem_free(client->swarm_name);
    mem_free(client);
}

static skep_status no_dht(struct skep_error *err)
{
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "client: started without the DHT, so nothing can be looked up");
}

skep_status skep_client_wait_joined(struct skep_client *client, uint32_t timeout_ms,
                                    struct skep_error *err)
{
    if (client->swarm == NULL)
        return no_dht(err);
    /* The last part of the time goes into finding out why; it is waited for all the same. */
    uint32_t last_ms = timeout_ms / 2 < SWARM_EXPLAIN_MS ? timeout_ms / 2 : SWARM_EXPLAIN_MS;
    char why[SKEP_ERROR_MESSAGE_BYTES];

    if (swarm_wait_joined(client->swarm, clock_deadline_us(timeout_ms - last_ms)) ||
        swarm_explain(client->swarm, clock_deadline_us(last_ms + EXPLAIN_MORE_MS), why,
                      sizeof(why)))
        return SKEP_OK;
    return error_set(err, SKEP_DEADLINE_EXCEEDED, "swarm %s: no DHT peer answered within %u ms%s%s",
                     client->swarm_name, timeout_ms, why[0] != '\0' ? ": " : "", why);
}

unsigned skep_client_peer_count(struct skep_client *client)
{
    return client->swarm != NULL ? swarm_peer_count(client->swarm) : 0;
}

uint64_t skep_client_not_compressed(const struct skep_client *client)
{
    return atomic_load_explicit(&client->not_compressed, memory_order_relaxed);
}

void skep_client_stats(struct skep_client *client, struct skep_client_stats *out)
{
    pthread_mutex_lock(&client->lock);
    *out = client->stats;
    pthread_mutex_unlock(&client->lock);
    out->not_compressed = skep_client_not_compressed(client);
}

const char *skep_client_peer_id(const struct skep_client *client)
{
    return client->peer_id;
}

/* Nobody serves it; or somebody does, whose records or whose reader has a wrong clock. */
static skep_status not_found(struct skep_error *err, const char *uid,
                             const struct skep_client *client)
{
    uint8_t key[RECORD_KEY_BYTES];
    struct record_misdated misdated;
    char text[DIRECTORY_MISDATED_BYTES];

    if (client->swarm != NULL) {
        record_key_expert(swarm_record(client->swarm), uid, key);
        if (directory_misdated(swarm_directory(client->swarm), key, 1, &misdated))
            return error_set(err, SKEP_NOT_FOUND, "expert %s: %s", uid,
                             directory_describe_misdated(&misdated, text));
    }
    return error_set(err, SKEP_NOT_FOUND, "expert %s: no node of swarm %s serves it", uid,
                     client->swarm_name);
}

skep_status lookup_error(struct skep_error *err, skep_status status, const char *uid,
                         const struct skep_client *client)
{
    switch (status) {
    case SKEP_OK:
        return SKEP_OK;
    case SKEP_NOT_FOUND:
        return not_found(err, uid, client);
    case SKEP_UNAVAILABLE:
        return error_set(err, status,
                         "expert %s: cannot look it up: no DHT peer of swarm %s answers", uid,
                         client->swarm_name);
    case SKEP_DEADLINE_EXCEEDED:
        return error_set(err, status, "expert %s: no answer from the DHT in time", uid);
    default:
        return error_set(err, status, "expert %s: look-up failed: %s", uid,
                         skep_status_text(status));
    }
}

/* Turns the results into experts; the first failure that is not "absent" becomes the result. */
static skep_status collect(struct skep_client *client, const char *const *uids, size_t count,
                           const struct lookup_result *results, struct skep_remote_expert **experts,
                           skep_status *statuses, struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count; i++) {
        struct skep_error one = {0};
        struct uid parsed;
        skep_status status = results[i].status;
        if (status == SKEP_OK)
            status = remote_expert_new(client, uids[i], results[i].providers,
                                       results[i].provider_count, &experts[i], &one);
        else if (uid_parse(&parsed, uids[i], &one) == SKEP_OK) /* else that is what is wrong */
            lookup_error(&one, status, uids[i], client);
        if (statuses != NULL)
            statuses[i] = status;
        if (status != SKEP_OK && status != SKEP_NOT_FOUND && rc == SKEP_OK) {
            rc = status;
            if (err != NULL)
                *err = one;
        }
    }
    return rc;
}

static bool may_come_soon(struct skep_client *client, const struct lookup_result *results,
                          size_t count)
{
    if (clock_mono_us() - client->started_us > NEW_HERE_MS * (uint64_t)1000 ||
        swarm_peer_count(client->swarm) != 1)
        return false;
    for (size_t i = 0; i < count; i++)
        if (results[i].status == SKEP_NOT_FOUND)
            return true;
    return false;
}

static void pause_until(uint64_t until_us)
{
    struct timespec until = {.tv_sec = (time_t)(until_us / 1000000u),
                             .tv_nsec = (long)(until_us % 1000000u) * 1000};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
        continue;
}

static skep_status ask_again(struct skep_client *client, const char *uid, uint64_t deadline_us,
                             struct lookup_result *result, struct skep_error *err)
{
    skep_status rc = directory_get_wait(swarm_directory(client->swarm), &uid, 1,
                                        DIRECTORY_ALL | DIRECTORY_FRESH, deadline_us, result, err);

    if (rc == SKEP_OK && result->status == SKEP_DEADLINE_EXCEEDED)
        result->status = SKEP_NOT_FOUND; /* as the first answer said */
    return rc;
}

/* Asks, and while the only peer may not have published yet, again for what is not found. */
static skep_status look_up(struct skep_client *client, const char *const *uids, size_t count,
                           uint64_t deadline_us, struct lookup_result *results,
                           struct skep_error *err)
{
    uint64_t again_until_us = clock_deadline_us(ASK_AGAIN_MS);
    skep_status rc = directory_get_wait(swarm_directory(client->swarm), uids, count, DIRECTORY_ALL,
                                        deadline_us, results, err);

    if (again_until_us > deadline_us)
        again_until_us = deadline_us;
    while (rc == SKEP_OK && may_come_soon(client, results, count)) {
        uint64_t next_us = clock_deadline_us(ASK_PAUSE_MS);

        if (next_us >= again_until_us)
            break;
        pause_until(next_us);
        for (size_t i = 0; i < count && rc == SKEP_OK; i++)
            if (results[i].status == SKEP_NOT_FOUND)
                rc = ask_again(client, uids[i], again_until_us, &results[i], err);
    }
    return rc;
}

/* More UIDs than this at once are looked up in several rounds: an answer takes 20 KB. */
enum { FIND_ROUND = 1024 };

skep_status skep_client_find_many(struct skep_client *client, const char *const *uids, size_t count,
                                  uint32_t timeout_ms, struct skep_remote_expert **experts,
                                  skep_status *statuses, struct skep_error *err)
{
    uint64_t deadline_us = clock_deadline_us(timeout_ms != 0 ? timeout_ms : client->timeout_ms);
    size_t round = count < FIND_ROUND ? count : FIND_ROUND;
    struct lookup_result *results = NULL;
    skep_status rc = error_if_null_in(uids, count, "uids", err);

    if (rc == SKEP_OK && client->swarm == NULL)
        rc = no_dht(err);
    for (size_t i = 0; i < count; i++) {
        experts[i] = NULL;
        if (statuses != NULL)
            statuses[i] = rc != SKEP_OK ? rc : SKEP_UNAVAILABLE;
    }
    if (rc != SKEP_OK)
        return rc;
    results = mem_calloc(round, sizeof(*results));
    if (results == NULL)
        return error_no_memory(err, "look-up", round * sizeof(*results));
    for (size_t first = 0; first < count; first += round) {
        size_t n = count - first < round ? count - first : round;
        skep_status one =
            look_up(client, uids + first, n, deadline_us, results, rc == SKEP_OK ? err : NULL);
        if (one == SKEP_OK)
            one = collect(client, uids + first, n, results, experts + first,
                          statuses != NULL ? statuses + first : NULL, rc == SKEP_OK ? err : NULL);
        if (rc == SKEP_OK)
            rc = one;
    }
    mem_free(results);
    return rc;
}

skep_status skep_client_find(struct skep_client *client, const char *uid, uint32_t timeout_ms,
                             struct skep_remote_expert **out, struct skep_error *err)
{
    struct uid parsed;
    skep_status status = SKEP_OK;

    *out = NULL;
    skep_status rc = uid_parse(&parsed, uid, err);
    if (rc != SKEP_OK)
        return rc;
    rc = skep_client_find_many(client, &uid, 1, timeout_ms, out, &status, err);
    if (rc == SKEP_OK && status != SKEP_OK)
        rc = lookup_error(err, status, uid, client);
    return rc;
}

skep_status skep_client_expert_at(struct skep_client *client, const char *uid, const char *endpoint,
                                  const char *peer_id, struct skep_remote_expert **out,
                                  struct skep_error *err)
{
    struct uid parsed;
    struct provider provider = {.endpoint_count = 1};

    *out = NULL;
    skep_status rc = uid_parse(&parsed, uid, err);
    if (rc == SKEP_OK)
        rc = endpoint_parse(&provider.endpoints[0], endpoint, false, err);
    if (rc == SKEP_OK && peer_id != NULL && !peer_id_parse(provider.peer_id, peer_id))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "peer id \"%.80s\": expected 64 hex digits",
                       peer_id);
    if (rc == SKEP_OK)
        rc = remote_expert_new(client, uid, &provider, 1, out, err);
    if (rc == SKEP_OK) {
        (*out)->fixed = true;
        (*out)->any_peer = peer_id == NULL;
    }
    return rc;
}
