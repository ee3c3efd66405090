/* Whatever the bytes of an index are, it is refused with a reason, or is sorted lists of layers and
 * whole experts whose files are beside it. The same bytes as a config are taken, or refused so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "experts/moe_config.h"
#include "experts/moe_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_matrix(const struct moe_index *index, const struct moe_layer *layer, size_t i)
{
    const struct moe_matrix *m = &index->matrices[layer->first + i];
    struct moe_name read = moe_name_read(m->tensor->name);

    if (m->layer != layer->number || m->form != layer->form ||
        m->tensor->file >= index->file_count || !moe_index_has(index, m->tensor->name) ||
        read.kind != MOE_MATRIX || read.role != m->role || read.form != m->form ||
        read.stack_len != strlen(index->stack) ||
        memcmp(m->tensor->name, index->stack, read.stack_len) != 0)
        abort();
    if (layer->form == MOE_SINGLE &&
        (m->number != i / layer->per_expert || m->role != (enum moe_role)(i % 3)))
        abort();
}

static void check_layer(const struct moe_index *index, size_t i)
{
    const struct moe_layer *layer = &index->layers[i];
    size_t matrices = layer->per_expert * (layer->experts > 0 ? (size_t)layer->experts : 1);

    if (layer->per_expert < 2 || layer->per_expert > 3 ||
        (layer->form == MOE_SINGLE) != (layer->experts > 0) ||
        (i > 0 && index->layers[i - 1].number >= layer->number) ||
        layer->first + matrices > index->matrix_count || !moe_index_has_layer(index, layer->number))
        abort();
    for (size_t k = 0; k < matrices; k++)
        check_matrix(index, layer, k);
}

static void check_config(const uint8_t *data, size_t size)
{
    static struct moe_config config;
    struct skep_error err = {0};

    if (moe_config_parse(&config, data, size, "model.layers", &err) != SKEP_OK) {
        if (err.message[0] == '\0' || config.count_total != 0)
            abort();
        return;
    }
    for (uint64_t layer = 0; layer < 3; layer++) {
        uint64_t said = moe_config_experts(&config, layer);
        if (said > 0 && moe_config_check_count(&config, layer, said, &err) != SKEP_OK)
            abort();
        if (moe_config_check_layer(&config, layer, &err) != SKEP_OK && err.message[0] == '\0')
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moe_index index = {0};
    struct skep_error err = {0};
    skep_status rc = moe_index_parse(&index, data, size, &err);

    if (rc == SKEP_OK)
        rc = moe_index_check(&index, NULL, &err);
    if (rc != SKEP_OK && err.message[0] == '\0')
        abort();
    if (rc == SKEP_OK && index.layer_count == 0)
        abort();
    for (size_t i = 0; rc == SKEP_OK && i < index.layer_count; i++)
        check_layer(&index, i);
    for (size_t i = 0; i < index.file_count; i++)
        if (index.files[i][0] == '.' || strchr(index.files[i], '/') != NULL)
            abort();
    moe_index_fini(&index);
    check_config(data, size);
    return 0;
}
