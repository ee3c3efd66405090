/*
 * A node's identity: an Ed25519 key pair and the X25519 pair converted from it.
 * On disk: 32 bytes of seed as one line of 64 hex digits and the word "identity", file mode 0600
 * (group and others nothing); key_file.h.
 */
#ifndef SKEP_CRYPTO_IDENTITY_H
#define SKEP_CRYPTO_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum {
    PEER_ID_BYTES = 32,       /* Ed25519 public key */
    PEER_ID_HEX_BYTES = 65,   /* with NUL */
    PEER_ID_SHORT_BYTES = 13, /* first 12 digits, with NUL */
    SIGNATURE_BYTES = 64,
};

struct identity {
    uint8_t peer_id[PEER_ID_BYTES]; /* Ed25519 public key */
    uint8_t sign_key[64];           /* libsodium's Ed25519 secret key: seed and public key */
    uint8_t dh_public[32];          /* X25519, converted */
    uint8_t dh_secret[32];
};

/* Call once before anything else of this folder; safe to repeat. SKEP_INTERNAL if libsodium fails.
 */
SKEP_MUST_CHECK skep_status identity_system_init(struct skep_error *err);

SKEP_MUST_CHECK skep_status identity_generate(struct identity *out, struct skep_error *err);
SKEP_MUST_CHECK skep_status identity_from_seed(struct identity *out, const uint8_t seed[static 32],
                                               struct skep_error *err);
/*
 * Loads a key file. Errors name the path: SKEP_NOT_FOUND; SKEP_PERMISSION_DENIED if unreadable, or
 * readable by group or others (the message gives the chmod that mends it); SKEP_DATA_LOSS if it is
 * not a key file (says what was seen).
 */
SKEP_MUST_CHECK skep_status identity_load(struct identity *out, const char *path,
                                          struct skep_error *err);
/* Writes a new key file, whole or not at all, mode 0600; an existing file is not overwritten
 * (SKEP_FAILED_PRECONDITION). Missing folders are made, mode 0700. */
SKEP_MUST_CHECK skep_status identity_save(const struct identity *id, const char *path,
                                          struct skep_error *err);
SKEP_MUST_CHECK skep_status identity_load_or_create(struct identity *out, const char *path,
                                                    struct skep_error *err);
/* Parses the content of a key file, as identity_load() does after reading it. @param name stands in
 * messages for the path. @return SKEP_DATA_LOSS if it is not one. */
SKEP_MUST_CHECK skep_status identity_parse(struct identity *out, const void *content, size_t len,
                                           const char *name, struct skep_error *err);
/*
 * Holds `<path>.lock`, or where that cannot be made (a read-only mount) the file itself, so that
 * two processes cannot run under one identity.
 * @param fd  the held lock, on success; -1 otherwise. Owned: identity_unlock().
 * @return SKEP_FAILED_PRECONDITION, naming the path and holder's pid, if another process (or
 *         another caller in this one) holds it.
 */
SKEP_MUST_CHECK skep_status identity_lock(const char *path, int *fd, struct skep_error *err);
void identity_unlock(const char *path, int fd);

void identity_wipe(struct identity *id);
void identity_sign(const struct identity *id, const uint8_t *message, size_t len,
                   uint8_t signature[static SIGNATURE_BYTES]);
bool identity_verify(const uint8_t peer_id[static PEER_ID_BYTES], const uint8_t *message,
                     size_t len, const uint8_t signature[static SIGNATURE_BYTES]);
/* The X25519 key that belongs to a peer id; false if it is no valid Ed25519 key. */
bool identity_dh_public(const uint8_t peer_id[static PEER_ID_BYTES], uint8_t out[static 32]);

void peer_id_hex(const uint8_t peer_id[static PEER_ID_BYTES], char out[static PEER_ID_HEX_BYTES]);
void peer_id_short(const uint8_t peer_id[static PEER_ID_BYTES],
                   char out[static PEER_ID_SHORT_BYTES]);
/* 64 hex digits; false otherwise. */
bool peer_id_parse(uint8_t out[static PEER_ID_BYTES], const char *text);

#endif
