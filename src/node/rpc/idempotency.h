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

struct once;
struct once_entry;

enum {
    ONCE_MAX_TENSORS = 8,
    ONCE_PEER_BYTES = 32,
    ONCE_ID_BYTES = 16,
};

struct once_limits {
    size_t max_entries; /* default 131072; the oldest is forgotten first */
    size_t max_bytes;   /* of result tensors; default 256 MiB; the oldest lose theirs first */
    uint64_t ttl_us;    /* default 10 minutes, from the outcome on */
};

/* How a call ended. */
struct once_outcome {
    bool was_worked; /* false: nothing was changed, the call may be tried again */
    DLManagedTensor *const *tensors;
    size_t tensor_count;
    const struct skep_error *err; /* NULL: success */
};

/* Embedded in what waits; borrowed until done has run. */
struct once_waiter {
    /* Exactly once. If the outcome is `was_worked`, its tensors are taken by the callee (each
     * skep_tensor_free()); if not, the waiter should begin anew. */
    void (*done)(struct once_waiter *waiter, const struct once_outcome *outcome);
    struct once_waiter *next;
};

struct once_stats {
    size_t entries, bytes;
    uint64_t repeats;   /* answered from memory, or by waiting */
    uint64_t forgotten; /* before their time, for lack of room */
};

/* @param limits  NULL, or zero fields: defaults. */
SKEP_MUST_CHECK skep_status once_new(const struct once_limits *limits, struct once **out,
                                     struct skep_error *err);
/* Nothing may be under way. NULL is allowed. */
void once_free(struct once *once);

/* A fingerprint of a call's tensors, all numbers of them. It tells a peer its own mistakes: whoever
 * wants to make two calls look alike only misleads itself. */
uint64_t once_content(const DLTensor *const *tensors, size_t count);

/*
 * Announces a call. *first tells what it is:
 *  - not NULL: the first under this id. The caller works and then calls once_finish() with it.
 *  - NULL: a repeat. waiter->done runs when the outcome is known, maybe before this returns.
 * @param content  once_content() of its tensors, so that an id is not used for two calls.
 * @return SKEP_INVALID_ARGUMENT if the id belongs to a call for another uid or with other content;
 *         SKEP_RESOURCE_EXHAUSTED if memory is short or all entries are under way. waiter->done
 * does not run then.
 */
SKEP_MUST_CHECK skep_status once_begin(struct once *once,
                                       const uint8_t peer_id[static ONCE_PEER_BYTES],
                                       const uint8_t request_id[static ONCE_ID_BYTES],
                                       const char *uid, uint64_t content, uint64_t now_us,
                                       struct once_waiter *waiter, struct once_entry **first,
                                       struct skep_error *err);
/* Ends what once_begin() gave. The outcome is borrowed; its tensors are shared, not copied. */
void once_finish(struct once *once, struct once_entry *entry, const struct once_outcome *outcome,
                 uint64_t now_us);

void once_stats(struct once *once, struct once_stats *out);

#endif
