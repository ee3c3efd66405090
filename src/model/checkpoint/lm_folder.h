/*
 * A folder in Hugging Face's layout: config.json and one or many safetensors files. Opening checks
 * every tensor's name, shape and type; reading a layer widens that layer alone to float32.
 * One thread at a time.
 */
#ifndef SKEP_MODEL_CHECKPOINT_LM_FOLDER_H
#define SKEP_MODEL_CHECKPOINT_LM_FOLDER_H

#include <stddef.h>
#include <skep/status.h>

#include "model/checkpoint/lm_config.h"

struct lm_linear {
    float *weight; /* owned; [out, in] */
    float *bias;   /* owned; [out], NULL if the file has none */
    size_t in, out;
};

/* down(silu(gate(x)) * up(x)) */
struct lm_mlp {
    struct lm_linear gate, up, down;
};

struct lm_layer {
    float *input_norm, *post_norm; /* owned; [hidden] */
    struct lm_linear q, k, v, o;
    float *q_norm, *k_norm;  /* owned; NULL if the architecture has none */
    struct lm_mlp mlp;       /* of a dense layer */
    struct lm_linear router; /* of a sparse one: [experts, hidden] */
    struct lm_mlp *experts;  /* owned; NULL in a dense layer */
    size_t expert_count;
    struct lm_mlp shared;         /* Qwen2-MoE's */
    struct lm_linear shared_gate; /* [1, hidden] */
};

struct lm_ends {
    float *embed; /* owned; [vocabulary, hidden] */
    float *norm;  /* owned; [hidden] */
    float *head;  /* owned; [vocabulary, hidden]; embed itself where they are tied */
};

struct lm_folder;

/*
 * @param out  owned: lm_folder_close(); NULL on failure.
 * @return SKEP_NOT_FOUND for a file that is missing; SKEP_INVALID_ARGUMENT, with the tensor's name,
 *         for one that is missing, not expected, misshapen or of another type, and for settings of
 *         config.json; SKEP_DATA_LOSS and others as skep_safetensors_open().
 */
SKEP_MUST_CHECK skep_status lm_folder_open(const char *path, struct lm_folder **out,
                                           struct skep_error *err);
void lm_folder_close(struct lm_folder *folder); /* NULL is allowed */

const struct lm_config *lm_folder_config(const struct lm_folder *folder); /* view */

/* Owned: lm_layer_free(). Zeroed on failure. */
SKEP_MUST_CHECK skep_status lm_folder_layer(const struct lm_folder *folder, size_t layer,
                                            struct lm_layer *out, struct skep_error *err);
void lm_layer_free(struct lm_layer *layer); /* NULL and zeroed are allowed */

/* Owned: lm_ends_free(). Zeroed on failure. */
SKEP_MUST_CHECK skep_status lm_folder_ends(const struct lm_folder *folder, struct lm_ends *out,
                                           struct skep_error *err);
void lm_ends_free(struct lm_ends *ends); /* NULL and zeroed are allowed */

#endif
