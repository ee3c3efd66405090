/*
 * The calling side of the transport: connections to peers, made on demand, shared by all calls to
 * one peer, kept while used and closed when idle.
 *
 * Threads: one loop of its own, and from the first large encoded reply on two that decode such
 * replies (offload.h). Functions may be called from any thread; callbacks run on the loop's thread,
 * with no lock held, and must not block.
 */
#ifndef SKEP_NET_POOL_H
#define SKEP_NET_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "net/session.h"

struct pool;
struct pool_call;

struct pool_config {
    const struct identity *identity; /* borrowed until pool_free() */
    const uint8_t *psk;
    bool plaintext;
    const char *swarm;
    struct session_limits limits;
    unsigned max_connections;    /* open or opening; the longest idle is closed first */
    uint32_t connect_timeout_ms; /* for one address of one endpoint, and for looking up a name */
    uint32_t idle_timeout_ms;
};

enum {
    POOL_MAX_ENDPOINTS = 4,
    POOL_MAX_WAITING = 1024,     /* calls to one peer that wait for a connection or a stream */
    POOL_MAX_OPEN_CALLS = 65536, /* of a pool, in whatever state */
};

/* Whom to call. Connections are shared by peer id; without one, by endpoint; if `exact`, by both.
 */
struct pool_target {
    bool has_peer_id;
    uint8_t peer_id[PEER_ID_BYTES]; /* must answer; another is SKEP_UNAUTHENTICATED */
    bool aes_gcm;                   /* the peer's record offers it */
    /* A stranger chose the endpoints: an address of this machine (loopback, unspecified) is not
     * connected to, not even where a name resolves to one, and names are foreign (base/lookup.h).
     */
    bool no_loopback;
    /* If the peer serves on this very machine (net/presence.h), it is reached there first, unless
     * its first endpoint is loopback anyway. */
    bool maybe_here;
    /* It is the way to endpoints[0] that matters: a connection to the same peer elsewhere will not
     * do. */
    bool exact;
    size_t endpoint_count;
    struct endpoint endpoints[POOL_MAX_ENDPOINTS]; /* tried in order, all their addresses */
};

/*
 * One call's end, exactly once.
 * @param reply    as the peer sent it (any status), or NULL if none came. View, as long as its
 *                 tensor_count: the struct must not be copied as a whole.
 * @param tensors  reply->tensor_count tensors, decoded (the descriptors in `reply` tell how they
 *                 came), each taken by the callee: skep_tensor_free(). The array is a view. NULL if
 *                 reply is NULL.
 * @param sent     the peer may have seen the request.
 * @param err      if reply is NULL: why. SKEP_UNAVAILABLE: no connection, or lost;
 * _UNAUTHENTICATED; _DEADLINE_EXCEEDED; _CANCELLED; _INVALID_ARGUMENT: over our own limits;
 *                 _RESOURCE_EXHAUSTED: too many streams.
 */
typedef void (*pool_done_fn)(void *arg, const struct reply_headers *reply,
                             DLManagedTensor **tensors, bool sent, const struct skep_error *err);

SKEP_MUST_CHECK skep_status pool_new(const struct pool_config *config, struct pool **out,
                                     struct skep_error *err);
/* Ends all calls (SKEP_CANCELLED), closes, waits for the loop, which nothing holds up: a name that
 * is being looked up is left to itself. Waits also for a reply that is being decoded this moment.
 * NULL is allowed. */
void pool_free(struct pool *pool);

/*
 * Starts a call.
 * @param headers      copied (params too); its tensor descriptors must describe `tensors`.
 * @param tensors      the structures are copied, their data are borrowed until done.
 * @param deadline_us  bounds all of it, connecting included; also sent to the peer as what is left.
 * @param done         never runs inside this call unless it is made on the pool's own thread from
 *                     within another `done`; it may start further calls.
 * @param out          may be NULL; for pool_cancel() only, valid until done has returned.
 * @return other than SKEP_OK: nothing was started and done will not run. SKEP_INVALID_ARGUMENT: no
 *         endpoint, or too many tensors; SKEP_RESOURCE_EXHAUSTED: memory is short or
 *         POOL_MAX_OPEN_CALLS are open; SKEP_CANCELLED: pool_free() has begun.
 */
SKEP_MUST_CHECK skep_status pool_call(struct pool *pool, const struct pool_target *target,
                                      const struct call_headers *headers,
                                      const DLTensor *const *tensors, uint64_t deadline_us,
                                      pool_done_fn done, void *arg, struct pool_call **out,
                                      struct skep_error *err);
enum pool_delay {
    POOL_CALL_LATE,     /* late_us has come */
    POOL_NOT_CONNECTED, /* no connection can take the call; nothing of it was sent */
    POOL_PEER_SILENT,   /* the connection that carries the call has left a PING unanswered */
};
/*
 * What a caller learns of a call that takes long: `slow` runs with the call's `arg` on the loop's
 * thread, at most once for late_us and connect_by_us each and whenever the peer falls silent; never
 * within or after `done`. The call goes on.
 */
struct pool_alarm {
    uint64_t late_us;       /* CLOCK_NEVER: never */
    uint64_t connect_by_us; /* POOL_NOT_CONNECTED at this time at the latest; the same */
    /* POOL_NOT_CONNECTED at once where there is a connection that is silent already. */
    bool known_silent_at_once;
    void (*slow)(void *arg, enum pool_delay delay);
};
/*
 * The same for tensors of which some are encoded, as their descriptors in headers say.
 * @param plain  tensors as they were before; each is sent in place of its encoded form to a peer
 *               that does not take the encoding. Borrowed as `tensors` are. NULL: none is encoded.
 * @param alarm  copied; NULL: none.
 */
SKEP_MUST_CHECK skep_status pool_call_encoded(struct pool *pool, const struct pool_target *target,
                                              const struct call_headers *headers,
                                              const DLTensor *const *tensors,
                                              const DLTensor *const *plain, uint64_t deadline_us,
                                              const struct pool_alarm *alarm, pool_done_fn done,
                                              void *arg, struct pool_call **out,
                                              struct skep_error *err);
/* Asks for its end; done still runs once (SKEP_CANCELLED, or what came first). Thread: any. It must
 * have returned before done returns: a `done` that takes the lock under which this is called, or
 * that is waited for by the same thread, sees to that. */
void pool_cancel(struct pool *pool, struct pool_call *call);
/* Asks for its end as pool_cancel() does, but only if nothing of it has been sent by the time that
 * the loop sees this; a call that is sent goes on. A later pool_cancel() still counts. */
void pool_withdraw(struct pool *pool, struct pool_call *call);
/* Last measured round trip to a peer in microseconds, 0 if unknown. Thread: any. */
uint64_t pool_peer_rtt_us(struct pool *pool, const uint8_t peer_id[static PEER_ID_BYTES]);

#endif
