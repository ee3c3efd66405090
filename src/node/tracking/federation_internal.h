/*
 * What federation.c (asking around, events, life), federation_pending.c (requests that wait,
 * trackers that do not answer) and federation_attempt.c (calls to other trackers) share.
 *
 * A pending request waits here; an attempt is one call to another tracker on its behalf. A
 * request has one attempt at most; both go by the request's id, as either may end first. Whose
 * attempt it was does not matter to what it brings: see federation.h. So pending requests need no
 * order of their own.
 */
#ifndef SKEP_NODE_TRACKING_FEDERATION_INTERNAL_H
#define SKEP_NODE_TRACKING_FEDERATION_INTERNAL_H

#include <pthread.h>

#include "base/hash_table.h"
#include "base/thread.h"
#include "dht/directory/directory_list.h"
#include "net/pool.h"
#include "node/tracking/federation.h"

enum {
    FEDERATION_MAX_PENDING = 16384, /* more are served from here alone */
    FEDERATION_MAX_BACKED_OFF = 256,
    FEDERATION_MAX_ATTEMPTS = 256, /* under way */
    FEDERATION_CALL_MS = 2000,     /* most time for another tracker */
    FEDERATION_AGAIN_MS = 500,     /* pause before asking around again; it grows */
};

struct pending_request {
    struct pending_request *next, **link; /* in federation.pending */
    struct hash_node by_id;               /* in federation.by_id */
    uint64_t id;
    uint64_t look_us; /* when to ask around next */
    unsigned tries;
    bool busy; /* an attempt is under way */
    char key[RECORD_RESOURCE_KEY_BYTES];
};

struct backed_off {
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t until_us;
    unsigned times;
};

struct federation {
    struct federation_config config;
    struct thread thread;
    struct pool *pool; /* owned; made by the thread when needed, freed by federation_close() */
    struct tracker_server *tracker; /* written once, under the lock, before anything is asked */

    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t changed;
    bool closing;
    struct pending_request *pending;
    struct hash_table by_id; /* the same, by id */
    uint64_t sleep_us;       /* until when the thread sleeps; 0: it does not */
    bool started;            /* the thread was, or could not be */
    unsigned attempts;
    unsigned calling; /* threads inside pool_call(), which pool_free() must wait for */
    struct backed_off backed_off[FEDERATION_MAX_BACKED_OFF];
    size_t backed_off_count;
    struct federation_stats stats;
};

/* ---- federation_pending.c; all with the lock held ---- */

struct pending_request *pending_find(struct federation *f, uint64_t id);
/* NULL if there are too many, or memory is short. @param len  below RECORD_RESOURCE_KEY_BYTES. */
struct pending_request *pending_add(struct federation *f, uint64_t id, const char *key, size_t len,
                                    uint64_t look_us);
void pending_drop(struct federation *f, struct pending_request *w);
/* The attempt for a request is over; it is looked at again at this time. */
void pending_release(struct federation *f, uint64_t id, uint64_t look_us);
/* When to ask around for it again, having found nothing. */
uint64_t pending_again_us(struct pending_request *w);
/* The thread looks at this time at the latest. */
void federation_wake_by(struct federation *f, uint64_t at_us);

/* A tracker did not answer: it is left alone for a while, which grows. */
void tracker_back_off(struct federation *f, const uint8_t *peer_id);
void tracker_backoff_end(struct federation *f, const uint8_t *peer_id);
bool tracker_is_backed_off(struct federation *f, const uint8_t *peer_id);

/* ---- federation_attempt.c; without the lock ---- */

/* Asks the tracker of a record for a resource, for the request of this id, which is marked busy. */
void attempt_start(struct federation *f, uint64_t id, const struct record *record);

#endif
