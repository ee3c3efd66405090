/*
 * Many calls at once: to each expert of a batch its rows, and waiting for as many answers as are
 * needed. A call that is given up ends by itself later and frees what is its own, so nobody waits
 * for a node that hangs.
 */
#ifndef SKEP_CLIENT_FANOUT_H
#define SKEP_CLIENT_FANOUT_H

#include "client/client_internal.h"

struct fanout_shared; /* what calls and the waiting thread share */

/* One call. Zeroed, then experts and tensors filled in, before fanout_start(). */
struct fanout_call {
    struct skep_remote_expert *expert; /* borrowed until fanout_start() */
    DLManagedTensor *inputs[2]; /* taken by fanout_start(): x, and for backward the gradient */
    bool backward;
    /* Hex or "". Before the start: who is asked first. After the wait: who answered. */
    char peer_id[PEER_ID_HEX_BYTES];
    /* After fanout_wait(): */
    skep_status status;
    struct skep_error error;
    DLManagedTensor *output; /* owned by the fanout; NULL unless SKEP_OK */
    struct fanout_job *job;
    uint64_t failures_before; /* client->avoid.failures at the start */
};

struct fanout {
    struct skep_client *client;
    struct fanout_shared *shared;
    struct fanout_call *calls; /* owned */
    size_t count;
};

/* What the output of every call must be. */
struct fanout_expect {
    DLDataType dtype;
    int ndim;             /* of a row */
    const int64_t *shape; /* the same */
    bool finite;
};

/* How every call travels; as skep_call_options. */
struct fanout_manner {
    enum skep_compression compression, grad_compression;
    uint32_t hedge_after_ms;
};

/* How long to wait. Sample s wants the calls pairs[s * k], ..., of which counts[s] are there. */
struct fanout_policy {
    size_t samples, k;
    const uint32_t *pairs;
    const size_t *counts;
    size_t k_min;
    uint64_t deadline_us;
    uint32_t after_k_min_ms; /* 0: until the deadline */
    /* For more calls in the place of those that failed; NULL: there are to be none. For each sample
     * how many answers the wait has found wanting, see fanout_wait(). */
    size_t *wants;
    size_t k_best;         /* so many answers a sample is to have, if possible */
    const bool *spent;     /* samples that are to get no more */
    uint64_t impatient_us; /* then what is still open counts as failed, once: */
    bool impatient;        /* this has been; set by the wait */
};

enum { FANOUT_NO_CALL = UINT32_MAX };

skep_status fanout_init(struct fanout *f, struct skep_client *client, size_t count,
                        struct skep_error *err);
/* Room for more calls, zeroed, behind those there are. */
skep_status fanout_add(struct fanout *f, size_t count, struct skep_error *err);
/* Starts all calls from number `first` on, each with the time that is left. One that cannot be
 * started has its status. */
void fanout_start(struct fanout *f, size_t first, const struct fanout_manner *manner,
                  uint64_t deadline_us);
/* Waits as the policy says, checks what came, and gives up the rest (SKEP_DEADLINE_EXCEEDED; their
 * nodes are avoided for a while, as is the expert of an answer that was refused). A call whose
 * nodes have all failed looks for others as long as a sample wants its answer for k_min, and no
 * longer: it ends as its last node's failure.
 * @return false: nothing has been given up or taken yet, but samples cannot get k_min answers (or,
 *         from impatient_us on, have not got them): policy->wants says how many each is to be asked
 *         for elsewhere. Add calls or not, and wait again. */
bool fanout_wait(struct fanout *f, struct fanout_policy *policy,
                 const struct fanout_expect *expect);
/* Before the end of a wait: whether this call has been answered well; whether it still may be. */
bool fanout_is_good(const struct fanout *f, size_t call, bool *open);
void fanout_fini(struct fanout *f); /* NULL and zeroed are allowed */

#endif
