/*
 * Draws UIDs by number without repetition: a drawn number that was tried before moves on to the
 * next one that was not, so that the last free UIDs of a full grid are found as surely as the
 * first.
 */
#include "node/lifecycle/pattern.h"

#include <inttypes.h>
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

enum { ROUND = 128 }; /* UIDs asked for at once: two windows of the directory's lookups */

/* A set of numbers; open addressing. UINT64_MAX is no member: a pattern holds fewer UIDs. */
struct number_set {
    uint64_t *slots; /* owned */
    size_t cap, count;
};

static size_t slot_of(const struct number_set *set, uint64_t number)
{
    uint64_t h = number * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(h >> 20) & (set->cap - 1);

    while (set->slots[i] != UINT64_MAX && set->slots[i] != number)
        i = (i + 1) & (set->cap - 1);
    return i;
}

static bool set_grow(struct number_set *set)
{
    struct number_set larger = {.cap = set->cap == 0 ? 256 : set->cap * 2, .count = set->count};

    larger.slots = mem_alloc(larger.cap * sizeof(uint64_t));
    if (larger.slots == NULL)
        return false;
    memset(larger.slots, 0xff, larger.cap * sizeof(uint64_t));
    for (size_t i = 0; i < set->cap; i++)
        if (set->slots[i] != UINT64_MAX)
            larger.slots[slot_of(&larger, set->slots[i])] = set->slots[i];
    mem_free(set->slots);
    *set = larger;
    return true;
}

/* Adds; *added is false if it was there. False if memory is short. */
static bool set_add(struct number_set *set, uint64_t number, bool *added)
{
    size_t i;

    if (set->count * 2 >= set->cap && !set_grow(set))
        return false;
    i = slot_of(set, number);
    *added = set->slots[i] == UINT64_MAX;
    if (*added) {
        set->slots[i] = number;
        set->count++;
    }
    return true;
}

static uint64_t random_below(uint64_t bound)
{
    uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t x;

    do
        randombytes_buf(&x, sizeof(x));
    while (x >= limit);
    return x % bound;
}

/* Draws a number not tried before. There must be one. False if memory is short. */
static bool draw(struct number_set *tried, uint64_t total, uint64_t *out)
{
    bool added = false;

    for (*out = random_below(total);; *out = *out + 1 < total ? *out + 1 : 0) {
        if (!set_add(tried, *out, &added))
            return false;
        if (added)
            return true;
    }
}

struct round {
    char uids[ROUND][UID_BYTES];
    const char *views[ROUND];
    bool taken[ROUND];
};

static skep_status ask_round(const struct uid_pattern *pattern, uint64_t total, size_t count,
                             struct number_set *tried, struct round *round, pattern_taken_fn taken,
                             void *arg, struct skep_error *err)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t number;

        if (!draw(tried, total, &number))
            return error_no_memory(err, "pattern", tried->cap * 2 * sizeof(uint64_t));
        uid_pattern_at(pattern, number, round->uids[i]);
        round->views[i] = round->uids[i];
    }
    return taken(arg, round->views, count, round->taken, err);
}

skep_status pattern_choose(const struct uid_pattern *pattern, size_t wanted, pattern_taken_fn taken,
                           void *arg, char (*uids)[UID_BYTES], size_t *chosen,
                           struct skep_error *err)
{
    uint64_t total = uid_pattern_count(pattern);
    struct number_set tried = {0};
    struct round *round = mem_alloc(sizeof(*round));
    skep_status rc = SKEP_OK;

    *chosen = 0;
    if (round == NULL)
        return error_no_memory(err, "pattern", sizeof(*round));
    while (*chosen < wanted && tried.count < total && rc == SKEP_OK) {
        size_t count = wanted - *chosen < ROUND ? wanted - *chosen : ROUND;

        if (count > total - tried.count)
            count = (size_t)(total - tried.count);
        rc = ask_round(pattern, total, count, &tried, round, taken, arg, err);
        for (size_t i = 0; i < count && rc == SKEP_OK; i++)
            if (!round->taken[i])
                memcpy(uids[(*chosen)++], round->uids[i], UID_BYTES);
    }
    mem_free(tried.slots);
    mem_free(round);
    return rc;
}

skep_status pattern_refuse(const struct uid_pattern *pattern, size_t free_count, size_t wanted,
                           struct skep_error *err)
{
    return error_set(err, SKEP_RESOURCE_EXHAUSTED,
                     "pattern of %s: %zu of %" PRIu64 " UIDs %s free, expected %zu; with "
                     "--allow-fewer (allow_fewer) a node hosts those that are free",
                     pattern->name, free_count, uid_pattern_count(pattern),
                     free_count == 1 ? "is" : "are", wanted);
}
