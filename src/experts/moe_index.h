/*
 * Which tensors of a mixture-of-experts model are whose, and in which file: by the names that
 * Hugging Face's tools give them (moe_name.h), and `model.safetensors.index.json`. Bytes in, sorted
 * lists out; no files are touched. Thread: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_MOE_INDEX_H
#define SKEP_EXPERTS_MOE_INDEX_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <skep/status.h>

#include "experts/moe_name.h"

enum { MOE_STACK_BYTES = 128 };

struct moe_tensor {
    const char *name; /* view of what it was added from */
    size_t file;      /* in `files` */
};

struct moe_matrix {
    uint64_t layer, number; /* of the expert: number among those of the layer; 0 if of all */
    enum moe_role role;
    enum moe_form form;
    const struct moe_tensor *tensor; /* view of `tensors` */
};

struct moe_layer {
    uint64_t number;
    enum moe_form form; /* of all its experts */
    uint64_t experts;   /* 0: all in one tensor, whose shape tells */
    size_t first;       /* of its matrices in `matrices`: by expert, then role */
    size_t per_expert;  /* 2 with gate and up in one, else 3 */
};

/* Starts zeroed. */
struct moe_index {
    json_t *root;                /* owned; NULL if nothing was parsed */
    const char **files;          /* owned list; names are views as those of tensors */
    size_t file_count, file_cap; /* in use, and with room */
    struct moe_tensor *tensors;  /* owned; sorted by name once checked */
    size_t tensor_count, tensor_cap;
    /* Once checked: */
    char stack[MOE_STACK_BYTES];        /* what experts' names begin with: "model.layers" */
    char left_out[2 * MOE_STACK_BYTES]; /* other stacks with experts; empty if there are none */
    struct moe_matrix *matrices;        /* owned */
    struct moe_layer *layers;           /* owned; sorted */
    size_t matrix_count, layer_count;
};

/*
 * Reads an index file's bytes and adds what it lists.
 * @return SKEP_DATA_LOSS, with what is wrong, if it is no JSON, too long, has no "weight_map", or
 *         names a file that is not one beside it; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_index_parse(struct moe_index *index, const void *data, size_t len,
                                            struct skep_error *err);

/* Adds a tensor. Both names are borrowed until moe_index_fini(). */
SKEP_MUST_CHECK skep_status moe_index_add(struct moe_index *index, const char *tensor,
                                          const char *file, struct skep_error *err);

/*
 * Sorts, and checks that each expert has each of its matrices once and nothing else, that experts
 * are numbered without gaps, and that no layer has a router without experts.
 * @param stack  whose experts: the beginning of their names before the layer. NULL: the only one
 *               that has experts, but for those that predict further tokens ("mtp").
 * @return SKEP_FAILED_PRECONDITION if there is no expert at all, if there are several stacks, or
 *         for a tensor of an expert that class swiglu does not have, named; SKEP_DATA_LOSS naming
 *         the expert or layer that is not whole; SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_index_check(struct moe_index *index, const char *stack,
                                            struct skep_error *err);

/* Once checked. Whether it lists a tensor of that name, in any file. */
bool moe_index_has(const struct moe_index *index, const char *tensor);
/* Once checked. Whether the stack has any tensor of that layer. */
bool moe_index_has_layer(const struct moe_index *index, uint64_t layer);

void moe_index_fini(struct moe_index *index); /* zeroed is allowed */

#endif
