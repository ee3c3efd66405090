/*
 * Which DHT peers answer. OpenDHT takes a peer for good for up to two hours after its last reply
 * and needs up to ten seconds to find out that one is gone; meanwhile it names it to others, who
 * ask it as well. This table learns from the questions and replies of one runner who answers. It
 * says which peer to ping, and which one to give up.
 *
 * A peer is gone if it left several questions without a reply for a while, and another peer has
 * replied meanwhile: a network that is down makes nobody gone. Only a reply of the peer itself
 * proves that it is there, and only its own silence that it is gone: a stranger can do neither for
 * it. A peer that is gone is pinged again after 1, 2, 4, 8 and 16 s (for no longer than it
 * had been there), and whenever it sends something; it is not asked anything else until it
 * replies.
 *
 * One thread at a time. No I/O and no clock: times are monotonic microseconds.
 */
#ifndef SKEP_DHT_OPENDHT_LIVENESS_H
#define SKEP_DHT_OPENDHT_LIVENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LIVENESS_MAX_PEERS = 4096,   /* further ones are not followed */
    LIVENESS_MAX_ACTIONS = 64,   /* of one call of liveness_due() */
    LIVENESS_PROBES_PER_S = 32,  /* pings of peers that are quiet, at most */
    LIVENESS_RETRIES_PER_S = 16, /* pings of peers that are gone, at most */
};

struct liveness;

/* @param forget  frees what a slot holds (see liveness_slot()). */
struct liveness *liveness_new(void (*forget)(void *held)); /* NULL: no memory */
void liveness_free(struct liveness *liveness);             /* NULL is allowed */

/*
 * A question is about to be sent. Who has neither sent anything nor been named is not followed.
 * @return false: the peer is gone; do not send it. Pings may be sent now and then.
 */
bool liveness_asks(struct liveness *liveness, const struct sockaddr *peer, bool is_ping,
                   uint64_t now_us);
/* A message of the peer has come: a reply to a question of ours, or something else. */
void liveness_hears(struct liveness *liveness, const struct sockaddr *peer, bool is_reply,
                    uint64_t now_us);
/* Another peer names this one. Returns false if it is gone: the caller ignores the name. */
bool liveness_is_named(struct liveness *liveness, const struct sockaddr *peer, uint64_t now_us);
/* A client has the address now: those are not followed. */
void liveness_forget(struct liveness *liveness, const struct sockaddr *peer);
bool liveness_is_gone(const struct liveness *liveness, const struct sockaddr *peer);

/*
 * Where the caller keeps something for the peer; NULL at first.
 * @return NULL if the peer is not followed. Valid until the next call of another function.
 */
void **liveness_slot(struct liveness *liveness, const struct sockaddr *peer);

struct liveness_action {
    enum liveness_what {
        LIVENESS_PING,
        LIVENESS_PROBE, /* ping it, if anybody is to hear of it from us */
        LIVENESS_GIVE_UP,
    } what;
    void *held; /* of the slot; may be NULL */
};
/* What to do now. A ping that is sent comes back as liveness_asks(). Returns how many. */
size_t liveness_due(struct liveness *liveness, uint64_t now_us,
                    struct liveness_action out[LIVENESS_MAX_ACTIONS]);
/* When to call liveness_due() next; UINT64_MAX: not before something happens. */
uint64_t liveness_next_us(const struct liveness *liveness);

#ifdef __cplusplus
}
#endif
#endif
