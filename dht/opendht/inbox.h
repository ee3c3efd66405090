/*
 * Where OpenDHT's thread leaves what it has for the directory. Its callbacks only copy bytes, queue
 * them and signal. Another thread takes everything at once and does the work: a caller that waits
 * for a lookup (a worker), which saves a change of threads on the way to its answer, or else the
 * directory's own thread.
 *
 * A request is one get or put handed to OpenDHT. OpenDHT may answer long after the directory lost
 * interest or was freed, so requests and the inbox are counted: a request lives until its "done"
 * has come.
 */
#ifndef SKEP_DHT_OPENDHT_INBOX_H
#define SKEP_DHT_OPENDHT_INBOX_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/record/record.h"

enum {
    INBOX_MAX_BYTES = 32 << 20,    /* queued values of all gets together */
    INBOX_MAX_ASK_VALUES = 2048,   /* values taken from one get, over its whole life */
    INBOX_MAX_ASK_BYTES = 2 << 20, /* the same, in bytes, of values of up to RECORD_MAX_BYTES */
    INBOX_MAX_ASK_LONG_BYTES = 8 << 20, /* and of longer ones, which cannot crowd out the others */
};

struct dht_request;

struct inbox_event {
    struct inbox_event *next;
    struct dht_request *request; /* shared: the event holds one count */
    bool done;                   /* the end of the get or put; otherwise a value */
    bool ok;                     /* with done */
    uint64_t value_id;           /* of a value; what who sent it says */
    size_t len;                  /* of a value */
    uint8_t data[];
};

/* A caller that waits, on its own stack. */
struct inbox_worker {
    struct inbox_worker *next, **link;
    pthread_cond_t called;
    bool finished; /* what it waits for is there */
};

struct inbox {
    pthread_mutex_t lock;   /* guards all below but refs. A leaf: nothing is locked under it. */
    pthread_cond_t arrived; /* for the directory's thread */
    struct inbox_worker *helpers;
    struct inbox_event *first, **last;
    size_t bytes;
    bool woken;       /* there is something to take */
    bool owner_woken; /* something only the directory's thread does */
    bool closed;
    uint64_t dropped; /* values over a limit */
    atomic_uint refs;
};

struct dht_request {
    struct inbox *inbox; /* shared */
    atomic_uint refs;
    size_t values, bytes, long_bytes; /* taken so far; guarded by the inbox's lock */
    bool takes_long;                  /* prefix records are wanted. Set before OpenDHT has it */
    atomic_bool full;                 /* something was left out */
    struct inbox_event *done_event;   /* made beforehand, so that "done" is never lost */
    /* The rest belongs to the directory, under its lock; OpenDHT's thread never looks. */
    void *owner; /* the query or batch that waits for it; NULL: nobody any more */
    size_t index;
    uint64_t started_us;
    struct dht_request *older, *newer;
};

SKEP_MUST_CHECK skep_status inbox_new(struct inbox **out, struct skep_error *err);
/* From now on values are dropped and "done" frees its request at once. Drops what is queued. */
void inbox_close(struct inbox *inbox);
void inbox_unref(struct inbox *inbox);

/* Two counts: the caller's and OpenDHT's, which the "done" event carries. NULL: memory is short. */
struct dht_request *dht_request_new(struct inbox *inbox);
void dht_request_unref(struct dht_request *request);

/* runner_value_fn, runner_reply_fn, runner_done_fn and runner_put_fn; arg is the request. Values
 * are queued without a word; the end of their reply wakes the directory. Thread: OpenDHT's. */
bool inbox_on_value(void *arg, uint64_t value_id, const uint8_t *data, size_t len);
bool inbox_on_reply(void *arg);
void inbox_on_done(void *arg, bool ok);

/* Ends the current or next inbox_wait(). Thread: any. */
void inbox_wake(struct inbox *inbox);
/* Waits, as the directory's thread, for events, a wake or the deadline. */
void inbox_wait(struct inbox *inbox, uint64_t deadline_us);
/* Takes all that is there, possibly nothing; one thread at a time (directory.worker).
 * @return owned list: inbox_event_free() each. */
struct inbox_event *inbox_take(struct inbox *inbox);

void inbox_help_begin(struct inbox *inbox, struct inbox_worker *helper);
enum inbox_call { INBOX_WORK, INBOX_FINISHED, INBOX_TIMED_OUT };
/* Waits until there is work to do, the helper is told that it has finished, or the deadline. */
enum inbox_call inbox_help_wait(struct inbox *inbox, struct inbox_worker *helper,
                                uint64_t deadline_us);
void inbox_help_finish(struct inbox *inbox, struct inbox_worker *helper);
/* Hands on what arrived meanwhile. */
void inbox_help_end(struct inbox *inbox, struct inbox_worker *helper);

void inbox_event_free(struct inbox_event *event);
uint64_t inbox_dropped(struct inbox *inbox);

#endif
