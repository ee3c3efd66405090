/*
 * At most once: the memory of backward calls. A repeat under a request id is answered with the
 * outcome of the first instead of a second optimizer step.
 *
 * Threads: any; one lock inside. Callbacks run on the calling thread with no lock held. Times are
 * given by the caller.
 */
#ifndef SKEP_NODE_RPC_IDEMPOTENCY_H
#define SKEP_NODE_RPC_IDEMPOTENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include <skep/tensor.h>

struct idempotency_cache;
struct idempotency_entry;

enum {
    IDEMPOTENCY_MAX_TENSORS = 8,
    IDEMPOTENCY_PEER_BYTES = 32,
    IDEMPOTENCY_ID_BYTES = 16,
};

struct idempotency_limits {
    size_t max_entries; /* default 131072; the oldest is forgotten first */
    size_t max_bytes;   /* of result tensors; default 256 MiB; the oldest lose theirs first */
    uint64_t ttl_us;    /* default 10 minutes, from the outcome on */
};

/* How a call ended. */
struct idempotency_outcome {
    bool was_worked; /* false: nothing was changed, the call may be tried again */
    DLManagedTensor *const *tensors;
    size_t tensor_count;
    const struct skep_error *err; /* NULL: success */
};

/* Embedded in what waits; borrowed until done has run. */
struct idempotency_waiter {
    /* Exactly once. If the outcome is `was_worked`, its tensors are taken by the callee (each
     * skep_tensor_free()); if not, the waiter should begin anew. */
    void (*done)(struct idempotency_waiter *waiter, const struct idempotency_outcome *outcome);
    struct idempotency_waiter *next;
};

struct idempotency_stats {
    size_t entries, bytes;
    uint64_t repeats;   /* answered from memory, or by waiting */
    uint64_t forgotten; /* before their time, for lack of room */
};

/* @param limits  NULL, or zero fields: defaults. */
SKEP_MUST_CHECK skep_status idempotency_new(const struct idempotency_limits *limits,
                                            struct idempotency_cache **out, struct skep_error *err);
/* Nothing may be under way. NULL is allowed. */
void idempotency_free(struct idempotency_cache *cache);

/* A fingerprint of a call's tensors, all numbers of them. It tells a peer its own mistakes: whoever
 * wants to make two calls look alike only misleads itself. */
uint64_t idempotency_content(const DLTensor *const *tensors, size_t count);

/*
 * Announces a call. *first tells what it is:
 *  - not NULL: the first under this id. The caller works and then calls idempotency_finish() with
 * it.
 *  - NULL: a repeat. waiter->done runs when the outcome is known, maybe before this returns.
 * @param content  idempotency_content() of its tensors, so that an id is not used for two calls.
 * @return SKEP_INVALID_ARGUMENT if the id belongs to a call for another uid or with other content;
 *         SKEP_RESOURCE_EXHAUSTED if memory is short or all entries are under way. waiter->done
 * does not run then.
 */
SKEP_MUST_CHECK skep_status idempotency_begin(struct idempotency_cache *cache,
                                              const uint8_t peer_id[static IDEMPOTENCY_PEER_BYTES],
                                              const uint8_t request_id[static IDEMPOTENCY_ID_BYTES],
                                              const char *uid, uint64_t content, uint64_t now_us,
                                              struct idempotency_waiter *waiter,
                                              struct idempotency_entry **first,
                                              struct skep_error *err);
/* Ends what idempotency_begin() gave. The outcome is borrowed; its tensors are shared, not copied.
 */
void idempotency_finish(struct idempotency_cache *cache, struct idempotency_entry *entry,
                        const struct idempotency_outcome *outcome, uint64_t now_us);

void idempotency_stats(struct idempotency_cache *cache, struct idempotency_stats *out);

#endif
