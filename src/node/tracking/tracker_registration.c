/* See tracker_registration.h. Everything but the interface runs on the loop. */
#include "node/tracking/tracker_registration.h"

#include <jansson.h>
#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "net/loop.h"
#include "tracker/client.h"

enum {
    CONNECT_MS = 5000,
    CALL_MS = 10000,
    POLL_MS = 2000,   /* as stock servers ask whether their match key is still there */
    CLAIM_MS = 10000, /* for who was handed the match key to present it */
    BACKOFF_FIRST_MS = 500,
    BACKOFF_MAX_MS = 15000,
    COMPLAIN_MS = 10 * 60 * 1000,
    RANDOM_BYTES = 16,
    INFO_EXPERTS = 64, /* named to the tracker, whose room for one server is limited */
};

struct tracker_registration {
    struct endpoint tracker;
    char tracker_text[ENDPOINT_TEXT_BYTES];
    char *key, *address; /* owned; address NULL: none */
    uint16_t port;
    json_t *info; /* owned */
    struct lease_server *leases;
    struct loop *loop;
    struct loop_job wake; /* posted while wake_posted */
    atomic_bool wake_posted;

    /* The loop's. */
    uv_timer_t timer;
    bool timer_open;
    struct tracker_client *client; /* NULL: not connected, nor about to be */
    bool connected;                /* it has greeted */
    bool closing;
    bool offered;          /* the tracker has a match key of ours, or had */
    bool offer_due;        /* another is to be given */
    bool calling;          /* an answer is awaited */
    char *match_key;       /* owned; the one offered last */
    uint64_t missing_us;   /* when it was first seen to be handed out; 0: it is there */
    uint64_t poll_us;      /* when to ask next */
    uint64_t connect_us;   /* when to connect next */
    unsigned failures;     /* connections in a row that came to nothing */
    struct log_limit gate; /* for complaints */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool client_gone; /* after `closing`: the client has been freed */
    struct tracker_registration_stats stats;
};

static void look(struct tracker_registration *r);

static void set_registered(struct tracker_registration *r, bool registered)
{
    pthread_mutex_lock(&r->lock);
    r->stats.registrations += registered && !r->stats.is_registered;
    r->stats.is_registered = registered;
    pthread_mutex_unlock(&r->lock);
}

static void count(struct tracker_registration *r, uint64_t *counter)
{
    pthread_mutex_lock(&r->lock);
    (*counter)++;
    pthread_mutex_unlock(&r->lock);
}

/* ---- calls ---- */

/* Sends a message; without success the connection is given up, and all begins anew. */
static void ask(struct tracker_registration *r, struct bytes *message, bool written,
                tracker_reply_fn fn)
{
    struct skep_error err;

    r->calling = true;
    if (!written || tracker_client_call(r->client, message, clock_deadline_us(CALL_MS), fn, r,
                                        &err) != SKEP_OK) {
        r->calling = false;
        tracker_client_close(r->client);
    }
    bytes_free(message);
}

/* Whether the tracker has agreed. Otherwise the connection is given up. */
static bool is_granted(struct tracker_registration *r, const json_t *reply, const char *what)
{
    unsigned long suppressed;

    r->calling = false;
    if (reply == NULL || r->closing)
        return false;
    if (json_is_integer(reply) && json_integer_value(reply) == TRACKER_SUCCESS)
        return true;
    if (log_limit_passes(&r->gate, COMPLAIN_MS, &suppressed))
        log_warn("tracker %s: refuses our %s", r->tracker_text, what);
    tracker_client_close(r->client);
    return false;
}

static void on_put(void *arg, const json_t *reply, const struct skep_error *err)
{
    struct tracker_registration *r = arg;
    char quoted[TEXT_QUOTE_BYTES];

    (void)err;
    if (!is_granted(r, reply, "PUT"))
        return;
    if (r->failures > 0 || r->stats.registrations == 0)
        log_info("tracker %s: registered under the key %s", r->tracker_text,
                 text_quote(r->key, strlen(r->key), quoted));
    r->failures = 0;
    r->offered = true;
    set_registered(r, true);
    count(r, &r->stats.offers);
    look(r);
}

/* "KEY:<random>", as stock servers make theirs. */
static char *new_match_key(const char *key)
{
    uint8_t random[RANDOM_BYTES];
    char hex[2 * RANDOM_BYTES + 1];
    size_t len = strlen(key) + sizeof(hex) + 1;
    char *out = mem_alloc(len);

    randombytes_buf(random, sizeof(random));
    hex_encode(hex, random, sizeof(random));
    if (out != NULL)
        snprintf(out, len, "%s:%s", key, hex);
    return out;
}

static void put(struct tracker_registration *r)
{
    struct bytes message = {0};
    char *match_key;

    lease_server_tick(r->leases, clock_mono_us());
    match_key = new_match_key(r->key);
    if (match_key == NULL || !lease_server_offer(r->leases, match_key)) {
        mem_free(match_key);
        return; /* leased just now, or memory is short: it stays due */
    }
    mem_free(r->match_key);
    r->match_key = match_key;
    r->offer_due = false;
    r->missing_us = 0;
    r->poll_us = clock_deadline_us(POLL_MS);
    ask(r, &message,
        tracker_write_put(&message, tracker_text(r->key), r->port, tracker_text(match_key),
                          tracker_text(r->address)),
        on_put);
}

/* The tracker's list of what it has of ours. */
static bool is_listed(const json_t *list, const char *match_key)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one != NULL && strcmp(one, match_key) == 0)
            return true;
    }
    return false;
}

static void on_pending(void *arg, const json_t *reply, const struct skep_error *err)
{
    struct tracker_registration *r = arg;
    uint64_t now = clock_mono_us();

    (void)err;
    r->calling = false;
    if (reply == NULL || r->closing)
        return;
    if (r->match_key == NULL || is_listed(reply, r->match_key) || lease_server_is_held(r->leases)) {
        r->missing_us = 0;
    } else if (r->missing_us == 0) {
        r->missing_us = now;
    } else if (now - r->missing_us >= (uint64_t)CLAIM_MS * 1000) {
        log_info("tracker %s: our match key was handed out and nobody has come with it; offering "
                 "another",
                 r->tracker_text);
        count(r, &r->stats.unclaimed);
        r->offer_due = true;
    }
    look(r);
}

static void poll_tracker(struct tracker_registration *r)
{
    struct bytes message = {0};

    r->poll_us = clock_deadline_us(POLL_MS);
    ask(r, &message, tracker_write_plain(&message, TRACKER_GET_PENDING_MATCHKEYS), on_pending);
}

static void on_info(void *arg, const json_t *reply, const struct skep_error *err)
{
    struct tracker_registration *r = arg;

    (void)err;
    if (!is_granted(r, reply, "UPDATE_INFO"))
        return;
    r->offer_due = !lease_server_is_held(r->leases);
    look(r);
}

/* ---- the connection ---- */

static void on_connected(void *arg, struct tracker_client *client)
{
    struct tracker_registration *r = arg;
    struct bytes message = {0};

    (void)client;
    r->connected = true;
    ask(r, &message, tracker_write_update_info(&message, r->info), on_info);
}

static uint64_t backoff_us(struct tracker_registration *r)
{
    uint32_t ms = BACKOFF_FIRST_MS;

    for (unsigned i = 0; i < r->failures && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    r->failures++;
    ms = ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
    return clock_deadline_us(ms - randombytes_uniform(ms / 4));
}

static void on_closed(void *arg, const struct skep_error *why)
{
    struct tracker_registration *r = arg;
    unsigned long suppressed;

    if (!r->closing && (r->offered || log_limit_passes(&r->gate, COMPLAIN_MS, &suppressed)))
        log_warn("tracker %s; registering again when it answers", why->message);
    r->client = NULL;
    r->connected = r->calling = r->offered = r->offer_due = false;
    set_registered(r, false);
    if (!r->closing) {
        r->connect_us = backoff_us(r);
        look(r);
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->client_gone = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

static void connect_tracker(struct tracker_registration *r)
{
    const struct tracker_client_config config = {
        .loop = r->loop,
        .tracker = r->tracker,
        .connect_timeout_ms = CONNECT_MS,
        .connected = on_connected,
        .closed = on_closed,
        .arg = r,
    };
    struct skep_error err;

    if (tracker_client_open(&config, &r->client, &err) == SKEP_OK)
        return;
    log_warn("tracker %s: %s", r->tracker_text, err.message);
    r->connect_us = backoff_us(r);
}

/* ---- turns ---- */

static void on_timer(uv_timer_t *timer)
{
    look(timer->data);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Does what is due, and sets the timer for what will be. */
static void look(struct tracker_registration *r)
{
    uint64_t now = clock_mono_us();
    uint64_t next = lease_server_tick(r->leases, now);

    if (r->closing)
        return;
    if (r->client == NULL && now >= r->connect_us)
        connect_tracker(r);
    if (r->offered && !lease_server_is_held(r->leases) && !lease_server_is_on_offer(r->leases))
        r->offer_due = true; /* the lease is over */
    if (r->connected && !r->calling && r->offer_due && !lease_server_is_held(r->leases))
        put(r);
    else if (r->connected && !r->calling && now >= r->poll_us)
        poll_tracker(r);
    if (r->client == NULL)
        next = earlier(next, r->connect_us);
    else if (r->connected && !r->calling)
        next =
            earlier(next, r->offer_due && !lease_server_is_held(r->leases) ? now + POLL_MS * 1000u
                                                                           : r->poll_us);
    if (next != CLOCK_NEVER)
        uv_timer_start(&r->timer, on_timer, clock_left_ms(next), 0);
}

/* A lease has begun or ended. */
static void on_wake(struct loop_job *job)
{
    struct tracker_registration *r =
        (struct tracker_registration *)((char *)job - offsetof(struct tracker_registration, wake));

    atomic_store(&r->wake_posted, false);
    look(r);
}

void tracker_registration_wake(struct tracker_registration *r)
{
    if (r != NULL && !atomic_exchange(&r->wake_posted, true))
        loop_post(r->loop, &r->wake);
}

/* ---- life ---- */

static json_t *make_info(const struct tracker_registration_config *config)
{
    json_t *experts = json_array();
    json_t *info;
    char key[4096];

    for (size_t i = 0; i < config->expert_count && i < INFO_EXPERTS; i++)
        json_array_append_new(experts, json_string(config->experts[i]));
    snprintf(key, sizeof(key), "server:%s", config->key);
    info = json_pack("{s:s, s:[s?, i], s:s, s:s, s:i, s:o}", "key", key, "addr", config->address,
                     (int)config->port, "peer_id", config->peer_id, "endpoint", config->endpoint,
                     "expert_count", (int)config->expert_count, "experts", experts);
    return info;
}

static void begin(void *arg)
{
    struct tracker_registration *r = arg;

    uv_timer_init(loop_uv(r->loop), &r->timer);
    r->timer.data = r;
    r->timer_open = true;
    look(r);
}

static void end(void *arg)
{
    struct tracker_registration *r = arg;

    r->closing = true;
    if (r->timer_open)
        uv_close((uv_handle_t *)&r->timer, NULL);
    r->timer_open = false;
    if (r->client != NULL) {
        tracker_client_close(r->client);
        return;
    }
    pthread_mutex_lock(&r->lock);
    r->client_gone = true;
    pthread_mutex_unlock(&r->lock);
}

static skep_status check_key(const char *key, struct skep_error *err)
{
    size_t len = strlen(key);

    if (len == 0 || len > TRACKER_MAX_KEY_BYTES / 2 || !text_is_utf8(key, len))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "tracker key: %zu bytes, expected 1 to %d of UTF-8", len,
                         TRACKER_MAX_KEY_BYTES / 2);
    return SKEP_OK;
}

skep_status tracker_registration_new(const struct tracker_registration_config *config,
                                     struct tracker_registration **out, struct skep_error *err)
{
    struct tracker_registration *r;
    skep_status rc = check_key(config->key, err);

    *out = NULL;
    if (rc != SKEP_OK)
        return rc;
    r = mem_calloc(1, sizeof(*r));
    if (r == NULL)
        return error_no_memory(err, "registration", sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
    cond_init(&r->changed);
    r->tracker = config->tracker;
    endpoint_format(&config->tracker, r->tracker_text);
    r->port = config->port;
    r->leases = config->leases;
    r->wake.run = on_wake;
    r->key = mem_strdup(config->key);
    r->address = config->address != NULL ? mem_strdup(config->address) : NULL;
    r->info = make_info(config);
    if (r->key == NULL || r->info == NULL || (config->address != NULL && r->address == NULL))
        rc = error_no_memory(err, "registration", strlen(config->key));
    if (rc == SKEP_OK)
        rc = loop_new("skep-register", &r->loop, err);
    if (rc != SKEP_OK) {
        tracker_registration_free(r);
        return rc;
    }
    loop_call(r->loop, begin, r);
    *out = r;
    return SKEP_OK;
}

void tracker_registration_free(struct tracker_registration *r)
{
    if (r == NULL)
        return;
    if (r->loop != NULL) {
        loop_call(r->loop, end, r);
        pthread_mutex_lock(&r->lock);
        while (!r->client_gone)
            pthread_cond_wait(&r->changed, &r->lock);
        pthread_mutex_unlock(&r->lock);
    }
    loop_free(r->loop);
    json_decref(r->info);
    mem_free(r->match_key);
    mem_free(r->address);
    mem_free(r->key);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}

void tracker_registration_stats(struct tracker_registration *r,
                                struct tracker_registration_stats *out)
{
    pthread_mutex_lock(&r->lock);
    *out = r->stats;
    pthread_mutex_unlock(&r->lock);
}
