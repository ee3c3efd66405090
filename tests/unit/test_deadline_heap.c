#include "unit.h"

#include "base/alloc.h"
#include "net/deadline_heap.h"

enum { ENTRIES = 500 };

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void entries_come_out_in_order_whatever_was_removed(void **state)
{
    (void)state;
    struct deadline_heap heap = {0};
    static struct deadline_entry entries[ENTRIES];
    uint32_t seed = 77;
    size_t left = ENTRIES;
    uint64_t last = 0;

    print_message("seed %u\n", seed);
    for (size_t i = 0; i < ENTRIES; i++) {
        entries[i] = (struct deadline_entry){.deadline_us = next_random(&seed) % 1000};
        assert_true(deadline_heap_add(&heap, &entries[i]));
    }
    for (size_t i = 0; i < ENTRIES; i += 3) {
        deadline_heap_remove(&heap, &entries[i]);
        deadline_heap_remove(&heap, &entries[i]); /* not in it: nothing happens */
        left--;
    }
    for (struct deadline_entry *e; (e = deadline_heap_first(&heap)) != NULL; left--) {
        assert_true(e->deadline_us >= last);
        assert_true((e - entries) % 3 != 0);
        last = e->deadline_us;
        deadline_heap_remove(&heap, e);
        assert_int_equal(e->index, 0);
    }
    assert_int_equal(left, 0);
    deadline_heap_fini(&heap);
}

static void short_memory_is_told_and_harmless(void **state)
{
    (void)state;
    struct deadline_heap heap = {0};
    struct deadline_entry one = {.deadline_us = 5};

    mem_fail_at(1);
    assert_false(deadline_heap_add(&heap, &one));
    mem_fail_at(0);
    assert_null(deadline_heap_first(&heap));
    assert_true(deadline_heap_add(&heap, &one));
    assert_ptr_equal(deadline_heap_first(&heap), &one);
    deadline_heap_fini(&heap);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_come_out_in_order_whatever_was_removed),
        cmocka_unit_test(short_memory_is_told_and_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
