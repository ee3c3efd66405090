/*
 * What a Noise channel costs over bare libsodium calls, for both ciphers: encrypt and decrypt in
 * place, one thread. Runs of the two alternate, so that a change of clock speed meets both; the
 * median of the runs is printed.
 */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "crypto/identity.h"
#include "crypto/noise.h"

enum {
    RUNS = 9,
    RUN_US = 60000,
    MAX_PLAIN = NOISE_MAX_MESSAGE - NOISE_TAG_BYTES,
};

struct bench {
    size_t len;
    enum noise_cipher cipher;
    struct noise_channel send;
    struct noise_channel receive;
    uint8_t buffer[NOISE_MAX_MESSAGE];
};

static void die(const char *what)
{
    fprintf(stderr, "bench_crypto: %s failed\n", what);
    exit(1);
}

static void channel_round(struct bench *b)
{
    if (noise_channel_encrypt(&b->send, b->buffer, b->len, b->buffer) != SKEP_OK)
        die("encrypt");
    if (noise_channel_decrypt(&b->receive, b->buffer, b->len + NOISE_TAG_BYTES, b->buffer) !=
        SKEP_OK)
        die("decrypt");
}

static void bare_round(struct bench *b)
{
    static uint8_t nonce[12];
    const void *aes = b->send.aes_state;
    int failed;

    sodium_increment(nonce, sizeof(nonce));
    if (b->cipher == NOISE_AESGCM) {
        crypto_aead_aes256gcm_encrypt_afternm(b->buffer, NULL, b->buffer, b->len, NULL, 0, NULL,
                                              nonce, aes);
        failed = crypto_aead_aes256gcm_decrypt_afternm(
            b->buffer, NULL, NULL, b->buffer, b->len + NOISE_TAG_BYTES, NULL, 0, nonce, aes);
    } else {
        crypto_aead_chacha20poly1305_ietf_encrypt(b->buffer, NULL, b->buffer, b->len, NULL, 0, NULL,
                                                  nonce, b->send.key);
        failed = crypto_aead_chacha20poly1305_ietf_decrypt(b->buffer, NULL, NULL, b->buffer,
                                                           b->len + NOISE_TAG_BYTES, NULL, 0, nonce,
                                                           b->send.key);
    }
    if (failed != 0)
        die("bare decrypt");
}

/* Nanoseconds a round. */
static double run(struct bench *b, void (*round)(struct bench *))
{
    uint64_t start = clock_mono_us(), now, count = 0;

    do {
        for (int i = 0; i < 64; i++)
            round(b);
        count += 64;
        now = clock_mono_us();
    } while (now - start < RUN_US);
    return (double)(now - start) * 1e3 / (double)count;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(struct bench *b, const char *name)
{
    double channel[RUNS], bare[RUNS];

    for (int i = 0; i < RUNS; i++) {
        channel[i] = run(b, channel_round);
        bare[i] = run(b, bare_round);
    }
    qsort(channel, RUNS, sizeof(channel[0]), compare);
    qsort(bare, RUNS, sizeof(bare[0]), compare);
    double ns = channel[RUNS / 2], bare_ns = bare[RUNS / 2];
    printf("%-10s %7zu B  %10.0f ns %8.3f GB/s   bare %10.0f ns %8.3f GB/s   ratio %.3f\n", name,
           b->len, ns, (double)b->len / ns, bare_ns, (double)b->len / bare_ns, bare_ns / ns);
}

int main(void)
{
    static const size_t sizes[] = {20, 256, 1024, 2048, 4096, 16384, MAX_PLAIN};
    static struct bench b;
    uint8_t key[32];

    if (identity_system_init(NULL) != SKEP_OK)
        die("libsodium");
    randombytes_buf(key, sizeof(key));
    puts("encrypt and decrypt of one message, one thread; GB/s counts its bytes once");
    for (int cipher = NOISE_CHACHAPOLY; cipher <= NOISE_AESGCM; cipher++) {
        b.cipher = (enum noise_cipher)cipher;
        if (!noise_cipher_available(b.cipher)) {
            puts("AESGCM     not on this CPU");
            continue;
        }
        noise_channel_init(&b.send, b.cipher, key);
        noise_channel_init(&b.receive, b.cipher, key);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            b.len = sizes[i];
            measure(&b, cipher == NOISE_AESGCM ? "AESGCM" : "ChaChaPoly");
        }
        noise_channel_wipe(&b.send);
        noise_channel_wipe(&b.receive);
    }
    return 0;
}
