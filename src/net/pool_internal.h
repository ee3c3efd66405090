/*
 * What the parts of the pool share: pool.c (life cycle), pool_call.c (calls and their deadlines),
 * pool_peer.c (peers: whom calls wait for), pool_dial.c (resolving, connecting), pool_link.c
 * (one connection), pool_decode.c (replies). All of it is used on the pool's loop only, but for
 * what is marked.
 *
 *   call --waits for--> peer --has at most one--> link (connection) --carries--> calls
 *
 * A link that takes no new calls (GOAWAY) is parted from its peer and lives until its calls end.
 */
#ifndef SKEP_NET_POOL_INTERNAL_H
#define SKEP_NET_POOL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "base/list.h"
#include "net/conn.h"
#include "net/deadline_heap.h"
#include "net/loop_lookup.h"
#include "net/offload.h"
#include "net/pool.h"

struct peer;
struct link;
struct decoding; /* pool_decode.c */

enum call_state {
    CALL_NEW,      /* posted, not seen by the loop */
    CALL_WAITING,  /* in its peer's queue */
    CALL_OPEN,     /* a stream of its link */
    CALL_DECODING, /* its reply has come in full; another thread decodes it */
    CALL_ENDED,
};

struct pool_tensor {
    DLTensor tensor;
    int64_t shape[SKEP_TENSOR_MAX_DIMS];
};

/* What is sent of a tensor: its encoded form or, to peers that do not take that, itself. */
struct pool_choice {
    struct tensor_descriptor encoded, plain;
    struct pool_tensor plain_tensor;
};

enum cancel_order { CANCEL_NONE, CANCEL_UNSENT, CANCEL_ANY };

enum { POOL_MAX_RETRIES = 3 /* of a call, none of which has left */ };

struct pool_call {
    struct loop_job start;
    struct loop_job cancel;
    _Atomic int cancel_order; /* enum cancel_order: what the posted cancel is to do */
    _Atomic unsigned refs;    /* the call until done has returned, and a posted cancel */
    struct pool *pool;
    pool_done_fn done;
    void *arg;
    struct deadline_entry deadline;
    struct deadline_entry alarm; /* the earlier of the two below, if slow is set */
    uint64_t late_us, connect_by_us;
    bool known_silent_at_once;
    void (*slow)(void *arg, enum pool_delay delay);
    enum call_state state;
    unsigned retries;
    struct peer *peer;             /* while CALL_WAITING */
    struct link *link;             /* while CALL_OPEN */
    struct session_stream *stream; /* the same */
    struct decoding *decoding;     /* while CALL_DECODING */
    struct list_link in_queue;     /* while CALL_WAITING: the peer's; while CALL_OPEN: the link's */
    struct pool_target target;
    struct pool_tensor *tensors; /* owned */
    struct pool_choice *choices; /* owned; one for each tensor; NULL: none is encoded */
    struct call_headers headers; /* last: only as many descriptors as there are get touched */
};

/* One connection, from the first connect() to its end. */
struct link {
    struct conn conn;
    struct pool *pool;
    struct peer *peer;                  /* NULL: parted from it */
    struct list_link in_links, in_idle; /* the pool's; in_idle if is_idle */
    struct session_config config;       /* the session borrows it */
    uint8_t expected_id[PEER_ID_BYTES];
    char name[ENDPOINT_TEXT_BYTES + 64]; /* the endpoint, and the address if that differs */
    bool established;
    bool retired; /* takes no new calls */
    bool is_idle;
    bool counted; /* in pool->link_count */
    unsigned open_calls;
    struct linked_list calls; /* the same */
    /* Whether the peer is alive, while calls are open. */
    uint64_t watched_since_us; /* since there are any */
    uint64_t quiet_us;         /* it gets a PING after so long without a byte */
    uint64_t asked_us;         /* when it got the PING that nothing has followed yet; 0: none */
    uint64_t due_us;           /* of the next look */
    uint64_t acknowledged;     /* conn_acknowledged() at the last look */
    bool backlogged;           /* and whether more was waiting then */
    bool ping_extended;        /* this PING got more time, because this process was held up */
    bool silent;               /* the PING has been unanswered for too long */
};

enum { POOL_MAX_ADDRESSES = 8 /* of one endpoint */ };

struct dial {
    bool active;
    struct pool_target target;
    size_t next_endpoint;
    struct endpoint endpoint; /* being tried */
    struct address addresses[POOL_MAX_ADDRESSES];
    size_t address_count;
    size_t next_address;
    struct loop_lookup *lookup; /* of the endpoint's name, under way; or NULL */
    struct deadline_entry lookup_due;
    struct skep_error failure; /* of all attempts so far, in one sentence */
};

struct peer {
    struct pool *pool;
    struct peer *bucket_next; /* guarded by pool->lock */
    uint64_t hash;
    bool has_id, exact; /* as the target */
    uint8_t id[PEER_ID_BYTES];
    struct endpoint endpoint; /* the key, or part of it, without an id or if exact */
    struct link *link;        /* being opened or open; NULL: none */
    struct dial dial;
    struct linked_list queue; /* of waiting calls, in order */
    unsigned waiting;
    unsigned busy; /* functions that still use it are on the stack: it must not be freed */
    _Atomic uint64_t rtt_us; /* read by any thread, with pool->lock held */
};

struct pool {
    struct pool_config config;
    char swarm[128]; /* backs config.swarm */
    struct loop *loop;
    struct conn_group group;
    uv_timer_t timer; /* of what comes first in the heaps */
    bool has_timer;
    uint64_t armed_us;
    struct deadline_heap deadlines, alarms; /* of calls */
    struct deadline_heap lookups;           /* when a dial waits for a name no longer */
    struct linked_list links;               /* all */
    unsigned link_count;
    struct linked_list idle;     /* of these; the longest idle first */
    struct linked_list decoding; /* replies of calls that are CALL_DECODING */
    struct offload *offload;     /* NULL until the first large reply */
    atomic_bool stopping;        /* read by any thread */
    _Atomic unsigned open_calls; /* any thread */
    size_t bucket_mask;
    pthread_mutex_t lock; /* guards buckets and bucket_next for threads other than the loop's,
                             which alone writes them */
    struct peer **buckets;
};

/* pool_call.c */
/* Ends a call: done runs. The tensors pass to it. */
void pool_call_finish(struct pool_call *call, const struct reply_headers *reply,
                      DLManagedTensor **tensors, bool sent, const struct skep_error *err);
/* Tells the caller that the call takes long, if it wants to know. */
void pool_call_tell(struct pool_call *call, enum pool_delay delay);
/* Looks at what has passed in the pool's heaps when the nearest of all comes. */
void pool_arm_deadlines(struct pool *pool);

/* pool_decode.c */
/* Ends a call that is off its link with the peer's reply: decodes it and finishes the call, at once
 * or, if the reply is large, later. The tensors pass to it, the headers are borrowed. */
void pool_decode_reply(struct pool_call *call, const struct reply_headers *reply,
                       DLManagedTensor **tensors, bool sent);
/* Ends a call that is CALL_DECODING without its reply. */
void pool_decode_abandon(struct pool_call *call, const struct skep_error *why);
void pool_decode_abandon_all(struct pool *pool, const struct skep_error *why);

/* pool_peer.c */
/* The peer of a target, made if need be. NULL: memory is short. */
struct peer *pool_peer_get(struct pool *pool, const struct pool_target *target);
/* Frees it if nothing needs it any more, and no function further up the stack still uses it. */
void pool_peer_tidy(struct peer *peer);
/* Whether a call that comes now could be sent: there is a connection, and it is not silent. */
bool pool_peer_is_connected(const struct peer *peer);
/* Puts a call on the peer's connection, or in its queue, connecting if there is none. The peer may
 * be gone after. */
void pool_peer_submit(struct peer *peer, struct pool_call *call);
void pool_peer_forget(struct peer *peer, struct pool_call *call); /* takes it out of the queue */
/* Something has changed: puts waiting calls on the connection, connects if there is none and calls
 * wait, frees the peer if nothing needs it. The peer may be gone after. */
void pool_peer_pump(struct peer *peer);
/* Ends all waiting calls. The peer may be gone after. */
void pool_peer_fail_waiting(struct peer *peer, const struct skep_error *why);
/* Calls fn for each peer; fn may free it. */
void pool_for_each_peer(struct pool *pool, void (*fn)(struct peer *peer));

/* pool_dial.c */
/* Begins to connect. The peer may be gone after, if that fails at once and no call waits. */
void pool_dial_start(struct peer *peer, const struct pool_target *target);
/* An attempt has failed, for a reason that names it: goes on with the next address. The same. */
void pool_dial_failed(struct peer *peer, const struct skep_error *why);
void pool_dial_succeeded(struct peer *peer);
/* The time for its name is up: goes on without. The same. */
void pool_dial_name_late(struct peer *peer);
void pool_dial_abandon(struct peer *peer);

/* pool_link.c */
/* Starts connecting to one address. @param out set on success. */
skep_status pool_link_open(struct peer *peer, const struct pool_target *target,
                           const struct endpoint *endpoint, const struct address *address,
                           struct link **out, struct skep_error *err);
/* Opens a stream for the call, which is CALL_OPEN then. Errors as session_call(). */
skep_status pool_link_call(struct link *link, struct pool_call *call, struct skep_error *err);
/* The peer has left a PING unanswered and has sent nothing since. */
bool pool_link_is_silent(const struct link *link);
void pool_link_cancel(struct link *link, struct pool_call *call, const struct skep_error *why);
/* Not inside a session's event. */
void pool_link_close(struct link *link, const struct skep_error *why);
/* Nothing more goes over it; it ends when its calls have, at the end of the turn at the earliest.
 */
void pool_link_retire(struct link *link);
/* Makes room for one more link by closing the longest idle one. False if none is idle. */
bool pool_make_room(struct pool *pool);

#endif
