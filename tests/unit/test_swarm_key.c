/* Swarm keys: derivation, files, sealing of record bodies. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "crypto/identity.h"
#include "crypto/swarm_key.h"

static struct swarm_key key_of(uint8_t fill)
{
    uint8_t secret[32];
    struct swarm_key key;

    memset(secret, fill, sizeof(secret));
    swarm_key_from_secret(&key, secret);
    return key;
}

/* Made with Python's hashlib.blake2b(label, key=bytes([7]) * 32, digest_size=32): a node of another
 * make must come to the same keys. */
static void sub_keys_are_as_documented(void **state)
{
    (void)state;
    struct swarm_key key = key_of(7);
    uint8_t expected[32];

    assert_true(hex_decode(expected, 32,
                           "3672209a8369f8524686c9daf8ad09e4a258024ca545ff23be3af97e78531eed"));
    assert_memory_equal(key.psk, expected, 32);
    assert_true(hex_decode(expected, 32,
                           "cb8f47d2a497407fefdae5d0be5a473b8878a38b5dcc39facbaa5fe93c1b63ad"));
    assert_memory_equal(key.record_key, expected, 32);
    swarm_key_wipe(&key);
    for (size_t i = 0; i < sizeof(key); i++)
        assert_int_equal(((const uint8_t *)&key)[i], 0);
    swarm_key_wipe(NULL);
}

static void created_file_loads_and_is_private(void **state)
{
    (void)state;
    char folder[] = "/tmp/skep-swarm-XXXXXX", path[64];
    struct swarm_key a, b;
    struct skep_error err;
    struct stat st;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/swarm.key", folder);
    assert_int_equal(swarm_key_load(&a, path, &err), SKEP_NOT_FOUND);
    assert_int_equal(swarm_key_create(path, NULL), SKEP_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(swarm_key_create(path, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(swarm_key_load(&a, path, NULL), SKEP_OK);
    assert_int_equal(swarm_key_load(&b, path, NULL), SKEP_OK);
    assert_memory_equal(&a, &b, sizeof(a));
    assert_memory_not_equal(a.psk, a.record_key, 32);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(swarm_key_load(&b, path, &err), SKEP_PERMISSION_DENIED);
    assert_non_null(strstr(err.message, "chmod 600"));
    unlink(path);
    rmdir(folder);
}

/* Whoever has a swarm's key would have the secret of that node, and the other way round. */
static void a_key_of_the_other_kind_is_refused(void **state)
{
    (void)state;
    char folder[] = "/tmp/skep-swarm-XXXXXX", swarm_path[64], node_path[64], plain_path[64];
    static const char digits[] =
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb\n";
    struct swarm_key key;
    static const struct swarm_key no_key;
    struct identity id;
    struct skep_error err;

    assert_non_null(mkdtemp(folder));
    snprintf(swarm_path, sizeof(swarm_path), "%s/swarm.key", folder);
    snprintf(node_path, sizeof(node_path), "%s/node.key", folder);
    snprintf(plain_path, sizeof(plain_path), "%s/plain.key", folder);
    assert_int_equal(swarm_key_create(swarm_path, NULL), SKEP_OK);
    assert_int_equal(identity_load_or_create(&id, node_path, NULL), SKEP_OK);
    assert_int_equal(swarm_key_load(&key, node_path, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, node_path));
    assert_non_null(strstr(err.message, "is the identity of a node, expected the key of a private "
                                        "swarm, as skep keygen --swarm-key"));
    assert_memory_equal(&key, &no_key, sizeof(key));
    assert_int_equal(identity_load_or_create(&id, swarm_path, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, swarm_path));
    assert_non_null(strstr(err.message, "is the key of a private swarm, expected the identity of a "
                                        "node, as skep keygen --identity"));
    /* What people make by hand says nothing of what it is. */
    FILE *f = fopen(plain_path, "w");
    assert_non_null(f);
    assert_true(fputs(digits, f) >= 0);
    fclose(f);
    assert_int_equal(chmod(plain_path, 0600), 0);
    assert_int_equal(swarm_key_load(&key, plain_path, NULL), SKEP_OK);
    assert_int_equal(identity_load(&id, plain_path, NULL), SKEP_OK);
    unlink(swarm_path);
    unlink(node_path);
    unlink(plain_path);
    rmdir(folder);
}

static void sealed_bodies_open_with_the_same_key_and_context_only(void **state)
{
    (void)state;
    struct swarm_key key = key_of(1), other = key_of(2);
    const uint8_t *ad = (const uint8_t *)"dht key";
    uint8_t sealed[12 + SWARM_SEAL_OVERHEAD], again[sizeof(sealed)], out[12];

    swarm_key_seal(&key, (const uint8_t *)"record body!", 12, ad, 7, sealed);
    swarm_key_seal(&key, (const uint8_t *)"record body!", 12, ad, 7, again);
    assert_memory_not_equal(sealed, again, sizeof(sealed)); /* fresh nonce */
    assert_true(swarm_key_open(&key, sealed, sizeof(sealed), ad, 7, out));
    assert_memory_equal(out, "record body!", 12);
    assert_false(swarm_key_open(&other, sealed, sizeof(sealed), ad, 7, out));
    assert_false(swarm_key_open(&key, sealed, sizeof(sealed), ad, 6, out));
    assert_false(swarm_key_open(&key, sealed, sizeof(sealed), NULL, 0, out));
}

static void every_truncation_and_flipped_bit_is_refused(void **state)
{
    (void)state;
    struct swarm_key key = key_of(1);
    uint8_t sealed[5 + SWARM_SEAL_OVERHEAD], out[5];

    swarm_key_seal(&key, (const uint8_t *)"hello", 5, NULL, 0, sealed);
    for (size_t len = 0; len < sizeof(sealed); len++)
        assert_false(swarm_key_open(&key, sealed, len, NULL, 0, out));
    for (size_t bit = 0; bit < sizeof(sealed) * 8; bit++) {
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(swarm_key_open(&key, sealed, sizeof(sealed), NULL, 0, out));
        sealed[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(swarm_key_open(&key, sealed, sizeof(sealed), NULL, 0, out));
}

static void empty_bodies_seal(void **state)
{
    (void)state;
    struct swarm_key key = key_of(1);
    uint8_t sealed[SWARM_SEAL_OVERHEAD];

    swarm_key_seal(&key, NULL, 0, NULL, 0, sealed);
    assert_true(swarm_key_open(&key, sealed, sizeof(sealed), NULL, 0, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sub_keys_are_as_documented),
        cmocka_unit_test(created_file_loads_and_is_private),
        cmocka_unit_test(a_key_of_the_other_kind_is_refused),
        cmocka_unit_test(sealed_bodies_open_with_the_same_key_and_context_only),
        cmocka_unit_test(every_truncation_and_flipped_bit_is_refused),
        cmocka_unit_test(empty_bodies_seal),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
