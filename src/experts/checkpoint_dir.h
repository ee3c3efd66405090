/*
 * The folder of a node's checkpoints:
 *
 *     DIR/<uid>/checkpoint_<updates>_<number>.safetensors    numbers grow by one with each save
 *     DIR/<uid>/checkpoint_last                              a relative link to the newest (where
 *                                                            there are no links: a file naming it)
 *
 * A checkpoint is written beside its name (`...tmp.<pid>.<n>`), synced and renamed, then the link
 * is replaced, then those beyond the number to keep are removed: at any moment the folder holds a
 * whole newest checkpoint. Nothing in it depends on where it is, so it can be copied elsewhere.
 * What is loaded is the whole and fitting checkpoint of the highest number; the link is for people.
 *
 * Threads: any, each object by one at a time.
 */
#ifndef SKEP_EXPERTS_CHECKPOINT_DIR_H
#define SKEP_EXPERTS_CHECKPOINT_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include "experts/checkpoint.h"

enum { CHECKPOINT_UID_BYTES = 256 }; /* a folder's name, with NUL */

struct checkpoint_dir {
    char *path; /* owned; NULL: not open */
    int lock;   /* -1: opened for reading only */
};

/*
 * Opens a folder for reading, or for writing: then it is made if missing (its parent is not), and
 * locked against other processes for as long as it is open, or the process lives.
 * @return SKEP_FAILED_PRECONDITION if another process has it open for writing; SKEP_NOT_FOUND,
 *         SKEP_PERMISSION_DENIED and the like if it cannot be used, by the system's reason.
 */
SKEP_MUST_CHECK skep_status checkpoint_dir_open(struct checkpoint_dir *dir, const char *path,
                                                bool for_writing, struct skep_error *err);
/* From now on for writing, too, if it is not yet: errors as of checkpoint_dir_open(). It stays open
 * for reading if that fails. */
SKEP_MUST_CHECK skep_status checkpoint_dir_lock(struct checkpoint_dir *dir, struct skep_error *err);
/* Whether a process (this one counts) has it open for writing: a node, which knows newer states
 * than it has saved. */
bool checkpoint_dir_is_in_use(const struct checkpoint_dir *dir);
void checkpoint_dir_close(struct checkpoint_dir *dir); /* zeroed with path NULL is allowed */

/* Whether a UID can be the name of a folder: SKEP_INVALID_ARGUMENT if it holds a slash, is empty,
 * starts with a dot or is too long. */
SKEP_MUST_CHECK skep_status checkpoint_dir_check_uid(const char *uid, struct skep_error *err);

/*
 * Lists the entries of the folder, whatever they are, sorted.
 * @param names  owned: checkpoint_dir_free_names().
 */
SKEP_MUST_CHECK skep_status checkpoint_dir_list(const struct checkpoint_dir *dir, char ***names,
                                                size_t *count, struct skep_error *err);
void checkpoint_dir_free_names(char **names, size_t count);

/* Whether an entry is a folder (or a link to one). SKEP_INVALID_ARGUMENT says what it is instead.
 */
SKEP_MUST_CHECK skep_status checkpoint_dir_check_entry(const struct checkpoint_dir *dir,
                                                       const char *name, struct skep_error *err);

/* Whether an expert has checkpoints, usable or not. */
bool checkpoint_dir_has(const struct checkpoint_dir *dir, const char *uid);

/* Removes what saves that were cut short have left behind; nothing unless it is open for writing.
 */
void checkpoint_dir_clean(const struct checkpoint_dir *dir, const char *uid);

/* What to do with a checkpoint that is whole: SKEP_OK takes it; SKEP_RESOURCE_EXHAUSTED ends the
 * search; anything else is reported, and the one before it is tried. */
typedef skep_status (*checkpoint_use_fn)(void *arg, const struct checkpoint *checkpoint,
                                         const char *path, struct skep_error *err);

/*
 * Looks for the newest usable checkpoint of an expert; each that is not is named in a warning.
 * @return SKEP_NOT_FOUND if it has none at all; SKEP_FAILED_PRECONDITION if none of those it has
 *         can be used (with the reason of the newest); SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status checkpoint_dir_load(const struct checkpoint_dir *dir, const char *uid,
                                                checkpoint_use_fn use, void *arg,
                                                struct skep_error *err);

/* The same by headers alone, which takes no time: the contents may be damaged all the same. */
SKEP_MUST_CHECK skep_status checkpoint_dir_peek(const struct checkpoint_dir *dir, const char *uid,
                                                checkpoint_use_fn use, void *arg,
                                                struct skep_error *err);

/*
 * Saves an expert's copy as its newest checkpoint and removes all but the newest `keep` (0: none is
 * removed). On failure those that are there stay as they are.
 * @param header  its uid names the folder, made if missing.
 */
SKEP_MUST_CHECK skep_status checkpoint_dir_save(const struct checkpoint_dir *dir,
                                                const struct checkpoint_header *header,
                                                struct expert *expert, float *copy, size_t keep,
                                                struct skep_error *err);

#endif
