/*
 * The key of a private swarm: 32 random bytes in a file (key_file.h). From it come
 * the Noise psk and the key that encrypts record bodies: BLAKE2b-256 keyed with the secret, over
 * the labels "skep swarm psk v1" and "skep swarm record v1".
 */
#ifndef SKEP_CRYPTO_SWARM_KEY_H
#define SKEP_CRYPTO_SWARM_KEY_H

#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <skep/status.h>

struct swarm_key {
    uint8_t psk[32];        /* for Noise XXpsk3 */
    uint8_t record_key[32]; /* for swarm_key_seal() and _open() */
};

/* Errors as identity_load(). */
SKEP_MUST_CHECK skep_status swarm_key_load(struct swarm_key *out, const char *path,
                                           struct skep_error *err);
/* Writes a new random key file; as identity_save(). */
SKEP_MUST_CHECK skep_status swarm_key_create(const char *path, struct skep_error *err);
void swarm_key_from_secret(struct swarm_key *out, const uint8_t secret[static 32]);
void swarm_key_wipe(struct swarm_key *key);

enum { SWARM_SEAL_OVERHEAD = 24 + 16 };
/* XChaCha20-Poly1305: nonce, then ciphertext with tag; `out` has len + SWARM_SEAL_OVERHEAD bytes.
 */
void swarm_key_seal(const struct swarm_key *key, const uint8_t *plain, size_t len,
                    const uint8_t *ad, size_t ad_len, uint8_t *out);
/* `out` has len - SWARM_SEAL_OVERHEAD bytes. False, with no plaintext written (out is untouched or
 * zeroed), if it was not sealed with this key and ad. */
bool swarm_key_open(const struct swarm_key *key, const uint8_t *sealed, size_t len,
                    const uint8_t *ad, size_t ad_len, uint8_t *out);

#endif
