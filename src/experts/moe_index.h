/*
 * Which tensors of a mixture-of-experts model are whose, and in which file: the names that Hugging
 * Face's tools give them (moe.h), and `model.safetensors.index.json`. Bytes in, a sorted list out;
 * no files are touched. Thread: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_MOE_INDEX_H
#define SKEP_EXPERTS_MOE_INDEX_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

enum { MOE_MATRICES = 3 }; /* of an expert: gate, up and down, which are 0, 1 and 2 */

struct moe_matrix {
    uint64_t layer, number; /* of the expert: number among those of the layer */
    int role;               /* 0 to 2 */
    const char *name;       /* of the tensor; a view of what it was added from */
    size_t file;            /* in `files` */
};

/* Starts zeroed. */
struct moe_index {
    json_t *root;                /* owned; NULL if nothing was parsed */
    const char **files;          /* owned list; names are views as those of tensors */
    size_t file_count, file_cap; /* in use, and with room */
    struct moe_matrix *matrices; /* owned; sorted by layer, number and role once checked */
    size_t count, cap;           /* in use, and with room */
};

/*
 * Reads an index file's bytes and adds what it lists.
 * @return SKEP_DATA_LOSS, with what is wrong, if it is no JSON, too long, has no "weight_map", or
 *         names a file that is not one beside it; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_index_parse(struct moe_index *index, const void *data, size_t len,
                                            struct skep_error *err);

/* Adds a tensor if it is an expert's; else does nothing but note the file. Both names are borrowed
 * until moe_index_fini(). */
SKEP_MUST_CHECK skep_status moe_index_add(struct moe_index *index, const char *tensor,
                                          const char *file, struct skep_error *err);

/*
 * Sorts, and checks that each expert has each of its matrices once.
 * @return SKEP_FAILED_PRECONDITION if there is no expert at all; SKEP_DATA_LOSS, naming the expert.
 */
SKEP_MUST_CHECK skep_status moe_index_check(struct moe_index *index, struct skep_error *err);

void moe_index_fini(struct moe_index *index); /* zeroed is allowed */

#endif
