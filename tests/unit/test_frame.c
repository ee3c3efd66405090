/* Frame headers, preambles, refusals and GOAWAY: round trips, limits, and junk. */
#include "unit.h"

#include <string.h>

#include "wire/frame.h"

static skep_status decode(uint32_t length, uint8_t type, uint32_t stream, struct frame_header *out)
{
    uint8_t bytes[FRAME_HEADER_BYTES];

    frame_header_encode(bytes, length, type, stream);
    return frame_header_decode(out, bytes, NULL);
}

static void header_is_nine_little_endian_bytes(void **state)
{
    const uint8_t expected[FRAME_HEADER_BYTES] = {0x10, 0x27, 0, 0, 2, 0x04, 0x03, 0x02, 0x01};
    uint8_t bytes[FRAME_HEADER_BYTES];
    struct frame_header h;

    (void)state;
    frame_header_encode(bytes, 10000, FRAME_DATA, 0x01020304);
    assert_memory_equal(bytes, expected, sizeof(bytes));
    assert_int_equal(frame_header_decode(&h, bytes, NULL), SKEP_OK);
    assert_int_equal(h.length, 10000);
    assert_int_equal(h.type, FRAME_DATA);
    assert_int_equal(h.stream, 0x01020304);
}

/* type, least and most payload, allowed on the connection, allowed on a stream */
static const struct {
    uint8_t type;
    uint32_t min, max;
    bool connection, stream;
} rules[] = {
    {FRAME_HEADERS, 1, 65000, false, true}, {FRAME_DATA, 1, 65000, false, true},
    {FRAME_END, 0, 0, false, true},         {FRAME_CANCEL, 1, 1, false, true},
    {FRAME_PING, 8, 8, true, false},        {FRAME_PONG, 8, 8, true, false},
    {FRAME_GOAWAY, 1, 401, true, false},    {FRAME_WINDOW, 4, 4, true, true},
    {FRAME_READY, 0, 0, true, false},       {200, 0, 65000, true, true},
};

static void every_type_has_its_lengths_and_place(void **state)
{
    struct frame_header h;

    (void)state;
    for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
        uint32_t at = rules[i].stream ? 7 : 0;
        assert_int_equal(decode(rules[i].min, rules[i].type, at, &h), SKEP_OK);
        assert_int_equal(decode(rules[i].max, rules[i].type, at, &h), SKEP_OK);
        assert_int_equal(decode(rules[i].max + 1, rules[i].type, at, &h), SKEP_DATA_LOSS);
        assert_int_equal(decode(UINT32_MAX, rules[i].type, at, &h), SKEP_DATA_LOSS);
        if (rules[i].min > 0)
            assert_int_equal(decode(rules[i].min - 1, rules[i].type, at, &h), SKEP_DATA_LOSS);
        assert_int_equal(decode(rules[i].max, rules[i].type, 0, &h),
                         rules[i].connection ? SKEP_OK : SKEP_DATA_LOSS);
        assert_int_equal(decode(rules[i].max, rules[i].type, 1, &h),
                         rules[i].stream ? SKEP_OK : SKEP_DATA_LOSS);
    }
}

static void unknown_types_below_128_are_refused_and_zeroed(void **state)
{
    struct frame_header h;
    struct skep_error err;
    uint8_t bytes[FRAME_HEADER_BYTES];

    (void)state;
    for (unsigned type = 0; type < 256; type++) {
        if (type >= FRAME_HEADERS && type <= FRAME_READY)
            continue;
        memset(&h, 1, sizeof(h));
        assert_int_equal(decode(4, (uint8_t)type, 1, &h), type < 128 ? SKEP_DATA_LOSS : SKEP_OK);
        assert_int_equal(h.type, type < 128 ? 0 : type);
    }
    frame_header_encode(bytes, 65001, FRAME_DATA, 3);
    assert_int_equal(frame_header_decode(&h, bytes, &err), SKEP_DATA_LOSS);
    assert_string_equal(err.message, "frame: DATA of 65001 bytes, expected 1 to 65000");
}

static void preamble_round_trips(void **state)
{
    struct preamble in = {.major = 3, .minor = 9, .mode = PREAMBLE_AESGCM, .psk = true}, out;
    const uint8_t expected[PREAMBLE_BYTES] = {'S', 'K', 'E', 'P', 3, 9, 2, 1};
    uint8_t bytes[PREAMBLE_BYTES];

    (void)state;
    preamble_encode(bytes, &in);
    assert_memory_equal(bytes, expected, sizeof(bytes));
    assert_true(preamble_decode(&out, bytes));
    assert_int_equal(out.major, 3);
    assert_int_equal(out.minor, 9);
    assert_int_equal(out.mode, PREAMBLE_AESGCM);
    assert_true(out.psk);
    bytes[7] = 0xfe; /* flags of later minors */
    assert_true(preamble_decode(&out, bytes));
    assert_false(out.psk);
    for (size_t i = 0; i < 4; i++) {
        preamble_encode(bytes, &in);
        bytes[i] ^= 1;
        assert_false(preamble_decode(&out, bytes));
        assert_true(preamble_may_start(bytes, i));
        assert_false(preamble_may_start(bytes, i + 1));
    }
}

static void refusal_round_trips_and_waits_for_its_end(void **state)
{
    struct preamble spoken = {.major = 1, .minor = 2, .mode = PREAMBLE_CHACHAPOLY};
    uint8_t bytes[REFUSAL_MAX_BYTES];
    struct refusal r;

    (void)state;
    size_t n = refusal_encode(bytes, &spoken, SKEP_FAILED_PRECONDITION, "modes differ");
    assert_int_equal(n, REFUSAL_HEADER_BYTES + 12);
    for (size_t len = 0; len < n; len++)
        assert_int_equal(refusal_decode(&r, bytes, len), 0);
    assert_int_equal(refusal_decode(&r, bytes, n), n);
    assert_int_equal(r.spoken.major, 1);
    assert_int_equal(r.spoken.minor, 2);
    assert_int_equal(r.status, SKEP_FAILED_PRECONDITION);
    assert_string_equal(r.text, "modes differ");
    bytes[6] = 0; /* a refusal cannot be a success */
    assert_int_equal(refusal_decode(&r, bytes, n), n);
    assert_int_equal(r.status, SKEP_INTERNAL);
}

static void long_texts_are_cut_and_control_characters_replaced(void **state)
{
    char text[1000];
    uint8_t bytes[1 + FRAME_MAX_TEXT];
    struct goaway g;

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[999] = '\0';
    size_t n = goaway_encode(bytes, SKEP_UNAVAILABLE, text);
    assert_int_equal(n, 1 + FRAME_MAX_TEXT);
    assert_true(goaway_decode(&g, bytes, n));
    assert_int_equal(strlen(g.text), FRAME_MAX_TEXT);
    assert_false(goaway_decode(&g, bytes, 0));
    n = goaway_encode(bytes, SKEP_OK, "a\nb\x1b[31m\xc2\x9b\xff\xc3\xa9");
    assert_true(goaway_decode(&g, bytes, n));
    assert_string_equal(g.text, "a?b?[31m??\xc3\xa9");
}

static void text_is_never_cut_inside_a_character(void **state)
{
    char out[5];

    (void)state;
    text_from_wire(out, sizeof(out), (const uint8_t *)"abc\xc3\xa9", 5);
    assert_string_equal(out, "abc");
    text_from_wire(out, 1, (const uint8_t *)"abc", 3);
    assert_string_equal(out, "");
}

static void foreign_status_numbers_become_internal(void **state)
{
    (void)state;
    assert_int_equal(status_from_wire(0), SKEP_OK);
    assert_int_equal(status_from_wire(16), SKEP_UNAUTHENTICATED);
    assert_int_equal(status_from_wire(2), SKEP_INTERNAL);
    assert_int_equal(status_from_wire(17), SKEP_INTERNAL);
    assert_int_equal(status_from_wire(UINT64_MAX), SKEP_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_is_nine_little_endian_bytes),
        cmocka_unit_test(every_type_has_its_lengths_and_place),
        cmocka_unit_test(unknown_types_below_128_are_refused_and_zeroed),
        cmocka_unit_test(preamble_round_trips),
        cmocka_unit_test(refusal_round_trips_and_waits_for_its_end),
        cmocka_unit_test(long_texts_are_cut_and_control_characters_replaced),
        cmocka_unit_test(text_is_never_cut_inside_a_character),
        cmocka_unit_test(foreign_status_numbers_become_internal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
