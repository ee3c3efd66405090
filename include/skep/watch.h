/**
 * @file skep/watch.h
 * Watching a prefix: a live view of every expert under it. While a watch is in step with the DHT,
 * look-ups and beam searches of its client under the prefix are answered from it and touch no
 * network.
 *
 * Also: which nodes there are.
 */
#ifndef SKEP_WATCH_H
#define SKEP_WATCH_H

#include <skep/client.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skep_watch;

enum skep_watch_event {
    SKEP_WATCH_APPEARED = 0, /**< an expert is served, and was not before */
    SKEP_WATCH_CHANGED = 1,  /**< by other nodes, or at other endpoints, than before */
    SKEP_WATCH_GONE = 2,     /**< nobody serves it any more */
};

/**
 * Runs on the watch's own thread, one event after the other; it may take its time, but the view is
 * not kept in step meanwhile. It must not free the watch.
 * @param uid        borrowed for the call.
 * @param providers  who serves it now, freshest first; `cls` is "" (not known here). Borrowed.
 * @param count      0 with SKEP_WATCH_GONE.
 */
typedef void (*skep_watch_fn)(void *arg, enum skep_watch_event event, const char *uid,
                              const struct skep_provider *providers, size_t count);

/**
 * Starts watching. Every expert that is there already is told as appeared.
 * A node that is killed disappears when its records end (twice its update period, a minute at
 * least), one that stops in order within a second. Without DHT peers the watch waits and resumes.
 * @param prefix   "ffn." or deeper, "ffn.3.". Copied.
 * @param changed  NULL: only the view is wanted.
 * @param out      owned: skep_watch_free(), before the client. NULL on failure.
 * @return SKEP_INVALID_ARGUMENT: not a prefix; SKEP_FAILED_PRECONDITION: the client has no DHT;
 *         SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_watch_new(struct skep_client *client, const char *prefix,
                                                    skep_watch_fn changed, void *arg,
                                                    struct skep_watch **out,
                                                    struct skep_error *err);
/** Ends it; no callback runs after. Not from the callback. NULL is allowed. */
SKEP_API void skep_watch_free(struct skep_watch *watch);

/**
 * Waits until everything under the prefix has been read once.
 * @param timeout_ms  0: the client's default.
 * @return SKEP_UNAVAILABLE: no peer could be asked in time; SKEP_DEADLINE_EXCEEDED. Watching goes
 * on.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_watch_wait_ready(struct skep_watch *watch,
                                                           uint32_t timeout_ms,
                                                           struct skep_error *err);
/** Whether look-ups are answered from it now. */
SKEP_API bool skep_watch_in_step(struct skep_watch *watch);
/** How many experts there are. */
SKEP_API size_t skep_watch_count(struct skep_watch *watch);

/** Calls `each` for every expert of the view, in no particular order. Thread: the caller's; with
 * the watch locked, so `each` must not call Skep. */
SKEP_API void skep_watch_each(struct skep_watch *watch,
                              void (*each)(void *arg, const char *uid,
                                           const struct skep_provider *providers, size_t count),
                              void *arg);

/* ---- nodes ---- */

/** What a node says of itself, and whether it can be reached from here. */
struct skep_peer {
    char peer_id[SKEP_PEER_ID_TEXT_BYTES];
    char endpoint[SKEP_ENDPOINT_TEXT_BYTES]; /**< the first of its endpoints */
    char state[16];                          /**< "joining", "online", "draining", "offline" */
    char version[32];
    uint32_t experts;
    double examples_per_second;
    uint32_t queued_tasks;
    int64_t expires_at;   /**< Unix seconds, of what it said */
    skep_status reached;  /**< SKEP_OK, or why a ping failed; SKEP_CANCELLED: not tried */
    double round_trip_ms; /**< of the ping; 0 unless reached is SKEP_OK */

    /** Its health, as it says itself when it is pinged; these apart, since any of them may be bad
     * while the rest is well. */
    bool has_health;          /**< false: not asked, or it did not answer */
    uint32_t experts_stalled; /**< of its experts */
    uint32_t dht_peers;       /**< that answer it */
    char reachability[16];    /**< for others, as skep_reachability_name(); "" if it doesn't say */
};

/**
 * Lists the nodes of the swarm, those that said goodbye included until their word expires.
 * @param ping  dial each, measure the round trip, and ask for its health.
 * @param out   owned: skep_peers_free(). Sorted by peer id. NULL on failure.
 * @return SKEP_NOT_FOUND: peers were asked and no node is published; SKEP_UNAVAILABLE: no peer
 * could be asked; SKEP_DEADLINE_EXCEEDED; SKEP_FAILED_PRECONDITION: the client has no DHT.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_peers(struct skep_client *client, bool ping,
                                                       uint32_t timeout_ms, struct skep_peer **out,
                                                       size_t *count, struct skep_error *err);
/**
 * Asks one node for its health, without the DHT: also one that has no peers and is listed nowhere,
 * or that others cannot reach. Works in a client without DHT too.
 * @param endpoint  `host:port` where it serves; whoever answers there.
 * @param out       peer_id, state and version are as the node says, and the peer id is proven in a
 *                  handshake; they are "" if it does not say them, as older nodes do not. Zeroed on
 *                  failure.
 * @return SKEP_INVALID_ARGUMENT for a bad endpoint; SKEP_UNAVAILABLE, SKEP_DEADLINE_EXCEEDED or
 *         what else the call failed with; SKEP_UNAUTHENTICATED if it says that it is another peer
 *         than it is; SKEP_DATA_LOSS for an answer that is none.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_peer_at(struct skep_client *client,
                                                         const char *endpoint, uint32_t timeout_ms,
                                                         struct skep_peer *out,
                                                         struct skep_error *err);
SKEP_API void skep_peers_free(struct skep_peer *peers); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif
