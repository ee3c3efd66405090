/* See file_kind.h. */
#include "base/file_kind.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TEXT_LOOKED_AT = 512 };

#define MAGIC(text) text, sizeof(text) - 1

static const struct {
    const char *magic;
    size_t len;
    const char *kind;
} kinds[] = {
    {MAGIC("\x93NUMPY"), "a NumPy .npy file"},
    {MAGIC("PK\x03\x04"), "a zip archive, as torch.save() and numpy.savez() write"},
    /* The first opcode of a pickle, and its protocol: torch.save() before PyTorch 1.6. */
    {MAGIC("\x80\x02"), "a Python pickle"},
    {MAGIC("\x80\x03"), "a Python pickle"},
    {MAGIC("\x80\x04"), "a Python pickle"},
    {MAGIC("\x80\x05"), "a Python pickle"},
    {MAGIC("\x89HDF\r\n\x1a\n"), "an HDF5 file"},
    {MAGIC("GGUF"), "a GGUF file"},
    {MAGIC("\x1f\x8b"), "compressed by gzip"},
    {MAGIC("version https://git-lfs"), "a Git LFS pointer (git lfs pull fetches the file)"},
};

static bool is_text(const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < len && i < TEXT_LOOKED_AT; i++)
        if ((data[i] < ' ' && strchr("\t\n\r\f", data[i]) == NULL) || data[i] == 0 ||
            data[i] == 0x7f)
            return false;
    return len > 0;
}

const char *file_kind(const void *data, size_t len)
{
    const uint8_t *bytes = data;

    /* The length of a safetensors header may be any number: what stands behind it tells. */
    if (len > 8 && bytes[8] == '{' && bytes[7] == 0)
        return NULL;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (len >= kinds[i].len && memcmp(data, kinds[i].magic, kinds[i].len) == 0)
            return kinds[i].kind;
    return is_text(bytes, len) ? "a text file" : NULL;
}
