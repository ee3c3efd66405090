/*
 * Signed, expiring records: their structure, bytes (docs/records.md), signature and policies.
 * No network, no clock: times are given. Thread: any, once identity_system_init() has run.
 */
#ifndef SKEP_DHT_RECORD_RECORD_H
#define SKEP_DHT_RECORD_RECORD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/bytes.h"
#include "base/endpoint.h"
#include "crypto/identity.h"
#include "crypto/swarm_key.h"
#include "dht/record/uid.h"

enum record_kind {
    RECORD_EXPERT = 1,
    RECORD_PREFIX = 2,
    RECORD_NODE = 3,
    RECORD_TRACKER = 4,
    RECORD_RESOURCE = 5,
};

enum {
    RECORD_VERSION = 1,
    RECORD_KEY_BYTES = 20,   /* an OpenDHT InfoHash */
    RECORD_MAX_BYTES = 1024, /* all kinds but prefix */
    RECORD_MAX_PREFIX_BYTES = 61440,
    RECORD_MAX_ENDPOINTS = 4,
    RECORD_MAX_LIFETIME_S = 3600,
    RECORD_MIN_LIFETIME_S = 20,
    RECORD_SHARDS = 16,
    RECORD_RESOURCE_KEY_BYTES = 256, /* with NUL; resources under longer keys are not published */
    RECORD_MAX_ADDRESSES = 16,       /* of one resource record */
    /* Records of a publisher whose clock differs by no more are as good as any: docs/records.md,
     * "Times". Beyond that they are refused. */
    RECORD_CLOCK_TOLERANCE_S = 600,
};

/* What a swarm's keys and seals are made from. Borrowed wherever it is passed. */
struct record_swarm {
    const char *name;
    const struct swarm_key *key; /* NULL: a public swarm */
    /* The swarm's own peers are loopback: such endpoints are fine. It changes when the name of an
     * initial peer has been resolved. */
    atomic_bool loopback;
    /* How far clocks may differ before it is worth a warning, and how long a withdrawal outlives
     * what it withdraws. Default 60 */
    uint32_t clock_skew_s;
};

enum record_features { /* bits */
                       RECORD_FEATURE_AES_GCM = 1,
                       RECORD_FEATURE_PLAINTEXT = 2,
};

struct record_load {
    double examples_per_s;
    uint32_t queued_tasks;
};

/* How firmly a node holds a UID. Of two nodes that serve one, the lower value keeps it
 * (docs/records.md, "Claims"). */
enum record_claim_level {
    RECORD_CLAIM_KEPT = 0,  /* asked for by name, restored, trained, or held for long */
    RECORD_CLAIM_FRESH = 1, /* picked at random a short time ago, and not trained yet */
    RECORD_CLAIM_NEW = 2,   /* the same, and the node still looks for others with the same pick */
};

struct record_claim {
    enum record_claim_level level;
    bool random;     /* the node picked the UID out of a pattern, whatever the level is now */
    int64_t since_s; /* Unix seconds: when the node began to hold it; 0: it does not say */
};

struct record_expert {
    char uid[UID_BYTES];
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    char cls[32];
    uint8_t schema_digest[16];
    uint32_t features;
    bool offline; /* withdrawn: readers drop what they know of this peer and UID */
    struct record_load load;
    struct record_claim claim;
};

enum { RECORD_MAX_BELOW = 512 }; /* numbers of record_prefix.below */

struct record_prefix {
    char prefix[UID_BYTES];
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    uint32_t features;
    unsigned part, parts; /* coordinate ranges, when over RECORD_MAX_PREFIX_BYTES */
    uint32_t depth;     /* coordinates from the prefix to a whole UID; 0: they differ or unknown */
    size_t coord_count; /* next coordinates under the prefix, ascending */
    int64_t *coords;    /* owned: record_free() */
    /*
     * What is alive one level further down, if the publisher says so (depth is 2 at least then):
     * for each of coords a count of at least 1, then as many coordinates, ascending. View of the
     * memory of coords, or the encoder's caller's own; NULL: not said.
     */
    size_t below_len;
    const int64_t *below;
    /* Of the whole node, not only of what is listed here: its experts share its processors. */
    struct record_load load;
};

struct record_node {
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    uint32_t features;
    char state[16]; /* "joining", "online", "draining", "offline" */
    char version[32];
    uint32_t expert_count;
    struct record_load load;
};

/* A tracker: where its node serves `tracker.request`, and where TVM's protocol is spoken. */
struct record_tracker {
    size_t endpoint_count;
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    uint32_t features;
    struct endpoint tvm; /* host "": not for others (it listens on loopback) */
    char version[32];
    uint32_t key_count; /* keys it holds resources of */
    bool offline;
};

/* What a tracker holds under one key. */
struct record_resource {
    char key[RECORD_RESOURCE_KEY_BYTES]; /* any UTF-8, as users of the tracker chose it */
    size_t endpoint_count;               /* of the tracker's node */
    struct endpoint endpoints[RECORD_MAX_ENDPOINTS];
    uint32_t features;
    struct endpoint tvm;        /* as in record_tracker */
    uint32_t free, pending;     /* resources to hand out; requests that wait for one */
    size_t address_count;       /* of those that are free, at most RECORD_MAX_ADDRESSES of them */
    struct endpoint *addresses; /* owned: record_free() */
    bool offline;               /* the last one has gone */
};

struct record {
    enum record_kind kind;
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq;       /* ms; only grows, per publisher */
    int64_t expires_at; /* Unix seconds; of one that was decoded by the reader's clock, see there */
    union {
        struct record_expert expert;
        struct record_prefix prefix;
        struct record_node node;
        struct record_tracker tracker;
        struct record_resource resource;
    };
};

void record_free(struct record *record); /* what is inside; NULL and zeroed are allowed */

/* Keys. H(swarm, kind, subject): docs/records.md. */
void record_key_expert(const struct record_swarm *swarm, const char *uid,
                       uint8_t key[static RECORD_KEY_BYTES]);
/* `prefix` ends with a dot. For the root prefix `name.` the shard of peer_id is part of the key. */
void record_key_prefix(const struct record_swarm *swarm, const char *prefix,
                       const uint8_t peer_id[static PEER_ID_BYTES],
                       uint8_t key[static RECORD_KEY_BYTES]);
void record_key_prefix_root(const struct record_swarm *swarm, const char *prefix, unsigned shard,
                            uint8_t key[static RECORD_KEY_BYTES]);
void record_key_node(const struct record_swarm *swarm, const uint8_t peer_id[static PEER_ID_BYTES],
                     uint8_t key[static RECORD_KEY_BYTES]);
void record_key_nodes_shard(const struct record_swarm *swarm, unsigned shard,
                            uint8_t key[static RECORD_KEY_BYTES]);
void record_key_trackers_shard(const struct record_swarm *swarm, unsigned shard,
                               uint8_t key[static RECORD_KEY_BYTES]);
void record_key_resource(const struct record_swarm *swarm, const char *resource,
                         uint8_t key[static RECORD_KEY_BYTES]);
/* Of two nodes that hold a UID at one level above RECORD_CLAIM_KEPT, the one with the smaller order
 * (compared as bytes) keeps it. */
enum { RECORD_CLAIM_ORDER_BYTES = 32 };
void record_claim_order(const char *uid, const uint8_t peer_id[static PEER_ID_BYTES],
                        uint8_t order[static RECORD_CLAIM_ORDER_BYTES]);
unsigned record_shard(const uint8_t peer_id[static PEER_ID_BYTES]);
/* A DHT node id of a peer that has the same one after each restart. */
void record_dht_id(const struct record_swarm *swarm, const uint8_t peer_id[static PEER_ID_BYTES],
                   uint8_t id[static RECORD_KEY_BYTES]);
/* OpenDHT's network id of a swarm; never 0. */
uint32_t record_network_id(const struct record_swarm *swarm);

/* Value id: first 8 bytes of BLAKE2b over peer id, kind and subject (UID; prefix and part;
 * resource key; nothing more for a node or tracker); never 0. So whatever a peer says anew about a
 * subject replaces what it said. */
uint64_t record_value_id(const struct record *record);

/*
 * Encodes and signs for one key; peer_id is taken from `identity`.
 * @param out  on success replaced by the record's bytes; owned: bytes_free(). Untouched otherwise.
 * @return SKEP_INVALID_ARGUMENT if it is over its kind's limit in bytes, an endpoint is not usable,
 *         or another field is not what docs/records.md allows.
 */
SKEP_MUST_CHECK skep_status record_encode(const struct record *record,
                                          const struct identity *identity,
                                          const struct record_swarm *swarm,
                                          const uint8_t key[static RECORD_KEY_BYTES],
                                          struct bytes *out, struct skep_error *err);
/*
 * Decodes and checks everything: form, limits, signature for that key, dates, and that kind and
 * subject belong to the key.
 * Endpoints that must not be dialled are dropped; a record left without any is refused.
 * The reader's clock decides nothing alone: a record that is misdated by it, but by no more than
 * RECORD_CLOCK_TOLERANCE_S, lives for its own lifetime (expires_at less seq) from now on, and
 * out->expires_at says until when that is.
 * @param out  owned: record_free(). Zeroed on failure.
 * @return SKEP_DATA_LOSS (form, or a subject of another key), SKEP_UNAUTHENTICATED (signature or
 *         seal), SKEP_DEADLINE_EXCEEDED (ended too long ago), SKEP_INVALID_ARGUMENT (limits,
 *         dates too far ahead).
 */
SKEP_MUST_CHECK skep_status record_decode(struct record *out, const uint8_t *data, size_t len,
                                          const struct record_swarm *swarm,
                                          const uint8_t key[static RECORD_KEY_BYTES],
                                          int64_t now_unix_s, struct skep_error *err);

/* A record that is good but for its dates. */
struct record_misdated {
    uint8_t peer_id[PEER_ID_BYTES];
    int64_t off_by_s; /* below 0: it ended so long ago; above: it is dated so far ahead */
};
/* By how much dates miss a clock, as in record_misdated; 0: the clock is between them. */
int64_t record_off_by_s(uint64_t seq, int64_t expires_at, int64_t now_unix_s);
/* Whether bytes that record_decode() refuses now are a record that it would take at the time of
 * which it is dated: then the publisher's clock or ours is wrong. */
bool record_is_misdated(const uint8_t *data, size_t len, const struct record_swarm *swarm,
                        const uint8_t key[static RECORD_KEY_BYTES], int64_t now_unix_s,
                        struct record_misdated *out);
/* How long a record says that it lives, in seconds, at most RECORD_MAX_LIFETIME_S; 0: it does not
 * say, or the bytes are no record. */
uint32_t record_lifetime_s(const uint8_t *data, size_t len);

/*
 * What a storing node decides: it stores what a reader of its swarm would accept, under the value
 * id that belongs to the record. In a private swarm that needs the swarm key, which all members
 * have.
 */
bool record_store_policy(const uint8_t *data, size_t len, uint64_t value_id,
                         const uint8_t key[static RECORD_KEY_BYTES],
                         const struct record_swarm *swarm, int64_t now_unix_s);
/* Two values under one key with the same id; all borrowed. */
struct record_edit {
    const uint8_t *old, *next;
    size_t old_len, next_len;
    uint64_t value_id;
    const uint8_t *key; /* RECORD_KEY_BYTES */
};
/* May `next` replace `old`? */
bool record_edit_policy(const struct record_edit *edit, const struct record_swarm *swarm,
                        int64_t now_unix_s);

/* Lifetimes of our four OpenDHT value types, in seconds, ascending: 60, 300, 900, 3600. */
enum { RECORD_TYPE_COUNT = 4 };
extern const uint32_t record_type_lifetime_s[RECORD_TYPE_COUNT];
/* Index of the shortest type that covers so many seconds. */
unsigned record_type_for(uint32_t lifetime_s);

#endif
