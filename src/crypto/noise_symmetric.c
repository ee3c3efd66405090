/*
 * The hash half of Noise (revision 34, sections 4.3 and 5.2): BLAKE2b-512, HMAC and HKDF over it,
 * and the SymmetricState that a handshake feeds its keys and messages to.
 */
#include "crypto/noise_internal.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

enum {
    BLAKE2B_BLOCK = 128,
    HKDF_MAX_OUTPUTS = 3,
};

/* libsodium refuses only sizes, and ours are constants, so hashing can't fail. */
static void hash_two(uint8_t out[static NOISE_HASH_BYTES], const uint8_t *a, size_t a_len,
                     const uint8_t *b, size_t b_len)
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, NOISE_HASH_BYTES);
    crypto_generichash_update(&state, a, a_len);
    if (b_len > 0)
        crypto_generichash_update(&state, b, b_len);
    crypto_generichash_final(&state, out, NOISE_HASH_BYTES);
    sodium_memzero(&state, sizeof(state));
}

void noise_hmac(const uint8_t *key, size_t key_len, const uint8_t *data, size_t len,
                uint8_t out[static NOISE_HASH_BYTES])
{
    uint8_t pad[BLAKE2B_BLOCK] = {0};
    uint8_t inner[NOISE_HASH_BYTES];

    assert(key_len <= sizeof(pad));
    memcpy(pad, key, key_len);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36;
    hash_two(inner, pad, sizeof(pad), data, len);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] ^= 0x36 ^ 0x5c;
    hash_two(out, pad, sizeof(pad), inner, sizeof(inner));
    sodium_memzero(pad, sizeof(pad));
    sodium_memzero(inner, sizeof(inner));
}

/* Section 4.3: the first `count` outputs of HKDF with the chaining key as salt. */
static void hkdf(const uint8_t chaining_key[static NOISE_HASH_BYTES], const uint8_t *input,
                 size_t len, int count, uint8_t out[][NOISE_HASH_BYTES])
{
    uint8_t temp_key[NOISE_HASH_BYTES];
    uint8_t block[NOISE_HASH_BYTES + 1];
    size_t before = 0; /* bytes of the previous output in front of the counter */

    noise_hmac(chaining_key, NOISE_HASH_BYTES, input, len, temp_key);
    for (int i = 0; i < count; i++) {
        block[before] = (uint8_t)(i + 1);
        noise_hmac(temp_key, sizeof(temp_key), block, before + 1, out[i]);
        memcpy(block, out[i], NOISE_HASH_BYTES);
        before = NOISE_HASH_BYTES;
    }
    sodium_memzero(temp_key, sizeof(temp_key));
    sodium_memzero(block, sizeof(block));
}

void noise_symmetric_init(struct noise_symmetric *s, enum noise_cipher cipher,
                          const char *protocol_name)
{
    size_t len = strlen(protocol_name);

    assert(len <= NOISE_HASH_BYTES); /* longer names would have to be hashed */
    memset(s, 0, sizeof(*s));
    s->cipher.cipher = cipher;
    memcpy(s->hash, protocol_name, len);
    memcpy(s->chaining_key, s->hash, sizeof(s->chaining_key));
}

void noise_symmetric_mix_hash(struct noise_symmetric *s, const uint8_t *data, size_t len)
{
    hash_two(s->hash, s->hash, sizeof(s->hash), data, len);
}

void noise_symmetric_mix_key(struct noise_symmetric *s, const uint8_t input[static 32])
{
    uint8_t out[2][NOISE_HASH_BYTES];

    hkdf(s->chaining_key, input, 32, 2, out);
    memcpy(s->chaining_key, out[0], sizeof(s->chaining_key));
    noise_channel_init(&s->cipher, s->cipher.cipher, out[1]); /* its first 32 bytes */
    sodium_memzero(out, sizeof(out));
}

void noise_symmetric_mix_key_and_hash(struct noise_symmetric *s, const uint8_t input[static 32])
{
    uint8_t out[HKDF_MAX_OUTPUTS][NOISE_HASH_BYTES];

    hkdf(s->chaining_key, input, 32, 3, out);
    memcpy(s->chaining_key, out[0], sizeof(s->chaining_key));
    noise_symmetric_mix_hash(s, out[1], NOISE_HASH_BYTES);
    noise_channel_init(&s->cipher, s->cipher.cipher, out[2]);
    sodium_memzero(out, sizeof(out));
}

size_t noise_symmetric_overhead(const struct noise_symmetric *s)
{
    return s->cipher.has_key ? NOISE_TAG_BYTES : 0;
}

skep_status noise_symmetric_encrypt(struct noise_symmetric *s, const uint8_t *plain, size_t len,
                                    uint8_t *out)
{
    if (s->cipher.has_key) {
        skep_status rc = noise_channel_seal(&s->cipher, s->hash, sizeof(s->hash), plain, len, out);
        if (rc != SKEP_OK)
            return rc;
    } else if (len > 0) {
        memcpy(out, plain, len);
    }
    noise_symmetric_mix_hash(s, out, len + noise_symmetric_overhead(s));
    return SKEP_OK;
}

skep_status noise_symmetric_decrypt(struct noise_symmetric *s, const uint8_t *data, size_t len,
                                    uint8_t *out)
{
    if (s->cipher.has_key) {
        skep_status rc = noise_channel_open(&s->cipher, s->hash, sizeof(s->hash), data, len, out);
        if (rc != SKEP_OK)
            return rc;
    } else if (len > 0) {
        memcpy(out, data, len);
    }
    noise_symmetric_mix_hash(s, data, len);
    return SKEP_OK;
}

void noise_symmetric_split(const struct noise_symmetric *s, struct noise_channel *first,
                           struct noise_channel *second)
{
    uint8_t out[2][NOISE_HASH_BYTES];

    hkdf(s->chaining_key, NULL, 0, 2, out);
    noise_channel_init(first, s->cipher.cipher, out[0]);
    noise_channel_init(second, s->cipher.cipher, out[1]);
    sodium_memzero(out, sizeof(out));
}
