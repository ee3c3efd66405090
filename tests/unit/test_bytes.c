#include "unit.h"

#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"

static void append_and_consume_keep_order(void **state)
{
    (void)state;
    struct bytes b = {0};

    assert_true(bytes_append(&b, "hello ", 6));
    assert_true(bytes_append(&b, "world", 5));
    bytes_consume(&b, 6);
    assert_int_equal(b.len, 5);
    assert_memory_equal(b.data, "world", 5);
    bytes_free(&b);
}

static void failed_growth_leaves_buffer_unchanged(void **state)
{
    (void)state;
    struct bytes b = {0};

    assert_true(bytes_append(&b, "abc", 3));
    mem_fail_at(1);
    assert_false(bytes_reserve(&b, 1 << 20));
    assert_int_equal(b.len, 3);
    assert_memory_equal(b.data, "abc", 3);
    assert_false(bytes_reserve(&b, SIZE_MAX));
    bytes_free(&b);
}

static void hex_round_trips_and_refuses_bad_text(void **state)
{
    (void)state;
    uint8_t raw[4] = {0x00, 0xff, 0x1a, 0x09};
    char text[9];
    uint8_t back[4];

    hex_encode(text, raw, sizeof(raw));
    assert_string_equal(text, "00ff1a09");
    assert_true(hex_decode(back, sizeof(back), "00FF1A09"));
    assert_memory_equal(raw, back, sizeof(raw));
    assert_false(hex_decode(back, sizeof(back), "00ff1a0"));
    assert_false(hex_decode(back, sizeof(back), "00ff1a091"));
    assert_false(hex_decode(back, sizeof(back), "00fg1a09"));
    assert_false(hex_decode(back, sizeof(back), ""));
}

static void little_endian_numbers_round_trip(void **state)
{
    (void)state;
    uint8_t raw[8];

    store_u64(raw, 0x0102030405060708u);
    assert_int_equal(raw[0], 8);
    assert_true(load_u64(raw) == 0x0102030405060708u);
    assert_int_equal(load_u32(raw), 0x05060708);
    assert_int_equal(load_u16(raw), 0x0708);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(append_and_consume_keep_order),
        cmocka_unit_test(failed_growth_leaves_buffer_unchanged),
        cmocka_unit_test(hex_round_trips_and_refuses_bad_text),
        cmocka_unit_test(little_endian_numbers_round_trip),
    };
    return cmocka_run_group_tests_name("bytes", tests, NULL, NULL);
}
