#include "unit.h"

#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "base/mp.h"

/* Packs [u, i, f, true, "text", bin(3), {"k": 7}] and returns the length. */
static size_t pack_sample(uint8_t *out, size_t cap)
{
    msgpack_sbuffer buffer;
    msgpack_packer pk;

    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&pk, &buffer, msgpack_sbuffer_write);
    msgpack_pack_array(&pk, 7);
    msgpack_pack_uint64(&pk, UINT64_MAX);
    msgpack_pack_int64(&pk, -5);
    msgpack_pack_double(&pk, 0.5);
    msgpack_pack_true(&pk);
    assert_int_equal(mp_pack_str(&pk, "text"), 0);
    assert_int_equal(mp_pack_bin(&pk, "\0\1\2", 3), 0);
    msgpack_pack_map(&pk, 1);
    mp_pack_str(&pk, "k");
    msgpack_pack_int(&pk, 7);
    assert_true(buffer.size <= cap);
    size_t len = buffer.size;
    memcpy(out, buffer.data, len);
    msgpack_sbuffer_destroy(&buffer);
    return len;
}

static void values_of_each_type_come_back(void **state)
{
    (void)state;
    uint8_t raw[128];
    size_t len = pack_sample(raw, sizeof(raw));
    struct mp mp;
    struct skep_error err;
    const msgpack_object *items;
    const uint8_t *bin;
    size_t count, bin_len;
    uint64_t u;
    int64_t i;
    double f;
    bool flag = false;
    char text[5];
    uint8_t three[3];

    assert_int_equal(mp_parse(&mp, raw, len, "sample", &err), SKEP_OK);
    assert_true(mp_array(mp.root, &items, &count));
    assert_int_equal(count, 7);
    assert_true(mp_u64(&items[0], &u) && u == UINT64_MAX);
    assert_true(mp_i64(&items[1], &i) && i == -5);
    assert_true(mp_f64(&items[2], &f) && fabs(f - 0.5) < 1e-12);
    assert_true(mp_bool(&items[3], &flag) && flag);
    assert_true(mp_str(&items[4], text, sizeof(text)));
    assert_string_equal(text, "text");
    assert_true(mp_bin(&items[5], &bin, &bin_len) && bin_len == 3);
    assert_true(bin >= raw && bin + 3 <= raw + len); /* a view, not a copy */
    assert_true(mp_bin_exact(&items[5], three, 3));
    assert_true(mp_u64(mp_get(&items[6], "k"), &u) && u == 7);
    mp_free(&mp);
    mp_free(&mp);
    mp_free(NULL);
}

static void accessors_refuse_other_types_and_ranges(void **state)
{
    (void)state;
    uint8_t raw[128];
    size_t len = pack_sample(raw, sizeof(raw));
    struct mp mp;
    const msgpack_object *items;
    const uint8_t *bin;
    size_t count, n = 77;
    uint64_t u = 77;
    int64_t i = 77;
    double f = 77;
    bool flag = true;
    char text[5] = "none";

    assert_int_equal(mp_parse(&mp, raw, len, "sample", NULL), SKEP_OK);
    assert_true(mp_array(mp.root, &items, &count));
    assert_false(mp_u64(&items[1], &u)); /* negative */
    assert_false(mp_u64(&items[2], &u));
    assert_false(mp_u64(NULL, &u));
    assert_false(mp_i64(&items[0], &i)); /* above INT64_MAX */
    assert_false(mp_i64(NULL, &i));
    assert_false(mp_f64(&items[4], &f));
    assert_false(mp_bool(&items[0], &flag));
    assert_false(mp_str(&items[4], text, 4)); /* no room for the NUL */
    assert_false(mp_str(&items[5], text, sizeof(text)));
    assert_false(mp_bin(&items[4], &bin, &n));
    assert_false(mp_bin_exact(&items[5], (uint8_t[4]){0}, 4));
    assert_false(mp_array(&items[6], &items, &n));
    assert_null(mp_get(&items[6], "kk"));
    assert_null(mp_get(&items[0], "k"));
    assert_null(mp_get(NULL, "k"));
    assert_true(u == 77 && i == 77 && n == 77 && flag);
    assert_string_equal(text, "none");
    mp_free(&mp);
}

static void string_with_nul_is_refused(void **state)
{
    (void)state;
    const uint8_t raw[] = {0xa3, 'a', 0, 'b'};
    struct mp mp;
    char text[8];

    assert_int_equal(mp_parse(&mp, raw, sizeof(raw), "text", NULL), SKEP_OK);
    assert_false(mp_str(mp.root, text, sizeof(text)));
    mp_free(&mp);
}

static void empty_strings_and_bins_are_values(void **state)
{
    (void)state;
    const uint8_t raw[] = {0x82, 0xa0, 0xa0, 0xa1, 'b', 0xc4, 0};
    struct mp mp;
    char text[1] = {'x'};
    const uint8_t *bin = NULL;
    size_t len = 9;

    assert_int_equal(mp_parse(&mp, raw, sizeof(raw), "empty", NULL), SKEP_OK);
    assert_true(mp_str(mp_get(mp.root, ""), text, sizeof(text)));
    assert_string_equal(text, "");
    assert_true(mp_bin(mp_get(mp.root, "b"), &bin, &len));
    assert_int_equal(len, 0);
    assert_non_null(bin);
    assert_true(mp_bin_exact(mp_get(mp.root, "b"), (uint8_t *)text, 0));
    mp_free(&mp);
}

static void first_of_duplicate_keys_wins(void **state)
{
    (void)state;
    const uint8_t raw[] = {0x82, 0xa1, 'k', 1, 0xa1, 'k', 2};
    struct mp mp;
    uint64_t u;

    assert_int_equal(mp_parse(&mp, raw, sizeof(raw), "map", NULL), SKEP_OK);
    assert_true(mp_u64(mp_get(mp.root, "k"), &u));
    assert_int_equal(u, 1);
    mp_free(&mp);
}

static void truncation_at_every_byte_is_refused(void **state)
{
    (void)state;
    uint8_t raw[128];
    size_t len = pack_sample(raw, sizeof(raw));
    struct mp mp;

    assert_true(mp_check(raw, len));
    for (size_t n = 0; n < len; n++) {
        assert_false(mp_check(raw, n));
        assert_int_equal(mp_parse(&mp, raw, n, "cut", NULL), SKEP_DATA_LOSS);
    }
    assert_false(mp_check(NULL, 0));
    assert_false(mp_check(raw, len + 1)); /* a byte left over */
}

/* Counts and lengths far beyond the bytes that are there: B69. */
static void declared_sizes_beyond_the_bytes_are_refused(void **state)
{
    (void)state;
    static const uint8_t heads[][5] = {
        {0xdd, 0x00, 0x10, 0x00, 0x00}, {0xdd, 0xff, 0xff, 0xff, 0xff},
        {0xdf, 0x00, 0x10, 0x00, 0x00}, {0xdf, 0xff, 0xff, 0xff, 0xff},
        {0xdb, 0xff, 0xff, 0xff, 0xff}, {0xc6, 0xff, 0xff, 0xff, 0xff},
        {0xc9, 0xff, 0xff, 0xff, 0xff}, {0xdc, 0xff, 0xff, 0xc0, 0xc0},
    };

    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        uint8_t raw[40] = {0};
        memcpy(raw, heads[i], sizeof(heads[i]));
        assert_false(mp_check(raw, sizeof(raw)));
    }
}

/* Each of many arrays declares what the message has left: together far more than its bytes. */
static void sizes_that_only_fit_one_by_one_are_refused(void **state)
{
    (void)state;
    uint8_t raw[64] = {0};

    for (size_t i = 0; i < 12; i++) {
        raw[3 * i] = 0xdc;
        raw[3 * i + 2] = (uint8_t)(sizeof(raw) - 3 * i - 3);
    }
    assert_false(mp_check(raw, sizeof(raw)));
}

static void nesting_has_a_limit(void **state)
{
    (void)state;
    uint8_t raw[MP_MAX_DEPTH + 2];
    struct mp mp;
    uint8_t deep[4096];

    memset(raw, 0x91, sizeof(raw));
    raw[MP_MAX_DEPTH] = 0xc0;
    assert_int_equal(mp_parse(&mp, raw, MP_MAX_DEPTH + 1, "nest", NULL), SKEP_OK);
    mp_free(&mp);
    raw[MP_MAX_DEPTH] = 0x90; /* empty, but one level more */
    assert_false(mp_check(raw, MP_MAX_DEPTH + 1));
    memset(deep, 0x91, sizeof(deep));
    deep[sizeof(deep) - 1] = 0xc0;
    assert_false(mp_check(deep, sizeof(deep)));
}

/* Every tag with just its payload of zeros is one object (0xc1 is none); a byte less is not. */
static void every_tag_is_measured_as_msgpack_c_does(void **state)
{
    (void)state;
    for (unsigned tag = 0; tag < 256; tag++) {
        uint8_t raw[40] = {(uint8_t)tag};
        size_t expected = 0;
        for (size_t n = 1; n <= sizeof(raw) && expected == 0; n++) {
            msgpack_unpacked u;
            size_t offset = 0;
            msgpack_unpacked_init(&u);
            if (msgpack_unpack_next(&u, (const char *)raw, n, &offset) == MSGPACK_UNPACK_SUCCESS)
                expected = n;
            msgpack_unpacked_destroy(&u);
        }
        assert_int_equal(expected == 0, tag == 0xc1);
        for (size_t n = 0; n <= sizeof(raw); n++)
            if (mp_check(raw, n) != (expected != 0 && n == expected))
                fail_msg("tag 0x%02x, %zu bytes, expected %zu", tag, n, expected);
    }
}

static void message_names_the_thing(void **state)
{
    (void)state;
    struct mp mp;
    struct skep_error err;

    assert_int_equal(mp_parse(&mp, (const uint8_t *)"\xc1", 1, "hello of 1.2.3.4", &err),
                     SKEP_DATA_LOSS);
    assert_non_null(strstr(err.message, "hello of 1.2.3.4"));
    mp_free(&mp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_each_type_come_back),
        cmocka_unit_test(accessors_refuse_other_types_and_ranges),
        cmocka_unit_test(string_with_nul_is_refused),
        cmocka_unit_test(empty_strings_and_bins_are_values),
        cmocka_unit_test(first_of_duplicate_keys_wins),
        cmocka_unit_test(truncation_at_every_byte_is_refused),
        cmocka_unit_test(declared_sizes_beyond_the_bytes_are_refused),
        cmocka_unit_test(sizes_that_only_fit_one_by_one_are_refused),
        cmocka_unit_test(nesting_has_a_limit),
        cmocka_unit_test(every_tag_is_measured_as_msgpack_c_does),
        cmocka_unit_test(message_names_the_thing),
    };
    return cmocka_run_group_tests_name("mp", tests, NULL, NULL);
}
