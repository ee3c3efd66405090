/* What parses is a whole tensor whose bytes are the last ones of the file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <skep/safetensors.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
        (bytes > 0 && memcmp(skep_tensor_data(&t->dl_tensor), data + size - bytes, bytes) != 0))
        abort();
    skep_tensor_free(t);
    return 0;
}
