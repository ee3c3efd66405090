/* Shared by record*.c: hashing, the body's bytes, and the fields around it. */
#ifndef SKEP_DHT_RECORD_RECORD_INTERNAL_H
#define SKEP_DHT_RECORD_RECORD_INTERNAL_H

#include <msgpack.h>
#include <sodium.h>
#include "base/bytes.h"
#include "base/mp.h"
#include "dht/record/record.h"

enum { RECORD_MAX_PARTS = 1024 };

/* A hash over fields, each with its length before it, so that no two lists of fields collide. */
struct field_hash {
    crypto_generichash_state state;
};
/* Keyed if `swarm` is private; `swarm` NULL: unkeyed. */
void field_hash_init(struct field_hash *h, const struct record_swarm *swarm, const char *domain);
void field_hash_bytes(struct field_hash *h, const void *data, size_t len);
void field_hash_text(struct field_hash *h, const char *text);
void field_hash_u64(struct field_hash *h, uint64_t value);
void field_hash_final(struct field_hash *h, uint8_t out[static 32]);

/*
 * What precedes the signature and the seal: "skep record v1" and the DHT key. Returned whole, so
 * that both are made in one place.
 */
enum { RECORD_DOMAIN_BYTES = 14 + RECORD_KEY_BYTES };
void record_domain(const uint8_t key[static RECORD_KEY_BYTES],
                   uint8_t out[static RECORD_DOMAIN_BYTES]);

/* A record taken apart but for its body. Views of the data it was parsed from. */
struct envelope {
    struct mp mp; /* owned: envelope_free() */
    enum record_kind kind;
    const uint8_t *peer_id;
    uint64_t seq;
    int64_t expires_at;
    const msgpack_object *body;
    size_t signed_len; /* bytes of the data before the signature */
    const uint8_t *signature;
};
/* Form and sizes only. SKEP_DATA_LOSS, SKEP_INVALID_ARGUMENT; nothing is held on failure. */
SKEP_MUST_CHECK skep_status envelope_parse(struct envelope *out, const uint8_t *data, size_t len,
                                           struct skep_error *err);
void envelope_free(struct envelope *envelope);

/* Packing straight into a buffer of ours. */
void record_packer_init(msgpack_packer *pk, struct bytes *out);
/* Appends the body of a record; false if memory is short. */
bool body_pack(const struct record *record, struct bytes *out);
/* Fills in the body of `out`, whose kind is set, from a map. On failure what it holds is freed. */
SKEP_MUST_CHECK skep_status body_parse(struct record *out, const msgpack_object *map,
                                       const struct record_swarm *swarm, struct skep_error *err);
/* SKEP_INVALID_ARGUMENT, naming the field, if the body may not be published. */
SKEP_MUST_CHECK skep_status body_check(const struct record *record,
                                       const struct record_swarm *swarm, struct skep_error *err);
/* What is wrong with a body but for its endpoints, as a sentence; NULL: nothing. */
const char *body_fault(const struct record *record);
/* Whether an endpoint may be published, and dialled by who reads it. */
bool body_may_dial(const struct endpoint *e, const struct record_swarm *swarm);
/* Whether a record of this kind and subject belongs under the key. */
bool record_key_matches(const struct record *record, const struct record_swarm *swarm,
                        const uint8_t key[static RECORD_KEY_BYTES]);
/* The endpoints of a record of any kind. View. */
const struct endpoint *record_endpoints(const struct record *record, size_t *count);

#endif
