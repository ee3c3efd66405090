/* Requests that wait, and trackers that do not answer: see federation_internal.h. */
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "node/tracking/federation_internal.h"

enum {
    AGAIN_MAX_MS = 2000,
    AVOID_MS = 5000, /* a tracker that did not answer, and how it grows */
    AVOID_MAX_MS = 60000,
};

/* ---- wishes; the lock is held ---- */

static struct wish **bucket_of(struct federation *f, uint64_t id)
{
    return &f->buckets[id % FEDERATION_BUCKETS];
}

struct wish *wish_find(struct federation *f, uint64_t id)
{
    struct wish *w = *bucket_of(f, id);

    while (w != NULL && w->id != id)
        w = w->chain;
    return w;
}

struct wish *wish_add(struct federation *f, uint64_t id, const char *key, size_t len,
                      uint64_t look_us)
{
    struct wish *w = f->wish_count < FEDERATION_MAX_WISHES ? mem_calloc(1, sizeof(*w)) : NULL;

    if (w == NULL)
        return NULL;
    w->id = id;
    w->look_us = look_us;
    memcpy(w->key, key, len);
    w->chain = *bucket_of(f, id);
    *bucket_of(f, id) = w;
    w->next = f->wishes;
    w->link = &f->wishes;
    if (w->next != NULL)
        w->next->link = &w->next;
    f->wishes = w;
    f->wish_count++;
    return w;
}

void wish_drop(struct federation *f, struct wish *w)
{
    struct wish **link = bucket_of(f, w->id);

    while (*link != w)
        link = &(*link)->chain;
    *link = w->chain;
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    f->wish_count--;
    mem_free(w);
}

void federation_wake_by(struct federation *f, uint64_t at_us)
{
    if (f->sleep_us <= at_us)
        return;
    f->sleep_us = 0;
    pthread_cond_broadcast(&f->changed);
}

void wish_release(struct federation *f, uint64_t id, uint64_t look_us)
{
    struct wish *w = wish_find(f, id);

    if (w == NULL)
        return;
    w->busy = false;
    w->look_us = look_us;
    federation_wake_by(f, look_us);
}

uint64_t wish_again_us(struct wish *w)
{
    uint64_t ms = (uint64_t)FEDERATION_AGAIN_MS << (w->tries < 3 ? w->tries : 3);

    w->tries++;
    return clock_deadline_us(ms < AGAIN_MAX_MS ? ms : AGAIN_MAX_MS);
}

/* ---- trackers that do not answer; the lock is held ---- */

static struct avoided *find_avoided(struct federation *f, const uint8_t *peer_id)
{
    for (size_t i = 0; i < f->avoided_count; i++)
        if (memcmp(f->avoided[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &f->avoided[i];
    return NULL;
}

void tracker_avoid(struct federation *f, const uint8_t *peer_id)
{
    struct avoided *a = find_avoided(f, peer_id);

    if (a == NULL) {
        a = &f->avoided[f->avoided_count < FEDERATION_MAX_AVOIDED
                            ? f->avoided_count++
                            : randombytes_uniform(FEDERATION_MAX_AVOIDED)];
        *a = (struct avoided){0};
        memcpy(a->peer_id, peer_id, PEER_ID_BYTES);
    }
    uint64_t ms = (uint64_t)AVOID_MS << (a->times < 4 ? a->times : 4);
    a->times++;
    a->until_us = clock_deadline_us(ms < AVOID_MAX_MS ? ms : AVOID_MAX_MS);
}

void tracker_forgive(struct federation *f, const uint8_t *peer_id)
{
    struct avoided *a = find_avoided(f, peer_id);

    if (a != NULL)
        *a = f->avoided[--f->avoided_count];
}

bool tracker_is_avoided(struct federation *f, const uint8_t *peer_id)
{
    const struct avoided *a = find_avoided(f, peer_id);

    return a != NULL && a->until_us > clock_mono_us();
}
