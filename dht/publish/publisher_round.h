/*
 * One round of publishing: the records to declare, and what readers may find of each afterwards.
 * The rules are here: what belongs to a round, when a record expires, how a withdrawal outlives the
 * record that it replaces, and what failed. No thread, no network, no clock.
 */
#ifndef SKEP_DHT_PUBLISH_PUBLISHER_ROUND_H
#define SKEP_DHT_PUBLISH_PUBLISHER_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "dht/directory/directory.h"

/* What one publisher has published under one key. Zeroed: nothing; `failed` makes it try. */
struct statement {
    int64_t until_s;    /* readers may find a live record of ours until then; 0: none */
    bool gone;          /* a withdrawal has replaced it */
    bool failed;        /* the last attempt failed, or there was none, or its outcome is open */
    unsigned under_way; /* rounds that publish it now: its owner keeps it */
};

enum publisher_scope {
    PUBLISH_ALL,
    PUBLISH_CHANGED, /* what failed in the rounds before, and what is urgent */
    PUBLISH_OFFLINE, /* withdraw everything that readers may still find */
};

struct publisher_round {
    enum publisher_scope scope;
    int64_t now_s; /* directory_now_ms() */
    uint32_t lifetime_s;
    uint32_t clock_skew_s;
    bool among_peers;  /* there were DHT peers when it began */
    bool is_cut;       /* a shutdown ended it early */
    unsigned failures; /* rounds in a row with failed records, up to now */

    size_t cap, count;
    struct record *records;           /* owned, and what is in them */
    struct declaration *declarations; /* owned */
    struct statement **statements;    /* owned array; NULL: a record that nobody follows up */
    size_t said, failed; /* of those with a statement: all, and after publisher_round_note() */
};

/* Room for so many records in all. False if memory is short. */
SKEP_MUST_CHECK bool publisher_round_reserve(struct publisher_round *round, size_t cap);
void publisher_round_fini(struct publisher_round *round); /* zeroed is allowed */

/* Whether the round publishes this. @param alive   there is something to say but "gone".
 * @param urgent  others must learn of it before the period is over. */
bool statement_is_due(const struct statement *statement, const struct publisher_round *round,
                      bool alive, bool urgent);
/* Whether readers may still find a live record. */
bool statement_is_known(const struct statement *statement, const struct publisher_round *round);

/* The next record, zeroed, for the caller to fill in; it counts once it is said. There is room. */
struct record *publisher_round_next(struct publisher_round *round);
/* Adds that record. It expires after the lifetime, a withdrawal when nobody takes what it replaces
 * for valid any more. @param statement  the owner keeps it while `under_way` is not 0. */
void publisher_round_say(struct publisher_round *round, struct statement *statement, bool alive,
                         const uint8_t key[static RECORD_KEY_BYTES]);
/* Adds a record that no statement follows up, with the expiry that the caller gave it. */
void publisher_round_add(struct publisher_round *round, const uint8_t key[static RECORD_KEY_BYTES]);

/* Every declaration has its outcome: notes it with each statement. */
void publisher_round_note(struct publisher_round *round);

#endif
