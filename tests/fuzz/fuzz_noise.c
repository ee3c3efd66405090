/*
 * A peer's handshake message, at each of the three places. The first byte of the input chooses
 * message, psk and cipher, the second how much of a true message is put in front of the rest (so
 * that the fuzzer gets past the tags it can't forge). Keys are fixed.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/identity.h"
#include "crypto/noise.h"

enum { MESSAGE_BYTES = 4096 };

static struct noise_handshake *make_end(bool initiator, enum noise_cipher cipher, bool with_psk)
{
    uint8_t secret[32], ephemeral[32], psk[32];
    struct noise_handshake *hs = NULL;

    memset(secret, initiator ? 0x11 : 0x22, sizeof(secret));
    memset(ephemeral, initiator ? 0x33 : 0x44, sizeof(ephemeral));
    memset(psk, 0x55, sizeof(psk));
    struct noise_config config = {.initiator = initiator,
                                  .cipher = cipher,
                                  .static_secret = secret,
                                  .fixed_ephemeral = ephemeral,
                                  .psk = with_psk ? psk : NULL};
    if (noise_handshake_new(&config, &hs, NULL) != SKEP_OK)
        abort();
    return hs;
}

/* The true message number i, which the reader has not seen. */
static size_t write_message(struct noise_handshake *const ends[2], int i,
                            uint8_t out[static MESSAGE_BYTES])
{
    size_t len = MESSAGE_BYTES;

    if (noise_handshake_write(ends[i % 2], (const uint8_t *)"payload", 7, out, &len, NULL) !=
        SKEP_OK)
        abort();
    return len;
}

static void carry(struct noise_handshake *const ends[2], int count)
{
    uint8_t message[MESSAGE_BYTES], payload[MESSAGE_BYTES];

    for (int i = 0; i < count; i++) {
        size_t payload_len = sizeof(payload);
        size_t len = write_message(ends, i, message);
        if (noise_handshake_read(ends[1 - i % 2], message, len, payload, &payload_len, NULL) !=
            SKEP_OK)
            abort();
    }
}

static void check_outcome(struct noise_handshake *reader, skep_status rc, int i)
{
    bool dead = !noise_handshake_may_read(reader) && !noise_handshake_may_write(reader) &&
                !noise_handshake_done(reader);

    if ((rc == SKEP_UNAUTHENTICATED) != dead || (rc != SKEP_OK && rc != SKEP_UNAUTHENTICATED))
        abort();
    if (rc == SKEP_OK && i == 2 && !noise_handshake_done(reader))
        abort();
    if (rc == SKEP_OK && i == 0) { /* its key may be degenerate: the answer says */
        uint8_t out[MESSAGE_BYTES];
        size_t len = sizeof(out);
        rc = noise_handshake_write(reader, NULL, 0, out, &len, NULL);
        if (rc != SKEP_OK && rc != SKEP_UNAUTHENTICATED)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    uint8_t message[MESSAGE_BYTES], payload[MESSAGE_BYTES];

    if (!ready && identity_system_init(NULL) != SKEP_OK)
        abort();
    ready = true;
    if (size < 2 || size - 2 > MESSAGE_BYTES)
        return 0;
    int i = data[0] % 3;
    bool with_psk = (data[0] & 0x40) != 0;
    bool aes = (data[0] & 0x80) != 0 && noise_cipher_available(NOISE_AESGCM);
    enum noise_cipher cipher = aes ? NOISE_AESGCM : NOISE_CHACHAPOLY;
    struct noise_handshake *ends[2] = {make_end(true, cipher, with_psk),
                                       make_end(false, cipher, with_psk)};

    carry(ends, i);
    size_t true_len = write_message(ends, i, message);
    size_t keep = data[1] < true_len ? data[1] : true_len;
    size_t rest = size - 2 < MESSAGE_BYTES - keep ? size - 2 : MESSAGE_BYTES - keep;
    if (rest > 0)
        memcpy(message + keep, data + 2, rest);
    size_t payload_len = sizeof(payload);
    skep_status rc =
        noise_handshake_read(ends[1 - i % 2], message, keep + rest, payload, &payload_len, NULL);
    check_outcome(ends[1 - i % 2], rc, i);
    noise_handshake_free(ends[0]);
    noise_handshake_free(ends[1]);
    return 0;
}
