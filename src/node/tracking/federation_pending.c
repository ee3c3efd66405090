/* Requests that wait, and trackers that do not answer: see federation_internal.h. */
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "node/tracking/federation_internal.h"

enum {
    AGAIN_MAX_MS = 2000,
    BACKOFF_MS = 5000, /* a tracker that did not answer, and how it grows */
    BACKOFF_MAX_MS = 60000,
};

/* ---- pending requests; the lock is held ---- */

/* The tracker counts the ids up by itself: an id is a good hash of its own. */
struct pending_request *pending_find(struct federation *f, uint64_t id)
{
    return HASH_HOLDER(hash_table_first(&f->by_id, id), struct pending_request, by_id);
}

struct pending_request *pending_add(struct federation *f, uint64_t id, const char *key, size_t len,
                                    uint64_t look_us)
{
    struct pending_request *w =
        f->by_id.count < FEDERATION_MAX_PENDING ? mem_calloc(1, sizeof(*w)) : NULL;

    if (w == NULL)
        return NULL;
    w->id = id;
    w->look_us = look_us;
    memcpy(w->key, key, len);
    hash_table_add(&f->by_id, &w->by_id, id);
    w->next = f->pending;
    w->link = &f->pending;
    if (w->next != NULL)
        w->next->link = &w->next;
    f->pending = w;
    return w;
}

void pending_drop(struct federation *f, struct pending_request *w)
{
    hash_table_remove(&f->by_id, &w->by_id);
    *w->link = w->next;
    if (w->next != NULL)
        w->next->link = w->link;
    mem_free(w);
}

void federation_wake_by(struct federation *f, uint64_t at_us)
{
    if (f->sleep_us <= at_us)
        return;
    f->sleep_us = 0;
    pthread_cond_broadcast(&f->changed);
}

void pending_release(struct federation *f, uint64_t id, uint64_t look_us)
{
    struct pending_request *w = pending_find(f, id);

    if (w == NULL)
        return;
    w->busy = false;
    w->look_us = look_us;
    federation_wake_by(f, look_us);
}

uint64_t pending_again_us(struct pending_request *w)
{
    uint64_t ms = (uint64_t)FEDERATION_AGAIN_MS << (w->tries < 3 ? w->tries : 3);

    w->tries++;
    return clock_deadline_us(ms < AGAIN_MAX_MS ? ms : AGAIN_MAX_MS);
}

/* ---- trackers that do not answer; the lock is held ---- */

static struct backed_off *find_backed_off(struct federation *f, const uint8_t *peer_id)
{
    for (size_t i = 0; i < f->backed_off_count; i++)
        if (memcmp(f->backed_off[i].peer_id, peer_id, PEER_ID_BYTES) == 0)
            return &f->backed_off[i];
    return NULL;
}

void tracker_back_off(struct federation *f, const uint8_t *peer_id)
{
    struct backed_off *a = find_backed_off(f, peer_id);

    if (a == NULL) {
        a = &f->backed_off[f->backed_off_count < FEDERATION_MAX_BACKED_OFF
                               ? f->backed_off_count++
                               : randombytes_uniform(FEDERATION_MAX_BACKED_OFF)];
        *a = (struct backed_off){0};
        memcpy(a->peer_id, peer_id, PEER_ID_BYTES);
    }
    uint64_t ms = (uint64_t)BACKOFF_MS << (a->times < 4 ? a->times : 4);
    a->times++;
    a->until_us = clock_deadline_us(ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS);
}

void tracker_backoff_end(struct federation *f, const uint8_t *peer_id)
{
    struct backed_off *a = find_backed_off(f, peer_id);

    if (a != NULL)
        *a = f->backed_off[--f->backed_off_count];
}

bool tracker_is_backed_off(struct federation *f, const uint8_t *peer_id)
{
    const struct backed_off *a = find_backed_off(f, peer_id);

    return a != NULL && a->until_us > clock_mono_us();
}
