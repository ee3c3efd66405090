/* Whole files: mapped for reading, made or replaced whole or not at all when written. Thread: any,
 * each object by one thread at a time. */
#ifndef SKEP_BASE_FILE_H
#define SKEP_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <skep/status.h>

struct file_map {
    const uint8_t *data; /* owned: file_unmap(); NULL if the file is empty */
    size_t len;
};

/* Maps a regular file for reading. Errors name the path: SKEP_INVALID_ARGUMENT if it is something
 * else than a file, otherwise by status_from_errno(). */
SKEP_MUST_CHECK skep_status file_map(struct file_map *out, const char *path,
                                     struct skep_error *err);
void file_unmap(struct file_map *map); /* NULL and zeroed are allowed */

struct file_writer {
    int fd;     /* owned, valid while temp is not NULL */
    char *path; /* owned */
    char *temp; /* owned: `<path>.tmp.<pid>.<number>`, on disk until commit or abort */
};

/*
 * Starts writing what will replace `path`. A path that is there and is no regular file is
 * SKEP_INVALID_ARGUMENT; other errors by status_from_errno(), each with the path.
 * @param mode  permissions of the new file, less the umask.
 */
SKEP_MUST_CHECK skep_status file_writer_open(struct file_writer *out, const char *path, mode_t mode,
                                             struct skep_error *err);
SKEP_MUST_CHECK skep_status file_writer_write(struct file_writer *w, const void *data, size_t len,
                                              struct skep_error *err);
/*
 * Makes it durable under its name: fsync, rename, fsync of the folder. The writer is finished
 * either way. On failure the old file, if any, is as it was and nothing of the new one is left;
 * except that when only the folder could not be synced (the sentence says so), the new file is in
 * place, whole, but a loss of power may still bring the old one back.
 */
SKEP_MUST_CHECK skep_status file_writer_commit(struct file_writer *w, struct skep_error *err);
/* The same, but a file that has the name already stays: SKEP_FAILED_PRECONDITION. In one step, so
 * that of several writers one wins. */
SKEP_MUST_CHECK skep_status file_writer_commit_new(struct file_writer *w, struct skep_error *err);
/* Removes what was written. Does nothing after commit, on NULL and on zeroed memory. */
void file_writer_abort(struct file_writer *w);

#endif
