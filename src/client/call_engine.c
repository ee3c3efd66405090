/*
 * Whom a call asks, wherever its expert is served: one candidate after the other, fail-over, fresh
 * look-ups, a further request beside those that take long; a single deadline over all of it.
 *
 *             slow: late                      first good answer, or nothing left to try
 *   attempt ------------> further attempt ----------------------------> settled
 *      |  failed: next candidate, or look-up          others cancelled, all closed -> finished
 *
 * No attempt has the whole time of a call to itself while another node may serve the expert. A
 * forward whose node hangs is sent to another one as well. A backward may step only once: it moves
 * to another node as long as nothing of it was sent, and stays where it was sent.
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
     * (dht/directory/peer_memory.h): so each that brings somebody new is followed by as many again.
     */
    LOOKUP_ROUNDS = 3,
    LOOKUP_MOST_ROUNDS = 256, /* in all */
    /* Of the time that is left, a node may take the first part to accept a connection, and a
     * forward's node the second to answer, before another one is asked as well. */
    CONNECT_SHARE = 4,
    ANSWER_SHARE = 2,
    CONNECT_MOST_MS = 1000,
    CONNECT_LEAST_MS = 50,
    LOOKUP_ANEW_MOST_MS = 1000, /* a look-up that a backward waits for, though nodes are known */
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

struct diagnosis {
    enum outcome outcome;
    bool sent;
    bool taken; /* a good one: it is the call's */
    bool of_overflow;
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
        latency_began(&client->latencies, call_latency_key(call, peer_id));
    pthread_mutex_unlock(&client->lock);
}

static void note_never_began(struct skep_call *call, const uint8_t *peer_id)
{
    struct skep_client *client = call->client;

    pthread_mutex_lock(&client->lock);
    if (!call->expert->any_peer)
        latency_ended(&client->latencies, call_latency_key(call, peer_id), 0);
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
                           struct diagnosis v)
{
    struct directory *directory = swarm_directory(call->client->swarm);

    if (v.outcome == OUTCOME_NO_NODE || v.outcome == OUTCOME_GONE)
        directory_forget_peer(directory, provider->peer_id);
    else if (v.outcome != OUTCOME_GOOD)
        return;
    else if (v.of_overflow)
        directory_keep(directory, call->expert->uid, provider);
    else
        directory_peer_answered(directory, provider->peer_id);
}

/*
 * What failed is avoided. An error answer may be the caller's fault, and a full queue is nobody's;
 * but a mixture sends the same rows to many, and is better served by those that take them: there
 * both count, of the expert at that node. With the client's lock held.
 */
static void note_failure(struct skep_call *call, const uint8_t *peer_id, struct diagnosis v)
{
    struct backoff_list *backoff = &call->client->backoff;
    const char *uid = call->expert->uid;

    if (v.outcome == OUTCOME_NO_NODE)
        backoff_node_failed(backoff, peer_id);
    if ((v.outcome == OUTCOME_NO_NODE && v.sent) || v.outcome == OUTCOME_GONE ||
        (v.outcome == OUTCOME_FAULTY && call->judged_by_caller))
        backoff_expert_failed(backoff, peer_id, uid);
    if (v.outcome == OUTCOME_FULL && call->judged_by_caller)
        backoff_expert_was_full(backoff, peer_id, uid);
}

/* With the client's lock held. */
static void note_good(struct skep_call *call, const uint8_t *peer_id, bool taken)
{
    struct backoff_list *backoff = &call->client->backoff;
    const char *uid = call->expert->uid;

    backoff_succeeded(backoff, peer_id, uid, call->failures_before);
    /* Who finds fault with what others do is not who to ask first. */
    for (size_t i = 0; taken && i < call->refusals; i++)
        backoff_expert_failed(backoff, call->refused_by[i], uid);
}

static void note_ended(struct skep_call *call, const struct provider *provider, struct diagnosis v,
                       uint64_t took_us)
{
    struct skep_client *client = call->client;
    const uint8_t *peer_id = provider->peer_id;

    if (call->expert->any_peer)
        return;
    uint64_t key = call_latency_key(call, peer_id);
    pthread_mutex_lock(&client->lock);
    if (v.outcome == OUTCOME_GOOD) {
        if (!call->judged_by_caller)
            note_good(call, peer_id, v.taken);
        latency_answered(&client->latencies, key, took_us);
        if (v.compression != SKEP_COMPRESSION_DEFAULT)
            recommended_learn(&client->recommended, peer_id, call->expert->uid,
                              call->changes_weights, tensor_encoding_of(v.compression));
    } else {
        note_failure(call, peer_id, v);
        latency_ended(&client->latencies, key, v.at_least_us);
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
static struct diagnosis take_refusal(struct skep_call *call, const struct call_attempt *attempt,
                                     const struct reply_headers *reply)
{
    struct diagnosis v = {.outcome = OUTCOME_FAULTY, .sent = true};
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

/* An attempt that hung made room for another one: it may be asked again. With the lock held. */
static struct diagnosis take_given_up(struct skep_call *call, const struct call_attempt *attempt,
                                      bool sent, uint64_t took_us)
{
    struct diagnosis v = {.outcome = attempt->unreachable ? OUTCOME_NO_NODE : OUTCOME_NEITHER,
                          .sent = sent,
                          .at_least_us = took_us};

    call->states[attempt->candidate] = CANDIDATE_GIVEN_UP;
    error_set(&call->last_error, SKEP_UNAVAILABLE, "%s after %" PRIu64 " ms",
              sent ? "no reply" : "no connection", took_us / 1000);
    name_attempt(call, attempt, &call->last_error);
    return v;
}

/* No answer came. With the lock held. */
static struct diagnosis take_failure(struct skep_call *call, const struct call_attempt *attempt,
                                     bool sent, const struct skep_error *err, uint64_t took_us)
{
    struct diagnosis v = {.outcome = OUTCOME_NO_NODE, .sent = sent};

    if (err->status == SKEP_CANCELLED || err->status == SKEP_DEADLINE_EXCEEDED)
        v.at_least_us = took_us;
    if (err->status == SKEP_CANCELLED && call->settled) { /* the other was faster */
        v.outcome = OUTCOME_NEITHER;
        return v;
    }
    if (err->status == SKEP_CANCELLED && attempt->given_up && !call->cancelled &&
        !(call->changes_weights && sent))
        return take_given_up(call, attempt, sent, took_us);
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
    struct diagnosis v = {.outcome = OUTCOME_GOOD};
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
    v.of_overflow = call_has_overflow(call);
    pthread_mutex_unlock(&call->lock);
    for (size_t i = 0; reply != NULL && !v.taken && i < reply->tensor_count; i++)
        skep_tensor_free(tensors[i]);
    note_ended(call, &provider, v, took_us);
    call_advance(call);
    call_unref(call);
}

/* A node that hangs is asked last by the calls that follow. With the call's lock held. */
static void note_unreachable(struct skep_call *call, const struct call_attempt *attempt)
{
    if (call->expert->any_peer)
        return;
    pthread_mutex_lock(&call->client->lock);
    backoff_node_failed(&call->client->backoff, call->candidates.items[attempt->candidate].peer_id);
    pthread_mutex_unlock(&call->client->lock);
}

static void on_slow(void *arg, enum pool_delay delay)
{
    struct call_attempt *attempt = arg;
    struct skep_call *call = attempt->call;

    call_ref(call); /* the attempt is open: the call has not finished */
    pthread_mutex_lock(&call->lock);
    if (delay != POOL_CALL_LATE) {
        attempt->unreachable = true;
        note_unreachable(call, attempt);
    }
    attempt->late = attempt->late || !call->changes_weights || delay == POOL_NOT_CONNECTED;
    pthread_mutex_unlock(&call->lock);
    call_advance(call);
    call_unref(call);
}

/* With the lock held: a candidate becomes an attempt. */
static struct call_attempt *open_attempt(struct skep_call *call, size_t candidate)
{
    struct call_attempt *attempt = &call->attempts[0];

    while (attempt->open) /* one of them is not: decide() */
        attempt++;
    attempt->call = call;
    attempt->hedge = call_open_attempts(call) > 0;
    attempt->open = true;
    attempt->late = attempt->unreachable = attempt->given_up = false;
    attempt->again = call->states[candidate] == CANDIDATE_GIVEN_UP;
    attempt->serial++;
    attempt->candidate = candidate;
    attempt->sent_us = clock_mono_us();
    call->states[candidate] = CANDIDATE_ASKED;
    return attempt;
}

/* With the lock held: asks the pool to end the attempt, a backward only if it has not been sent. */
static void end_attempt(const struct skep_call *call, const struct call_attempt *attempt)
{
    if (attempt->in_pool == NULL)
        return; /* ask() will see to it */
    if (call->changes_weights && !call->cancelled && !call->settled)
        pool_withdraw(call->client->pool, attempt->in_pool);
    else
        pool_cancel(call->client->pool, attempt->in_pool);
}

/* When a call learns that this attempt takes long. */
static void set_alarm(const struct skep_call *call, bool hedge, bool again,
                      struct pool_alarm *alarm)
{
    uint64_t now = clock_mono_us();
    uint64_t left = call->deadline_us > now ? call->deadline_us - now : 0;
    uint64_t connect = left / CONNECT_SHARE, answer = left / ANSWER_SHARE;

    *alarm =
        (struct pool_alarm){.late_us = CLOCK_NEVER, .connect_by_us = CLOCK_NEVER, .slow = on_slow};
    if (connect > CONNECT_MOST_MS * UINT64_C(1000))
        connect = CONNECT_MOST_MS * UINT64_C(1000);
    if (connect < CONNECT_LEAST_MS * UINT64_C(1000))
        connect = CONNECT_LEAST_MS * UINT64_C(1000);
    alarm->connect_by_us = now + connect;
    /* Silent nodes that take turns do so at the pace of connect_by_us. */
    alarm->known_silent_at_once = !again;
    if (call->changes_weights || hedge || again)
        return;
    if (call->hedge_after_us != 0 && call->hedge_after_us < answer)
        answer = call->hedge_after_us;
    alarm->late_us = now + answer;
}

/* Hands the attempt to the pool. False if it could not be started. */
static bool ask(struct skep_call *call, struct call_attempt *attempt, unsigned serial, bool hedge,
                bool again, const struct pool_target *target)
{
    bool is_compressed = call->compressed.tensors != NULL;
    struct pool_alarm alarm;
    struct pool_call *handle = NULL;
    struct skep_error error = {0};

    set_alarm(call, hedge, again, &alarm);
    note_began(call, target->peer_id, hedge);
    bool started =
        pool_call_encoded(call->client->pool, target, call->headers,
                          is_compressed ? call->compressed.tensors : call->tensor_pointers,
                          is_compressed ? call->tensor_pointers : NULL, call->deadline_us, &alarm,
                          pool_done, attempt, &handle, &error) == SKEP_OK;
    pthread_mutex_lock(&call->lock);
    if (!started) {
        attempt->open = false;
        call->last_error = error;
        call->no_more = call->no_more || error.status == SKEP_INVALID_ARGUMENT;
    } else if (attempt->open && attempt->serial == serial) { /* it has not ended before this line */
        attempt->in_pool = handle;
        if (call->cancelled || call->settled || attempt->given_up)
            end_attempt(call, attempt);
    }
    pthread_mutex_unlock(&call->lock);
    if (!started)
        note_never_began(call, target->peer_id);
    return started;
}

/* ---- looking up */

/* With the lock held: whether some are not asked yet, or may be asked again. */
static bool has_candidates_left(const struct skep_call *call)
{
    for (size_t i = 0; i < call->candidates.count; i++)
        if (call->states[i] != CANDIDATE_ASKED)
            return true;
    return false;
}

static void lookup_found(void *arg, const struct lookup_result *results, size_t count)
{
    struct skep_call *call = arg;

    (void)count;
    if (results->status == SKEP_OK)
        remote_expert_update(call->expert, results->providers, results->provider_count);
    pthread_mutex_lock(&call->lock);
    bool anew = call->is_lookup_anew;
    call->looking_up = call->is_lookup_anew = false;
    if (results->status == SKEP_OK) {
        if (!call_add_candidates(call, results->providers, results->provider_count)) {
            error_set(&call->last_error, SKEP_RESOURCE_EXHAUSTED,
                      "expert %s: no memory for its providers", call->expert->uid);
            call->no_more = true;
        }
    } else if (call_open_attempts(call) == 0 && !anew && !has_candidates_left(call)) {
        call->no_more = true;
        /* What a node answered says more than that it has gone from the DHT since. */
        if (call->last_error.status == SKEP_OK)
            lookup_error(&call->last_error, results->status, call->expert->uid, call->client);
    }
    pthread_mutex_unlock(&call->lock);
    call_advance(call);
    call_unref(call);
}

/* @param alone nobody is being asked meanwhile. @param anew as call->is_lookup_anew. */
static void look_up(struct skep_call *call, unsigned flags, bool alone, bool anew)
{
    const char *uid = call->expert->uid;
    struct skep_error error = {0};
    uint64_t deadline_us = call->deadline_us, now = clock_mono_us();

    if (anew && deadline_us > now) { /* those that are known need time, too */
        uint64_t share = (deadline_us - now) / CONNECT_SHARE;
        uint64_t most = LOOKUP_ANEW_MOST_MS * UINT64_C(1000);
        deadline_us = now + (share < most ? share : most);
    }
    if (alone && call->searching != NULL) /* the call cannot end before its look-up has */
        call->searching(call->arg);
    call_ref(call); /* lookup_found's */
    bool started = directory_get(swarm_directory(call->client->swarm), &uid, 1, flags, deadline_us,
                                 lookup_found, call, &error) == SKEP_OK;
    pthread_mutex_lock(&call->lock);
    bool cancelled = call->cancelled;
    pthread_mutex_unlock(&call->lock);
    if (started && cancelled) /* who cancelled the call may have come too early for this one */
        directory_get_cancel(swarm_directory(call->client->swarm), call);
    if (started)
        return;
    pthread_mutex_lock(&call->lock);
    call->looking_up = call->is_lookup_anew = false;
    if (!anew) {
        call->last_error = error;
        call->no_more = true;
    }
    pthread_mutex_unlock(&call->lock);
    call_unref(call);
}

static bool may_look_up(struct skep_call *call, bool for_hedge)
{
    if (!call_has_directory(call) || (call->refusals > 0 && call->lookups > 0) ||
        (for_hedge && call->hedge_looked_up) ||
        (!for_hedge &&
         (call->fruitless_lookups == LOOKUP_ROUNDS || call->lookups == LOOKUP_MOST_ROUNDS)))
        return false;
    call->hedge_looked_up = call->hedge_looked_up || for_hedge;
    call->lookups += !for_hedge;
    call->fruitless_lookups += !for_hedge;
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

/* With the lock held: whether each open attempt has had its time, so that another node may be asked
 * as well. */
static bool all_are_late(const struct skep_call *call)
{
    for (size_t i = 0; i < CALL_ATTEMPTS; i++)
        if (call->attempts[i].open && !call->attempts[i].late)
            return false;
    return true;
}

/* With the lock held: the attempt that has hung longest is to end, because another node is there.
 * @param unreachable  only one whose node is: another one may be at work on the call. */
static enum step give_one_up(struct skep_call *call, bool unreachable)
{
    struct call_attempt *oldest = NULL;

    for (size_t i = 0; i < CALL_ATTEMPTS; i++) {
        struct call_attempt *attempt = &call->attempts[i];
        if (attempt->open && attempt->given_up)
            return STEP_NONE; /* soon */
        if (!attempt->open || (unreachable && !attempt->unreachable))
            continue;
        if (oldest == NULL || attempt->sent_us < oldest->sent_us)
            oldest = attempt;
    }
    if (oldest != NULL) {
        oldest->given_up = true;
        end_attempt(call, oldest);
    }
    return STEP_NONE; /* its end is the next step */
}

/* With the lock held: nodes are being asked, and another one may be as well. */
static enum step decide_beside(struct skep_call *call, size_t *candidate)
{
    bool all_late = all_are_late(call), backed_off;
    size_t most = call->changes_weights ? 1 : CALL_ATTEMPTS;

    if (call->no_more || call->cancelled || clock_mono_us() >= call->deadline_us ||
        !(all_late || (call->looked_anew && !call->changes_weights)))
        return STEP_NONE;
    if (call_pick(call, all_late ? PICK_NEW : PICK_GOOD, candidate, &backed_off))
        return call_open_attempts(call) < most ? STEP_ASK : give_one_up(call, false);
    if (!all_late)
        return STEP_NONE;
    if (!call->looking_up && may_look_up(call, true)) {
        call->looking_up = true;
        return STEP_LOOK_UP;
    }
    if (!call_pick(call, PICK_AGAIN, candidate, &backed_off))
        return STEP_NONE;
    return call_open_attempts(call) < most ? STEP_ASK : give_one_up(call, true);
}

/* With the lock held: a new candidate is there. If all have failed lately, the directory may know
 * of others by now: a forward asks both at once, a backward, which must not be asked twice, the
 * directory first. */
static enum step ask_or_look_anew(struct skep_call *call, bool backed_off)
{
    if (!backed_off || !call_has_directory(call) || call->refusals > 0)
        return STEP_ASK;
    if (!call->looked_anew && !call->looking_up) {
        call->looked_anew = call->is_lookup_anew = call->looking_up = true;
        return STEP_LOOK_UP;
    }
    return call->changes_weights && call->is_lookup_anew ? STEP_NONE : STEP_ASK;
}

/* With the lock held. @param candidate set for STEP_ASK. */
static enum step decide(struct skep_call *call, size_t *candidate)
{
    bool backed_off;

    if (call->settled)
        return conclude(call);
    if (call_open_attempts(call) > 0)
        return decide_beside(call, candidate);
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
        settle_out_of_time(call);
        return conclude(call);
    }
    if (call_pick(call, PICK_NEW, candidate, &backed_off))
        return ask_or_look_anew(call, backed_off);
    if (!call->looking_up && may_look_up(call, false)) {
        call->looking_up = true;
        return STEP_LOOK_UP;
    }
    /* A look-up may take long where the DHT's peers hang, too. */
    if (call_pick(call, PICK_AGAIN, candidate, &backed_off))
        return STEP_ASK;
    if (call->looking_up)
        return STEP_NONE;
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
        bool hedge = false, again = false;

        pthread_mutex_lock(&call->lock);
        enum step step = decide(call, &candidate);
        bool alone = call_open_attempts(call) == 0;
        bool anew = call->is_lookup_anew;
        alone = alone && (!anew || call->changes_weights);
        if (step == STEP_ASK) {
            fill_target(call, &call->candidates.items[candidate], &target);
            attempt = open_attempt(call, candidate);
            serial = attempt->serial;
            hedge = attempt->hedge;
            again = attempt->again;
        } else if (step == STEP_LOOK_UP && call->candidates.count > 0) {
            flags = DIRECTORY_FRESH | DIRECTORY_ALL; /* those that are known were not enough */
        }
        pthread_mutex_unlock(&call->lock);
        if (step == STEP_FINISH)
            finish(call);
        if (step == STEP_NONE || step == STEP_FINISH ||
            (step == STEP_ASK && ask(call, attempt, serial, hedge, again, &target)))
            return;
        if (step == STEP_LOOK_UP)
            look_up(call, flags, alone, anew); /* something may be left to do meanwhile */
    }
}
