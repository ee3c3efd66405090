/* The key of a private swarm: derivation of its two sub-keys, and sealing of record bodies. */
#include "crypto/swarm_key.h"
#include "crypto/key_file.h"

#include <sodium.h>
#include <string.h>

enum { NONCE_BYTES = crypto_aead_xchacha20poly1305_ietf_NPUBBYTES };

_Static_assert(SWARM_SEAL_OVERHEAD == NONCE_BYTES + crypto_aead_xchacha20poly1305_ietf_ABYTES,
               "a sealed body carries its nonce and tag");

static void derive(uint8_t out[static 32], const uint8_t secret[static 32], const char *label)
{
    /* Fails for bad sizes only, and these are constants. */
    crypto_generichash(out, 32, (const uint8_t *)label, strlen(label), secret, 32);
}

void swarm_key_from_secret(struct swarm_key *out, const uint8_t secret[static 32])
{
    derive(out->psk, secret, "skep swarm psk v1");
    derive(out->record_key, secret, "skep swarm record v1");
}

skep_status swarm_key_load(struct swarm_key *out, const char *path, struct skep_error *err)
{
    uint8_t secret[KEY_FILE_SECRET_BYTES];
    skep_status rc = key_file_read(secret, KEY_FILE_SWARM_KEY, path, err);

    if (rc == SKEP_OK)
        swarm_key_from_secret(out, secret);
    else
        swarm_key_wipe(out);
    sodium_memzero(secret, sizeof(secret));
    return rc;
}

skep_status swarm_key_create(const char *path, struct skep_error *err)
{
    uint8_t secret[KEY_FILE_SECRET_BYTES];

    randombytes_buf(secret, sizeof(secret));
    skep_status rc = key_file_write(secret, KEY_FILE_SWARM_KEY, path, err);
    sodium_memzero(secret, sizeof(secret));
    return rc;
}

void swarm_key_wipe(struct swarm_key *key)
{
    if (key != NULL)
        sodium_memzero(key, sizeof(*key));
}

void swarm_key_seal(const struct swarm_key *key, const uint8_t *plain, size_t len,
                    const uint8_t *ad, size_t ad_len, uint8_t *out)
{
    /* 24 random bytes do not repeat in practice, so records need no counter across restarts. */
    randombytes_buf(out, NONCE_BYTES);
    crypto_aead_xchacha20poly1305_ietf_encrypt(out + NONCE_BYTES, NULL, plain, len, ad, ad_len,
                                               NULL, out, key->record_key);
}

bool swarm_key_open(const struct swarm_key *key, const uint8_t *sealed, size_t len,
                    const uint8_t *ad, size_t ad_len, uint8_t *out)
{
    if (len < SWARM_SEAL_OVERHEAD)
        return false;
    return crypto_aead_xchacha20poly1305_ietf_decrypt(out, NULL, NULL, sealed + NONCE_BYTES,
                                                      len - NONCE_BYTES, ad, ad_len, sealed,
                                                      key->record_key) == 0;
}
