/* What tokenizer.c (its use) and tokenizer_json.c (its making) share. */
#ifndef SKEP_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H
#define SKEP_MODEL_TOKENIZER_TOKENIZER_INTERNAL_H

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/splitter.h"
#include "model/tokenizer/tokenizer.h"

enum { TOKENIZER_MAX_STAGES = 8 }; /* DeepSeek's files, the longest known, have 4 */

struct token_text {
    const char *text; /* view of the vocabulary or the added tokens; NULL if the id is not used */
    size_t len;
    bool special;
};

/* A step of the pre-tokenizer, applied to each word that the one before it made. */
struct tokenizer_stage {
    struct splitter *splitter; /* owned; NULL for one that only puts the space */
    bool add_prefix_space;
};

struct tokenizer {
    struct bpe bpe;
    struct added_tokens added;
    struct token_text *tokens; /* owned; by id */
    uint32_t size;
    bool nfc;
    struct tokenizer_stage stages[TOKENIZER_MAX_STAGES];
    size_t stage_count;
    struct token_ids prefix, suffix; /* what the post-processor puts around a text */
};

/* NFC of a well-formed text, appended. */
SKEP_MUST_CHECK skep_status tokenizer_nfc(const char *text, size_t len, struct bytes *out,
                                          struct skep_error *err);

#endif
