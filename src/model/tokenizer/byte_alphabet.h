/* The alphabet of byte-level tokenizers: one printable character for each of the 256 bytes, so that
 * a vocabulary of arbitrary bytes is readable text (GPT-2's `bytes_to_unicode`). Thread: any. */
#ifndef SKEP_MODEL_TOKENIZER_BYTE_ALPHABET_H
#define SKEP_MODEL_TOKENIZER_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

/* Writes the character of a byte as UTF-8; returns its length, 1 or 2. */
size_t byte_alphabet_encode(uint8_t byte, char out[static 2]);

/*
 * Appends the bytes that a token's text stands for. A text with any character outside the alphabet
 * stands for its own UTF-8, as in Hugging Face's ByteLevel decoder. False if memory is short.
 */
bool byte_alphabet_decode(const char *text, size_t len, struct bytes *out);

#endif
