/*
 * Byte-level byte-pair encoding: a vocabulary and ranked merges. A word's bytes are joined pair by
 * pair, the pair of the lowest rank first and the leftmost of equals, until no pair has a merge.
 * Building is for one thread; a built object is only read, by any number of threads.
 */
#ifndef SKEP_MODEL_TOKENIZER_BPE_H
#define SKEP_MODEL_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#include "base/hash_table.h"

/* A growable list of token ids. Zeroed memory is an empty list. */
struct token_ids {
    uint32_t *ids; /* owned: token_ids_free() */
    size_t count;
    size_t cap;
};

/* False if memory is short; the list is unchanged then. */
bool token_ids_append(struct token_ids *list, uint32_t id);
void token_ids_free(struct token_ids *list); /* NULL and zeroed are allowed */

struct bpe {
    struct hash_table words;  /* of bpe_word by text */
    struct hash_table merges; /* of bpe_merge by pair */
    struct bpe_word *word;    /* owned; word_count */
    size_t word_count;
    size_t word_cap;
    struct bpe_merge *merge; /* owned; merge_count */
    size_t merge_count;
    size_t merge_cap;
    char *text; /* owned: the words' texts, one behind the other */
    size_t text_len;
    size_t text_cap;
    uint32_t byte_id[256]; /* the token of each byte alone, BPE_NONE if it has none */
    bool ignore_merges;    /* a word of the vocabulary is one token, whatever the merges say */
};

#define BPE_NONE UINT32_MAX

/* @param words, merges, text_bytes  how many will be added at most. */
SKEP_MUST_CHECK skep_status bpe_init(struct bpe *out, size_t words, size_t merges,
                                     size_t text_bytes, struct skep_error *err);
void bpe_fini(struct bpe *bpe); /* NULL and zeroed are allowed */

/* Adds a word (copied). False if the text is there already. */
bool bpe_add_word(struct bpe *bpe, const char *text, size_t len, uint32_t id);
/* Call it after the last word and before the first merge. */
void bpe_find_bytes(struct bpe *bpe);
/* Adds the next merge in rank. SKEP_INVALID_ARGUMENT if a part or the whole is no word. */
SKEP_MUST_CHECK skep_status bpe_add_merge(struct bpe *bpe, const char *left, size_t left_len,
                                          const char *right, size_t right_len,
                                          struct skep_error *err);

uint32_t bpe_find(const struct bpe *bpe, const char *text, size_t len); /* BPE_NONE if absent */

/* Appends the tokens of one word, given as plain bytes. SKEP_INVALID_ARGUMENT if the vocabulary
 * has no token for one of them; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status bpe_encode(const struct bpe *bpe, const char *bytes, size_t len,
                                       struct token_ids *out, struct skep_error *err);

#endif
