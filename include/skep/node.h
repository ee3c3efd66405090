/**
 * @file skep/node.h
 * A node: one running peer that hosts experts, publishes them in its swarm's DHT and serves
 * forward and backward requests for them.
 *
 * Lifecycle: skep_node_new(), skep_node_add_expert() or skep_node_add_pattern(), skep_node_start()
 * (returns once the node serves; it goes on in the background), skep_node_stop(), skep_node_free().
 * skep_node_run() is start, wait for a stop request, and stop in one call.
 *
 * @code
 *     struct skep_node_options options;
 *     struct skep_expert_options expert;
 *     struct skep_node *node = NULL;
 *     struct skep_error err;
 *
 *     skep_node_options_init(&options);
 *     options.listen = "127.0.0.1:*";
 *     skep_expert_options_init(&expert);
 *     expert.cls = "ffn";
 *     expert.hidden_dim = 64;
 *     if (skep_node_new(&options, &node, &err) != SKEP_OK ||
 *         skep_node_add_expert(node, "ffn.3.7", &expert, &err) != SKEP_OK ||
 *         skep_node_run(node, &err) != SKEP_OK)
 *         fprintf(stderr, "%s\n", err.message);
 *     skep_node_free(node);
 * @endcode
 *
 * Threads: the functions of one node may be called from any thread, except that options and experts
 * are set before start, by one thread at a time, and nothing runs beside skep_node_free().
 * In a forked child no node may be used or freed, see skep/skep.h.
 */
#ifndef SKEP_NODE_H
#define SKEP_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/expert.h>
#include <skep/status.h>
#include <skep/tracker.h>

#ifdef __cplusplus
extern "C" {
#endif

struct skep_node;

/** Settings of a node. Fill with skep_node_options_init(), then change what differs. Texts are
 * borrowed for skep_node_new(). */
struct skep_node_options {
    size_t size; /**< sizeof of this struct, set by _init: for later versions. */

    const char *listen;     /**< TCP `host:port`, `*` as port picks one. Default "0.0.0.0:*". */
    const char *dht_listen; /**< UDP `host:port`; NULL (default): the host of `listen`, any port. */
    const char *announce;   /**< `host:port` to publish instead of what is listened on; `*` as port:
                                 the port that was bound. NULL (default): the listen address or,
                                 behind a wildcard, the address other peers see. */

    const char *const *initial_peers; /**< DHT peers to join through, `host:port` each, or trackers
                                           that name some, `tracker://host:port`. */
    size_t initial_peer_count;
    const char *peers_file; /**< known DHT peers are kept here for the next start; NULL: not. */
    bool no_dht;            /**< serve only; publish and look up nothing. */

    const char *swarm;       /**< name of the swarm. Default "skep". */
    const char *swarm_key;   /**< file with the key of a private swarm; NULL: a public one. */
    const char *identity;    /**< key file, made if missing and locked while the node lives; NULL:
                                  a new identity for this node's life. */
    bool insecure_plaintext; /**< no encryption, no proof of identity: closed networks only. */

    uint32_t update_period_s; /**< between two publications; 1 to 1800. Default 30. */

    int64_t max_batch_size;    /**< rows; also the most rows one request may have. Default 4096. */
    int64_t min_batch_size;    /**< rows waited for, for at most batch_timeout_ms. Default 1. */
    uint32_t batch_timeout_ms; /**< Default 0: never wait for more rows. */
    size_t max_queued_tasks;   /**< per pool; beyond: SKEP_RESOURCE_EXHAUSTED. Default 1024. */
    uint64_t max_queued_bytes; /**< of all tasks waiting. 0 (default): a quarter of the memory. */
    uint32_t stall_timeout_ms; /**< an expert that works longer on one batch is taken off the
                                    swarm. 0: never. Default 60000. */
    bool detect_anomalies;     /**< refuse NaN and infinity in requests and results. Default false:
                                    requests that hold them are counted only. */

    unsigned num_handlers; /**< I/O threads; 0 (default): by the number of cores. */
    /** Open at once. Beyond, a connection that made no handshake within a second is closed for the
     * newest, or the newest if there is none. Default 4096. */
    unsigned max_connections;
    uint64_t max_message_bytes;       /**< of one request or reply. Default 1 GiB. */
    uint32_t drain_timeout_ms;        /**< how long a stopping node finishes work. Default 3000. */
    uint32_t stats_report_interval_s; /**< log a line of statistics this often. Default 0: never. */
    uint64_t max_memory; /**< bytes that experts may need while they work, see skep_node_start(). 0
                              (default): what the machine has, or its control groups leave. */

    /** Experts are saved here and loaded from here at start; made if missing. One node at a time
     * may save in a folder. A node that has nothing to save, as all its experts have checkpoints
     * here and the optimizer "none", only reads it: several may, and it may be read-only. NULL
     * (default): nothing is kept. */
    const char *checkpoint_dir;
    uint32_t checkpoint_period_ms; /**< between two savings of what has changed; 10 or more. Default
                                        300000. */
    unsigned keep_checkpoints;     /**< of each expert, 1 or more. Default 2. */
    /** skep_node_load_experts() fails on what it would else leave out with a warning. */
    bool strict_checkpoints;
    /** How activations (outputs) and gradients (of inputs) travel to callers who don't say what
     * they want, and what the experts' schema recommends for requests. DEFAULT (the default) is
     * NONE. */
    enum skep_compression compression, grad_compression;

    /** Every node runs a tracker for TVM peers (docs/tracker.md) beside the rest. */
    bool no_tracker;
    /** Its `host:port`; `*` as port: the first free one of 9190 to 9198 or, if there is none, any
     * other. If given, an address or port that cannot be had makes the start fail. NULL (default):
     * "127.0.0.1:*", and if that cannot be had a warning. The port is neither encrypted nor
     * authenticated. */
    const char *tracker_listen;
    uint32_t tracker_port_end;          /**< ports below it are tried, from that of tracker_listen
                                             on. 0 (default): only that one. */
    bool tracker_any_port;              /**< with `*`: whatever port is free. */
    bool tracker_silent;                /**< warnings and errors only. */
    uint32_t tracker_report_interval_s; /**< as skep_tracker_options. Default 60. */
    bool tracker_reuse_addr;            /**< as skep_tracker_options. Default true. */
    uint32_t tracker_timeout_ms;        /**< the same. Default 10000. */
    unsigned tracker_max_connections;   /**< the same. Default 65536. */
    const char *tracker_stop_key;       /**< the same. */
    bool stop_with_tracker;             /**< a STOP message to the tracker stops the node too. */
    bool no_federation;                 /**< ask no other tracker, and serve none. */

    /** `host:port` of a tracker to register with; NULL (default): the node's own. */
    const char *tracker;
    /** Register under this key, so that clients of the tracker can lease this node. NULL (default):
     * do not. */
    const char *tracker_key;
    uint32_t lease_timeout_ms; /**< longest that a lease lasts unless renewed. Default 600000. */
    uint32_t lease_silence_ms; /**< a holder of whom nothing comes for so long, though asked, has
                                    lost the lease; at least 100. Default 15000. */
    /** Of max_connections, as many may come from one IPv4 address or IPv6 /64; loopback is not
     * counted. 0 (default): a quarter, at least 16. */
    unsigned max_connections_per_address;
    /** Where fewer UIDs of a pattern are free than skep_node_add_pattern() asks for: host those,
     * with a warning, instead of failing. Default false. */
    bool allow_fewer;
};

SKEP_API void skep_node_options_init(struct skep_node_options *options);

/**
 * Makes a node; nothing is opened but the identity file.
 * @param out  owned: skep_node_free(). NULL on failure.
 * @return SKEP_INVALID_ARGUMENT naming the option, its value and what is allowed;
 *         SKEP_PERMISSION_DENIED or SKEP_DATA_LOSS for a bad identity or swarm key file;
 *         SKEP_NOT_FOUND for a missing swarm key file; SKEP_FAILED_PRECONDITION if another
 *         process holds the identity.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_new(const struct skep_node_options *options,
                                                   struct skep_node **out, struct skep_error *err);

/**
 * Adds an expert. Before the start: skep_node_start() makes it and serves it from then on. While
 * the node runs: makes it now, with its checkpoint if checkpoint_dir has one, serves it when the
 * call returns, and publishes it at once.
 * @param uid      `name.i.j...`; copied.
 * @param options  borrowed for the call. `seed` is used as it is.
 * @return SKEP_INVALID_ARGUMENT for a bad UID (quoted), one that was added already, or bad options;
 *         SKEP_RESOURCE_EXHAUSTED if it does not fit; SKEP_FAILED_PRECONDITION if the node starts,
 *         stops or has stopped, or, while it runs, if checkpoint_dir cannot be used.
 * Thread: any while the node runs, one at a time before.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_add_expert(struct skep_node *node, const char *uid,
                                                          const struct skep_expert_options *options,
                                                          struct skep_error *err);

/**
 * Removes an expert while the node runs: refuses further calls of it (SKEP_NOT_FOUND), withdraws
 * its record, waits for its calls under way, saves it to checkpoint_dir, frees it.
 * @param timeout_ms  for the calls under way.
 * @return SKEP_NOT_FOUND if the node does not serve it; SKEP_FAILED_PRECONDITION if the node does
 *         not run; SKEP_DEADLINE_EXCEEDED if a call outlasted the timeout: the expert is removed,
 *         but freed only when the node stops, and not saved; other errors if it could not be saved
 *         (named in the log as well): it is removed then, too.
 * Thread: any.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_remove_expert(struct skep_node *node,
                                                             const char *uid, uint32_t timeout_ms,
                                                             struct skep_error *err);

/**
 * Adds `count` experts with random UIDs of a pattern such as `ffn.[0:32].[0:256]`: each different,
 * none added before, none that the DHT already knows. They are chosen and made in
 * skep_node_start(), which waits up to 10 s for the swarm then; if no peer answers by then it
 * chooses without asking, with a warning. Of two nodes that pick one UID at the same time, one
 * gives it up for another that is free: before skep_node_start() returns, which takes half a
 * second, at most 5 s, or, while the expert is untrained, in the first minute among peers (the list
 * of experts changes then; docs/operations.md, "Random UIDs"). Experts of the pattern that
 * checkpoint_dir holds, of this class and size, come first, and are loaded.
 * @param options  copied. Expert `uid` gets the seed skep_expert_seed(options->seed, uid).
 * @return SKEP_INVALID_ARGUMENT for a bad pattern (quoted, the wrong part named), a count of 0 or
 *         more than the pattern holds, or bad options.
 */
SKEP_API SKEP_MUST_CHECK skep_status
skep_node_add_pattern(struct skep_node *node, const char *pattern, size_t count,
                      const struct skep_expert_options *options, struct skep_error *err);

/**
 * Fills in settings for skep_node_load_expert(): "as it was saved". What is changed then wins over
 * what was saved; only what concerns training and `precision` can be.
 */
SKEP_API void skep_expert_options_unset(struct skep_expert_options *options);

/**
 * Adds an expert that checkpoint_dir holds, of the class and size that its checkpoint says.
 * @param training  from skep_expert_options_unset(), borrowed for the call; NULL: all as saved.
 * @return SKEP_NOT_FOUND if it has no checkpoint; SKEP_FAILED_PRECONDITION if none of those it has
 *         can be used (named in warnings), without a checkpoint_dir, if another process uses that,
 *         or after start; SKEP_INVALID_ARGUMENT as skep_node_add_expert().
 */
SKEP_API SKEP_MUST_CHECK skep_status
skep_node_load_expert(struct skep_node *node, const char *uid,
                      const struct skep_expert_options *training, struct skep_error *err);

/**
 * Adds every expert that checkpoint_dir holds and that was not added before. Each other entry of
 * the folder is named in a warning or, with strict_checkpoints, makes it fail.
 * @param pattern  only UIDs of this pattern; NULL: all.
 * @param count    how many were added; may be NULL.
 * @return as skep_node_load_expert(); SKEP_INVALID_ARGUMENT for a bad pattern.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_load_experts(
    struct skep_node *node, const char *pattern, const struct skep_expert_options *training,
    size_t *count, struct skep_error *err);

/** The seed of one expert among several made from one seed: the same for the same UID everywhere,
 * so that two nodes given one seed hold equal experts under equal UIDs. */
SKEP_API uint64_t skep_expert_seed(uint64_t seed, const char *uid);

/**
 * Starts: joins the DHT, listens, serves; logs peer id, endpoint, DHT port, experts and the
 * `--initial-peers` option for the next node. When it returns SKEP_OK, calls are served.
 * @return SKEP_FAILED_PRECONDITION naming the port if one is in use, if an expert has checkpoints
 * of which none can be used, if another process uses checkpoint_dir, or if the node was started
 *         before; SKEP_PERMISSION_DENIED if a port may not be bound; SKEP_RESOURCE_EXHAUSTED if the
 *         experts at work would need more memory than max_memory (told before any of it is
 *         taken, with the sum), or too few UIDs of a pattern are
 *         free, without allow_fewer; SKEP_CANCELLED if a stop was asked for before it was up.
 * Nothing is left running after a failure.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_start(struct skep_node *node,
                                                     struct skep_error *err);

/**
 * Waits until the node is ready: it serves and has tried to publish for the first time (what other
 * peers have stored after a tenth of a second is not waited for any longer).
 * @return SKEP_DEADLINE_EXCEEDED; SKEP_FAILED_PRECONDITION if it is not running.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_wait_ready(struct skep_node *node,
                                                          uint32_t timeout_ms,
                                                          struct skep_error *err);

/** Starts unless started, then waits until the node has stopped. @return as skep_node_start(), but
 * SKEP_OK for a stop asked for while it was starting, and SKEP_DATA_LOSS if the last save of an
 * expert failed. */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_run(struct skep_node *node, struct skep_error *err);

/** Asks a node to stop and returns at once. Async-signal-safe. Also before or during
 * skep_node_start(), which then ends soon with SKEP_CANCELLED. */
SKEP_API void skep_node_request_stop(struct skep_node *node);

/**
 * Stops: withdraws from the DHT, takes no more calls, finishes those under way within
 * drain_timeout_ms, refuses the rest, and waits until all threads and sockets are gone. Does
 * nothing if the node never started or has stopped.
 */
SKEP_API void skep_node_stop(struct skep_node *node);

/** Waits until the node has stopped, or `timeout_ms` (UINT32_MAX: for ever). True if it has. */
SKEP_API bool skep_node_wait(struct skep_node *node, uint32_t timeout_ms);

/** Stops if need be, and frees. NULL is allowed. */
SKEP_API void skep_node_free(struct skep_node *node);

/* Facts. Texts live as long as the node; those below the line are "" or 0 before start. */

SKEP_API const char *skep_node_peer_id(const struct skep_node *node); /**< 64 hex digits */
/* --- */
SKEP_API const char *skep_node_endpoint(const struct skep_node *node); /**< bound `host:port` */
SKEP_API uint16_t skep_node_port(const struct skep_node *node);        /**< bound TCP port */
SKEP_API uint16_t skep_node_dht_port(const struct skep_node *node);    /**< bound UDP port */
/** `host:port` that the next node gives to `--initial-peers`. */
SKEP_API const char *skep_node_initial_peer(const struct skep_node *node);
/** Bound `host:port` of its tracker; "" if there is none. */
SKEP_API const char *skep_node_tracker_endpoint(const struct skep_node *node);
/** What STOP must present to it; "" if there is none. */
SKEP_API const char *skep_node_tracker_stop_key(const struct skep_node *node);
SKEP_API size_t skep_node_expert_count(const struct skep_node *node);
/** UID of an expert, index < count, sorted by UID once started; NULL beyond. Where an expert of a
 * pattern gives its UID up, another takes its place in the order. */
SKEP_API const char *skep_node_expert_uid(const struct skep_node *node, size_t index);

/** One direction of one expert, or the sum over experts. */
struct skep_pool_stats {
    uint64_t tasks;     /**< worked on */
    uint64_t batches;   /**< one step of the expert each */
    uint64_t examples;  /**< rows worked on */
    uint64_t refused;   /**< queue full, or stalled */
    uint64_t expired;   /**< dropped: the deadline had passed */
    uint64_t cancelled; /**< dropped: the caller had gone */
    uint64_t failed;    /**< the expert failed */
    uint64_t busy_us;   /**< sum over batches */
    uint64_t wait_us;   /**< sum over tasks: in the queue */
    uint64_t work_us;   /**< sum over tasks: from the start of their batch to its end */
    uint64_t queued_tasks;
    bool stalled;
};

struct skep_expert_stats {
    char uid[256];
    char cls[SKEP_EXPERT_NAME_BYTES];
    char precision[SKEP_EXPERT_NAME_BYTES];
    uint64_t parameters;
    uint64_t updates;       /**< optimizer steps */
    uint64_t skipped_steps; /**< steps not done, as gradients were not finite */
    struct skep_pool_stats forward, backward;
};

/** Whether other nodes can reach this one, as far as it knows. */
enum skep_reachability {
    SKEP_REACH_UNKNOWN = 0, /**< the first check has not ended yet, or there is no DHT */
    SKEP_REACH_REACHABLE,
    SKEP_REACH_UNCHECKED,    /**< nobody could be asked, or tell */
    SKEP_REACH_TCP_BLOCKED,  /**< no connection to the announced port */
    SKEP_REACH_UDP_BLOCKED,  /**< calls get through; the DHT's port does not answer strangers */
    SKEP_REACH_WRONG_ADDRESS /**< what is announced does not lead here */
};

enum { SKEP_REACHABILITY_BYTES = 1024 };

/** "unknown", "reachable", "unchecked", "tcp_blocked", "udp_blocked", "wrong_address"; a constant
 * for every value. */
SKEP_API const char *skep_reachability_name(enum skep_reachability state);

/**
 * What the node has found out about its own reachability. Soon after the start, and again later, in
 * the background, it asks up to two other nodes of the swarm, at other addresses unless the swarm
 * is on loopback, to dial back the endpoint it announces and to ping its DHT port.
 * @param message  may be NULL. Gets a sentence for people: who has reached what or, if something is
 *                 wrong, what it is and which option or port mends it; "" if unknown.
 */
SKEP_API enum skep_reachability skep_node_reachability(struct skep_node *node,
                                                       char message[SKEP_REACHABILITY_BYTES]);

struct skep_node_stats {
    uint64_t uptime_ms;
    uint64_t experts;
    struct skep_pool_stats forward, backward; /**< over all experts */
    uint64_t inline_batches; /**< of all batches: worked on by the thread that received them */
    uint64_t stalls;
    uint64_t anomalies;     /**< requests to experts with parameters that held NaN or infinity */
    uint64_t skipped_steps; /**< over all experts */
    uint64_t connections_open, connections_accepted, connections_refused;
    uint64_t handshakes_failed, protocol_errors;
    uint64_t handshakes_evicted;   /**< of those failed: closed to make room for others */
    uint64_t calls, calls_refused; /**< refused by this node before any work */
    uint64_t bytes_in, bytes_out;
    uint64_t repeats_answered; /**< backward calls answered from memory instead of a second step */
    uint64_t repeats_remembered;
    uint64_t dht_peers;
    uint64_t publish_rounds, publish_rounds_failed, records_published, records_failed;
    int64_t last_publish_unix_s; /**< 0: none yet */
    uint64_t checkpoints_saved, checkpoints_failed;
    int64_t last_checkpoint_unix_s; /**< 0: none yet */
    uint64_t checkpoint_wait_us;    /**< longest that an optimizer step has waited for a copy */
    /** tensors of replies that held NaN or infinity and so went as float32, not compressed */
    uint64_t not_compressed;
    struct skep_tracker_stats tracker;   /**< of its tracker; all 0 if it runs none */
    uint64_t tracker_requests_federated; /**< of those served: with a resource of another tracker */
    uint64_t tracker_records_published, tracker_records_failed;
    uint64_t registrations;          /**< times that a tracker has taken this node in */
    bool is_registered;              /**< with a tracker, now */
    bool is_leased;                  /**< now */
    uint64_t leases, leases_refused; /**< begun; match keys that were not good */
    /** experts whose last save, at the stop, failed: what they had learned since is gone */
    uint64_t experts_lost;
    uint64_t experts_stalled;            /**< now */
    enum skep_reachability reachability; /**< as skep_node_reachability() */
};

/** Counters since start; all 0 before. */
SKEP_API void skep_node_stats(struct skep_node *node, struct skep_node_stats *out);
/** Walks over the keys of the node's tracker, as skep_tracker_each_key(); over none if it runs no
 * tracker, or has stopped. */
SKEP_API SKEP_MUST_CHECK skep_status skep_node_tracker_each_key(struct skep_node *node,
                                                                skep_tracker_key_fn fn, void *arg,
                                                                struct skep_error *err);
/** False (and *out zeroed) if there is no such index. */
SKEP_API bool skep_node_expert_stats(struct skep_node *node, size_t index,
                                     struct skep_expert_stats *out);

#ifdef __cplusplus
}
#endif
#endif
