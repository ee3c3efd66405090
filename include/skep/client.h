/**
 * @file skep/client.h
 * The client: joins a swarm as a peer of its own, finds experts by UID and calls them.
 *
 * Everything here may be called from any thread at any time, except where it says otherwise.
 * Callbacks run on one of the client's threads with no lock held; they must not block, and may
 * start further calls. No handle may be used or freed in a forked child, see skep/skep.h.
 */
#ifndef SKEP_CLIENT_H
#define SKEP_CLIENT_H

#include <skep/expert.h>
#include <skep/status.h>
#include <skep/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A peer id as text: 64 hex digits and NUL. */
#define SKEP_PEER_ID_TEXT_BYTES 65
/** An endpoint as text: "host:port" or "[v6]:port" and NUL. */
#define SKEP_ENDPOINT_TEXT_BYTES 266
/** The longest UID, with NUL. */
#define SKEP_UID_BYTES 256
/** A request id: random bytes that name one backward call. */
#define SKEP_REQUEST_ID_BYTES 16

struct skep_client;
struct skep_remote_expert;
struct skep_call;

/** Settings of a client. Fill with skep_client_options_init(), then change what differs. */
struct skep_client_options {
    size_t size;                /**< sizeof of this struct, set by _init: for later versions. */
    const char *swarm;          /**< name; default "skep" */
    const char *swarm_key_path; /**< key file of a private swarm; NULL (default): public */
    const char *identity_path;  /**< key file, made if absent; NULL (default): a new identity */
    const char *const *initial_peers; /**< "host:port" of DHT peers, or "tracker://host:port" of
                                           trackers that name some */
    size_t initial_peer_count;        /**< 0: only skep_client_expert_at() can reach anyone */
    const char *dht_listen;           /**< UDP "host:port"; default "0.0.0.0:*", or loopback if all
                                           initial peers are */
    bool no_dht;                      /**< do not join; skep_client_expert_at() only */
    bool insecure_plaintext;          /**< no encryption; peers must have asked for it too */
    uint32_t timeout_ms;              /**< of a call that gives none; default 30,000 */
    uint32_t max_in_flight;           /**< calls at once; default 4096 */
    uint64_t max_message_bytes;       /**< tensors of one message; default 1 GiB */
    /**
     * How activations (inputs there, outputs back) and gradients (of outputs there, of inputs back)
     * travel in calls that don't say. DEFAULT (the default): replies come as the node likes
     * (`skep node --compression`); requests go as they are or, once skep_remote_expert_info() has
     * asked the expert for its schema, as that says.
     */
    enum skep_compression compression, grad_compression;
    /**
     * Hedging: a forward call without a reply after so many milliseconds is sent to a second node
     * that serves the expert, too; the first good answer counts, the other request is cancelled.
     * 0 (default): at half of the call's time limit, and sooner only if the node is silent or does
     * not accept a connection. Backward calls, which train, are never sent twice. Choose a time
     * that few calls take: each hedge is work that may be done for nothing.
     */
    uint32_t hedge_after_ms;
};

SKEP_API void skep_client_options_init(struct skep_client_options *options);

/**
 * Starts a client. Its DHT socket is opened at once; joining goes on in the background, see
 * skep_client_wait_joined(). OpenDHT can only use descriptors below 1024: create the client before
 * opening many files.
 * @param options  borrowed for the call.
 * @param out      owned: skep_client_free(). NULL on failure.
 * @return SKEP_INVALID_ARGUMENT naming the option that is wrong; SKEP_NOT_FOUND,
 *         SKEP_PERMISSION_DENIED or SKEP_DATA_LOSS for key files; SKEP_FAILED_PRECONDITION if the
 * DHT port is in use; SKEP_RESOURCE_EXHAUSTED if memory or descriptors are short.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_new(const struct skep_client_options *options,
                                                     struct skep_client **out,
                                                     struct skep_error *err);

/**
 * Cancels all calls, leaves the swarm and frees. Remote experts and calls must have been freed
 * before. Blocks for at most a few seconds. Not from a callback. NULL is allowed.
 */
SKEP_API void skep_client_free(struct skep_client *client);

/**
 * Waits until a DHT peer has answered.
 * @return SKEP_DEADLINE_EXCEEDED, naming the swarm, if none did in time: joining goes on. The
 *         message says of each initial peer what was found there: another network, a closed port, a
 *         port for calls. That takes the last 0.7 s of the time, and up to a second beyond it;
 *         SKEP_FAILED_PRECONDITION if the client was started without the DHT.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_wait_joined(struct skep_client *client,
                                                             uint32_t timeout_ms,
                                                             struct skep_error *err);

/** How many DHT peers are known to answer. */
SKEP_API unsigned skep_client_peer_count(struct skep_client *client);

/** What a client has done so far. */
struct skep_client_stats {
    uint64_t calls;          /**< started, of whatever kind */
    uint64_t requests;       /**< sent for them: fail-over and hedges add to it */
    uint64_t hedges;         /**< further requests beside one that took long */
    uint64_t hedge_wins;     /**< of these, that brought the answer */
    uint64_t not_compressed; /**< as skep_client_not_compressed() */
};
SKEP_API void skep_client_stats(struct skep_client *client, struct skep_client_stats *out);

/** Tensors of requests that held NaN or infinity, so that they went as float32 although compression
 * was asked for. */
SKEP_API uint64_t skep_client_not_compressed(const struct skep_client *client);

/** This client's own peer id. View of the client. */
SKEP_API const char *skep_client_peer_id(const struct skep_client *client);

/**
 * Looks an expert up.
 * @param uid         borrowed.
 * @param timeout_ms  0: the client's default.
 * @param out         owned: skep_remote_expert_free(). NULL on failure.
 * @return SKEP_NOT_FOUND: peers were asked and nobody serves it; SKEP_UNAVAILABLE: no peer could be
 *         asked; SKEP_DEADLINE_EXCEEDED; SKEP_INVALID_ARGUMENT: not a UID (which part is said);
 *         SKEP_FAILED_PRECONDITION: the client was started without the DHT.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_find(struct skep_client *client, const char *uid,
                                                      uint32_t timeout_ms,
                                                      struct skep_remote_expert **out,
                                                      struct skep_error *err);

/**
 * Looks many experts up at once; much faster than one by one.
 * @param experts   `count` entries, in the order of uids: owned, or NULL where not found.
 * @param statuses  `count` entries as skep_client_find() would return; may be NULL.
 * @return SKEP_OK if every UID was found or is certainly absent; otherwise the first other status.
 *         Entries are written in either case.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_find_many(
    struct skep_client *client, const char *const *uids, size_t count, uint32_t timeout_ms,
    struct skep_remote_expert **experts, skep_status *statuses, struct skep_error *err);

/**
 * An expert at a known endpoint, without the DHT.
 * @param endpoint  "host:port". Borrowed.
 * @param peer_id   64 hex digits of who must answer; NULL: whoever does (encrypted, but not
 *                  authenticated against anyone in particular). Borrowed.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_expert_at(struct skep_client *client,
                                                           const char *uid, const char *endpoint,
                                                           const char *peer_id,
                                                           struct skep_remote_expert **out,
                                                           struct skep_error *err);

/** Frees it; calls on it that are under way go on. NULL is allowed. */
SKEP_API void skep_remote_expert_free(struct skep_remote_expert *expert);

/** Its UID. View of the expert. */
SKEP_API const char *skep_remote_expert_uid(const struct skep_remote_expert *expert);

/** One node that serves an expert. */
struct skep_provider {
    char peer_id[SKEP_PEER_ID_TEXT_BYTES];   /**< "" if unknown */
    char endpoint[SKEP_ENDPOINT_TEXT_BYTES]; /**< the first of its endpoints */
    char cls[SKEP_EXPERT_NAME_BYTES];        /**< class, as published */
    int64_t expires_at;                      /**< Unix seconds of the record; 0: no record */
};

/** The nodes that serve it, freshest first, as last looked up. Returns how many there are (which
 * may be more than cap). */
SKEP_API size_t skep_remote_expert_providers(const struct skep_remote_expert *expert,
                                             struct skep_provider *out, size_t cap);

/** What a node says of one of its experts. */
struct skep_expert_info {
    char uid[SKEP_UID_BYTES];
    char cls[SKEP_EXPERT_NAME_BYTES];
    char precision[SKEP_EXPERT_NAME_BYTES]; /**< of its compute: "float32" */
    char peer_id[SKEP_PEER_ID_TEXT_BYTES];
    struct skep_expert_schema schema;
    uint64_t parameter_count;
    uint64_t update_count;  /**< optimizer steps taken */
    uint64_t skipped_steps; /**< not taken, as their gradients were not finite */
    int64_t max_batch_size;
    uint64_t queued_tasks;
    double examples_per_second;
    bool stalled; /**< works on one batch for longer than its node allows, and takes no calls */
    /** How its activations and gradients travel when a caller does not say. Never DEFAULT. */
    enum skep_compression compression, grad_compression;
};

/** Asks for it. Fails over like a forward call. Errors as skep_remote_expert_forward(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_remote_expert_info(struct skep_remote_expert *expert,
                                                             uint32_t timeout_ms,
                                                             struct skep_expert_info *out,
                                                             struct skep_error *err);

/** Settings of one call; all zero: the defaults. */
struct skep_call_options {
    uint32_t
        timeout_ms; /**< for the whole call, look-ups and fail-over included; 0: the client's */
    /**
     * Of a backward call: 16 bytes, borrowed for the call; NULL: random ones. A node that has
     * already carried out a backward with this id from this client answers with the remembered
     * outcome and does not step again: so a caller may repeat a call whose outcome is unknown, at
     * the same node.
     */
    const uint8_t *request_id;
    /** How activations and gradients travel, both ways; DEFAULT: as the client's options say. A
     * node that doesn't know of compression is sent, and sends, tensors as they are. */
    enum skep_compression compression, grad_compression;
    /** Of a forward call: as skep_client_options.hedge_after_ms, which 0 takes. */
    uint32_t hedge_after_ms;
    /**
     * Who is asked first, if it serves the expert and has not failed lately: 64 hex digits,
     * borrowed for the call. A backward belongs at the node that answered the forward, see
     * skep_call_peer_id(): others that serve the same UID have weights of their own. NULL or "":
     * of two nodes drawn at random the one that is better by published load and by how long its
     * answers took this client.
     */
    const char *peer_id;
};

/**
 * Forward pass, waiting.
 * @param inputs   `count` tensors as the expert's schema says, dimension 0 being the batch.
 * Borrowed.
 * @param outputs  `output_cap` entries; on success the first *output_count are owned
 *                 (skep_tensor_free()). Untouched on failure.
 * @param options  NULL: defaults.
 * @return SKEP_INVALID_ARGUMENT: tensors do not fit the schema, or the limits; SKEP_NOT_FOUND:
 * nobody serves it any more; SKEP_UNAVAILABLE: no node that serves it could be reached;
 *         SKEP_UNAUTHENTICATED: only nodes with a wrong identity answered;
 *         SKEP_RESOURCE_EXHAUSTED: queues are full, try again after err->retry_after_ms;
 *         SKEP_DEADLINE_EXCEEDED; SKEP_CANCELLED: the client was freed; or what the expert
 * answered. A node that cannot be reached, is lost or too busy is replaced by the next that serves
 * the UID, within the timeout. So is one that finds fault with the request, as it may be that node
 * which serves something else under the UID: when three have, or all there are, the first one's
 * sentence is the error, with its endpoint.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_remote_expert_forward(
    struct skep_remote_expert *expert, const DLTensor *const *inputs, size_t count,
    const struct skep_call_options *options, DLManagedTensor **outputs, size_t output_cap,
    size_t *output_count, struct skep_error *err);

/**
 * Backward pass, waiting: the node runs forward again, returns the gradients of the inputs and
 * takes one optimizer step.
 * @param inputs        as for forward. Borrowed.
 * @param grad_outputs  gradients of the loss for each output. Borrowed.
 * @param grad_inputs   as `outputs` of forward.
 * @return as forward, with one difference: a call whose node was lost after the request had been
 * sent is not tried elsewhere but ends SKEP_UNAVAILABLE (or SKEP_DEADLINE_EXCEEDED) with
 *         err->outcome_unknown set.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_remote_expert_backward(
    struct skep_remote_expert *expert, const DLTensor *const *inputs, size_t input_count,
    const DLTensor *const *grad_outputs, size_t grad_count, const struct skep_call_options *options,
    DLManagedTensor **grad_inputs, size_t grad_cap, size_t *grad_input_count,
    struct skep_error *err);

/** Runs once when a call has ended. The call stays owned by who started it; `arg` as given. */
typedef void (*skep_call_fn)(struct skep_call *call, void *arg);

/**
 * Starts a forward call and returns at once.
 * @param inputs  the structures are copied, their data are borrowed until the call has ended.
 * @param done    may be NULL (then wait with skep_call_wait()). May run before this returns.
 * @param out     owned: skep_call_free(). Written before done can run.
 * @return other than SKEP_OK: nothing was started, done will not run. SKEP_RESOURCE_EXHAUSTED if
 *         max_in_flight calls are under way; SKEP_INVALID_ARGUMENT for unusable tensors or a
 *         compression that does not exist; SKEP_RESOURCE_EXHAUSTED also if memory is short.
 *         Compressing is done by this function, on the thread that calls it.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_remote_expert_forward_start(
    struct skep_remote_expert *expert, const DLTensor *const *inputs, size_t count,
    const struct skep_call_options *options, skep_call_fn done, void *arg, struct skep_call **out,
    struct skep_error *err);

/** Starts a backward call; as skep_remote_expert_forward_start(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_remote_expert_backward_start(
    struct skep_remote_expert *expert, const DLTensor *const *inputs, size_t input_count,
    const DLTensor *const *grad_outputs, size_t grad_count, const struct skep_call_options *options,
    skep_call_fn done, void *arg, struct skep_call **out, struct skep_error *err);

/** Waits for a call's end. False if the timeout came first. Not from a callback. */
SKEP_API bool skep_call_wait(struct skep_call *call, uint32_t timeout_ms);

/**
 * The result of a call that has ended; its tensors can be taken once.
 * @return the call's status, as the waiting functions; SKEP_FAILED_PRECONDITION if it has not
 * ended.
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_call_result(struct skep_call *call,
                                                      DLManagedTensor **outputs, size_t output_cap,
                                                      size_t *output_count, struct skep_error *err);

/** The peer id (hex) of the node that answered; "" if none has. View of the call, after its end. */
SKEP_API const char *skep_call_peer_id(const struct skep_call *call);

/** How the first tensor of the answer travelled; NONE if there is none. After the call's end. */
SKEP_API enum skep_compression skep_call_compression(const struct skep_call *call);

/** Asks for its end; done still runs, once. The node is told that the work is not needed. */
SKEP_API void skep_call_cancel(struct skep_call *call);

/** Frees a call. One that has not ended is cancelled and waited for. NULL is allowed. From within
 * its own `done` it may be called. */
SKEP_API void skep_call_free(struct skep_call *call);

/* ---- what trackers hold ---- */

/** A resource that some tracker of the swarm publishes, or a tracker that publishes none of its
 * addresses. */
struct skep_tracked_resource {
    char host[SKEP_ENDPOINT_TEXT_BYTES]; /**< "": the tracker names no free one that others reach */
    uint16_t port;
    char tracker[SKEP_ENDPOINT_TEXT_BYTES]; /**< its port for TVM peers; "" if not for others */
    char tracker_peer_id[SKEP_PEER_ID_TEXT_BYTES];
    char tracker_endpoint[SKEP_ENDPOINT_TEXT_BYTES]; /**< of its node, for calls */
    uint32_t free, pending; /**< of the key at that tracker: to be had, and requests that wait */
    int64_t expires_at;     /**< Unix seconds of the record */
};

/**
 * Looks up what the trackers of the swarm hold under a key: a row for each address they name, at
 * most 16 a tracker.
 * @param out    owned: skep_tracked_resources_free(). NULL on failure.
 * @return SKEP_NOT_FOUND: no tracker publishes it; SKEP_UNAVAILABLE, SKEP_DEADLINE_EXCEEDED,
 *         SKEP_INVALID_ARGUMENT (the key), SKEP_FAILED_PRECONDITION (a client without DHT).
 */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_find_resources(
    struct skep_client *client, const char *key, uint32_t timeout_ms,
    struct skep_tracked_resource **out, size_t *count, struct skep_error *err);
SKEP_API void skep_tracked_resources_free(struct skep_tracked_resource *resources);

/* ---- leases ---- */

/**
 * A lease of a node: a tracker has handed out the node's match key, and while the lease lasts the
 * node works on this client's calls before those of others. It ends when it is freed, when its time
 * is up, or when the connection is lost.
 */
struct skep_client_lease;

/**
 * Presents a match key to a node and holds the lease.
 * @param endpoint     "host:port", as the tracker gave it. Borrowed.
 * @param peer_id      64 hex digits of who must answer; NULL: whoever does. Borrowed.
 * @param match_key    as the tracker gave it. Borrowed.
 * @param duration_ms  0: as long as the node allows, which is also the most.
 * @param timeout_ms   0: the client's default.
 * @param out          owned: skep_client_lease_free(), before the client. NULL on failure.
 * @return SKEP_PERMISSION_DENIED: the match key is wrong or has been used; SKEP_UNIMPLEMENTED: the
 *         node is not registered with any tracker; SKEP_UNAVAILABLE, SKEP_UNAUTHENTICATED,
 *         SKEP_DEADLINE_EXCEEDED: it was not reached; SKEP_INVALID_ARGUMENT; SKEP_CANCELLED.
 */
SKEP_API SKEP_MUST_CHECK skep_status
skep_client_lease_begin(struct skep_client *client, const char *endpoint, const char *peer_id,
                        const char *match_key, uint32_t duration_ms, uint32_t timeout_ms,
                        struct skep_client_lease **out, struct skep_error *err);

/** An expert of the leased node, as skep_client_expert_at(). */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_lease_expert(struct skep_client_lease *lease,
                                                              const char *uid,
                                                              struct skep_remote_expert **out,
                                                              struct skep_error *err);

/** Milliseconds from the last granting that the lease lasts, as the node said. */
SKEP_API uint64_t skep_client_lease_duration_ms(struct skep_client_lease *lease);

/** Makes the lease last `duration_ms` from now (0: as long as allowed).
 * @return as skep_client_lease_begin(); SKEP_PERMISSION_DENIED: it has ended. */
SKEP_API SKEP_MUST_CHECK skep_status skep_client_lease_renew(struct skep_client_lease *lease,
                                                             uint32_t duration_ms,
                                                             uint32_t timeout_ms,
                                                             struct skep_error *err);

/** Waits until the lease has ended, by whatever cause. False if the timeout came first; 0 asks
 * without waiting. */
SKEP_API bool skep_client_lease_wait_ended(struct skep_client_lease *lease, uint32_t timeout_ms);

/** Gives the node back, if the lease still lasts, and frees. Blocks for a second at most. Not from
 * a callback. Experts of it may live on. NULL is allowed. */
SKEP_API void skep_client_lease_free(struct skep_client_lease *lease);

#ifdef __cplusplus
}
#endif
#endif
