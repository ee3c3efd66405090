/*
 * One expert in one file: safetensors, with PyTorch's parameter names, so that
 *
 *     state = {k: v for k, v in load_file(path).items() if not k.startswith("optimizer.")}
 *     module.load_state_dict(state)
 *
 * works, as does load_state_dict(load_file(path), strict=False). Beside the parameters it holds
 * what the optimizer keeps of each, under PyTorch's names: `optimizer.exp_avg.<parameter>`,
 * `optimizer.exp_avg_sq.<parameter>` or `optimizer.momentum_buffer.<parameter>` (left out while no
 * step was done: they are zeros), and in its metadata:
 *
 *     format           "pt", as other tools expect it
 *     skep.format      "1"
 *     skep.uid skep.class skep.hidden_dim ...   the settings of the expert; true, false, numbers
 *     skep.optimizer skep.learning_rate ...     those of its training; left out by `skep import`
 *     skep.updates skep.skipped skep.steps      struct expert_counters
 *     skep.checksum    hex of digest.h, over all of these but itself and `format`
 *
 * Threads: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_CHECKPOINT_H
#define SKEP_EXPERTS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <skep/safetensors.h>
#include "experts/expert.h"

enum { CHECKPOINT_VERSION = 1 };

struct checkpoint_header {
    const char *uid;
    struct skep_expert_options options; /* texts are borrowed; the seed is not kept */
    bool has_training;                  /* options about training and the schedule are given */
    struct expert_counters counters;
};

/*
 * Writes a checkpoint, whole and durable or not at all. Errors as skep_safetensors_save().
 * @param copy  of the expert's state: expert_snapshot().
 */
SKEP_MUST_CHECK skep_status checkpoint_save(const char *path,
                                            const struct checkpoint_header *header,
                                            struct expert *expert, float *copy,
                                            struct skep_error *err);

struct checkpoint;

/*
 * Opens a file, memory-mapped, and checks that it is a checkpoint, whole and unchanged.
 * @param out  owned: checkpoint_close(). NULL on failure.
 * @return SKEP_DATA_LOSS with what is wrong if it is none, of another version, or damaged; other
 *         errors as skep_safetensors_open().
 */
SKEP_MUST_CHECK skep_status checkpoint_open(const char *path, struct checkpoint **out,
                                            struct skep_error *err);
/* The same without reading the tensors: what is damaged is not noticed, so it must not be used but
 * for its header. */
SKEP_MUST_CHECK skep_status checkpoint_peek(const char *path, struct checkpoint **out,
                                            struct skep_error *err);
/* checkpoint_open() over bytes in memory. @param data borrowed until checkpoint_close(). */
SKEP_MUST_CHECK skep_status checkpoint_parse(const void *data, size_t len, struct checkpoint **out,
                                             struct skep_error *err);
void checkpoint_close(struct checkpoint *checkpoint); /* NULL is allowed */

/* Views of the checkpoint. */
const struct checkpoint_header *checkpoint_header(const struct checkpoint *checkpoint);
const struct skep_safetensors *checkpoint_tensors(const struct checkpoint *checkpoint);

/*
 * Puts it into an expert, which nothing else uses meanwhile. If the expert's optimizer keeps other
 * arrays than the file has, they start anew, with a warning.
 * @param name  of the file, for that warning.
 * @return SKEP_FAILED_PRECONDITION, naming both sides, if class, parameters or their shapes and
 *         types differ. The expert is unchanged then.
 */
SKEP_MUST_CHECK skep_status checkpoint_apply(const struct checkpoint *checkpoint, const char *name,
                                             struct expert *expert, struct skep_error *err);

#endif
