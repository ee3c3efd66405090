/* Cuts text into the words that byte-pair encoding works on, by regular expressions of tokenizer
 * files. A built object is only read, by any number of threads. */
#ifndef SKEP_MODEL_TOKENIZER_SPLITTER_H
#define SKEP_MODEL_TOKENIZER_SPLITTER_H

#include <stddef.h>
#include <skep/status.h>

struct splitter;

/* GPT-2's expression, which ByteLevel uses where `use_regex` is true. */
extern const char splitter_gpt2[];

/*
 * @param pattern  an expression as in tokenizer.json (Oniguruma's syntax, of which PCRE2 takes what
 *                 such files use); \s and \S mean Unicode's White_Space.
 * @param out      owned: splitter_free(); NULL on failure.
 * @return SKEP_INVALID_ARGUMENT with PCRE2's reason and place; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status splitter_new(const char *pattern, struct splitter **out,
                                         struct skep_error *err);
void splitter_free(struct splitter *splitter); /* NULL is allowed */

typedef skep_status (*splitter_fn)(void *arg, const char *word, size_t len, struct skep_error *err);

/* Calls fn for each match and each stretch between matches, in order; none is empty. Ends at the
 * first failure and returns it. @param text  well-formed UTF-8. */
SKEP_MUST_CHECK skep_status splitter_run(const struct splitter *splitter, const char *text,
                                         size_t len, splitter_fn fn, void *arg,
                                         struct skep_error *err);

#endif
