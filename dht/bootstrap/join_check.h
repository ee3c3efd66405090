/*
 * Why a peer that was given to join by does not answer: one address is pinged under our network and
 * some others, its TCP port is tried, and a port of it that surely nobody has. Asked for only when
 * joining has failed.
 *
 * Threads: one at a time. Nothing blocks: look again and again, JOIN_CHECK_MS in all.
 */
#ifndef SKEP_DHT_BOOTSTRAP_JOIN_CHECK_H
#define SKEP_DHT_BOOTSTRAP_JOIN_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/endpoint.h"

enum {
    JOIN_CHECK_MS = 600,     /* round trips of up to half of it are noticed */
    JOIN_CHECK_NETWORKS = 4, /* our own first */
    JOIN_CHECK_TEXT_BYTES = 320,
    JOIN_CHECK_TCP = 2, /* connections: one asks as a peer, then one as a tracker's client */
    JOIN_CHECK_FAR = 2, /* ports that surely nobody has */
};

/* Networks whose peers are told apart. An OpenDHT peer ignores packets of another network. */
struct join_networks {
    size_t count; /* at least 1 */
    uint32_t ids[JOIN_CHECK_NETWORKS];
    const char *texts[JOIN_CHECK_NETWORKS]; /* "a DHT peer of ..."; borrowed until _end() */
    bool has_key;                           /* ours has a swarm key */
};

/* What is at the address. From the most telling to the least. */
enum join_finding {
    JOIN_ANSWERS, /* a peer of our network */
    JOIN_OTHER,   /* a peer of another network that we know */
    JOIN_CALLS,   /* a Skep node serves calls on that port (TCP), and no DHT peer answers */
    JOIN_TRACKER, /* the same with a tracker */
    JOIN_TAKEN,   /* something has the UDP port, and does not answer us */
    JOIN_NOTHING, /* the host says that nothing has the UDP port */
    JOIN_NO_WAY,  /* the host, or its network, cannot be reached */
    JOIN_SILENT,  /* nothing came back */
    JOIN_FINDINGS
};

struct join_tcp {
    int fd; /* -1: closed */
    bool is_begun, asked, is_over;
    uint8_t answer[16];
    size_t len;
};

struct join_check {
    const struct join_networks *networks;
    struct address address;
    uint64_t due_us, ping_us; /* the end; the next round of pings */
    uint32_t ids[JOIN_CHECK_NETWORKS];
    int udp, far[JOIN_CHECK_FAR];
    struct join_tcp tcp[JOIN_CHECK_TCP];
    int answered; /* index of the network; -1: none */
    bool is_refused, is_far_refused;
    int no_way; /* an errno; 0: there is one */
};

/* @param networks  borrowed until join_check_end(). */
void join_check_begin(struct join_check *check, const struct address *address,
                      const struct join_networks *networks);
/* Whether it is over: something telling was found, or the time is up. */
bool join_check_look(struct join_check *check);
void join_check_end(struct join_check *check);

enum join_finding join_check_finding(const struct join_check *check);
/* What that means and what to do, as part of a sentence. Returns out. */
const char *join_check_say(const struct join_check *check, char out[static JOIN_CHECK_TEXT_BYTES]);

#endif
