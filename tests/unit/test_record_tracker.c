/* Records of trackers and of the resources they hold. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/mp.h"
#include "dht/record/record.h"
#include "dht/record/record_internal.h"

enum { NOW = 1800000000 };

static struct identity publisher, stranger;
static struct swarm_key private_key;
static struct record_swarm open_swarm = {.name = "skep", .clock_skew_s = 60};
static struct record_swarm closed_swarm = {.name = "skep", .key = &private_key, .clock_skew_s = 60};
static struct record_swarm local_swarm = {.name = "skep", .loopback = true, .clock_skew_s = 60};

static struct record tracker_record(void)
{
    struct record r = {
        .kind = RECORD_TRACKER,
        .seq = (uint64_t)NOW * 1000,
        .expires_at = NOW + 60,
        .tracker = {.endpoint_count = 1,
                    .endpoints = {{.host = "192.0.2.7", .port = 4000}},
                    .features = RECORD_FEATURE_AES_GCM,
                    .tvm = {.host = "192.0.2.7", .port = 9190},
                    .version = "0.1.0",
                    .key_count = 3},
    };
    memcpy(r.peer_id, publisher.peer_id, PEER_ID_BYTES);
    return r;
}

/* Addresses are the caller's. */
static struct record resource_record(const char *key, struct endpoint *addresses, size_t count)
{
    struct record r = {
        .kind = RECORD_RESOURCE,
        .seq = (uint64_t)NOW * 1000,
        .expires_at = NOW + 60,
        .resource = {.endpoint_count = 1,
                     .endpoints = {{.host = "192.0.2.7", .port = 4000}},
                     .free = 4,
                     .pending = 2,
                     .addresses = addresses,
                     .address_count = count},
    };
    snprintf(r.resource.key, sizeof(r.resource.key), "%s", key);
    memcpy(r.peer_id, publisher.peer_id, PEER_ID_BYTES);
    return r;
}

static void key_of(const struct record *r, const struct record_swarm *swarm,
                   uint8_t key[static RECORD_KEY_BYTES])
{
    if (r->kind == RECORD_TRACKER)
        record_key_trackers_shard(swarm, record_shard(r->peer_id), key);
    else
        record_key_resource(swarm, r->resource.key, key);
}

static struct bytes encode(const struct record *r, const struct record_swarm *swarm,
                           uint8_t key[static RECORD_KEY_BYTES])
{
    struct bytes out = {0};
    struct skep_error err;

    key_of(r, swarm, key);
    if (record_encode(r, &publisher, swarm, key, &out, &err) != SKEP_OK)
        fail_msg("record_encode: %s", err.message);
    return out;
}

static void tracker_survives_the_round_trip(void **state)
{
    (void)state;
    struct record_swarm *swarms[] = {&open_swarm, &closed_swarm};
    struct record in = tracker_record(), out;
    uint8_t key[RECORD_KEY_BYTES];

    for (int i = 0; i < 4; i++) {
        in.tracker.offline = i >= 2;
        struct bytes data = encode(&in, swarms[i % 2], key);
        assert_int_equal(record_decode(&out, data.data, data.len, swarms[i % 2], key, NOW, NULL),
                         SKEP_OK);
        assert_int_equal(out.kind, RECORD_TRACKER);
        assert_string_equal(out.tracker.endpoints[0].host, "192.0.2.7");
        assert_int_equal(out.tracker.features, RECORD_FEATURE_AES_GCM);
        assert_int_equal(out.tracker.tvm.port, 9190);
        assert_string_equal(out.tracker.version, "0.1.0");
        assert_int_equal(out.tracker.key_count, 3);
        assert_int_equal(out.tracker.offline, in.tracker.offline);
        record_free(&out);
        bytes_free(&data);
    }
}

static void resource_survives_the_round_trip_under_any_key(void **state)
{
    (void)state;
    static const char *const keys[] = {"rpi", "192.168.0.143:5555", "a b\n\x01\"", "\xc3\xa4:4",
                                       ":"};
    struct endpoint addresses[2] = {{.host = "192.0.2.9", .port = 9090},
                                    {.host = "2001:db8::9", .port = 9091}};
    struct record out;
    uint8_t key[RECORD_KEY_BYTES];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        struct record in = resource_record(keys[i], addresses, 2);
        struct bytes data = encode(&in, &open_swarm, key);
        assert_int_equal(record_decode(&out, data.data, data.len, &open_swarm, key, NOW, NULL),
                         SKEP_OK);
        assert_string_equal(out.resource.key, keys[i]);
        assert_int_equal(out.resource.free, 4);
        assert_int_equal(out.resource.pending, 2);
        assert_int_equal(out.resource.address_count, 2);
        assert_string_equal(out.resource.addresses[1].host, "2001:db8::9");
        assert_int_equal(out.resource.addresses[1].port, 9091);
        assert_string_equal(out.resource.tvm.host, "");
        assert_false(out.resource.offline);
        assert_true(
            record_store_policy(data.data, data.len, record_value_id(&in), key, &open_swarm, NOW));
        record_free(&out);
        bytes_free(&data);
    }
}

static void a_resource_record_holds_under_its_own_key_only(void **state)
{
    (void)state;
    struct record in = resource_record("rpi", NULL, 0), out;
    uint8_t key[RECORD_KEY_BYTES], other[RECORD_KEY_BYTES];
    struct bytes data = {0};

    key_of(&in, &open_swarm, key);
    record_key_resource(&open_swarm, "rpj", other);
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, other, &data, NULL), SKEP_OK);
    assert_int_equal(record_decode(&out, data.data, data.len, &open_swarm, key, NOW, NULL),
                     SKEP_UNAUTHENTICATED);
    /* Signed for the other key, but about this one. */
    assert_int_equal(record_decode(&out, data.data, data.len, &open_swarm, other, NOW, NULL),
                     SKEP_DATA_LOSS);
    bytes_free(&data);

    in = tracker_record();
    record_key_trackers_shard(&open_swarm, (record_shard(publisher.peer_id) + 1) % RECORD_SHARDS,
                              other);
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, other, &data, NULL), SKEP_OK);
    assert_int_equal(record_decode(&out, data.data, data.len, &open_swarm, other, NOW, NULL),
                     SKEP_DATA_LOSS);
    bytes_free(&data);
}

static void bad_fields_are_refused_before_sending(void **state)
{
    (void)state;
    struct endpoint many[RECORD_MAX_ADDRESSES + 1] = {{.host = "192.0.2.9", .port = 9}};
    struct endpoint loopback = {.host = "127.0.0.1", .port = 9};
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes out = {0};
    struct record r[7] = {
        resource_record("", NULL, 0),
        resource_record("\xff", NULL, 0),
        resource_record("k", many, RECORD_MAX_ADDRESSES + 1),
        resource_record("k", &loopback, 1),
        resource_record("k", NULL, 0),
        tracker_record(),
        tracker_record(),
    };

    for (size_t i = 1; i <= RECORD_MAX_ADDRESSES; i++)
        many[i] = many[0];
    r[4].resource.tvm = loopback;
    r[5].tracker.tvm.port = 0;
    snprintf(r[6].tracker.version, sizeof(r[6].tracker.version), "%s", "a b");
    for (size_t i = 0; i < 7; i++) {
        key_of(&r[i], &open_swarm, key);
        assert_int_equal(record_encode(&r[i], &publisher, &open_swarm, key, &out, NULL),
                         SKEP_INVALID_ARGUMENT);
    }
    assert_null(out.data);
    key_of(&r[3], &local_swarm, key);
    assert_int_equal(record_encode(&r[3], &publisher, &local_swarm, key, &out, NULL), SKEP_OK);
    bytes_free(&out);
}

/* What may not be dialled is left out; the numbers remain true. */
static void addresses_nobody_can_dial_are_dropped_on_arrival(void **state)
{
    (void)state;
    struct endpoint addresses[2] = {{.host = "127.0.0.1", .port = 9090},
                                    {.host = "192.0.2.9", .port = 9091}};
    struct record in = resource_record("rpi", addresses, 2), out;
    uint8_t key[RECORD_KEY_BYTES];

    in.resource.tvm = addresses[0];
    struct bytes data = encode(&in, &local_swarm, key);
    assert_int_equal(record_decode(&out, data.data, data.len, &open_swarm, key, NOW, NULL),
                     SKEP_OK);
    assert_int_equal(out.resource.address_count, 1);
    assert_int_equal(out.resource.addresses[0].port, 9091);
    assert_int_equal(out.resource.free, 4);
    assert_string_equal(out.resource.tvm.host, "");
    record_free(&out);
    bytes_free(&data);
}

static void body_fields_of_other_types_are_refused(void **state)
{
    (void)state;
    static const char *const names[2][9] = {
        {"endpoints", "features", "version", "keys", "tvm", "offline"},
        {"key", "endpoints", "features", "free", "pending", "addresses", "tvm", "offline"},
    };
    struct record both[2] = {tracker_record(), resource_record("rpi", NULL, 0)};

    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < 9 && names[kind][i] != NULL; i++) {
            struct bytes whole = {0}, body = {0};
            struct record out = {.kind = both[kind].kind};
            struct mp mp;
            msgpack_packer pk;
            assert_true(body_pack(&both[kind], &whole));
            uint8_t head = (uint8_t)(whole.data[0] + 1);
            assert_true(bytes_append(&body, &head, 1));
            record_packer_init(&pk, &body);
            mp_pack_str(&pk, names[kind][i]);
            msgpack_pack_map(&pk, 0);
            assert_true(bytes_append(&body, whole.data + 1, whole.len - 1));
            assert_int_equal(mp_parse(&mp, body.data, body.len, "test", NULL), SKEP_OK);
            assert_int_equal(body_parse(&out, mp.root, &open_swarm, NULL), SKEP_DATA_LOSS);
            mp_free(&mp);
            bytes_free(&body);
            bytes_free(&whole);
        }
}

static void a_resource_record_of_a_full_size_fits(void **state)
{
    (void)state;
    struct endpoint addresses[RECORD_MAX_ADDRESSES];
    char long_key[RECORD_RESOURCE_KEY_BYTES];
    uint8_t key[RECORD_KEY_BYTES];

    memset(long_key, 'k', sizeof(long_key) - 1);
    long_key[sizeof(long_key) - 1] = '\0';
    for (size_t i = 0; i < RECORD_MAX_ADDRESSES; i++)
        addresses[i] = (struct endpoint){.host = "192.168.100.100", .port = 65535};
    struct record in = resource_record(long_key, addresses, RECORD_MAX_ADDRESSES);
    in.resource.tvm = in.resource.endpoints[0];
    struct bytes data = encode(&in, &closed_swarm, key);
    assert_true(data.len <= RECORD_MAX_BYTES);
    bytes_free(&data);
}

static void value_ids_name_peer_and_subject(void **state)
{
    (void)state;
    struct record a = resource_record("rpi", NULL, 0), b = resource_record("rpi", NULL, 0);

    b.resource.free = 0;
    b.resource.offline = true;
    assert_true(record_value_id(&a) == record_value_id(&b));
    b = resource_record("rpj", NULL, 0);
    assert_true(record_value_id(&a) != record_value_id(&b));
    b = tracker_record();
    assert_true(record_value_id(&a) != record_value_id(&b));
    memcpy(b.peer_id, stranger.peer_id, PEER_ID_BYTES);
    a = tracker_record();
    assert_true(record_value_id(&a) != record_value_id(&b));
}

/* The vectors of docs/records.md, made apart from this code. */
static void keys_and_ids_are_those_of_the_specification(void **state)
{
    (void)state;
    uint8_t key[RECORD_KEY_BYTES];
    char hex[2 * RECORD_KEY_BYTES + 1];
    struct record tracker = tracker_record(), resource = resource_record("rpi:4", NULL, 0);

    record_key_trackers_shard(&open_swarm, 12, key);
    hex_encode(hex, key, sizeof(key));
    assert_string_equal(hex, "2a1952f6b05be0601bff387dc0f8184c2ab22c2f");
    record_key_resource(&open_swarm, "rpi:4", key);
    hex_encode(hex, key, sizeof(key));
    assert_string_equal(hex, "dbff3e7b56767a1f0df3269a81748d76a29037f8");
    assert_true(record_value_id(&tracker) == 0x20ddb0c41acde26b);
    assert_true(record_value_id(&resource) == 0xdc533dbf7edb9266);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct endpoint addresses[2] = {{.host = "192.0.2.9", .port = 9090},
                                    {.host = "192.0.2.9", .port = 9091}};
    struct record in = resource_record("rpi", addresses, 2), out;
    uint8_t key[RECORD_KEY_BYTES];
    bool failed = true;

    key_of(&in, &closed_swarm, key);
    for (long nth = 1; failed; nth++) {
        struct bytes data = {0};
        mem_fail_at(nth);
        skep_status rc = record_encode(&in, &publisher, &closed_swarm, key, &data, NULL);
        if (rc == SKEP_OK)
            rc = record_decode(&out, data.data, data.len, &closed_swarm, key, NOW, NULL);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        assert_int_equal(rc, failed ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK);
        if (rc == SKEP_OK)
            record_free(&out);
        bytes_free(&data);
    }
}

static int set_up(void **state)
{
    (void)state;
    uint8_t seed[32] = {1}, other[32] = {2};
    if (identity_system_init(NULL) != SKEP_OK ||
        identity_from_seed(&publisher, seed, NULL) != SKEP_OK ||
        identity_from_seed(&stranger, other, NULL) != SKEP_OK)
        return -1;
    swarm_key_from_secret(&private_key, seed);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tracker_survives_the_round_trip),
        cmocka_unit_test(resource_survives_the_round_trip_under_any_key),
        cmocka_unit_test(a_resource_record_holds_under_its_own_key_only),
        cmocka_unit_test(bad_fields_are_refused_before_sending),
        cmocka_unit_test(addresses_nobody_can_dial_are_dropped_on_arrival),
        cmocka_unit_test(body_fields_of_other_types_are_refused),
        cmocka_unit_test(a_resource_record_of_a_full_size_fits),
        cmocka_unit_test(value_ids_name_peer_and_subject),
        cmocka_unit_test(keys_and_ids_are_those_of_the_specification),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
