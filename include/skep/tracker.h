/**
 * @file skep/tracker.h
 * A tracker that speaks the TVM RPC tracker protocol (docs/tracker.md): servers offer themselves
 * under a key, clients ask for one by key and priority.
 *
 * Lifecycle: skep_tracker_options_init(), skep_tracker_start(), ..., skep_tracker_terminate() or
 * skep_tracker_request_stop() and skep_tracker_wait(); skep_tracker_free().
 *
 * @code
 *     struct skep_tracker_options options;
 *     struct skep_tracker *tracker = NULL;
 *     struct skep_error err;
 *
 *     skep_tracker_options_init(&options);
 *     options.host = "127.0.0.1";
 *     if (skep_tracker_start(&options, &tracker, &err) != SKEP_OK)
 *         fprintf(stderr, "%s\n", err.message);
 *     else
 *         printf("port %u\n", skep_tracker_port(tracker));
 *     skep_tracker_terminate(tracker, 1000);
 *     skep_tracker_free(tracker);
 * @endcode
 *
 * Threads: any; nothing runs beside skep_tracker_free(). In a forked child no
 * tracker may be used or freed, see skep/skep.h.
 */
#ifndef SKEP_TRACKER_H
#define SKEP_TRACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skep_tracker;

/** Settings of a tracker. Fill with skep_tracker_options_init(), then change what differs. Texts
 * are borrowed for skep_tracker_start(). */
struct skep_tracker_options {
    size_t size; /**< sizeof of this struct, set by _init: for later versions. */

    const char *host;           /**< name or address, IPv6 without brackets. Default "0.0.0.0". */
    uint16_t port;              /**< first port tried; 0: any that is free. Default 9190. */
    uint32_t port_end;          /**< ports below this one are tried, at most 65536. Default 9199. */
    bool silent;                /**< log warnings and errors only. Default false. */
    uint32_t report_interval_s; /**< log a line of what went on this often, unless silent or
                                     nobody is there; 0: never. Default 60. */
    bool reuse_addr;     /**< take a port although connections of an earlier process linger on it.
                              Default true. */
    uint32_t timeout_ms; /**< for the rest of a message that has begun, and for answers that nobody
                              reads; then the connection is closed. An idle one is not. 0: never.
                              Default 10000. */
    unsigned max_connections; /**< beyond, one that sent no magic number
                                 within a second is closed, else the newest. Default 65536. */
    const char *stop_key;     /**< what STOP must present. NULL (default): "tracker:<random>". */
};

SKEP_API void skep_tracker_options_init(struct skep_tracker_options *options);

/**
 * Listens and serves, in the background.
 * @param out  owned: skep_tracker_free(). NULL on failure.
 * @return SKEP_FAILED_PRECONDITION, naming the range, if none of its ports is free;
 *         SKEP_INVALID_ARGUMENT for an empty range, a bad host or a bad option;
 *         SKEP_PERMISSION_DENIED if the port may not be bound; SKEP_UNAVAILABLE if the host does
 *         not resolve or is not an address of this machine; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_tracker_start(const struct skep_tracker_options *options,
                                                        struct skep_tracker **out,
                                                        struct skep_error *err);

/** The port that was bound. */
SKEP_API uint16_t skep_tracker_port(const struct skep_tracker *tracker);
/** The bound `host:port`; lives as long as the tracker. */
SKEP_API const char *skep_tracker_endpoint(const struct skep_tracker *tracker);
/** The key by which STOP is granted; lives as long as the tracker. */
SKEP_API const char *skep_tracker_stop_key(const struct skep_tracker *tracker);

/**
 * The queues and servers as the answer to SUMMARY tells them: a JSON object with "queue_info" and
 * "server_info".
 * @param text  owned: skep_tracker_text_free(). NULL on failure.
 * @return SKEP_RESOURCE_EXHAUSTED; SKEP_FAILED_PRECONDITION if it has stopped.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_tracker_summary(struct skep_tracker *tracker, char **text,
                                                          struct skep_error *err);
SKEP_API void skep_tracker_text_free(char *text); /**< NULL is allowed */

/** Requests are counted by how long they waited: up to 1 ms, 2, 4 ... 4096 ms, and longer. */
#define SKEP_TRACKER_WAIT_BUCKETS 14

/** Counters since start. */
struct skep_tracker_stats {
    uint64_t connections_open, connections_accepted, connections_refused;
    uint64_t protocol_errors; /**< connections closed for what they sent */
    uint64_t timeouts;        /**< connections closed for what they did not send or read */
    uint64_t messages;        /**< requests understood */
    uint64_t servers;         /**< connections that registered as servers */
    uint64_t keys, resources_free, requests_pending;
    uint64_t puts, requests, requests_served, requests_withdrawn;
    uint64_t requests_undelivered;     /**< of those served: the client was lost before it had the
                                            answer, and the resource is free again */
    uint64_t wait_us_sum, wait_us_max; /**< of requests that were answered */
    uint64_t waits[SKEP_TRACKER_WAIT_BUCKETS];
    uint64_t bytes_in, bytes_out;
};
SKEP_API void skep_tracker_stats(struct skep_tracker *tracker, struct skep_tracker_stats *out);

/** One key. Its counters begin anew when it was not used for long. */
struct skep_tracker_key_stats {
    const char *key; /**< UTF-8, ends with a NUL; may have NUL and control characters inside */
    size_t key_bytes;
    uint64_t servers; /**< registered under it, whether free or busy */
    uint64_t free, pending;
    uint64_t puts, requests, requests_served;
    uint64_t wait_us_sum, wait_us_max;
    uint64_t waits[SKEP_TRACKER_WAIT_BUCKETS];
};
/** Gets one key, borrowed for the call; false ends the walk. */
typedef bool (*skep_tracker_key_fn)(void *arg, const struct skep_tracker_key_stats *stats);
/**
 * Walks over the keys in order of their first use, as they were at one moment.
 * @param fn  runs on the calling thread, with no lock held.
 * @return SKEP_RESOURCE_EXHAUSTED if memory is short: fn has not run then.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_tracker_each_key(struct skep_tracker *tracker,
                                                           skep_tracker_key_fn fn, void *arg,
                                                           struct skep_error *err);

/** Asks it to stop: it takes no more connections, sends what is answered already, and closes.
 * Returns at once. Async-signal-safe. */
SKEP_API void skep_tracker_request_stop(struct skep_tracker *tracker);
/** Waits until it has stopped (by a STOP message too), or `timeout_ms` (UINT32_MAX: for ever). True
 * if it has. */
SKEP_API bool skep_tracker_wait(struct skep_tracker *tracker, uint32_t timeout_ms);

/**
 * Stops it as any client with the stop key would, by a STOP message to its own port; if it has not
 * stopped after `grace_ms`, ends it without asking. It has stopped when this returns. NULL, and one
 * that has stopped, are allowed.
 */
SKEP_API void skep_tracker_terminate(struct skep_tracker *tracker, uint32_t grace_ms);

/** Ends it at once if it runs, and frees. NULL is allowed. */
SKEP_API void skep_tracker_free(struct skep_tracker *tracker);

#ifdef __cplusplus
}
#endif
#endif
