/* The stream of the tracker's protocol: the magic, lengths, and messages however they are cut. */
#include "unit.h"

#include <string.h>

#include "base/alloc.h"
#include "wire/tracker_frame.h"

enum { LIMIT = 1 << 20 };

static void append_frame(struct bytes *stream, const char *json)
{
    assert_true(tracker_write_message(stream, json, strlen(json)));
}

/* Feeds a stream in pieces of `step` bytes; writes what came out, one message a line. */
static enum tracker_input_result feed(const struct bytes *stream, size_t step, struct bytes *lines)
{
    struct tracker_input in = {0};
    struct tracker_text message;
    struct skep_error err;
    enum tracker_input_result result = TRACKER_INPUT_MORE;

    lines->len = 0;
    for (size_t at = 0; at < stream->len && result != TRACKER_INPUT_BAD; at += step) {
        size_t n = stream->len - at < step ? stream->len - at : step;
        assert_true(tracker_input_push(&in, stream->data + at, n));
        while ((result = tracker_input_next(&in, LIMIT, &message, &err)) != TRACKER_INPUT_MORE) {
            if (result == TRACKER_INPUT_BAD)
                break;
            if (result == TRACKER_INPUT_GREETING)
                assert_true(bytes_append(lines, "magic", 5));
            else
                assert_true(bytes_append(lines, message.data, message.len));
            assert_true(bytes_append(lines, "\n", 1));
        }
        assert_true(tracker_input_settle(&in));
    }
    tracker_input_free(&in);
    return result;
}

static void messages_come_out_however_they_were_cut(void **state)
{
    (void)state;
    struct bytes stream = {0}, lines = {0};
    static const char expected[] = "magic\n[1]\n[6]\n[3, \"k\", [1, \"m\"], null]\n[7]\n";

    assert_true(tracker_write_magic(&stream));
    append_frame(&stream, "[1]");
    append_frame(&stream, "[6]");
    append_frame(&stream, "[3, \"k\", [1, \"m\"], null]");
    append_frame(&stream, "[7]");
    for (size_t step = 1; step <= stream.len; step++) {
        assert_int_equal(feed(&stream, step, &lines), TRACKER_INPUT_MORE);
        assert_int_equal(lines.len, sizeof(expected) - 1);
        assert_memory_equal(lines.data, expected, lines.len);
    }
    bytes_free(&stream);
    bytes_free(&lines);
}

static void the_magic_is_these_four_bytes(void **state)
{
    (void)state;
    struct bytes out = {0};
    static const uint8_t expected[] = {0x71, 0xf2, 0x02, 0x00};

    assert_true(tracker_write_magic(&out));
    assert_int_equal(out.len, 4);
    assert_memory_equal(out.data, expected, 4);
    bytes_free(&out);
}

static void another_magic_is_bad(void **state)
{
    (void)state;
    struct bytes lines = {0};
    struct bytes stream = {.data = (uint8_t *)(uintptr_t) "GET / HTTP/1.1\r\n\r\n", .len = 18};

    assert_int_equal(feed(&stream, 18, &lines), TRACKER_INPUT_BAD);
    assert_int_equal(feed(&stream, 1, &lines), TRACKER_INPUT_BAD);
    stream.len = 3; /* too short to tell */
    assert_int_equal(feed(&stream, 3, &lines), TRACKER_INPUT_MORE);
    bytes_free(&lines);
}

static void lengths_outside_the_limits_are_bad(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 0xffffffff, (1 << 20) + 1, 0x7fffffff, 0x80000000};
    struct bytes stream = {0}, lines = {0};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t prefix[4];
        stream.len = 0;
        assert_true(tracker_write_magic(&stream));
        store_u32(prefix, bad[i]);
        assert_true(bytes_append(&stream, prefix, 4));
        assert_int_equal(feed(&stream, 8, &lines), TRACKER_INPUT_BAD);
        assert_int_equal(feed(&stream, 1, &lines), TRACKER_INPUT_BAD);
    }
    bytes_free(&stream);
    bytes_free(&lines);
}

static void a_message_of_exactly_the_limit_comes_out(void **state)
{
    (void)state;
    char *text = mem_alloc(LIMIT);
    struct bytes stream = {0}, lines = {0};

    assert_non_null(text);
    memset(text, ' ', LIMIT);
    assert_true(tracker_write_magic(&stream));
    assert_true(tracker_write_message(&stream, text, LIMIT));
    assert_int_equal(feed(&stream, 65536, &lines), TRACKER_INPUT_MORE);
    assert_int_equal(lines.len, 6 + LIMIT + 1);
    mem_free(text);
    bytes_free(&stream);
    bytes_free(&lines);
}

static void a_beginning_differs_from_silence(void **state)
{
    (void)state;
    struct tracker_input in = {0};
    struct tracker_text message;
    struct skep_error err;
    static const uint8_t bytes[] = {0x71, 0xf2, 0x02, 0x00, 3, 0};

    assert_true(tracker_input_is_partial(&in)); /* the magic is awaited */
    assert_true(tracker_input_push(&in, bytes, 4));
    assert_int_equal(tracker_input_next(&in, 100, &message, &err), TRACKER_INPUT_GREETING);
    assert_int_equal(tracker_input_next(&in, 100, &message, &err), TRACKER_INPUT_MORE);
    assert_true(tracker_input_settle(&in));
    assert_false(tracker_input_is_partial(&in));
    assert_true(tracker_input_push(&in, bytes + 4, 2));
    assert_int_equal(tracker_input_next(&in, 100, &message, &err), TRACKER_INPUT_MORE);
    assert_true(tracker_input_settle(&in));
    assert_true(tracker_input_is_partial(&in));
    tracker_input_free(&in);
}

static void a_failed_message_leaves_the_buffer_as_it_was(void **state)
{
    (void)state;
    struct bytes out = {0};
    size_t start;

    append_frame(&out, "[1]");
    assert_true(tracker_message_begin(&out, &start));
    assert_true(bytes_append(&out, "half", 4));
    assert_false(tracker_message_finish(&out, start, false));
    assert_int_equal(out.len, 4 + 3);
    bytes_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_come_out_however_they_were_cut),
        cmocka_unit_test(the_magic_is_these_four_bytes),
        cmocka_unit_test(another_magic_is_bad),
        cmocka_unit_test(lengths_outside_the_limits_are_bad),
        cmocka_unit_test(a_message_of_exactly_the_limit_comes_out),
        cmocka_unit_test(a_beginning_differs_from_silence),
        cmocka_unit_test(a_failed_message_leaves_the_buffer_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
