/* Mapping and replacing files. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"

enum {
    TEMP_SUFFIX_BYTES = 48,
    TEMP_ATTEMPTS = 100, /* names left by a dead process that had this pid */
};

static skep_status failed(const char *path, const char *verb, struct skep_error *err)
{
    int code = errno;

    return error_set(err, status_from_errno(code), "%s: cannot %s: %s", path, verb, strerror(code));
}

skep_status file_map(struct file_map *out, const char *path, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    struct stat info;
    /* Not blocking, in case the path is a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    *out = (struct file_map){0};
    if (fd < 0)
        return failed(path, "open", err);
    if (fstat(fd, &info) != 0) {
        rc = failed(path, "inspect", err);
    } else if (!S_ISREG(info.st_mode)) {
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: is not a regular file", path);
    } else if (info.st_size > 0) {
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            rc = failed(path, "map", err);
        else
            *out = (struct file_map){.data = data, .len = (size_t)info.st_size};
    }
    close(fd);
    return rc;
}

void file_unmap(struct file_map *map)
{
    if (map == NULL)
        return;
    if (map->data != NULL)
        munmap((void *)(uintptr_t)map->data, map->len);
    *map = (struct file_map){0};
}

/* Creates the temporary file beside the path. */
static int create_temp(char *temp, size_t cap, const char *path, mode_t mode)
{
    static atomic_uint counter;
    int fd = -1;

    for (int i = 0; i < TEMP_ATTEMPTS && fd < 0; i++) {
        snprintf(temp, cap, "%s.tmp.%ld.%u", path, (long)getpid(), atomic_fetch_add(&counter, 1));
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    return fd;
}

skep_status file_writer_open(struct file_writer *out, const char *path, mode_t mode,
                             struct skep_error *err)
{
    struct stat info;
    size_t cap = strlen(path) + TEMP_SUFFIX_BYTES;
    struct file_writer w = {.fd = -1};
    skep_status rc;

    *out = (struct file_writer){.fd = -1};
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: is there and is not a regular file",
                         path);
    w.path = mem_strdup(path);
    w.temp = mem_alloc(cap);
    if (w.path == NULL || w.temp == NULL) {
        rc = error_no_memory(err, path, cap);
        goto fail;
    }
    w.fd = create_temp(w.temp, cap, path, mode);
    if (w.fd < 0) {
        rc = failed(path, "create a file beside it", err);
        goto fail;
    }
    *out = w;
    return SKEP_OK;

fail:
    mem_free(w.path);
    mem_free(w.temp);
    return rc;
}

skep_status file_writer_write(struct file_writer *w, const void *data, size_t len,
                              struct skep_error *err)
{
    const uint8_t *p = data;

    while (len > 0) {
        ssize_t n = write(w->fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return failed(w->path, "write", err);
        p += n;
        len -= (size_t)n;
    }
    return SKEP_OK;
}

/* Makes the new name durable; cuts `path` at its last slash. A folder that cannot be opened or
 * synced for lack of permission or support keeps the file all the same. */
static int sync_folder(char *path)
{
    char *slash = strrchr(path, '/');

    if (slash != NULL)
        slash[slash == path ? 1 : 0] = '\0';
    int fd = open(slash != NULL ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd < 0 ? -1 : fsync(fd);
    int code = result == 0 ? 0 : errno;
    if (fd >= 0)
        close(fd);
    if (code == EINVAL || code == ENOTSUP || code == EACCES)
        code = 0;
    errno = code;
    return code == 0 ? 0 : -1;
}

static int rename_over(const char *temp, const char *path)
{
    return rename(temp, path);
}

static int rename_new(const char *temp, const char *path)
{
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    /* A file system without this kind of rename: a link has the same effect, in two steps. */
    if (link(temp, path) != 0)
        return -1;
    unlink(temp);
    return 0;
}

static skep_status commit(struct file_writer *w, int (*give_name)(const char *, const char *),
                          struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    int fd = w->fd;

    if (fsync(fd) != 0)
        rc = failed(w->path, "write to disk", err);
    w->fd = -1;
    if (close(fd) != 0 && rc == SKEP_OK)
        rc = failed(w->path, "close", err);
    if (rc == SKEP_OK && give_name(w->temp, w->path) != 0)
        rc = errno == EEXIST ? error_set(err, SKEP_FAILED_PRECONDITION,
                                         "%s: exists already and is not overwritten", w->path)
                             : failed(w->path, "replace", err);
    if (rc != SKEP_OK) {
        file_writer_abort(w);
        return rc;
    }
    if (sync_folder(w->path) != 0)
        rc = failed(w->path, "write this folder to disk", err);
    mem_free(w->temp);
    mem_free(w->path);
    *w = (struct file_writer){.fd = -1};
    return rc;
}

skep_status file_writer_commit(struct file_writer *w, struct skep_error *err)
{
    return commit(w, rename_over, err);
}

skep_status file_writer_commit_new(struct file_writer *w, struct skep_error *err)
{
    return commit(w, rename_new, err);
}

void file_writer_abort(struct file_writer *w)
{
    if (w == NULL || w->temp == NULL)
        return;
    unlink(w->temp);
    if (w->fd >= 0)
        close(w->fd);
    mem_free(w->temp);
    mem_free(w->path);
    *w = (struct file_writer){.fd = -1};
}
