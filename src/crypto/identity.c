/* Identities: key pairs from seeds, signatures, peer ids as text. Files: key_file.c; the lock that
 * keeps an identity to one process: identity_lock.c. */
#include "crypto/identity.h"
#include "crypto/key_file.h"

#include "base/bytes.h"
#include "base/error.h"

#include <sodium.h>
#include <string.h>

_Static_assert(PEER_ID_BYTES == crypto_sign_PUBLICKEYBYTES, "a peer id is an Ed25519 public key");
_Static_assert(SIGNATURE_BYTES == crypto_sign_BYTES, "signatures are Ed25519");
_Static_assert(KEY_FILE_SECRET_BYTES == crypto_sign_SEEDBYTES, "key files hold seeds");

skep_status identity_system_init(struct skep_error *err)
{
    if (sodium_init() < 0) /* 1: it was done before */
        return error_set(err, SKEP_INTERNAL, "libsodium: cannot be initialized");
    return SKEP_OK;
}

skep_status identity_from_seed(struct identity *out, const uint8_t seed[static 32],
                               struct skep_error *err)
{
    struct identity id;

    if (crypto_sign_seed_keypair(id.peer_id, id.sign_key, seed) != 0 ||
        crypto_sign_ed25519_pk_to_curve25519(id.dh_public, id.peer_id) != 0 ||
        crypto_sign_ed25519_sk_to_curve25519(id.dh_secret, id.sign_key) != 0) {
        identity_wipe(&id);
        identity_wipe(out);
        return error_set(err, SKEP_INTERNAL, "identity: no key pair from this seed");
    }
    *out = id;
    identity_wipe(&id);
    return SKEP_OK;
}

skep_status identity_generate(struct identity *out, struct skep_error *err)
{
    uint8_t seed[KEY_FILE_SECRET_BYTES];

    randombytes_buf(seed, sizeof(seed));
    skep_status rc = identity_from_seed(out, seed, err);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

skep_status identity_parse(struct identity *out, const void *content, size_t len, const char *name,
                           struct skep_error *err)
{
    uint8_t seed[KEY_FILE_SECRET_BYTES];
    skep_status rc = key_file_parse(seed, KEY_FILE_IDENTITY, content, len, name, err);

    if (rc == SKEP_OK)
        rc = identity_from_seed(out, seed, err);
    else
        identity_wipe(out);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

skep_status identity_load(struct identity *out, const char *path, struct skep_error *err)
{
    uint8_t seed[KEY_FILE_SECRET_BYTES];
    skep_status rc = key_file_read(seed, KEY_FILE_IDENTITY, path, err);

    if (rc == SKEP_OK)
        rc = identity_from_seed(out, seed, err);
    else
        identity_wipe(out);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

skep_status identity_save(const struct identity *id, const char *path, struct skep_error *err)
{
    uint8_t seed[KEY_FILE_SECRET_BYTES];

    crypto_sign_ed25519_sk_to_seed(seed, id->sign_key);
    skep_status rc = key_file_write(seed, KEY_FILE_IDENTITY, path, err);
    sodium_memzero(seed, sizeof(seed));
    return rc;
}

skep_status identity_load_or_create(struct identity *out, const char *path, struct skep_error *err)
{
    skep_status rc = identity_load(out, path, err);

    if (rc != SKEP_NOT_FOUND)
        return rc;
    rc = identity_generate(out, err);
    if (rc != SKEP_OK)
        return rc;
    rc = identity_save(out, path, err);
    if (rc == SKEP_FAILED_PRECONDITION) /* another process was faster: its key is the key */
        return identity_load(out, path, err);
    if (rc != SKEP_OK)
        identity_wipe(out);
    return rc;
}

void identity_wipe(struct identity *id)
{
    if (id != NULL)
        sodium_memzero(id, sizeof(*id));
}

void identity_sign(const struct identity *id, const uint8_t *message, size_t len,
                   uint8_t signature[static SIGNATURE_BYTES])
{
    crypto_sign_detached(signature, NULL, message, len, id->sign_key);
}

/* libsodium refuses keys and points of small order and encodings that are not canonical, so that a
 * record can't be changed without its signature failing. */
bool identity_verify(const uint8_t peer_id[static PEER_ID_BYTES], const uint8_t *message,
                     size_t len, const uint8_t signature[static SIGNATURE_BYTES])
{
    return crypto_sign_verify_detached(signature, message, len, peer_id) == 0;
}

bool identity_dh_public(const uint8_t peer_id[static PEER_ID_BYTES], uint8_t out[static 32])
{
    return crypto_sign_ed25519_pk_to_curve25519(out, peer_id) == 0;
}

void peer_id_hex(const uint8_t peer_id[static PEER_ID_BYTES], char out[static PEER_ID_HEX_BYTES])
{
    hex_encode(out, peer_id, PEER_ID_BYTES);
}

void peer_id_short(const uint8_t peer_id[static PEER_ID_BYTES],
                   char out[static PEER_ID_SHORT_BYTES])
{
    hex_encode(out, peer_id, (PEER_ID_SHORT_BYTES - 1) / 2);
}

bool peer_id_parse(uint8_t out[static PEER_ID_BYTES], const char *text)
{
    return text != NULL && hex_decode(out, PEER_ID_BYTES, text);
}
