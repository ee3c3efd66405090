/* Names of swarms. */
#include "dht/record/swarm_name.h"

#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"

static bool has_control(const char *name, size_t len)
{
    for (size_t i = 0; i < len;) {
        size_t n = text_utf8_length(name + i, len - i);
        if (n == 0 || text_is_control(name + i, n))
            return true;
        i += n;
    }
    return false;
}

skep_status swarm_name_check(const char *name, struct skep_error *err)
{
    size_t len = name != NULL ? strlen(name) : 0;
    char quoted[TEXT_QUOTE_BYTES];

    if (len > 0 && len <= SWARM_NAME_MAX && !has_control(name, len))
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "swarm: %s has %zu bytes, expected a name of 1 to %d bytes of UTF-8 without "
                     "control characters",
                     text_quote(name != NULL ? name : "", len, quoted), len, SWARM_NAME_MAX);
}
