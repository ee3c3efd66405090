/*
 * Who keeps a UID that two nodes hold: decisions as functions of state, no I/O, no clock.
 *
 * docs/records.md, "Claims", is the rule in words. Thread: any.
 */
#ifndef SKEP_NODE_LIFECYCLE_UID_RULE_H
#define SKEP_NODE_LIFECYCLE_UID_RULE_H

#include <stdbool.h>
#include <stdint.h>
#include "dht/record/record.h"

/* How one node holds a UID. */
struct uid_hold {
    const uint8_t *peer_id;       /* PEER_ID_BYTES; borrowed */
    const uint8_t *schema_digest; /* 16 bytes; borrowed */
    struct record_claim claim;
};

enum uid_decision {
    UID_WAIT,         /* the other gives it up */
    UID_YIELD,        /* we give it up */
    UID_REPLICA,      /* both keep it, and somebody asked both for it by name */
    UID_DUPLICATE,    /* both keep it, though at least one of them picked it at random */
    UID_OTHER_SCHEMA, /* both keep it, with other shapes or another class */
};

enum uid_decision uid_judge(const char *uid, const struct uid_hold *mine,
                            const struct uid_hold *theirs);

/* What has happened so far to a UID that this node holds. */
struct uid_life {
    bool random;        /* picked out of a pattern */
    bool kept;          /* whatever happens: restored from a checkpoint, or nothing else is free */
    bool settled;       /* a look after the claim has found nobody who goes first */
    uint64_t updates;   /* optimizer steps */
    uint64_t joined_us; /* when it was first held among peers; 0: not yet */
};

enum { UID_FRESH_MS = 60 * 1000 }; /* among peers: after that an untrained expert is kept, too */

enum record_claim_level uid_level(const struct uid_life *life, uint64_t now_us);

#endif
