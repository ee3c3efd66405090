/* Whatever the bytes are, a checkpoint is refused with a reason, or is whole: then an expert can be
 * made from its settings, or refuses them, and taking it over is all or nothing. */
#include <stdint.h>
#include <stdlib.h>

#include "experts/checkpoint_internal.h"

enum { LARGEST_WIDTH = 64 }; /* experts are made for nothing but trying */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_expert(const struct checkpoint *c)
{
    struct skep_expert_options options = checkpoint_header(c)->options;
    struct skep_error err = {0};
    struct expert *expert;

    if (options.hidden_dim > LARGEST_WIDTH || options.intermediate_dim > LARGEST_WIDTH ||
        expert_new(&options, &expert, &err) != SKEP_OK)
        return;
    if (checkpoint_apply(c, "fuzz", expert, &err) != SKEP_OK) {
        if (err.message[0] == '\0' || expert_update_count(expert) != 0)
            abort();
    } else if (expert_update_count(expert) != checkpoint_header(c)->counters.updates) {
        abort();
    }
    expert_free(expert);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct checkpoint *c;
    struct skep_error err = {0};

    if (checkpoint_parse(data, size, &c, &err) != SKEP_OK && (c != NULL || err.message[0] == '\0'))
        abort();
    checkpoint_close(c);
    /* Hardly any input has the right checksum; what lies behind it must hold all the same. */
    if (checkpoint_parse_unsummed(data, size, &c, &err) != SKEP_OK)
        return 0;
    try_expert(c);
    checkpoint_close(c);
    return 0;
}
