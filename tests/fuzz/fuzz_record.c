/*
 * Records from strangers. The first byte says what the rest is: a whole record (0), two records for
 * the edit policy (1: length of the first in the next two bytes), or the body of one of the kind
 * given (others), which needs no valid signature; what is accepted must survive a round trip.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mp.h"
#include "dht/record/record.h"
#include "dht/record/record_internal.h"

enum { NOW = 1800000000, WHOLE = 0, PAIR = 1, BODY = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct record_swarm swarm = {.name = "fuzz", .clock_skew_s = 60};
static struct identity publisher;

static void key_of(const struct record *r, uint8_t key[static RECORD_KEY_BYTES])
{
    if (r->kind == RECORD_EXPERT)
        record_key_expert(&swarm, r->expert.uid, key);
    else if (r->kind == RECORD_PREFIX)
        record_key_prefix(&swarm, r->prefix.prefix, r->peer_id, key);
    else if (r->kind == RECORD_TRACKER)
        record_key_trackers_shard(&swarm, record_shard(r->peer_id), key);
    else if (r->kind == RECORD_RESOURCE)
        record_key_resource(&swarm, r->resource.key, key);
    else
        record_key_node(&swarm, r->peer_id, key);
}

static void check_round_trip(struct record *r)
{
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes out = {0};
    struct record again;

    memcpy(r->peer_id, publisher.peer_id, PEER_ID_BYTES);
    key_of(r, key);
    skep_status rc = record_encode(r, &publisher, &swarm, key, &out, NULL);
    if (rc == SKEP_INVALID_ARGUMENT) /* too long: the only thing left to find */
        return;
    if (rc != SKEP_OK ||
        record_decode(&again, out.data, out.len, &swarm, key, NOW, NULL) != SKEP_OK)
        abort();
    if (record_value_id(&again) != record_value_id(r) ||
        !record_store_policy(out.data, out.len, record_value_id(r), key, &swarm, NOW))
        abort();
    record_free(&again);
    bytes_free(&out);
}

static void fuzz_body(uint8_t kind, const uint8_t *data, size_t size)
{
    struct record r = {.kind = kind, .seq = (uint64_t)NOW * 1000, .expires_at = NOW + 60};
    struct mp mp;

    if (mp_parse(&mp, data, size, "fuzz", NULL) != SKEP_OK)
        return;
    if (body_parse(&r, mp.root, &swarm, NULL) == SKEP_OK) {
        check_round_trip(&r);
        record_free(&r);
    }
    mp_free(&mp);
}

static void fuzz_whole(const uint8_t *data, size_t size)
{
    uint8_t key[RECORD_KEY_BYTES];
    struct record r;

    record_key_expert(&swarm, "ffn.3.17", key);
    if (record_decode(&r, data, size, &swarm, key, NOW, NULL) == SKEP_OK) {
        if (!record_store_policy(data, size, record_value_id(&r), key, &swarm, NOW))
            abort();
        record_free(&r);
    } else if (record_store_policy(data, size, 1, key, &swarm, NOW)) {
        abort();
    }
}

static void fuzz_pair(const uint8_t *data, size_t size)
{
    uint8_t key[RECORD_KEY_BYTES];
    uint64_t id = 1;
    struct record r;

    if (size < 2 || load_u16(data) > size - 2)
        return;
    const uint8_t *old = data + 2, *next = old + load_u16(data);
    size_t next_len = size - 2 - load_u16(data);
    record_key_expert(&swarm, "ffn.3.17", key);
    if (record_decode(&r, next, next_len, &swarm, key, NOW, NULL) == SKEP_OK) {
        id = record_value_id(&r);
        record_free(&r);
    }
    const struct record_edit edit = {old, next, load_u16(data), next_len, id, key};
    if (record_edit_policy(&edit, &swarm, NOW) &&
        !record_store_policy(next, next_len, id, key, &swarm, NOW))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t seed[32] = {1};

    if (publisher.peer_id[0] == 0 && (identity_system_init(NULL) != SKEP_OK ||
                                      identity_from_seed(&publisher, seed, NULL) != SKEP_OK))
        abort();
    if (size == 0)
        return 0;
    if (data[0] == WHOLE)
        fuzz_whole(data + 1, size - 1);
    else if (data[0] == PAIR)
        fuzz_pair(data + 1, size - 1);
    else
        fuzz_body((uint8_t)(data[0] - BODY), data + 1, size - 1);
    return 0;
}
