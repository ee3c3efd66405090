/*
 * What the clocks of peers show, as they say in their hellos, beside ours. Records are refused when
 * clocks differ too much (docs/records.md, "Times"), and whoever publishes them hears nothing of
 * that from the DHT; so whoever talks to a peer for another reason finds out here.
 *
 * Thread: any; it has a lock of its own.
 */
#ifndef SKEP_NET_PEER_CLOCKS_H
#define SKEP_NET_PEER_CLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/thread.h"
#include "crypto/identity.h"

enum {
    PEER_CLOCKS_KEPT = 15,          /* of so many peers, the last ones */
    PEER_CLOCKS_JURY = 3,           /* fewer cannot say whose clock is wrong */
    PEER_CLOCKS_OFF_MS = 60 * 1000, /* what is worth a warning */
};

struct peer_clock {
    uint8_t peer_id[PEER_ID_BYTES];
    int64_t ahead_ms; /* of ours */
};

struct peer_clocks {
    struct peer_clock kept[PEER_CLOCKS_KEPT];
    size_t count, next; /* `next` is overwritten by the next peer once there are enough */
};

/* What there is to say after a peer's clock was seen. */
enum peer_clocks_result {
    PEER_CLOCKS_FINE,
    PEER_CLOCKS_PEER_OFF, /* this peer's and ours differ; which one is wrong is open */
    PEER_CLOCKS_WE_ARE,   /* ours, as most peers have another time: *ahead_ms is their median */
};

/* Without lock and clock. *ahead_ms is that of the peer, or see above. */
enum peer_clocks_result peer_clocks_saw(struct peer_clocks *clocks,
                                        const uint8_t peer_id[static PEER_ID_BYTES],
                                        int64_t *ahead_ms);

/* The same for all connections of the process, against the wall clock; logs what there is to say,
 * once a minute. @param peer_ms  Unix milliseconds. */
void peer_clocks_note(const uint8_t peer_id[static PEER_ID_BYTES], uint64_t peer_ms);

#endif
