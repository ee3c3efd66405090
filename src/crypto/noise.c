/*
 * The handshake: patterns XX and XXpsk3 as lists of tokens, written and read one message at a time.
 *
 *     XX:      -> e                        XXpsk3: the same, with the psk mixed in at the end of
 *              <- e, ee, s, es             message three, and every ephemeral key also mixed into
 *              -> s, se                    the cipher key (section 9.2).
 *
 * Source: The Noise Protocol Framework, revision 34, sections 5.3, 7.5 and 9.
 */
#include "crypto/noise.h"
#include "crypto/noise_internal.h"

#include "base/alloc.h"
#include "base/error.h"

#include <assert.h>
#include <sodium.h>
#include <stdalign.h>
#include <string.h>

enum {
    KEY_BYTES = 32,
    MESSAGES = 3,
    MAX_TOKENS = 4,
};

enum token {
    TOKEN_END, /* of the list */
    TOKEN_E,
    TOKEN_S,
    TOKEN_EE,
    TOKEN_ES,
    TOKEN_SE,
    TOKEN_PSK, /* left out by XX */
};

/* Even messages go from the initiator to the responder. */
static const enum token pattern[MESSAGES][MAX_TOKENS + 1] = {
    {TOKEN_E},
    {TOKEN_E, TOKEN_EE, TOKEN_S, TOKEN_ES},
    {TOKEN_S, TOKEN_SE, TOKEN_PSK},
};

struct noise_handshake {
    struct noise_symmetric symmetric;
    bool initiator;
    bool with_psk;
    bool dead;
    bool split;
    bool ephemeral_fixed;
    int next; /* message, 0 to MESSAGES */
    uint8_t psk[32];
    uint8_t static_secret[KEY_BYTES];
    uint8_t static_public[KEY_BYTES];
    uint8_t ephemeral_secret[KEY_BYTES];
    uint8_t ephemeral_public[KEY_BYTES];
    uint8_t remote_ephemeral[KEY_BYTES];
    uint8_t remote_static[KEY_BYTES];
    bool has_remote_static;
};
_Static_assert(alignof(struct noise_handshake) <= alignof(max_align_t),
               "mem_calloc() aligns it well enough");

static const char *protocol_name(enum noise_cipher cipher, bool with_psk)
{
    if (cipher == NOISE_AESGCM)
        return with_psk ? "Noise_XXpsk3_25519_AESGCM_BLAKE2b" : "Noise_XX_25519_AESGCM_BLAKE2b";
    return with_psk ? "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b" : "Noise_XX_25519_ChaChaPoly_BLAKE2b";
}

static skep_status check_cipher(enum noise_cipher cipher, struct skep_error *err)
{
    if (cipher != NOISE_CHACHAPOLY && cipher != NOISE_AESGCM)
        return error_set(err, SKEP_INVALID_ARGUMENT, "noise cipher: %d, expected 1 or 2",
                         (int)cipher);
    if (!noise_cipher_available(cipher))
        return error_set(err, SKEP_UNIMPLEMENTED,
                         "noise cipher: this CPU has no AES-GCM, expected ChaChaPoly");
    return SKEP_OK;
}

skep_status noise_handshake_new(const struct noise_config *config, struct noise_handshake **out,
                                struct skep_error *err)
{
    *out = NULL;
    skep_status rc = check_cipher(config->cipher, err);
    if (rc != SKEP_OK)
        return rc;

    struct noise_handshake *hs = mem_calloc(1, sizeof(*hs));
    if (hs == NULL)
        return error_no_memory(err, "noise handshake", sizeof(*hs));
    hs->initiator = config->initiator;
    hs->with_psk = config->psk != NULL;
    if (hs->with_psk)
        memcpy(hs->psk, config->psk, sizeof(hs->psk));
    memcpy(hs->static_secret, config->static_secret, sizeof(hs->static_secret));
    crypto_scalarmult_base(hs->static_public, hs->static_secret);
    if (config->fixed_ephemeral != NULL) {
        memcpy(hs->ephemeral_secret, config->fixed_ephemeral, sizeof(hs->ephemeral_secret));
        hs->ephemeral_fixed = true;
    }
    noise_symmetric_init(&hs->symmetric, config->cipher,
                         protocol_name(config->cipher, hs->with_psk));
    noise_symmetric_mix_hash(&hs->symmetric, config->prologue, config->prologue_len);
    *out = hs;
    return SKEP_OK;
}

void noise_handshake_free(struct noise_handshake *hs)
{
    if (hs == NULL)
        return;
    sodium_memzero(hs, sizeof(*hs));
    mem_free(hs);
}

bool noise_handshake_done(const struct noise_handshake *hs)
{
    return !hs->dead && hs->next == MESSAGES;
}

bool noise_handshake_may_write(const struct noise_handshake *hs)
{
    return !hs->dead && hs->next < MESSAGES && hs->initiator == (hs->next % 2 == 0);
}

bool noise_handshake_may_read(const struct noise_handshake *hs)
{
    return !hs->dead && hs->next < MESSAGES && hs->initiator != (hs->next % 2 == 0);
}

/* What the next message adds to its payload: keys and tags. */
static size_t message_overhead(const struct noise_handshake *hs)
{
    bool has_key = hs->symmetric.cipher.has_key;
    size_t tag = NOISE_TAG_BYTES;
    size_t total = 0;

    for (const enum token *t = pattern[hs->next]; *t != TOKEN_END; t++) {
        if (*t == TOKEN_E)
            total += KEY_BYTES;
        else if (*t == TOKEN_S)
            total += KEY_BYTES + (has_key ? tag : 0);
        /* Every other token mixes a key in; so does an ephemeral one beside a psk. */
        if (*t != TOKEN_S && (*t != TOKEN_E || hs->with_psk))
            has_key = true;
    }
    return total + (has_key ? tag : 0);
}

static void mix_ephemeral(struct noise_handshake *hs, const uint8_t key[static KEY_BYTES])
{
    noise_symmetric_mix_hash(&hs->symmetric, key, KEY_BYTES);
    if (hs->with_psk)
        noise_symmetric_mix_key(&hs->symmetric, key);
}

/* libsodium refuses keys of small order and an all-zero result: a peer that sends such a key
 * chooses the shared secret for both. */
static bool mix_dh(struct noise_handshake *hs, const uint8_t secret[static KEY_BYTES],
                   const uint8_t remote[static KEY_BYTES])
{
    uint8_t shared[KEY_BYTES];
    bool good = crypto_scalarmult(shared, secret, remote) == 0;

    if (good)
        noise_symmetric_mix_key(&hs->symmetric, shared);
    sodium_memzero(shared, sizeof(shared));
    return good;
}

/* The tokens that mean the same to writer and reader. "es" is the initiator's ephemeral key with
 * the responder's static one, "se" the other way round. */
static bool mix_token(struct noise_handshake *hs, enum token token)
{
    switch (token) {
    case TOKEN_EE:
        return mix_dh(hs, hs->ephemeral_secret, hs->remote_ephemeral);
    case TOKEN_ES:
        return hs->initiator ? mix_dh(hs, hs->ephemeral_secret, hs->remote_static)
                             : mix_dh(hs, hs->static_secret, hs->remote_ephemeral);
    case TOKEN_SE:
        return hs->initiator ? mix_dh(hs, hs->static_secret, hs->remote_ephemeral)
                             : mix_dh(hs, hs->ephemeral_secret, hs->remote_static);
    case TOKEN_PSK:
        if (hs->with_psk)
            noise_symmetric_mix_key_and_hash(&hs->symmetric, hs->psk);
        return true;
    case TOKEN_END:
    case TOKEN_E:
    case TOKEN_S:
        break;
    }
    assert(false && "a token with bytes of its own");
    return false;
}

/* Keys that a dead handshake still held are of no more use to anyone. */
static skep_status die(struct noise_handshake *hs, struct skep_error *err, const char *why)
{
    int message = hs->next + 1;

    sodium_memzero(hs, sizeof(*hs));
    hs->dead = true;
    return error_set(err, SKEP_UNAUTHENTICATED, "noise handshake, message %d: %s", message, why);
}

static void write_ephemeral(struct noise_handshake *hs, uint8_t *out)
{
    if (!hs->ephemeral_fixed)
        randombytes_buf(hs->ephemeral_secret, sizeof(hs->ephemeral_secret));
    crypto_scalarmult_base(hs->ephemeral_public, hs->ephemeral_secret);
    memcpy(out, hs->ephemeral_public, KEY_BYTES);
    mix_ephemeral(hs, hs->ephemeral_public);
}

/* Writes what the tokens of the next message say; *p moves behind it. */
static bool write_tokens(struct noise_handshake *hs, uint8_t **p)
{
    for (const enum token *t = pattern[hs->next]; *t != TOKEN_END; t++) {
        if (*t == TOKEN_E) {
            write_ephemeral(hs, *p);
            *p += KEY_BYTES;
        } else if (*t == TOKEN_S) {
            if (noise_symmetric_encrypt(&hs->symmetric, hs->static_public, KEY_BYTES, *p) !=
                SKEP_OK)
                return false;
            *p += KEY_BYTES + NOISE_TAG_BYTES;
        } else if (!mix_token(hs, *t)) {
            return false;
        }
    }
    return true;
}

skep_status noise_handshake_write(struct noise_handshake *hs, const uint8_t *payload, size_t len,
                                  uint8_t *out, size_t *out_len, struct skep_error *err)
{
    uint8_t *p = out;

    if (!noise_handshake_may_write(hs))
        return error_set(err, SKEP_FAILED_PRECONDITION, "noise handshake: not our turn to write");
    size_t overhead = message_overhead(hs);
    size_t limit = *out_len < NOISE_MAX_MESSAGE ? *out_len : NOISE_MAX_MESSAGE;
    if (limit < overhead || len > limit - overhead)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "noise handshake: payload of %zu bytes, expected at most %zu", len,
                         limit < overhead ? (size_t)0 : limit - overhead);
    if (!write_tokens(hs, &p))
        return die(hs, err, "the peer's key is degenerate");
    if (noise_symmetric_encrypt(&hs->symmetric, payload, len, p) != SKEP_OK)
        return die(hs, err, "the payload could not be encrypted");
    hs->next++;
    *out_len = len + overhead;
    return SKEP_OK;
}

/* Reads what the tokens of the next message say; *p moves behind it. NULL, or what was wrong. */
static const char *read_tokens(struct noise_handshake *hs, const uint8_t **p)
{
    for (const enum token *t = pattern[hs->next]; *t != TOKEN_END; t++) {
        if (*t == TOKEN_E) {
            memcpy(hs->remote_ephemeral, *p, KEY_BYTES);
            mix_ephemeral(hs, hs->remote_ephemeral);
            *p += KEY_BYTES;
        } else if (*t == TOKEN_S) {
            if (noise_symmetric_decrypt(&hs->symmetric, *p, KEY_BYTES + NOISE_TAG_BYTES,
                                        hs->remote_static) != SKEP_OK)
                return "the static key does not verify";
            *p += KEY_BYTES + NOISE_TAG_BYTES;
            hs->has_remote_static = true;
        } else if (!mix_token(hs, *t)) {
            return "the peer's key is degenerate";
        }
    }
    return NULL;
}

skep_status noise_handshake_read(struct noise_handshake *hs, const uint8_t *message, size_t len,
                                 uint8_t *payload, size_t *out_len, struct skep_error *err)
{
    const uint8_t *p = message;

    if (!noise_handshake_may_read(hs))
        return error_set(err, SKEP_FAILED_PRECONDITION, "noise handshake: not our turn to read");
    size_t overhead = message_overhead(hs);
    if (len < overhead)
        return die(hs, err, "too short");
    if (len > NOISE_MAX_MESSAGE)
        return die(hs, err, "longer than 65535 bytes");
    if (len - overhead > *out_len)
        return error_set(err, SKEP_INVALID_ARGUMENT,
                         "noise handshake: room for %zu bytes of payload, expected at least %zu",
                         *out_len, len - overhead);
    const char *wrong = read_tokens(hs, &p);
    if (wrong != NULL)
        return die(hs, err, wrong);
    if (noise_symmetric_decrypt(&hs->symmetric, p, len - (size_t)(p - message), payload) != SKEP_OK)
        return die(hs, err,
                   hs->with_psk ? "the payload does not verify (another swarm key?)"
                                : "the payload does not verify");
    hs->next++;
    *out_len = len - overhead;
    return SKEP_OK;
}

const uint8_t *noise_handshake_remote_static(const struct noise_handshake *hs)
{
    return hs->has_remote_static ? hs->remote_static : NULL;
}

void noise_handshake_hash(const struct noise_handshake *hs, uint8_t out[static NOISE_HASH_BYTES])
{
    assert(noise_handshake_done(hs));
    memcpy(out, hs->symmetric.hash, NOISE_HASH_BYTES);
}

void noise_handshake_split(struct noise_handshake *hs, struct noise_channel *send,
                           struct noise_channel *receive)
{
    assert(noise_handshake_done(hs) && !hs->split);
    noise_symmetric_split(&hs->symmetric, hs->initiator ? send : receive,
                          hs->initiator ? receive : send);
    hs->split = true;
    sodium_memzero(hs->symmetric.chaining_key, sizeof(hs->symmetric.chaining_key));
    noise_channel_wipe(&hs->symmetric.cipher);
    sodium_memzero(hs->static_secret, sizeof(hs->static_secret));
    sodium_memzero(hs->ephemeral_secret, sizeof(hs->ephemeral_secret));
    sodium_memzero(hs->psk, sizeof(hs->psk));
}
