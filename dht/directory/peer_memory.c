/* Two tables of short hashes with the time of the last outcome. */
#include "dht/directory/peer_memory.h"

#include <pthread.h>
#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"

enum { WAYS = 8 }; /* slots of a set */

struct slot {
    uint64_t tag;   /* hash of the peer id */
    uint64_t at_us; /* 0: unused */
};

struct peer_memory {
    uint8_t key[crypto_shorthash_KEYBYTES]; /* random, never changes */
    pthread_mutex_t lock;                   /* guards the tables */
    struct slot failed[PEER_MEMORY_FAILED];
    struct slot answered[PEER_MEMORY_ANSWERED];
};

/* Places: two bits of class, then the order within it. */
#define CLASS_NEW (1ull << 62)
#define CLASS_FAILED (2ull << 62)
#define WITHIN_CLASS (CLASS_NEW - 1)

skep_status peer_memory_new(struct peer_memory **out, struct skep_error *err)
{
    struct peer_memory *m = mem_calloc(1, sizeof(*m));

    *out = m;
    if (m == NULL)
        return error_no_memory(err, "memory of peers", sizeof(*m));
    randombytes_buf(m->key, sizeof(m->key));
    pthread_mutex_init(&m->lock, NULL);
    return SKEP_OK;
}

void peer_memory_free(struct peer_memory *m)
{
    if (m == NULL)
        return;
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

static uint64_t hash(const struct peer_memory *m, const uint8_t *peer_id, uint64_t order_seed)
{
    uint8_t in[PEER_ID_BYTES + sizeof(order_seed)], out[crypto_shorthash_BYTES];

    memcpy(in, peer_id, PEER_ID_BYTES);
    store_u64(in + PEER_ID_BYTES, order_seed);
    crypto_shorthash(out, in, sizeof(in), m->key);
    return load_u64(out);
}

static struct slot *set_of(struct slot *table, size_t slots, uint64_t tag)
{
    return &table[tag % (slots / WAYS) * WAYS];
}

static struct slot *find(struct slot *set, uint64_t tag)
{
    for (size_t i = 0; i < WAYS; i++)
        if (set[i].tag == tag && set[i].at_us != 0)
            return &set[i];
    return NULL;
}

static void note(struct slot *set, uint64_t tag, uint64_t now_us)
{
    struct slot *slot = find(set, tag);

    if (slot == NULL) {
        slot = &set[0];
        for (size_t i = 1; i < WAYS; i++)
            if (set[i].at_us < slot->at_us)
                slot = &set[i];
    }
    *slot = (struct slot){tag, now_us};
}

static void forget(struct slot *set, uint64_t tag)
{
    struct slot *slot = find(set, tag);

    if (slot != NULL)
        *slot = (struct slot){0};
}

void peer_memory_failed(struct peer_memory *m, const uint8_t peer_id[static PEER_ID_BYTES],
                        uint64_t now_us)
{
    uint64_t tag = hash(m, peer_id, 0);

    pthread_mutex_lock(&m->lock);
    note(set_of(m->failed, PEER_MEMORY_FAILED, tag), tag, now_us);
    forget(set_of(m->answered, PEER_MEMORY_ANSWERED, tag), tag);
    pthread_mutex_unlock(&m->lock);
}

void peer_memory_answered(struct peer_memory *m, const uint8_t peer_id[static PEER_ID_BYTES],
                          uint64_t now_us)
{
    uint64_t tag = hash(m, peer_id, 0);

    pthread_mutex_lock(&m->lock);
    note(set_of(m->answered, PEER_MEMORY_ANSWERED, tag), tag, now_us);
    forget(set_of(m->failed, PEER_MEMORY_FAILED, tag), tag);
    pthread_mutex_unlock(&m->lock);
}

uint64_t peer_memory_rank(struct peer_memory *m, const uint8_t peer_id[static PEER_ID_BYTES],
                          uint64_t order_seed, uint64_t now_us)
{
    if (m == NULL)
        return CLASS_NEW;
    uint64_t tag = hash(m, peer_id, 0), rank;
    pthread_mutex_lock(&m->lock);
    const struct slot *failed = find(set_of(m->failed, PEER_MEMORY_FAILED, tag), tag);
    const struct slot *answered = find(set_of(m->answered, PEER_MEMORY_ANSWERED, tag), tag);
    if (answered != NULL)
        rank = WITHIN_CLASS - answered->at_us; /* the latest first */
    else if (failed != NULL && failed->at_us + PEER_MEMORY_FAILED_US > now_us)
        rank = CLASS_FAILED | (failed->at_us & WITHIN_CLASS);
    else
        rank = CLASS_NEW;
    pthread_mutex_unlock(&m->lock);
    if (rank == CLASS_NEW)
        rank |= hash(m, peer_id, order_seed) & WITHIN_CLASS;
    return rank;
}

bool peer_memory_is_answered(uint64_t rank)
{
    return rank < CLASS_NEW;
}

bool peer_memory_is_failed(uint64_t rank)
{
    return rank >= CLASS_FAILED;
}
