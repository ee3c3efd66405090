/*
 * Inside the directory, shared by its files.
 *
 *   directory.c      life cycle, the thread, timers, clock
 *   directory_get.c  requests: what a caller asked
 *   directory_query.c  queries: what is asked of the DHT
 *   directory_check.c  values that arrived: which to verify, in which order, what they tell
 *   directory_put.c  batches of records to declare
 *   directory_collect.c  lookups that want every record of a key; successors of prefixes
 *
 * What arrives is worked off by one thread at a time, the worker: whoever holds directory.worker,
 * either the directory's thread or a caller who waits for a lookup (see inbox.h). Only the worker
 * frees queries; callbacks run on the directory's thread alone, with no lock held.
 *
 * Lock order: directory.worker, directory.lock, live_views.lock, a watch's lock, inbox.lock;
 * OpenDHT's own locks come after all.
 */
#ifndef SKEP_DHT_DIRECTORY_DIRECTORY_INTERNAL_H
#define SKEP_DHT_DIRECTORY_DIRECTORY_INTERNAL_H

#include <pthread.h>
#include "base/hash_table.h"
#include "base/thread.h"
#include "dht/directory/directory.h"
#include "dht/directory/candidate_overflow.h"
#include "dht/directory/directory_collect.h"
#include "dht/opendht/inbox.h"
#include "dht/directory/live_view.h"
#include "dht/directory/lookup_cache.h"
#include "dht/directory/own_sequences.h"

enum {
    /* Pacing. A get or put holds a slot until it has an answer, or this long: with dead nodes near
     * a key OpenDHT's "done" comes seconds late, and waiting for it would starve the others. */
    SLOT_HOLD_US = 300 * 1000,
    /* Gets and puts without "done" yet, as a multiple of max_in_flight: what bounds OpenDHT's own
     * queue when nothing comes back at all. */
    OUTSTANDING_FACTOR = 16,
    ASK_LOST_US = 30 * 1000 * 1000, /* "done" will not come any more: stop counting it */

    RETRY_PAUSE_US = 80 * 1000, /* before an empty answer is asked once more; plus up to as much */
    ATTEMPT_US = 3 * 1000 * 1000,       /* first attempt without "done": ask again all the same */
    SHORT_ATTEMPT_US = 1000 * 1000,     /* the same of a short get: then a plain one */
    LAST_ATTEMPT_US = 15 * 1000 * 1000, /* callers without a deadline get their answer by then */
    /* How long no short gets are tried where one brought nothing and a plain one did. */
    NO_SHORT_US = 600 * 1000 * 1000,
    LINGER_US = 5 * 1000 * 1000, /* after the answer, late records still enter the cache */
    /* A lookup that wants all providers of an expert gives the others as long as the first took:
     * between one round trip and a busy machine, these bound it. */
    GRACE_MIN_US = 20 * 1000,
    GRACE_MAX_US = 250 * 1000,
    /* Then they count as all for so long, as a view of a prefix does: who comes is seen after. */
    WHOLE_FRESH_US = 10 * 1000 * 1000,
    /* And as long as all that has come has failed before, of more than an answer has room for. */
    OVERFLOW_WAIT_US = 3 * 1000 * 1000,
    /* A lookup that wants all records of a key ends so long after the first one. Whoever is alive
     * has spoken within milliseconds; the margin is for busy machines. */
    SETTLE_US = 250 * 1000,
    /* An answer takes about a millisecond; one that takes this long makes us look for peers. */
    PEER_CHECK_FIRST_US = 40 * 1000,
    PEER_CHECK_US = 250 * 1000,

    PUT_US = 6 * 1000 * 1000, /* a put's own time limit */
    /* A put that is not done: dead nodes hold it up, see runner_push(). First after so long, then
     * each time after twice as long again, which is 100, 300 and 700 ms after the start: later
     * than live nodes answer, and before OpenDHT's own second is over. */
    PUSH_US = 100 * 1000,
    MAX_PUSHES = 3,
    PUSH_KEYS = 256, /* at once, see directory.pushes */

    TIMER_GRAIN_US = 4096, /* timers are looked at together, no more often than this */

    /* Records refused for their dates: so many are remembered, for so long. */
    MISDATED_KEPT = 64,
    MISDATED_US = 60 * 1000 * 1000,

    MAX_QUERIES = 1 << 17,
    EXPECTED_QUERIES = 1024,
    /* Signatures checked for one lookup: a thousand forgeries are gone through (about 60 us each)
     * without hiding the genuine record; a flood is not. */
    MAX_VERIFICATIONS = 1536,
};

struct request;
struct query;

/* One UID of one request, waiting for a query. */
struct waiter {
    struct request *request;
    struct query *query; /* NULL once it has its result */
    bool wants_all;      /* DIRECTORY_ALL */
    struct waiter *next, **link;
};

/* What a caller asked for. Owned by the directory until its callback has run; a waiting caller
 * owns it itself. */
struct request {
    struct request *next, **link;       /* in directory.requests or .completed */
    struct lookup_result *results;      /* NULL for own records and collections */
    struct collect_result *collections; /* instead */
    size_t count, remaining;
    uint64_t deadline_us;
    directory_found_fn found;
    directory_own_fn found_own; /* instead, for own records */
    uint64_t own_sequence;
    void *arg;
    bool finished;
    struct inbox_worker *helper; /* of the caller who waits; NULL: nobody does */
    struct waiter waiters[];
};

enum query_state {
    QUERY_WAITING,   /* for a slot */
    QUERY_ASKED,     /* OpenDHT has it */
    QUERY_ENDED,     /* came back without a record, to be concluded; in directory.ended */
    QUERY_PAUSED,    /* came back empty; asked once more after again_us */
    QUERY_LINGERING, /* answered; late records still go to the cache */
};

/* One key to ask of the DHT, for any number of waiters. */
struct query {
    struct query *next, **link; /* in directory.queries */
    struct hash_node by_key;    /* in directory.table, while it can be joined */
    struct query *fifo; /* in directory.waiting while QUERY_WAITING, .ended while QUERY_ENDED */
    struct waiter *waiters;
    uint8_t key[RECORD_KEY_BYTES];
    enum query_state state;
    bool own;      /* our own records under any kind, not an expert */
    bool collects; /* every record of record_kind, not the providers of an expert */
    enum record_kind record_kind;
    struct collection *records; /* of one that collects, until it is answered */
    uint64_t settle_us; /* when what is there will do, if there is something and not all of it */
    bool in_table;
    bool holds_slot;
    bool is_short;     /* the current attempt is a short get (dht/opendht/runner.h) */
    bool short_failed; /* one brought nothing in time */
    bool ended_ok;     /* what OpenDHT said of the attempt that ended */
    unsigned attempts;
    unsigned asks;           /* of ours that OpenDHT still has */
    struct dht_request *ask; /* the current attempt; NULL: none. Shared through asks. */
    uint64_t asked_us, again_us, linger_until_us, check_us;
    /* The worker alone: */
    struct provider_set found;
    struct inbox_event *candidates; /* values to check in this round */
    size_t candidate_count;
    struct query *touched; /* next that has candidates */
    bool is_touched;
    unsigned verifications;
    bool saw_misdated; /* a record that was refused for its dates alone */
    uint64_t
        order_seed; /* the order in which peers not tried yet are heard, another for each query */
    char uid[UID_BYTES]; /* of one that collects: a word for the log */
};

struct put_item {
    struct bytes data; /* encoded and signed */
    uint64_t value_id;
    unsigned type;
    enum { PUT_WAITING, PUT_ASKED, PUT_DONE } state;
    bool holds_slot;
    uint64_t started_us;
    unsigned pushes;         /* so many times pushed */
    uint64_t push_us;        /* when to push it next */
    struct dht_request *ask; /* counted in the directory's list */
};

struct put_batch {
    struct put_batch *next, **link;   /* in directory.batches or .batches_done */
    struct declaration *declarations; /* borrowed until done */
    size_t count, remaining, started;
    uint64_t deadline_us;
    directory_declared_fn done;
    void *arg;
    struct put_item items[];
};

struct local {
    char uid[UID_BYTES];
    struct provider provider;
};

/* A record that a lookup found and refused for its dates. */
struct misdated_seen {
    uint8_t key[RECORD_KEY_BYTES];
    struct record_misdated what;
    uint64_t seen_us; /* 0: none */
};

struct directory {
    struct runner *runner;
    const struct identity *identity;
    const struct record_swarm *swarm;
    unsigned max_in_flight;
    uint64_t miss_ttl_us;
    uint32_t clock_skew_s;
    int64_t (*wall_ms)(void);
    struct inbox *inbox;
    struct peer_memory *memory; /* owned; has a lock of its own, a leaf */
    struct thread thread;

    pthread_mutex_t worker;    /* held by who works off what arrived */
    pthread_mutex_t lock;      /* guards all below, and requests, queries and batches */
    pthread_cond_t no_waiting; /* sync_waiters is 0 */
    bool closing;
    unsigned sync_waiters;
    uint64_t due_us;   /* when the timers are to be looked at; CLOCK_NEVER: never */
    uint64_t sleep_us; /* until when the directory's thread sleeps; 0: it does not */
    struct lookup_cache cache;
    struct candidate_overflow overflow;
    struct local *locals; /* sorted by uid */
    size_t local_count;
    bool locals_set;

    struct query *queries;
    struct hash_table table; /* queries that can be joined */
    struct query *waiting, **waiting_last, *ended;
    uint64_t no_short_until_us; /* the network seems to drop the answers of short gets */
    bool check_peers;           /* something takes long: find out whether there is anybody to ask */
    size_t query_count;
    unsigned gets_in_flight;
    struct request *requests, *completed;

    struct put_batch *batches, **batches_last, *batches_done;
    unsigned puts_in_flight;
    /* Keys to be pushed by the worker once it has let go of the lock. */
    uint8_t pushes[PUSH_KEYS][RECORD_KEY_BYTES];
    size_t push_count;

    struct dht_request *oldest_ask, *newest_ask; /* given to OpenDHT, "done" not seen */
    unsigned outstanding;

    struct own_sequences own_sequences;
    int64_t own_ms;       /* date of our newest record seen in the DHT; 0: none */
    uint64_t own_mono_us; /* when it was seen */
    struct directory_stats stats;
    struct misdated_seen misdated[MISDATED_KEPT]; /* the newest ones, in a ring */
    size_t misdated_next;

    struct live_views live_views; /* has a lock of its own */
};

/* directory.c. Works off what arrived, what is due, and starts what there are slots for; then wakes
 * the directory's thread if there is something for it. No lock held. */
void directory_work(struct directory *d);
/* With the lock held: */
void directory_due(struct directory *d, uint64_t at_us);
/* Registers an ask that goes to OpenDHT now. NULL: memory is short. */
struct dht_request *directory_ask(struct directory *d, void *owner, size_t index, uint64_t now_us);
/* Forgets an ask: its owner has gone or its "done" came. */
void directory_ask_over(struct directory *d, struct dht_request *ask);
bool directory_may_ask(const struct directory *d);
void directory_saw_own(struct directory *d, uint64_t seq);
int64_t directory_clock(const struct directory *d);
/* Without the lock (may block behind OpenDHT). */
bool directory_has_peers(struct directory *d);

/* directory_get.c. NULL with err filled in if memory is short. */
struct request *request_new(size_t count, uint64_t deadline_us, struct skep_error *err);
/* Waits for a request to end, as the caller's own thread: `enter` sets it up, with the lock held,
 * and calls request_enter() last. False if the directory is being closed. */
typedef void (*request_enter_fn)(struct directory *d, struct request *r, const void *what);
bool request_wait(struct directory *d, struct request *r, request_enter_fn enter, const void *what);
skep_status request_refuse_closing(struct skep_error *err);
/* With the lock held: */
void request_enter(struct directory *d, struct request *r);
void waiter_attach(struct waiter *w, struct query *q);
void waiter_detach(struct waiter *w);
/* Without providers. */
void waiter_set_result(struct waiter *w, skep_status status);
/* One UID of the request has its result; at the last one it is completed. */
void request_count_down(struct directory *d, struct request *r);
void requests_timers(struct directory *d, uint64_t now_us);
void requests_cancel_all(struct directory *d);
/* Without: runs the callbacks of completed requests. */
void requests_run_completed(struct directory *d);

/* directory_query.c. With the lock held: */
/* One that can be joined; NULL: there is none. */
struct query *query_find(struct directory *d, const uint8_t *key);
/* @param uid  NULL: records of our own. NULL if memory is short or too many are open. */
struct query *query_new(struct directory *d, const uint8_t *key, const char *uid);
void queries_start(struct directory *d, uint64_t now_us);
void query_answer(struct directory *d, struct query *q, skep_status status);
void query_done(struct directory *d, struct dht_request *ask, bool ok);
void queries_conclude(struct directory *d, bool has_peers, uint64_t now_us);
void queries_timers(struct directory *d, uint64_t now_us);
void queries_free_all(struct directory *d);
/* New records of one that collects: it will do with them soon, or at once. */
void query_collected(struct directory *d, struct query *q);
/* New records of an expert: the same, by what its waiters want. */
void query_found(struct directory *d, struct query *q);

/* directory_check.c. Without the lock, by the worker: */
void query_check_candidates(struct directory *d, struct query *q);
/* Remembers, and now and then logs, that a record was refused for its dates alone. */
void directory_note_misdated(struct directory *d, const uint8_t *key, const char *label,
                             const struct record_misdated *what);

/* directory_put.c. With the lock held: */
void batches_start(struct directory *d, uint64_t now_us);
void batch_done(struct directory *d, struct dht_request *ask, bool ok);
void batches_timers(struct directory *d, uint64_t now_us);
void batches_cancel_all(struct directory *d);
/* Without: */
/* Pushes what batches_timers() found to be due. By the worker. */
void batches_push(struct directory *d);
void batches_run_done(struct directory *d);

#endif
