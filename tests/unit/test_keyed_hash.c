#include "unit.h"

#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crypto/keyed_hash.h"

static void equal_bytes_have_equal_hashes_and_others_have_others(void **state)
{
    uint8_t key[48] = {0};
    (void)state;

    uint64_t first = keyed_hash(key, sizeof(key));
    assert_true(keyed_hash(key, sizeof(key)) == first);
    assert_true(keyed_hash(NULL, 0) == keyed_hash("", 0));
    for (size_t i = 0; i < sizeof(key) * 8; i++) {
        key[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_true(keyed_hash(key, sizeof(key)) != first);
        key[i / 8] ^= (uint8_t)(1 << i % 8);
    }
}

/* What collides in one process does not in another: each has a secret of its own. */
static uint64_t hash_elsewhere(int out[2])
{
    uint64_t hash = 0;

    assert_int_equal(read(out[0], &hash, sizeof(hash)), sizeof(hash));
    close(out[0]);
    close(out[1]);
    return hash;
}

static int pipes[2][2];
static pid_t children[2];

static void processes_have_secrets_of_their_own(void **state)
{
    (void)state;
    uint64_t first = hash_elsewhere(pipes[0]), second = hash_elsewhere(pipes[1]);

    for (int i = 0; i < 2; i++)
        waitpid(children[i], NULL, 0);
    assert_true(first != second);
    assert_true(first != keyed_hash("key", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_bytes_have_equal_hashes_and_others_have_others),
        cmocka_unit_test(processes_have_secrets_of_their_own),
    };

    for (int i = 0; i < 2; i++) { /* before this process has made its secret */
        if (pipe(pipes[i]) != 0)
            return 1;
        children[i] = fork();
        if (children[i] == 0) {
            uint64_t hash = keyed_hash("key", 3);
            _exit(write(pipes[i][1], &hash, sizeof(hash)) == sizeof(hash) ? 0 : 1);
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
