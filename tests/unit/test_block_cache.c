#include "unit.h"

#include <string.h>

#include "base/alloc.h"
#include "base/block_cache.h"
#include "base/thread.h"

enum { MEGABYTE = 1 << 20 };

static void blocks_are_aligned_and_large_enough(void **state)
{
    (void)state;
    size_t sizes[] = {0,
                      1,
                      BLOCK_CACHE_SMALLEST - 1,
                      BLOCK_CACHE_SMALLEST,
                      MEGABYTE + 7,
                      BLOCK_CACHE_LARGEST + (size_t)1};

    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            size_t capacity;
            unsigned char *block = block_alloc(64, sizes[i], &capacity);
            assert_non_null(block);
            assert_true((uintptr_t)block % 64 == 0);
            assert_true(capacity >= sizes[i]);
            memset(block, 1, sizes[i]);
            block_free(block, capacity);
        }
    }
    block_free(NULL, 0);
}

static void what_is_kept_is_bounded(void **state)
{
    (void)state;
    void *blocks[300];
    size_t capacities[300];

    block_cache_trim();
    for (int i = 0; i < 300; i++) {
        blocks[i] = block_alloc(64, MEGABYTE, &capacities[i]);
        assert_non_null(blocks[i]);
    }
    for (int i = 0; i < 300; i++)
        block_free(blocks[i], capacities[i]);
    assert_true(block_cache_trim() <= BLOCK_CACHE_LIMIT_BYTES);
    assert_int_equal(block_cache_trim(), 0);
}

static void keep_given(void *arg, void *block, size_t capacity)
{
    size_t *given = arg;

    *given += capacity;
    block_give_back(block);
}

static void free_one(void *arg)
{
    size_t capacity;
    void *block = block_alloc(64, *(size_t *)arg, &capacity);

    block_free(block, capacity);
}

/* A thread that must not be held up gives no large block back itself. */
static void large_blocks_of_a_thread_go_to_its_taker(void **state)
{
    (void)state;
    size_t given = 0, huge = BLOCK_CACHE_LARGEST + (size_t)1, small = BLOCK_CACHE_SMALLEST - 1;
    struct thread other;
    void *blocks[4];
    size_t capacities[4], bytes = 0;

    block_cache_trim();
    block_cache_set_taker(keep_given, &given);
    free_one(&small);
    assert_int_equal(given, 0);
    free_one(&huge);
    assert_int_equal(given, huge);
    assert_int_equal(thread_start(&other, "other", free_one, &huge, NULL), SKEP_OK);
    thread_join(&other);
    assert_int_equal(given, huge); /* other threads give back theirs themselves */
    given = 0;
    for (int i = 0; i < 4; i++)
        blocks[i] = block_alloc(64, 40 * MEGABYTE, &capacities[i]);
    for (int i = 0; i < 4; i++) {
        bytes += capacities[i];
        block_free(blocks[i], capacities[i]);
    }
    block_cache_set_taker(NULL, NULL);
    assert_int_equal(given + block_cache_trim(), bytes);
    assert_true(given >= 2 * 40 * (size_t)MEGABYTE);
    given = 0;
    free_one(&huge); /* nobody takes it */
    assert_int_equal(given, 0);
}

static void a_much_larger_block_does_not_serve_a_small_request(void **state)
{
    (void)state;
    size_t capacity;

    block_cache_trim();
    void *block = block_alloc(64, 16 * MEGABYTE, &capacity);
    assert_non_null(block);
    block_free(block, capacity);
    block = block_alloc(64, MEGABYTE, &capacity);
    assert_non_null(block);
    assert_int_equal(capacity, MEGABYTE);
    block_free(block, capacity);
    block_cache_trim();
}

static void a_failed_allocation_gives_null(void **state)
{
    (void)state;
    size_t capacity;

    block_cache_trim();
    mem_fail_at(1);
    assert_null(block_alloc(64, MEGABYTE, &capacity));
    mem_fail_at(0);
}

static void churn(void *arg)
{
    (void)arg;
    for (int i = 0; i < 2000; i++) {
        size_t capacity;
        size_t bytes = (size_t)BLOCK_CACHE_SMALLEST << (i % 4);
        unsigned char *block = block_alloc(64, bytes, &capacity);
        if (block == NULL)
            return;
        block[0] = block[bytes - 1] = (unsigned char)i;
        block_free(block, capacity);
    }
}

static void threads_share_it(void **state)
{
    (void)state;
    struct thread threads[4] = {{0}};

    for (int i = 0; i < 4; i++)
        assert_int_equal(thread_start(&threads[i], "churn", churn, NULL, NULL), SKEP_OK);
    for (int i = 0; i < 4; i++)
        thread_join(&threads[i]);
    assert_true(block_cache_trim() <= BLOCK_CACHE_LIMIT_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_aligned_and_large_enough),
        cmocka_unit_test(what_is_kept_is_bounded),
        cmocka_unit_test(large_blocks_of_a_thread_go_to_its_taker),
        cmocka_unit_test(a_much_larger_block_does_not_serve_a_small_request),
        cmocka_unit_test(a_failed_allocation_gives_null),
        cmocka_unit_test(threads_share_it),
    };
    return cmocka_run_group_tests_name("block_cache", tests, NULL, NULL);
}
