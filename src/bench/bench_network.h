/*
 * A network of DHT peers for benchmarks, spread over processes of this program, so that some of
 * them can be killed as a crash kills them. Must be made before this process starts threads.
 */
#ifndef SKEP_BENCH_BENCH_NETWORK_H
#define SKEP_BENCH_BENCH_NETWORK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <skep/status.h>

enum {
    BENCH_NETWORK_PROCESS_PEERS = 16, /* most in one process: descriptors below 1024 are few */
    BENCH_NETWORK_MAX_PEERS = 1024,
    BENCH_NETWORK_MAX_PROCESSES = 256,
    BENCH_LINE_BYTES = 160, /* a request or its answer, with NUL */
};

struct bench_process {
    pid_t pid;        /* 0: ended */
    int to, from;     /* pipes, from this process; -1: closed. Owned */
    size_t first_key; /* it publishes the experts bench.<first_key> ... */
    size_t first_peer;
    size_t peers, keys;
};

struct swarm;
struct identity;

/* What peers do, and publish if not "bench.<key>". */
struct bench_network_work {
    /*
     * Runs in each process, with its peers, number first_peer of the network and following; what
     * it starts goes on until the process ends.
     */
    skep_status (*publish)(void *arg, struct swarm *const *swarms, size_t first_peer, size_t count,
                           struct skep_error *err);
    /* Does what bench_network_ask() asks of one peer. `reply` is the answer, a line without its
     * end. NULL: they are asked for nothing. */
    skep_status (*serve)(struct swarm *peer, const char *request,
                         char reply[static BENCH_LINE_BYTES], struct skep_error *err);
    void *arg; /* of publish */
};

/* Zeroed memory is no network. */
struct bench_network {
    struct bench_process processes[BENCH_NETWORK_MAX_PROCESSES];
    size_t process_count;
    size_t peers, keys;                    /* altogether */
    uint16_t port;                         /* of the first peer, on 127.0.0.1 */
    const struct bench_network_work *work; /* borrowed; NULL: as bench_network_start() says */
};

extern const char bench_network_swarm[]; /* the swarm's name */

/*
 * Starts `peers` peers in `processes` processes, all joined through the first peer, which publish
 * the experts "bench.0" to "bench.<keys - 1>" between them, each record once, for an hour.
 * @return SKEP_DEADLINE_EXCEEDED or SKEP_UNAVAILABLE if they don't get there;
 *         SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status bench_network_start(struct bench_network *network, size_t peers,
                                                size_t processes, size_t keys,
                                                struct skep_error *err);
/*
 * The same in two steps, so that others can join before anything is published: peers that have
 * joined; then what `work` publishes (borrowed until bench_network_stop()). Peers join one after
 * the other. The second step may be left out.
 */
SKEP_MUST_CHECK skep_status bench_network_open(struct bench_network *network, size_t peers,
                                               size_t processes,
                                               const struct bench_network_work *work,
                                               struct skep_error *err);
SKEP_MUST_CHECK skep_status bench_network_publish(struct bench_network *network,
                                                  struct skep_error *err);
/*
 * Has a peer serve a request and waits for the answer.
 * @param request  without spaces around it or a line's end, shorter than BENCH_LINE_BYTES - 8.
 * @return SKEP_UNAVAILABLE if the peer's process ended, also because serving failed (it says why);
 *         SKEP_DEADLINE_EXCEEDED.
 */
SKEP_MUST_CHECK skep_status bench_network_ask(struct bench_network *network, size_t peer,
                                              const char *request,
                                              char reply[static BENCH_LINE_BYTES],
                                              struct skep_error *err);

/* What the network has used so far. */
struct bench_usage {
    uint64_t packets, bytes; /* UDP datagrams all peers sent, and their payload */
    uint64_t cpu_ns;         /* of their processes */
    uint64_t resident_bytes; /* now; what processes share is counted in each */
};
SKEP_MUST_CHECK skep_status bench_network_usage(struct bench_network *network,
                                                struct bench_usage *out, struct skep_error *err);

/* Kills the last processes, as many as hold at least so many peers. Returns how many peers that
 * were. The first process is never killed. */
size_t bench_network_kill(struct bench_network *network, size_t peers);
void bench_network_stop(struct bench_network *network); /* zeroed is allowed */

/* Joins the network with this process as one more peer. @param port  the network's.
 * @param identity  borrowed until the swarm is left. @param out  owned: swarm_leave(); may be set
 * after a failure, too. */
SKEP_MUST_CHECK skep_status bench_network_join(uint16_t port, const struct identity *identity,
                                               struct swarm **out, struct skep_error *err);

#endif
