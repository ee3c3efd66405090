/*
 * One direction of a Noise channel: the CipherState of revision 34, section 5.1. Small
 * messages go through libsodium, large ones through libcrypto (crypto/bulk_aead.h), which makes the
 * same bytes. This is the hot path of every byte a connection carries, so it copies nothing, and
 * allocates only at the first large message.
 */
#include "crypto/noise.h"
#include "crypto/bulk_aead.h"
#include "crypto/noise_internal.h"

#include <assert.h>
#include <endian.h>
#include <sodium.h>
#include <string.h>

_Static_assert(sizeof(((struct noise_channel *)NULL)->aes_state) ==
                   sizeof(crypto_aead_aes256gcm_state),
               "aes_state holds libsodium's expanded key");
_Static_assert(NOISE_TAG_BYTES == crypto_aead_aes256gcm_ABYTES &&
                   NOISE_TAG_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES,
               "both ciphers share the tag size");

enum { NONCE_BYTES = BULK_AEAD_NONCE_BYTES };

bool noise_cipher_available(enum noise_cipher cipher)
{
    switch (cipher) {
    case NOISE_CHACHAPOLY:
        return true;
    case NOISE_AESGCM:
        return crypto_aead_aes256gcm_is_available() == 1;
    }
    return false;
}

void noise_channel_init(struct noise_channel *channel, enum noise_cipher cipher,
                        const uint8_t key[static 32])
{
    assert(noise_cipher_available(cipher));
    channel->cipher = cipher;
    memcpy(channel->key, key, sizeof(channel->key));
    if (cipher == NOISE_AESGCM)
        crypto_aead_aes256gcm_beforenm((crypto_aead_aes256gcm_state *)(void *)channel->aes_state,
                                       key);
    channel->nonce = 0;
    channel->bulk = NULL;
    channel->bulk_failed = false;
    channel->has_key = true;
}

/* Whether libcrypto takes this message. Associated data occurs in handshakes only, whose messages
 * are small. */
static bool is_bulk(struct noise_channel *channel, size_t ad_len, size_t len)
{
    if (len < BULK_AEAD_MIN_BYTES || ad_len > 0 || channel->bulk_failed)
        return false;
    if (channel->bulk == NULL)
        channel->bulk = bulk_aead_new(channel->cipher, channel->key);
    channel->bulk_failed = channel->bulk == NULL;
    return !channel->bulk_failed;
}

/* Section 12.3 and 12.4: 32 zero bits, then the counter, little-endian for ChaChaPoly and
 * big-endian for AESGCM. Stored as one word: eight stores of a byte, which libsodium then loads as
 * words, stalled the processor for 10% of a 20-byte message. */
static void make_nonce(const struct noise_channel *channel, uint8_t out[static NONCE_BYTES])
{
    uint64_t counter =
        channel->cipher == NOISE_AESGCM ? htobe64(channel->nonce) : htole64(channel->nonce);

    memset(out, 0, 4);
    memcpy(out + 4, &counter, sizeof(counter));
}

static skep_status check_usable(const struct noise_channel *channel)
{
    if (!channel->has_key)
        return SKEP_FAILED_PRECONDITION;
    /* The last counter value is reserved by the specification (section 5.1). */
    return channel->nonce == UINT64_MAX ? SKEP_RESOURCE_EXHAUSTED : SKEP_OK;
}

skep_status noise_channel_seal(struct noise_channel *channel, const uint8_t *ad, size_t ad_len,
                               const uint8_t *plain, size_t len, uint8_t *out)
{
    uint8_t nonce[NONCE_BYTES];
    skep_status rc = check_usable(channel);

    if (rc != SKEP_OK)
        return rc;
    make_nonce(channel, nonce);
    if (is_bulk(channel, ad_len, len)) {
        if (!bulk_aead_seal(channel->bulk, nonce, plain, len, out))
            return SKEP_INTERNAL;
    } else if (channel->cipher == NOISE_AESGCM)
        crypto_aead_aes256gcm_encrypt_afternm(
            out, NULL, plain, len, ad, ad_len, NULL, nonce,
            (const crypto_aead_aes256gcm_state *)(const void *)channel->aes_state);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, plain, len, ad, ad_len, NULL, nonce,
                                                  channel->key);
    channel->nonce++;
    return SKEP_OK;
}

skep_status noise_channel_open(struct noise_channel *channel, const uint8_t *ad, size_t ad_len,
                               const uint8_t *sealed, size_t len, uint8_t *out)
{
    uint8_t nonce[NONCE_BYTES];
    skep_status rc = check_usable(channel);
    bool failed;

    if (rc != SKEP_OK)
        return rc;
    if (len < NOISE_TAG_BYTES)
        return SKEP_DATA_LOSS;
    make_nonce(channel, nonce);
    if (is_bulk(channel, ad_len, len - NOISE_TAG_BYTES))
        failed = !bulk_aead_open(channel->bulk, nonce, sealed, len, out);
    else if (channel->cipher == NOISE_AESGCM)
        failed = crypto_aead_aes256gcm_decrypt_afternm(
                     out, NULL, NULL, sealed, len, ad, ad_len, nonce,
                     (const crypto_aead_aes256gcm_state *)(const void *)channel->aes_state) != 0;
    else
        failed = crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, sealed, len, ad, ad_len,
                                                           nonce, channel->key) != 0;
    if (failed)
        return SKEP_DATA_LOSS;
    channel->nonce++;
    return SKEP_OK;
}

skep_status noise_channel_encrypt(struct noise_channel *channel, const uint8_t *plain, size_t len,
                                  uint8_t *out)
{
    return noise_channel_seal(channel, NULL, 0, plain, len, out);
}

skep_status noise_channel_decrypt(struct noise_channel *channel, const uint8_t *sealed, size_t len,
                                  uint8_t *out)
{
    return noise_channel_open(channel, NULL, 0, sealed, len, out);
}

void noise_channel_wipe(struct noise_channel *channel)
{
    if (channel == NULL)
        return;
    bulk_aead_free(channel->bulk);
    sodium_memzero(channel, sizeof(*channel));
}
