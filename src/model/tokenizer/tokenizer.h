/*
 * Byte-level BPE tokenizers as Hugging Face's `tokenizer.json` describes them: the kinds of GPT-2,
 * Llama 3, Qwen and GPT-NeoX (OLMoE). What a file asks for and this does not know is refused with
 * its name; nothing is guessed.
 *
 * A tokenizer is only read once it is made: any number of threads may use one.
 */
#ifndef SKEP_MODEL_TOKENIZER_TOKENIZER_H
#define SKEP_MODEL_TOKENIZER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#include "base/bytes.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/utf8_stream.h"

struct tokenizer;

/* @param json  borrowed. @param out  owned: tokenizer_free(); NULL on failure.
 * @return SKEP_INVALID_ARGUMENT with the place in the file; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status tokenizer_parse(const void *json, size_t len, struct tokenizer **out,
                                            struct skep_error *err);
/* The same for a file; errors begin with its path. */
SKEP_MUST_CHECK skep_status tokenizer_load(const char *path, struct tokenizer **out,
                                           struct skep_error *err);
void tokenizer_free(struct tokenizer *tokenizer); /* NULL is allowed */

/* The highest id and one more. */
uint32_t tokenizer_size(const struct tokenizer *tokenizer);
/* The text of a token as the file has it; NULL if the id has none. View of the tokenizer. */
const char *tokenizer_token(const struct tokenizer *tokenizer, uint32_t id, size_t *len);
/* The id of such a text, in the vocabulary or added; BPE_NONE if there is none. */
uint32_t tokenizer_find(const struct tokenizer *tokenizer, const char *text, size_t len);
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);

/*
 * Appends the ids of a text.
 * @param add_special  puts the tokens of the file's post-processor (<|begin_of_text|>) around it.
 * @return SKEP_INVALID_ARGUMENT if the text is not UTF-8, a split gives up, or a byte has no token;
 *         SKEP_RESOURCE_EXHAUSTED. `out` is as it was then.
 */
SKEP_MUST_CHECK skep_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                                             size_t len, bool add_special, struct token_ids *out,
                                             struct skep_error *err);

/* Appends the bytes of one token, which may be a part of a character.
 * @return SKEP_INVALID_ARGUMENT if the id has no token; SKEP_RESOURCE_EXHAUSTED. */
SKEP_MUST_CHECK skep_status tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t id,
                                            struct bytes *out, struct skep_error *err);

/* Appends the text of one more token to `out`, whole characters only: see utf8_stream.h.
 * @param skip_special  special tokens have no text. */
SKEP_MUST_CHECK skep_status tokenizer_decode_next(const struct tokenizer *tokenizer, uint32_t id,
                                                  bool skip_special, struct utf8_stream *stream,
                                                  struct bytes *out, struct skep_error *err);

/* Appends the text of all of them, well-formed UTF-8. On failure `out` is as it was. */
SKEP_MUST_CHECK skep_status tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids,
                                             size_t count, bool skip_special, struct bytes *out,
                                             struct skep_error *err);

#endif
