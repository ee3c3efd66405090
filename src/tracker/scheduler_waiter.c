/* Waiting requests: a heap under each key, the next to be served first. */
#include <string.h>

#include "base/alloc.h"
#include "tracker/scheduler_internal.h"

enum { FIRST_HEAP_CAP = 4 };

static bool is_served_before(const struct scheduler_waiter *a, const struct scheduler_waiter *b)
{
    int order = tracker_priority_compare(a->priority, b->priority);

    return order != 0 ? order > 0 : a->id < b->id;
}

static void heap_put(struct scheduler_key *key, size_t i, struct scheduler_waiter *w)
{
    key->heap[i] = w;
    w->place = i;
}

static void sift_up(struct scheduler_key *key, size_t i, struct scheduler_waiter *w)
{
    while (i > 0 && is_served_before(w, key->heap[(i - 1) / 2])) {
        heap_put(key, i, key->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(key, i, w);
}

static void sift_down(struct scheduler_key *key, size_t i, struct scheduler_waiter *w)
{
    size_t count = key->counters.pending;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= count)
            break;
        if (child + 1 < count && is_served_before(key->heap[child + 1], key->heap[child]))
            child++;
        if (!is_served_before(key->heap[child], w))
            break;
        heap_put(key, i, key->heap[child]);
        i = child;
    }
    heap_put(key, i, w);
}

static bool heap_reserve(struct scheduler *s, struct scheduler_key *key)
{
    size_t cap = key->heap_cap > 0 ? key->heap_cap * 2 : FIRST_HEAP_CAP;
    size_t more = (cap - key->heap_cap) * sizeof(key->heap[0]);

    if (key->counters.pending < key->heap_cap)
        return true;
    if (!scheduler_reserve(s, more))
        return false;
    struct scheduler_waiter **heap = mem_realloc(key->heap, cap * sizeof(key->heap[0]));
    if (heap == NULL) {
        scheduler_release(s, more);
        return false;
    }
    key->heap = heap;
    key->heap_cap = cap;
    return true;
}

static void heap_add(struct scheduler *s, struct scheduler_key *key, struct scheduler_waiter *w)
{
    s->totals.pending++;
    sift_up(key, key->counters.pending++, w);
}

static void heap_remove(struct scheduler *s, struct scheduler_waiter *w)
{
    struct scheduler_key *key = w->key;
    struct scheduler_waiter *last = key->heap[--key->counters.pending];
    size_t i = w->place;

    s->totals.pending--;
    if (last != w && i > 0 && is_served_before(last, key->heap[(i - 1) / 2]))
        sift_up(key, i, last);
    else if (last != w)
        sift_down(key, i, last);
    if (key->counters.pending == 0 && key->heap_cap > FIRST_HEAP_CAP) {
        scheduler_release(s, key->heap_cap * sizeof(key->heap[0]));
        mem_free(key->heap);
        key->heap = NULL;
        key->heap_cap = 0;
    }
}

void scheduler_waiter_free(struct scheduler *s, struct scheduler_waiter *w, enum scheduler_end how)
{
    struct scheduler_key *key = w->key;
    uint64_t id = w->id;

    heap_remove(s, w);
    list_remove(&w->owner->waiters, &w->of_owner);
    w->owner->waiter_count--;
    scheduler_key_discharge(w->owner, key);
    scheduler_release(s, sizeof(*w) + w->user_len);
    mem_free(w);
    if (how == SCHEDULER_WITHDRAWN)
        s->totals.withdrawn++;
    scheduler_key_touch(s, key);
    if (s->events.ended != NULL)
        s->events.ended(s->arg, id, key->counters.key, how);
}

struct scheduler_waiter *scheduler_waiter_new(struct scheduler *s, struct scheduler_key *key,
                                              struct tracker_text user)
{
    size_t bytes = sizeof(struct scheduler_waiter) + user.len;

    if (!heap_reserve(s, key) || !scheduler_reserve(s, bytes))
        return NULL;
    struct scheduler_waiter *w = mem_alloc(bytes);
    if (w == NULL) {
        scheduler_release(s, bytes);
        return NULL;
    }
    *w = (struct scheduler_waiter){.key = key, .user_len = user.len};
    if (user.len > 0)
        memcpy(w->user, user.data, user.len);
    return w;
}

void scheduler_waiter_enter(struct scheduler *s, struct scheduler_waiter *w,
                            struct scheduler_owner *owner)
{
    w->owner = owner;
    list_append(&owner->waiters, &w->of_owner);
    owner->waiter_count++;
    scheduler_key_charge(owner, w->key);
    heap_add(s, w->key, w);
    scheduler_key_touch(s, w->key);
}
