/* The hash table: finding, removing, growing, walking; also without memory to grow. */
#include "unit.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash_table.h"

enum { NODES = 1000 };

struct thing {
    unsigned number;
    unsigned walked;
    struct hash_node by_number;
};

static struct thing things[NODES];
static struct hash_table table;

static int setup(void **state)
{
    (void)state;
    memset(things, 0, sizeof(things));
    return hash_table_init(&table, 0) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    mem_fail_at(0);
    hash_table_fini(&table);
    return 0;
}

static struct thing *find(unsigned number, uint64_t hash)
{
    for (struct hash_node *n = hash_table_first(&table, hash); n != NULL; n = hash_table_next(n))
        if (HASH_HOLDER(n, struct thing, by_number)->number == number)
            return HASH_HOLDER(n, struct thing, by_number);
    return NULL;
}

static void add(unsigned number, uint64_t hash)
{
    things[number].number = number;
    hash_table_add(&table, &things[number].by_number, hash);
}

static void what_was_added_is_found_until_it_is_removed(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NODES; i++)
        add(i, i * UINT64_C(0x9e3779b97f4a7c15));
    assert_int_equal(table.count, NODES);
    assert_true(table.bucket_count >= NODES);
    for (unsigned i = 0; i < NODES; i += 2)
        hash_table_remove(&table, &things[i].by_number);
    assert_int_equal(table.count, NODES / 2);
    for (unsigned i = 0; i < NODES; i++)
        assert_ptr_equal(find(i, i * UINT64_C(0x9e3779b97f4a7c15)), i % 2 ? &things[i] : NULL);
}

/* Of one hash, and of others that share its bucket. */
static void equal_hashes_are_kept_apart_from_other_hashes(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 30; i++)
        add(i, UINT64_C(7) + ((uint64_t)(i % 3) << 40));
    for (unsigned i = 0; i < 30; i++)
        assert_ptr_equal(find(i, UINT64_C(7) + ((uint64_t)(i % 3) << 40)), &things[i]);
    assert_null(find(0, UINT64_C(7) + (UINT64_C(1) << 40)));
    assert_null(hash_table_first(&table, 8));
}

static void walk(struct hash_node *node, void *arg)
{
    struct thing *thing = HASH_HOLDER(node, struct thing, by_number);

    thing->walked++;
    if (arg != NULL && thing->number % 3 == 0)
        hash_table_remove(arg, node);
}

static void a_walk_meets_every_node_once_and_may_remove_it(void **state)
{
    (void)state;
    for (unsigned i = 0; i < NODES; i++)
        add(i, i % 100);
    hash_table_each(&table, UINT64_MAX, walk, &table);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(things[i].walked, 1);
        assert_ptr_equal(find(i, i % 100), i % 3 ? &things[i] : NULL);
    }
    hash_table_each(&table, 5, walk, NULL);
    assert_int_equal(things[1].walked, 2);
    assert_int_equal(things[3].walked, 1);
}

static void without_memory_it_stays_small_and_right(void **state)
{
    (void)state;
    size_t before = table.bucket_count;

    for (unsigned i = 0; i < NODES; i++) {
        mem_fail_at(1);
        add(i, i);
    }
    mem_fail_at(0);
    assert_int_equal(table.bucket_count, before);
    for (unsigned i = 0; i < NODES; i++)
        assert_ptr_equal(find(i, i), &things[i]);
}

static void it_is_made_as_large_as_expected(void **state)
{
    (void)state;
    struct hash_table large, none = {0};

    assert_true(hash_table_init(&large, 5000));
    assert_true(large.bucket_count >= 5000);
    hash_table_fini(&large);
    hash_table_fini(&none);
    mem_fail_at(1);
    assert_false(hash_table_init(&large, 0));
    assert_null(HASH_HOLDER(NULL, struct thing, by_number));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_added_is_found_until_it_is_removed, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(equal_hashes_are_kept_apart_from_other_hashes, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_walk_meets_every_node_once_and_may_remove_it, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_memory_it_stays_small_and_right, setup, teardown),
        cmocka_unit_test_setup_teardown(it_is_made_as_large_as_expected, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
