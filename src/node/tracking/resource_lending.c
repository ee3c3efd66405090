/* See resource_lending.h. */
#include "node/tracking/resource_lending.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mp.h"
#include "base/thread.h"
#include "node/rpc/answer.h"

enum {
    SWEEP_MS = 1000,
    SUMMARY_KEYS = 256,         /* told of in one answer */
    SUMMARY_BYTES = 24 * 1024,  /* of an answer, which may have 32 KB, before its last key */
    RESOURCE_BYTES = 16 * 1024, /* address and match key together */
};

struct loan {
    struct loan *next;
    uint64_t taken; /* the scheduler's id */
    uint64_t until_us;
    uint8_t peer_id[PEER_ID_BYTES];
};

struct resource_lending {
    struct tracker_server *tracker;

    /* The tracker's loop only. */
    uv_timer_t timer; /* runs while something is lent */
    bool timer_open;
    struct loan *loans;
    size_t loan_count;

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closed;
    size_t posted; /* calls on their way to the loop */
};

/* One call on its way to the loop. */
struct visit {
    struct loop_job job; /* first, so that the pointers convert */
    struct resource_lending *lending;
    struct server_call *call;
};

/* ---- answers ---- */

static int pack_text(msgpack_packer *pk, const char *name, struct tracker_text text)
{
    /* As bin: match keys may hold any bytes, and a str may not. */
    return mp_pack_str(pk, name) | mp_pack_bin(pk, text.data, text.len);
}

static int pack_number(msgpack_packer *pk, const char *name, uint64_t value)
{
    return mp_pack_str(pk, name) | msgpack_pack_uint64(pk, value);
}

/* ---- loans; on the loop ---- */

static void end_loan(struct resource_lending *l, struct loan **link)
{
    struct loan *loan = *link;

    *link = loan->next;
    l->loan_count--;
    mem_free(loan);
    if (l->loan_count == 0 && l->timer_open)
        uv_timer_stop(&l->timer);
}

static void sweep(uv_timer_t *timer)
{
    struct resource_lending *l = timer->data;
    uint64_t now = clock_mono_us();

    for (struct loan **link = &l->loans; *link != NULL;) {
        if ((*link)->until_us > now) {
            link = &(*link)->next;
            continue;
        }
        log_debug("tracker: a resource was lent and nothing has been heard of it");
        tracker_server_confirm(l->tracker, (*link)->taken);
        end_loan(l, link);
    }
}

static size_t lent_to(const struct resource_lending *l, const uint8_t *peer_id)
{
    size_t n = 0;

    for (const struct loan *loan = l->loans; loan != NULL; loan = loan->next)
        n += memcmp(loan->peer_id, peer_id, PEER_ID_BYTES) == 0;
    return n;
}

static skep_status lend(struct resource_lending *l, const uint8_t *peer_id, struct tracker_text key,
                        struct tracker_resource *resource, uint64_t *taken, struct skep_error *err)
{
    struct loan *loan;

    if (l->loan_count >= LENDING_MAX || lent_to(l, peer_id) >= LENDING_MAX_PEER)
        return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                         "tracker.request: too much is lent, expected an answer to what came of "
                         "it first");
    loan = mem_calloc(1, sizeof(*loan));
    if (loan == NULL)
        return error_no_memory(err, "tracker.request", sizeof(*loan));
    loan->taken = tracker_server_take(l->tracker, key, resource);
    if (loan->taken == 0) {
        mem_free(loan);
        return error_set(err, SKEP_NOT_FOUND, "tracker.request: nothing is free");
    }
    *taken = loan->taken;
    loan->until_us = clock_deadline_us(LENDING_MS);
    memcpy(loan->peer_id, peer_id, PEER_ID_BYTES);
    loan->next = l->loans;
    l->loans = loan;
    if (l->loan_count++ == 0)
        uv_timer_start(&l->timer, sweep, SWEEP_MS, SWEEP_MS);
    return SKEP_OK;
}

static void ask(struct resource_lending *l, struct server_call *call, const msgpack_object *params)
{
    const uint8_t *key = NULL;
    size_t key_len = 0;
    struct tracker_resource resource = {0};
    uint64_t taken = 0;
    struct skep_error err;
    skep_status rc = SKEP_OK;
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    if (server_call_is_gone(call))
        rc = error_set(&err, SKEP_CANCELLED, "tracker.request: the caller has gone");
    else if (!mp_bin(mp_get(params, "key"), &key, &key_len) || key_len > TRACKER_MAX_KEY_BYTES)
        rc = error_set(&err, SKEP_INVALID_ARGUMENT,
                       "tracker.request: expected a key, or taken and used");
    if (rc == SKEP_OK)
        rc = lend(l, server_call_peer_id(call),
                  (struct tracker_text){.data = (const char *)key, .len = key_len}, &resource,
                  &taken, &err);
    if (rc == SKEP_OK && resource.address.len + resource.match_key.len > RESOURCE_BYTES) {
        tracker_server_return(l->tracker, taken);
        end_loan(l, &l->loans); /* it is the newest */
        rc = error_set(&err, SKEP_NOT_FOUND, "tracker.request: nothing is free that could be sent");
    }
    if (rc != SKEP_OK) {
        answer_refuse(call, &err);
        return;
    }
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 4) | pack_text(&pk, "address", resource.address);
    bad |= pack_number(&pk, "port", resource.port);
    bad |= pack_text(&pk, "match_key", resource.match_key);
    bad |= pack_number(&pk, "taken", taken);
    answer_packed(call, &buffer, bad);
}

static void settle(struct resource_lending *l, struct server_call *call, uint64_t taken, bool used)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;
    struct loan **link = &l->loans;

    while (*link != NULL &&
           ((*link)->taken != taken ||
            memcmp((*link)->peer_id, server_call_peer_id(call), PEER_ID_BYTES) != 0))
        link = &(*link)->next;
    if (*link != NULL) {
        if (used)
            tracker_server_confirm(l->tracker, taken);
        else
            tracker_server_return(l->tracker, taken);
        end_loan(l, link);
    }
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    answer_packed(call, &buffer, msgpack_pack_map(&pk, 0));
}

static void request(struct resource_lending *l, struct server_call *call)
{
    const struct bytes *params = &server_call_headers(call)->params;
    struct mp mp = {0};
    struct skep_error err;
    uint64_t taken;
    bool used;

    if (mp_parse(&mp, params->data, params->len, "tracker.request: params", &err) != SKEP_OK)
        answer_refuse(call, &err);
    else if (mp_u64(mp_get(mp.root, "taken"), &taken) && mp_bool(mp_get(mp.root, "used"), &used))
        settle(l, call, taken, used);
    else
        ask(l, call, mp.root);
    mp_free(&mp);
}

/* ---- summary ---- */

struct summary {
    msgpack_sbuffer buffer; /* of the keys alone */
    msgpack_packer pk;
    size_t count;
    int bad;
};

static bool add_key(void *arg, const struct scheduler_key_counters *counters)
{
    struct summary *s = arg;

    if (s->count >= SUMMARY_KEYS || s->buffer.size + counters->key.len > SUMMARY_BYTES)
        return false;
    s->count++;
    s->bad |= msgpack_pack_map(&s->pk, 10);
    s->bad |= pack_text(&s->pk, "key", counters->key);
    s->bad |= pack_number(&s->pk, "servers", counters->servers);
    s->bad |= pack_number(&s->pk, "free", counters->free);
    s->bad |= pack_number(&s->pk, "pending", counters->pending);
    s->bad |= pack_number(&s->pk, "puts", counters->puts);
    s->bad |= pack_number(&s->pk, "requests", counters->requests);
    s->bad |= pack_number(&s->pk, "requests_served", counters->served + counters->answered);
    s->bad |= pack_number(&s->pk, "wait_us_sum", counters->wait_us_sum);
    s->bad |= pack_number(&s->pk, "wait_us_max", counters->wait_us_max);
    s->bad |= mp_pack_str(&s->pk, "waits") | msgpack_pack_array(&s->pk, SCHEDULER_WAIT_BUCKETS);
    for (size_t i = 0; i < SCHEDULER_WAIT_BUCKETS; i++)
        s->bad |= msgpack_pack_uint64(&s->pk, counters->waits[i]);
    return s->bad == 0;
}

static void summary(struct resource_lending *l, struct server_call *call)
{
    struct summary s = {0};
    struct scheduler_totals totals;
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&s.buffer);
    msgpack_packer_init(&s.pk, &s.buffer, msgpack_sbuffer_write);
    scheduler_each_key(tracker_server_scheduler(l->tracker), add_key, &s);
    scheduler_totals(tracker_server_scheduler(l->tracker), &totals);
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = s.bad | msgpack_pack_map(&pk, 4);
    bad |= pack_number(&pk, "key_count", totals.keys);
    bad |= pack_number(&pk, "free", totals.free);
    bad |= pack_number(&pk, "pending", totals.pending);
    bad |= mp_pack_str(&pk, "keys") | msgpack_pack_array(&pk, s.count);
    bad |= msgpack_sbuffer_write(&buffer, s.buffer.data, s.buffer.size);
    msgpack_sbuffer_destroy(&s.buffer);
    answer_packed(call, &buffer, bad);
}

/* ---- to the loop ---- */

static void run_visit(struct loop_job *job)
{
    struct visit *visit = (struct visit *)job;
    struct resource_lending *l = visit->lending;
    struct skep_error err;

    if (!l->timer_open) {
        error_set(&err, SKEP_UNAVAILABLE, "the tracker stops");
        answer_refuse(visit->call, &err);
    } else if (strcmp(server_call_headers(visit->call)->method, "tracker.summary") == 0) {
        summary(l, visit->call);
    } else {
        request(l, visit->call);
    }
    mem_free(visit);
    pthread_mutex_lock(&l->lock);
    l->posted--;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void post(struct resource_lending *l, struct server_call *call)
{
    struct visit *visit = mem_calloc(1, sizeof(*visit));
    struct skep_error err;

    if (visit == NULL) {
        error_no_memory(&err, "tracker call", sizeof(*visit));
        answer_refuse(call, &err);
        return;
    }
    *visit = (struct visit){.job.run = run_visit, .lending = l, .call = call};
    pthread_mutex_lock(&l->lock);
    bool closed = l->closed;
    if (!closed) {
        l->posted++;
        loop_post(tracker_server_loop(l->tracker), &visit->job);
    }
    pthread_mutex_unlock(&l->lock);
    if (!closed)
        return;
    error_set(&err, SKEP_UNAVAILABLE, "the tracker stops");
    answer_refuse(call, &err);
    mem_free(visit);
}

static void dispatch(struct resource_lending *l, struct server_call *call)
{
    struct skep_error err;

    if (l == NULL) {
        error_set(&err, SKEP_UNIMPLEMENTED, "%s: this node runs no tracker for others",
                  server_call_headers(call)->method);
        answer_refuse(call, &err);
        return;
    }
    post(l, call);
}

void resource_lending_request(struct resource_lending *l, struct server_call *call)
{
    dispatch(l, call);
}

void resource_lending_summary(struct resource_lending *l, struct server_call *call)
{
    dispatch(l, call);
}

/* ---- life ---- */

static void open_timer(void *arg)
{
    struct resource_lending *l = arg;

    uv_timer_init(loop_uv(tracker_server_loop(l->tracker)), &l->timer);
    l->timer.data = l;
    l->timer_open = true;
}

static void close_timer(void *arg)
{
    struct resource_lending *l = arg;

    while (l->loans != NULL) {
        tracker_server_confirm(l->tracker, l->loans->taken);
        end_loan(l, &l->loans);
    }
    l->timer_open = false;
    uv_close((uv_handle_t *)&l->timer, NULL);
}

skep_status resource_lending_new(struct tracker_server *tracker, struct resource_lending **out,
                                 struct skep_error *err)
{
    struct resource_lending *l = mem_calloc(1, sizeof(*l));

    *out = l;
    if (l == NULL)
        return error_no_memory(err, "lending", sizeof(*l));
    l->tracker = tracker;
    pthread_mutex_init(&l->lock, NULL);
    cond_init(&l->changed);
    loop_call(tracker_server_loop(tracker), open_timer, l);
    return SKEP_OK;
}

void resource_lending_close(struct resource_lending *l)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    bool closed = l->closed;
    l->closed = true;
    while (l->posted > 0)
        pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    if (!closed)
        loop_call(tracker_server_loop(l->tracker), close_timer, l);
}

void resource_lending_free(struct resource_lending *l)
{
    if (l == NULL)
        return;
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    mem_free(l);
}
