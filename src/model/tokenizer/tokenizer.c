/* Text to ids: added tokens, normalizer, added tokens of normalized text, words, merges. */
#include "model/tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/text.h"
#include "model/tokenizer/byte_alphabet.h"
#include "model/tokenizer/tokenizer_internal.h"

void tokenizer_free(struct tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    for (size_t i = 0; i < tokenizer->stage_count; i++)
        splitter_free(tokenizer->stages[i].splitter);
    added_tokens_fini(&tokenizer->added);
    bpe_fini(&tokenizer->bpe);
    token_ids_free(&tokenizer->prefix);
    token_ids_free(&tokenizer->suffix);
    mem_free(tokenizer->tokens);
    mem_free(tokenizer);
}

uint32_t tokenizer_size(const struct tokenizer *tokenizer)
{
    return tokenizer->size;
}

const char *tokenizer_token(const struct tokenizer *tokenizer, uint32_t id, size_t *len)
{
    if (id >= tokenizer->size || tokenizer->tokens[id].text == NULL)
        return NULL;
    *len = tokenizer->tokens[id].len;
    return tokenizer->tokens[id].text;
}

uint32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len)
{
    for (size_t i = 0; i < tokenizer->added.count; i++) {
        const struct added_token *t = &tokenizer->added.token[i];
        if (t->len == len && memcmp(t->text, text, len) == 0)
            return t->id;
    }
    return bpe_find(&tokenizer->bpe, text, len);
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->size && tokenizer->tokens[id].special;
}

skep_status tokenizer_nfc(const char *text, size_t len, struct bytes *out, struct skep_error *err)
{
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)len,
                                      &mapped, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    skep_status rc = SKEP_OK;

    if (n == UTF8PROC_ERROR_NOMEM)
        rc = error_no_memory(err, "normalizing a text", len);
    else if (n < 0)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "normalizing a text of %zu bytes: %s", len,
                       utf8proc_errmsg(n));
    else if (!bytes_append(out, mapped, (size_t)n))
        rc = error_no_memory(err, "normalizing a text", (size_t)n);
    free(mapped); /* utf8proc allocates with malloc() */
    return rc;
}

/* ---- encoding ---- */

struct encoding {
    const struct tokenizer *tokenizer;
    struct token_ids *out;
    size_t stage; /* the next one, for words on their way */
};

/* Puts a word through the stages that are left, then through the merges. */
static skep_status encode_word(void *arg, const char *text, size_t len, struct skep_error *err)
{
    const struct encoding *given = arg;
    const struct tokenizer *tokenizer = given->tokenizer;
    struct encoding next = {tokenizer, given->out, given->stage + 1};
    const struct tokenizer_stage *stage = &tokenizer->stages[given->stage];
    struct bytes spaced = {0};
    skep_status rc;

    if (given->stage == tokenizer->stage_count)
        return bpe_encode(&tokenizer->bpe, text, len, given->out, err);
    if (stage->add_prefix_space && text[0] != ' ') {
        if (!bytes_append(&spaced, " ", 1) || !bytes_append(&spaced, text, len)) {
            bytes_free(&spaced);
            return error_no_memory(err, "a word", len);
        }
        text = (const char *)spaced.data;
        len = spaced.len;
    }
    if (stage->splitter != NULL)
        rc = splitter_run(stage->splitter, text, len, encode_word, &next, err);
    else
        rc = encode_word(&next, text, len, err);
    bytes_free(&spaced);
    return rc;
}

static skep_status append_id(const struct encoding *e, uint32_t id, struct skep_error *err)
{
    return token_ids_append(e->out, id) ? SKEP_OK : error_no_memory(err, "token ids", sizeof(id));
}

static skep_status encode_normalized(void *arg, const struct added_token *token, const char *text,
                                     size_t len, struct skep_error *err)
{
    return token != NULL ? append_id(arg, token->id, err) : encode_word(arg, text, len, err);
}

static skep_status encode_raw(void *arg, const struct added_token *token, const char *text,
                              size_t len, struct skep_error *err)
{
    const struct encoding *e = arg;
    struct bytes normal = {0};
    skep_status rc = SKEP_OK;

    if (token != NULL)
        return append_id(e, token->id, err);
    if (e->tokenizer->nfc) {
        rc = tokenizer_nfc(text, len, &normal, err);
        text = (const char *)normal.data;
        len = normal.len;
    }
    if (rc == SKEP_OK)
        rc = added_tokens_run(&e->tokenizer->added, true, text, len, encode_normalized, arg, err);
    bytes_free(&normal);
    return rc;
}

static skep_status append_all(const struct encoding *e, const struct token_ids *ids,
                              struct skep_error *err)
{
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < ids->count && rc == SKEP_OK; i++)
        rc = append_id(e, ids->ids[i], err);
    return rc;
}

static skep_status check_utf8(const char *text, size_t len, struct skep_error *err)
{
    size_t at = 0;

    while (at < len) {
        size_t n = text_utf8_length(text + at, len - at);
        if (n == 0)
            return error_set(err, SKEP_INVALID_ARGUMENT,
                             "the text is not UTF-8 at byte %zu: 0x%02x", at, (uint8_t)text[at]);
        at += n;
    }
    return SKEP_OK;
}

skep_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len,
                             bool add_special, struct token_ids *out, struct skep_error *err)
{
    struct encoding e = {tokenizer, out, 0};
    size_t before = out->count;
    skep_status rc = check_utf8(text, len, err);

    if (rc == SKEP_OK && add_special)
        rc = append_all(&e, &tokenizer->prefix, err);
    if (rc == SKEP_OK)
        rc = added_tokens_run(&tokenizer->added, false, text, len, encode_raw, &e, err);
    if (rc == SKEP_OK && add_special)
        rc = append_all(&e, &tokenizer->suffix, err);
    if (rc != SKEP_OK)
        out->count = before;
    return rc;
}

/* ---- decoding ---- */

skep_status tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t id, struct bytes *out,
                            struct skep_error *err)
{
    size_t len;
    const char *text = tokenizer_token(tokenizer, id, &len);

    if (text == NULL)
        return error_set(err, SKEP_INVALID_ARGUMENT, "token id %u: the tokenizer has no such token",
                         id);
    return byte_alphabet_decode(text, len, out) ? SKEP_OK : error_no_memory(err, "a token", len);
}

skep_status tokenizer_decode_next(const struct tokenizer *tokenizer, uint32_t id, bool skip_special,
                                  struct utf8_stream *stream, struct bytes *out,
                                  struct skep_error *err)
{
    struct bytes bytes = {0};
    skep_status rc = tokenizer_bytes(tokenizer, id, &bytes, err);

    if (rc == SKEP_OK && !(skip_special && tokenizer_is_special(tokenizer, id)) &&
        !utf8_stream_push(stream, bytes.data, bytes.len, out))
        rc = error_no_memory(err, "text", bytes.len);
    bytes_free(&bytes);
    return rc;
}

skep_status tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t count,
                             bool skip_special, struct bytes *out, struct skep_error *err)
{
    struct utf8_stream stream = {0};
    size_t before = out->len;
    skep_status rc = SKEP_OK;

    for (size_t i = 0; i < count && rc == SKEP_OK; i++)
        rc = tokenizer_decode_next(tokenizer, ids[i], skip_special, &stream, out, err);
    if (rc == SKEP_OK && !utf8_stream_end(&stream, out))
        rc = error_no_memory(err, "text", 3);
    if (rc != SKEP_OK)
        out->len = before;
    return rc;
}
