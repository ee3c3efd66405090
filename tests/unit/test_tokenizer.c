/* Tokenizer files that are refused, with their place; text from strangers; short memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/tokenizer.h"

enum { FILE_BYTES = 16384 };

/* All 256 bytes, "ab" (256) and the merge that makes it, with a part of the file replaced. */
static const char *file_with(const char *before, const char *after, char out[static FILE_BYTES])
{
    static const char tail[] =
        "\"ab\":256,\"abab\":258},\"merges\":[\"a b\",[\"ab\",\"ab\"]]},"
        "\"normalizer\":{\"type\":\"NFC\"},"
        "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
        "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s+\"},\"behavior\":\"Isolated\"},"
        "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":false}]},"
        "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
        "\"added_tokens\":[{\"id\":257,\"content\":\"<s>\",\"special\":true,"
        "\"normalized\":false}]}";
    char whole[FILE_BYTES];
    size_t n = (size_t)snprintf(whole, sizeof(whole),
                                "{\"model\":{\"type\":\"BPE\",\"dropout\":null,\"vocab\":{");

    for (unsigned byte = 0; byte < 256; byte++) {
        char text[2];
        size_t len = byte_alphabet_encode((uint8_t)byte, text);
        bool escape = byte == '"' || byte == '\\';
        n += (size_t)snprintf(whole + n, sizeof(whole) - n, "\"%s%.*s\":%u,", escape ? "\\" : "",
                              (int)len, text, byte);
    }
    snprintf(whole + n, sizeof(whole) - n, "%s", tail);
    const char *found = strstr(whole, before);
    assert_non_null(found);
    snprintf(out, FILE_BYTES, "%.*s%s%s", (int)(found - whole), whole, after,
             found + strlen(before));
    return out;
}

static struct tokenizer *make(void)
{
    char text[FILE_BYTES];
    struct tokenizer *t;
    struct skep_error err;

    file_with("BPE", "BPE", text);
    if (tokenizer_parse(text, strlen(text), &t, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return t;
}

static void what_is_not_known_is_refused_by_name(void **state)
{
    static const struct {
        const char *before, *after, *message;
    } cases[] = {
        {"\"BPE\"", "\"Unigram\"", "model: type \"Unigram\" is not supported; known: BPE"},
        {"\"NFC\"", "\"Lowercase\"", "normalizer: type \"Lowercase\" is not supported"},
        {"\"Split\"", "\"Digits\"", "pre_tokenizer: type \"Digits\" is not supported"},
        {"Isolated", "Removed", "pre_tokenizer: Split.behavior: expected \"Isolated\""},
        {"\\\\s+", "(", "pre_tokenizer: split pattern, character 1: "},
        {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"WordPiece\"}",
         "decoder: type \"WordPiece\" is not supported; known: ByteLevel"},
        {"\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}",
         "post_processor: type \"BertProcessing\" is not supported"},
        {"\"dropout\":null", "\"dropout\":0.5", "model.dropout: expected null"},
        {"\"dropout\":null", "\"byte_fallback\":true", "model.byte_fallback: expected false"},
        {"\"a b\"", "\"a\"", "model.merges: merge 0: expected two parts"},
        {"\"a b\"", "\"a xyz\"", "model.merges: merge 0: \"xyz\" is not in the vocabulary"},
        {"\"a b\"", "\"b a\"", "model.merges: merge 0: \"ba\" is not in the vocabulary"},
        {"\"ab\":256", "\"ab\":255", "model.vocab, \"ab\": expected an id below"},
        {"\"ab\":256", "\"ab\":-1", "model.vocab, \"ab\": expected an id below"},
        {"\"ab\":256", "\"ab\":99999999", "model.vocab, \"ab\": expected an id below"},
        {"\"content\":\"<s>\"", "\"content\":\"\"", "added_tokens: expected content in each"},
        {"\"special\":true", "\"special\":3", "added_tokens.special: expected true or false"},
        {"\"model\":{", "\"model\":{{", "line 1: "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[FILE_BYTES];
        struct tokenizer *t = (struct tokenizer *)1;
        struct skep_error err;
        file_with(cases[i].before, cases[i].after, text);
        assert_int_equal(tokenizer_parse(text, strlen(text), &t, &err), SKEP_INVALID_ARGUMENT);
        assert_null(t);
        if (strncmp(err.message, cases[i].message, strlen(cases[i].message)) != 0)
            fail_msg("\"%s\", expected \"%s\"", err.message, cases[i].message);
    }
}

static void text_that_is_not_utf8_is_refused_with_its_place(void **state)
{
    struct tokenizer *t = make();
    struct token_ids ids = {0};
    struct skep_error err;

    (void)state;
    assert_int_equal(tokenizer_encode(t, "ab\xff", 3, false, &ids, &err), SKEP_INVALID_ARGUMENT);
    assert_string_equal(err.message, "the text is not UTF-8 at byte 2: 0xff");
    assert_int_equal(ids.count, 0);
    token_ids_free(&ids);
    tokenizer_free(t);
}

static void merges_go_by_rank_in_a_long_word(void **state)
{
    enum { PAIRS = 100001 };
    struct tokenizer *t = make();
    struct token_ids ids = {0};
    char *text = malloc(2 * PAIRS);

    (void)state;
    for (size_t i = 0; i < PAIRS; i++)
        memcpy(text + 2 * i, "ab", 2);
    assert_int_equal(tokenizer_encode(t, text, 2 * PAIRS, false, &ids, NULL), SKEP_OK);
    assert_int_equal(ids.count, PAIRS / 2 + 1); /* "abab" from the left, one "ab" is left over */
    for (size_t i = 0; i + 1 < ids.count; i++)
        assert_int_equal(ids.ids[i], 258);
    assert_int_equal(ids.ids[ids.count - 1], 256);
    free(text);
    token_ids_free(&ids);
    tokenizer_free(t);
}

static void special_tokens_have_no_text_where_they_are_skipped(void **state)
{
    static const uint32_t ids[] = {257, 256, 257};
    struct tokenizer *t = make();
    struct bytes out = {0};

    (void)state;
    assert_int_equal(tokenizer_decode(t, ids, 3, true, &out, NULL), SKEP_OK);
    assert_int_equal(out.len, 2);
    assert_memory_equal(out.data, "ab", 2);
    assert_int_equal(tokenizer_decode(t, (const uint32_t[]){259}, 1, true, &out, NULL),
                     SKEP_INVALID_ARGUMENT);
    assert_int_equal(out.len, 2);
    bytes_free(&out);
    tokenizer_free(t);
}

/* Bytes as they come, one by one: what comes out, joined, with the end. */
static void broken_characters_are_replaced_one_maximal_part_at_a_time(void **state)
{
#define BAD "\xef\xbf\xbd"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"a\xe2\x82\xac z", "a\xe2\x82\xac z"},
        {"\xe2\x82", BAD},
        {"\xe2\x82x", BAD "x"},
        {"\xf0\x9f\x92\xe2\x82\xac", BAD "\xe2\x82\xac"},
        {"\xe0\x80\x80", BAD BAD BAD},
        {"\xed\xa0\x80", BAD BAD BAD},
        {"\xf4\x90\x80\x80", BAD BAD BAD BAD},
        {"\xc0\xaf\xff", BAD BAD BAD},
        {"\xf1\x80\x80\xe1\x80\xc2", BAD BAD BAD},
    };
#undef BAD

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct utf8_stream s = {0};
        struct bytes out = {0};
        for (const char *p = cases[i].in; *p != '\0'; p++)
            assert_true(utf8_stream_push(&s, p, 1, &out));
        assert_true(utf8_stream_end(&s, &out));
        assert_int_equal(out.len, strlen(cases[i].out));
        assert_memory_equal(out.data, cases[i].out, out.len);
        bytes_free(&out);
    }
}

static void every_failed_allocation_is_an_error_value(void **state)
{
    char text[FILE_BYTES];
    long nth = 0;
    bool failed;

    (void)state;
    file_with("BPE", "BPE", text);
    do {
        struct tokenizer *t = NULL;
        struct token_ids ids = {0};
        struct bytes out = {0};
        struct skep_error err;
        mem_fail_at(++nth);
        skep_status rc = tokenizer_parse(text, strlen(text), &t, &err);
        if (rc == SKEP_OK)
            rc = tokenizer_encode(t, "abab <s>\xe2\x82\xac", 11, true, &ids, &err);
        if (rc == SKEP_OK)
            rc = tokenizer_decode(t, ids.ids, ids.count, false, &out, &err);
        failed = !mem_fail_pending();
        mem_fail_at(0);
        if (failed && rc != SKEP_OK)
            assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
        else
            assert_int_equal(rc, SKEP_OK);
        bytes_free(&out);
        token_ids_free(&ids);
        tokenizer_free(t);
    } while (failed);
    assert_true(nth > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_place),
        cmocka_unit_test(merges_go_by_rank_in_a_long_word),
        cmocka_unit_test(special_tokens_have_no_text_where_they_are_skipped),
        cmocka_unit_test(broken_characters_are_replaced_one_maximal_part_at_a_time),
        cmocka_unit_test(every_failed_allocation_is_an_error_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
