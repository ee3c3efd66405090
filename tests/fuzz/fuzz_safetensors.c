/* A file that opens is consistent: every byte of every tensor of a type that Skep has can be read,
 * those of others have none, every name is found. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <skep/safetensors.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t sum_of(const DLTensor *t)
{
    const uint8_t *bytes = skep_tensor_data(t);
    uint8_t sum = 0;
    size_t len;

    if (skep_tensor_bytes(t, &len, NULL) != SKEP_OK) {
        if (bytes != NULL || skep_dtype_name(t->dtype) != NULL)
            abort();
        return 0;
    }
    for (size_t i = 0; i < len; i++)
        sum = (uint8_t)(sum + bytes[i]);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct skep_safetensors *file;
    struct skep_error err;
    volatile uint8_t sink = 0;

    if (skep_safetensors_parse(data, size, &file, &err) != SKEP_OK) {
        if (file != NULL || err.message[0] == '\0')
            abort();
        return 0;
    }
    for (size_t i = 0; i < skep_safetensors_count(file); i++) {
        const DLTensor *t = skep_safetensors_tensor(file, i);
        if (skep_safetensors_find(file, skep_safetensors_name(file, i)) != t)
            abort();
        sink = (uint8_t)(sink + sum_of(t));
    }
    skep_safetensors_metadata(file, "format");
    skep_safetensors_close(file);
    return 0;
}
