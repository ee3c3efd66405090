/* What parses is a whole tensor of the last bytes of the file, perhaps in another order. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <skep/safetensors.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Fortran order changes places alone. */
static bool holds_the_same(const uint8_t *a, const uint8_t *b, size_t len)
{
    size_t count[256] = {0};

    for (size_t i = 0; i < len; i++) {
        count[a[i]]++;
        count[b[i]]--; /* wraps round, and back */
    }
    for (size_t i = 0; i < 256; i++)
        if (count[i] != 0)
            return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    DLManagedTensor *t;
    struct skep_error err;
    size_t bytes;

    if (skep_npy_parse(data, size, &t, &err) != SKEP_OK) {
        if (t != NULL || err.message[0] == '\0')
            abort();
        return 0;
    }
    if (skep_tensor_bytes(&t->dl_tensor, &bytes, NULL) != SKEP_OK || bytes > size ||
        !holds_the_same(skep_tensor_data(&t->dl_tensor), data + size - bytes, bytes))
        abort();
    skep_tensor_free(t);
    return 0;
}
