/* What bootstrap.c (contacting, joining, life) and bootstrap_explain.c (why a peer does not answer)
 * share. */
#ifndef SKEP_DHT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H
#define SKEP_DHT_BOOTSTRAP_BOOTSTRAP_INTERNAL_H

#include <pthread.h>

#include "base/log.h"
#include "base/thread.h"
#include "dht/bootstrap/bootstrap.h"
#include "dht/bootstrap/peers_seen.h"

enum { EXPLANATION_BYTES = 2048 };

struct peer {
    struct initial_peer initial;
    char text[INITIAL_PEER_TEXT_BYTES];
    bool is_name, saved;   /* is_name: also a tracker */
    uint64_t resolving_us; /* since when its name is being resolved; 0: it is not */
    enum resolver_scope place;
    bool self; /* one of our own addresses */
    size_t address_count;
    struct address addresses[RESOLVER_MAX_ADDRESSES];
    uint64_t contact_us; /* when to try next */
    uint64_t tried_us;   /* first try since it was last there; 0: none */
    unsigned tries;
    bool present; /* in the routing table */
    bool complained;
    bool complain; /* as soon as it is known why it does not answer */
    struct log_limit gate;
    struct join_check *checks; /* under way; owned; NULL: none */
    size_t check_count;
    char why[SKEP_ERROR_MESSAGE_BYTES]; /* it does not answer; "": not known */
};

struct bootstrap {
    struct runner *runner;
    struct endpoint listen;
    void (*placed)(void *arg, enum resolver_scope place);
    void *arg;
    const struct join_networks *networks;
    char *peers_file;
    uint32_t minute_ms;
    struct resolver *resolver;
    struct thread thread;
    /* The thread alone: */
    struct peer *peers;
    size_t peer_count;
    struct address *known;
    size_t known_count;
    struct peers_seen seen;
    uint64_t started_us, save_us, hurry_us;
    uint64_t introduce_us; /* when next */
    unsigned introduced;   /* times since we were connected */
    bool was_connected;
    size_t checking;    /* peers that are looked into */
    bool is_explaining; /* those that were to be looked into are */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    bool closing;
    bool woken;
    bool expects_peers; /* some were configured or saved, other than ourselves */
    unsigned good;
    char *joined_line; /* to be logged then; owned */
    bool is_late_said;
    unsigned explain_asked, explain_begun, explain_done; /* counted */
    char explanation[EXPLANATION_BYTES];
};

/* ---- bootstrap_explain.c; the bootstrap's thread, without the lock ---- */

/* False if nothing can be looked into: there is no address, or no room. */
bool peer_check_begin(struct bootstrap *b, struct peer *p);
void peer_check_end(struct bootstrap *b, struct peer *p);
/* Logs that it does not answer, and why as far as that is known. */
void peer_complain(struct peer *p);
/* Goes on with what is looked into, and hands out what bootstrap_explain() waits for. */
void peer_checks_look(struct bootstrap *b);

#endif
