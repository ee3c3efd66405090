/* See lease_server.h. */
#include "node/tracking/lease_server.h"

#include <pthread.h>
#include <sodium.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mp.h"
#include "node/rpc/answer.h"

enum {
    HASH_BYTES = 32,
    MATCH_KEY_BYTES_MAX = 4096,
    HOLD_WAIT_MS = 5000, /* a holder that has not opened its hold by then has vanished */
};

struct lease_server {
    struct lease_server_config config;
    atomic_bool
        maybe_held; /* a hint for lease_server_priority(), so that it locks only when needed */

    pthread_mutex_t lock; /* guards all below. A leaf: under it, only the log and the call's
                           * own facts (its peer id) are asked. */
    bool closed;
    bool on_offer;
    uint8_t key_hash[HASH_BYTES]; /* of the match key on offer */
    bool is_held;
    uint8_t id[LEASE_ID_BYTES];
    uint8_t holder[PEER_ID_BYTES];
    uint64_t begun_us, expires_us;
    struct server_call *hold;      /* owed an answer; NULL: the holder has none open */
    struct server_call *abandoned; /* a hold whose caller has gone: answering it frees it */
    struct lease_server_stats stats;
};

/* What is answered once the lock is released. */
struct final_reply {
    struct server_call *call; /* NULL: nobody waits */
    const char *reason;
};

skep_status lease_server_new(const struct lease_server_config *config, struct lease_server **out,
                             struct skep_error *err)
{
    struct lease_server *l = mem_calloc(1, sizeof(*l));

    *out = l;
    if (l == NULL)
        return error_no_memory(err, "leases", sizeof(*l));
    l->config = *config;
    pthread_mutex_init(&l->lock, NULL);
    return SKEP_OK;
}

void lease_server_free(struct lease_server *l)
{
    if (l == NULL)
        return;
    lease_server_close(l);
    pthread_mutex_destroy(&l->lock);
    sodium_memzero(l->key_hash, sizeof(l->key_hash));
    mem_free(l);
}

/* ---- answers ---- */

static void answer_lease(struct server_call *call, const uint8_t id[static LEASE_ID_BYTES],
                         uint64_t left_ms)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 2);
    bad |= mp_pack_str(&pk, "lease");
    bad |= mp_pack_bin(&pk, id, LEASE_ID_BYTES);
    bad |= mp_pack_str(&pk, "duration_ms");
    bad |= msgpack_pack_uint64(&pk, left_ms);
    answer_packed(call, &buffer, bad);
}

static void answer_reason(struct server_call *call, const char *reason)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    int bad = msgpack_pack_map(&pk, 1);
    bad |= mp_pack_str(&pk, "reason");
    bad |= mp_pack_str(&pk, reason);
    answer_packed(call, &buffer, bad);
}

static void send_final_reply(const struct final_reply *f)
{
    if (f->call != NULL)
        answer_reason(f->call, f->reason);
}

/* ---- the state; the lock is held ---- */

static struct final_reply end_lease(struct lease_server *l, const char *reason, uint64_t *counter)
{
    struct final_reply f = {l->hold, reason};
    char holder[PEER_ID_SHORT_BYTES];

    peer_id_short(l->holder, holder);
    log_info("lease: of peer %s: %s", holder, reason);
    l->hold = NULL;
    l->is_held = false;
    sodium_memzero(l->id, sizeof(l->id));
    atomic_store(&l->maybe_held, false);
    (*counter)++;
    return f;
}

static bool is_due(const struct lease_server *l, uint64_t now_us)
{
    return l->is_held &&
           (now_us >= l->expires_us ||
            (l->hold == NULL && now_us >= l->begun_us + (uint64_t)HOLD_WAIT_MS * 1000));
}

static uint64_t due_us(const struct lease_server *l)
{
    uint64_t claim_us = l->begun_us + (uint64_t)HOLD_WAIT_MS * 1000;

    if (!l->is_held)
        return CLOCK_NEVER;
    return l->hold == NULL && claim_us < l->expires_us ? claim_us : l->expires_us;
}

static void hash_key(const void *key, size_t len, uint8_t out[static HASH_BYTES])
{
    crypto_generichash(out, HASH_BYTES, key, len, NULL, 0);
}

static void tell_changed(struct lease_server *l)
{
    if (l->config.changed != NULL)
        l->config.changed(l->config.arg);
}

/* ---- the node's side ---- */

bool lease_server_offer(struct lease_server *l, const char *match_key)
{
    pthread_mutex_lock(&l->lock);
    bool ok = !l->is_held && l->abandoned == NULL && !l->closed;
    if (ok) {
        l->on_offer = match_key != NULL;
        sodium_memzero(l->key_hash, sizeof(l->key_hash));
        if (match_key != NULL)
            hash_key(match_key, strlen(match_key), l->key_hash);
    }
    pthread_mutex_unlock(&l->lock);
    return ok;
}

bool lease_server_is_held(struct lease_server *l)
{
    pthread_mutex_lock(&l->lock);
    bool is_held = l->is_held;
    pthread_mutex_unlock(&l->lock);
    return is_held;
}

bool lease_server_is_on_offer(struct lease_server *l)
{
    pthread_mutex_lock(&l->lock);
    bool on_offer = l->on_offer;
    pthread_mutex_unlock(&l->lock);
    return on_offer;
}

uint64_t lease_server_tick(struct lease_server *l, uint64_t now_us)
{
    struct final_reply f = {0};

    pthread_mutex_lock(&l->lock);
    struct server_call *abandoned = l->abandoned;
    l->abandoned = NULL;
    if (is_due(l, now_us)) {
        bool expired = now_us >= l->expires_us;
        f = end_lease(l, expired ? "expired" : "vanished",
                      expired ? &l->stats.expired : &l->stats.vanished);
    }
    uint64_t next = due_us(l);
    pthread_mutex_unlock(&l->lock);
    if (abandoned != NULL)
        answer_reason(abandoned, "vanished");
    send_final_reply(&f);
    return next;
}

void lease_server_close(struct lease_server *l)
{
    struct final_reply f = {0};

    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    l->closed = true;
    l->on_offer = false;
    struct server_call *abandoned = l->abandoned;
    l->abandoned = NULL;
    if (l->is_held)
        f = end_lease(l, "the node stops", &l->stats.ended);
    pthread_mutex_unlock(&l->lock);
    if (abandoned != NULL)
        answer_reason(abandoned, "vanished");
    send_final_reply(&f);
}

unsigned lease_server_priority(struct lease_server *l, const uint8_t peer_id[static PEER_ID_BYTES])
{
    if (l == NULL || !atomic_load_explicit(&l->maybe_held, memory_order_relaxed))
        return 0;
    pthread_mutex_lock(&l->lock);
    bool holds = l->is_held && memcmp(l->holder, peer_id, PEER_ID_BYTES) == 0;
    pthread_mutex_unlock(&l->lock);
    return holds ? LEASE_PRIORITY : 0;
}

void lease_server_stats(struct lease_server *l, struct lease_server_stats *out)
{
    pthread_mutex_lock(&l->lock);
    *out = l->stats;
    out->is_held = l->is_held;
    pthread_mutex_unlock(&l->lock);
}

/* ---- the method ---- */

struct lease_params {
    char match_key[MATCH_KEY_BYTES_MAX + 1];
    bool has_key, has_id, hold, end;
    uint8_t id[LEASE_ID_BYTES];
    uint64_t duration_ms; /* 0: as long as allowed */
};

static bool flag(const msgpack_object *map, const char *name)
{
    bool value = false;

    return mp_bool(mp_get(map, name), &value) && value;
}

static skep_status read_params(const struct server_call *call, struct lease_params *out,
                               struct skep_error *err)
{
    const struct bytes *params = &server_call_headers(call)->params;
    struct mp mp = {0};
    skep_status rc = mp_parse(&mp, params->data, params->len, "lease: params", err);

    if (rc != SKEP_OK)
        return rc;
    out->has_key = mp_str(mp_get(mp.root, "match_key"), out->match_key, sizeof(out->match_key));
    out->has_id = mp_bin_exact(mp_get(mp.root, "lease"), out->id, sizeof(out->id));
    out->hold = flag(mp.root, "hold");
    out->end = flag(mp.root, "end");
    out->duration_ms = 0;
    bool bad_duration = mp_get(mp.root, "duration_ms") != NULL &&
                        !mp_u64(mp_get(mp.root, "duration_ms"), &out->duration_ms);
    mp_free(&mp);
    if (out->has_key == out->has_id || (out->hold && out->end) || bad_duration)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "lease: expected match_key to begin one, or lease with hold, end or "
                         "duration_ms");
    return SKEP_OK;
}

/* How long a lease may last from now. The lock is held. */
static uint64_t set_expiry(struct lease_server *l, uint64_t wanted_ms)
{
    uint64_t most = l->config.max_duration_ms;
    uint64_t ms = wanted_ms == 0 || wanted_ms > most ? most : wanted_ms;

    l->expires_us = clock_deadline_us(ms);
    return ms;
}

/* One sentence for a wrong key, a used one and one when nothing is on offer: who guesses learns
 * nothing. */
static skep_status deny(struct lease_server *l, struct skep_error *err)
{
    l->stats.refused++;
    return error_set(err, SKEP_PERMISSION_DENIED,
                     "lease: the match key is wrong or has been used; ask the tracker for another");
}

static void begin(struct lease_server *l, struct server_call *call,
                  const struct lease_params *params)
{
    uint8_t hash[HASH_BYTES], id[LEASE_ID_BYTES];
    struct skep_error err;
    skep_status rc = SKEP_OK;
    uint64_t ms = 0;
    char holder[PEER_ID_SHORT_BYTES];

    hash_key(params->match_key, strlen(params->match_key), hash);
    randombytes_buf(id, sizeof(id));
    pthread_mutex_lock(&l->lock);
    bool good = sodium_memcmp(hash, l->key_hash, sizeof(hash)) == 0;
    if (l->closed) {
        rc = error_set(&err, SKEP_UNAVAILABLE, "lease: the node stops");
    } else if (!good || !l->on_offer) {
        rc = deny(l, &err);
    } else {
        l->on_offer = false;
        sodium_memzero(l->key_hash, sizeof(l->key_hash));
        l->is_held = true;
        l->begun_us = clock_mono_us();
        memcpy(l->id, id, sizeof(id));
        memcpy(l->holder, server_call_peer_id(call), PEER_ID_BYTES);
        ms = set_expiry(l, params->duration_ms);
        l->stats.begun++;
        atomic_store(&l->maybe_held, true);
    }
    pthread_mutex_unlock(&l->lock);
    if (rc != SKEP_OK) {
        answer_refuse(call, &err);
        return;
    }
    peer_id_short(server_call_peer_id(call), holder);
    log_info("lease: peer %s has this node for up to %llu s", holder,
             (unsigned long long)((ms + 999) / 1000));
    tell_changed(l);
    answer_lease(call, id, ms);
}

/* hold, end and renewal of the lease that `call` names. */
static void go_on(struct lease_server *l, struct server_call *call,
                  const struct lease_params *params)
{
    struct final_reply f = {0};
    struct skep_error err;
    skep_status rc = SKEP_OK;
    uint64_t ms = 0;

    /* Before another thread may answer it, and not under the lock. If the hold is refused, the
     * watch ends with its call. */
    if (params->hold)
        server_call_watch(call, l->config.silence_ms);
    pthread_mutex_lock(&l->lock);
    if (!l->is_held || sodium_memcmp(params->id, l->id, sizeof(l->id)) != 0 ||
        memcmp(l->holder, server_call_peer_id(call), PEER_ID_BYTES) != 0) {
        l->stats.refused++;
        rc = error_set(&err, SKEP_PERMISSION_DENIED,
                       "lease: not held by this peer, or it has ended");
    } else if (params->hold && l->hold != NULL) {
        rc = error_set(&err, SKEP_FAILED_PRECONDITION, "lease: is held open already");
    } else if (params->hold) {
        l->hold = call;
    } else if (params->end) {
        f = end_lease(l, "ended", &l->stats.ended);
    } else {
        ms = set_expiry(l, params->duration_ms);
    }
    pthread_mutex_unlock(&l->lock);
    if (rc != SKEP_OK) {
        answer_refuse(call, &err);
        return;
    }
    tell_changed(l);
    send_final_reply(&f);
    if (params->end)
        answer_reason(call, "ended");
    else if (!params->hold)
        answer_lease(call, params->id, ms);
}

void lease_server_call(struct lease_server *l, struct server_call *call)
{
    struct lease_params *params;
    struct skep_error err;

    if (l == NULL) {
        error_set(&err, SKEP_UNIMPLEMENTED,
                  "lease: this node is not registered with a tracker, so it has no match key");
        answer_refuse(call, &err);
        return;
    }
    params = mem_calloc(1, sizeof(*params));
    if (params == NULL) {
        error_no_memory(&err, "lease", sizeof(*params));
        answer_refuse(call, &err);
    } else if (read_params(call, params, &err) != SKEP_OK) {
        answer_refuse(call, &err);
    } else if (params->has_key) {
        begin(l, call, params);
    } else {
        go_on(l, call, params);
    }
    mem_free(params);
}

/* It runs inside the server's own code, where the call may not be answered: lease_server_tick()
 * does. */
void lease_server_finished(struct lease_server *l, struct server_call *call)
{
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    bool vanished = l->is_held && l->hold == call;
    if (vanished) {
        end_lease(l, "vanished", &l->stats.vanished);
        l->abandoned = call;
    }
    pthread_mutex_unlock(&l->lock);
    if (vanished)
        tell_changed(l);
}
