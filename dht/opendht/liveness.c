/* See liveness.h. */
#include "dht/opendht/liveness.h"

#include <netinet/in.h>
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash_table.h"
#include "crypto/keyed_hash.h"

enum {
    KEY_BYTES = 20, /* family, port, host */

    MS = 1000,
    S = 1000 * MS,
    NEVER_LOOK_SOONER = 50 * MS, /* between two looks at all peers */

    /* A peer that never replied to us and was only named by others costs a lookup its time. */
    NEW_PATIENCE = 500 * MS,
    NEW_AGAIN = 200 * MS,
    NEW_QUESTIONS = 2,
    /* Most peers that end do so soon after they came. */
    YOUNG = 30 * S,
    YOUNG_PATIENCE = 1500 * MS,
    OLD_PATIENCE = 3 * S,
    AGAIN = 500 * MS,
    QUESTIONS = 3,
    APART = 50 * MS,   /* questions that count */
    PINGS_AT_MOST = 6, /* after one question that has no reply */
    /* Patience is at least so many times the slowest reply of late: the machine may be busy. */
    SLOWNESS = 8,

    /* A peer that has been there for a time is likely to stay for as long again. */
    PROBE_SOONEST = 2 * S,
    PROBE_LATEST = 60 * S,

    RETRIES = 5,            /* 1, 2, 4, 8, 16 s after the one before */
    RETRY_AT_LEAST = 2 * S, /* pauses; longer ones only up to the time that the peer was there */
    RETRY_IF_HEARD = 1 * S,
    RETRY_IF_NAMED = 60 * S,

    PING_GONE = 2 * S, /* at most one ping in so long */

    OUTAGE = 1 * S, /* silence of everybody for so long: nothing is known of the time before */
    LATE = 100 * MS,
};

static const uint64_t forget_after_us = (uint64_t)300 * S;

struct peer {
    struct hash_node by_key;
    uint8_t key[KEY_BYTES];
    void *held;
    uint64_t first_seen_us; /* first reply since it was last gone; 0: none */
    uint64_t replied_us;    /* last reply */
    uint64_t touched_us;    /* last question or message */
    uint64_t asked_us;      /* first question since the last reply; 0: none is open */
    uint64_t ping_us;       /* when to ping it next; UINT64_MAX: not at all */
    uint64_t tried_us;      /* last retry */
    uint64_t let_us;        /* last ping sent while it was gone */
    uint64_t counted_us;    /* last question that counts: those at once are lost at once */
    unsigned questions;     /* since asked_us */
    unsigned pings;         /* the same: those of ours */
    unsigned retries;
    bool gone;
};

/* Of pings a second: how many may be sent, as the time in which they come up. */
struct budget {
    uint64_t used_us;
};

struct liveness {
    void (*forget)(void *held);
    struct hash_table table;
    uint64_t reply_us;  /* last reply of anybody */
    uint64_t silent_us; /* first question of all since that; 0: none is open */
    uint64_t slow_us;   /* slowest reply of late */
    bool awaits_reply;  /* of anybody, for somebody to be gone */
    uint64_t next_us;
    uint64_t looked_us;
    struct budget probes, retries;
};

struct liveness *liveness_new(void (*forget)(void *held))
{
    struct liveness *p = mem_calloc(1, sizeof(*p));

    if (p == NULL || !hash_table_init(&p->table, 0)) {
        mem_free(p);
        return NULL;
    }
    p->forget = forget;
    p->next_us = UINT64_MAX;
    return p;
}

static struct peer *peer_of(struct hash_node *node)
{
    return HASH_HOLDER(node, struct peer, by_key);
}

static void peer_free(struct liveness *p, struct peer *peer)
{
    hash_table_remove(&p->table, &peer->by_key);
    if (peer->held != NULL)
        p->forget(peer->held);
    mem_free(peer);
}

static void free_each(struct hash_node *node, void *arg)
{
    peer_free(arg, peer_of(node));
}

void liveness_free(struct liveness *p)
{
    if (p == NULL)
        return;
    hash_table_each(&p->table, 0, free_each, p);
    hash_table_fini(&p->table);
    mem_free(p);
}

/* ---- the table ---- */

static bool make_key(const struct sockaddr *sa, uint8_t key[static KEY_BYTES])
{
    memset(key, 0, KEY_BYTES);
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)sa;
        key[0] = 4;
        memcpy(key + 2, &in->sin_port, sizeof(in->sin_port));
        memcpy(key + 4, &in->sin_addr, sizeof(in->sin_addr));
        return true;
    }
    if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;
        key[0] = 6;
        memcpy(key + 2, &in6->sin6_port, sizeof(in6->sin6_port));
        memcpy(key + 4, &in6->sin6_addr, sizeof(in6->sin6_addr));
        return true;
    }
    return false;
}

static struct peer *find(const struct liveness *p, const struct sockaddr *sa)
{
    uint8_t key[KEY_BYTES];

    if (!make_key(sa, key))
        return NULL;
    for (struct hash_node *n = hash_table_first(&p->table, keyed_hash(key, KEY_BYTES)); n != NULL;
         n = hash_table_next(n))
        if (memcmp(peer_of(n)->key, key, KEY_BYTES) == 0)
            return peer_of(n);
    return NULL;
}

static struct peer *find_or_add(struct liveness *p, const struct sockaddr *sa, uint64_t now_us)
{
    struct peer *peer = find(p, sa);

    if (peer == NULL && p->table.count < LIVENESS_MAX_PEERS)
        peer = mem_calloc(1, sizeof(*peer));
    else if (peer == NULL)
        return NULL;
    if (peer == NULL || peer->touched_us != 0)
        return peer;
    if (!make_key(sa, peer->key)) {
        mem_free(peer);
        return NULL;
    }
    peer->touched_us = now_us;
    peer->ping_us = UINT64_MAX;
    hash_table_add(&p->table, &peer->by_key, keyed_hash(peer->key, KEY_BYTES));
    return peer;
}

static void wake_at(struct liveness *p, uint64_t at_us)
{
    if (at_us < p->next_us)
        p->next_us = at_us;
}

/* ---- what happens ---- */

static uint64_t again_us(const struct peer *peer)
{
    return peer->first_seen_us == 0 ? NEW_AGAIN : AGAIN;
}

bool liveness_asks(struct liveness *p, const struct sockaddr *sa, bool is_ping, uint64_t now_us)
{
    struct peer *peer = find(p, sa);

    if (peer == NULL)
        return true;
    if (peer->gone) {
        /* OpenDHT sends a ping up to three times; one is enough here. */
        bool may = is_ping && now_us - peer->let_us >= PING_GONE;
        if (may)
            peer->let_us = now_us;
        return may;
    }
    if (p->silent_us == 0)
        p->silent_us = now_us;
    peer->touched_us = now_us;
    if (peer->asked_us == 0) {
        peer->asked_us = now_us;
        peer->questions = 0;
        peer->pings = 0;
        peer->ping_us = now_us + again_us(peer);
        wake_at(p, peer->ping_us);
    }
    if (peer->questions == 0 || now_us - peer->counted_us >= APART) {
        peer->questions++;
        peer->counted_us = now_us;
    }
    return true;
}

/*
 * Nobody replied for a while, though somebody was asked: the network or this machine may have stood
 * still. Whoever has not replied yet is asked anew.
 */
static void ask_anew(struct hash_node *node, void *arg)
{
    struct peer *peer = peer_of(node);
    const uint64_t *now_us = arg;

    if (peer->gone || peer->asked_us == 0)
        return;
    peer->asked_us = *now_us;
    peer->questions = 0;
    peer->pings = 0;
    peer->ping_us = *now_us;
}

static void end_outage(struct liveness *p, uint64_t now_us)
{
    hash_table_each(&p->table, 0, ask_anew, &now_us);
    wake_at(p, now_us);
}

static void take_reply(struct liveness *p, struct peer *peer, uint64_t now_us)
{
    if (peer->asked_us != 0 && peer->questions == 1) {
        uint64_t took = now_us - peer->asked_us;
        p->slow_us -= p->slow_us / 64;
        if (took > p->slow_us)
            p->slow_us = took < OUTAGE ? took : OUTAGE;
    }
    if (peer->gone || peer->first_seen_us == 0)
        peer->first_seen_us = now_us;
    peer->gone = false;
    peer->asked_us = 0;
    peer->replied_us = now_us;
    p->reply_us = now_us;
    if (p->awaits_reply)
        wake_at(p, now_us);
    p->awaits_reply = false;

    uint64_t pause = now_us - peer->first_seen_us;
    if (pause < PROBE_SOONEST)
        pause = PROBE_SOONEST;
    else if (pause > PROBE_LATEST)
        pause = PROBE_LATEST;
    /* Up to a quarter less, so that nodes do not stay in step. */
    peer->ping_us = now_us + pause - randombytes_uniform((uint32_t)(pause / 4) + 1);
    wake_at(p, peer->ping_us);
    if (p->silent_us != 0 && now_us - p->silent_us > OUTAGE)
        end_outage(p, now_us);
    p->silent_us = 0;
}

/* A sign of life of a peer that is gone: it is pinged, if that was not done just now. */
static void try_again(struct liveness *p, struct peer *peer, uint64_t pause_us, uint64_t now_us)
{
    uint64_t at_us = peer->tried_us + pause_us;

    if (at_us < now_us)
        at_us = now_us;
    if (at_us >= peer->ping_us)
        return;
    peer->ping_us = at_us;
    peer->touched_us = now_us;
    wake_at(p, at_us);
}

void liveness_hears(struct liveness *p, const struct sockaddr *sa, bool is_reply, uint64_t now_us)
{
    struct peer *peer = find_or_add(p, sa, now_us);

    if (peer == NULL)
        return;
    if (is_reply) {
        peer->touched_us = now_us;
        take_reply(p, peer, now_us);
    } else if (peer->gone) {
        try_again(p, peer, RETRY_IF_HEARD, now_us);
    }
}

bool liveness_is_named(struct liveness *p, const struct sockaddr *sa, uint64_t now_us)
{
    struct peer *peer = find_or_add(p, sa, now_us);

    if (peer == NULL || !peer->gone)
        return true;
    if (now_us - peer->tried_us >= RETRY_IF_NAMED)
        try_again(p, peer, RETRY_IF_NAMED, now_us);
    return false;
}

void liveness_forget(struct liveness *p, const struct sockaddr *sa)
{
    struct peer *peer = find(p, sa);

    if (peer == NULL)
        return;
    peer_free(p, peer);
}

bool liveness_is_gone(const struct liveness *p, const struct sockaddr *sa)
{
    const struct peer *peer = find(p, sa);

    return peer != NULL && peer->gone;
}

void **liveness_slot(struct liveness *p, const struct sockaddr *sa)
{
    struct peer *peer = find(p, sa);

    return peer != NULL ? &peer->held : NULL;
}

/* ---- what to do ---- */

struct look {
    struct liveness *liveness;
    uint64_t now_us;
    struct liveness_action *out;
    size_t count;
    bool wants_witness; /* somebody is silent, and nobody else has been asked */
};

static bool add_action(struct look *l, struct peer *peer, enum liveness_what what)
{
    if (l->count == LIVENESS_MAX_ACTIONS)
        return false;
    if (peer->held != NULL) {
        l->out[l->count].what = what;
        l->out[l->count++].held = peer->held;
    }
    return true;
}

static bool spend(struct budget *budget, unsigned per_s, uint64_t now_us)
{
    const uint64_t one = S / per_s;

    if (budget->used_us + S < now_us)
        budget->used_us = now_us - S;
    if (budget->used_us + one > now_us)
        return false;
    budget->used_us += one;
    return true;
}

static uint64_t patience_us(const struct liveness *p, const struct peer *peer, uint64_t now_us)
{
    uint64_t patience = peer->first_seen_us == 0               ? NEW_PATIENCE
                        : now_us - peer->first_seen_us < YOUNG ? YOUNG_PATIENCE
                                                               : OLD_PATIENCE;

    return patience > SLOWNESS * p->slow_us ? patience : SLOWNESS * p->slow_us;
}

static bool is_lost(const struct liveness *p, const struct peer *peer, uint64_t now_us)
{
    return peer->questions >= (peer->first_seen_us == 0 ? NEW_QUESTIONS : QUESTIONS) &&
           now_us - peer->asked_us >= patience_us(p, peer, now_us) && p->reply_us > peer->asked_us;
}

static void look_at_gone(struct liveness *p, struct peer *peer, struct look *l)
{
    if (peer->ping_us > l->now_us)
        return;
    if (!spend(&p->retries, LIVENESS_RETRIES_PER_S, l->now_us) ||
        !add_action(l, peer, LIVENESS_PING)) {
        peer->ping_us = l->now_us + NEVER_LOOK_SOONER;
        return;
    }
    peer->tried_us = l->now_us;
    uint64_t pause_us = (uint64_t)S << ++peer->retries;
    uint64_t stay_us = peer->replied_us - peer->first_seen_us;
    bool again = peer->retries < RETRIES &&
                 pause_us <= (stay_us > RETRY_AT_LEAST ? stay_us : RETRY_AT_LEAST);
    peer->ping_us = again ? l->now_us + pause_us : UINT64_MAX;
}

static void look_at_silent(struct liveness *p, struct peer *peer, struct look *l)
{
    if (is_lost(p, peer, l->now_us)) {
        if (!add_action(l, peer, LIVENESS_GIVE_UP)) {
            peer->ping_us = l->now_us; /* at the next look */
            return;
        }
        peer->gone = true;
        peer->asked_us = 0;
        peer->retries = 0;
        peer->tried_us = l->now_us;
        peer->ping_us = l->now_us + S;
        return;
    }
    if (p->reply_us <= peer->asked_us) {
        l->wants_witness = true;
        p->awaits_reply = true;
    }
    if (peer->ping_us > l->now_us)
        return;
    if (peer->pings < PINGS_AT_MOST && add_action(l, peer, LIVENESS_PING))
        peer->pings++;
    peer->ping_us = peer->pings < PINGS_AT_MOST ? l->now_us + again_us(peer) : UINT64_MAX;
}

static void look_at(struct liveness *p, struct peer *peer, struct look *l)
{
    if (peer->gone) {
        look_at_gone(p, peer, l);
    } else if (peer->asked_us != 0) {
        look_at_silent(p, peer, l);
    } else if (peer->ping_us <= l->now_us) {
        if (spend(&p->probes, LIVENESS_PROBES_PER_S, l->now_us) &&
            add_action(l, peer, LIVENESS_PROBE))
            peer->ping_us = l->now_us + PROBE_LATEST; /* if the caller does not ping it */
        else
            peer->ping_us = l->now_us + NEVER_LOOK_SOONER;
    }
}

/* The one that has been there for longest, of those with no question open. */
static void find_oldest(struct hash_node *node, void *arg)
{
    struct peer *peer = peer_of(node), **oldest = arg;

    if (!peer->gone && peer->asked_us == 0 && peer->first_seen_us != 0 && peer->held != NULL &&
        (*oldest == NULL || peer->first_seen_us < (*oldest)->first_seen_us))
        *oldest = peer;
}

static void ask_witness(struct liveness *p, struct look *l)
{
    struct peer *oldest = NULL;

    hash_table_each(&p->table, 0, find_oldest, &oldest);
    if (oldest != NULL && add_action(l, oldest, LIVENESS_PING))
        oldest->ping_us = l->now_us + PROBE_LATEST;
}

static uint64_t earlier(uint64_t a_us, uint64_t b_us)
{
    return a_us < b_us ? a_us : b_us;
}

/* We come late to look: this process stood still, and replies may wait to be read. */
struct delay {
    uint64_t late_us, now_us;
};

static void allow_peer(struct hash_node *node, void *arg)
{
    struct peer *peer = peer_of(node);
    const struct delay *delay = arg;

    if (!peer->gone && peer->asked_us != 0)
        peer->asked_us = earlier(peer->asked_us + delay->late_us, delay->now_us);
}

static void allow_for_delay(struct liveness *p, const struct delay *delay)
{
    hash_table_each(&p->table, 0, allow_peer, (void *)(uintptr_t)delay);
    if (p->silent_us != 0)
        p->silent_us = earlier(p->silent_us + delay->late_us, delay->now_us);
}

static uint64_t due_us(const struct liveness *p, const struct peer *peer, uint64_t now_us)
{
    uint64_t due = peer->ping_us;

    if (!peer->gone && peer->asked_us != 0) {
        uint64_t lost = peer->asked_us + patience_us(p, peer, now_us);
        if (lost < due && lost > now_us)
            due = lost;
    }
    return due;
}

static void forget_or_look(struct hash_node *node, void *arg)
{
    struct peer *peer = peer_of(node);
    struct look *l = arg;

    if (l->now_us - peer->touched_us > forget_after_us)
        peer_free(l->liveness, peer);
    else
        look_at(l->liveness, peer, l);
}

static void wake_for(struct hash_node *node, void *arg)
{
    const struct look *l = arg;

    wake_at(l->liveness, due_us(l->liveness, peer_of(node), l->now_us));
}

size_t liveness_due(struct liveness *p, uint64_t now_us,
                    struct liveness_action out[LIVENESS_MAX_ACTIONS])
{
    struct look l = {.liveness = p, .now_us = now_us, .out = out};

    if (now_us < liveness_next_us(p))
        return 0;
    const uint64_t since_us = liveness_next_us(p);
    if (now_us - since_us > LATE)
        allow_for_delay(p, &(struct delay){.late_us = now_us - since_us, .now_us = now_us});
    p->looked_us = now_us;
    p->next_us = UINT64_MAX;
    /* From anywhere, so that a budget that is short serves all. */
    hash_table_each(&p->table, randombytes_random(), forget_or_look, &l);
    if (l.wants_witness)
        ask_witness(p, &l);
    hash_table_each(&p->table, 0, wake_for, &l);
    return l.count;
}

uint64_t liveness_next_us(const struct liveness *p)
{
    if (p->next_us == UINT64_MAX)
        return UINT64_MAX;
    uint64_t soonest = p->looked_us + NEVER_LOOK_SOONER;
    return p->next_us > soonest ? p->next_us : soonest;
}
