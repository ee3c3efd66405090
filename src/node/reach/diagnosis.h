/*
 * What a node concludes from the dial-backs of its peers: whether it can be reached and, if not,
 * which of the three usual faults it is and which option mends it. No sockets, no state.
 */
#ifndef SKEP_NODE_REACH_DIAGNOSIS_H
#define SKEP_NODE_REACH_DIAGNOSIS_H

#include <stdbool.h>
#include <stddef.h>

#include <skep/node.h>
#include "base/endpoint.h"

/* What one peer has told. */
struct diagnosis_answer {
    char peer[16];           /* short peer id */
    struct endpoint dialled; /* the address under which it sees us, and the announced port */
    bool is_announced;       /* the address is one of those announced */
    bool is_private;         /* it is of a private network */
    bool is_local;           /* it is one of this machine's own */
    bool tcp;                /* it got through */
    char why[256];           /* if not */
    bool tried_bound;        /* it has tried the port we listen on too, as another is announced */
    bool bound_tcp;          /* and got through there */
    enum { DIAGNOSIS_DHT_UNTRIED, DIAGNOSIS_DHT_SILENT, DIAGNOSIS_DHT_ANSWERS } dht;
    uint16_t dht_port; /* which was tried */
};

/* What is known without asking. */
struct diagnosis_evidence {
    struct endpoint announced; /* the first, if there are several */
    struct endpoint bound;
    bool by_hand;    /* --announce */
    bool resolves;   /* false: its host is a name without an address */
    bool is_private; /* an address of it is */
    bool is_local;   /* the same */
    bool leads_here; /* dialled from here, this node answers there */
};

struct diagnosis {
    enum skep_reachability state;
    char message[SKEP_REACHABILITY_BYTES];
};

/* @param count  at least 1. */
void diagnosis_reach(const struct diagnosis_evidence *evidence,
                     const struct diagnosis_answer *answers, size_t count, struct diagnosis *out);

/* Of private networks, of one link, or behind a carrier's translation: the same address may be
 * somebody else elsewhere. False for names. */
bool diagnosis_is_private(const struct endpoint *e);

#endif
