/* Tokens that are found in the text itself, before it is cut into words: special tokens and others
 * that were added to a vocabulary. Building is for one thread; afterwards it is only read. */
#ifndef SKEP_MODEL_TOKENIZER_ADDED_TOKENS_H
#define SKEP_MODEL_TOKENIZER_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

struct added_token {
    char *text; /* owned by the list */
    size_t len; /* at least 1 */
    uint32_t id;
    bool special;
    bool single_word; /* only where no word character touches it */
    bool lstrip;      /* takes the white space before it */
    bool rstrip;      /* takes the white space behind it */
    bool normalized;  /* looked for in normalized text */
};

struct added_tokens {
    struct added_token *token; /* owned; by first byte, then longest first */
    size_t count;
    size_t first[257]; /* where the tokens of each first byte begin */
};

/* Takes the array and its texts, always. Tokens are sorted; ids are not checked. */
void added_tokens_init(struct added_tokens *out, struct added_token *token, size_t count);
void added_tokens_fini(struct added_tokens *tokens); /* NULL and zeroed are allowed */

/* One stretch: a token, or text between tokens (token is NULL). */
typedef skep_status (*added_tokens_fn)(void *arg, const struct added_token *token, const char *text,
                                       size_t len, struct skep_error *err);

/*
 * Walks over well-formed UTF-8: at each place the longest of the tokens counts. Ends at the first
 * failure of fn and returns it.
 * @param normalized  which of the tokens are looked for.
 */
SKEP_MUST_CHECK skep_status added_tokens_run(const struct added_tokens *tokens, bool normalized,
                                             const char *text, size_t len, added_tokens_fn fn,
                                             void *arg, struct skep_error *err);

#endif
