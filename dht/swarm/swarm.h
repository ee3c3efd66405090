/*
 * Membership in a swarm: a runner, the directory over it, and the bootstrapping that keeps it
 * connected. What nodes, clients and `skep dht` share.
 */
#ifndef SKEP_DHT_SWARM_SWARM_H
#define SKEP_DHT_SWARM_SWARM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/directory/directory.h"

struct swarm;

struct swarm_config {
    const char *name;                /* default "skep" */
    const struct swarm_key *key;     /* NULL: public. Borrowed until swarm_leave() */
    const struct identity *identity; /* borrowed until swarm_leave() */
    /* UDP. A name that leads to 127.0.1.1 or another such address stands for 127.0.0.1. */
    struct endpoint dht_listen;
    const char *const *initial_peers; /* "host:port", "tracker://host:port"; copied */
    size_t initial_peer_count;
    const char *peers_file; /* known peers are saved here and tried on restart; NULL: no */
    bool bootstrap_only;
    bool is_client; /* as in runner_config */
    /* The identity is this process' alone. It then has the same DHT id after a restart, and whoever
     * knew it under its old address learns the new one, instead of having to find out that a node
     * is dead before anything near it goes on: 0.5 s for the first put, over 1 s for a lookup. */
    bool identity_is_ours;
    uint32_t clock_skew_s;        /* 0: the default, 60 */
    bool raise_rate_limits;       /* as in runner_config */
    int64_t (*wall_ms)(void);     /* tests: another wall clock; NULL: clock_wall_ms() */
    uint32_t bootstrap_minute_ms; /* tests: as in bootstrap_config; 0: 60,000 */
};

/*
 * Starts: the UDP socket is open when it returns, joining goes on in the background
 * ("skep-bootstrap" thread: resolves names, retries for ever with back-off while there are too few
 * peers, contacts configured peers that are missing every minute, saves known peers).
 * @return as runner_new(); SKEP_INVALID_ARGUMENT naming a malformed initial peer.
 */
SKEP_MUST_CHECK skep_status swarm_join(const struct swarm_config *config, struct swarm **out,
                                       struct skep_error *err);
/* Leaves, saves peers, frees; bounded by the deadline. NULL is allowed. */
void swarm_leave(struct swarm *swarm, uint64_t deadline_us);

/*
 * Whether loopback endpoints may be published and dialled in this swarm (record_swarm.loopback):
 * if dht_listen is loopback, unless an initial or saved peer is elsewhere; if it is unspecified,
 * when there are such peers and all of them are on loopback. A name counts once it is resolved, by
 * its addresses, so the answer may change; a name that leads nowhere does not count.
 */

/* Whether that is known: false while dht_listen is unspecified and nothing is known but names that
 * have not been resolved. */
bool swarm_is_placed(const struct swarm *swarm);

/* True while at least one peer answers; waits until then or the deadline. Without configured or
 * saved peers it is true at once: this node starts a swarm of its own. */
bool swarm_wait_joined(struct swarm *swarm, uint64_t deadline_us);
/*
 * Finds out why no initial peer answers, in SWARM_EXPLAIN_MS if nothing is to be looked up. Waits
 * until that is known, the deadline, or a peer answers after all.
 * @param out  a part of a sentence: each initial peer and what is wrong with it, cut where it has
 *             no room; just their names if there was no time.
 * @return as swarm_wait_joined().
 */
bool swarm_explain(struct swarm *swarm, uint64_t deadline_us, char *out, size_t cap);
enum { SWARM_EXPLAIN_MS = 700 };
unsigned swarm_peer_count(struct swarm *swarm);
enum { SWARM_JOIN_BYTES = 900 };
/* The options by which another process joins, through `peer` ("host:port"), ready for a shell: what
 * differs from the defaults is named too. Returns out. */
const char *swarm_join_options(const struct swarm *swarm, const char *peer,
                               char out[static SWARM_JOIN_BYTES]);
/* Logs "what: options" with those of swarm_join_options(), as soon as this process has joined. */
void swarm_log_join(struct swarm *swarm, const char *what, const char *peer);
struct directory *swarm_directory(struct swarm *swarm);
struct runner *swarm_runner(struct swarm *swarm);
const struct record_swarm *swarm_record(const struct swarm *swarm);
const struct identity *swarm_identity(const struct swarm *swarm);
uint16_t swarm_dht_port(const struct swarm *swarm);

#endif
