/*
 * One OpenDHT participant: what the C bindings and opendht_ext.cpp give, with our types, limits and
 * messages. Bytes only; records are checked through the two policies.
 *
 * Threads: functions from any thread, none blocks unless said. Callbacks run on OpenDHT's thread:
 * they copy, queue, signal and return. They may put and get, but must not call runner_push(),
 * runner_status(), runner_known_peers(), runner_public_addresses() or runner_free(): OpenDHT's own
 * lock is held.
 */
#ifndef SKEP_DHT_OPENDHT_RUNNER_H
#define SKEP_DHT_OPENDHT_RUNNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "dht/record/record.h"

struct runner;

/*
 * Says that OpenDHT serves nothing but Skep in this process: values of types unknown to it are then
 * refused instead of stored. They could otherwise fill a peer's storage, or sit under the value id
 * of somebody's record and keep it out. It is not the library's default, since it changes OpenDHT's
 * fallback for the whole process. Call it before the first runner_new().
 */
void runner_own_process(void);

struct runner_config {
    struct endpoint listen; /* UDP; host unspecified: all, both families; port 0: pick one */
    uint32_t network_id;    /* not 0 */
    const uint8_t *dht_id;  /* RECORD_KEY_BYTES; NULL: a random one. Borrowed for the call */
    const struct record_swarm *swarm; /* for the policies; borrowed until runner_free() */
    bool bootstrap_only;              /* `skep dht` */
    bool is_client;             /* finds and leaves: no peer stores with it or names it to others */
    size_t storage_limit_bytes; /* kept for others; default 64 MiB */
    bool raise_rate_limits; /* benchmarks: no limits at all; false: high enough for our paced bulk
                               operations from one address */
};

/*
 * Starts it. Opens its sockets at once: call it before any other socket is made, see base/fd.h.
 * @return SKEP_FAILED_PRECONDITION, naming the UDP endpoint, if the port is in use;
 *         SKEP_PERMISSION_DENIED if it may not be bound; SKEP_RESOURCE_EXHAUSTED if no descriptor
 *         below 1024 is free; SKEP_INTERNAL for what OpenDHT says otherwise.
 */
SKEP_MUST_CHECK skep_status runner_new(const struct runner_config *config, struct runner **out,
                                       struct skep_error *err);
/* Shuts down: waits for OpenDHT to have sent what is queued, at most until the deadline, then
 * frees. All callbacks have run when it returns (pending ones with failure). Blocks. NULL is
 * allowed. */
void runner_free(struct runner *runner, uint64_t deadline_us);

uint16_t runner_port(const struct runner *runner);

/* Contacts a peer: adds it to those OpenDHT tries. Numeric addresses only; does not block. While an
 * answer is awaited and no peer is good yet, OpenDHT holds back puts and gets (up to 8 s). */
void runner_contact(struct runner *runner, const struct address *address);

/* For a runner with dubious peers only, for whose answer OpenDHT holds gets and puts back: asks
 * them now rather than at the next round of maintenance, 5 to 25 s later. Does not block. */
void runner_check_dubious(struct runner *runner);

/* Makes the runner and its neighbours by id known to each other, by a search: they store the same
 * keys, and who does not know of them puts and looks in wrong places. Does not block. */
void runner_introduce(struct runner *runner);

struct runner_status {
    unsigned good_nodes, dubious_nodes; /* of the routing tables, both families */
    size_t storage_values, storage_bytes;
    uint64_t values_refused;  /* by the store and edit policies */
    uint64_t values_misdated; /* of these, records that are good but for their dates */
    size_t listens;           /* that OpenDHT has, also ended ones that it cannot let go of */
};
/* May block for a moment behind OpenDHT's own lock. */
void runner_status(struct runner *runner, struct runner_status *out);
struct runner_traffic {
    uint64_t packets, bytes; /* UDP datagrams handed to the system so far, and their payload */
};
/* Thread: any, also in callbacks. */
void runner_traffic(const struct runner *runner, struct runner_traffic *out);
/* Addresses of the good nodes we know, for saving. Returns how many were written. */
size_t runner_known_peers(struct runner *runner, struct address *out, size_t cap);
/* Our addresses of a family as other peers see them (asked of them), those that most have told
 * first. Port is the UDP one. Returns how many were written. */
size_t runner_public_addresses(struct runner *runner, bool v6, struct endpoint *out, size_t cap);
/* The first of them; false if none has told yet. */
bool runner_public_address(struct runner *runner, bool v6, struct endpoint *out);

typedef void (*runner_put_fn)(void *arg, bool ok);
/* What is put; borrowed for the call. */
struct runner_value {
    uint64_t id;
    unsigned type; /* index of one of our types */
    const uint8_t *data;
    size_t len;
};
/*
 * Puts a value under a fixed id and one of our types; replaces an older one of that id in place.
 * @param done  exactly once, also after failure. May come late (seconds) when peers are dead.
 */
void runner_put(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                const struct runner_value *value, runner_put_fn done, void *arg);
/*
 * Sends what is being put under a key to the storing nodes that have answered, without the wait
 * for those that have not: OpenDHT gives these a second before it sends anything to anybody.
 * For puts that take long; where all peers live it only finds nothing to do. May block for a moment
 * behind OpenDHT's own lock.
 */
void runner_push(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES]);

/*
 * One value found; in any order, and the same one may come twice. Return false to end the get
 * early: `done` still comes, exactly once.
 * @param data  borrowed for the call.
 */
typedef bool (*runner_value_fn)(void *arg, uint64_t value_id, const uint8_t *data, size_t len);
typedef void (*runner_done_fn)(void *arg, bool ok);
void runner_get(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                runner_value_fn value, runner_done_fn done, void *arg);
/* The same; `reply` comes after the values that one node sent together (or that are stored here),
 * so that a reader that takes the first answer takes all of it. It may end the get early as well.
 */
typedef bool (*runner_reply_fn)(void *arg);
void runner_get_replies(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                        runner_value_fn value, runner_reply_fn reply, runner_done_fn done,
                        void *arg);

/*
 * The same with a fraction of the packets where a few short values are stored: OpenDHT's get asks
 * each storing node for the ids and then for every value by itself, this one for all that is short
 * at once, and does a plain get besides if there is more. Answers are single datagrams of up to
 * some KiB. A network that drops fragments drops them: then nothing comes in spite of live peers,
 * and whoever asks should try a plain get.
 */
void runner_get_short(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                      runner_value_fn value, runner_reply_fn reply, runner_done_fn done, void *arg);

struct runner_listen;
/*
 * Notifies whenever a value of ours appears or expires under a key, not about edits under the same
 * value id (see dht/directory/watch.h). It may not notify again about values that came before.
 * @param notify   on OpenDHT's thread, not after runner_unlisten() has returned; must not call
 * back.
 * @param release  runs exactly once, after the last `notify`, also on failure; frees `arg`.
 * @return owned: runner_unlisten() before runner_free(); NULL if it could not be started: memory is
 *         short, or too many keys are listened to (4,096, with those OpenDHT cannot let go of).
 */
struct runner_listen *runner_listen(struct runner *runner,
                                    const uint8_t key[static RECORD_KEY_BYTES],
                                    void (*notify)(void *arg), void (*release)(void *arg),
                                    void *arg);
void runner_unlisten(struct runner *runner, struct runner_listen *listen); /* NULL is allowed */

#endif
