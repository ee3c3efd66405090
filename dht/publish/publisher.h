/*
 * The publisher: a thread that publishes somebody's records every update period, retries what
 * failed, and withdraws at the end. The DHT handler publishes a node's experts by it, the tracker's
 * registry a tracker's resources. Its user fills rounds (publisher_round.h) and reads the outcomes.
 *
 * Rounds over everything: at start, at once when the first peer appears, 5 s after the first round
 * among peers, then every period less up to a tenth. Failed records are tried again 1 s, 2 s,
 * 4 s... after their outcome, a period at most. At the end, rounds under way are cut short and a
 * last one withdraws.
 *
 * Thread: the publisher's own calls all callbacks, with no lock held but as noted. The functions
 * here may be called from any thread.
 */
#ifndef SKEP_DHT_PUBLISH_PUBLISHER_H
#define SKEP_DHT_PUBLISH_PUBLISHER_H

#include "dht/publish/publisher_round.h"
#include "dht/swarm/swarm.h"

struct publisher;

struct publisher_config {
    struct swarm *swarm;      /* borrowed until publisher_free() */
    const char *thread_name;  /* static */
    const char *log_name;     /* static: who says so in the log */
    uint32_t update_period_s; /* records live for twice as long, at least a minute */
    uint32_t round_ms;        /* time limit of a round */
    uint32_t change_pause_ms; /* between the beginnings of rounds of changes */
    unsigned max_rounds;      /* under way at once: with dead nodes near a key one takes seconds */
    /* Adds what belongs to the round. Nothing may be added: the round ends at once. */
    void (*fill)(void *arg, struct publisher_round *round);
    /* The round has ended: calls publisher_round_note(), under the lock that guards the statements
     * if other threads read them. */
    void (*ended)(void *arg, struct publisher_round *round);
    /* Whether a round over everything has to go out now: asked when the thread wakes, see
     * publisher_wake(), and no round is under way. It runs under the publisher's lock, so it calls
     * nothing here. May be NULL. */
    bool (*is_due)(void *arg);
    void *arg;
};

/* Starts the thread; the first round begins at once, maybe before this returns: *out is written
 * before. On failure *out is NULL. */
SKEP_MUST_CHECK skep_status publisher_new(const struct publisher_config *config,
                                          struct publisher **out, struct skep_error *err);
/* Withdraws, bounded by the deadline, and ends the thread: no callback comes any more. Not from a
 * callback. NULL is allowed. */
void publisher_stop(struct publisher *publisher, uint64_t deadline_us);
void publisher_free(struct publisher *publisher); /* stopped, or NULL */

/* A round over everything goes out soon. */
void publisher_refresh(struct publisher *publisher);
/* A round of changes goes out soon: something is urgent. */
void publisher_changed(struct publisher *publisher);
/* The thread wakes and asks is_due(). */
void publisher_wake(struct publisher *publisher);

#endif
