/* The verified nodes behind one UID, as a short list sorted by seq. */
#include "dht/provider_set.h"

#include <assert.h>
#include <string.h>

#include "base/alloc.h"

struct held {
    struct held *next;
    uint8_t peer_id[PEER_ID_BYTES];
    uint64_t seq;
    int64_t expires_at;
    struct record_load load;
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

/*
 * Whether there is room for h, `known` being what it would replace (or NULL). A peer's own entry
 * may always become a withdrawal, over the limit of these too: were it dropped for lack of room,
 * nothing would remember it, and a replay of the older record would bring the peer back to life.
 * The sum of both limits holds all the same, since newcomers are counted against it.
 */
static bool has_room(const struct provider_set *set, const struct held *known, const struct held *h)
{
    if (known != NULL && (h->offline || !known->offline))
        return true;
    if (known == NULL && set->live + set->withdrawn >= (size_t)2 * DIRECTORY_MAX_PROVIDERS)
        return false;
    return (h->offline ? set->withdrawn : set->live) < DIRECTORY_MAX_PROVIDERS;
}

bool provider_set_merge(struct provider_set *set, const struct record *record, int64_t now_s)
{
    struct held **known = find(set, record->peer_id);

    if (known != NULL && (*known)->seq >= record->seq)
        return false;
    struct held *h = pack(record);
    if (h == NULL)
        return false;
    if (!has_room(set, known != NULL ? *known : NULL, h)) {
        provider_set_expire(set, now_s);
        known = find(set, record->peer_id); /* links have moved, and it may have expired itself */
        if (!has_room(set, known != NULL ? *known : NULL, h)) {
            mem_free(h);
            return false;
        }
    }
    if (known != NULL)
        take_out(set, known);
    put_in(set, h);
    return true;
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

void provider_set_free(struct provider_set *set)
{
    while (set != NULL && set->first != NULL)
        take_out(set, &set->first);
}
