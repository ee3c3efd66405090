/* Every tokenizer, text, decoding and chat of $SKEP_GOLDEN_DIR/lm/tokenizers: all of them equal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/bytes.h"
#include "golden_dir.h"
#include "model/tokenizer/tokenizer.h"

enum { MAX_KINDS = 64 };

static const char *place; /* for messages: which file and which case */
static size_t wrong;

static void complain(const char *what, size_t i)
{
    fprintf(stderr, "%s: %s %zu differs\n", place, what, i);
    wrong++;
}

static bool ids_equal(const struct token_ids *got, size_t from, const json_t *expected)
{
    if (got->count - from != json_array_size(expected))
        return false;
    for (size_t i = from; i < got->count; i++)
        if ((json_int_t)got->ids[i] != json_integer_value(json_array_get(expected, i - from)))
            return false;
    return true;
}

static bool text_equal(const struct bytes *got, const json_t *expected)
{
    return got->len == json_string_length(expected) &&
           (got->len == 0 || memcmp(got->data, json_string_value(expected), got->len) == 0);
}

static void encode(const struct tokenizer *t, const json_t *text, bool special,
                   struct token_ids *out)
{
    struct skep_error err;

    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), special, out,
                         &err) != SKEP_OK)
        fail_msg("%s: %s", place, err.message);
}

static bool tokens_equal(const struct tokenizer *t, const json_t *ids, const json_t *tokens)
{
    bool equal = json_array_size(ids) == json_array_size(tokens);

    for (size_t i = 0; equal && i < json_array_size(ids); i++) {
        const json_t *expected = json_array_get(tokens, i);
        size_t len = 0;
        uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i));
        const char *text = tokenizer_token(t, id, &len);
        equal = text != NULL && len == json_string_length(expected) &&
                memcmp(text, json_string_value(expected), len) == 0;
    }
    return equal;
}

static void check_encodings(const struct tokenizer *t, const json_t *golden)
{
    const json_t *prepended = json_object_get(golden, "prepended_by_post_processor");
    const json_t *list = json_object_get(golden, "encodings");
    struct skep_error err;

    assert_true(json_array_size(list) > 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        const json_t *text = json_object_get(c, "text");
        const json_t *decoded = json_object_get(c, "decoded");
        struct token_ids plain = {0}, special = {0};
        struct bytes back = {0};
        encode(t, text, false, &plain);
        encode(t, text, true, &special);
        if (!ids_equal(&plain, 0, json_object_get(c, "ids")))
            complain("encoding", i);
        if (!ids_equal(&special, json_array_size(prepended), json_object_get(c, "ids")))
            complain("encoding with special tokens", i);
        special.count = json_array_size(prepended);
        if (!ids_equal(&special, 0, prepended))
            complain("prefix of encoding", i);
        if (!tokens_equal(t, json_object_get(c, "ids"), json_object_get(c, "tokens")))
            complain("tokens of encoding", i);
        if (tokenizer_decode(t, plain.ids, plain.count, false, &back, &err) != SKEP_OK)
            fail_msg("%s: %s", place, err.message);
        if (!text_equal(&back, decoded != NULL ? decoded : text))
            complain("text back from encoding", i);
        bytes_free(&back);
        token_ids_free(&plain);
        token_ids_free(&special);
    }
}

static bool bytes_equal(const struct tokenizer *t, uint32_t id, const char *hex)
{
    struct bytes got = {0};
    char text[1024];
    bool equal = tokenizer_bytes(t, id, &got, NULL) == SKEP_OK && 2 * got.len < sizeof(text);

    if (equal) {
        hex_encode(text, got.data, got.len);
        equal = strcmp(text, hex) == 0;
    }
    bytes_free(&got);
    return equal;
}

/* Token by token: what has been given out is well-formed after each of them. */
static bool streamed_equal(const struct tokenizer *t, const json_t *ids, const json_t *text)
{
    struct utf8_stream stream = {0};
    struct bytes out = {0};
    bool equal = true;

    for (size_t i = 0; equal && i < json_array_size(ids); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i));
        equal = tokenizer_decode_next(t, id, false, &stream, &out, NULL) == SKEP_OK;
        json_t *whole = json_stringn((const char *)out.data, out.len); /* NULL if no UTF-8 */
        equal = equal && (out.len == 0 || whole != NULL);
        json_decref(whole);
    }
    equal = equal && utf8_stream_end(&stream, &out) && text_equal(&out, text);
    bytes_free(&out);
    return equal;
}

static void check_decodings(const struct tokenizer *t, const json_t *golden)
{
    const json_t *list = json_object_get(golden, "decodings");

    assert_true(json_array_size(list) > 0);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        const json_t *ids = json_object_get(c, "ids");
        const json_t *hex = json_object_get(c, "bytes_hex");
        const json_t *text = json_object_get(c, "text");
        for (size_t j = 0; j < json_array_size(ids); j++)
            if (!bytes_equal(t, (uint32_t)json_integer_value(json_array_get(ids, j)),
                             json_string_value(json_array_get(hex, j))))
                complain("bytes of decoding", i);
        if (text != NULL && !streamed_equal(t, ids, text))
            complain("decoding", i);
    }
}

static void check_chats(const struct tokenizer *t, const json_t *golden)
{
    const json_t *list = json_object_get(golden, "chats");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        struct token_ids ids = {0};
        encode(t, json_object_get(c, "text"), false, &ids);
        if (!ids_equal(&ids, 0, json_object_get(c, "ids")))
            complain("ids of chat", i);
        token_ids_free(&ids);
    }
}

static void check_file(const char *folder, const char *name, const json_t *golden)
{
    char path[3 * GOLDEN_PATH_BYTES];
    struct tokenizer *t;
    struct skep_error err;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    place = path;
    if (tokenizer_load(path, &t, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    check_encodings(t, golden);
    check_decodings(t, golden);
    check_chats(t, golden);
    tokenizer_free(t);
}

static int is_tokenizer_file(const struct dirent *entry)
{
    const char *end = strrchr(entry->d_name, '.');

    return strncmp(entry->d_name, "tokenizer", 9) == 0 && end != NULL &&
           strcmp(end, ".json") == 0 && strcmp(entry->d_name, "tokenizer_config.json") != 0;
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void tokenizers_agree_with_golden_data(void **state)
{
    char root[GOLDEN_PATH_BYTES];
    struct dirent **kinds, **files;

    (void)state;
    size_t n = golden_list(golden_path("lm/tokenizers", root), is_visible, MAX_KINDS, &kinds);
    for (size_t i = 0; i < n; i++) {
        char folder[2 * GOLDEN_PATH_BYTES], path[2 * GOLDEN_PATH_BYTES + 32];
        json_error_t reason;
        snprintf(folder, sizeof(folder), "%s/%s", root, kinds[i]->d_name);
        snprintf(path, sizeof(path), "%s/encodings.json", folder);
        json_t *golden = json_load_file(path, JSON_ALLOW_NUL, &reason);
        if (golden == NULL)
            fail_msg("%s: %s", path, reason.text);
        size_t count = golden_list(folder, is_tokenizer_file, MAX_KINDS, &files);
        for (size_t j = 0; j < count; j++) {
            check_file(folder, files[j]->d_name, golden);
            free(files[j]);
        }
        free(files);
        json_decref(golden);
        free(kinds[i]);
    }
    free(kinds);
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tokenizers_agree_with_golden_data)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
