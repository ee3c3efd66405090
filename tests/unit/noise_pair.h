/* Two ends of a handshake in one process, for tests of Noise. */
#ifndef SKEP_TESTS_NOISE_PAIR_H
#define SKEP_TESTS_NOISE_PAIR_H

#include "unit.h"

#include <stdbool.h>
#include <string.h>

#include "crypto/identity.h"
#include "crypto/noise.h"

enum { PAIR_MESSAGE_BYTES = 2048 };

struct noise_pair {
    struct noise_handshake *initiator;
    struct noise_handshake *responder;
};

/* Keys that are easy to tell apart: one byte, repeated. */
static inline const uint8_t *pair_key(uint8_t fill, uint8_t out[static 32])
{
    memset(out, fill, 32);
    return out;
}

static inline struct noise_handshake *pair_end(bool initiator, enum noise_cipher cipher,
                                               const uint8_t *psk, const char *prologue)
{
    uint8_t secret[32], ephemeral[32];
    struct noise_handshake *hs = NULL;
    struct noise_config config = {
        .initiator = initiator,
        .cipher = cipher,
        .static_secret = pair_key(initiator ? 0x11 : 0x22, secret),
        .fixed_ephemeral = pair_key(initiator ? 0x33 : 0x44, ephemeral),
        .psk = psk,
        .prologue = (const uint8_t *)prologue,
        .prologue_len = strlen(prologue),
    };

    assert_int_equal(noise_handshake_new(&config, &hs, NULL), SKEP_OK);
    return hs;
}

static inline struct noise_pair pair_new(enum noise_cipher cipher, const uint8_t *psk)
{
    return (struct noise_pair){
        .initiator = pair_end(true, cipher, psk, "prologue"),
        .responder = pair_end(false, cipher, psk, "prologue"),
    };
}

static inline void pair_free(struct noise_pair *pair)
{
    noise_handshake_free(pair->initiator);
    noise_handshake_free(pair->responder);
}

static inline struct noise_handshake *pair_writer(const struct noise_pair *pair, int message)
{
    return message % 2 == 0 ? pair->initiator : pair->responder;
}

static inline struct noise_handshake *pair_reader(const struct noise_pair *pair, int message)
{
    return message % 2 == 0 ? pair->responder : pair->initiator;
}

/* The writer's message number `message`, with a payload that names it. Returns its length. */
static inline size_t pair_write(const struct noise_pair *pair, int message,
                                uint8_t out[static PAIR_MESSAGE_BYTES])
{
    uint8_t payload[20];
    size_t len = PAIR_MESSAGE_BYTES;

    memset(payload, 'a' + message, sizeof(payload));
    assert_int_equal(noise_handshake_write(pair_writer(pair, message), payload, sizeof(payload),
                                           out, &len, NULL),
                     SKEP_OK);
    return len;
}

static inline skep_status pair_read(const struct noise_pair *pair, int message, const uint8_t *data,
                                    size_t len)
{
    uint8_t payload[PAIR_MESSAGE_BYTES];
    size_t payload_len = sizeof(payload);
    skep_status rc =
        noise_handshake_read(pair_reader(pair, message), data, len, payload, &payload_len, NULL);

    if (rc == SKEP_OK) {
        assert_int_equal(payload_len, 20);
        for (size_t i = 0; i < payload_len; i++)
            assert_int_equal(payload[i], 'a' + message);
    }
    return rc;
}

/* Carries messages [0, count) across. */
static inline void pair_run(const struct noise_pair *pair, int count)
{
    uint8_t message[PAIR_MESSAGE_BYTES];

    for (int i = 0; i < count; i++) {
        size_t len = pair_write(pair, i, message);
        assert_int_equal(pair_read(pair, i, message, len), SKEP_OK);
    }
}

/* Every protocol this CPU can do, for tests that run on each. */
struct pair_case {
    enum noise_cipher cipher;
    bool with_psk;
};

static inline size_t pair_cases(struct pair_case out[static 4])
{
    size_t n = 0;

    for (int cipher = NOISE_CHACHAPOLY; cipher <= NOISE_AESGCM; cipher++)
        for (int psk = 0; psk < 2; psk++)
            if (noise_cipher_available((enum noise_cipher)cipher))
                out[n++] = (struct pair_case){(enum noise_cipher)cipher, psk == 1};
    return n;
}

static inline struct noise_pair pair_of_case(const struct pair_case *c)
{
    uint8_t psk[32];

    return pair_new(c->cipher, c->with_psk ? pair_key(0x55, psk) : NULL);
}

#endif
