/* Peers of the pool: the table of them, and the queue of calls that wait for each. */
#include "net/pool_internal.h"

#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crypto/keyed_hash.h"

/* The table. Only the loop's thread changes it, so that thread reads it without the lock. */

static uint64_t hash_id(const uint8_t id[static PEER_ID_BYTES])
{
    return keyed_hash(id, PEER_ID_BYTES);
}

/* Peers choose their ids, and the endpoints in their records. */
static uint64_t hash_target(const struct pool_target *target)
{
    const struct endpoint *e = &target->endpoints[0];
    size_t host = strlen(e->host);
    uint8_t key[PEER_ID_BYTES + sizeof(e->port) + sizeof(e->host)] = {0};

    if (target->has_peer_id && !target->exact)
        return hash_id(target->peer_id);
    if (target->has_peer_id)
        memcpy(key, target->peer_id, PEER_ID_BYTES);
    memcpy(key + PEER_ID_BYTES, &e->port, sizeof(e->port));
    memcpy(key + PEER_ID_BYTES + sizeof(e->port), e->host, host);
    return keyed_hash(key, PEER_ID_BYTES + sizeof(e->port) + host);
}

static bool is_of(const struct peer *peer, const struct pool_target *target)
{
    if (peer->has_id != target->has_peer_id || peer->exact != target->exact)
        return false;
    if (peer->has_id && memcmp(peer->id, target->peer_id, PEER_ID_BYTES) != 0)
        return false;
    if (peer->has_id && !peer->exact)
        return true;
    return endpoint_equal(&peer->endpoint, &target->endpoints[0]);
}

struct peer *pool_peer_get(struct pool *pool, const struct pool_target *target)
{
    uint64_t hash = hash_target(target);
    struct peer **bucket = &pool->buckets[hash & pool->bucket_mask];

    for (struct peer *peer = *bucket; peer != NULL; peer = peer->bucket_next)
        if (peer->hash == hash && is_of(peer, target))
            return peer;

    struct peer *peer = mem_calloc(1, sizeof(*peer));
    if (peer == NULL)
        return NULL;
    peer->pool = pool;
    peer->hash = hash;
    peer->has_id = target->has_peer_id;
    peer->exact = target->exact;
    if (peer->has_id)
        memcpy(peer->id, target->peer_id, PEER_ID_BYTES);
    peer->endpoint = target->endpoints[0];
    pthread_mutex_lock(&pool->lock);
    peer->bucket_next = *bucket;
    *bucket = peer;
    pthread_mutex_unlock(&pool->lock);
    return peer;
}

void pool_peer_tidy(struct peer *peer)
{
    struct pool *pool = peer->pool;

    if (peer->busy > 0 || peer->link != NULL || peer->dial.active || peer->waiting > 0)
        return;
    struct peer **at = &pool->buckets[peer->hash & pool->bucket_mask];
    pthread_mutex_lock(&pool->lock);
    while (*at != peer)
        at = &(*at)->bucket_next;
    *at = peer->bucket_next;
    pthread_mutex_unlock(&pool->lock);
    mem_free(peer);
}

void pool_for_each_peer(struct pool *pool, void (*fn)(struct peer *peer))
{
    struct peer *next;

    for (size_t i = 0; i <= pool->bucket_mask; i++)
        for (struct peer *peer = pool->buckets[i]; peer != NULL; peer = next) {
            next = peer->bucket_next;
            fn(peer);
        }
}

uint64_t pool_peer_rtt_us(struct pool *pool, const uint8_t peer_id[static PEER_ID_BYTES])
{
    uint64_t rtt_us = 0;
    uint64_t hash = hash_id(peer_id);

    pthread_mutex_lock(&pool->lock);
    for (struct peer *peer = pool->buckets[hash & pool->bucket_mask]; peer != NULL;
         peer = peer->bucket_next)
        if (peer->hash == hash && peer->has_id && memcmp(peer->id, peer_id, PEER_ID_BYTES) == 0)
            rtt_us = atomic_load_explicit(&peer->rtt_us, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    return rtt_us;
}

/* The queue */

static struct pool_call *first_waiting(const struct peer *peer)
{
    return LIST_HOLDER(peer->queue.first, struct pool_call, in_queue);
}

/* @param first  back to where it was, at the head. */
static void enqueue(struct peer *peer, struct pool_call *call, bool first)
{
    call->state = CALL_WAITING;
    call->peer = peer;
    if (first)
        list_prepend(&peer->queue, &call->in_queue);
    else
        list_append(&peer->queue, &call->in_queue);
    peer->waiting++;
}

void pool_peer_forget(struct peer *peer, struct pool_call *call)
{
    list_remove(&peer->queue, &call->in_queue);
    peer->waiting--;
    call->peer = NULL;
    call->state = CALL_NEW;
}

void pool_peer_fail_waiting(struct peer *peer, const struct skep_error *why)
{
    /* Only those that wait now: a `done` posts further calls, it does not add them here. */
    while (peer->waiting > 0) {
        struct pool_call *call = first_waiting(peer);
        pool_peer_forget(peer, call);
        pool_call_finish(call, NULL, NULL, false, why);
    }
    pool_peer_tidy(peer);
}

/* A silent peer gets no further calls: what is not sent may still go elsewhere. */
static bool can_take(const struct peer *peer)
{
    return peer->link != NULL && peer->link->established && !peer->link->retired &&
           !pool_link_is_silent(peer->link);
}

bool pool_peer_is_connected(const struct peer *peer)
{
    return can_take(peer);
}

enum verdict {
    CALL_PLACED, /* open, or ended with an error of its own */
    CALL_MUST_WAIT,
};

/* Tries to open the call on the peer's connection. */
static enum verdict place(struct peer *peer, struct pool_call *call)
{
    struct skep_error err;
    struct link *link = peer->link;
    skep_status rc = pool_link_call(link, call, &err);

    if (rc == SKEP_OK)
        return CALL_PLACED;
    if (rc == SKEP_UNAVAILABLE) { /* it drains, or is ending */
        pool_link_retire(link);
        return CALL_MUST_WAIT;
    }
    if (rc == SKEP_RESOURCE_EXHAUSTED && link->open_calls > 0)
        return CALL_MUST_WAIT; /* for a stream */
    pool_call_finish(call, NULL, NULL, false, &err);
    return CALL_PLACED;
}

/* Connects if calls wait and nothing is there to wait for; else frees what nobody needs. */
static void settle(struct peer *peer)
{
    if (--peer->busy > 0)
        return; /* who is further up the stack sees to it */
    if (peer->link == NULL && peer->waiting > 0 && !peer->dial.active)
        pool_dial_start(peer, &first_waiting(peer)->target);
    else
        pool_peer_tidy(peer);
}

void pool_peer_pump(struct peer *peer)
{
    peer->busy++;
    while (can_take(peer) && peer->waiting > 0) {
        struct pool_call *call = first_waiting(peer);

        pool_peer_forget(peer, call);
        if (place(peer, call) == CALL_MUST_WAIT) {
            enqueue(peer, call, true);
            break;
        }
    }
    settle(peer);
}

void pool_peer_submit(struct peer *peer, struct pool_call *call)
{
    struct skep_error err;

    peer->busy++;
    /* First come, first served: not past those that wait for a stream. */
    if (!can_take(peer) || peer->waiting > 0 || place(peer, call) == CALL_MUST_WAIT) {
        if (peer->waiting < POOL_MAX_WAITING) {
            enqueue(peer, call, false);
            if (call->known_silent_at_once && peer->link != NULL && peer->link->established &&
                pool_link_is_silent(peer->link))
                pool_call_tell(call, POOL_NOT_CONNECTED);
        } else {
            error_set(&err, SKEP_RESOURCE_EXHAUSTED,
                      "%s: %d calls to this peer are waiting already", call->headers.method,
                      POOL_MAX_WAITING);
            pool_call_finish(call, NULL, NULL, false, &err);
        }
    }
    settle(peer);
}
