/* What parses obeys the grammar: the prefixes of a UID are prefixes, patterns list valid UIDs. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "dht/record/uid.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_uid(const char *text)
{
    struct uid uid;
    struct skep_error err;

    if (uid_parse(&uid, text, &err) != SKEP_OK)
        return;
    if (strcmp(uid.text, text) != 0 || uid.coord_count == 0)
        abort();
    for (size_t i = 0; i < uid.coord_count; i++)
        if (!uid_prefix_is_valid(uid.text, uid.prefix_len[i]) || uid.coords[i] < 0)
            abort();
}

static void check_pattern(const char *text)
{
    struct uid_pattern pattern;
    struct skep_error err;
    char member[UID_BYTES];

    if (uid_pattern_parse(&pattern, text, &err) != SKEP_OK)
        return;
    uint64_t count = uid_pattern_count(&pattern);
    if (count == 0)
        abort();
    uid_pattern_at(&pattern, count - 1, member);
    if (!uid_is_valid(member, strlen(member)))
        abort();
    uid_pattern_at(&pattern, 0, member);
    if (!uid_is_valid(member, strlen(member)))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[1024];

    if (size >= sizeof(text))
        return 0;
    if (uid_is_valid((const char *)data, size) && uid_prefix_is_valid((const char *)data, size))
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    check_uid(text);
    check_pattern(text);
    return 0;
}
