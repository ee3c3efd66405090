/*
 * A call to an expert: what call.c (making it, waiting for it), call_choose.c (who is asked) and
 * call_engine.c (asking) share.
 */
#ifndef SKEP_CLIENT_CALL_INTERNAL_H
#define SKEP_CLIENT_CALL_INTERNAL_H

#include "client/client_internal.h"

enum {
    CALL_ATTEMPTS =
        3, /* nodes that are asked at once: each further one because those before hang */
    CALL_REFUSALS = 3, /* so many nodes that find fault with a request are right about it */
};

/* What has become of a candidate. */
enum candidate_state {
    CANDIDATE_NEW,
    CANDIDATE_ASKED,
    CANDIDATE_GIVEN_UP, /* it hung and had to make room; asked again when nobody else is left */
};

/* Whom call_pick() may choose. */
enum pick_from {
    PICK_GOOD, /* new ones that have not failed lately */
    PICK_NEW,  /* new ones; those that have failed lately come last */
    PICK_AGAIN /* those that were given up */
};

/* The call at one node. All but `call` is guarded by the call's lock. */
struct call_attempt {
    struct skep_call *call;
    bool open;                 /* in the pool */
    bool hedge;                /* beside another one */
    bool late;                 /* another node may be asked as well, or instead */
    bool unreachable;          /* because its node is silent */
    bool again;                /* its candidate was given up before */
    bool given_up;             /* it is to end, to make room for another one */
    unsigned serial;           /* of its use, so that a late handle is not stored */
    struct pool_call *in_pool; /* valid while set */
    size_t candidate;
    uint64_t sent_us;
};

struct skep_call {
    atomic_uint refs; /* the user's, the engine's until the call has ended, and of those at work */
    struct skep_client *client;
    struct skep_remote_expert *expert;      /* shared */
    bool changes_weights, judged_by_caller; /* as call_request */
    uint32_t timeout_ms;                    /* for all of it, */
    uint64_t deadline_us;                   /* until then */
    uint64_t failures_before;               /* client->avoid.failures when it began */
    uint64_t hedge_after_us;                /* 0: never */
    bool has_preferred;
    uint8_t preferred[PEER_ID_BYTES]; /* asked first */
    skep_call_fn done;
    void (*searching)(void *arg); /* as call_request; or NULL */
    void *arg;
    struct call_headers *headers; /* owned: mem_free(); method, uid, request id and descriptors */
    size_t tensor_count;
    DLTensor *tensors; /* owned: mem_free(); their shapes are behind them in the same memory */
    const DLTensor **tensor_pointers; /* the same memory */
    struct compressed compressed;     /* of them */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ended_cond;
    struct provider_list candidates; /* owned */
    uint8_t *states;                 /* owned: enum candidate_state, one for each candidate */
    struct call_attempt attempts[CALL_ATTEMPTS];
    unsigned lookups;           /* for want of anyone to ask */
    unsigned fruitless_lookups; /* the last of them, that brought no new candidate */
    bool hedge_looked_up;
    bool looked_anew;    /* because all that were known had failed lately */
    bool is_lookup_anew; /* the look-up under way is that one: the call goes on without it */
    bool looking_up;
    bool no_more;                 /* nobody else is to be asked: last_error is the last word */
    struct skep_error last_error; /* of attempts */
    /* What the first node said that found fault with the request, and who all did. */
    struct skep_error refusal;
    uint8_t refused_by[CALL_REFUSALS][PEER_ID_BYTES];
    size_t refusals; /* no more once it is settled */
    bool cancelled;
    bool settled; /* error and outputs are what they will be */
    bool finishing;
    bool ended;
    struct skep_error error;
    DLManagedTensor *outputs[MESSAGE_MAX_TENSORS]; /* owned until taken */
    size_t output_count;
    enum tensor_encoding encoding; /* in which the first of them came */
    struct bytes result;           /* owned */
    char peer_id[PEER_ID_HEX_BYTES];
};

void call_unref(struct skep_call *call);
/* Adds providers that were not candidates before: another peer, or the same at another endpoint.
 * With the lock held. False if memory is short. */
bool call_add_candidates(struct skep_call *call, const struct provider *items, size_t count);
/* Whether the expert can be looked up. */
bool call_has_directory(const struct skep_call *call);
/* More claim to serve it than an answer of the directory has room for. With the lock held. */
bool call_has_overflow(const struct skep_call *call);
uint64_t call_latency_key(const struct skep_call *call, const uint8_t *peer_id);
/* Chooses a candidate; false if there is none. @param avoided set to whether it failed lately. With
 * the lock held; takes the client's, the pool's and the directory's in turn. */
bool call_pick(struct skep_call *call, enum pick_from from, size_t *out, bool *backed_off);
/* Takes the next step, or none if there is none to take. Without the lock; the caller has a
 * reference. */
void call_advance(struct skep_call *call);
/* With the lock held: how many attempts are in the pool. */
size_t call_open_attempts(const struct skep_call *call);
/* With the lock held: asks the pool to end what is open. */
void call_stop_attempts(struct skep_call *call);

#endif
