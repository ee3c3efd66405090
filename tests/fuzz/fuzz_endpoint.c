/* What parses is written back in a form that parses to the same endpoint. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/endpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[1024];
    char formatted[ENDPOINT_TEXT_BYTES];
    struct endpoint e, again;
    struct skep_error err;
    struct address address;

    if (size == 0 || size > sizeof(text))
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    if (endpoint_parse(&e, text, data[0] & 1, &err) != SKEP_OK)
        return 0;
    endpoint_format(&e, formatted);
    if (endpoint_parse(&again, formatted, true, &err) != SKEP_OK || !endpoint_equal(&e, &again))
        abort();
    if (e.port == 0 && endpoint_is_usable(&e))
        abort();
    if (endpoint_to_address(&e, &address))
        endpoint_from_address(&again, (const struct sockaddr *)&address.sa);
    endpoint_is_loopback(&e);
    return 0;
}
