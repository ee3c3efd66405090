/* Inside the runner, shared by its files: runner.c, runner_listen.c (listens), runner_short.c (gets
 * of short values). */
#ifndef SKEP_DHT_OPENDHT_RUNNER_INTERNAL_H
#define SKEP_DHT_OPENDHT_RUNNER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include "dht/opendht/opendht_ext.h"
#include "dht/opendht/runner.h"

struct runner {
    dht_runner *dht;
    const struct record_swarm *swarm; /* borrowed */
    struct served_values *served;     /* owned; of OpenDHT's thread */
    uint16_t port;
    atomic_ullong refused, misdated, sent_packets, sent_bytes; /* counters only: relaxed */
    pthread_mutex_t lock;                                      /* guards the fields below */
    pthread_cond_t ended;                                      /* an operation has ended */
    struct operation *operations;                              /* doubly linked, under way */
    size_t puts;                /* of these, puts whose `done` has not returned */
    bool closing;               /* nothing new is taken */
    struct runner_listen *idle; /* see runner_listen.c */
    size_t listens;             /* idle and in use */
};

/* runner.c. opendht_ext_query() with the promises of runner_get(). */
void runner_query(struct runner *runner, const uint8_t key[static RECORD_KEY_BYTES],
                  runner_value_fn value, runner_reply_fn reply, runner_done_fn done, void *arg);

/* runner_listen.c. Ends what can be ended of the listens that nobody uses. */
void runner_end_listens(struct runner *runner);
/* Frees those that are left once OpenDHT has gone, and they with it. */
void runner_free_listens(struct runner *runner);

#endif
