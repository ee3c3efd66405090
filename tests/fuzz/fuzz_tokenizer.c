/* A file and a text: up to the first NUL byte the file, the text behind it. What is accepted must
 * encode any UTF-8 or say why not, and decode its own ids to UTF-8. Where the file is refused, the
 * text goes through the stream of characters all the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/text.h"
#include "model/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct tokenizer *t, const char *text, size_t len)
{
    struct token_ids ids = {0};
    struct bytes out = {0};
    struct skep_error err;
    skep_status rc = tokenizer_encode(t, text, len, true, &ids, &err);

    if (rc != SKEP_OK && (err.message[0] == '\0' || ids.count > 0))
        abort();
    if (rc == SKEP_OK && (tokenizer_decode(t, ids.ids, ids.count, false, &out, &err) != SKEP_OK ||
                          !text_is_utf8((const char *)out.data, out.len)))
        abort();
    bytes_free(&out);
    token_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    size_t file_len = nul != NULL ? (size_t)(nul - data) : size;
    const char *text = nul != NULL ? (const char *)nul + 1 : "";
    size_t text_len = nul != NULL ? size - file_len - 1 : 0;
    struct utf8_stream stream = {0};
    struct bytes out = {0};
    struct tokenizer *t;
    struct skep_error err;

    if (tokenizer_parse(data, file_len, &t, &err) == SKEP_OK)
        use(t, text, text_len);
    else if (t != NULL || err.message[0] == '\0')
        abort();
    tokenizer_free(t);
    if (!utf8_stream_push(&stream, text, text_len, &out) ||
        !text_is_utf8((const char *)out.data, out.len))
        abort();
    bytes_free(&out);
    return 0;
}
