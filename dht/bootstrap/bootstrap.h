/*
 * What keeps a runner connected: the "skep-bootstrap" thread contacts the configured peers and
 * those saved at an earlier run, again and again with a growing pause while there are too few
 * peers, and once a minute those that are missing from the routing table, so that two halves of a
 * swarm that were started apart find each other. A tracker among them is asked for peers each time.
 * Peers met since are looked for too when they fall silent (peers_seen.h).
 */
#ifndef SKEP_DHT_BOOTSTRAP_BOOTSTRAP_H
#define SKEP_DHT_BOOTSTRAP_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>
#include "dht/bootstrap/initial_peer.h"
#include "dht/bootstrap/join_check.h"
#include "dht/bootstrap/resolver.h"
#include "dht/opendht/runner.h"

struct bootstrap;

enum { BOOTSTRAP_MAX_PEERS = 256 }; /* configured */

struct bootstrap_config {
    struct runner *runner;            /* borrowed until bootstrap_free() */
    struct endpoint listen;           /* to know an address of our own when we see it */
    uint32_t network_id;              /* of the swarm, by which trackers are told apart */
    const struct initial_peer *peers; /* configured; copied. Repeated ones count once. */
    size_t peer_count;
    const struct address *saved; /* of an earlier run; copied */
    size_t saved_count;
    const char *peers_file; /* copied; NULL: peers are not saved */
    uint32_t minute_ms;     /* tests: how long a minute is; 0: 60,000 */
    /*
     * Where those are that were given, configured and saved: whenever a name tells more, before its
     * addresses are contacted. A name that leads nowhere does not count. On the bootstrap's thread.
     */
    void (*placed)(void *arg, enum resolver_scope place);
    void *arg;
    const struct join_networks *networks; /* for finding out why peers do not answer; borrowed */
};

/* Contacts every numeric peer before it returns.
 * @return SKEP_INVALID_ARGUMENT for over BOOTSTRAP_MAX_PEERS; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status bootstrap_new(const struct bootstrap_config *config,
                                          struct bootstrap **out, struct skep_error *err);
/* Saves peers, ends the thread, frees. Waits for no name that is being looked up, nor for a
 * tracker. NULL is allowed. */
void bootstrap_free(struct bootstrap *bootstrap);

/* As swarm_wait_joined(). */
bool bootstrap_wait_joined(struct bootstrap *bootstrap, uint64_t deadline_us);
/*
 * Logs a line once a peer answers, which is at once where none is expected. Until then it warns, a
 * single time, that nobody has answered.
 * @param line  copied. @return SKEP_RESOURCE_EXHAUSTED if memory is short.
 */
SKEP_MUST_CHECK skep_status bootstrap_log_joined(struct bootstrap *bootstrap, const char *line,
                                                 struct skep_error *err);
/*
 * Finds out why no configured peer answers: about each what join_check_say() says, or why its name
 * or tracker gives no address. Waits for that, until the deadline or until a peer answers after
 * all.
 * @param out  a part of a sentence, cut where it has no room; just the peers' names if there was
 *             no time.
 * @return as bootstrap_wait_joined().
 */
bool bootstrap_explain(struct bootstrap *bootstrap, uint64_t deadline_us, char *out, size_t cap);
/* As the thread saw it last: at most a second old, milliseconds while joining. Never blocks. */
unsigned bootstrap_peer_count(struct bootstrap *bootstrap);

#endif
