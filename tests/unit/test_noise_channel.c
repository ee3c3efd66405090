/* Transport ciphers: in place and apart, sizes, tampering, order, the end of the nonces. */
#include "unit.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/bulk_aead.h"
#include "crypto/identity.h"
#include "crypto/noise.h"
#include "noise_pair.h"

enum { MAX_PLAIN = NOISE_MAX_MESSAGE - NOISE_TAG_BYTES };

struct channel_pair {
    struct noise_channel send;
    struct noise_channel receive;
};

static struct channel_pair channels(enum noise_cipher cipher)
{
    struct channel_pair pair = {0};
    uint8_t key[32];

    noise_channel_init(&pair.send, cipher, pair_key(0x61, key));
    noise_channel_init(&pair.receive, cipher, key);
    return pair;
}

static void end_channels(struct channel_pair *pair)
{
    noise_channel_wipe(&pair->send);
    noise_channel_wipe(&pair->receive);
}

static void on_each_cipher(void (*check)(enum noise_cipher cipher))
{
    check(NOISE_CHACHAPOLY);
    if (noise_cipher_available(NOISE_AESGCM))
        check(NOISE_AESGCM);
    else
        print_message("AES-GCM: not on this CPU\n");
}

static void check_sizes(enum noise_cipher cipher)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 20, 63, 64, 65, 4096, 65000, MAX_PLAIN};
    static uint8_t plain[MAX_PLAIN], sealed[NOISE_MAX_MESSAGE], inplace[NOISE_MAX_MESSAGE];
    struct channel_pair apart = channels(cipher), within = channels(cipher);

    for (size_t i = 0; i < sizeof(plain); i++)
        plain[i] = (uint8_t)(i * 7 + i / 256);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = sizes[i];
        memcpy(inplace, plain, n);
        assert_int_equal(noise_channel_encrypt(&apart.send, plain, n, sealed), SKEP_OK);
        assert_int_equal(noise_channel_encrypt(&within.send, inplace, n, inplace), SKEP_OK);
        assert_memory_equal(sealed, inplace, n + NOISE_TAG_BYTES);
        if (n >= 16)
            assert_memory_not_equal(sealed, plain, n);
        assert_int_equal(
            noise_channel_decrypt(&within.receive, inplace, n + NOISE_TAG_BYTES, inplace), SKEP_OK);
        assert_memory_equal(inplace, plain, n);
        assert_int_equal(noise_channel_decrypt(&apart.receive, sealed, n + NOISE_TAG_BYTES, sealed),
                         SKEP_OK);
    }
    assert_int_equal(apart.send.nonce, sizeof(sizes) / sizeof(sizes[0]));
    assert_int_equal(apart.receive.nonce, apart.send.nonce);
    end_channels(&apart);
    end_channels(&within);
}

static void all_sizes_pass_in_place_and_apart(void **state)
{
    (void)state;
    on_each_cipher(check_sizes);
}

/* What libsodium makes of the same message under nonce 0: the reference for every size. */
static void seal_by_libsodium(enum noise_cipher cipher, const uint8_t *plain, size_t n,
                              uint8_t *sealed)
{
    static const uint8_t nonce[12];
    uint8_t key[32];

    pair_key(0x61, key);
    if (cipher == NOISE_AESGCM)
        crypto_aead_aes256gcm_encrypt(sealed, NULL, plain, n, NULL, 0, NULL, nonce, key);
    else
        crypto_aead_chacha20poly1305_ietf_encrypt(sealed, NULL, plain, n, NULL, 0, NULL, nonce,
                                                  key);
}

static void check_bytes_of_both_libraries(enum noise_cipher cipher)
{
    static uint8_t plain[MAX_PLAIN], sealed[NOISE_MAX_MESSAGE], reference[NOISE_MAX_MESSAGE];
    static const size_t sizes[] = {BULK_AEAD_MIN_BYTES - 1, BULK_AEAD_MIN_BYTES,
                                   BULK_AEAD_MIN_BYTES + 1, 4099, MAX_PLAIN};

    randombytes_buf(plain, sizeof(plain));
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = sizes[i];
        struct channel_pair pair = channels(cipher);

        assert_int_equal(noise_channel_encrypt(&pair.send, plain, n, sealed), SKEP_OK);
        assert_int_equal(pair.send.bulk != NULL, n >= BULK_AEAD_MIN_BYTES);
        seal_by_libsodium(cipher, plain, n, reference);
        assert_memory_equal(sealed, reference, n + NOISE_TAG_BYTES);
        assert_int_equal(
            noise_channel_decrypt(&pair.receive, reference, n + NOISE_TAG_BYTES, reference),
            SKEP_OK);
        assert_memory_equal(reference, plain, n);
        end_channels(&pair);
    }
}

static void both_libraries_make_the_same_bytes(void **state)
{
    (void)state;
    on_each_cipher(check_bytes_of_both_libraries);
}

/* libcrypto decrypts before it verifies: what it wrote must not stay. */
static void check_large_tampering(enum noise_cipher cipher)
{
    enum { SIZE = 5000 };
    static uint8_t plain[SIZE], sealed[SIZE + NOISE_TAG_BYTES], out[SIZE + 1], zero[SIZE];
    static const size_t flipped[] = {0, SIZE / 2, SIZE - 1, SIZE, SIZE + NOISE_TAG_BYTES - 1};
    struct channel_pair pair = channels(cipher);

    randombytes_buf(plain, sizeof(plain));
    assert_int_equal(noise_channel_encrypt(&pair.send, plain, SIZE, sealed), SKEP_OK);
    for (size_t i = 0; i < sizeof(flipped) / sizeof(flipped[0]); i++) {
        sealed[flipped[i]] ^= 1;
        memset(out, 0xee, sizeof(out));
        assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, sizeof(sealed), out),
                         SKEP_DATA_LOSS);
        assert_memory_equal(out, zero, SIZE);
        assert_int_equal(out[SIZE], 0xee);
        assert_int_equal(pair.receive.nonce, 0);
        sealed[flipped[i]] ^= 1;
    }
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, sizeof(sealed) - 1, out),
                     SKEP_DATA_LOSS);
    /* The failures moved nothing: the true message still opens. */
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, sizeof(sealed), out), SKEP_OK);
    assert_memory_equal(out, plain, SIZE);
    end_channels(&pair);
}

static void a_large_message_that_fails_leaves_no_plaintext(void **state)
{
    (void)state;
    on_each_cipher(check_large_tampering);
}

/* Messages of both kinds share one nonce counter. */
static void check_mixed_order(enum noise_cipher cipher)
{
    static uint8_t plain[4096], sealed[4096 + NOISE_TAG_BYTES];
    struct channel_pair pair = channels(cipher);

    for (int i = 0; i < 6; i++) {
        size_t n = i % 2 == 0 ? 20 : sizeof(plain);
        memset(plain, i, sizeof(plain));
        assert_int_equal(noise_channel_encrypt(&pair.send, plain, n, sealed), SKEP_OK);
        assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, n + NOISE_TAG_BYTES, sealed),
                         SKEP_OK);
        assert_memory_equal(sealed, plain, n);
        assert_int_equal(pair.receive.nonce, i + 1);
    }
    end_channels(&pair);
}

static void small_and_large_messages_share_the_nonces(void **state)
{
    (void)state;
    on_each_cipher(check_mixed_order);
}

static void check_without_memory_for_bulk(enum noise_cipher cipher)
{
    static uint8_t plain[4096], sealed[4096 + NOISE_TAG_BYTES];
    struct channel_pair pair = channels(cipher);

    mem_fail_at(1);
    assert_int_equal(noise_channel_encrypt(&pair.send, plain, sizeof(plain), sealed), SKEP_OK);
    mem_fail_at(0);
    assert_null(pair.send.bulk);
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, sizeof(sealed), sealed), SKEP_OK);
    assert_memory_equal(sealed, plain, sizeof(plain));
    end_channels(&pair);
}

static void without_memory_for_libcrypto_libsodium_goes_on(void **state)
{
    (void)state;
    on_each_cipher(check_without_memory_for_bulk);
}

static void check_writes_no_further(enum noise_cipher cipher)
{
    uint8_t plain[20] = {0}, sealed[20 + NOISE_TAG_BYTES + 1], back[21];
    struct channel_pair pair = channels(cipher);

    memset(sealed, 0xee, sizeof(sealed));
    memset(back, 0xee, sizeof(back));
    assert_int_equal(noise_channel_encrypt(&pair.send, plain, 20, sealed), SKEP_OK);
    assert_int_equal(sealed[36], 0xee);
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, 36, back), SKEP_OK);
    assert_int_equal(back[20], 0xee);
}

static void nothing_is_written_past_the_stated_size(void **state)
{
    (void)state;
    on_each_cipher(check_writes_no_further);
}

static void assert_refused(struct noise_channel *receive, const uint8_t *sealed, size_t len)
{
    static const uint8_t zero[64], untouched[64] = {[0 ... 63] = 0xee};
    uint8_t out[64];
    uint64_t nonce = receive->nonce;

    memset(out, 0xee, sizeof(out));
    assert_int_equal(noise_channel_decrypt(receive, sealed, len, out), SKEP_DATA_LOSS);
    size_t plain = len < NOISE_TAG_BYTES ? 0 : len - NOISE_TAG_BYTES;
    assert_true(memcmp(out, zero, plain) == 0 || memcmp(out, untouched, plain) == 0);
    assert_memory_equal(out + plain, untouched, sizeof(out) - plain);
    assert_true(receive->nonce == nonce);
}

static void check_tampering(enum noise_cipher cipher)
{
    uint8_t sealed[20 + NOISE_TAG_BYTES + 1] = {0}, out[20];
    struct channel_pair pair = channels(cipher);

    assert_int_equal(
        noise_channel_encrypt(&pair.send, (const uint8_t *)"twenty bytes of text", 20, sealed),
        SKEP_OK);
    for (size_t cut = 0; cut < 36; cut++)
        assert_refused(&pair.receive, sealed, cut);
    assert_refused(&pair.receive, sealed, 37);
    for (size_t bit = 0; bit < 36 * 8; bit++) {
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_refused(&pair.receive, sealed, 36);
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    /* The failures moved nothing: the true message still opens. */
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, 36, out), SKEP_OK);
    assert_memory_equal(out, "twenty bytes of text", 20);
}

static void truncated_extended_and_flipped_messages_are_refused(void **state)
{
    (void)state;
    on_each_cipher(check_tampering);
}

static void check_order(enum noise_cipher cipher)
{
    uint8_t sealed[3][4 + NOISE_TAG_BYTES], out[4];
    struct channel_pair pair = channels(cipher);

    for (int i = 0; i < 3; i++)
        assert_int_equal(noise_channel_encrypt(&pair.send, (const uint8_t *)"same", 4, sealed[i]),
                         SKEP_OK);
    assert_memory_not_equal(sealed[0], sealed[1], 20);
    assert_refused(&pair.receive, sealed[1], 20); /* one left out */
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed[0], 20, out), SKEP_OK);
    assert_refused(&pair.receive, sealed[0], 20); /* replayed */
    assert_refused(&pair.receive, sealed[2], 20); /* reordered */
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed[1], 20, out), SKEP_OK);
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed[2], 20, out), SKEP_OK);
}

static void replayed_dropped_and_reordered_messages_are_refused(void **state)
{
    (void)state;
    on_each_cipher(check_order);
}

static void check_exhaustion(enum noise_cipher cipher)
{
    uint8_t sealed[1 + NOISE_TAG_BYTES], out[1] = {7};
    struct channel_pair pair = channels(cipher);

    pair.send.nonce = pair.receive.nonce = UINT64_MAX - 1;
    assert_int_equal(noise_channel_encrypt(&pair.send, out, 1, sealed), SKEP_OK);
    assert_int_equal(noise_channel_encrypt(&pair.send, out, 1, sealed), SKEP_RESOURCE_EXHAUSTED);
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, 17, out), SKEP_OK);
    assert_int_equal(noise_channel_decrypt(&pair.receive, sealed, 17, out),
                     SKEP_RESOURCE_EXHAUSTED);
    assert_true(pair.send.nonce == UINT64_MAX && pair.receive.nonce == UINT64_MAX);
}

static void the_last_nonce_is_never_used(void **state)
{
    (void)state;
    on_each_cipher(check_exhaustion);
}

static void a_channel_without_a_key_refuses_to_pass_plaintext(void **state)
{
    (void)state;
    struct channel_pair pair = channels(NOISE_CHACHAPOLY);
    uint8_t out[32] = {0};

    noise_channel_wipe(&pair.send);
    memset(&pair.receive, 0, sizeof(pair.receive));
    assert_int_equal(noise_channel_encrypt(&pair.send, (const uint8_t *)"x", 1, out),
                     SKEP_FAILED_PRECONDITION);
    assert_int_equal(noise_channel_decrypt(&pair.receive, out, 32, out), SKEP_FAILED_PRECONDITION);
    assert_int_equal(out[0], 0);
}

static void a_wiped_channel_holds_no_secret(void **state)
{
    (void)state;
    static const struct noise_channel zero;
    struct channel_pair pair = channels(NOISE_CHACHAPOLY);

    noise_channel_wipe(&pair.send);
    assert_memory_equal(&pair.send, &zero, sizeof(zero));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_sizes_pass_in_place_and_apart),
        cmocka_unit_test(both_libraries_make_the_same_bytes),
        cmocka_unit_test(a_large_message_that_fails_leaves_no_plaintext),
        cmocka_unit_test(small_and_large_messages_share_the_nonces),
        cmocka_unit_test(without_memory_for_libcrypto_libsodium_goes_on),
        cmocka_unit_test(nothing_is_written_past_the_stated_size),
        cmocka_unit_test(truncated_extended_and_flipped_messages_are_refused),
        cmocka_unit_test(replayed_dropped_and_reordered_messages_are_refused),
        cmocka_unit_test(the_last_nonce_is_never_used),
        cmocka_unit_test(a_channel_without_a_key_refuses_to_pass_plaintext),
        cmocka_unit_test(a_wiped_channel_holds_no_secret),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
