/*
 * What the client's files share. Lock order: call, then expert, then client; none is held while a
 * callback of the user's runs, nor while the directory or the pool is called, except where said.
 */
#ifndef SKEP_CLIENT_CLIENT_INTERNAL_H
#define SKEP_CLIENT_CLIENT_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <skep/client.h>
#include "base/bytes.h"
#include "client/backoff.h"
#include "client/compress.h"
#include "client/latency.h"
#include "client/random.h"
#include "client/recommended.h"
#include "crypto/identity.h"
#include "crypto/swarm_key.h"
#include "dht/directory/beam.h"
#include "dht/swarm/swarm.h"
#include "net/pool.h"

struct skep_client {
    struct identity identity;
    char peer_id[PEER_ID_HEX_BYTES];
    struct swarm_key key;
    bool has_key;
    bool plaintext;
    char *swarm_name; /* owned: mem_free() */
    uint32_t timeout_ms;
    uint32_t max_in_flight;
    uint64_t started_us; /* when it was made */
    enum skep_compression compression, grad_compression;
    _Atomic uint64_t not_compressed;
    atomic_bool told_outside; /* that there are experts outside a grid: logged once */
    struct swarm *swarm;      /* owned: swarm_leave(); NULL without DHT */
    struct pool *pool;        /* owned: pool_free() */

    uint32_t hedge_after_ms;

    pthread_mutex_t lock; /* guards all below */
    uint32_t in_flight;
    struct skep_client_stats stats; /* but for not_compressed */
    struct backoff_list backoff;
    struct latency_estimates latencies;
    struct recommended recommended;
    struct random random;
};

/*
 * Takes over options as the caller's header has them, which begin with their size: what a program
 * built against an earlier one does not have keeps its default.
 * @param out   of `size` bytes, filled by its _init. @param init  the name of that function.
 * @return SKEP_INVALID_ARGUMENT if no _init of this library or an earlier one made them.
 */
SKEP_MUST_CHECK skep_status client_take_options(void *out, size_t size, const void *given,
                                                const char *init, struct skep_error *err);

/* A list of providers that is replaced as a whole. */
struct provider_list {
    struct provider *items; /* owned: mem_free() */
    size_t count;
};

struct skep_remote_expert {
    atomic_uint refs; /* the user's and one for each call under way */
    struct skep_client *client;
    char uid[UID_BYTES];
    bool fixed;           /* from skep_client_expert_at(): never looked up */
    bool any_peer;        /* fixed, and whoever answers will do */
    pthread_mutex_t lock; /* guards what follows, up to `compression` */
    struct provider_list providers;
    /* Names the providers in place of `providers` if it is not NULL. Providers are large, and a
     * search finds many experts that nobody calls. */
    struct prefix_view *view; /* shared */
    size_t named_at;          /* index in the view */
    int64_t found_at_s;       /* when its providers were alive */
    /* What its schema recommends, as enum skep_compression; DEFAULT before `info` has told. */
    atomic_int compression, grad_compression;
};

/* One of them in the words of the public API. */
void provider_publish(const struct provider *provider, struct skep_provider *out);
/* Copies a list; false if memory is short (*out is empty then). */
bool provider_list_copy(struct provider_list *out, const struct provider *items, size_t count);

/* A new expert with one reference. SKEP_RESOURCE_EXHAUSTED if memory is short. */
skep_status remote_expert_new(struct skep_client *client, const char *uid,
                              const struct provider *providers, size_t count,
                              struct skep_remote_expert **out, struct skep_error *err);
/* The same of what a search found.
 * @param found  its providers and view are taken, on success only, and are NULL then. */
skep_status remote_expert_adopt(struct skep_client *client, struct beam_expert *found,
                                struct skep_remote_expert **out, struct skep_error *err);
void remote_expert_ref(struct skep_remote_expert *expert);
void remote_expert_unref(struct skep_remote_expert *expert);
/* Providers whose records have not expired, copied; false if memory is short. */
bool remote_expert_snapshot(struct skep_remote_expert *expert, struct provider_list *out);
/* Replaces what is known. A failed allocation leaves the old list. */
void remote_expert_update(struct skep_remote_expert *expert, const struct provider *providers,
                          size_t count);

/* Sets err as a lookup's status means for one UID. */
skep_status lookup_error(struct skep_error *err, skep_status status, const char *uid,
                         const struct skep_client *client);

/* What to call; used by forward, backward and info. */
struct call_request {
    const char *method;
    bool changes_weights; /* never sent twice, see skep_error.outcome_unknown */
    const uint8_t *request_id;
    const DLTensor *const *tensors; /* inputs, then gradients */
    size_t tensor_count;
    size_t gradient_count; /* of these, the last ones */
    enum skep_compression compression, grad_compression;
    uint32_t timeout_ms;
    uint32_t hedge_after_ms; /* 0: the client's */
    const char *peer_id;     /* hex, who is asked first; NULL or "": anyone */
    /* The caller looks at the answer, and tells client->avoid whether it was good: a node that
     * answers nonsense again and again is not to be forgiven for each answer. */
    bool judged_by_caller;
    /* Where neither the call nor the client says how tensors travel, they go as the answers of the
     * nodes that serve the expert have shown so far (client->recommended). */
    bool by_answers;
    /* Runs with done's argument whenever the call has nobody left to ask and begins to look for
     * others, see call_is_searching(): on any thread, with no lock held. NULL: nothing runs. */
    void (*searching)(void *arg);
};
skep_status call_start(struct skep_remote_expert *expert, const struct call_request *request,
                       skep_call_fn done, void *arg, struct skep_call **out,
                       struct skep_error *err);
/* Cancels a call that has taken too long, and avoids the node that holds it up for a while. */
void call_give_up(struct skep_call *call);
/* Whether a call asks nobody now and only looks for others that serve its expert. @param why what
 * the last one has said; untouched if nobody has been asked or it is not so. */
bool call_is_searching(struct skep_call *call, struct skep_error *why);
/* The `result` field of the reply. View of the call, after its end. */
const struct bytes *call_result_bytes(const struct skep_call *call);

#endif
