/*
 * Who gets which resource. A pure data structure: no sockets, no clock, no threads.
 *
 * Under each key there are free resources, oldest first, and waiting requests, the highest priority
 * first and within one the oldest; never both at once. Resources and requests belong to owners
 * (connections): an owner that goes takes its own along, so nothing is handed to one that has left,
 * and nothing of one that has left is handed out.
 *
 * A key that has neither resources nor requests is remembered with its counters as long as a server
 * is registered under it (tools show keys whose servers are all busy), and for a while without one
 * (SCHEDULER_MAX_IDLE_KEYS, the longest idle goes first).
 *
 * Every operation is O(log n) in the requests of its key, O(1) in all else.
 */
#ifndef SKEP_TRACKER_SCHEDULER_H
#define SKEP_TRACKER_SCHEDULER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/list.h"
#include "tracker/protocol.h"

struct scheduler;
struct scheduler_key;

enum {
    SCHEDULER_MAX_IDLE_KEYS = 1024,
    SCHEDULER_MAX_IDLE_BYTES = 1 << 20,
    SCHEDULER_KEY_WRITTEN = 80,  /* {"free": n, "pending": n} and what is around it, at most */
    SCHEDULER_WAIT_BUCKETS = 14, /* up to 1 ms, 2, 4 ... 4096 ms, and above */
};

/* What is put and handed out. Views: of the request when given, of the scheduler when got. */
struct tracker_resource {
    struct tracker_text address;
    uint16_t port;
    struct tracker_text match_key;
};

/* What owners have together that one address stands behind. Zeroed memory has nothing. */
struct scheduler_account {
    size_t key_bytes;
};

/* Embedded in a connection, or whoever else puts and requests. Zeroed memory has nothing. */
struct scheduler_owner {
    struct linked_list items; /* its own: free or taken */
    struct linked_list lent;  /* its own, given to others: see `assign` */
    struct linked_list given; /* those of others, given to it */
    struct linked_list waiters;
    size_t item_count, waiter_count;
    struct scheduler_key *registered;  /* NULL: under none */
    struct scheduler_account *account; /* borrowed until it is gone; NULL: none */
    size_t key_bytes;
};

/*
 * Keys are listed (scheduler_each_key()) to whoever asks: their texts are bounded as they are
 * written there, with SCHEDULER_KEY_WRITTEN bytes for the numbers of each. An owner pays for the
 * key of each resource, each waiting request and its registration; so does its account.
 */
struct scheduler_limits {             /* 0: the default */
    size_t max_items_per_owner;       /* resources; 4,096 */
    size_t max_waiters_per_owner;     /* requests; 4,096 */
    size_t max_bytes;                 /* of everything the scheduler holds; 256 MiB */
    size_t max_key_bytes;             /* of all keys together, each once; 64 MiB */
    size_t max_key_bytes_per_owner;   /* 4 MiB */
    size_t max_key_bytes_per_account; /* 16 MiB */
};

enum scheduler_end {
    SCHEDULER_SERVED,    /* by a resource put here */
    SCHEDULER_ANSWERED,  /* by scheduler_answer() */
    SCHEDULER_WITHDRAWN, /* its owner has gone */
};

/* A waiting request, for those who may answer it from elsewhere. Views, for the call. */
struct scheduler_request {
    uint64_t id; /* never used twice */
    struct tracker_text key;
    struct tracker_text user;
    struct tracker_priority priority;
};

/* They run inside the scheduler's functions and must not call it, except as noted. */
struct scheduler_events {
    /*
     * The answer to a request of `to`. False: it cannot be told (memory is short): the request is
     * dropped and the resource stays.
     * @param mark  where the answer ends in all that is sent to `to`, for scheduler_arrived():
     * until then the resource comes back if `to` goes. 0, as it is: it has arrived.
     */
    bool (*assign)(void *arg, struct scheduler_owner *to, const struct tracker_resource *resource,
                   uint64_t *mark);
    /* A request found nothing free and waits now. May be NULL. */
    void (*waiting)(void *arg, const struct scheduler_request *request);
    /* A request that `waiting` told of waits no more. May be NULL. */
    void (*ended)(void *arg, uint64_t id, struct tracker_text key, enum scheduler_end how);
};

SKEP_MUST_CHECK skep_status scheduler_new(const struct scheduler_limits *limits,
                                          const struct scheduler_events *events, void *arg,
                                          struct scheduler **out, struct skep_error *err);
/* All owners must be gone (scheduler_owner_gone()). NULL is allowed. */
void scheduler_free(struct scheduler *s);

/*
 * Offers a resource of `owner`; everything is copied. Under a match key that the owner has offered
 * and that is still there, it replaces that one: it counts once.
 * @return SKEP_RESOURCE_EXHAUSTED if the owner, its account or the scheduler holds too much, or
 * memory is short.
 */
SKEP_MUST_CHECK skep_status scheduler_put(struct scheduler *s, struct scheduler_owner *owner,
                                          struct tracker_text key,
                                          const struct tracker_resource *resource, uint64_t now_us,
                                          struct skep_error *err);
/* Asks for a resource: `assign` runs now or later, once. Errors as scheduler_put(). */
SKEP_MUST_CHECK skep_status scheduler_ask(struct scheduler *s, struct scheduler_owner *owner,
                                          struct tracker_text key, struct tracker_text user,
                                          struct tracker_priority priority, uint64_t now_us,
                                          struct skep_error *err);
/* Tells that the owner is a server of this key, of this one only from now on; data NULL: of none.
 * Errors as scheduler_put(). */
SKEP_MUST_CHECK skep_status scheduler_register(struct scheduler *s, struct scheduler_owner *owner,
                                               struct tracker_text key, struct skep_error *err);
/* Answers given to this owner have arrived up to this mark (see `assign`). */
void scheduler_arrived(struct scheduler *s, struct scheduler_owner *owner, uint64_t mark);
/*
 * Everything of this owner goes: resources, requests, registration. Resources that were taken can
 * no longer be returned. What it was given and has not got is free again, before all others; but
 * not once its own owner has offered something since, or has been told which match keys are still
 * free (scheduler_each_match_key()): it knows then that this one is not, and offers another.
 */
void scheduler_owner_gone(struct scheduler *s, struct scheduler_owner *owner, uint64_t now_us);

/* ---- other trackers ---- */

/*
 * Answers with a resource from elsewhere the request of this key that a resource put here would go
 * to. False if none waits any more (served, answered, withdrawn): the resource is not used then.
 */
bool scheduler_answer(struct scheduler *s, struct tracker_text key,
                      const struct tracker_resource *resource, uint64_t now_us);

/*
 * Takes the oldest free resource for somebody who is not an owner here. Afterwards say exactly once
 * what came of it: scheduler_confirm() (it was handed on) or scheduler_return() (it was not needed:
 * it is free again, unless its owner has gone or has put it anew meanwhile).
 * @param resource  view, until the next call of any of these functions.
 * @return an id, never 0; 0 if nothing is free.
 */
uint64_t scheduler_take(struct scheduler *s, struct tracker_text key,
                        struct tracker_resource *resource);
void scheduler_confirm(struct scheduler *s, uint64_t taken);
bool scheduler_return(struct scheduler *s, uint64_t taken,
                      uint64_t now_us); /* whether it is free */

/* ---- looking ---- */

struct scheduler_key_counters {
    struct tracker_text key; /* view */
    size_t free, pending;
    size_t servers;                    /* registered, whether free or busy */
    uint64_t puts, requests;           /* so far */
    uint64_t served, answered, taken;  /* requests answered from here, from elsewhere; for others */
    uint64_t wait_us_sum, wait_us_max; /* of requests that were answered */
    uint64_t waits[SCHEDULER_WAIT_BUCKETS]; /* the same, counted by how long */
};
struct scheduler_totals {
    size_t keys, free, pending, bytes;
    size_t key_bytes; /* of all keys as they are written */
    uint64_t puts, requests, served, answered, taken, withdrawn, refused;
    uint64_t undelivered; /* of those served: the resource is free again, as it did not arrive */
    uint64_t wait_us_sum, wait_us_max, waits[SCHEDULER_WAIT_BUCKETS];
};
void scheduler_totals(const struct scheduler *s, struct scheduler_totals *out);
/* False (and *out untouched) if the key is not known. */
bool scheduler_counters(const struct scheduler *s, struct tracker_text key,
                        struct scheduler_key_counters *out);
/* Every key that was put or requested, in order of its first use; stops when fn returns false. */
void scheduler_each_key(const struct scheduler *s,
                        bool (*fn)(void *arg, const struct scheduler_key_counters *counters),
                        void *arg);
/* The free resources of a key, oldest first; stops when fn returns false. */
void scheduler_each_free(const struct scheduler *s, struct tracker_text key,
                         bool (*fn)(void *arg, const struct tracker_resource *resource), void *arg);
/* The match keys of an owner's free resources, in order of their PUT. */
void scheduler_each_match_key(struct scheduler *s, struct scheduler_owner *owner,
                              bool (*fn)(void *arg, struct tracker_text match_key), void *arg);
/* The keys whose numbers have changed since the last call, each once; a key that is forgotten is
 * told of with nothing free. fn must not call the scheduler. */
void scheduler_changes(struct scheduler *s,
                       void (*fn)(void *arg, const struct scheduler_key_counters *counters),
                       void *arg);

#endif
