/* Whatever the bytes of an index are, it is refused with a reason, or is a sorted list of whole
 * experts whose files are beside it. The same bytes as a config are taken, or refused so. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "experts/moe_config.h"
#include "experts/moe_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_matrix(const struct moe_index *index, size_t i)
{
    const struct moe_matrix *m = &index->matrices[i];

    if (m->role != (int)(i % MOE_MATRICES) || m->file >= index->file_count ||
        strstr(m->name, ".experts.") == NULL)
        abort();
    if (i == 0 || m->role != 0)
        return;
    const struct moe_matrix *before = &index->matrices[i - 1];
    if (before->layer > m->layer || (before->layer == m->layer && before->number >= m->number))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct moe_index index = {0};
    struct skep_error err = {0};
    skep_status rc = moe_index_parse(&index, data, size, &err);

    if (rc == SKEP_OK)
        rc = moe_index_check(&index, &err);
    if (rc != SKEP_OK && err.message[0] == '\0')
        abort();
    if (rc == SKEP_OK && (index.count == 0 || index.count % MOE_MATRICES != 0))
        abort();
    for (size_t i = 0; rc == SKEP_OK && i < index.count; i++)
        check_matrix(&index, i);
    for (size_t i = 0; i < index.file_count; i++)
        if (index.files[i][0] == '.' || strchr(index.files[i], '/') != NULL)
            abort();
    moe_index_fini(&index);
    err.message[0] = '\0';
    if (moe_config_check(data, size, &err) != SKEP_OK && err.message[0] == '\0')
        abort();
    return 0;
}
