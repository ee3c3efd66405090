/* Where records lie and under which numbers: DHT keys, value ids, the network id, value types. */
#include <string.h>

#include "dht/record/record_internal.h"

const uint32_t record_type_lifetime_s[RECORD_TYPE_COUNT] = {60, 300, 900, 3600};

unsigned record_type_for(uint32_t lifetime_s)
{
    unsigned i = 0;

    while (i < RECORD_TYPE_COUNT - 1 && record_type_lifetime_s[i] < lifetime_s)
        i++;
    return i;
}

void field_hash_init(struct field_hash *h, const struct record_swarm *swarm, const char *domain)
{
    /* A private swarm's keys cannot be guessed from UIDs by those who do not hold its key. */
    const bool keyed = swarm != NULL && swarm->key != NULL;

    crypto_generichash_init(&h->state, keyed ? swarm->key->record_key : NULL,
                            keyed ? sizeof(swarm->key->record_key) : 0, 32);
    field_hash_text(h, domain);
}

void field_hash_bytes(struct field_hash *h, const void *data, size_t len)
{
    uint8_t length[4];

    store_u32(length, (uint32_t)len);
    crypto_generichash_update(&h->state, length, sizeof(length));
    if (len > 0)
        crypto_generichash_update(&h->state, data, len);
}

void field_hash_text(struct field_hash *h, const char *text)
{
    field_hash_bytes(h, text, strlen(text));
}

void field_hash_u64(struct field_hash *h, uint64_t value)
{
    uint8_t bytes[8];

    store_u64(bytes, value);
    field_hash_bytes(h, bytes, sizeof(bytes));
}

void field_hash_final(struct field_hash *h, uint8_t out[static 32])
{
    crypto_generichash_final(&h->state, out, 32);
}

static void key_begin(struct field_hash *h, const struct record_swarm *swarm, const char *kind)
{
    field_hash_init(h, swarm, "skep key v1");
    field_hash_text(h, swarm->name);
    field_hash_text(h, kind);
}

static void key_end(struct field_hash *h, uint8_t key[static RECORD_KEY_BYTES])
{
    uint8_t hash[32];

    field_hash_final(h, hash);
    memcpy(key, hash, RECORD_KEY_BYTES);
}

static void key_of_text(const struct record_swarm *swarm, const char *kind, const char *subject,
                        uint8_t key[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    key_begin(&h, swarm, kind);
    field_hash_text(&h, subject);
    key_end(&h, key);
}

void record_key_expert(const struct record_swarm *swarm, const char *uid,
                       uint8_t key[static RECORD_KEY_BYTES])
{
    key_of_text(swarm, "expert", uid, key);
}

void record_key_prefix_root(const struct record_swarm *swarm, const char *prefix, unsigned shard,
                            uint8_t key[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    key_begin(&h, swarm, "root");
    field_hash_text(&h, prefix);
    field_hash_u64(&h, shard);
    key_end(&h, key);
}

void record_key_prefix(const struct record_swarm *swarm, const char *prefix,
                       const uint8_t peer_id[static PEER_ID_BYTES],
                       uint8_t key[static RECORD_KEY_BYTES])
{
    const char *dot = strchr(prefix, '.');

    /* Every node writes to the root: it is sharded, so that no key has to hold all of them. */
    if (dot == NULL || dot[1] == '\0')
        record_key_prefix_root(swarm, prefix, record_shard(peer_id), key);
    else
        key_of_text(swarm, "prefix", prefix, key);
}

void record_key_node(const struct record_swarm *swarm, const uint8_t peer_id[static PEER_ID_BYTES],
                     uint8_t key[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    key_begin(&h, swarm, "node");
    field_hash_bytes(&h, peer_id, PEER_ID_BYTES);
    key_end(&h, key);
}

void record_key_nodes_shard(const struct record_swarm *swarm, unsigned shard,
                            uint8_t key[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    key_begin(&h, swarm, "nodes");
    field_hash_u64(&h, shard);
    key_end(&h, key);
}

void record_key_trackers_shard(const struct record_swarm *swarm, unsigned shard,
                               uint8_t key[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    key_begin(&h, swarm, "trackers");
    field_hash_u64(&h, shard);
    key_end(&h, key);
}

void record_key_resource(const struct record_swarm *swarm, const char *resource,
                         uint8_t key[static RECORD_KEY_BYTES])
{
    key_of_text(swarm, "resource", resource, key);
}

void record_dht_id(const struct record_swarm *swarm, const uint8_t peer_id[static PEER_ID_BYTES],
                   uint8_t id[static RECORD_KEY_BYTES])
{
    struct field_hash h;

    field_hash_init(&h, swarm, "skep dht id v1");
    field_hash_text(&h, swarm->name);
    field_hash_bytes(&h, peer_id, PEER_ID_BYTES);
    key_end(&h, id);
}

unsigned record_shard(const uint8_t peer_id[static PEER_ID_BYTES])
{
    return peer_id[0] % RECORD_SHARDS;
}

uint32_t record_network_id(const struct record_swarm *swarm)
{
    struct field_hash h;
    uint8_t hash[32];

    field_hash_init(&h, swarm, "skep network v1");
    field_hash_text(&h, swarm->name);
    field_hash_final(&h, hash);
    uint32_t id = load_u32(hash);
    return id != 0 ? id : 1; /* 0 is the public network */
}

/*
 * One id a statement: who says something about what. OpenDHT hands out the values of a key in
 * random order, so an older copy beside the newest, of a node that moved or withdrew, would be the
 * answer half the time; under one id the newest replaces the others.
 */
uint64_t record_value_id(const struct record *record)
{
    struct field_hash h;
    uint8_t hash[32];

    field_hash_init(&h, NULL, "skep value v1");
    field_hash_bytes(&h, record->peer_id, PEER_ID_BYTES);
    field_hash_u64(&h, record->kind);
    if (record->kind == RECORD_EXPERT) {
        field_hash_text(&h, record->expert.uid);
    } else if (record->kind == RECORD_PREFIX) {
        field_hash_text(&h, record->prefix.prefix);
        field_hash_u64(&h, record->prefix.part);
    } else if (record->kind == RECORD_RESOURCE) {
        field_hash_text(&h, record->resource.key);
    }
    field_hash_final(&h, hash);
    uint64_t id = load_u64(hash);
    return id != 0 ? id : 1; /* 0 is OpenDHT's "no id" */
}

bool record_key_matches(const struct record *record, const struct record_swarm *swarm,
                        const uint8_t key[static RECORD_KEY_BYTES])
{
    uint8_t expected[RECORD_KEY_BYTES];

    switch (record->kind) {
    case RECORD_EXPERT:
        record_key_expert(swarm, record->expert.uid, expected);
        break;
    case RECORD_PREFIX:
        record_key_prefix(swarm, record->prefix.prefix, record->peer_id, expected);
        break;
    case RECORD_NODE:
        record_key_node(swarm, record->peer_id, expected);
        if (memcmp(key, expected, RECORD_KEY_BYTES) == 0)
            return true;
        record_key_nodes_shard(swarm, record_shard(record->peer_id), expected);
        break;
    case RECORD_TRACKER:
        record_key_trackers_shard(swarm, record_shard(record->peer_id), expected);
        break;
    case RECORD_RESOURCE:
        record_key_resource(swarm, record->resource.key, expected);
        break;
    default:
        return false;
    }
    return memcmp(key, expected, RECORD_KEY_BYTES) == 0;
}

void record_claim_order(const char *uid, const uint8_t peer_id[static PEER_ID_BYTES],
                        uint8_t order[static RECORD_CLAIM_ORDER_BYTES])
{
    struct field_hash h;

    field_hash_init(&h, NULL, "skep claim v1");
    field_hash_text(&h, uid);
    field_hash_bytes(&h, peer_id, PEER_ID_BYTES);
    field_hash_final(&h, order);
}
