/* Matches are leftmost and longest, and a refused one (`single_word`) is passed over whole, as
 * Hugging Face's tokenizers do it. */
#include "model/tokenizer/added_tokens.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"

static int compare(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    int first = (uint8_t)x->text[0] - (uint8_t)y->text[0];

    if (first != 0)
        return first;
    if (x->len != y->len)
        return x->len > y->len ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

void added_tokens_init(struct added_tokens *out, struct added_token *token, size_t count)
{
    size_t at = 0;

    memset(out, 0, sizeof(*out));
    out->token = token;
    out->count = count;
    if (count > 0)
        qsort(token, count, sizeof(*token), compare);
    for (unsigned byte = 0; byte <= 256; byte++) {
        while (at < count && (uint8_t)token[at].text[0] < byte)
            at++;
        out->first[byte] = at;
    }
}

void added_tokens_fini(struct added_tokens *tokens)
{
    if (tokens == NULL)
        return;
    for (size_t i = 0; i < tokens->count; i++)
        mem_free(tokens->token[i].text);
    mem_free(tokens->token);
    memset(tokens, 0, sizeof(*tokens));
}

static bool is_space(utf8proc_int32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

/* Letters, marks, digits, letter numbers, connectors and the two joiners. */
static bool is_word(utf8proc_int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        /* circled letters are Alphabetic, though symbols */
        return c == 0x200c || c == 0x200d || (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
               (c >= 0x1f170 && c <= 0x1f189);
    }
}

static utf8proc_int32_t character_at(const char *text, size_t len, size_t at, size_t *bytes)
{
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &c);

    *bytes = n > 0 ? (size_t)n : 1;
    return c;
}

static size_t previous_start(const char *text, size_t at)
{
    do
        at--;
    while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static bool stands_alone(const char *text, size_t len, size_t start, size_t end)
{
    size_t n;

    if (start > 0 && is_word(character_at(text, len, previous_start(text, start), &n)))
        return false;
    return end == len || !is_word(character_at(text, len, end, &n));
}

static size_t strip_left(const char *text, size_t len, size_t start)
{
    size_t n;

    while (start > 0) {
        size_t before = previous_start(text, start);
        if (!is_space(character_at(text, len, before, &n)))
            break;
        start = before;
    }
    return start;
}

static size_t strip_right(const char *text, size_t len, size_t end)
{
    size_t n;

    while (end < len && is_space(character_at(text, len, end, &n)))
        end += n;
    return end;
}

static const struct added_token *longest_at(const struct added_tokens *tokens, bool normalized,
                                            const char *text, size_t len)
{
    uint8_t first = (uint8_t)text[0];

    for (size_t i = tokens->first[first]; i < tokens->first[first + 1]; i++) {
        const struct added_token *t = &tokens->token[i];
        if (t->normalized == normalized && t->len <= len && memcmp(t->text, text, t->len) == 0)
            return t;
    }
    return NULL;
}

skep_status added_tokens_run(const struct added_tokens *tokens, bool normalized, const char *text,
                             size_t len, added_tokens_fn fn, void *arg, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    size_t done = 0; /* all before it has been given to fn */
    size_t at = 0;

    while (at < len && rc == SKEP_OK) {
        const struct added_token *t = longest_at(tokens, normalized, text + at, len - at);
        if (t == NULL) {
            at++;
            continue;
        }
        size_t start = at, end = at + t->len;
        at = end;
        if (start < done || (t->single_word && !stands_alone(text, len, start, end)))
            continue;
        if (t->lstrip) {
            start = strip_left(text, len, start);
            start = start > done ? start : done;
        }
        if (t->rstrip)
            end = strip_right(text, len, end);
        if (start > done)
            rc = fn(arg, NULL, text + done, start - done, err);
        if (rc == SKEP_OK)
            rc = fn(arg, t, text + start, end - start, err);
        done = end;
    }
    if (rc == SKEP_OK && done < len)
        rc = fn(arg, NULL, text + done, len - done, err);
    return rc;
}
