/* Estimates of how fast nodes answer. */
#include "client/latency.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "crypto/keyed_hash.h"
#include "dht/record/uid.h"
#include "wire/message.h"

/* Of an answer that was faster than the estimate; a slower one counts at once, because the next
 * call is not to wait as long. */
static const double WEIGHT_OF_FASTER = 0.25;

static uint64_t now_us(const struct latency_estimates *latencies)
{
    return latencies->now_us != NULL ? latencies->now_us() : clock_mono_us();
}

/* Peers choose their ids: under a secret, nobody can make room for itself by pushing others out. */
uint64_t latency_key(const uint8_t peer_id[static PEER_ID_BYTES], const char *method,
                     const char *uid)
{
    uint8_t key[PEER_ID_BYTES + MESSAGE_METHOD_BYTES + UID_BYTES];
    size_t method_len = strnlen(method, MESSAGE_METHOD_BYTES - 1),
           uid_len = strnlen(uid, UID_BYTES);

    memcpy(key, peer_id, PEER_ID_BYTES);
    memcpy(key + PEER_ID_BYTES, method, method_len);
    key[PEER_ID_BYTES + method_len] = 0;
    memcpy(key + PEER_ID_BYTES + method_len + 1, uid, uid_len);
    uint64_t hash = keyed_hash(key, PEER_ID_BYTES + method_len + 1 + uid_len);
    return hash != 0 ? hash : 1;
}

static struct latency_entry *find(const struct latency_estimates *latencies, uint64_t key)
{
    const struct latency_entry *set = latencies->entries[(key ^ (key >> 32)) % LATENCY_SETS];

    for (size_t i = 0; i < LATENCY_WAYS; i++)
        if (set[i].key == key)
            return (struct latency_entry *)&set[i];
    return NULL;
}

static struct latency_entry *find_or_make(struct latency_estimates *latencies, uint64_t key)
{
    struct latency_entry *set = latencies->entries[(key ^ (key >> 32)) % LATENCY_SETS];
    struct latency_entry *entry = find(latencies, key);

    if (entry != NULL)
        return entry;
    entry = &set[0];
    for (size_t i = 1; i < LATENCY_WAYS; i++)
        if (set[i].seen_us < entry->seen_us)
            entry = &set[i];
    *entry = (struct latency_entry){.key = key};
    return entry;
}

static double answer_now(const struct latency_entry *entry, uint64_t now)
{
    double age_ms = now > entry->seen_us ? (double)(now - entry->seen_us) / 1000.0 : 0.0;

    return entry->answer_us * exp2(-age_ms / LATENCY_HALF_LIFE_MS);
}

/* A call there has ended; NULL if its entry has made room since. What is known is brought up to
 * now. */
static struct latency_entry *end_one(struct latency_estimates *latencies, uint64_t key)
{
    struct latency_entry *entry = find(latencies, key);
    uint64_t now = now_us(latencies);

    if (entry == NULL)
        return NULL;
    if (entry->open > 0) /* it may have been made anew */
        entry->open--;
    entry->answer_us = answer_now(entry, now);
    entry->seen_us = now;
    return entry;
}

void latency_began(struct latency_estimates *latencies, uint64_t key)
{
    struct latency_entry *entry = find_or_make(latencies, key);
    uint64_t now = now_us(latencies);

    entry->answer_us = answer_now(entry, now);
    entry->seen_us = now;
    entry->open++;
}

void latency_answered(struct latency_estimates *latencies, uint64_t key, uint64_t took_us)
{
    struct latency_entry *entry = end_one(latencies, key);
    double took = took_us > 0 ? (double)took_us : 1.0;

    if (entry == NULL)
        return;
    if (took < entry->answer_us)
        took = entry->answer_us + WEIGHT_OF_FASTER * (took - entry->answer_us);
    entry->answer_us = took;
}

void latency_ended(struct latency_estimates *latencies, uint64_t key, uint64_t at_least_us)
{
    struct latency_entry *entry = end_one(latencies, key);

    if (entry != NULL && (double)at_least_us > entry->answer_us)
        entry->answer_us = (double)at_least_us;
}

struct latency_cost latency_cost(const struct latency_estimates *latencies, uint64_t key,
                                 uint64_t queued)
{
    const struct latency_entry *entry = find(latencies, key);
    struct latency_cost cost = {.waiting = queued};

    if (entry != NULL) {
        cost.answer_us = answer_now(entry, now_us(latencies));
        cost.waiting += entry->open;
    }
    return cost;
}

int latency_compare(const struct latency_cost *a, const struct latency_cost *b)
{
    double of_a = 1.0 + (double)a->waiting, of_b = 1.0 + (double)b->waiting;

    if (a->answer_us > 0 && b->answer_us > 0) {
        of_a *= a->answer_us;
        of_b *= b->answer_us;
    } else if (a->round_trip_us > 0 && b->round_trip_us > 0) {
        of_a *= a->round_trip_us;
        of_b *= b->round_trip_us;
    }
    return (of_a > of_b) - (of_a < of_b);
}
