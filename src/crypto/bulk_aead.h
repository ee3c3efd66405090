/*
 * The AEAD ciphers of a Noise channel through libcrypto, for large messages: the same bytes as
 * libsodium's, about twice as fast on CPUs with wide AES and multiply units. A call costs a few
 * hundred nanoseconds more than libsodium's, so small messages stay with libsodium.
 *
 * No I/O. One object is used by one thread at a time.
 */
#ifndef SKEP_CRYPTO_BULK_AEAD_H
#define SKEP_CRYPTO_BULK_AEAD_H

#include <stdbool.h>

#include "crypto/noise.h"

enum {
    BULK_AEAD_NONCE_BYTES = 12,
    /* From this size on libcrypto is faster for both ciphers (bench_crypto). */
    BULK_AEAD_MIN_BYTES = 1024,
};

struct bulk_aead; /* owned: bulk_aead_free() */

/* Copies the key. @return NULL if libcrypto lacks the cipher or memory is short. */
struct bulk_aead *bulk_aead_new(enum noise_cipher cipher, const uint8_t key[static 32]);
void bulk_aead_free(struct bulk_aead *aead); /* wipes; NULL is allowed */

/* Encrypts `len` bytes into out (len + NOISE_TAG_BYTES); out may be plain itself.
 * @return false if libcrypto fails: `out` holds nothing to send then. */
SKEP_MUST_CHECK bool bulk_aead_seal(struct bulk_aead *aead,
                                    const uint8_t nonce[static BULK_AEAD_NONCE_BYTES],
                                    const uint8_t *plain, size_t len, uint8_t *out);
/* Decrypts `len` bytes (tag included, at least NOISE_TAG_BYTES) into out, which may be sealed.
 * @return false if the tag is wrong or libcrypto fails: `out` is zeroed then. */
SKEP_MUST_CHECK bool bulk_aead_open(struct bulk_aead *aead,
                                    const uint8_t nonce[static BULK_AEAD_NONCE_BYTES],
                                    const uint8_t *sealed, size_t len, uint8_t *out);

#endif
