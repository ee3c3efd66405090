/*
 * Whether DHT ports can be reached from here: pings them, each from a socket of its own, so that no
 * firewall lets the answer's question through because of older traffic.
 *
 * Threads: a loop of its own, started by the first probe; `done` runs on it. Other functions from
 * any thread, but udp_probes_free() when no other is running any more.
 */
#ifndef SKEP_NODE_REACH_UDP_PROBE_H
#define SKEP_NODE_REACH_UDP_PROBE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <skep/status.h>
#include "base/endpoint.h"
#include "base/list.h"
#include "net/loop.h"

struct udp_probe;

struct udp_probes {
    pthread_mutex_t lock;   /* guards the making of `loop` */
    struct loop *loop;      /* owned; NULL until needed */
    struct linked_list all; /* under way; the loop's */
};

void udp_probes_init(struct udp_probes *probes);
/* Ends what is under way (not answered). */
void udp_probes_fini(struct udp_probes *probes);

typedef void (*udp_probe_fn)(void *arg, bool answered);
/*
 * Pings up to three times within three seconds. A DHT of another network does not answer.
 * @param done  exactly once if this returns SKEP_OK.
 */
SKEP_MUST_CHECK skep_status udp_probe_start(struct udp_probes *probes,
                                            const struct address *address, uint32_t network_id,
                                            udp_probe_fn done, void *arg, struct skep_error *err);

#endif
