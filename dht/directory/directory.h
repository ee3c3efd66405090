/*
 * The directory of a swarm: who serves which expert. Declares records in bulk, paced, and looks
 * them up in bulk, with retries, verification and a cache.
 *
 * Threads: functions from any thread. Callbacks run on the directory's own thread
 * ("skep-directory") with no lock held and must not block. What OpenDHT hands over is worked off by
 * that thread or, while somebody waits in directory_get_wait(), by the one who waits.
 */
#ifndef SKEP_DHT_DIRECTORY_DIRECTORY_H
#define SKEP_DHT_DIRECTORY_DIRECTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/directory/provider.h"
#include "dht/opendht/runner.h"

struct directory;

struct directory_config {
    struct runner *runner;            /* borrowed until directory_free() */
    const struct identity *identity;  /* the same */
    const struct record_swarm *swarm; /* the same */
    unsigned max_in_flight;           /* gets and puts under way; default 64 */
    uint32_t miss_ttl_ms;             /* how long a miss is remembered; default 2000 */
    size_t cache_entries;             /* default 65536 */
    int64_t (*wall_ms)(void);         /* tests: another wall clock; NULL: clock_wall_ms() */
};

SKEP_MUST_CHECK skep_status directory_new(const struct directory_config *config,
                                          struct directory **out, struct skep_error *err);
/* Ends pending operations (SKEP_CANCELLED). Call before runner_free(). NULL is allowed. */
void directory_free(struct directory *directory);

/* One record to declare. `record` is borrowed until done; its peer_id and seq are filled in. */
struct declaration {
    uint8_t key[RECORD_KEY_BYTES];
    struct record *record;
    skep_status outcome; /* written before done: SKEP_OK stored by peers; SKEP_UNAVAILABLE no peers:
                            kept locally and handed to those that join; others: failed */
};
typedef void (*directory_declared_fn)(void *arg, struct declaration *declarations, size_t count);
/*
 * Publishes `count` records. @param declarations borrowed until done.
 * Never blocks; with 0 peers it ends at once with SKEP_UNAVAILABLE for each (and the records are
 * put locally so that a later peer finds them).
 */
SKEP_MUST_CHECK skep_status directory_declare(struct directory *directory,
                                              struct declaration *declarations, size_t count,
                                              uint64_t deadline_us, directory_declared_fn done,
                                              void *arg, struct skep_error *err);

/* Ends a declare that is under way, now: what is not done yet gets SKEP_CANCELLED. Does nothing if
 * it has ended. `done` comes as always, soon. */
void directory_declare_cancel(struct directory *directory, const struct declaration *declarations);

/*
 * The clock by which to date records, in ms: the wall clock, but never behind the newest record of
 * our own that was seen in the DHT plus the time since. So a node that restarts with a clock that
 * was set back still publishes records that are newer than its old ones and not yet expired. At
 * most 30 min ahead of the wall clock, because nobody stores what expires in more than an hour.
 */
int64_t directory_now_ms(struct directory *directory);
/*
 * Looks for records of our own identity under these keys: what an earlier run left. Later seqs
 * continue from the highest.
 * @param keys  count times RECORD_KEY_BYTES; copied. At most 256 keys.
 * @param found gets the highest seq seen, 0 if none.
 */
typedef void (*directory_own_fn)(void *arg, uint64_t highest_seq);
SKEP_MUST_CHECK skep_status directory_find_own(struct directory *directory, const uint8_t *keys,
                                               size_t count, uint64_t deadline_us,
                                               directory_own_fn found, void *arg,
                                               struct skep_error *err);

/* Experts of our own node: answered without the network, `local` set. Replaces the earlier set. */
SKEP_MUST_CHECK skep_status directory_set_local(struct directory *directory,
                                                const struct record_expert *experts, size_t count,
                                                struct skep_error *err);

enum directory_flags {
    DIRECTORY_FRESH = 1, /* do not answer from the cache */
    /* List all who serve it: OpenDHT brings each record by itself, so the answer waits until it has
     * them all, or for as long again as the first one took (at least 20 ms, at most 250). */
    DIRECTORY_ALL = 2,
    /* Ask the network also for a UID that our own node serves, and leave our own records out. */
    DIRECTORY_OTHERS = 4,
};
/*
 * @param results  one per UID, in order; borrowed for the callback.
 */
typedef void (*directory_found_fn)(void *arg, const struct lookup_result *results, size_t count);
/* Looks up UIDs. @param uids copied. An answer comes at the first record that verifies, or with
 * DIRECTORY_ALL soon after it, and never waits for dead nodes; an empty answer is asked once more
 * before it counts as a miss. */
SKEP_MUST_CHECK skep_status directory_get(struct directory *directory, const char *const *uids,
                                          size_t count, unsigned flags, uint64_t deadline_us,
                                          directory_found_fn found, void *arg,
                                          struct skep_error *err);
/* The same, waiting. @param results count entries, written always. Not from a callback. */
SKEP_MUST_CHECK skep_status directory_get_wait(struct directory *directory, const char *const *uids,
                                               size_t count, unsigned flags, uint64_t deadline_us,
                                               struct lookup_result *results,
                                               struct skep_error *err);

/* Ends lookups (also for own records) whose callback has this `arg`, with SKEP_CANCELLED; the
 * callback comes as always, soon. Does nothing if they have ended. */
void directory_get_cancel(struct directory *directory, const void *arg);

/*
 * How it went with a peer that a lookup named. There is room for DIRECTORY_MAX_PROVIDERS in an
 * answer, and strangers may sign by the thousand that they serve an expert: see
 * dht/directory/peer_memory.h for how a caller that tells of its failures and looks up again is
 * given all of them in turn. A failure also drops what is cached of that peer: the next lookup asks
 * anew.
 */
void directory_peer_answered(struct directory *directory,
                             const uint8_t peer_id[static PEER_ID_BYTES]);
/* The same of one of the overflow, that was named for a UID: it is kept at hand until its record
 * ends.
 */
void directory_keep(struct directory *directory, const char *uid, const struct provider *provider);
/* The rank of a peer as seen now, see peer_memory_rank(): the lowest is the one to ask first. */
uint64_t directory_peer_rank(struct directory *directory,
                             const uint8_t peer_id[static PEER_ID_BYTES]);
void directory_forget_peer(struct directory *directory,
                           const uint8_t peer_id[static PEER_ID_BYTES]);

/*
 * Whether a lookup of one of these keys has found a record within the last minute that is good but
 * for its dates, by which it was refused: so that a miss can be told from "nobody serves it".
 * @param keys  count times RECORD_KEY_BYTES.
 */
bool directory_misdated(struct directory *directory, const uint8_t *keys, size_t count,
                        struct record_misdated *out);
enum { DIRECTORY_MISDATED_BYTES = 256 };
/* What there is to say of it, as a sentence. Returns `text`. */
const char *directory_describe_misdated(const struct record_misdated *misdated,
                                        char text[static DIRECTORY_MISDATED_BYTES]);

struct directory_stats {
    uint64_t gets, get_hits, get_misses, get_retries, puts, put_failures, records_refused;
};
void directory_stats(struct directory *directory, struct directory_stats *out);

#endif
