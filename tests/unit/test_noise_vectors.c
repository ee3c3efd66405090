/* Noise against published vectors: those typed in, and a whole file of them where there is one. */
#include "unit.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "crypto/identity.h"
#include "crypto/noise.h"
#include "noise_vectors.h"

enum { MAX_BYTES = 1024 };

static size_t unhex(uint8_t out[static MAX_BYTES], const char *text)
{
    size_t len = strlen(text) / 2;

    assert_true(len <= MAX_BYTES);
    assert_true(hex_decode(out, len, text));
    return len;
}

static enum noise_cipher cipher_of(const struct noise_vector *v)
{
    return strstr(v->protocol, "AESGCM") != NULL ? NOISE_AESGCM : NOISE_CHACHAPOLY;
}

static struct noise_handshake *make_end(const struct noise_vector *v, bool initiator)
{
    uint8_t secret[MAX_BYTES], ephemeral[MAX_BYTES], prologue[MAX_BYTES], psk[MAX_BYTES];
    struct noise_handshake *hs = NULL;
    struct noise_config config = {
        .initiator = initiator,
        .cipher = cipher_of(v),
        .static_secret = secret,
        .fixed_ephemeral = ephemeral,
        .prologue = prologue,
        .prologue_len = unhex(prologue, v->prologue),
    };

    assert_int_equal(unhex(secret, initiator ? v->init_static : v->resp_static), 32);
    assert_int_equal(unhex(ephemeral, initiator ? v->init_ephemeral : v->resp_ephemeral), 32);
    if (v->psk != NULL) {
        assert_int_equal(unhex(psk, v->psk), 32);
        config.psk = psk;
    }
    assert_int_equal(noise_handshake_new(&config, &hs, NULL), SKEP_OK);
    return hs;
}

static void check_handshake_message(const struct noise_vector *v, int i,
                                    struct noise_handshake *from, struct noise_handshake *to)
{
    uint8_t payload[MAX_BYTES], expected[MAX_BYTES], out[MAX_BYTES], back[MAX_BYTES];
    size_t payload_len = unhex(payload, v->messages[i].payload);
    size_t expected_len = unhex(expected, v->messages[i].ciphertext);
    size_t out_len = sizeof(out), back_len = sizeof(back);

    assert_int_equal(noise_handshake_write(from, payload, payload_len, out, &out_len, NULL),
                     SKEP_OK);
    assert_int_equal(out_len, expected_len);
    assert_memory_equal(out, expected, expected_len);
    assert_int_equal(noise_handshake_read(to, expected, expected_len, back, &back_len, NULL),
                     SKEP_OK);
    assert_int_equal(back_len, payload_len);
    assert_memory_equal(back, payload, payload_len);
}

static void check_hash(const struct noise_vector *v, const struct noise_handshake *a,
                       const struct noise_handshake *b)
{
    uint8_t expected[MAX_BYTES], hash[2][NOISE_HASH_BYTES];

    noise_handshake_hash(a, hash[0]);
    noise_handshake_hash(b, hash[1]);
    assert_memory_equal(hash[0], hash[1], NOISE_HASH_BYTES);
    if (v->handshake_hash != NULL) {
        assert_int_equal(unhex(expected, v->handshake_hash), NOISE_HASH_BYTES);
        assert_memory_equal(hash[0], expected, NOISE_HASH_BYTES);
    }
}

static void check_transport_message(const struct noise_vector *v, int i, struct noise_channel *send,
                                    struct noise_channel *receive)
{
    uint8_t payload[MAX_BYTES], expected[MAX_BYTES], out[MAX_BYTES];
    size_t payload_len = unhex(payload, v->messages[i].payload);
    size_t expected_len = unhex(expected, v->messages[i].ciphertext);

    assert_int_equal(expected_len, payload_len + NOISE_TAG_BYTES);
    assert_int_equal(noise_channel_encrypt(send, payload, payload_len, out), SKEP_OK);
    assert_memory_equal(out, expected, expected_len);
    assert_int_equal(noise_channel_decrypt(receive, expected, expected_len, out), SKEP_OK);
    assert_memory_equal(out, payload, payload_len);
}

/* False if this CPU lacks the cipher. */
static bool check_vector(const struct noise_vector *v)
{
    if (!noise_cipher_available(cipher_of(v)))
        return false;
    struct noise_handshake *a = make_end(v, true), *b = make_end(v, false);
    struct noise_channel a_send, a_receive, b_send, b_receive;

    assert_true(v->message_count > 3);
    for (int i = 0; i < 3; i++)
        check_handshake_message(v, i, i % 2 == 0 ? a : b, i % 2 == 0 ? b : a);
    check_hash(v, a, b);
    noise_handshake_split(a, &a_send, &a_receive);
    noise_handshake_split(b, &b_send, &b_receive);
    for (int i = 3; i < v->message_count; i++)
        check_transport_message(v, i, i % 2 == 0 ? &a_send : &b_send,
                                i % 2 == 0 ? &b_receive : &a_receive);
    noise_handshake_free(a);
    noise_handshake_free(b);
    return true;
}

static void typed_in_vectors_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(noise_vectors) / sizeof(noise_vectors[0]); i++)
        if (!check_vector(&noise_vectors[i]))
            print_message("%s: not on this CPU\n", noise_vectors[i].protocol);
}

/* ---- the file ---- */

static bool is_ours(const char *protocol)
{
    static const char *const names[] = {
        "Noise_XX_25519_ChaChaPoly_BLAKE2b",
        "Noise_XX_25519_AESGCM_BLAKE2b",
        "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b",
        "Noise_XXpsk3_25519_AESGCM_BLAKE2b",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(protocol, names[i]) == 0)
            return true;
    return false;
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static struct noise_vector from_json(const json_t *entry)
{
    const json_t *messages = json_object_get(entry, "messages");
    struct noise_vector v = {
        .protocol = text_of(entry, "protocol_name"),
        .prologue = text_of(entry, "init_prologue"),
        .psk = json_string_value(json_array_get(json_object_get(entry, "init_psks"), 0)),
        .init_static = text_of(entry, "init_static"),
        .init_ephemeral = text_of(entry, "init_ephemeral"),
        .resp_static = text_of(entry, "resp_static"),
        .resp_ephemeral = text_of(entry, "resp_ephemeral"),
        .handshake_hash = text_of(entry, "handshake_hash"),
        .message_count = (int)json_array_size(messages),
    };

    assert_true(v.message_count <= VECTOR_MAX_MESSAGES);
    for (int i = 0; i < v.message_count; i++) {
        const json_t *m = json_array_get(messages, (size_t)i);
        v.messages[i].payload = text_of(m, "payload");
        v.messages[i].ciphertext = text_of(m, "ciphertext");
    }
    return v;
}

static void vectors_of_a_file_agree(void **state)
{
    (void)state;
    const char *folder = getenv("SKEP_NOISE_VECTORS");
    char path[4096];
    json_error_t error;
    size_t i, checked = 0;
    json_t *entry;

    snprintf(path, sizeof(path), "%s/vectors.json",
             folder != NULL ? folder : SKEP_NOISE_VECTORS_DEFAULT);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL) {
        print_message("%s: %s; set SKEP_NOISE_VECTORS to the folder of vectors.json\n", path,
                      error.text);
        assert_null(folder); /* a folder that was asked for has to be there */
        skip();
    }
    json_array_foreach(json_object_get(root, "vectors"), i, entry)
    {
        if (!is_ours(text_of(entry, "protocol_name")))
            continue;
        struct noise_vector v = from_json(entry);
        checked += check_vector(&v) ? 1 : 0;
    }
    print_message("%s: %zu vectors\n", path, checked);
    assert_true(checked > 0);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_in_vectors_agree),
        cmocka_unit_test(vectors_of_a_file_agree),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
