/* Noise handshakes: order of calls, every kind of tampering, wrong keys, degenerate keys, memory.
 */
#include "unit.h"

#include <sodium.h>
#include <string.h>

#include "base/alloc.h"
#include "crypto/identity.h"
#include "crypto/noise.h"
#include "noise_pair.h"

/* Runs a check on every protocol this CPU can do. */
static void on_each_case(void (*check)(const struct pair_case *c))
{
    struct pair_case cases[4];
    size_t n = pair_cases(cases);

    assert_true(n >= 2); /* ChaChaPoly is always there */
    for (size_t i = 0; i < n; i++)
        check(&cases[i]);
}

/* A handshake that has carried `count` messages. */
static struct noise_pair pair_after(const struct pair_case *c, int count)
{
    struct noise_pair pair = pair_of_case(c);

    pair_run(&pair, count);
    return pair;
}

static void assert_dead(const struct noise_handshake *hs)
{
    assert_false(noise_handshake_may_read(hs));
    assert_false(noise_handshake_may_write(hs));
    assert_false(noise_handshake_done(hs));
    assert_null(noise_handshake_remote_static(hs));
}

/* ---- the normal course ---- */

static void check_complete(const struct pair_case *c)
{
    struct noise_pair pair = pair_after(c, 3);
    uint8_t hash[2][NOISE_HASH_BYTES], secret[32], expected[32], out[64];
    struct noise_channel a_send, a_receive, b_send, b_receive;

    assert_true(noise_handshake_done(pair.initiator) && noise_handshake_done(pair.responder));
    noise_handshake_hash(pair.initiator, hash[0]);
    noise_handshake_hash(pair.responder, hash[1]);
    assert_memory_equal(hash[0], hash[1], NOISE_HASH_BYTES);
    crypto_scalarmult_base(expected, pair_key(0x22, secret));
    assert_memory_equal(noise_handshake_remote_static(pair.initiator), expected, 32);
    crypto_scalarmult_base(expected, pair_key(0x11, secret));
    assert_memory_equal(noise_handshake_remote_static(pair.responder), expected, 32);

    noise_handshake_split(pair.initiator, &a_send, &a_receive);
    noise_handshake_split(pair.responder, &b_send, &b_receive);
    assert_memory_not_equal(a_send.key, a_receive.key, 32);
    assert_int_equal(noise_channel_encrypt(&a_send, (const uint8_t *)"to b", 4, out), SKEP_OK);
    assert_int_equal(noise_channel_decrypt(&b_receive, out, 20, out), SKEP_OK);
    assert_memory_equal(out, "to b", 4);
    assert_int_equal(noise_channel_encrypt(&b_send, (const uint8_t *)"to a", 4, out), SKEP_OK);
    assert_int_equal(noise_channel_decrypt(&a_receive, out, 20, out), SKEP_OK);
    assert_memory_equal(out, "to a", 4);
    pair_free(&pair);
}

static void complete_handshake_gives_both_ends_the_same_secrets(void **state)
{
    (void)state;
    on_each_case(check_complete);
}

static void random_ephemeral_keys_differ_each_time(void **state)
{
    (void)state;
    uint8_t secret[32], first[64], second[64];
    struct noise_config config = {
        .initiator = true, .cipher = NOISE_CHACHAPOLY, .static_secret = pair_key(0x11, secret)};

    for (int i = 0; i < 2; i++) {
        struct noise_handshake *hs;
        size_t len = sizeof(first);
        assert_int_equal(noise_handshake_new(&config, &hs, NULL), SKEP_OK);
        assert_int_equal(noise_handshake_write(hs, NULL, 0, i == 0 ? first : second, &len, NULL),
                         SKEP_OK);
        assert_int_equal(len, 32);
        noise_handshake_free(hs);
    }
    assert_memory_not_equal(first, second, 32);
}

static void check_sizes(const struct pair_case *c)
{
    struct noise_pair pair = pair_of_case(c);

    for (int i = 0; i < 3; i++) {
        uint8_t message[PAIR_MESSAGE_BYTES];
        size_t len = pair_write(&pair, i, message);
        assert_true(len <= 20 + NOISE_HANDSHAKE_OVERHEAD);
        assert_int_equal(pair_read(&pair, i, message, len), SKEP_OK);
    }
    pair_free(&pair);
}

static void no_message_adds_more_than_the_stated_overhead(void **state)
{
    (void)state;
    on_each_case(check_sizes);
}

static void empty_and_largest_payloads_pass(void **state)
{
    (void)state;
    static uint8_t payload[NOISE_MAX_MESSAGE], message[NOISE_MAX_MESSAGE + 1],
        back[NOISE_MAX_MESSAGE];
    const size_t overhead[] = {32, 96, 64};
    struct noise_pair pair = pair_new(NOISE_CHACHAPOLY, NULL);

    for (int i = 0; i < 3; i++) {
        size_t payload_len = i == 1 ? 0 : NOISE_MAX_MESSAGE - overhead[i];
        size_t len = sizeof(message), back_len = sizeof(back);
        memset(payload, i + 1, sizeof(payload));
        assert_int_equal(
            noise_handshake_write(pair_writer(&pair, i), payload, payload_len, message, &len, NULL),
            SKEP_OK);
        assert_int_equal(len, payload_len + overhead[i]);
        assert_int_equal(
            noise_handshake_read(pair_reader(&pair, i), message, len, back, &back_len, NULL),
            SKEP_OK);
        assert_int_equal(back_len, payload_len);
        assert_memory_equal(back, payload, payload_len);
    }
    pair_free(&pair);
}

/* ---- calls in the wrong order or with too little room: nothing changes ---- */

static void check_order(const struct pair_case *c)
{
    struct noise_pair pair = pair_of_case(c);
    uint8_t message[PAIR_MESSAGE_BYTES], out[PAIR_MESSAGE_BYTES];

    for (int i = 0; i <= 3; i++) {
        for (int end = 0; end < 2; end++) {
            struct noise_handshake *hs = end == 0 ? pair.initiator : pair.responder;
            bool writes = i < 3 && hs == pair_writer(&pair, i);
            bool reads = i < 3 && hs == pair_reader(&pair, i);
            size_t len = sizeof(out);
            assert_int_equal(noise_handshake_may_write(hs), writes);
            assert_int_equal(noise_handshake_may_read(hs), reads);
            assert_int_equal(noise_handshake_done(hs), i == 3);
            if (!writes)
                assert_int_equal(noise_handshake_write(hs, NULL, 0, out, &len, NULL),
                                 SKEP_FAILED_PRECONDITION);
            if (!reads)
                assert_int_equal(noise_handshake_read(hs, message, 100, out, &len, NULL),
                                 SKEP_FAILED_PRECONDITION);
        }
        if (i < 3) {
            size_t len = pair_write(&pair, i, message);
            assert_int_equal(pair_read(&pair, i, message, len), SKEP_OK);
        }
    }
    pair_free(&pair);
}

static void calls_out_of_turn_are_refused_and_harmless(void **state)
{
    (void)state;
    on_each_case(check_order);
}

static void check_room(const struct pair_case *c)
{
    struct noise_pair pair = pair_of_case(c);
    uint8_t message[PAIR_MESSAGE_BYTES], payload[20];

    for (int i = 0; i < 3; i++) {
        struct skep_error err;
        uint8_t out[PAIR_MESSAGE_BYTES];
        memset(payload, 'a' + i, sizeof(payload));
        /* Measure on a twin, then offer one byte less. */
        struct noise_pair twin = pair_after(c, i);
        size_t needed = pair_write(&twin, i, message);
        pair_free(&twin);
        for (size_t cap = 0; cap < needed; cap++) {
            size_t len = cap;
            assert_int_equal(noise_handshake_write(pair_writer(&pair, i), payload, sizeof(payload),
                                                   out, &len, &err),
                             SKEP_INVALID_ARGUMENT);
        }
        size_t len = pair_write(&pair, i, out);
        assert_int_equal(len, needed);
        assert_memory_equal(out, message, needed);
        for (size_t cap = 0; cap < sizeof(payload); cap++) {
            size_t room = cap;
            assert_int_equal(
                noise_handshake_read(pair_reader(&pair, i), out, len, payload, &room, &err),
                SKEP_INVALID_ARGUMENT);
        }
        assert_int_equal(pair_read(&pair, i, out, len), SKEP_OK);
    }
    pair_free(&pair);
}

static void too_little_room_is_refused_and_harmless(void **state)
{
    (void)state;
    on_each_case(check_room);
}

static void payload_over_the_limit_is_refused_and_harmless(void **state)
{
    (void)state;
    static uint8_t payload[NOISE_MAX_MESSAGE], out[2 * NOISE_MAX_MESSAGE];
    struct noise_pair pair = pair_new(NOISE_CHACHAPOLY, NULL);
    size_t len = sizeof(out);

    assert_int_equal(
        noise_handshake_write(pair.initiator, payload, NOISE_MAX_MESSAGE - 31, out, &len, NULL),
        SKEP_INVALID_ARGUMENT);
    assert_int_equal(noise_handshake_write(pair.initiator, payload, SIZE_MAX, out, &len, NULL),
                     SKEP_INVALID_ARGUMENT);
    pair_run(&pair, 3);
    pair_free(&pair);
}

/* ---- tampering ---- */

/* What an altered message does at the other end: refused at once, or, where the first message of XX
 * is still in the clear, by the message after it. */
static void check_altered(const struct pair_case *c, int i, const uint8_t *message, size_t len)
{
    struct noise_pair pair = pair_after(c, i);
    uint8_t out[PAIR_MESSAGE_BYTES], payload[PAIR_MESSAGE_BYTES];
    size_t payload_len = sizeof(payload);

    pair_write(&pair, i, out); /* the writer moves on; the altered message arrives in its place */
    skep_status rc =
        noise_handshake_read(pair_reader(&pair, i), message, len, payload, &payload_len, NULL);
    if (i == 0 && !c->with_psk && rc == SKEP_OK) {
        size_t out_len = sizeof(out);
        rc = noise_handshake_write(pair.responder, NULL, 0, out, &out_len, NULL);
        if (rc == SKEP_OK) {
            payload_len = sizeof(payload);
            rc = noise_handshake_read(pair.initiator, out, out_len, payload, &payload_len, NULL);
            assert_dead(pair.initiator);
        }
    } else {
        assert_dead(pair_reader(&pair, i));
    }
    assert_int_equal(rc, SKEP_UNAUTHENTICATED);
    pair_free(&pair);
}

static size_t nth_message(const struct pair_case *c, int i, uint8_t out[static PAIR_MESSAGE_BYTES])
{
    struct noise_pair pair = pair_after(c, i);
    size_t len = pair_write(&pair, i, out);

    pair_free(&pair);
    return len;
}

static void check_truncations(const struct pair_case *c)
{
    uint8_t message[PAIR_MESSAGE_BYTES];

    for (int i = 0; i < 3; i++) {
        size_t len = nth_message(c, i, message);
        for (size_t cut = 0; cut < len; cut++)
            check_altered(c, i, message, cut);
        message[len] = 0;
        check_altered(c, i, message, len + 1);
    }
}

static void every_truncation_and_an_extension_are_refused(void **state)
{
    (void)state;
    on_each_case(check_truncations);
}

static void check_flips(const struct pair_case *c)
{
    uint8_t message[PAIR_MESSAGE_BYTES];

    for (int i = 0; i < 3; i++) {
        size_t len = nth_message(c, i, message);
        for (size_t byte = 0; byte < len; byte++) {
            uint8_t bit = (uint8_t)(1u << (byte * 5 + (size_t)i) % 8);
            message[byte] ^= bit;
            check_altered(c, i, message, len);
            message[byte] ^= bit;
        }
    }
}

static void a_flipped_bit_anywhere_is_refused(void **state)
{
    (void)state;
    on_each_case(check_flips);
}

/* X25519 ignores the top bit of a key, but the handshake hash does not. */
static void the_unused_bit_of_an_ephemeral_key_counts(void **state)
{
    (void)state;
    struct pair_case c = {NOISE_CHACHAPOLY, false};
    uint8_t message[PAIR_MESSAGE_BYTES];

    for (int i = 0; i < 2; i++) {
        size_t len = nth_message(&c, i, message);
        message[31] ^= 0x80;
        check_altered(&c, i, message, len);
    }
}

static void message_over_the_limit_is_refused(void **state)
{
    (void)state;
    static uint8_t message[NOISE_MAX_MESSAGE + 1], payload[2 * NOISE_MAX_MESSAGE];
    struct noise_pair pair = pair_new(NOISE_CHACHAPOLY, NULL);
    size_t len = sizeof(payload);

    memset(message, 9, sizeof(message));
    assert_int_equal(
        noise_handshake_read(pair.responder, message, sizeof(message), payload, &len, NULL),
        SKEP_UNAUTHENTICATED);
    assert_dead(pair.responder);
    pair_free(&pair);
}

static void check_replay(const struct pair_case *c)
{
    uint8_t recorded[3][PAIR_MESSAGE_BYTES], secret[32], ephemeral[32], psk[32], payload[64];
    size_t len[3], payload_len = sizeof(payload);

    for (int i = 0; i < 3; i++)
        len[i] = nth_message(c, i, recorded[i]);
    /* A responder with a fresh ephemeral key gets a recorded first message: its own answer leads
     * to keys under which the recorded third one does not verify. */
    struct noise_handshake *hs;
    struct noise_config config = {.cipher = c->cipher,
                                  .static_secret = pair_key(0x22, secret),
                                  .fixed_ephemeral = pair_key(0x77, ephemeral),
                                  .psk = c->with_psk ? pair_key(0x55, psk) : NULL,
                                  .prologue = (const uint8_t *)"prologue",
                                  .prologue_len = 8};
    assert_int_equal(noise_handshake_new(&config, &hs, NULL), SKEP_OK);
    assert_int_equal(noise_handshake_read(hs, recorded[0], len[0], payload, &payload_len, NULL),
                     SKEP_OK);
    uint8_t out[PAIR_MESSAGE_BYTES];
    size_t out_len = sizeof(out);
    assert_int_equal(noise_handshake_write(hs, NULL, 0, out, &out_len, NULL), SKEP_OK);
    payload_len = sizeof(payload);
    assert_int_equal(noise_handshake_read(hs, recorded[2], len[2], payload, &payload_len, NULL),
                     SKEP_UNAUTHENTICATED);
    assert_dead(hs);
    noise_handshake_free(hs);
}

static void replayed_handshakes_are_refused(void **state)
{
    (void)state;
    on_each_case(check_replay);
}

static void check_crossed(const struct pair_case *c)
{
    uint8_t messages[3][PAIR_MESSAGE_BYTES];
    size_t len[3];

    for (int i = 0; i < 3; i++)
        len[i] = nth_message(c, i, messages[i]);
    for (int i = 0; i < 3; i++)
        for (int other = 0; other < 3; other++)
            if (other != i)
                check_altered(c, i, messages[other], len[other]);
}

static void a_message_in_the_place_of_another_is_refused(void **state)
{
    (void)state;
    on_each_case(check_crossed);
}

static void a_dead_handshake_stays_dead(void **state)
{
    (void)state;
    struct pair_case c = {NOISE_CHACHAPOLY, true};
    struct noise_pair pair = pair_of_case(&c);
    uint8_t message[PAIR_MESSAGE_BYTES];
    size_t len = pair_write(&pair, 0, message);

    message[40] ^= 1;
    assert_int_equal(pair_read(&pair, 0, message, len), SKEP_UNAUTHENTICATED);
    message[40] ^= 1;
    assert_int_equal(pair_read(&pair, 0, message, len), SKEP_FAILED_PRECONDITION);
    assert_dead(pair.responder);
    pair_free(&pair);
}

/* ---- wrong secrets ---- */

static void assert_never_completes(struct noise_pair *pair)
{
    uint8_t message[PAIR_MESSAGE_BYTES], payload[PAIR_MESSAGE_BYTES];
    skep_status rc = SKEP_OK;

    for (int i = 0; i < 3 && rc == SKEP_OK; i++) {
        size_t len = sizeof(message), payload_len = sizeof(payload);
        assert_int_equal(noise_handshake_write(pair_writer(pair, i), NULL, 0, message, &len, NULL),
                         SKEP_OK);
        rc = noise_handshake_read(pair_reader(pair, i), message, len, payload, &payload_len, NULL);
    }
    assert_int_equal(rc, SKEP_UNAUTHENTICATED);
    pair_free(pair);
}

static void check_secrets(const struct pair_case *c)
{
    uint8_t a[32], b[32];

    if (!c->with_psk)
        return;
    pair_key(0x55, a);
    pair_key(0x55, b);
    b[31] ^= 1;
    struct noise_pair wrong = {pair_end(true, c->cipher, a, "p"),
                               pair_end(false, c->cipher, b, "p")};
    assert_never_completes(&wrong);
    struct noise_pair missing = {pair_end(true, c->cipher, NULL, "p"),
                                 pair_end(false, c->cipher, b, "p")};
    assert_never_completes(&missing);
    struct noise_pair unexpected = {pair_end(true, c->cipher, a, "p"),
                                    pair_end(false, c->cipher, NULL, "p")};
    assert_never_completes(&unexpected);
}

static void a_wrong_or_missing_psk_never_completes(void **state)
{
    (void)state;
    on_each_case(check_secrets);
}

static void different_prologues_never_complete(void **state)
{
    (void)state;
    struct noise_pair pair = {pair_end(true, NOISE_CHACHAPOLY, NULL, "version 1"),
                              pair_end(false, NOISE_CHACHAPOLY, NULL, "version 2")};
    assert_never_completes(&pair);
}

static void different_ciphers_never_complete(void **state)
{
    (void)state;
    if (!noise_cipher_available(NOISE_AESGCM))
        skip();
    struct noise_pair pair = {pair_end(true, NOISE_CHACHAPOLY, NULL, "p"),
                              pair_end(false, NOISE_AESGCM, NULL, "p")};
    assert_never_completes(&pair);
}

/* ---- degenerate keys ---- */

/* Points of small order, which make the shared secret zero whatever the other side's key is: 0, 1,
 * two of order 8, p - 1, p and p + 1. */
static const uint8_t small_order[][32] = {
    {0},
    {1},
    {0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3,
     0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32,
     0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00},
    {0x5f, 0x9c, 0x95, 0xbc, 0xa3, 0x50, 0x8c, 0x24, 0xb1, 0xd0, 0xb1,
     0x55, 0x9c, 0x83, 0xef, 0x5b, 0x04, 0x44, 0x5c, 0xc4, 0x58, 0x1c,
     0x8e, 0x86, 0xd8, 0x22, 0x4e, 0xdd, 0xd0, 0x9f, 0x11, 0x57},
    {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    {0xed, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    {0xee, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
};

static void degenerate_ephemeral_keys_are_refused(void **state)
{
    (void)state;
    struct skep_error err;

    for (size_t i = 0; i < sizeof(small_order) / sizeof(small_order[0]); i++) {
        struct noise_pair pair = pair_new(NOISE_CHACHAPOLY, NULL);
        uint8_t out[PAIR_MESSAGE_BYTES], message[96] = {0};
        size_t len = sizeof(out);
        /* From an initiator: noticed when the responder makes its answer. */
        assert_int_equal(noise_handshake_read(pair.responder, small_order[i], 32, out, &len, NULL),
                         SKEP_OK);
        len = sizeof(out);
        assert_int_equal(noise_handshake_write(pair.responder, NULL, 0, out, &len, &err),
                         SKEP_UNAUTHENTICATED);
        assert_non_null(strstr(err.message, "degenerate"));
        assert_dead(pair.responder);
        /* From a responder: at once. */
        len = sizeof(out);
        assert_int_equal(noise_handshake_write(pair.initiator, NULL, 0, out, &len, NULL), SKEP_OK);
        memcpy(message, small_order[i], 32);
        len = sizeof(out);
        assert_int_equal(
            noise_handshake_read(pair.initiator, message, sizeof(message), out, &len, &err),
            SKEP_UNAUTHENTICATED);
        assert_non_null(strstr(err.message, "degenerate"));
        assert_dead(pair.initiator);
        pair_free(&pair);
    }
}

/* ---- memory and arguments ---- */

static void failed_allocation_is_reported(void **state)
{
    (void)state;
    uint8_t secret[32];
    struct noise_config config = {.cipher = NOISE_CHACHAPOLY, .static_secret = pair_key(1, secret)};
    struct noise_handshake *hs = (struct noise_handshake *)(void *)secret;
    struct skep_error err;

    mem_fail_at(1);
    assert_int_equal(noise_handshake_new(&config, &hs, &err), SKEP_RESOURCE_EXHAUSTED);
    assert_false(mem_fail_pending());
    assert_null(hs);
}

static void unknown_ciphers_are_refused(void **state)
{
    (void)state;
    uint8_t secret[32];
    struct noise_handshake *hs;

    for (int cipher = 0; cipher < 256; cipher += cipher == 0 ? 3 : 1) {
        struct noise_config config = {.cipher = (enum noise_cipher)cipher,
                                      .static_secret = pair_key(1, secret)};
        assert_false(noise_cipher_available(config.cipher));
        assert_int_equal(noise_handshake_new(&config, &hs, NULL), SKEP_INVALID_ARGUMENT);
        assert_null(hs);
    }
}

static void nothing_can_be_freed(void **state)
{
    (void)state;
    noise_handshake_free(NULL);
    noise_channel_wipe(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(complete_handshake_gives_both_ends_the_same_secrets),
        cmocka_unit_test(random_ephemeral_keys_differ_each_time),
        cmocka_unit_test(no_message_adds_more_than_the_stated_overhead),
        cmocka_unit_test(empty_and_largest_payloads_pass),
        cmocka_unit_test(calls_out_of_turn_are_refused_and_harmless),
        cmocka_unit_test(too_little_room_is_refused_and_harmless),
        cmocka_unit_test(payload_over_the_limit_is_refused_and_harmless),
        cmocka_unit_test(every_truncation_and_an_extension_are_refused),
        cmocka_unit_test(a_flipped_bit_anywhere_is_refused),
        cmocka_unit_test(the_unused_bit_of_an_ephemeral_key_counts),
        cmocka_unit_test(message_over_the_limit_is_refused),
        cmocka_unit_test(replayed_handshakes_are_refused),
        cmocka_unit_test(a_message_in_the_place_of_another_is_refused),
        cmocka_unit_test(a_dead_handshake_stays_dead),
        cmocka_unit_test(a_wrong_or_missing_psk_never_completes),
        cmocka_unit_test(different_prologues_never_complete),
        cmocka_unit_test(different_ciphers_never_complete),
        cmocka_unit_test(degenerate_ephemeral_keys_are_refused),
        cmocka_unit_test(failed_allocation_is_reported),
        cmocka_unit_test(unknown_ciphers_are_refused),
        cmocka_unit_test(nothing_can_be_freed),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
