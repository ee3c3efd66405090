/*
 * What a node publishes by the publisher's rounds, and the look for records of an earlier run.
 *
 * A round goes out at once, dated by our clock; the look for records of an earlier run goes out
 * beside it, not before it, because with dead nodes near a key it takes seconds. If it finds newer
 * ones (our clock was set back), another round follows at once with higher seqs.
 */
#include "dht/publish/handler.h"

#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "dht/publish/publication.h"
#include "dht/publish/publisher.h"

enum {
    DEFAULT_PERIOD_S = 30,
    /* A record's lifetime is twice the period, and no node stores what lives over an hour. */
    MAX_PERIOD_S = RECORD_MAX_LIFETIME_S / 2,
    ROUND_MS = 10 * 1000, /* least time a round may take */
    RETRIES_QUIET = 3,    /* before it counts as trouble that nothing is published */
    OWN_LOOKUP_MS = 10 * 1000,
    /* Keys looked at for records of our own: in the first round, and in the later ones, where they
     * tell whether what we publish arrives or is held to be older than what is there. */
    FIRST_SAMPLE_KEYS = 64,
    SAMPLE_KEYS = 8,
    VERSION_BYTES = 32,
    FAILED_LOG_MS = 60 * 1000,
};

/* An expert to take in at the next turn. */
struct newcomer {
    struct newcomer *next;
    char uid[UID_BYTES];
    char cls[32];
    uint8_t schema_digest[16];
};

struct handler {
    struct swarm *swarm;
    struct publication *publication; /* the publisher's thread's alone */
    uint32_t period_s;
    uint32_t features;
    char version[VERSION_BYTES];
    struct publication_source source;
    void (*published)(void *arg);
    struct publisher *publisher;
    uint64_t issued_seq; /* the publisher's thread's alone */
    size_t samples;      /* the same: looks for records of our own */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct newcomer *newcomers; /* owned */
    bool first_round_ended;
    bool looking_up;       /* for records of our own */
    uint64_t own_sequence; /* the highest found */
    struct handler_stats stats;
};

/* ---- records of an earlier run ---- */

/* On the directory's thread. Once looking_up is false, the handler may go. */
static void on_own(void *arg, uint64_t highest_seq)
{
    struct handler *h = arg;

    pthread_mutex_lock(&h->lock);
    h->own_sequence = highest_seq;
    pthread_mutex_unlock(&h->lock);
    publisher_wake(h->publisher);
    pthread_mutex_lock(&h->lock);
    h->looking_up = false;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* Looks for records of our own, beside the round: newer ones than we know of mean that an earlier
 * run was dated by a clock ahead of ours, and that the nodes that store it refuse ours. */
static void find_own(struct handler *h)
{
    uint8_t keys[FIRST_SAMPLE_KEYS * RECORD_KEY_BYTES];
    struct skep_error err = {0};

    pthread_mutex_lock(&h->lock);
    bool busy = h->looking_up;
    h->looking_up = true;
    pthread_mutex_unlock(&h->lock);
    if (busy)
        return;
    size_t count = publication_sample_keys(h->publication, h->samples, keys,
                                           h->samples == 0 ? FIRST_SAMPLE_KEYS : SAMPLE_KEYS);
    h->samples++;
    if (directory_find_own(swarm_directory(h->swarm), keys, count, clock_deadline_us(OWN_LOOKUP_MS),
                           on_own, h, &err) != SKEP_OK) {
        log_debug("handler: %s", err.message);
        on_own(h, 0);
    }
}

/* Whether the last look has found records that are dated after ours. */
static bool is_outdated(void *arg)
{
    struct handler *h = arg;

    pthread_mutex_lock(&h->lock);
    bool outdated = h->own_sequence > h->issued_seq;
    h->own_sequence = 0;
    pthread_mutex_unlock(&h->lock);
    if (outdated)
        log_info("handler: records of an earlier run are dated after our clock; going on from "
                 "there");
    return outdated;
}

/* The thread has ended, and nothing looks anew. */
static void end_look(struct handler *h)
{
    directory_get_cancel(swarm_directory(h->swarm), h);
    pthread_mutex_lock(&h->lock);
    while (h->looking_up) /* its callback must not outlive us */
        pthread_cond_wait(&h->changed, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

/* ---- experts that come later ---- */

static void free_newcomers(struct newcomer *list)
{
    while (list != NULL) {
        struct newcomer *next = list->next;

        mem_free(list);
        list = next;
    }
}

/* Takes in the experts that were added since the last turn; if memory is short, the next one. */
static void take_newcomers(struct handler *h)
{
    struct handler_expert *more = NULL;
    struct publication *extended = NULL;
    struct skep_error err = {0};
    size_t count = 0;
    skep_status rc;

    pthread_mutex_lock(&h->lock);
    struct newcomer *list = h->newcomers;
    h->newcomers = NULL;
    pthread_mutex_unlock(&h->lock);
    for (const struct newcomer *n = list; n != NULL; n = n->next)
        count++;
    if (count == 0)
        return;
    more = mem_calloc(count, sizeof(*more));
    rc = more == NULL ? error_no_memory(&err, "experts", count * sizeof(*more)) : SKEP_OK;
    count = 0;
    for (const struct newcomer *n = list; n != NULL && more != NULL; n = n->next) {
        more[count] = (struct handler_expert){.uid = n->uid, .cls = n->cls};
        memcpy(more[count++].schema_digest, n->schema_digest, sizeof(n->schema_digest));
    }
    if (rc == SKEP_OK)
        rc = publication_extend(h->publication, swarm_identity(h->swarm), more, count, &extended,
                                &err);
    mem_free(more);
    if (rc == SKEP_OK) {
        publication_free(h->publication);
        h->publication = extended;
        free_newcomers(list);
        return;
    }
    log_warn("handler: %zu new expert%s not published yet: %s", count, count == 1 ? "" : "s",
             err.message);
    pthread_mutex_lock(&h->lock);
    struct newcomer **last = &list;
    while (*last != NULL)
        last = &(*last)->next;
    *last = h->newcomers;
    h->newcomers = list;
    pthread_mutex_unlock(&h->lock);
}

/* ---- rounds ---- */

/* Copies the endpoints into `endpoints`, which the state refers to. */
static void read_state(struct handler *h, struct endpoint endpoints[static RECORD_MAX_ENDPOINTS],
                       struct publication_state *out)
{
    pthread_mutex_lock(&h->lock);
    memcpy(endpoints, h->endpoints, sizeof(h->endpoints));
    size_t count = h->endpoint_count;
    pthread_mutex_unlock(&h->lock);
    *out = (struct publication_state){
        .endpoints = endpoints,
        .endpoint_count = count,
        .features = h->features,
        .version = h->version,
    };
}

/* Our own experts, for lookups of this process. */
static void tell_directory(struct handler *h, const struct publication_state *state)
{
    const struct record_expert *locals;
    struct skep_error err = {0};
    size_t n = publication_update(h->publication, &h->source, state, &locals);

    if (directory_set_local(swarm_directory(h->swarm), locals, n, &err) != SKEP_OK)
        log_warn("handler: %s", err.message);
}

static void fill(void *arg, struct publisher_round *round)
{
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    struct publication_state state;
    struct handler *h = arg;

    if (round->scope == PUBLISH_ALL) {
        take_newcomers(h);
        find_own(h);
    }
    read_state(h, endpoints, &state);
    if (round->scope != PUBLISH_OFFLINE)
        tell_directory(h, &state);
    else if (directory_set_local(swarm_directory(h->swarm), NULL, 0, NULL) != SKEP_OK)
        log_debug("handler: own experts stay known to this process");
    if (state.endpoint_count > 0)
        publication_round(h->publication, &state, round);
}

/* Not of a round that a shutdown has cut short: nothing is tried again, nothing is wrong. */
static void log_failed(const struct publisher_round *round)
{
    static struct log_limit gate;
    unsigned long suppressed;

    if (round->failed == 0 || round->is_cut || !round->among_peers ||
        !log_limit_passes(&gate, FAILED_LOG_MS, &suppressed))
        return;
    for (size_t i = 0; i < round->count; i++)
        if (round->declarations[i].outcome != SKEP_OK) {
            /* At first it is a peer that has left just now, such as a client at its end. */
            LOG_AT(round->failures < RETRIES_QUIET ? SKEP_LOG_INFO : SKEP_LOG_WARNING,
                   "DHT: %zu of %zu records have not reached a peer yet (%s); trying again",
                   round->failed, round->count, skep_status_text(round->declarations[i].outcome));
            return;
        }
}

static void note_round(struct handler *h, const struct publisher_round *round)
{
    pthread_mutex_lock(&h->lock);
    h->stats.rounds++;
    /* A node that is alone has nobody to publish to: that is no failure of a round. */
    h->stats.failed_rounds += round->failed > 0 && round->among_peers;
    h->stats.records_published += round->said - round->failed;
    h->stats.records_failed += round->among_peers ? round->failed : 0;
    h->stats.reachable_peers = round->among_peers;
    if (round->failed == 0 && round->said > 0)
        h->stats.last_success_unix_s = clock_wall_ms() / 1000;
    h->first_round_ended = true;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void ended(void *arg, struct publisher_round *round)
{
    struct handler *h = arg;

    publisher_round_note(round);
    uint64_t highest_seq = publication_ended(round);

    if (highest_seq > h->issued_seq)
        h->issued_seq = highest_seq;
    if (round->scope == PUBLISH_OFFLINE) {
        log_debug("handler: withdrew %zu of %zu records", round->said - round->failed, round->said);
        return;
    }
    log_failed(round);
    note_round(h, round);
    if (round->scope == PUBLISH_ALL && h->published != NULL && swarm_peer_count(h->swarm) > 0)
        h->published(h->source.arg);
}

/* ---- life cycle ---- */

static void set_endpoints(struct handler *h, const struct endpoint *endpoints, size_t count)
{
    h->endpoint_count = count < RECORD_MAX_ENDPOINTS ? count : RECORD_MAX_ENDPOINTS;
    memset(h->endpoints, 0, sizeof(h->endpoints));
    if (h->endpoint_count > 0)
        memcpy(h->endpoints, endpoints, h->endpoint_count * sizeof(*endpoints));
}

skep_status handler_new(const struct handler_config *config, const struct handler_expert *experts,
                        size_t count, struct handler **out, struct skep_error *err)
{
    uint32_t period_s = config->update_period_s ? config->update_period_s : DEFAULT_PERIOD_S;

    *out = NULL;
    if (period_s > MAX_PERIOD_S)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "update period: %u s, expected 1 to %d (records live for two periods, an "
                         "hour at most)",
                         period_s, MAX_PERIOD_S);
    struct handler *h = mem_calloc(1, sizeof(*h));
    if (h == NULL)
        return error_no_memory(err, "DHT handler", sizeof(*h));
    pthread_mutex_init(&h->lock, NULL);
    cond_init(&h->changed);
    h->swarm = config->swarm;
    h->period_s = period_s;
    h->features = config->features;
    h->source = (struct publication_source){
        .load = config->expert_load, .claim = config->expert_claim, .arg = config->arg};
    h->published = config->published;
    snprintf(h->version, sizeof(h->version), "%s", config->version != NULL ? config->version : "");
    set_endpoints(h, config->endpoints, config->endpoint_count);

    skep_status rc = publication_new(swarm_record(h->swarm), swarm_identity(h->swarm), experts,
                                     count, &h->publication, err);
    if (rc == SKEP_OK) {
        uint32_t period_ms = period_s * 1000;
        const struct publisher_config rounds = {
            .swarm = h->swarm,
            .thread_name = "skep-handler",
            .log_name = "handler",
            .update_period_s = period_s,
            .round_ms = period_ms > ROUND_MS ? period_ms : ROUND_MS,
            .max_rounds = 1,
            .fill = fill,
            .ended = ended,
            .is_due = is_outdated,
            .arg = h,
        };
        rc = publisher_new(&rounds, &h->publisher, err);
    }
    if (rc != SKEP_OK) {
        handler_free(h, 0);
        return rc;
    }
    *out = h;
    return SKEP_OK;
}

void handler_free(struct handler *h, uint64_t deadline_us)
{
    if (h == NULL)
        return;
    publisher_stop(h->publisher, deadline_us);
    if (h->publisher != NULL)
        end_look(h);
    publisher_free(h->publisher);
    publication_free(h->publication);
    free_newcomers(h->newcomers);
    pthread_cond_destroy(&h->changed);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}

bool handler_wait_first_round(struct handler *h, uint64_t deadline_us)
{
    pthread_mutex_lock(&h->lock);
    while (!h->first_round_ended)
        if (!cond_wait_until(&h->changed, &h->lock, deadline_us))
            break;
    bool ended = h->first_round_ended;
    pthread_mutex_unlock(&h->lock);
    return ended;
}

void handler_refresh(struct handler *h)
{
    publisher_refresh(h->publisher);
}

skep_status handler_add_experts(struct handler *h, const struct handler_expert *experts,
                                size_t count, struct skep_error *err)
{
    struct newcomer *list = NULL;

    for (size_t i = 0; i < count; i++) {
        struct newcomer *n = mem_calloc(1, sizeof(*n));

        if (n == NULL) {
            free_newcomers(list);
            return error_no_memory(err, experts[i].uid, sizeof(*n));
        }
        snprintf(n->uid, sizeof(n->uid), "%s", experts[i].uid);
        snprintf(n->cls, sizeof(n->cls), "%s", experts[i].cls);
        memcpy(n->schema_digest, experts[i].schema_digest, sizeof(n->schema_digest));
        n->next = list;
        list = n;
    }
    pthread_mutex_lock(&h->lock);
    struct newcomer **last = &h->newcomers;
    while (*last != NULL)
        last = &(*last)->next;
    *last = list;
    pthread_mutex_unlock(&h->lock);
    publisher_refresh(h->publisher);
    return SKEP_OK;
}

void handler_set_endpoints(struct handler *h, const struct endpoint *endpoints, size_t count)
{
    pthread_mutex_lock(&h->lock);
    set_endpoints(h, endpoints, count);
    pthread_mutex_unlock(&h->lock);
    publisher_refresh(h->publisher);
}

void handler_stats(struct handler *h, struct handler_stats *out)
{
    pthread_mutex_lock(&h->lock);
    *out = h->stats;
    pthread_mutex_unlock(&h->lock);
}
