/*
 * Noise handshakes XX and XXpsk3 over 25519, {ChaChaPoly, AESGCM} and BLAKE2b, and the transport
 * ciphers they end in. Source: The Noise Protocol Framework, revision 34.
 *
 * No I/O, no clock; randomness only for the ephemeral key, which tests may fix. One object is used
 * by one thread at a time.
 */
#ifndef SKEP_CRYPTO_NOISE_H
#define SKEP_CRYPTO_NOISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum noise_cipher {
    NOISE_CHACHAPOLY = 1,
    NOISE_AESGCM = 2,
};

enum {
    NOISE_MAX_MESSAGE = 65535,
    NOISE_TAG_BYTES = 16,
    NOISE_HASH_BYTES = 64,
    NOISE_HANDSHAKE_OVERHEAD = 128, /* no handshake message adds more than this to its payload */
};

/* Whether this CPU can do AES-GCM with libsodium. */
bool noise_cipher_available(enum noise_cipher cipher);

struct bulk_aead;

/* One direction of a secured channel. It is not copied once it has carried a message. */
struct noise_channel {
    enum noise_cipher cipher;
    bool has_key;
    uint8_t key[32];
    uint64_t nonce;                      /* of the next message */
    _Alignas(16) uint8_t aes_state[512]; /* libsodium's expanded key, for AESGCM */
    struct bulk_aead *bulk;              /* owned; NULL until the first large message */
    bool bulk_failed;                    /* libcrypto is of no use: libsodium does all messages */
};

/* Starts a direction at nonce 0 in memory that holds no channel yet (or a wiped one). The cipher
 * must be available. noise_handshake_split() does this for connections; on its own it serves
 * benchmarks and tests. End it with noise_channel_wipe(). */
void noise_channel_init(struct noise_channel *channel, enum noise_cipher cipher,
                        const uint8_t key[static 32]);
/*
 * Encrypts `len` bytes into out (len + NOISE_TAG_BYTES); out may be plain itself.
 * @return SKEP_RESOURCE_EXHAUSTED when the nonce is used up (2^64 - 1 messages);
 *         SKEP_FAILED_PRECONDITION if the channel has no key (zeroed or wiped); SKEP_INTERNAL if
 * the cipher's library fails: `out` holds nothing to send then, and the connection must end.
 */
SKEP_MUST_CHECK skep_status noise_channel_encrypt(struct noise_channel *channel,
                                                  const uint8_t *plain, size_t len, uint8_t *out);
/*
 * Decrypts `len` bytes (tag included) into out (len - NOISE_TAG_BYTES), which may be sealed itself.
 * @return SKEP_DATA_LOSS if len is too short or the tag is wrong: no plaintext was written then
 * (out is untouched or zeroed), the nonce has not moved, and the connection must end. Others as
 *         noise_channel_encrypt().
 */
SKEP_MUST_CHECK skep_status noise_channel_decrypt(struct noise_channel *channel,
                                                  const uint8_t *sealed, size_t len, uint8_t *out);
/* Frees and zeroes; NULL and a zeroed channel are allowed. */
void noise_channel_wipe(struct noise_channel *channel);

struct noise_handshake; /* owned: noise_handshake_free() */

struct noise_config {
    bool initiator;
    enum noise_cipher cipher;
    const uint8_t *static_secret; /* 32 bytes X25519; borrowed for the call */
    const uint8_t *psk;           /* 32 bytes for XXpsk3, NULL for XX; borrowed for the call */
    const uint8_t *prologue;      /* borrowed for the call */
    size_t prologue_len;
    const uint8_t *fixed_ephemeral; /* tests only: 32 bytes of secret; NULL: random */
};
/* @return SKEP_UNIMPLEMENTED if this CPU lacks the cipher; SKEP_INVALID_ARGUMENT for an unknown
 * one; SKEP_RESOURCE_EXHAUSTED if memory is short. *out is NULL then. */
SKEP_MUST_CHECK skep_status noise_handshake_new(const struct noise_config *config,
                                                struct noise_handshake **out,
                                                struct skep_error *err);
void noise_handshake_free(struct noise_handshake *hs); /* wipes; NULL is allowed */

/* Whose turn it is: true if the next message is ours to write. False for both once done. */
bool noise_handshake_may_write(const struct noise_handshake *hs);
bool noise_handshake_may_read(const struct noise_handshake *hs);
bool noise_handshake_done(const struct noise_handshake *hs);

/* Writes the next message with `payload` inside; *out_len is cap going in. SKEP_INVALID_ARGUMENT if
 * it does not fit; SKEP_FAILED_PRECONDITION if it is not our turn (the handshake goes on unchanged
 * after both); SKEP_UNAUTHENTICATED if the peer's key is degenerate: the handshake is dead.
 * `out` must not overlap `payload`. */
SKEP_MUST_CHECK skep_status noise_handshake_write(struct noise_handshake *hs,
                                                  const uint8_t *payload, size_t len, uint8_t *out,
                                                  size_t *out_len, struct skep_error *err);
/* Reads the peer's next message and gives its payload; *out_len is cap going in.
 * SKEP_UNAUTHENTICATED if it does not verify or its keys are degenerate: the handshake is dead and
 * `payload` is untouched or zeroed. SKEP_INVALID_ARGUMENT if the payload does not fit,
 * SKEP_FAILED_PRECONDITION if it is not the peer's turn: nothing has changed then.
 * `payload` must not overlap `message`. */
SKEP_MUST_CHECK skep_status noise_handshake_read(struct noise_handshake *hs, const uint8_t *message,
                                                 size_t len, uint8_t *payload, size_t *out_len,
                                                 struct skep_error *err);
/* The peer's static X25519 key, once its message has verified; NULL before, and once dead. View of
 * hs. */
const uint8_t *noise_handshake_remote_static(const struct noise_handshake *hs);
/* The handshake hash, once done (asserted); the same at both ends. */
void noise_handshake_hash(const struct noise_handshake *hs, uint8_t out[static NOISE_HASH_BYTES]);
/* Once done: the two directions. May be called once (asserted); wipes what it was made from. */
void noise_handshake_split(struct noise_handshake *hs, struct noise_channel *send,
                           struct noise_channel *receive);

#endif
