/* Text from strangers, UTF-8 checks and quoting for messages; sizes and plurals in those. */
#ifndef SKEP_BASE_TEXT_H
#define SKEP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed UTF-8 character at text (1 to 4); 0 if there is none. Overlong forms,
 * surrogates and numbers above U+10FFFF are not well-formed. */
size_t text_utf8_length(const char *text, size_t len);
bool text_is_utf8(const char *text, size_t len);

/* Whether a well-formed character of n bytes would do something to a terminal other than show: C0,
 * DEL, C1, which some terminals obey too, separators of lines and paragraphs, and what sets the
 * direction of writing (U+061C, U+200E and F, U+202A to E, U+2066 to F), by which a line reads
 * otherwise than it is. */
bool text_is_control(const char *character, size_t n);
/* Puts a question mark in place of each byte of control characters and of what is no UTF-8. */
void text_tame(char *text);

enum { TEXT_QUOTE_BYTES = 120 };

/*
 * The text in double quotes for a message: control characters and stray bytes as \xNN, so that no
 * line of a log can be forged or a terminal driven; cut, with "..." inside, where it is long.
 * Returns out.
 */
const char *text_quote(const char *text, size_t len, char out[static TEXT_QUOTE_BYTES]);

enum { TEXT_SIZE_BYTES = 32 };

/*
 * A number of bytes for people: "1 KiB", "1536 MiB", "8 GiB", exact or with two digits at the
 * least.
 * @param up  rounded up where it is not exact, else down: so a sum over a limit never looks equal.
 * Returns out.
 */
const char *text_size(uint64_t bytes, bool up, char out[static TEXT_SIZE_BYTES]);

/* The brackets of a JSON text, counted before anybody parses it: jansson goes as deep as they do,
 * on the stack. Whether the text is JSON at all is left to the parser. */
struct text_brackets {
    size_t opened;
    size_t depth; /* of the deepest */
};
struct text_brackets text_count_brackets(const char *json, size_t len);

/* What makes a plural of a noun behind a number: "" for 1, else "s". */
static inline const char *text_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
