/*
 * What the parts of the Noise implementation share: the cipher with associated data, and the
 * SymmetricState of revision 34, section 5.2. Used by src/crypto/noise*.c and their tests only.
 */
#ifndef SKEP_CRYPTO_NOISE_INTERNAL_H
#define SKEP_CRYPTO_NOISE_INTERNAL_H

#include "crypto/noise.h"

/* noise_channel_encrypt() and _decrypt() with associated data. */
SKEP_MUST_CHECK skep_status noise_channel_seal(struct noise_channel *channel, const uint8_t *ad,
                                               size_t ad_len, const uint8_t *plain, size_t len,
                                               uint8_t *out);
SKEP_MUST_CHECK skep_status noise_channel_open(struct noise_channel *channel, const uint8_t *ad,
                                               size_t ad_len, const uint8_t *sealed, size_t len,
                                               uint8_t *out);

struct noise_symmetric {
    struct noise_channel cipher;            /* without a key until the first MixKey */
    uint8_t chaining_key[NOISE_HASH_BYTES]; /* ck */
    uint8_t hash[NOISE_HASH_BYTES];         /* h */
};

/* @param protocol_name  at most NOISE_HASH_BYTES characters (asserted). */
void noise_symmetric_init(struct noise_symmetric *s, enum noise_cipher cipher,
                          const char *protocol_name);
void noise_symmetric_mix_hash(struct noise_symmetric *s, const uint8_t *data, size_t len);
void noise_symmetric_mix_key(struct noise_symmetric *s, const uint8_t input[static 32]);
void noise_symmetric_mix_key_and_hash(struct noise_symmetric *s, const uint8_t input[static 32]);

/* Bytes that encrypt_and_hash adds now: 0 before there is a key, then NOISE_TAG_BYTES. */
size_t noise_symmetric_overhead(const struct noise_symmetric *s);
/* `out` has len + overhead bytes and must not overlap plain. */
SKEP_MUST_CHECK skep_status noise_symmetric_encrypt(struct noise_symmetric *s, const uint8_t *plain,
                                                    size_t len, uint8_t *out);
/* `out` has len - overhead bytes and must not overlap data. SKEP_DATA_LOSS if it does not verify.
 */
SKEP_MUST_CHECK skep_status noise_symmetric_decrypt(struct noise_symmetric *s, const uint8_t *data,
                                                    size_t len, uint8_t *out);
/* The transport keys: first from initiator to responder, second the other way. */
void noise_symmetric_split(const struct noise_symmetric *s, struct noise_channel *first,
                           struct noise_channel *second);

/* HMAC-BLAKE2b-512 (RFC 2104 with a block of 128 bytes); key_len is at most 128 (asserted). */
void noise_hmac(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len,
                uint8_t out[static NOISE_HASH_BYTES]);

#endif
