/* Identities: derivation, signatures, key files and the mistakes people make with them, the lock.
 */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "crypto/identity.h"

/* RFC 8032, section 7.1, test 2. */
static const char seed_hex[] = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb";
static const char public_hex[] = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
static const char signature_hex[] =
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

static char folder[64]; /* of this test run, removed at its end */

static const char *in_folder(const char *name)
{
    static char path[4][512];
    static int next;
    char *out = path[next++ % 4];

    snprintf(out, sizeof(path[0]), "%s/%s", folder, name);
    return out;
}

static void write_file(const char *path, const void *data, size_t len, mode_t mode)
{
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, len), (ssize_t)len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static struct identity known_identity(void)
{
    uint8_t seed[32];
    struct identity id;

    assert_true(hex_decode(seed, sizeof(seed), seed_hex));
    assert_int_equal(identity_from_seed(&id, seed, NULL), SKEP_OK);
    return id;
}

/* ---- keys ---- */

static void seed_gives_the_published_key_and_signature(void **state)
{
    (void)state;
    struct identity id = known_identity();
    char hex[PEER_ID_HEX_BYTES];
    uint8_t signature[SIGNATURE_BYTES], expected[SIGNATURE_BYTES];

    peer_id_hex(id.peer_id, hex);
    assert_string_equal(hex, public_hex);
    identity_sign(&id, (const uint8_t *)"\x72", 1, signature);
    assert_true(hex_decode(expected, sizeof(expected), signature_hex));
    assert_memory_equal(signature, expected, sizeof(expected));
    assert_true(identity_verify(id.peer_id, (const uint8_t *)"\x72", 1, signature));
}

static void dh_keys_belong_together_and_to_the_peer_id(void **state)
{
    (void)state;
    struct identity id = known_identity();
    uint8_t public_key[32];

    assert_true(identity_dh_public(id.peer_id, public_key));
    assert_memory_equal(public_key, id.dh_public, 32);
    crypto_scalarmult_base(public_key, id.dh_secret);
    assert_memory_equal(public_key, id.dh_public, 32);
}

static void generated_identities_differ(void **state)
{
    (void)state;
    struct identity a, b;

    assert_int_equal(identity_generate(&a, NULL), SKEP_OK);
    assert_int_equal(identity_generate(&b, NULL), SKEP_OK);
    assert_memory_not_equal(a.peer_id, b.peer_id, PEER_ID_BYTES);
    assert_memory_not_equal(a.dh_secret, b.dh_secret, 32);
    identity_wipe(&a);
    identity_wipe(NULL);
    for (size_t i = 0; i < sizeof(a); i++)
        assert_int_equal(((const uint8_t *)&a)[i], 0);
}

static void every_flipped_bit_of_a_signature_is_refused(void **state)
{
    (void)state;
    struct identity id = known_identity();
    uint8_t message[] = "a record", signature[SIGNATURE_BYTES], peer[PEER_ID_BYTES];

    identity_sign(&id, message, sizeof(message), signature);
    for (size_t bit = 0; bit < SIGNATURE_BYTES * 8; bit++) {
        signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(identity_verify(id.peer_id, message, sizeof(message), signature));
        signature[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < sizeof(message) * 8; bit++) {
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(identity_verify(id.peer_id, message, sizeof(message), signature));
        message[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t bit = 0; bit < PEER_ID_BYTES * 8; bit++) {
        memcpy(peer, id.peer_id, sizeof(peer));
        peer[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(identity_verify(peer, message, sizeof(message), signature));
    }
    assert_false(identity_verify(id.peer_id, message, sizeof(message) - 1, signature));
    assert_true(identity_verify(id.peer_id, message, sizeof(message), signature));
}

/* The group order is added to the second half: the same equation, another encoding. Were it
 * accepted, anyone could make a second valid signature of a record. */
static void a_second_encoding_of_a_signature_is_refused(void **state)
{
    (void)state;
    static const uint8_t order[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58,       0xd6,
                                      0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, [31] = 0x10};
    struct identity id = known_identity();
    uint8_t signature[SIGNATURE_BYTES];
    unsigned carry = 0;

    identity_sign(&id, (const uint8_t *)"x", 1, signature);
    for (int i = 0; i < 32; i++) {
        carry += (unsigned)signature[32 + i] + order[i];
        signature[32 + i] = (uint8_t)carry;
        carry >>= 8;
    }
    assert_int_equal(carry, 0);
    assert_false(identity_verify(id.peer_id, (const uint8_t *)"x", 1, signature));
}

/* With a key of small order, signature (R = the key, S = 0) "verifies" any message where libraries
 * are lax. */
static void keys_of_small_order_verify_nothing_and_convert_to_nothing(void **state)
{
    (void)state;
    static const uint8_t keys[][32] = {
        {0},
        {1},
        {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
         0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
        {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
         0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
         0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
    };
    uint8_t signature[SIGNATURE_BYTES], out[32];

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        memset(signature, 0, sizeof(signature));
        memcpy(signature, keys[i], 32);
        assert_false(identity_verify(keys[i], (const uint8_t *)"x", 1, signature));
        assert_false(identity_dh_public(keys[i], out));
    }
    memset(out, 0xff, sizeof(out)); /* not canonical */
    assert_false(identity_dh_public(out, signature));
}

static void peer_ids_round_trip_as_text(void **state)
{
    (void)state;
    struct identity id = known_identity();
    char hex[PEER_ID_HEX_BYTES], brief[PEER_ID_SHORT_BYTES];
    uint8_t back[PEER_ID_BYTES];

    peer_id_hex(id.peer_id, hex);
    peer_id_short(id.peer_id, brief);
    assert_string_equal(brief, "3d4017c3e843");
    assert_true(peer_id_parse(back, hex));
    assert_memory_equal(back, id.peer_id, PEER_ID_BYTES);
    hex[63] = '\0';
    assert_false(peer_id_parse(back, hex));
    assert_false(peer_id_parse(back, ""));
    assert_false(peer_id_parse(back, NULL));
    assert_false(peer_id_parse(back, brief));
}

/* ---- key files ---- */

static void saved_identity_loads_back(void **state)
{
    (void)state;
    struct identity id = known_identity(), back;
    const char *path = in_folder("new/deep/node.key");
    struct stat st;
    char content[128] = {0};

    assert_int_equal(identity_save(&id, path, NULL), SKEP_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(stat(in_folder("new/deep"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(content, 1, sizeof(content) - 1, f), 74);
    fclose(f);
    assert_memory_equal(content, seed_hex, 64);
    assert_string_equal(content + 64, " identity\n");
    assert_int_equal(identity_load(&back, path, NULL), SKEP_OK);
    assert_memory_equal(&back, &id, sizeof(id));
    assert_int_equal(system("test \"$(ls -A $SKEP_TEST_FOLDER/new/deep)\" = node.key"), 0);
}

static void an_existing_file_is_not_overwritten(void **state)
{
    (void)state;
    struct identity id = known_identity(), other;
    const char *path = in_folder("keep.key");
    struct skep_error err;

    assert_int_equal(identity_generate(&other, NULL), SKEP_OK);
    assert_int_equal(identity_save(&id, path, NULL), SKEP_OK);
    assert_int_equal(identity_save(&other, path, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(identity_load(&other, path, NULL), SKEP_OK);
    assert_memory_equal(&other, &id, sizeof(id));
    assert_int_equal(system("! ls -A $SKEP_TEST_FOLDER | grep -q '^keep.key.'"), 0);
}

static void load_or_create_makes_one_key_and_keeps_it(void **state)
{
    (void)state;
    const char *path = in_folder("made/node.key");
    struct identity first, second;

    assert_int_equal(identity_load_or_create(&first, path, NULL), SKEP_OK);
    assert_int_equal(identity_load_or_create(&second, path, NULL), SKEP_OK);
    assert_memory_equal(&first, &second, sizeof(first));
}

static void load_or_create_never_replaces_a_bad_file(void **state)
{
    (void)state;
    const char *path = in_folder("bad.key");
    struct identity id;
    struct stat st;

    write_file(path, "oops", 4, 0600);
    assert_int_equal(identity_load_or_create(&id, path, NULL), SKEP_DATA_LOSS);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4);
}

static void missing_files_and_folders_are_not_found(void **state)
{
    (void)state;
    struct identity id;
    struct skep_error err;

    assert_int_equal(identity_load(&id, in_folder("absent.key"), &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, "absent.key: cannot open: No such file"));
    assert_int_equal(identity_load(&id, in_folder("no/such/folder"), &err), SKEP_NOT_FOUND);
    assert_int_equal(identity_load(&id, "", &err), SKEP_NOT_FOUND);
}

static void files_that_others_may_read_are_refused_with_the_remedy(void **state)
{
    (void)state;
    static const mode_t modes[] = {0644, 0640, 0604, 0610, 0620, 0602, 0601, 0660, 0666, 0777};
    const char *path = in_folder("open.key");
    char line[80];
    struct identity id;
    struct skep_error err;

    snprintf(line, sizeof(line), "%s\n", seed_hex);
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        char mode[16], remedy[600];
        snprintf(mode, sizeof(mode), "mode %04o", (unsigned)modes[i]);
        snprintf(remedy, sizeof(remedy), "chmod 600 '%s'", path);
        write_file(path, line, strlen(line), modes[i]);
        assert_int_equal(identity_load(&id, path, &err), SKEP_PERMISSION_DENIED);
        assert_non_null(strstr(err.message, mode));
        assert_non_null(strstr(err.message, remedy));
    }
    for (mode_t mode = 0400; mode <= 0700; mode += 0100) {
        write_file(path, line, strlen(line), mode);
        assert_int_equal(identity_load(&id, path, NULL), SKEP_OK);
    }
}

static void an_unreadable_file_is_permission_denied(void **state)
{
    (void)state;
    const char *path = in_folder("locked.key");

    write_file(path, seed_hex, 64, 0000);
    pid_t child = fork(); /* root reads everything, so another user asks */
    assert_true(child >= 0);
    if (child == 0) {
        struct identity id;
        if (geteuid() == 0 && (chmod(folder, 0755) != 0 || setuid(65534) != 0))
            _exit(2);
        _exit(identity_load(&id, path, NULL) == SKEP_PERMISSION_DENIED ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void things_that_are_no_files_are_refused_without_waiting(void **state)
{
    (void)state;
    struct identity id;
    struct skep_error err;

    assert_int_equal(identity_load(&id, folder, &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, "a directory"));
    assert_int_equal(mkfifo(in_folder("fifo"), 0600), 0);
    assert_int_equal(identity_load(&id, in_folder("fifo"), &err), SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(identity_load(&id, "/dev/zero", &err), SKEP_DATA_LOSS);
}

static void each_wrong_content_is_named(void **state)
{
    (void)state;
    static const char pem[] = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n"
                              "-----END OPENSSH PRIVATE KEY-----\n";
    static char large[5000];
    const struct {
        const char *content;
        size_t len;
        const char *message;
    } cases[] = {
        {"", 0, "empty file"},
        {"\n", 1, "0 hex digits"},
        {pem, sizeof(pem) - 1, "a PEM file"},
        {"4ccd089b28ff96da", 16, "16 hex digits"},
        {"4ccd089b28ff96da\n", 17, "16 hex digits"},
        {"\x4c\xcd\x08\x9b\x28\xff\x96\xda\x9d\xb6\xc3\x46\xec\x11\x4e\x0f"
         "\x4c\xcd\x08\x9b\x28\xff\x96\xda\x9d\xb6\xc3\x46\xec\x11\x4e\x0f",
         32, "32 bytes of binary data"},
        {large, sizeof(large), "at least 1024 bytes of binary data"},
        {"{\"key\": 1}", 10, "character 1 is not a hex digit"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fbaa", 66, "66 hex digits"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb\n\n", 66,
         "64 hex digits and more behind them"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb identities\n", 76,
         "64 hex digits and more behind them"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fbidentity", 72,
         "64 hex digits and more behind them"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb ", 65,
         "64 hex digits and more behind them"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6f\0", 64,
         "64 bytes of binary data"},
        {" 4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb", 65,
         "character 1 is not a hex digit"},
        {"0x4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6", 64,
         "character 2 is not a hex digit"},
    };
    const char *path = in_folder("content.key");
    static const struct identity zero;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct skep_error err;
        struct identity id = known_identity();
        write_file(path, cases[i].content, cases[i].len, 0600);
        assert_int_equal(identity_load(&id, path, &err), SKEP_DATA_LOSS);
        if (strstr(err.message, cases[i].message) == NULL)
            fail_msg("case %zu: %s", i, err.message);
        assert_non_null(strstr(err.message, path));
        assert_non_null(strstr(err.message, "expected 64 hex digits"));
        assert_null(strstr(err.message, "4ccd089b")); /* not one digit of a key in a log */
        assert_memory_equal(&id, &zero, sizeof(id));
    }
}

static void line_ends_and_capitals_are_accepted(void **state)
{
    (void)state;
    static const char *const good[] = {
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "4CCD089B28FF96DA9DB6C346EC114E0F5B8A319F35ABA624DA8CF6ED4FB8A6FB\n",
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb\r\n",
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb identity",
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb identity\r\n",
    };
    struct identity expected = known_identity(), id;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(identity_parse(&id, good[i], strlen(good[i]), "test", NULL), SKEP_OK);
        assert_memory_equal(&id, &expected, sizeof(id));
    }
}

static void unwritable_places_are_reported(void **state)
{
    (void)state;
    struct identity id = known_identity();
    struct skep_error err;
    char path[5000];

    write_file(in_folder("plain"), "x", 1, 0600);
    assert_int_not_equal(identity_save(&id, in_folder("plain/node.key"), &err), SKEP_OK);
    assert_non_null(strstr(err.message, "plain"));
    memset(path, 'a', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(identity_save(&id, path, NULL), SKEP_INVALID_ARGUMENT);
    assert_int_equal(identity_save(&id, "", NULL), SKEP_INVALID_ARGUMENT);
}

static void racing_creators_agree_on_one_key(void **state)
{
    (void)state;
    const char *path = in_folder("race/node.key");
    int pipes[2];
    uint8_t ids[8][PEER_ID_BYTES];

    assert_int_equal(pipe(pipes), 0);
    for (int i = 0; i < 8; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct identity id;
            bool good = identity_load_or_create(&id, path, NULL) == SKEP_OK &&
                        write(pipes[1], id.peer_id, PEER_ID_BYTES) == PEER_ID_BYTES;
            _exit(good ? 0 : 1);
        }
    }
    for (int i = 0; i < 8; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
        assert_int_equal(read(pipes[0], ids[i], PEER_ID_BYTES), PEER_ID_BYTES);
        assert_memory_equal(ids[i], ids[0], PEER_ID_BYTES);
    }
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- the lock ---- */

static void a_held_identity_is_refused_with_path_and_pid(void **state)
{
    (void)state;
    const char *path = in_folder("locks/node.key");
    struct skep_error err;
    char pid[32];
    int first, second;

    assert_int_equal(identity_lock(path, &first, NULL), SKEP_OK);
    assert_true(first >= 0);
    assert_int_equal(identity_lock(path, &second, &err), SKEP_FAILED_PRECONDITION);
    assert_int_equal(second, -1);
    snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_non_null(strstr(err.message, pid));
    assert_non_null(strstr(err.message, path));

    identity_unlock(path, first);
    assert_int_equal(access(in_folder("locks/node.key.lock"), F_OK), -1);
    assert_int_equal(identity_lock(path, &second, NULL), SKEP_OK);
    identity_unlock(path, second);
    identity_unlock(path, -1);
}

static void another_process_is_refused_until_the_holder_dies(void **state)
{
    (void)state;
    const char *path = in_folder("locks/other.key");
    int ready[2], fd, status;
    char byte, text[32];
    struct skep_error err;

    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int held;
        if (identity_lock(path, &held, NULL) != SKEP_OK || write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(identity_lock(path, &fd, &err), SKEP_FAILED_PRECONDITION);
    snprintf(text, sizeof(text), "process %ld", (long)child);
    assert_non_null(strstr(err.message, text));
    /* A kill leaves the file behind, but not the lock. */
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(access(in_folder("locks/other.key.lock"), F_OK), 0);
    assert_int_equal(identity_lock(path, &fd, NULL), SKEP_OK);
    identity_unlock(path, fd);
    close(ready[0]);
    close(ready[1]);
}

static void junk_in_the_lock_file_is_harmless(void **state)
{
    (void)state;
    const char *path = in_folder("junk.key");
    struct skep_error err;
    int first, second;

    write_file(in_folder("junk.key.lock"), "%s%n\xff junk of more than twenty-four bytes", 40,
               0600);
    assert_int_equal(identity_lock(path, &first, NULL), SKEP_OK);
    assert_int_equal(ftruncate(first, 0), 0); /* as in the moment before the pid is there */
    assert_int_equal(identity_lock(path, &second, &err), SKEP_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "(unknown)"));
    identity_unlock(path, first);
}

/* Many processes take and give back one lock; at no time do two hold it. The witness is a file that
 * each holder makes exclusively. */
static void unlinking_on_release_never_lets_two_in(void **state)
{
    (void)state;
    const char *path = in_folder("busy.key"), *witness = in_folder("witness");

    for (int i = 0; i < 4; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child != 0)
            continue;
        for (int round = 0, fd; round < 500; round++) {
            if (identity_lock(path, &fd, NULL) != SKEP_OK)
                continue;
            int mine = open(witness, O_CREAT | O_EXCL | O_WRONLY, 0600);
            if (mine < 0)
                _exit(1);
            close(mine);
            unlink(witness);
            identity_unlock(path, fd);
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++) {
        int status;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/skep-identity-XXXXXX");
    return mkdtemp(folder) == NULL || setenv("SKEP_TEST_FOLDER", folder, 1) != 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return system("rm -rf \"$SKEP_TEST_FOLDER\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seed_gives_the_published_key_and_signature),
        cmocka_unit_test(dh_keys_belong_together_and_to_the_peer_id),
        cmocka_unit_test(generated_identities_differ),
        cmocka_unit_test(every_flipped_bit_of_a_signature_is_refused),
        cmocka_unit_test(a_second_encoding_of_a_signature_is_refused),
        cmocka_unit_test(keys_of_small_order_verify_nothing_and_convert_to_nothing),
        cmocka_unit_test(peer_ids_round_trip_as_text),
        cmocka_unit_test(saved_identity_loads_back),
        cmocka_unit_test(an_existing_file_is_not_overwritten),
        cmocka_unit_test(load_or_create_makes_one_key_and_keeps_it),
        cmocka_unit_test(load_or_create_never_replaces_a_bad_file),
        cmocka_unit_test(missing_files_and_folders_are_not_found),
        cmocka_unit_test(files_that_others_may_read_are_refused_with_the_remedy),
        cmocka_unit_test(an_unreadable_file_is_permission_denied),
        cmocka_unit_test(things_that_are_no_files_are_refused_without_waiting),
        cmocka_unit_test(each_wrong_content_is_named),
        cmocka_unit_test(line_ends_and_capitals_are_accepted),
        cmocka_unit_test(unwritable_places_are_reported),
        cmocka_unit_test(racing_creators_agree_on_one_key),
        cmocka_unit_test(a_held_identity_is_refused_with_path_and_pid),
        cmocka_unit_test(another_process_is_refused_until_the_holder_dies),
        cmocka_unit_test(junk_in_the_lock_file_is_harmless),
        cmocka_unit_test(unlinking_on_release_never_lets_two_in),
    };

    if (identity_system_init(NULL) != SKEP_OK)
        return 1;
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
