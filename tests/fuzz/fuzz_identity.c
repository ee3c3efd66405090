/* The content of a key file. What parses must be the text that saving would write. */
#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "crypto/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    struct identity id;
    struct skep_error err;
    char hex[65];

    if (!ready && identity_system_init(NULL) != SKEP_OK)
        abort();
    ready = true;
    skep_status rc = identity_parse(&id, data, size, "input", &err);
    if (rc != SKEP_OK) {
        if (rc != SKEP_DATA_LOSS || err.status != rc || strlen(err.message) == 0)
            abort();
        return 0;
    }
    hex_encode(hex, id.sign_key, 32); /* libsodium's secret key begins with the seed */
    for (size_t i = 0; i < 64; i++)
        if (tolower(data[i]) != hex[i])
            abort();
    return 0;
}
