/*
 * Files that hold one secret of 32 bytes: a line of 64 hex digits and, behind a space, what it is:
 * "identity" or "swarm-key"; mode 0600. Shared by node identities and swarm keys, so that both
 * refuse the same mistakes in the same words. A line without that word, as people make it from
 * random bytes, is taken for either; one with the other word is refused: a swarm whose key is
 * somebody's identity would tell that secret to all its members.
 */
#ifndef SKEP_CRYPTO_KEY_FILE_H
#define SKEP_CRYPTO_KEY_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum { KEY_FILE_SECRET_BYTES = 32 };
enum key_file_kind { KEY_FILE_IDENTITY, KEY_FILE_SWARM_KEY };

/* @param content  borrowed; any bytes. On failure `secret` is zero and SKEP_DATA_LOSS's sentence
 *                 says what was seen, never a byte of it that could be secret. */
SKEP_MUST_CHECK skep_status key_file_parse(uint8_t secret[static KEY_FILE_SECRET_BYTES],
                                           enum key_file_kind kind, const void *content, size_t len,
                                           const char *name, struct skep_error *err);
/* Errors as identity_load(). */
SKEP_MUST_CHECK skep_status key_file_read(uint8_t secret[static KEY_FILE_SECRET_BYTES],
                                          enum key_file_kind kind, const char *path,
                                          struct skep_error *err);
/* Errors as identity_save(). */
SKEP_MUST_CHECK skep_status key_file_write(const uint8_t secret[static KEY_FILE_SECRET_BYTES],
                                           enum key_file_kind kind, const char *path,
                                           struct skep_error *err);
/* Makes the folders above path that are missing, mode 0700. */
SKEP_MUST_CHECK skep_status key_file_make_parents(const char *path, struct skep_error *err);

#endif
