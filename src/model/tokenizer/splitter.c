/* PCRE2 and Oniguruma differ in \s: only White_Space is right, so the expression is rewritten. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/splitter.h"

#include <pcre2.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/error.h"

struct splitter {
    pcre2_code *code; /* owned */
};

const char splitter_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* Puts \p{White_Space} for \s and \P{White_Space} for \S. */
static bool rewrite(const char *pattern, struct bytes *out)
{
    static const char inside[] = "\\p{White_Space}";
    static const char outside[] = "\\P{White_Space}";
    bool ok = true;

    for (const char *p = pattern; *p != '\0' && ok; p++) {
        if (*p != '\\' || p[1] == '\0') {
            ok = bytes_append(out, p, 1);
            continue;
        }
        p++;
        if (*p == 's')
            ok = bytes_append(out, inside, sizeof(inside) - 1);
        else if (*p == 'S')
            ok = bytes_append(out, outside, sizeof(outside) - 1);
        else
            ok = bytes_append(out, p - 1, 2);
    }
    return ok;
}

skep_status splitter_new(const char *pattern, struct splitter **out, struct skep_error *err)
{
    struct bytes text = {0};
    struct splitter *s = NULL;
    skep_status rc = SKEP_OK;
    PCRE2_SIZE place = 0;
    int code = 0;

    *out = NULL;
    s = mem_calloc(1, sizeof(*s));
    if (s == NULL || !rewrite(pattern, &text)) {
        rc = error_no_memory(err, "a split pattern", strlen(pattern));
        goto out;
    }
    s->code = pcre2_compile(text.len > 0 ? text.data : (const uint8_t *)"", text.len,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &place, NULL);
    if (s->code == NULL) {
        PCRE2_UCHAR reason[128] = "";
        pcre2_get_error_message(code, reason, sizeof(reason));
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "split pattern, character %zu: %s", place,
                       (const char *)reason);
        goto out;
    }
    *out = s;
    s = NULL;

out:
    splitter_free(s);
    bytes_free(&text);
    return rc;
}

void splitter_free(struct splitter *splitter)
{
    if (splitter == NULL)
        return;
    pcre2_code_free(splitter->code);
    mem_free(splitter);
}

static skep_status match_failed(int code, size_t place, struct skep_error *err)
{
    PCRE2_UCHAR reason[128] = "";

    pcre2_get_error_message(code, reason, sizeof(reason));
    return error_set(err, SKEP_INVALID_ARGUMENT, "split pattern, byte %zu of the text: %s", place,
                     (const char *)reason);
}

static size_t next_character(const char *text, size_t len, size_t at)
{
    do
        at++;
    while (at < len && ((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

skep_status splitter_run(const struct splitter *splitter, const char *text, size_t len,
                         splitter_fn fn, void *arg, struct skep_error *err)
{
    pcre2_match_data *match = pcre2_match_data_create_from_pattern(splitter->code, NULL);
    skep_status rc = SKEP_OK;
    size_t done = 0; /* all before it has been given to fn */
    size_t at = 0;

    if (match == NULL)
        return error_no_memory(err, "matching a split pattern", len);
    while (rc == SKEP_OK && at < len) {
        int code =
            pcre2_match(splitter->code, (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, match, NULL);
        const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);
        if (code == PCRE2_ERROR_NOMATCH)
            break;
        if (code < 0) {
            rc = match_failed(code, at, err);
            break;
        }
        size_t start = place[0], end = place[1];
        if (end <= start || start < at) { /* empty, or moved back by \K */
            at = next_character(text, len, start > at ? start : at);
            continue;
        }
        if (start > done)
            rc = fn(arg, text + done, start - done, err);
        if (rc == SKEP_OK)
            rc = fn(arg, text + start, end - start, err);
        done = at = end;
    }
    if (rc == SKEP_OK && done < len)
        rc = fn(arg, text + done, len - done, err);
    pcre2_match_data_free(match);
    return rc;
}
