/* The verified nodes behind one UID, as a short list sorted by seq. */
#include "dht/directory/provider_set.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

struct held {
    struct held *next;
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq;
    int64_t expires_at;
    struct record_load load;
    struct record_claim claim;
    uint8_t schema_digest[16];
    char cls[32];
    uint32_t features;
    bool offline;
    uint8_t endpoint_count;
    uint16_t ports[RECORD_MAX_ENDPOINTS];
    char hosts[]; /* endpoint_count texts, each with its NUL */
};

static struct held *pack(const struct record *record)
{
    const struct record_expert *expert = &record->expert;
    size_t bytes = 0;

    for (size_t i = 0; i < expert->endpoint_count; i++)
        bytes += strlen(expert->endpoints[i].host) + 1;
    struct held *h = mem_calloc(1, sizeof(*h) + bytes);
    if (h == NULL)
        return NULL;
    memcpy(h->peer_id, record->peer_id, sizeof(h->peer_id));
    h->seq = record->seq;
    h->expires_at = record->expires_at;
    h->load = expert->load;
    h->claim = expert->claim;
    memcpy(h->schema_digest, expert->schema_digest, sizeof(h->schema_digest));
    memcpy(h->cls, expert->cls, sizeof(h->cls));
    h->features = expert->features;
    h->offline = expert->offline;
    h->endpoint_count = (uint8_t)expert->endpoint_count;

    char *at = h->hosts;
    for (size_t i = 0; i < expert->endpoint_count; i++) {
        size_t n = strlen(expert->endpoints[i].host) + 1;
        memcpy(at, expert->endpoints[i].host, n);
        h->ports[i] = expert->endpoints[i].port;
        at += n;
    }
    return h;
}

static void unpack(const struct held *h, struct provider *out)
{
    const char *at = h->hosts;

    memset(out, 0, sizeof(*out));
    memcpy(out->peer_id, h->peer_id, sizeof(out->peer_id));
    out->seq = h->seq;
    out->expires_at = h->expires_at;
    out->load = h->load;
    out->claim = h->claim;
    memcpy(out->schema_digest, h->schema_digest, sizeof(out->schema_digest));
    memcpy(out->cls, h->cls, sizeof(out->cls));
    out->features = h->features;
    out->endpoint_count = h->endpoint_count;
    for (size_t i = 0; i < h->endpoint_count; i++) {
        size_t n = strlen(at) + 1;
        memcpy(out->endpoints[i].host, at, n);
        out->endpoints[i].port = h->ports[i];
        at += n;
    }
}

static void take_out(struct provider_set *set, struct held **link)
{
    struct held *h = *link;

    assert(h != NULL);
    *link = h->next;
    if (h->offline)
        set->withdrawn--;
    else
        set->live--;
    mem_free(h);
}

static void put_in(struct provider_set *set, struct held *h)
{
    struct held **link = &set->first;

    while (*link != NULL && (*link)->seq >= h->seq)
        link = &(*link)->next;
    h->next = *link;
    *link = h;
    if (h->offline)
        set->withdrawn++;
    else
        set->live++;
}

static struct held **find(struct provider_set *set, const uint8_t *peer_id)
{
    for (struct held **link = &set->first; *link != NULL; link = &(*link)->next)
        if (memcmp((*link)->peer_id, peer_id, PEER_ID_BYTES) == 0)
            return link;
    return NULL;
}

uint64_t provider_set_seq(const struct provider_set *set,
                          const uint8_t peer_id[static PEER_ID_BYTES])
{
    for (const struct held *h = set->first; h != NULL; h = h->next)
        if (memcmp(h->peer_id, peer_id, PEER_ID_BYTES) == 0)
            return h->seq;
    return 0;
}

static size_t limit_of(const struct provider_set *set)
{
    return set->cap > 0 ? set->cap : DIRECTORY_MAX_PROVIDERS;
}

/*
 * Whether there is room for h, `known` being what it would replace (or NULL). A peer's own entry
 * may always become a withdrawal, over the limit of these too: were it dropped for lack of room,
 * nothing would remember it, and a replay of the older record would bring the peer back to life.
 * The sum of both limits holds all the same, since newcomers are counted against it: who serves
 * takes the place of a withdrawal then, see make_room().
 */
static bool has_room(const struct provider_set *set, const struct held *known, const struct held *h)
{
    if (known != NULL && (h->offline || !known->offline))
        return true;
    if (known == NULL && h->offline && set->live + set->withdrawn >= 2 * limit_of(set))
        return false;
    return (h->offline ? set->withdrawn : set->live) < limit_of(set);
}

static uint64_t place_of(const struct ranking *ranking, const uint8_t *peer_id)
{
    return peer_memory_rank(ranking->memory, peer_id, ranking->order_seed, ranking->now_us);
}

/* Among those that serve, the one of the highest place. */
static struct held **find_last(struct provider_set *set, const struct ranking *ranking,
                               uint64_t *rank)
{
    struct held **last = NULL;

    for (struct held **link = &set->first; *link != NULL; link = &(*link)->next) {
        uint64_t at = (*link)->offline ? 0 : place_of(ranking, (*link)->peer_id);
        if ((*link)->offline || (last != NULL && at <= *rank))
            continue;
        last = link;
        *rank = at;
    }
    return last;
}

bool provider_set_has_room(const struct provider_set *set,
                           const uint8_t peer_id[static PEER_ID_BYTES],
                           const struct ranking *ranking)
{
    uint64_t rank = 0;

    if (set->live < limit_of(set))
        return true;
    if (ranking->memory == NULL)
        return false;
    find_last((struct provider_set *)set, ranking, &rank);
    return place_of(ranking, peer_id) < rank;
}

/* The oldest withdrawal. */
static struct held **find_withdrawn(struct provider_set *set)
{
    struct held **oldest = NULL;

    for (struct held **link = &set->first; *link != NULL; link = &(*link)->next)
        if ((*link)->offline)
            oldest = link; /* sorted by seq, highest first */
    return oldest;
}

/* Takes out whoever has to make room for a newcomer. False if it is the newcomer who has to go. */
static bool make_room(struct provider_set *set, const struct held *h, const struct ranking *ranking)
{
    uint64_t rank = 0;

    if (h->offline)
        return has_room(set, NULL, h);
    if (!provider_set_has_room(set, h->peer_id, ranking))
        return false;
    if (set->live >= limit_of(set))
        take_out(set, find_last(set, ranking, &rank));
    else if (set->live + set->withdrawn >= 2 * limit_of(set))
        take_out(set, find_withdrawn(set));
    return true;
}

/* Puts h in, which is taken, unless something newer of its peer is there or there is no room. */
static bool merge(struct provider_set *set, struct held *h, int64_t now_s,
                  const struct ranking *ranking)
{
    struct held **known = find(set, h->peer_id);

    if (!has_room(set, known != NULL ? *known : NULL, h)) {
        provider_set_expire(set, now_s);
        known = find(set, h->peer_id); /* links have moved, and it may have expired itself */
    }
    bool fits = known != NULL ? has_room(set, *known, h) : make_room(set, h, ranking);
    if (!fits) {
        mem_free(h);
        return false;
    }
    if (known != NULL)
        take_out(set, known);
    put_in(set, h);
    return true;
}

bool provider_set_merge(struct provider_set *set, const struct record *record, int64_t now_s,
                        const struct ranking *ranking)
{
    struct held **known = find(set, record->peer_id);

    if (known != NULL && (*known)->seq >= record->seq)
        return false;
    struct held *h = pack(record);
    return h != NULL && merge(set, h, now_s, ranking);
}

static struct held *copy(const struct held *h)
{
    size_t bytes = 0;

    for (size_t i = 0; i < h->endpoint_count; i++)
        bytes += strlen(h->hosts + bytes) + 1;
    struct held *out = mem_alloc(sizeof(*out) + bytes);
    if (out != NULL)
        memcpy(out, h, sizeof(*out) + bytes);
    return out;
}

static bool has_answered(const struct held *h, const struct ranking *ranking)
{
    return !h->offline && peer_memory_is_answered(place_of(ranking, h->peer_id));
}

void provider_set_add_answered(struct provider_set *set, const struct provider_set *from,
                               int64_t now_s, const struct ranking *ranking)
{
    for (const struct held *h = from->first; h != NULL; h = h->next) {
        if (!has_answered(h, ranking) || h->expires_at <= now_s ||
            provider_set_seq(set, h->peer_id) >= h->seq)
            continue;
        struct held *mine = copy(h);
        if (mine != NULL)
            merge(set, mine, now_s, ranking);
    }
}

bool provider_set_is_spent(const struct provider_set *set, const struct ranking *ranking)
{
    if (set->live < limit_of(set))
        return false;
    for (const struct held *h = set->first; h != NULL; h = h->next)
        if (!h->offline && !peer_memory_is_failed(place_of(ranking, h->peer_id)))
            return false;
    return true;
}

void provider_set_keep_answered(struct provider_set *set, const struct ranking *ranking)
{
    struct held **link = &set->first;

    while (*link != NULL) {
        if (has_answered(*link, ranking))
            link = &(*link)->next;
        else
            take_out(set, link);
    }
}

void provider_set_drop_failed(struct provider_set *set, const struct ranking *ranking)
{
    struct held **link = &set->first;

    while (*link != NULL) {
        if (peer_memory_is_failed(place_of(ranking, (*link)->peer_id)))
            take_out(set, link);
        else
            link = &(*link)->next;
    }
}

void provider_set_expire(struct provider_set *set, int64_t now_s)
{
    struct held **link = &set->first;

    while (*link != NULL) {
        if ((*link)->expires_at <= now_s)
            take_out(set, link);
        else
            link = &(*link)->next;
    }
}

size_t provider_set_list(const struct provider_set *set, struct provider *out, size_t cap)
{
    size_t n = 0;

    for (const struct held *h = set->first; h != NULL && n < cap; h = h->next)
        if (!h->offline)
            unpack(h, &out[n++]);
    return n;
}

size_t provider_set_list_answered_first(const struct provider_set *set,
                                        const struct ranking *ranking, struct provider *out,
                                        size_t cap)
{
    size_t n = 0;

    for (int round = 0; round < 2; round++)
        for (const struct held *h = set->first; h != NULL && n < cap; h = h->next)
            if (!h->offline && has_answered(h, ranking) == (round == 0))
                unpack(h, &out[n++]);
    return n;
}

void provider_set_free(struct provider_set *set)
{
    while (set != NULL && set->first != NULL)
        take_out(set, &set->first);
}
