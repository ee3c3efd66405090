/*
 * What OpenDHT's C bindings (2.4.12) lack, as C functions over the same `dht_runner` object: bind
 * addresses, rate limits, value types of our own with store and edit policies, puts with a value
 * id, gets of short values in one round, listening to our types without waiting for a token, node
 * export, storage limit, a count of what is sent. No C++ type crosses this header and no exception
 * leaves it.
 *
 * Threads: functions from any thread. Callbacks and policies run on OpenDHT's thread, with
 * OpenDHT's own lock held: they must not call opendht_ext_push(), _read_stats(),
 * _known_peers() or _public_addresses(), which take that lock.
 */
#ifndef SKEP_DHT_OPENDHT_OPENDHT_EXT_H
#define SKEP_DHT_OPENDHT_OPENDHT_EXT_H

#include <opendht/opendht_c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OPENDHT_EXT_KEY_BYTES = 20,
    OPENDHT_EXT_TYPES = 4,           /* value types that are ours */
    OPENDHT_EXT_FIRST_TYPE = 0x534B, /* "SK" on the wire; the others follow */
    OPENDHT_EXT_MAX_VALUE_BYTES = 61440,
    /* Values of up to this many bytes are short: opendht_ext_query() finds them as well. */
    OPENDHT_EXT_SHORT_BYTES = 512,
};

/*
 * May this value be stored under `key`? `data` is NULL if it is not a plain value of one of our
 * types, for the policy to count; the answer is then taken as no.
 */
typedef bool (*opendht_ext_store_fn)(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                                     uint64_t value_id, const uint8_t *data, size_t len);
/* May `data` replace `old`, stored under the same key and value id? NULL as above. */
typedef bool (*opendht_ext_edit_fn)(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                                    uint64_t value_id, const uint8_t *old, size_t old_len,
                                    const uint8_t *data, size_t len);
/*
 * Whether a short value, which has been accepted, is to be shown to queries. The answer to a query
 * is one datagram, which nobody gets if it is too long for one; so somebody has to see to it that
 * what is shown of one key stays short.
 */
typedef bool (*opendht_ext_show_fn)(void *arg, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                                    uint64_t value_id, size_t len, uint32_t lifetime_s);
/* The system took a datagram of so many bytes (of UDP payload). On OpenDHT's threads, maybe on
 * several at once. */
typedef void (*opendht_ext_sent_fn)(void *arg, size_t bytes);

struct opendht_ext_config {
    const struct sockaddr *bind4; /* NULL: no IPv4. Borrowed for the call, as bind6 */
    socklen_t bind4_len;
    const struct sockaddr *bind6; /* NULL: no IPv6 */
    socklen_t bind6_len;
    uint32_t network_id;
    const uint8_t *node_id; /* OPENDHT_EXT_KEY_BYTES; NULL: a random one. Borrowed for the call */
    long max_req_per_sec;   /* 0: OpenDHT's default; -1: no limit */
    long max_peer_req_per_sec; /* the same, for one address */
    bool is_bootstrap;
    bool is_client; /* nobody shall store with it, name it to others or route by it */
    bool maintain_storage;
    size_t storage_limit_bytes;
    const uint32_t *type_lifetime_s; /* OPENDHT_EXT_TYPES of them; borrowed for the call */
    opendht_ext_store_fn store;
    opendht_ext_edit_fn edit;
    opendht_ext_show_fn show;
    opendht_ext_sent_fn sent; /* NULL: nobody counts */
    void *arg;                /* of all four; borrowed until the dht_runner is deleted */
};

/*
 * From now on, no runner of this process stores values of types that it has not registered. Call it
 * before the first runner runs; repeating is harmless.
 */
void opendht_ext_refuse_unknown_types(void);

/*
 * Starts the runner: opens the sockets, registers the types, starts OpenDHT's threads.
 * @param why  a sentence of OpenDHT's on failure, always terminated.
 * @return false if it could not; the runner may be deleted or started again then.
 */
bool opendht_ext_run(dht_runner *runner, const struct opendht_ext_config *config, char *why,
                     size_t why_bytes);

/*
 * Ends the runner and deletes it: its threads have ended and all it held of our callbacks has been
 * released when this returns. Operations still under way end with failure. Blocks. NULL is allowed.
 */
void opendht_ext_delete(dht_runner *runner);

/*
 * Calls of one operation. Each runs at most once after `done`: `release` is the last one, runs
 * exactly once however the operation ends (also if it could not be started), and frees `arg`.
 */
struct opendht_ext_calls {
    /* One value of our types; data borrowed for the call. False ends a get early. NULL in a put. */
    bool (*value)(void *arg, uint64_t value_id, const uint8_t *data, size_t len);
    /* After the values of one reply; false ends a get early. May be NULL. */
    bool (*reply)(void *arg);
    void (*done)(void *arg, bool ok); /* at least once unless OpenDHT drops the operation */
    void (*release)(void *arg);
    void *arg;
};

/* @param data copied. @param type_index below OPENDHT_EXT_TYPES. */
void opendht_ext_put(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                     uint64_t value_id, unsigned type_index, const uint8_t *data, size_t len,
                     const struct opendht_ext_calls *calls);
/*
 * Sends what is being put under a key to those storing nodes that have answered so far. By itself
 * OpenDHT sends nothing before the eight nearest nodes have answered or a request to them has timed
 * out, a second later: one dead node keeps a record from all live ones. Blocks for OpenDHT's lock.
 */
void opendht_ext_push(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES]);
void opendht_ext_get(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                     const struct opendht_ext_calls *calls);

/* Whether values of ours that are kept for others end when their records say, counted from the
 * moment they came, or with their type (opendht_expiry.cpp). */
bool opendht_ext_ends_on_time(void);

/*
 * Asks for the short values stored under a key: one request to each node that stores the key, where
 * a get takes one for the ids and another for every value. Of a value that is longer, or not shown
 * (see opendht_ext_show_fn), only the id is told, with `len` 0; also of others' types.
 */
bool opendht_ext_can_query(void); /* false: an answer would be that of one node only */
void opendht_ext_query(dht_runner *runner, const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                       const struct opendht_ext_calls *calls);

struct opendht_ext_listen;

/*
 * Notifies about every value of our types that appears or expires under a key, not about edits
 * under the same value id.
 * @param notify   may run until the listen has been stopped, and for a moment after.
 * @param release  runs exactly once, as the last, also if it could not be started; frees `arg`.
 * @return owned: opendht_ext_listen_stop(); NULL if it could not be started.
 */
struct opendht_ext_listen *opendht_ext_listen_start(dht_runner *runner,
                                                    const uint8_t key[OPENDHT_EXT_KEY_BYTES],
                                                    void (*notify)(void *arg),
                                                    void (*release)(void *arg), void *arg);
/* Ends and frees it. False, with nothing done: OpenDHT has not begun it yet (it holds that back as
 * it does gets), or cannot end it at all: it gives no token where it has one address family only.
 * Does not block. Before opendht_ext_delete(). */
bool opendht_ext_listen_stop(dht_runner *runner, struct opendht_ext_listen *listen);
/* Frees one that could not be ended before opendht_ext_delete(), after it. */
void opendht_ext_listen_free(struct opendht_ext_listen *listen);

/* Pings a numeric address and adds it to the nodes OpenDHT tries. */
void opendht_ext_contact(dht_runner *runner, const struct sockaddr *address, socklen_t len);

/* Brings OpenDHT's next round of maintenance forward, in which it pings peers that contacted us. */
void opendht_ext_hurry(dht_runner *runner);

/*
 * Looks something up next to the runner's own id, so that those who will store the same keys learn
 * of it and it learns of them. Each time at another place: OpenDHT does not ask again what it has
 * asked about a key minutes ago.
 */
void opendht_ext_introduce(dht_runner *runner);

struct opendht_ext_stats {
    unsigned good_nodes, dubious_nodes;
    size_t storage_values, storage_bytes;
};
void opendht_ext_read_stats(dht_runner *runner, struct opendht_ext_stats *out);

/* Good nodes of the routing tables. Returns how many were written. */
size_t opendht_ext_known_peers(dht_runner *runner, struct sockaddr_storage *out, socklen_t *lens,
                               size_t cap);
/* Our addresses as the peers that told us see them, those that most have told first. Returns how
 * many were written. */
size_t opendht_ext_public_addresses(dht_runner *runner, sa_family_t family,
                                    struct sockaddr_storage *out, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
