/* See roster.h. */
#include "node/lifecycle/roster.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

void roster_init(struct roster *roster)
{
    *roster = (struct roster){0};
    pthread_rwlock_init(&roster->lock, NULL);
}

void roster_fini(struct roster *roster)
{
    for (size_t i = 0; i < roster->count; i++)
        local_expert_free(roster->items[i]);
    while (roster->retired != NULL) {
        struct local_expert *local = roster->retired;

        roster->retired = local->next_retired;
        local_expert_free(local);
    }
    mem_free(roster->items);
    pthread_rwlock_destroy(&roster->lock);
}

/* Makes room for one more. The lock is held, or the node not open yet. */
static skep_status reserve(struct roster *roster, struct skep_error *err)
{
    size_t cap = roster->cap == 0 ? 16 : roster->cap * 2;
    struct local_expert **items;

    if (roster->count < roster->cap)
        return SKEP_OK;
    items = mem_realloc(roster->items, cap * sizeof(*items));
    if (items == NULL)
        return error_no_memory(err, "experts", cap * sizeof(*items));
    roster->items = items;
    roster->cap = cap;
    return SKEP_OK;
}

skep_status roster_append(struct roster *roster, struct local_expert *local, struct skep_error *err)
{
    skep_status rc = reserve(roster, err);

    if (rc == SKEP_OK)
        roster->items[roster->count++] = local;
    return rc;
}

/* False: it is not there. */
static bool take_out(struct roster *roster, const struct local_expert *local)
{
    size_t i = 0;

    while (i < roster->count && roster->items[i] != local)
        i++;
    if (i == roster->count)
        return false;
    roster->count--;
    memmove(&roster->items[i], &roster->items[i + 1],
            (roster->count - i) * sizeof(roster->items[0]));
    return true;
}

void roster_drop(struct roster *roster, struct local_expert *local)
{
    (void)take_out(roster, local);
    local_expert_free(local);
}

bool roster_lists(const struct roster *roster, const char *uid)
{
    for (size_t i = 0; i < roster->count; i++)
        if (strcmp(roster->items[i]->uid, uid) == 0)
            return true;
    return false;
}

static int by_uid(const void *a, const void *b)
{
    return strcmp((*(struct local_expert *const *)a)->uid, (*(struct local_expert *const *)b)->uid);
}

void roster_sort(struct roster *roster)
{
    if (roster->count > 1)
        qsort(roster->items, roster->count, sizeof(roster->items[0]), by_uid);
}

skep_status roster_insert(struct roster *roster, struct local_expert *local, struct skep_error *err)
{
    pthread_rwlock_wrlock(&roster->lock);
    skep_status rc = roster_append(roster, local, err);
    if (rc == SKEP_OK)
        roster_sort(roster);
    pthread_rwlock_unlock(&roster->lock);
    return rc;
}

static void adopt(struct roster *roster, struct local_expert *local)
{
    local->next_retired = roster->retired;
    roster->retired = local;
}

void roster_adopt_retired(struct roster *roster, struct local_expert *local)
{
    pthread_rwlock_wrlock(&roster->lock);
    adopt(roster, local);
    pthread_rwlock_unlock(&roster->lock);
}

bool roster_retire(struct roster *roster, struct local_expert *local)
{
    pthread_rwlock_wrlock(&roster->lock);
    bool was_there = take_out(roster, local);
    if (was_there)
        adopt(roster, local);
    pthread_rwlock_unlock(&roster->lock);
    return was_there;
}

size_t roster_count(struct roster *roster)
{
    pthread_rwlock_rdlock(&roster->lock);
    size_t count = roster->count;
    pthread_rwlock_unlock(&roster->lock);
    return count;
}

static struct local_expert *find(const struct roster *roster, const char *uid)
{
    size_t low = 0;
    size_t high = roster->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(roster->items[middle]->uid, uid);

        if (order == 0)
            return roster->items[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

struct local_expert *roster_hold(struct roster *roster, const char *uid)
{
    pthread_rwlock_rdlock(&roster->lock);
    struct local_expert *local = find(roster, uid);
    if (local != NULL)
        local_expert_hold(local);
    pthread_rwlock_unlock(&roster->lock);
    return local;
}

struct local_expert *roster_hold_at(struct roster *roster, size_t index)
{
    struct local_expert *local = NULL;

    pthread_rwlock_rdlock(&roster->lock);
    if (index < roster->count)
        local = roster->items[index];
    if (local != NULL)
        local_expert_hold(local);
    pthread_rwlock_unlock(&roster->lock);
    return local;
}
