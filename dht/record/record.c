/*
 * Records as bytes: the array of seven fields, its signature and its seal. The signature is over
 * the bytes as they are, not over a re-encoding, so there is nothing to canonicalize; it is always
 * the last 66 bytes, so that there is only one form of it.
 */
#include "dht/record/record.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "dht/record/record_internal.h"

enum {
    FIELDS = 7,
    SIGNATURE_FIELD_BYTES = 2 + SIGNATURE_BYTES, /* msgpack bin 8: tag, length, bytes */
};

void record_domain(const uint8_t key[static RECORD_KEY_BYTES],
                   uint8_t out[static RECORD_DOMAIN_BYTES])
{
    memcpy(out, "skep record v1", RECORD_DOMAIN_BYTES - RECORD_KEY_BYTES);
    memcpy(out + RECORD_DOMAIN_BYTES - RECORD_KEY_BYTES, key, RECORD_KEY_BYTES);
}

static size_t kind_limit(uint64_t kind)
{
    return kind == RECORD_PREFIX ? RECORD_MAX_PREFIX_BYTES : RECORD_MAX_BYTES;
}

/* The body's bytes, sealed if the swarm is private. */
static skep_status make_body(const struct record *record, const struct record_swarm *swarm,
                             const uint8_t key[static RECORD_KEY_BYTES], struct bytes *out,
                             struct skep_error *err)
{
    uint8_t domain[RECORD_DOMAIN_BYTES];
    struct bytes plain = {0};
    skep_status rc = SKEP_OK;

    if (!body_pack(record, &plain)) {
        rc = error_no_memory(err, "record body", plain.len);
        goto out;
    }
    if (swarm->key == NULL) {
        *out = plain;
        return SKEP_OK;
    }
    if (!bytes_reserve(out, plain.len + SWARM_SEAL_OVERHEAD)) {
        rc = error_no_memory(err, "sealed record body", plain.len + SWARM_SEAL_OVERHEAD);
        goto out;
    }
    record_domain(key, domain);
    swarm_key_seal(swarm->key, plain.data, plain.len, domain, sizeof(domain), out->data);
    out->len = plain.len + SWARM_SEAL_OVERHEAD;

out:
    bytes_free(&plain);
    return rc;
}

/* Signs what is in `out` for the key and appends the signature. */
static bool append_signature(struct bytes *out, const struct identity *identity,
                             const uint8_t key[static RECORD_KEY_BYTES])
{
    struct bytes message = {0};
    uint8_t domain[RECORD_DOMAIN_BYTES];
    uint8_t field[SIGNATURE_FIELD_BYTES] = {0xc4, SIGNATURE_BYTES};

    record_domain(key, domain);
    bool ok = bytes_append(&message, domain, sizeof(domain)) &&
              bytes_append(&message, out->data, out->len);
    if (ok) {
        identity_sign(identity, message.data, message.len, field + 2);
        ok = bytes_append(out, field, sizeof(field));
    }
    bytes_free(&message);
    return ok;
}

static bool pack_fields(const struct record *record, const struct identity *identity,
                        const struct bytes *body, bool sealed, struct bytes *out)
{
    msgpack_packer pk;

    record_packer_init(&pk, out);
    int failed = msgpack_pack_array(&pk, FIELDS);
    failed |= msgpack_pack_uint8(&pk, RECORD_VERSION);
    failed |= msgpack_pack_uint8(&pk, (uint8_t)record->kind);
    failed |= mp_pack_bin(&pk, identity->peer_id, PEER_ID_BYTES);
    failed |= msgpack_pack_uint64(&pk, record->seq);
    failed |= msgpack_pack_int64(&pk, record->expires_at);
    if (sealed)
        failed |= mp_pack_bin(&pk, body->data, body->len);
    return failed == 0 && (sealed || bytes_append(out, body->data, body->len));
}

skep_status record_encode(const struct record *record, const struct identity *identity,
                          const struct record_swarm *swarm,
                          const uint8_t key[static RECORD_KEY_BYTES], struct bytes *out,
                          struct skep_error *err)
{
    struct bytes body = {0};
    struct bytes data = {0};

    if (record->expires_at <= 0)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record expires_at: %" PRId64 ", expected Unix seconds",
                         record->expires_at);
    skep_status rc = body_check(record, swarm, err);
    if (rc != SKEP_OK)
        return rc;
    rc = make_body(record, swarm, key, &body, err);
    if (rc != SKEP_OK)
        goto out;
    if (!pack_fields(record, identity, &body, swarm->key != NULL, &data) ||
        !append_signature(&data, identity, key)) {
        rc = error_no_memory(err, "record", body.len);
        goto out;
    }
    if (data.len > kind_limit(record->kind)) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT,
                       "record of kind %d: %zu bytes, expected at most %zu", (int)record->kind,
                       data.len, kind_limit(record->kind));
        goto out;
    }
    bytes_free(out);
    *out = data;
    data = (struct bytes){0};

out:
    bytes_free(&data);
    bytes_free(&body);
    return rc;
}

static skep_status envelope_read(struct envelope *out, const uint8_t *data, size_t len,
                                 struct skep_error *err)
{
    const msgpack_object *f;
    size_t count, size;
    uint64_t version, kind, expires_at;

    if (!mp_array(out->mp.root, &f, &count) || count != FIELDS)
        return error_set(err, SKEP_DATA_LOSS, "record: not an array of %d fields", FIELDS);
    if (!mp_u64(&f[0], &version) || version != RECORD_VERSION)
        return error_set(err, SKEP_DATA_LOSS, "record version: not %d", RECORD_VERSION);
    if (!mp_u64(&f[1], &kind) || kind < RECORD_EXPERT || kind > RECORD_RESOURCE)
        return error_set(err, SKEP_DATA_LOSS, "record kind: not %d to %d", RECORD_EXPERT,
                         RECORD_RESOURCE);
    if (len > kind_limit(kind))
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record of kind %d: %zu bytes, expected at most %zu", (int)kind, len,
                         kind_limit(kind));
    if (!mp_bin(&f[2], &out->peer_id, &size) || size != PEER_ID_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "record peer id: not %d bytes", PEER_ID_BYTES);
    if (!mp_u64(&f[3], &out->seq) || !mp_u64(&f[4], &expires_at) || expires_at > INT64_MAX)
        return error_set(err, SKEP_DATA_LOSS, "record seq or expires_at: not a number in range");
    if (f[5].type != MSGPACK_OBJECT_MAP && f[5].type != MSGPACK_OBJECT_BIN)
        return error_set(err, SKEP_DATA_LOSS, "record body: neither a map nor sealed");
    if (!mp_bin(&f[6], &out->signature, &size) || size != SIGNATURE_BYTES ||
        data[len - SIGNATURE_FIELD_BYTES] != 0xc4)
        return error_set(err, SKEP_DATA_LOSS, "record signature: not %d bytes in bin 8",
                         SIGNATURE_BYTES);
    out->kind = (enum record_kind)kind;
    out->expires_at = (int64_t)expires_at;
    out->body = &f[5];
    out->signed_len = len - SIGNATURE_FIELD_BYTES;
    return SKEP_OK;
}

skep_status envelope_parse(struct envelope *out, const uint8_t *data, size_t len,
                           struct skep_error *err)
{
    *out = (struct envelope){0};
    if (len > RECORD_MAX_PREFIX_BYTES)
        return error_set(err, SKEP_INVALID_ARGUMENT, "record: %zu bytes, expected at most %d", len,
                         RECORD_MAX_PREFIX_BYTES);
    if (len <= SIGNATURE_FIELD_BYTES)
        return error_set(err, SKEP_DATA_LOSS, "record: %zu bytes, expected more than %d", len,
                         SIGNATURE_FIELD_BYTES);
    skep_status rc = mp_parse(&out->mp, data, len, "record", err);
    if (rc != SKEP_OK)
        return rc;
    rc = envelope_read(out, data, len, err);
    if (rc != SKEP_OK)
        envelope_free(out);
    return rc;
}

void envelope_free(struct envelope *envelope)
{
    mp_free(&envelope->mp);
    *envelope = (struct envelope){0};
}

int64_t record_off_by_s(uint64_t seq, int64_t expires_at, int64_t now_unix_s)
{
    if (expires_at <= now_unix_s)
        return expires_at - now_unix_s - 1;
    return seq / 1000 > (uint64_t)now_unix_s ? (int64_t)(seq / 1000 - (uint64_t)now_unix_s) : 0;
}

/* Of dates; 0: they make none. */
static uint32_t lifetime_of(uint64_t seq, int64_t expires_at)
{
    const int64_t dated = (int64_t)(seq / 1000); /* fits: seq has 64 bits */

    if (expires_at <= dated)
        return 0;
    return expires_at - dated < RECORD_MAX_LIFETIME_S ? (uint32_t)(expires_at - dated)
                                                      : RECORD_MAX_LIFETIME_S;
}

uint32_t record_lifetime_s(const uint8_t *data, size_t len)
{
    struct envelope e;

    if (envelope_parse(&e, data, len, NULL) != SKEP_OK)
        return 0;
    const uint32_t lifetime = lifetime_of(e.seq, e.expires_at);
    envelope_free(&e);
    return lifetime;
}

/*
 * When a record ends by the reader's clock. If that clock is not between the record's dates, one of
 * the two clocks is wrong, and the record's age is unknown: between nothing and its lifetime. It
 * counts as new, so that nothing that is alive counts as dead.
 */
static int64_t local_end(const struct envelope *e, int64_t now_unix_s)
{
    const int64_t off_by = record_off_by_s(e->seq, e->expires_at, now_unix_s);
    const int64_t end = now_unix_s + lifetime_of(e->seq, e->expires_at);

    if (off_by < 0)
        return end;
    return off_by > 0 && end > now_unix_s && end < e->expires_at ? end : e->expires_at;
}

/* seq is a clock in ms, so it is bounded as expires_at is: neither may run hours ahead. */
static skep_status check_times(const struct envelope *e, int64_t now_unix_s, struct skep_error *err)
{
    const int64_t latest = now_unix_s + RECORD_MAX_LIFETIME_S + RECORD_CLOCK_TOLERANCE_S;

    if (e->expires_at <= now_unix_s - RECORD_CLOCK_TOLERANCE_S)
        return error_set(err, SKEP_DEADLINE_EXCEEDED,
                         "record ended at %" PRId64 ", it is %" PRId64 ": %" PRId64
                         " s ago, and clocks may differ by %d s",
                         e->expires_at, now_unix_s, now_unix_s - e->expires_at,
                         RECORD_CLOCK_TOLERANCE_S);
    if (e->expires_at > latest)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record expires_at: %" PRId64 ", expected at most %" PRId64, e->expires_at,
                         latest);
    if (latest > 0 && e->seq > (uint64_t)latest * 1000)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "record seq: %" PRIu64 " ms, expected at most %" PRId64 " s", e->seq,
                         latest);
    return SKEP_OK;
}

static skep_status check_signature(const struct envelope *e, const uint8_t *data,
                                   const uint8_t key[static RECORD_KEY_BYTES],
                                   struct skep_error *err)
{
    struct bytes message = {0};
    uint8_t domain[RECORD_DOMAIN_BYTES];
    skep_status rc = SKEP_OK;

    record_domain(key, domain);
    if (!bytes_append(&message, domain, sizeof(domain)) ||
        !bytes_append(&message, data, e->signed_len))
        rc = error_no_memory(err, "record", e->signed_len);
    else if (!identity_verify(e->peer_id, message.data, message.len, e->signature))
        rc = error_set(err, SKEP_UNAUTHENTICATED,
                       "record signature: not the peer's for this key and these fields");
    bytes_free(&message);
    return rc;
}

/* Opens and parses the sealed body of a private swarm. */
static skep_status open_body(struct record *out, const struct envelope *e,
                             const struct record_swarm *swarm,
                             const uint8_t key[static RECORD_KEY_BYTES], struct skep_error *err)
{
    uint8_t domain[RECORD_DOMAIN_BYTES];
    const uint8_t *sealed;
    size_t len;
    struct mp mp = {0};

    if (!mp_bin(e->body, &sealed, &len) || len < SWARM_SEAL_OVERHEAD)
        return error_set(err, SKEP_UNAUTHENTICATED,
                         "record body: not sealed, expected one of this private swarm");
    size_t plain_len = len - SWARM_SEAL_OVERHEAD;
    uint8_t *plain = mem_alloc(plain_len + 1); /* never 0 bytes */
    if (plain == NULL)
        return error_no_memory(err, "record body", plain_len);
    record_domain(key, domain);
    skep_status rc =
        swarm_key_open(swarm->key, sealed, len, domain, sizeof(domain), plain)
            ? mp_parse(&mp, plain, plain_len, "record body", err)
            : error_set(err, SKEP_UNAUTHENTICATED, "record body: sealed with another swarm's key");
    if (rc == SKEP_OK)
        rc = body_parse(out, mp.root, swarm, err);
    mp_free(&mp);
    mem_free(plain);
    return rc;
}

static skep_status parse_body(struct record *out, const struct envelope *e,
                              const struct record_swarm *swarm,
                              const uint8_t key[static RECORD_KEY_BYTES], struct skep_error *err)
{
    if (swarm->key != NULL)
        return open_body(out, e, swarm, key, err);
    if (e->body->type == MSGPACK_OBJECT_BIN)
        return error_set(err, SKEP_UNAUTHENTICATED,
                         "record body: sealed, expected one of this public swarm");
    return body_parse(out, e->body, swarm, err);
}

skep_status record_decode(struct record *out, const uint8_t *data, size_t len,
                          const struct record_swarm *swarm,
                          const uint8_t key[static RECORD_KEY_BYTES], int64_t now_unix_s,
                          struct skep_error *err)
{
    struct envelope e;
    struct record record = {0};

    memset(out, 0, sizeof(*out));
    skep_status rc = envelope_parse(&e, data, len, err);
    if (rc != SKEP_OK)
        return rc;
    record.kind = e.kind;
    record.seq = e.seq;
    memcpy(record.peer_id, e.peer_id, PEER_ID_BYTES);
    rc = check_times(&e, now_unix_s, err);
    if (rc == SKEP_OK)
        record.expires_at = local_end(&e, now_unix_s);
    if (rc == SKEP_OK)
        rc = check_signature(&e, data, key, err);
    if (rc == SKEP_OK)
        rc = parse_body(&record, &e, swarm, key, err);
    if (rc == SKEP_OK && !record_key_matches(&record, swarm, key)) {
        record_free(&record);
        rc = error_set(err, SKEP_DATA_LOSS, "record: its subject belongs under another key");
    }
    if (rc == SKEP_OK)
        *out = record;
    envelope_free(&e);
    return rc;
}

bool record_is_misdated(const uint8_t *data, size_t len, const struct record_swarm *swarm,
                        const uint8_t key[static RECORD_KEY_BYTES], int64_t now_unix_s,
                        struct record_misdated *out)
{
    struct envelope e;
    struct record record = {0};
    bool misdated = false;

    if (envelope_parse(&e, data, len, NULL) != SKEP_OK)
        return false;
    if (check_times(&e, now_unix_s, NULL) != SKEP_OK && e.seq / 1000 <= INT64_MAX / 2000 &&
        record_decode(&record, data, len, swarm, key, (int64_t)(e.seq / 1000), NULL) == SKEP_OK) {
        misdated = true;
        memcpy(out->peer_id, e.peer_id, PEER_ID_BYTES);
        out->off_by_s = record_off_by_s(e.seq, e.expires_at, now_unix_s);
        record_free(&record);
    }
    envelope_free(&e);
    return misdated;
}

/*
 * What a node stores for others: nothing that a reader would refuse. So junk costs the space of
 * nobody, and a value id, which names its publisher, cannot be taken by somebody else.
 */
bool record_store_policy(const uint8_t *data, size_t len, uint64_t value_id,
                         const uint8_t key[static RECORD_KEY_BYTES],
                         const struct record_swarm *swarm, int64_t now_unix_s)
{
    struct record record;

    if (record_decode(&record, data, len, swarm, key, now_unix_s, NULL) != SKEP_OK)
        return false;
    bool ok = record_value_id(&record) == value_id;
    record_free(&record);
    return ok;
}

bool record_edit_policy(const struct record_edit *e, const struct record_swarm *swarm,
                        int64_t now_unix_s)
{
    struct envelope before, after;

    if (!record_store_policy(e->next, e->next_len, e->value_id, e->key, swarm, now_unix_s) ||
        envelope_parse(&after, e->next, e->next_len, NULL) != SKEP_OK)
        return false;
    /* What is no record at all has no claim to the id, which names the publisher of `next`. */
    bool ok = true;
    if (envelope_parse(&before, e->old, e->old_len, NULL) == SKEP_OK) {
        ok = before.kind == after.kind &&
             memcmp(before.peer_id, after.peer_id, PEER_ID_BYTES) == 0 && before.seq < after.seq;
        envelope_free(&before);
    }
    envelope_free(&after);
    return ok;
}
