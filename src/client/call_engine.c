/*
 * Whom a call asks, wherever its expert is served: one candidate after the other, fail-over, fresh
 * look-ups, a second request beside one that takes long; a single deadline over all of it.
 *
 *            alarm: hedge_due                  first good answer, or nothing left to try
 *   attempt ------------------> second attempt ---------------------------> settled
 *      |  failed: next candidate, or look-up             others cancelled, all closed -> finished
 *
 * Steps are decided under the call's lock, by whichever thread something has happened on (the
 * caller's at the start, the pool's, the directory's), and taken without it. The call ends when no
 * attempt is open any more, because until then the pool reads the caller's tensors.
 */
#include "client/call_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/tensor.h"

enum {
    /* How often a call looks its expert up in vain: a node that moved publishes again in moments.
     * Of many who claim to serve it an answer has room for some, and the next one names others
     * (dht/peer_memory.h): so each that brings somebody new is followed by as many again. */
    LOOKUP_ROUNDS = 3,
    LOOKUP_MOST_ROUNDS = 256, /* in all */
};

enum step { STEP_NONE, STEP_ASK, STEP_LOOK_UP, STEP_FINISH };

static void call_ref(struct skep_call *call)
{
    /* Relaxed: whoever adds a reference holds one already. */
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
}

/* ---- the end */

size_t call_open_attempts(const struct skep_call *call)
{
    size_t open = 0;

    for (size_t i = 0; i < CALL_ATTEMPTS; i++)
        open += call->attempts[i].open;
    return open;
}

void call_stop_attempts(struct skep_call *call)
{
    for (size_t i = 0; i < CALL_ATTEMPTS; i++)
        if (call->attempts[i].in_pool != NULL)
            pool_cancel(call->client->pool, call->attempts[i].in_pool);
}

/* With the lock held. What is said first holds. */
static void settle(struct skep_call *call, const struct skep_error *error)
{
    if (call->settled)
        return;
    call->settled = true;
    call->error = *error;
    if (error->status == SKEP_DEADLINE_EXCEEDED) {
        size_t len = strlen(call->error.message);
        snprintf(call->error.message + len, sizeof(call->error.message) - len,
                 " (limit of the call: %" PRIu32 " ms)", call->timeout_ms);
    }
    call_stop_attempts(call);
}

static void settle_failed(struct skep_call *call, skep_status status, const char *sentence)
{
    struct skep_error error = {0};

    error_set(&error, status, "expert %s: %s", call->expert->uid, sentence);
    settle(call, &error);
}

static void settle_out_of_time(struct skep_call *call)
{
    if (call->refusals > 0) {
        settle(call, &call->refusal);
        return;
    }
    if (call->last_error.status == SKEP_OK) {
        settle_failed(call, SKEP_DEADLINE_EXCEEDED, "no node answered in time");
        return;
    }
    call->last_error.status = SKEP_DEADLINE_EXCEEDED; /* the sentence says what took the time */
    settle(call, &call->last_error);
}

static void settle_unanswered(struct skep_call *call)
{
    if (call->refusals > 0) /* others could only not be reached */
        settle(call, &call->refusal);
    else if (call->last_error.status != SKEP_OK)
        settle(call, &call->last_error);
    else
        settle_failed(call, SKEP_UNAVAILABLE, "no node that serves it is known");
}

/* The last step: wakes who waits, tells who asked, gives the engine's reference back. */
static void finish(struct skep_call *call)
{
    pthread_mutex_lock(&call->client->lock);
    call->client->in_flight--;
    pthread_mutex_unlock(&call->client->lock);

    pthread_mutex_lock(&call->lock);
    bool looking_up = call->looking_up;
    call->ended = true;
    pthread_cond_broadcast(&call->ended_cond);
    pthread_mutex_unlock(&call->lock);
    if (looking_up) /* it holds a reference of its own; nobody needs what it finds */
        directory_get_cancel(swarm_directory(call->client->swarm), call);
    if (call->done != NULL)
        call->done(call, call->arg);
    call_unref(call);
}

/* ---- asking */

static void fill_target(const struct skep_call *call, const struct provider *p,
                        struct pool_target *target)
{
    *target = (struct pool_target){
        .has_peer_id = !call->expert->any_peer,
        .maybe_here = !call->expert->fixed,
        .aes_gcm = (p->features & RECORD_FEATURE_AES_GCM) != 0,
        /* Whoever wrote the record could make us call services of this machine. */
        .no_loopback = !call->expert->fixed && call->client->swarm != NULL &&
                       !swarm_record(call->client->swarm)->loopback,
    };
    memcpy(target->peer_id, p->peer_id, PEER_ID_BYTES);
    for (size_t i = 0; i < p->endpoint_count && i < POOL_MAX_ENDPOINTS; i++)
        target->endpoints[target->endpoint_count++] = p->endpoints[i];
}

/* What a node did, for those that choose later. */
enum outcome {
    OUTCOME_GOOD,
    OUTCOME_NO_NODE, /* nobody answered there */
    OUTCOME_GONE,    /* it answered that it does not serve the expert, or not now */
    OUTCOME_FAULTY,  /* it answered with an error */
    OUTCOME_FULL,    /* it had no room */
    OUTCOME_NEITHER,
};

struct verdict {
    enum outcome outcome;
    bool sent;
    bool taken; /* a good one: it is the call's */
    bool of_crowd;
    uint64_t at_least_us; /* unless good: what the node needs; 0: unknown */
    /* Of a good one, where the node chose it: how the tensors came; DEFAULT: they do not tell. */
    enum skep_compression compression;
};

static void note_began(struct skep_call *call, const uint8_t *peer_id, bool hedge)
{
    struct skep_client *client = call->client;

    pthread_mutex_lock(&client->lock);
    client->stats.requests++;
    client->stats.hedges += hedge;
    if (!call->expert->any_peer)
        pace_began(&client->pace, call_pace_key(call, peer_id));
    pthread_mutex_unlock(&client->lock);
}

static void note_never_began(struct skep_call *call, const uint8_t *peer_id)
{
    struct skep_client *client = call->client;

    pthread_mutex_lock(&client->lock);
    if (!call->expert->any_peer)
        pace_ended(&client->pace, call_pace_key(call, peer_id), 0);
    pthread_mutex_unlock(&client->lock);
}

/* An answer shows what the expert's schema recommends, if this side left it open. Tensors of other
 * types than F32 are never encoded, and so tell nothing. */
static enum skep_compression recommended_by(const struct skep_call *call,
                                            const struct reply_headers *reply)
{
    if (call->headers->has_reply_encoding)
        return SKEP_COMPRESSION_DEFAULT;
    for (size_t i = 0; i < reply->tensor_count; i++)
        if (dtype_equal(reply->tensors[i].dtype, DTYPE_F32))
            return tensor_encoding_setting(reply->tensors[i].encoding);
    return SKEP_COMPRESSION_DEFAULT;
}

/* Tells the directory, too, whom to name first. */
static void tell_directory(struct skep_call *call, const struct provider *provider,
                           struct verdict v)
{
    struct directory *directory = swarm_directory(call->client->swarm);

    if (v.outcome == OUTCOME_NO_NODE || v.outcome == OUTCOME_GONE)
        directory_forget_peer(directory, provider->peer_id);
    else if (v.outcome != OUTCOME_GOOD)
        return;
    else if (v.of_crowd)
        directory_keep(directory, call->expert->uid, provider);
    else
        directory_peer_answered(directory, provider->peer_id);
}

/*
 * What failed is avoided. An error answer may be the caller's fault, and a full queue is nobody's;
 * but a mixture sends the same rows to many, and is better served by those that take them: there
 * both count, of the expert at that node. With the client's lock held.
 */
static void note_failure(struct skep_call *call, const uint8_t *peer_id, struct verdict v)
{
    struct avoid *avoid = &call->client->avoid;
    const char *uid = call->expert->uid;

    if (v.outcome == OUTCOME_NO_NODE)
        avoid_node_failed(avoid, peer_id);
    if ((v.outcome == OUTCOME_NO_NODE && v.sent) || v.outcome == OUTCOME_GONE ||
        (v.outcome == OUTCOME_FAULTY && call->judged_by_caller))
        avoid_expert_failed(avoid, peer_id, uid);
    if (v.outcome == OUTCOME_FULL && call->judged_by_caller)
        avoid_expert_was_full(avoid, peer_id, uid);
}

/* With the client's lock held. */
static void note_good(struct skep_call *call, const uint8_t *peer_id, bool taken)
{
    struct avoid *avoid = &call->client->avoid;
    const char *uid = call->expert->uid;

    avoid_succeeded(avoid, peer_id, uid, call->failures_before);
    /* Who finds fault with what others do is not who to ask first. */
    for (size_t i = 0; taken && i < call->refusals; i++)
        avoid_expert_failed(avoid, call->refused_by[i], uid);
}

static void note_ended(struct skep_call *call, const struct provider *provider, struct verdict v,
                       uint64_t took_us)
{
    struct skep_client *client = call->client;
    const uint8_t *peer_id = provider->peer_id;

    if (call->expert->any_peer)
        return;
    uint64_t key = call_pace_key(call, peer_id);
    pthread_mutex_lock(&client->lock);
    if (v.outcome == OUTCOME_GOOD) {
        if (!call->judged_by_caller)
            note_good(call, peer_id, v.taken);
        pace_answered(&client->pace, key, took_us);
        if (v.compression != SKEP_COMPRESSION_DEFAULT)
            recommended_learn(&client->recommended, peer_id, call->expert->uid,
                              call->changes_weights, tensor_encoding_of(v.compression));
    } else {
        note_failure(call, peer_id, v);
        pace_ended(&client->pace, key, v.at_least_us);
    }
    pthread_mutex_unlock(&client->lock);
    if (call_has_directory(call))
        tell_directory(call, provider, v);
}

/* With the lock held. False: the call has an answer already. */
static bool take_answer(struct skep_call *call, const struct call_attempt *attempt,
                        const struct reply_headers *reply, DLManagedTensor **tensors)
{
    struct skep_error none = {0};

    if (call->settled)
        return false;
    if (!bytes_append(&call->result, reply->result.data, reply->result.len)) {
        settle_failed(call, SKEP_RESOURCE_EXHAUSTED, "no memory for the reply");
        return false;
    }
    if (!call->expert->any_peer)
        peer_id_hex(call->candidates.items[attempt->candidate].peer_id, call->peer_id);
    for (size_t i = 0; i < reply->tensor_count; i++)
        call->outputs[i] = tensors[i];
    call->output_count = reply->tensor_count;
    if (reply->tensor_count > 0)
        call->encoding = reply->tensors[0].encoding;
    if (attempt->hedge) {
        pthread_mutex_lock(&call->client->lock);
        call->client->stats.hedge_wins++;
        pthread_mutex_unlock(&call->client->lock);
    }
    settle(call, &none);
    return true;
}

/* Whether an error answer leaves open if the request was worked on. */
static bool may_have_begun(skep_status status)
{
    return status == SKEP_INTERNAL || status == SKEP_DATA_LOSS || status == SKEP_CANCELLED;
}

/* A node has found fault with the request. The fault may be the node's, which serves something else
 * under the same name; so a few others are heard. With the lock held. */
static void take_blame(struct skep_call *call, const uint8_t *peer_id)
{
    skep_status status = call->last_error.status;

    if (call->settled || call->refusals == CALL_REFUSALS)
        return;
    if (call->refusals == 0)
        call->refusal = call->last_error;
    memcpy(call->refused_by[call->refusals++], peer_id, PEER_ID_BYTES);
    call->no_more = call->no_more || call->refusals == CALL_REFUSALS ||
                    status == SKEP_DEADLINE_EXCEEDED ||
                    (call->changes_weights && may_have_begun(status));
}

/* A node has answered that it does not do it. With the lock held. */
static struct verdict take_refusal(struct skep_call *call, const struct call_attempt *attempt,
                                   const struct reply_headers *reply)
{
    struct verdict v = {.outcome = OUTCOME_FAULTY, .sent = true};
    const struct provider *provider = &call->candidates.items[attempt->candidate];
    char endpoint[ENDPOINT_TEXT_BYTES];

    error_set(&call->last_error, reply->status, "%s", reply->message);
    if (!call->expert->fixed) /* the caller does not know whom it was that was asked */
        error_prefix(&call->last_error, "%s", endpoint_format(&provider->endpoints[0], endpoint));
    call->last_error.retry_after_ms = reply->retry_after_ms;
    switch (reply->status) {
    case SKEP_RESOURCE_EXHAUSTED:
        v.outcome = OUTCOME_FULL; /* and slow */
        v.at_least_us = reply->retry_after_ms * (uint64_t)1000;
        break;
    case SKEP_UNAVAILABLE:
    case SKEP_NOT_FOUND:
        v.outcome = OUTCOME_GONE;
        break;
    default:
        take_blame(call, provider->peer_id);
        break;
    }
    return v;
}

/* Says which expert it was and, unless the sentence does, where. */
static void name_attempt(const struct skep_call *call, const struct call_attempt *attempt,
                         struct skep_error *err)
{
    const struct provider *p = &call->candidates.items[attempt->candidate];
    char endpoint[ENDPOINT_TEXT_BYTES];

    endpoint_format(&p->endpoints[0], endpoint);
    if (strstr(err->message, endpoint) != NULL)
        error_prefix(err, "expert %s", call->expert->uid);
    else
        error_prefix(err, "expert %s at %s", call->expert->uid, endpoint);
}

/* No answer came. With the lock held. */
static struct verdict take_failure(struct skep_call *call, const struct call_attempt *attempt,
                                   bool sent, const struct skep_error *err, uint64_t took_us)
{
    struct verdict v = {.outcome = OUTCOME_NO_NODE, .sent = sent};

    if (err->status == SKEP_CANCELLED || err->status == SKEP_DEADLINE_EXCEEDED)
        v.at_least_us = took_us;
    if (err->status == SKEP_CANCELLED && call->settled) { /* the other was faster */
        v.outcome = OUTCOME_NEITHER;
        return v;
    }
    call->last_error = *err;
    name_attempt(call, attempt, &call->last_error);
    call->last_error.outcome_unknown = call->changes_weights && sent;
    switch (err->status) {
    case SKEP_UNAVAILABLE:
    case SKEP_UNAUTHENTICATED:
    case SKEP_DATA_LOSS:
    case SKEP_PERMISSION_DENIED:
    case SKEP_FAILED_PRECONDITION:
        call->no_more = call->no_more || call->last_error.outcome_unknown;
        break;
    case SKEP_DEADLINE_EXCEEDED:
        call->no_more = true;
        break;
    default:
        v.outcome = OUTCOME_NEITHER;
        call->no_more = true;
        break;
    }
    return v;
}

static void pool_done(void *arg, const struct reply_headers *reply, DLManagedTensor **tensors,
                      bool sent, const struct skep_error *err)
{
    struct call_attempt *attempt = arg;
    struct skep_call *call = attempt->call;
    struct verdict v = {.outcome = OUTCOME_GOOD};
    struct provider provider;

    pthread_mutex_lock(&call->lock);
    call_ref(call); /* once the attempt is closed, others may finish the call */
    attempt->in_pool = NULL;
    attempt->open = false;
    uint64_t took_us = clock_mono_us() - attempt->sent_us;
    provider = call->candidates.items[attempt->candidate];
    if (reply != NULL && reply->status == SKEP_OK) {
        v.taken = take_answer(call, attempt, reply, tensors);
        v.compression = recommended_by(call, reply);
    } else if (reply != NULL) {
        v = take_refusal(call, attempt, reply);
    } else {
        v = take_failure(call, attempt, sent, err, took_us);
    }
    v.of_crowd = call_is_crowd(call);
    pthread_mutex_unlock(&call->lock);
    for (size_t i = 0; reply != NULL && !v.taken && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    note_ended(call, &provider, v, took_us);
    call_advance(call);
    call_unref(call);
}

static void on_slow(void *arg)
{
    struct skep_call *call = ((struct call_attempt *)arg)->call;

    call_ref(call); /* the attempt is open: the call has not finished */
    pthread_mutex_lock(&call->lock);
    call->hedge_due = true;
    pthread_mutex_unlock(&call->lock);
    call_advance(call);
    call_unref(call);
}

/* With the lock held: a candidate becomes an attempt. */
static struct call_attempt *open_attempt(struct skep_call *call, size_t candidate)
{
    struct call_attempt *attempt = &call->attempts[call->attempts[0].open ? 1 : 0];

    attempt->call = call;
    attempt->hedge = call_open_attempts(call) > 0;
    attempt->open = true;
    attempt->serial++;
    attempt->candidate = candidate;
    attempt->sent_us = clock_mono_us();
    call->tried[candidate] = true;
    return attempt;
}

/* Hands the attempt to the pool. False if it could not be started. */
static bool ask(struct skep_call *call, struct call_attempt *attempt, unsigned serial, bool hedge,
                const struct pool_target *target)
{
    bool is_compressed = call->compressed.tensors != NULL;
    bool alarmed = call->hedge_after_us != 0 && !hedge;
    struct pool_alarm alarm = {.at_us = clock_mono_us() + call->hedge_after_us, .slow = on_slow};
    struct pool_call *handle = NULL;
    struct skep_error error = {0};

    note_began(call, target->peer_id, hedge);
    bool started =
        pool_call_encoded(call->client->pool, target, call->headers,
                          is_compressed ? call->compressed.tensors : call->tensor_pointers,
                          is_compressed ? call->tensor_pointers : NULL, call->deadline_us,
                          alarmed ? &alarm : NULL, pool_done, attempt, &handle, &error) == SKEP_OK;
    pthread_mutex_lock(&call->lock);
    if (!started) {
        attempt->open = false;
        call->last_error = error;
        call->no_more = call->no_more || error.status == SKEP_INVALID_ARGUMENT;
    } else if (attempt->open && attempt->serial == serial) { /* it has not ended before this line */
        attempt->in_pool = handle;
        if (call->cancelled || call->settled)
            pool_cancel(call->client->pool, handle);
    }
    pthread_mutex_unlock(&call->lock);
    if (!started)
        note_never_began(call, target->peer_id);
    return started;
}

/* ---- looking up */

static void lookup_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct skep_call *call = arg;

    (void)count;
    if (results->status == SKEP_OK)
        remote_expert_update(call->expert, results->providers, results->provider_count);
    pthread_mutex_lock(&call->lock);
    call->looking_up = false;
    if (results->status == SKEP_OK) {
        if (!call_add_candidates(call, results->providers, results->provider_count)) {
            error_set(&call->last_error, SKEP_RESOURCE_EXHAUSTED,
                      "expert %s: no memory for its providers", call->expert->uid);
            call->no_more = true;
        }
    } else if (call_open_attempts(call) == 0) {
        call->no_more = true;
        /* What a node answered says more than that it has gone from the DHT since. */
        if (call->last_error.status == SKEP_OK)
            lookup_error(&call->last_error, results->status, call->expert->uid, call->client);
    }
    pthread_mutex_unlock(&call->lock);
    call_advance(call);
    call_unref(call);
}

/* False if it could not be started. @param alone nobody is being asked meanwhile. */
static bool look_up(struct skep_call *call, unsigned flags, bool alone)
{
    const char *uid = call->expert->uid;
    struct skep_error error = {0};

    if (alone && call->searching != NULL) /* the call cannot end before its look-up has */
        call->searching(call->arg);
    call_ref(call); /* lookup_found's */
    bool started = directory_get(swarm_directory(call->client->swarm), &uid, 1, flags,
                                 call->deadline_us, lookup_found, call, &error) == SKEP_OK;
    pthread_mutex_lock(&call->lock);
    bool cancelled = call->cancelled;
    pthread_mutex_unlock(&call->lock);
    if (started && cancelled) /* who cancelled the call may have come too early for this one */
        directory_get_cancel(swarm_directory(call->client->swarm), call);
    if (started)
        return true;
    pthread_mutex_lock(&call->lock);
    call->looking_up = false;
    call->last_error = error;
    call->no_more = true;
    pthread_mutex_unlock(&call->lock);
    call_unref(call);
    return false;
}

static bool may_look_up(struct skep_call *call, bool for_hedge)
{
    if (!call_has_directory(call) || (call->refusals > 0 && call->lookups > 0) ||
        (for_hedge && call->hedge_looked_up) ||
        (!for_hedge && (call->barren == LOOKUP_ROUNDS || call->lookups == LOOKUP_MOST_ROUNDS)))
        return false;
    call->hedge_looked_up = call->hedge_looked_up || for_hedge;
    call->lookups += !for_hedge;
    call->barren += !for_hedge;
    return true;
}

/* ---- steps */

/* With the lock held: it has been settled, or cannot be decided yet, or ends here. */
static enum step conclude(struct skep_call *call)
{
    if (!call->settled || call->finishing || call_open_attempts(call) > 0)
        return STEP_NONE;
    call->finishing = true;
    return STEP_FINISH;
}

/* With the lock held. @param candidate set for STEP_ASK. */
static enum step decide(struct skep_call *call, size_t *candidate)
{
    size_t open = call_open_attempts(call);

    if (call->settled)
        return conclude(call);
    if (open > 0 && (open == CALL_ATTEMPTS || !call->hedge_due || call->no_more || call->cancelled))
        return STEP_NONE;
    if (call->cancelled && call->looking_up)
        return STEP_NONE; /* soon: so that who cancels does not run the user's callback */
    if (call->cancelled) {
        settle_failed(call, SKEP_CANCELLED, "cancelled by the caller");
        return conclude(call);
    }
    if (call->no_more) {
        settle_unanswered(call);
        return conclude(call);
    }
    if (clock_mono_us() >= call->deadline_us) {
        if (open == 0)
            settle_out_of_time(call);
        return conclude(call);
    }
    if (call_pick(call, candidate))
        return STEP_ASK;
    if (call->looking_up)
        return STEP_NONE;
    if (may_look_up(call, open > 0)) {
        call->looking_up = true;
        return STEP_LOOK_UP;
    }
    if (open == 0)
        settle_unanswered(call);
    return conclude(call);
}

void call_advance(struct skep_call *call)
{
    for (;;) {
        struct call_attempt *attempt = NULL;
        struct pool_target target;
        size_t candidate;
        unsigned serial = 0, flags = 0;
        bool hedge = false;

        pthread_mutex_lock(&call->lock);
        enum step step = decide(call, &candidate);
        bool alone = call_open_attempts(call) == 0;
        if (step == STEP_ASK) {
            fill_target(call, &call->candidates.items[candidate], &target);
            attempt = open_attempt(call, candidate);
            serial = attempt->serial;
            hedge = attempt->hedge;
        } else if (step == STEP_LOOK_UP && call->candidates.count > 0) {
            flags = DIRECTORY_FRESH | DIRECTORY_ALL; /* those that are known were not enough */
        }
        pthread_mutex_unlock(&call->lock);
        if (step == STEP_FINISH)
            finish(call);
        if (step == STEP_NONE || step == STEP_FINISH ||
            (step == STEP_ASK && ask(call, attempt, serial, hedge, &target)) ||
            (step == STEP_LOOK_UP && look_up(call, flags, alone)))
            return;
    }
}
