/* Whatever mp_check() lets through, msgpack-c parses whole, and accessors stay within the bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void visit(const msgpack_object *o)
{
    char text[64];
    uint8_t bin[8];
    uint64_t u;
    int64_t i;
    double f;
    bool flag;
    const msgpack_object *items;
    size_t count;
    int hits = mp_u64(o, &u) + mp_bool(o, &flag) + mp_str(o, text, sizeof(text)) +
               mp_bin_exact(o, bin, sizeof(bin)) + mp_f64(o, &f) + mp_i64(o, &i);

    if (hits > 3) /* an integer is also a number; nothing else is two things */
        abort();
    if (mp_array(o, &items, &count))
        for (size_t k = 0; k < count; k++)
            visit(&items[k]);
    mp_get(o, "uid");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mp mp;
    bool whole = mp_check(data, size);
    skep_status rc = mp_parse(&mp, data, size, "fuzz", NULL);

    if (whole != (rc == SKEP_OK))
        abort();
    if (rc == SKEP_OK)
        visit(mp.root);
    mp_free(&mp);
    return 0;
}
