/* Records: round trips, and that nothing but the publisher's own statement for a key is accepted.
 */
#include "unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "base/alloc.h"
#include "base/mp.h"
#include "dht/record/record.h"
#include "dht/record/record_internal.h"

enum { NOW = 1800000000 };

static struct identity publisher, stranger;
static struct swarm_key private_key;
static struct record_swarm open_swarm = {.name = "test", .clock_skew_s = 60};
static struct record_swarm closed_swarm = {.name = "test", .key = &private_key, .clock_skew_s = 60};
static struct record_swarm local_swarm = {.name = "test", .loopback = true, .clock_skew_s = 60};

static struct record expert_record(void)
{
    struct record r = {
        .kind = RECORD_EXPERT,
        .seq = (uint64_t)NOW * 1000,
        .expires_at = NOW + 60,
        .expert =
            {
                .uid = "ffn.3.17",
                .endpoint_count = 2,
                .endpoints = {{.host = "192.0.2.7", .port = 4000},
                              {.host = "2001:db8::7", .port = 4001}},
                .cls = "ffn",
                .schema_digest = {1, 2, 3, 255},
                .features = RECORD_FEATURE_AES_GCM,
                .load = {.examples_per_s = 12.5, .queued_tasks = 9},
            },
    };
    memcpy(r.peer_id, publisher.peer_id, PEER_ID_BYTES);
    return r;
}

static struct record prefix_record(int64_t *coords, size_t count)
{
    struct record r = {
        .kind = RECORD_PREFIX,
        .seq = (uint64_t)NOW * 1000,
        .expires_at = NOW + 60,
        .prefix =
            {
                .prefix = "ffn.3.",
                .endpoint_count = 1,
                .endpoints = {{.host = "192.0.2.7", .port = 4000}},
                .parts = 1,
                .coord_count = count,
                .coords = coords,
            },
    };
    memcpy(r.peer_id, publisher.peer_id, PEER_ID_BYTES);
    return r;
}

static struct record node_record(void)
{
    struct record r = {
        .kind = RECORD_NODE,
        .seq = (uint64_t)NOW * 1000,
        .expires_at = NOW + 3600,
        .node =
            {
                .endpoint_count = 1,
                .endpoints = {{.host = "node.example.org", .port = 65535}},
                .features = RECORD_FEATURE_PLAINTEXT,
                .state = "online",
                .version = "0.1.0",
                .expert_count = 12,
                .load = {.examples_per_s = 0.25, .queued_tasks = 1},
            },
    };
    memcpy(r.peer_id, publisher.peer_id, PEER_ID_BYTES);
    return r;
}

static void key_of(const struct record *r, const struct record_swarm *swarm,
                   uint8_t key[static RECORD_KEY_BYTES])
{
    if (r->kind == RECORD_EXPERT)
        record_key_expert(swarm, r->expert.uid, key);
    else if (r->kind == RECORD_PREFIX)
        record_key_prefix(swarm, r->prefix.prefix, r->peer_id, key);
    else
        record_key_node(swarm, r->peer_id, key);
}

/* Encodes under the record's own key. */
static struct bytes encode(const struct record *r, const struct record_swarm *swarm,
                           uint8_t key[static RECORD_KEY_BYTES])
{
    struct bytes out = {0};
    struct skep_error err;

    key_of(r, swarm, key);
    skep_status rc = record_encode(r, &publisher, swarm, key, &out, &err);
    if (rc != SKEP_OK)
        fail_msg("record_encode: %s", err.message);
    return out;
}

static skep_status decode(struct record *out, const struct bytes *data,
                          const struct record_swarm *swarm,
                          const uint8_t key[static RECORD_KEY_BYTES])
{
    return record_decode(out, data->data, data->len, swarm, key, NOW, NULL);
}

/* A record signed by `identity` around any body: what a stranger with a good key could send. */
static struct bytes forge(const struct identity *identity, uint64_t kind, uint64_t seq,
                          int64_t expires_at, const struct bytes *body,
                          const uint8_t key[static RECORD_KEY_BYTES])
{
    struct bytes out = {0}, message = {0};
    uint8_t domain[RECORD_DOMAIN_BYTES];
    uint8_t field[66] = {0xc4, 64};
    msgpack_packer pk;

    record_packer_init(&pk, &out);
    msgpack_pack_array(&pk, 7);
    msgpack_pack_uint64(&pk, 1);
    msgpack_pack_uint64(&pk, kind);
    mp_pack_bin(&pk, identity->peer_id, PEER_ID_BYTES);
    msgpack_pack_uint64(&pk, seq);
    msgpack_pack_int64(&pk, expires_at);
    bytes_append(&out, body->data, body->len);
    record_domain(key, domain);
    bytes_append(&message, domain, sizeof(domain));
    bytes_append(&message, out.data, out.len);
    identity_sign(identity, message.data, message.len, field + 2);
    bytes_append(&out, field, sizeof(field));
    bytes_free(&message);
    return out;
}

static void expert_survives_the_round_trip(void **state)
{
    (void)state;
    struct record_swarm *swarms[] = {&open_swarm, &closed_swarm};
    for (size_t s = 0; s < 2; s++) {
        struct record in = expert_record(), out;
        uint8_t key[RECORD_KEY_BYTES];
        in.expert.offline = s == 1;
        if (s == 1)
            in.expert.claim = (struct record_claim){RECORD_CLAIM_NEW, true, 1800000000};
        struct bytes data = encode(&in, swarms[s], key);
        assert_int_equal(decode(&out, &data, swarms[s], key), SKEP_OK);
        assert_int_equal(out.kind, RECORD_EXPERT);
        assert_memory_equal(out.peer_id, publisher.peer_id, PEER_ID_BYTES);
        assert_int_equal(out.seq, in.seq);
        assert_int_equal(out.expires_at, in.expires_at);
        assert_string_equal(out.expert.uid, "ffn.3.17");
        assert_int_equal(out.expert.endpoint_count, 2);
        assert_true(endpoint_equal(&out.expert.endpoints[0], &in.expert.endpoints[0]));
        assert_true(endpoint_equal(&out.expert.endpoints[1], &in.expert.endpoints[1]));
        assert_string_equal(out.expert.cls, "ffn");
        assert_memory_equal(out.expert.schema_digest, in.expert.schema_digest, 16);
        assert_int_equal(out.expert.features, RECORD_FEATURE_AES_GCM);
        assert_int_equal(out.expert.offline, in.expert.offline);
        assert_true(out.expert.load.examples_per_s == 12.5);
        assert_int_equal(out.expert.load.queued_tasks, 9);
        assert_int_equal(out.expert.claim.level, in.expert.claim.level);
        assert_int_equal(out.expert.claim.random, in.expert.claim.random);
        assert_int_equal(out.expert.claim.since_s, in.expert.claim.since_s);
        assert_true(record_value_id(&out) == record_value_id(&in));
        record_free(&out);
        bytes_free(&data);
    }
}

static void prefix_survives_the_round_trip(void **state)
{
    (void)state;
    int64_t coords[] = {0, 1, 200, 70000, INT64_MAX};
    struct record in = prefix_record(coords, 5), out;
    uint8_t key[RECORD_KEY_BYTES];

    in.prefix.part = 2;
    in.prefix.parts = 3;
    in.prefix.depth = 2;
    in.prefix.load = (struct record_load){.examples_per_s = 2.5, .queued_tasks = 70000};
    struct bytes data = encode(&in, &open_swarm, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_string_equal(out.prefix.prefix, "ffn.3.");
    assert_int_equal(out.prefix.part, 2);
    assert_int_equal(out.prefix.parts, 3);
    assert_int_equal(out.prefix.depth, 2);
    assert_int_equal(out.prefix.coord_count, 5);
    assert_memory_equal(out.prefix.coords, coords, sizeof(coords));
    assert_int_equal(out.prefix.below_len, 0);
    assert_true(out.prefix.load.examples_per_s == 2.5);
    assert_int_equal(out.prefix.load.queued_tasks, 70000);
    assert_true(record_value_id(&out) == record_value_id(&in));
    record_free(&out);
    bytes_free(&data);
}

static void what_is_below_survives_the_round_trip(void **state)
{
    (void)state;
    int64_t coords[] = {1, 7};
    const int64_t below[] = {3, 0, 5, INT64_MAX, 1, 4};
    struct record in = prefix_record(coords, 2), out;
    uint8_t key[RECORD_KEY_BYTES];

    in.prefix.depth = 2;
    in.prefix.below = below;
    in.prefix.below_len = 6;
    struct bytes data = encode(&in, &open_swarm, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_int_equal(out.prefix.coord_count, 2);
    assert_memory_equal(out.prefix.coords, coords, sizeof(coords));
    assert_int_equal(out.prefix.below_len, 6);
    assert_memory_equal(out.prefix.below, below, sizeof(below));
    record_free(&out);
    bytes_free(&data);
}

/* There are many of them: a node that idles adds nothing, and a rate of nonsense is no load. */
static void a_prefix_says_its_load_only_if_there_is_one(void **state)
{
    (void)state;
    int64_t coords[] = {1, 7};
    struct record in = prefix_record(coords, 2), out;
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes data = encode(&in, &open_swarm, key), refused = {0};

    assert_null(memmem(data.data, data.len, "load", 4));
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_int_equal(out.prefix.load.queued_tasks, 0);
    record_free(&out);
    bytes_free(&data);
    in.prefix.load.queued_tasks = 1;
    data = encode(&in, &open_swarm, key);
    assert_non_null(memmem(data.data, data.len, "load", 4));
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_int_equal(out.prefix.load.queued_tasks, 1);
    record_free(&out);
    bytes_free(&data);
    in.prefix.load.examples_per_s = (double)INFINITY;
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &refused, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_null(refused.data);
}

/* Before sending, and well signed on arrival. */
static void expect_below_refused(const int64_t *below, size_t len, uint32_t depth)
{
    static int64_t coords[] = {1, 7};
    struct record in = prefix_record(coords, 2), out;
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes body = {0}, encoded = {0};
    msgpack_packer pk;

    key_of(&in, &open_swarm, key);
    in.prefix.depth = depth;
    assert_true(body_pack(&in, &body));
    body.data[0] = (uint8_t)(body.data[0] + 1);
    record_packer_init(&pk, &body);
    mp_pack_str(&pk, "below");
    msgpack_pack_array(&pk, len);
    for (size_t i = 0; i < len; i++)
        msgpack_pack_int64(&pk, below[i]);
    struct bytes data = forge(&publisher, RECORD_PREFIX, in.seq, in.expires_at, &body, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_DATA_LOSS);
    in.prefix.below = below;
    in.prefix.below_len = len;
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &encoded, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_null(encoded.data);
    bytes_free(&data);
    bytes_free(&body);
}

static void what_is_below_must_fit_what_is_listed(void **state)
{
    (void)state;
    static const int64_t lists[][6] = {
        {1, 3},               /* one list for two coordinates */
        {1, 3, 1, 4, 1, 5},   /* three */
        {0, 1, 4},            /* an empty one */
        {1, 3, 2, 4},         /* cut off */
        {1, 3, INT64_MAX, 4}, /* absurdly long */
        {-1, 3, 1, 4},        /* nonsense */
        {2, 3, 0, 1, 4},      /* twice the same, as it is coded */
        {1, 3, 1, -4},        /* negative */
    };
    static const size_t lens[] = {2, 6, 3, 4, 4, 4, 5, 4};
    static int64_t many[RECORD_MAX_BELOW + 4];
    const int64_t good[] = {1, 3, 1, 4};

    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
        expect_below_refused(lists[i], lens[i], 2);
    expect_below_refused(good, 4, 1);
    expect_below_refused(good, 4, 0);
    many[0] = RECORD_MAX_BELOW + 1;
    for (int64_t i = 1; i <= many[0]; i++)
        many[i] = i;
    many[RECORD_MAX_BELOW + 2] = 1;
    expect_below_refused(many, RECORD_MAX_BELOW + 4, 2);
}

static void empty_prefix_is_a_withdrawal(void **state)
{
    (void)state;
    struct record in = prefix_record(NULL, 0), out;
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes data = encode(&in, &open_swarm, key);

    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_int_equal(out.prefix.coord_count, 0);
    record_free(&out);
    bytes_free(&data);
}

static void node_survives_the_round_trip_under_both_of_its_keys(void **state)
{
    (void)state;
    struct record in = node_record(), out;
    uint8_t keys[2][RECORD_KEY_BYTES];

    record_key_node(&open_swarm, publisher.peer_id, keys[0]);
    record_key_nodes_shard(&open_swarm, record_shard(publisher.peer_id), keys[1]);
    for (int i = 0; i < 2; i++) {
        struct bytes data = {0};
        assert_int_equal(record_encode(&in, &publisher, &open_swarm, keys[i], &data, NULL),
                         SKEP_OK);
        assert_int_equal(decode(&out, &data, &open_swarm, keys[i]), SKEP_OK);
        assert_string_equal(out.node.state, "online");
        assert_string_equal(out.node.version, "0.1.0");
        assert_int_equal(out.node.expert_count, 12);
        assert_string_equal(out.node.endpoints[0].host, "node.example.org");
        assert_int_equal(out.node.endpoints[0].port, 65535);
        record_free(&out);
        bytes_free(&data);
    }
}

static void every_changed_byte_is_noticed(void **state)
{
    (void)state;
    struct record_swarm *swarms[] = {&open_swarm, &closed_swarm};
    for (size_t s = 0; s < 2; s++) {
        struct record in = expert_record(), out;
        uint8_t key[RECORD_KEY_BYTES];
        struct bytes data = encode(&in, swarms[s], key);
        uint64_t id = record_value_id(&in);
        for (size_t i = 0; i < data.len; i++) {
            data.data[i] ^= 0x01;
            assert_int_not_equal(decode(&out, &data, swarms[s], key), SKEP_OK);
            assert_false(record_store_policy(data.data, data.len, id, key, swarms[s], NOW));
            data.data[i] ^= 0x01;
        }
        assert_int_equal(decode(&out, &data, swarms[s], key), SKEP_OK);
        record_free(&out);
        bytes_free(&data);
    }
}

static void truncated_and_extended_records_are_refused(void **state)
{
    (void)state;
    int64_t coords[] = {1, 2, 3};
    struct record in = prefix_record(coords, 3), out;
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes data = encode(&in, &open_swarm, key);
    size_t whole = data.len;

    for (data.len = 0; data.len < whole; data.len++) {
        /* A copy of exact size, so that a read past the end is seen by the sanitizer. */
        struct bytes cut = {0};
        assert_true(bytes_append(&cut, data.data, data.len));
        assert_int_not_equal(decode(&out, &cut, &open_swarm, key), SKEP_OK);
        bytes_free(&cut);
    }
    assert_true(bytes_append(&data, "", 1));
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_DATA_LOSS);
    bytes_free(&data);
}

static void a_record_holds_under_its_own_key_only(void **state)
{
    (void)state;
    struct record in = expert_record(), out;
    uint8_t key[RECORD_KEY_BYTES], other[RECORD_KEY_BYTES];
    struct bytes data = encode(&in, &open_swarm, key);

    record_key_expert(&open_swarm, "ffn.3.18", other);
    assert_int_equal(decode(&out, &data, &open_swarm, other), SKEP_UNAUTHENTICATED);
    bytes_free(&data);

    /* Signed for the other key, but about this expert: the subject gives it away. */
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, other, &data, NULL), SKEP_OK);
    assert_int_equal(decode(&out, &data, &open_swarm, other), SKEP_DATA_LOSS);
    assert_false(
        record_store_policy(data.data, data.len, record_value_id(&in), other, &open_swarm, NOW));
    bytes_free(&data);
}

/* Whatever the publisher's clock shows, a record lives for its lifetime from when it is read. */
static void a_misdated_record_ends_by_the_readers_clock(void **state)
{
    (void)state;
    static const struct {
        int64_t seq_in_s, expires_in_s, ends_in_s;
    } cases[] = {
        {0, 60, 60},       /* the clocks agree */
        {-30, 30, 30},     /* 30 s old, or a slow clock: its own end is in sight all the same */
        {-60, 0, 60},      /* ended just now: by one of the clocks */
        {-300, -240, 60},  /* 300 s slow */
        {-640, -590, 50},  /* the slowest that is taken */
        {90, 150, 60},     /* 90 s fast */
        {600, 4200, 3600}, /* the longest life, at the fastest clock */
        {500, 400, 400},   /* dates that make no lifetime are taken as they are */
        {-4000, -399, 3600},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct record in = expert_record(), out;
        uint8_t key[RECORD_KEY_BYTES];
        in.seq = (uint64_t)(NOW + cases[i].seq_in_s) * 1000;
        in.expires_at = NOW + cases[i].expires_in_s;
        struct bytes data = encode(&in, &open_swarm, key);
        assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
        assert_int_equal(out.expires_at, NOW + cases[i].ends_in_s);
        assert_int_equal(out.seq, in.seq);
        record_free(&out);
        bytes_free(&data);
    }
}

static void a_record_refused_for_its_dates_alone_is_told_from_junk(void **state)
{
    (void)state;
    static const struct {
        int64_t seq_in_s, expires_in_s, off_by_s;
    } cases[] = {
        {-7200, -7140, -7141},
        {-660, -600, -601},
        {7200, 7260, 7200},
        {4201, 4261, 4201},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct record in = expert_record();
        struct record_misdated seen = {0};
        uint8_t key[RECORD_KEY_BYTES];
        in.seq = (uint64_t)(NOW + cases[i].seq_in_s) * 1000;
        in.expires_at = NOW + cases[i].expires_in_s;
        struct bytes data = encode(&in, &open_swarm, key);
        assert_true(record_is_misdated(data.data, data.len, &open_swarm, key, NOW, &seen));
        assert_int_equal(seen.off_by_s, cases[i].off_by_s);
        assert_memory_equal(seen.peer_id, publisher.peer_id, PEER_ID_BYTES);
        /* At its own time it is a good record, and what is forged is not one at any time. */
        assert_false(record_is_misdated(data.data, data.len, &open_swarm, key,
                                        NOW + cases[i].seq_in_s, &seen));
        data.data[data.len - 1] ^= 1;
        assert_false(record_is_misdated(data.data, data.len, &open_swarm, key, NOW, &seen));
        assert_false(record_is_misdated(data.data, 3, &open_swarm, key, NOW, &seen));
        bytes_free(&data);
    }
}

static void one_node_cannot_speak_for_another(void **state)
{
    (void)state;
    struct record in = node_record(), out;
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes data = {0};

    record_key_node(&open_swarm, publisher.peer_id, key);
    assert_int_equal(record_encode(&in, &stranger, &open_swarm, key, &data, NULL), SKEP_OK);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_DATA_LOSS);
    bytes_free(&data);
}

static void times_are_bounded_on_both_sides(void **state)
{
    (void)state;
    static const struct {
        int64_t expires_in, seq_in_s;
        skep_status expected;
    } cases[] = {
        {-601, 0, SKEP_DEADLINE_EXCEEDED},
        {-600, 0, SKEP_DEADLINE_EXCEEDED},
        {-599, 0, SKEP_OK}, /* within the clocks' difference */
        {3600, 0, SKEP_OK},
        {4200, 0, SKEP_OK},
        {4201, 0, SKEP_INVALID_ARGUMENT},
        {100000000, 0, SKEP_INVALID_ARGUMENT},
        {60, 4200, SKEP_OK},
        {60, 4201, SKEP_INVALID_ARGUMENT},
        {60, INT32_MAX, SKEP_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct record in = expert_record(), out;
        uint8_t key[RECORD_KEY_BYTES];
        in.expires_at = NOW + cases[i].expires_in;
        in.seq = (uint64_t)(NOW + cases[i].seq_in_s) * 1000;
        struct bytes data = encode(&in, &open_swarm, key);
        assert_int_equal(decode(&out, &data, &open_swarm, key), cases[i].expected);
        assert_int_equal(
            record_store_policy(data.data, data.len, record_value_id(&in), key, &open_swarm, NOW),
            cases[i].expected == SKEP_OK);
        record_free(&out);
        bytes_free(&data);
    }
}

static void over_limits_is_refused_before_sending(void **state)
{
    (void)state;
    struct record in = expert_record();
    struct bytes out = {0};
    uint8_t key[RECORD_KEY_BYTES] = {0};

    in.expert.endpoint_count = 4;
    for (size_t i = 0; i < 4; i++) {
        memset(in.expert.endpoints[i].host, 'a', 253);
        in.expert.endpoints[i].host[253] = '\0';
        in.expert.endpoints[i].port = 1;
    }
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &out, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_null(out.data);

    size_t count = 20000; /* of five bytes each */
    int64_t *coords = mem_calloc(count, sizeof(*coords));
    for (size_t i = 0; i < count; i++)
        coords[i] = (int64_t)i * 100000;
    struct record prefix = prefix_record(coords, count);
    assert_int_equal(record_encode(&prefix, &publisher, &open_swarm, key, &out, NULL),
                     SKEP_INVALID_ARGUMENT);
    prefix.prefix.coord_count = 12000;
    assert_int_equal(record_encode(&prefix, &publisher, &open_swarm, key, &out, NULL), SKEP_OK);
    assert_in_range(out.len, 50000, RECORD_MAX_PREFIX_BYTES);
    bytes_free(&out);
    mem_free(coords);
}

static void over_limits_is_refused_on_arrival(void **state)
{
    (void)state;
    struct record out, in = expert_record();
    uint8_t key[RECORD_KEY_BYTES];
    static uint8_t noise[RECORD_MAX_PREFIX_BYTES + 1];
    struct bytes body = {0}, small = {0};

    key_of(&in, &open_swarm, key);
    assert_int_equal(record_decode(&out, noise, sizeof(noise), &open_swarm, key, NOW, NULL),
                     SKEP_INVALID_ARGUMENT);
    /* A body of 2 KB, well signed: over what an expert record may take. */
    assert_true(body_pack(&in, &body));
    body.data[0] = (uint8_t)(body.data[0] + 1); /* one field more */
    msgpack_packer pk;
    record_packer_init(&pk, &body);
    mp_pack_str(&pk, "padding");
    mp_pack_bin(&pk, noise, 2048);
    struct bytes data = forge(&publisher, RECORD_EXPERT, in.seq, in.expires_at, &body, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_INVALID_ARGUMENT);
    bytes_free(&data);
    bytes_free(&body);
    bytes_free(&small);
}

static void unknown_fields_of_a_body_are_ignored(void **state)
{
    (void)state;
    struct record out, in = expert_record();
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes body = {0};
    msgpack_packer pk;

    key_of(&in, &open_swarm, key);
    assert_true(body_pack(&in, &body));
    body.data[0] = (uint8_t)(body.data[0] + 1);
    record_packer_init(&pk, &body);
    mp_pack_str(&pk, "later");
    msgpack_pack_array(&pk, 0);
    struct bytes data = forge(&publisher, RECORD_EXPERT, in.seq, in.expires_at, &body, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    record_free(&out);
    bytes_free(&data);
    bytes_free(&body);
}

static void unknown_versions_and_kinds_are_refused(void **state)
{
    (void)state;
    struct record out, in = expert_record();
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes body = {0};

    key_of(&in, &open_swarm, key);
    assert_true(body_pack(&in, &body));
    for (uint64_t kind = 0; kind < 300; kind++) {
        struct bytes data = forge(&publisher, kind, in.seq, in.expires_at, &body, key);
        assert_int_equal(decode(&out, &data, &open_swarm, key),
                         kind == RECORD_EXPERT ? SKEP_OK : SKEP_DATA_LOSS);
        record_free(&out);
        bytes_free(&data);
    }
    struct bytes data = forge(&publisher, RECORD_EXPERT, in.seq, in.expires_at, &body, key);
    data.data[1] = RECORD_VERSION + 1;
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_DATA_LOSS);
    bytes_free(&data);
    bytes_free(&body);
}

/* Every field of a well-signed body, replaced by a value of another type. */
static void expect_field_refused(const struct record *in, const char *const *names, size_t count)
{
    struct record out;
    uint8_t key[RECORD_KEY_BYTES];

    key_of(in, &open_swarm, key);
    for (size_t i = 0; i < count; i++) {
        struct bytes whole = {0}, body = {0};
        msgpack_packer pk;
        assert_true(body_pack(in, &whole));
        /* The first of two equal names wins, so the wrong one is put in front. */
        uint8_t head = (uint8_t)(whole.data[0] + 1);
        assert_true(bytes_append(&body, &head, 1));
        record_packer_init(&pk, &body);
        mp_pack_str(&pk, names[i]);
        msgpack_pack_map(&pk, 0);
        assert_true(bytes_append(&body, whole.data + 1, whole.len - 1));
        struct bytes data = forge(&publisher, in->kind, in->seq, in->expires_at, &body, key);
        assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_DATA_LOSS);
        bytes_free(&data);
        bytes_free(&body);
        bytes_free(&whole);
    }
}

static void body_fields_of_other_types_are_refused(void **state)
{
    (void)state;
    static const char *const of_expert[] = {"uid",    "endpoints", "class",
                                            "schema", "features",  "load"};
    static const char *const of_prefix[] = {"prefix", "endpoints", "features", "part", "parts",
                                            "depth",  "coords",    "below",    "load"};
    int64_t coords[] = {1, 7};
    const struct record expert = expert_record(), prefix = prefix_record(coords, 2);

    expect_field_refused(&expert, of_expert, sizeof(of_expert) / sizeof(of_expert[0]));
    expect_field_refused(&prefix, of_prefix, sizeof(of_prefix) / sizeof(of_prefix[0]));
}

static const char *const undialable[] = {"",          "0.0.0.0", "::",        "::ffff:0.0.0.0",
                                         "127.0.0.1", "::1",     "localhost", "x.localhost",
                                         "127.8.9.1"};

static void endpoints_nobody_can_dial_are_never_published(void **state)
{
    (void)state;
    struct bytes out = {0};
    uint8_t key[RECORD_KEY_BYTES] = {0};
    struct record in = expert_record();

    for (size_t i = 0; i < sizeof(undialable) / sizeof(undialable[0]); i++) {
        in = expert_record();
        snprintf(in.expert.endpoints[1].host, sizeof(in.expert.endpoints[1].host), "%s",
                 undialable[i]);
        assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &out, NULL),
                         SKEP_INVALID_ARGUMENT);
    }
    in = expert_record();
    in.expert.endpoints[0].port = 0;
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &out, NULL),
                     SKEP_INVALID_ARGUMENT);
    in = expert_record();
    in.expert.endpoint_count = 0;
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &out, NULL),
                     SKEP_INVALID_ARGUMENT);
}

static void loopback_is_fine_in_a_loopback_swarm_and_dropped_elsewhere(void **state)
{
    (void)state;
    struct record in = expert_record(), out;
    uint8_t key[RECORD_KEY_BYTES];

    snprintf(in.expert.endpoints[0].host, sizeof(in.expert.endpoints[0].host), "%s", "127.0.0.1");
    struct bytes data = encode(&in, &local_swarm, key);
    assert_int_equal(decode(&out, &data, &local_swarm, key), SKEP_OK);
    assert_int_equal(out.expert.endpoint_count, 2);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_OK);
    assert_int_equal(out.expert.endpoint_count, 1);
    assert_string_equal(out.expert.endpoints[0].host, "2001:db8::7");
    bytes_free(&data);

    in.expert.endpoint_count = 1;
    data = encode(&in, &local_swarm, key);
    assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_INVALID_ARGUMENT);
    bytes_free(&data);
}

static void endpoints_that_are_garbage_are_dropped(void **state)
{
    (void)state;
    static const char *const texts[] = {"",       ":1",        "host",    "host:0",
                                        "host:*", "0.0.0.0:1", "[::]:1",  "host:99999",
                                        "a b:1",  "::1:2",     "[::1]:5", "localhost:5"};
    struct record out;
    uint8_t key[RECORD_KEY_BYTES];

    record_key_node(&open_swarm, publisher.peer_id, key);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct bytes body = {0};
        msgpack_packer pk;
        record_packer_init(&pk, &body);
        msgpack_pack_map(&pk, 3);
        mp_pack_str(&pk, "state");
        mp_pack_str(&pk, "online");
        mp_pack_str(&pk, "version");
        mp_pack_str(&pk, "1");
        mp_pack_str(&pk, "endpoints");
        msgpack_pack_array(&pk, 1);
        mp_pack_str(&pk, texts[i]);
        struct bytes data =
            forge(&publisher, RECORD_NODE, (uint64_t)NOW * 1000, NOW + 60, &body, key);
        assert_int_equal(decode(&out, &data, &open_swarm, key), SKEP_INVALID_ARGUMENT);
        bytes_free(&data);
        bytes_free(&body);
    }
}

static void a_private_swarm_reads_and_stores_only_its_own(void **state)
{
    (void)state;
    struct swarm_key other_key;
    uint8_t secret[32] = {9}, key[RECORD_KEY_BYTES], open_key[RECORD_KEY_BYTES];
    struct record in = expert_record(), out;

    swarm_key_from_secret(&other_key, secret);
    struct record_swarm other = closed_swarm;
    other.key = &other_key;
    struct bytes sealed = encode(&in, &closed_swarm, key);
    assert_null(memmem(sealed.data, sealed.len, "ffn", 3));
    assert_null(memmem(sealed.data, sealed.len, "192.0.2.7", 9));
    /* Even somebody who learnt the DHT key cannot read it there, nor plant a plain one. */
    assert_int_equal(decode(&out, &sealed, &other, key), SKEP_UNAUTHENTICATED);
    assert_int_equal(decode(&out, &sealed, &open_swarm, key), SKEP_UNAUTHENTICATED);
    bytes_free(&sealed);

    struct bytes plain = {0};
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &plain, NULL), SKEP_OK);
    assert_int_equal(decode(&out, &plain, &closed_swarm, key), SKEP_UNAUTHENTICATED);
    assert_false(
        record_store_policy(plain.data, plain.len, record_value_id(&in), key, &closed_swarm, NOW));
    bytes_free(&plain);
    record_key_expert(&open_swarm, in.expert.uid, open_key);
    assert_memory_not_equal(key, open_key, RECORD_KEY_BYTES);
}

static void store_policy_binds_the_value_id(void **state)
{
    (void)state;
    struct record in = expert_record();
    uint8_t key[RECORD_KEY_BYTES];
    struct bytes data = encode(&in, &open_swarm, key);
    uint64_t id = record_value_id(&in);

    assert_true(record_store_policy(data.data, data.len, id, key, &open_swarm, NOW));
    assert_false(record_store_policy(data.data, data.len, id + 1, key, &open_swarm, NOW));
    assert_false(record_store_policy(data.data, 0, id, key, &open_swarm, NOW));
    bytes_free(&data);
}

static bool may_edit(const void *old, size_t old_len, const void *next, size_t next_len,
                     uint64_t id, const uint8_t *key)
{
    const struct record_edit edit = {old, next, old_len, next_len, id, key};

    return record_edit_policy(&edit, &open_swarm, NOW);
}

static void edit_policy_wants_the_same_peer_and_a_higher_seq(void **state)
{
    (void)state;
    struct record in = expert_record();
    uint8_t key[RECORD_KEY_BYTES];
    uint64_t id = record_value_id(&in);
    struct bytes first = encode(&in, &open_swarm, key), second = {0}, theirs = {0};

    in.seq++;
    in.expert.load.queued_tasks = 0;
    in.expert.offline = true;
    assert_true(record_value_id(&in) == id);
    assert_int_equal(record_encode(&in, &publisher, &open_swarm, key, &second, NULL), SKEP_OK);
    in.seq++;
    assert_int_equal(record_encode(&in, &stranger, &open_swarm, key, &theirs, NULL), SKEP_OK);

    assert_true(may_edit(first.data, first.len, second.data, second.len, id, key));
    assert_false(may_edit(second.data, second.len, first.data, first.len, id, key));
    assert_false(may_edit(first.data, first.len, first.data, first.len, id, key));
    assert_false(may_edit(first.data, first.len, theirs.data, theirs.len, id, key));
    assert_false(may_edit(first.data, first.len, second.data, second.len - 1, id, key));
    /* What is stored is no record: it has no claim to the id. */
    assert_true(may_edit("junk", 4, second.data, second.len, id, key));
    bytes_free(&first);
    bytes_free(&second);
    bytes_free(&theirs);
}

static void value_id_names_peer_and_subject_only(void **state)
{
    (void)state;
    int64_t coords[] = {1, 2};
    struct record a = expert_record(), b = expert_record();

    b.seq += 1000;
    b.expires_at += 30;
    b.expert.load.examples_per_s = 1;
    b.expert.endpoints[0].port++;
    b.expert.offline = true;
    assert_true(record_value_id(&a) == record_value_id(&b));
    snprintf(b.expert.uid, sizeof(b.expert.uid), "%s", "ffn.3.18");
    assert_true(record_value_id(&a) != record_value_id(&b));
    b = a;
    b.peer_id[0]++;
    assert_true(record_value_id(&a) != record_value_id(&b));

    a = prefix_record(coords, 2);
    b = prefix_record(coords, 1);
    assert_true(record_value_id(&a) == record_value_id(&b));
    b.prefix.part = 1;
    assert_true(record_value_id(&a) != record_value_id(&b));
}

static void keys_differ_by_swarm_kind_and_subject(void **state)
{
    (void)state;
    struct record_swarm other = {.name = "tes", .clock_skew_s = 60};
    uint8_t keys[13][RECORD_KEY_BYTES], root[RECORD_KEY_BYTES];

    record_key_expert(&open_swarm, "ffn.3", keys[0]);
    record_key_expert(&open_swarm, "ffn.4", keys[1]);
    record_key_expert(&other, "ffn.3", keys[2]);
    record_key_expert(&closed_swarm, "ffn.3", keys[3]);
    record_key_prefix(&open_swarm, "ffn.3.", publisher.peer_id, keys[4]);
    record_key_prefix_root(&open_swarm, "ffn.", 0, keys[5]);
    record_key_prefix_root(&open_swarm, "ffn.", 15, keys[6]);
    record_key_node(&open_swarm, publisher.peer_id, keys[7]);
    record_key_nodes_shard(&open_swarm, 0, keys[8]);
    record_dht_id(&open_swarm, publisher.peer_id, keys[9]);
    record_dht_id(&open_swarm, stranger.peer_id, keys[10]);
    record_dht_id(&other, publisher.peer_id, keys[11]);
    record_dht_id(&closed_swarm, publisher.peer_id, keys[12]);
    for (size_t i = 0; i < 13; i++)
        for (size_t j = 0; j < i; j++)
            assert_memory_not_equal(keys[i], keys[j], RECORD_KEY_BYTES);
    record_key_prefix(&open_swarm, "ffn.", publisher.peer_id, root);
    record_key_prefix_root(&open_swarm, "ffn.", record_shard(publisher.peer_id), keys[0]);
    assert_memory_equal(root, keys[0], RECORD_KEY_BYTES);
    /* One prefix is one key for all nodes, below the root. */
    record_key_prefix(&open_swarm, "ffn.3.", stranger.peer_id, root);
    assert_memory_equal(root, keys[4], RECORD_KEY_BYTES);
    assert_true(record_network_id(&open_swarm) != record_network_id(&other));
    assert_true(record_network_id(&open_swarm) != 0);
}

static void assert_hex(const uint8_t *data, size_t len, const char *expected)
{
    char hex[1024];

    assert_true(len < sizeof(hex) / 2);
    hex_encode(hex, data, len);
    assert_string_equal(hex, expected);
}

/* The vectors of docs/records.md, made apart from this code: a change of format shows here first.
 */
static void keys_are_those_of_the_specification(void **state)
{
    (void)state;
    struct record_swarm open = {.name = "skep", .clock_skew_s = 60};
    struct record_swarm closed = {.name = "skep", .key = &private_key, .clock_skew_s = 60};
    uint8_t key[RECORD_KEY_BYTES], peer[PEER_ID_BYTES] = {0x1f};

    assert_int_equal(record_network_id(&open), 0xecbf742d);
    record_key_expert(&open, "ffn.3.17", key);
    assert_hex(key, sizeof(key), "06c9de7e0d29221f09fd2c88b364a4d12813e4eb");
    assert_int_equal(record_shard(peer), 15);
    record_key_prefix(&open, "ffn.", peer, key);
    assert_hex(key, sizeof(key), "aa85b032f62c4af844ae403b74251eccaa29c183");
    record_key_node(&open, publisher.peer_id, key);
    assert_hex(key, sizeof(key), "ff5cf64d43f84101e0eef8b1f18390e6d9914be1");
    assert_int_equal(record_network_id(&closed), 0x61f7252f);
    record_key_expert(&closed, "ffn.3.17", key);
    assert_hex(key, sizeof(key), "2512e19b2d1248d1b2c5c9cd6106ef54aeae8a51");
}

static void bytes_are_those_of_the_specification(void **state)
{
    (void)state;
    struct record_swarm swarm = {.name = "skep", .clock_skew_s = 60};
    struct record r = expert_record();
    uint8_t key[RECORD_KEY_BYTES];

    r.expert.endpoint_count = 1;
    for (uint8_t i = 0; i < sizeof(r.expert.schema_digest); i++)
        r.expert.schema_digest[i] = i;
    assert_true(record_value_id(&r) == 0x37c5004b1724fdc0);
    struct bytes data = encode(&r, &swarm, key);
    assert_hex(data.data, data.len,
               "970101c420cecc1507dc1ddd7295951c290888f095adb9044d1b73d696e6df065d683bd4"
               "fccf000001a3185c5000ce6b49d23c86a3756964a866666e2e332e3137a9656e64706f69"
               "6e747391ae3139322e302e322e373a34303030a5636c617373a366666ea6736368656d61"
               "c410000102030405060708090a0b0c0d0e0fa8666561747572657301a46c6f616492cb40"
               "2900000000000009c4409df5ab591b7399809b1674e2d8feff0748e48c0a272943182644"
               "f8fee08fe57e2d12c48d018cec7c78041c730614d7618f04f0733df7d1f8a528910603f6"
               "9b01");
    bytes_free(&data);
}

static void types_cover_the_lifetimes(void **state)
{
    (void)state;
    static const struct {
        uint32_t lifetime_s;
        unsigned type;
    } cases[] = {{20, 0}, {60, 0}, {61, 1}, {300, 1}, {301, 2}, {900, 2}, {901, 3}, {9999, 3}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_int_equal(record_type_for(cases[i].lifetime_s), cases[i].type);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    int64_t coords[] = {1, 2, 3};
    struct record in = prefix_record(coords, 3), out;
    uint8_t key[RECORD_KEY_BYTES];
    bool failed = true;

    key_of(&in, &closed_swarm, key);
    for (long nth = 1; failed; nth++) {
        struct bytes data = {0};
        mem_fail_at(nth);
        skep_status rc = record_encode(&in, &publisher, &closed_swarm, key, &data, NULL);
        if (rc == SKEP_OK)
            rc = decode(&out, &data, &closed_swarm, key);
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
        cmocka_unit_test(expert_survives_the_round_trip),
        cmocka_unit_test(prefix_survives_the_round_trip),
        cmocka_unit_test(what_is_below_survives_the_round_trip),
        cmocka_unit_test(a_prefix_says_its_load_only_if_there_is_one),
        cmocka_unit_test(what_is_below_must_fit_what_is_listed),
        cmocka_unit_test(empty_prefix_is_a_withdrawal),
        cmocka_unit_test(node_survives_the_round_trip_under_both_of_its_keys),
        cmocka_unit_test(every_changed_byte_is_noticed),
        cmocka_unit_test(truncated_and_extended_records_are_refused),
        cmocka_unit_test(a_record_holds_under_its_own_key_only),
        cmocka_unit_test(one_node_cannot_speak_for_another),
        cmocka_unit_test(times_are_bounded_on_both_sides),
        cmocka_unit_test(a_misdated_record_ends_by_the_readers_clock),
        cmocka_unit_test(a_record_refused_for_its_dates_alone_is_told_from_junk),
        cmocka_unit_test(over_limits_is_refused_before_sending),
        cmocka_unit_test(over_limits_is_refused_on_arrival),
        cmocka_unit_test(unknown_fields_of_a_body_are_ignored),
        cmocka_unit_test(unknown_versions_and_kinds_are_refused),
        cmocka_unit_test(body_fields_of_other_types_are_refused),
        cmocka_unit_test(endpoints_nobody_can_dial_are_never_published),
        cmocka_unit_test(loopback_is_fine_in_a_loopback_swarm_and_dropped_elsewhere),
        cmocka_unit_test(endpoints_that_are_garbage_are_dropped),
        cmocka_unit_test(a_private_swarm_reads_and_stores_only_its_own),
        cmocka_unit_test(store_policy_binds_the_value_id),
        cmocka_unit_test(edit_policy_wants_the_same_peer_and_a_higher_seq),
        cmocka_unit_test(value_id_names_peer_and_subject_only),
        cmocka_unit_test(keys_differ_by_swarm_kind_and_subject),
        cmocka_unit_test(keys_are_those_of_the_specification),
        cmocka_unit_test(bytes_are_those_of_the_specification),
        cmocka_unit_test(types_cover_the_lifetimes),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
