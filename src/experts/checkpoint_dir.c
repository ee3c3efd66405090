/* See checkpoint_dir.h. */
#include "experts/checkpoint_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

static const char last_name[] = "checkpoint_last";
static const char probe_name[] = ".writable.tmp";

enum { TEMP_SUFFIX_BYTES = 32 };

static skep_status failed(const char *path, const char *what, struct skep_error *err)
{
    int code = errno;

    return error_set(err, status_from_errno(code), "%s: cannot %s: %s", path, what, strerror(code));
}

/* "<folder>/<name>". owned: mem_free(). */
static char *join_path(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = mem_alloc(size);

    if (path != NULL)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* --- names --------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void checkpoint_dir_free_names(char **names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        mem_free(names[i]);
    mem_free(names);
}

static skep_status list_folder(const char *path, char ***out, size_t *out_count,
                               struct skep_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    char **names = NULL;
    size_t count = 0;
    size_t cap = 0;
    skep_status rc = SKEP_OK;

    *out = NULL;
    *out_count = 0;
    if (folder == NULL) {
        rc = failed(path, "open this folder", err);
        if (fd >= 0)
            close(fd);
        return rc;
    }
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (count == cap) {
            size_t more = cap == 0 ? 16 : 2 * cap;
            char **grown = mem_realloc(names, more * sizeof(*names));

            if (grown == NULL) {
                rc = error_no_memory(err, path, more * sizeof(*names));
                break;
            }
            names = grown;
            cap = more;
        }
        names[count] = mem_strdup(e->d_name);
        if (names[count] == NULL) {
            rc = error_no_memory(err, path, strlen(e->d_name));
            break;
        }
        count++;
    }
    closedir(folder);
    if (rc != SKEP_OK) {
        checkpoint_dir_free_names(names, count);
        return rc;
    }
    if (count > 1)
        qsort(names, count, sizeof(*names), by_text);
    *out = names;
    *out_count = count;
    return SKEP_OK;
}

skep_status checkpoint_dir_list(const struct checkpoint_dir *dir, char ***names, size_t *count,
                                struct skep_error *err)
{
    return list_folder(dir->path, names, count, err);
}

skep_status checkpoint_dir_check_entry(const struct checkpoint_dir *dir, const char *name,
                                       struct skep_error *err)
{
    char *path = join_path(dir->path, name);
    struct stat info;
    skep_status rc = SKEP_OK;

    if (path == NULL)
        return error_no_memory(err, name, strlen(name));
    if (lstat(path, &info) != 0)
        rc = failed(path, "inspect", err);
    else if (S_ISLNK(info.st_mode) && stat(path, &info) != 0)
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: a link that leads nowhere", path);
    else if (!S_ISDIR(info.st_mode))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: not a folder", path);
    mem_free(path);
    return rc;
}

skep_status checkpoint_dir_check_uid(const char *uid, struct skep_error *err)
{
    size_t len = strlen(uid);
    char quoted[TEXT_QUOTE_BYTES];

    if (len > 0 && len < CHECKPOINT_UID_BYTES && uid[0] != '.' && strchr(uid, '/') == NULL)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT,
                     "expert %s: cannot be kept, as its UID is no name for a folder",
                     text_quote(uid, len, quoted));
}

/* --- opening ------------------------------------------------------------------------------- */

/* A read-only file system shows only when something is written. */
static skep_status check_writable(const char *path, struct skep_error *err)
{
    char *probe = join_path(path, probe_name);
    skep_status rc = SKEP_OK;
    int fd;

    if (probe == NULL)
        return error_no_memory(err, path, strlen(path));
    fd = open(probe, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        rc = failed(path, "write checkpoints into this folder", err);
    } else {
        close(fd);
        unlink(probe);
    }
    mem_free(probe);
    return rc;
}

static skep_status lock_folder(struct checkpoint_dir *dir, struct skep_error *err)
{
    dir->lock = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->lock < 0)
        return failed(dir->path, "open this folder", err);
    dir->lock = fd_move_high(dir->lock);
    /* File systems without locks are trusted to be used by one node. */
    if (flock(dir->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return error_set(err, SKEP_FAILED_PRECONDITION,
                         "%s: another process keeps its checkpoints here", dir->path);
    return SKEP_OK;
}

skep_status checkpoint_dir_open(struct checkpoint_dir *dir, const char *path, bool for_writing,
                                struct skep_error *err)
{
    struct stat info;
    skep_status rc = SKEP_OK;

    *dir = (struct checkpoint_dir){.path = mem_strdup(path), .lock = -1};
    if (dir->path == NULL)
        return error_no_memory(err, path, strlen(path));
    if (for_writing && mkdir(path, 0777) != 0 && errno != EEXIST)
        rc = failed(path, "make this folder", err);
    else if (stat(path, &info) != 0)
        rc = failed(path, "open this folder", err);
    else if (!S_ISDIR(info.st_mode))
        rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s: not a folder", path);
    if (rc == SKEP_OK && for_writing)
        rc = checkpoint_dir_lock(dir, err);
    if (rc != SKEP_OK)
        checkpoint_dir_close(dir);
    return rc;
}

skep_status checkpoint_dir_lock(struct checkpoint_dir *dir, struct skep_error *err)
{
    skep_status rc = dir->lock < 0 ? lock_folder(dir, err) : SKEP_OK;

    if (rc == SKEP_OK)
        rc = check_writable(dir->path, err);
    if (rc != SKEP_OK && dir->lock >= 0) {
        close(dir->lock);
        dir->lock = -1;
    }
    return rc;
}

bool checkpoint_dir_is_in_use(const struct checkpoint_dir *dir)
{
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool in_use = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    if (fd >= 0)
        close(fd); /* and the lock with it, if there was none */
    return in_use;
}

void checkpoint_dir_close(struct checkpoint_dir *dir)
{
    if (dir->path == NULL)
        return;
    if (dir->lock >= 0)
        close(dir->lock);
    mem_free(dir->path);
    *dir = (struct checkpoint_dir){.lock = -1};
}

/* --- generations --------------------------------------------------------------------------- */

struct generation {
    uint64_t updates, number;
};

static bool read_digits(const char **at, uint64_t *out)
{
    char *end;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0;
}

static void generation_name(const struct generation *g, char out[static NAME_MAX + 1])
{
    snprintf(out, NAME_MAX + 1, "checkpoint_%" PRIu64 "_%" PRIu64 ".safetensors", g->updates,
             g->number);
}

static bool read_generation(const char *name, struct generation *out)
{
    static const char prefix[] = "checkpoint_";
    const char *at = name + sizeof(prefix) - 1;
    char again[NAME_MAX + 1];

    if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 || !read_digits(&at, &out->updates) ||
        *at++ != '_' || !read_digits(&at, &out->number) || strcmp(at, ".safetensors") != 0 ||
        out->number == UINT64_MAX)
        return false;
    generation_name(out, again); /* one name for one generation: no leading zeros */
    return strcmp(again, name) == 0;
}

static int newest_first(const void *a, const void *b)
{
    const struct generation *x = a;
    const struct generation *y = b;

    if (x->number != y->number)
        return x->number > y->number ? -1 : 1;
    return x->updates > y->updates ? -1 : x->updates < y->updates;
}

/* All that are in a folder, newest first. @param out owned: mem_free(). */
static skep_status list_generations(const char *folder, struct generation **out, size_t *count,
                                    struct skep_error *err)
{
    char **names;
    size_t name_count;
    struct generation *found;
    skep_status rc = list_folder(folder, &names, &name_count, err);

    *out = NULL;
    *count = 0;
    if (rc != SKEP_OK)
        return rc;
    found = mem_calloc(name_count + 1, sizeof(*found));
    if (found == NULL)
        rc = error_no_memory(err, folder, name_count * sizeof(*found));
    for (size_t i = 0; rc == SKEP_OK && i < name_count; i++)
        if (read_generation(names[i], &found[*count]))
            ++*count;
    checkpoint_dir_free_names(names, name_count);
    if (rc == SKEP_OK && *count > 1)
        qsort(found, *count, sizeof(*found), newest_first);
    *out = found;
    return rc;
}

bool checkpoint_dir_has(const struct checkpoint_dir *dir, const char *uid)
{
    char *folder = join_path(dir->path, uid);
    struct generation *list = NULL;
    size_t count = 0;

    if (folder != NULL && list_generations(folder, &list, &count, NULL) != SKEP_OK)
        count = 0;
    mem_free(list);
    mem_free(folder);
    return count > 0;
}

static bool is_temp(const char *name)
{
    return strncmp(name, "checkpoint_", 11) == 0 && strstr(name, ".tmp.") != NULL;
}

void checkpoint_dir_clean(const struct checkpoint_dir *dir, const char *uid)
{
    char *folder = dir->lock >= 0 ? join_path(dir->path, uid) : NULL; /* else somebody may save */
    char **names = NULL;
    size_t count = 0;

    if (folder != NULL && list_folder(folder, &names, &count, NULL) == SKEP_OK)
        for (size_t i = 0; i < count; i++) {
            char *path = is_temp(names[i]) ? join_path(folder, names[i]) : NULL;

            if (path != NULL && unlink(path) == 0)
                log_info("%s: left by a save that was cut short, removed", path);
            mem_free(path);
        }
    checkpoint_dir_free_names(names, count);
    mem_free(folder);
}

/* --- loading ------------------------------------------------------------------------------- */

typedef skep_status (*open_fn)(const char *path, struct checkpoint **out, struct skep_error *err);

static skep_status try_one(const char *path, open_fn opens, checkpoint_use_fn use, void *arg,
                           struct skep_error *err)
{
    struct checkpoint *checkpoint;
    skep_status rc = opens(path, &checkpoint, err);

    if (rc != SKEP_OK)
        return rc;
    rc = use(arg, checkpoint, path, err);
    if (rc != SKEP_OK)
        error_prefix(err, "%s", path);
    checkpoint_close(checkpoint);
    return rc;
}

/* Tries generations, newest first, until one can be used. */
static skep_status try_all(const char *folder, const struct generation *list, size_t count,
                           open_fn opens, checkpoint_use_fn use, void *arg, struct skep_error *err)
{
    struct skep_error first = {0};
    char name[NAME_MAX + 1];

    for (size_t i = 0; i < count; i++) {
        struct skep_error why = {0};
        generation_name(&list[i], name);
        char *path = join_path(folder, name);
        skep_status rc = path != NULL ? try_one(path, opens, use, arg, &why)
                                      : error_no_memory(&why, folder, sizeof(name));

        mem_free(path);
        if (rc == SKEP_OK)
            return SKEP_OK;
        if (rc == SKEP_RESOURCE_EXHAUSTED) {
            error_set(err, rc, "%s", why.message);
            return rc;
        }
        log_warn("%s; %s", why.message,
                 i + 1 < count ? "the one before it is tried" : "there is none before it");
        if (i == 0)
            first = why;
    }
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "%s: none of its checkpoints can be used, of which it has %zu (newest: %s); "
                     "move the folder away to start anew",
                     folder, count, first.message);
}

static skep_status find_usable(const struct checkpoint_dir *dir, const char *uid, open_fn opens,
                               checkpoint_use_fn use, void *arg, struct skep_error *err)
{
    struct generation *list = NULL;
    size_t count = 0;
    char *folder;
    skep_status rc = checkpoint_dir_check_uid(uid, err);

    if (rc != SKEP_OK)
        return rc;
    folder = join_path(dir->path, uid);
    if (folder == NULL)
        return error_no_memory(err, uid, strlen(uid));
    rc = list_generations(folder, &list, &count, err);
    if (rc == SKEP_OK && count == 0)
        rc = error_set(err, SKEP_NOT_FOUND, "%s: holds no checkpoint", folder);
    if (rc == SKEP_OK)
        rc = try_all(folder, list, count, opens, use, arg, err);
    mem_free(list);
    mem_free(folder);
    return rc;
}

skep_status checkpoint_dir_load(const struct checkpoint_dir *dir, const char *uid,
                                checkpoint_use_fn use, void *arg, struct skep_error *err)
{
    return find_usable(dir, uid, checkpoint_open, use, arg, err);
}

skep_status checkpoint_dir_peek(const struct checkpoint_dir *dir, const char *uid,
                                checkpoint_use_fn use, void *arg, struct skep_error *err)
{
    return find_usable(dir, uid, checkpoint_peek, use, arg, err);
}

/* --- saving -------------------------------------------------------------------------------- */

/* Makes the changes of names in a folder durable; best effort, as the file's own are. */
static void sync_folder(const char *folder)
{
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

/* Some file systems have no links: there a file names the newest. */
static skep_status write_last(const char *path, const char *name, struct skep_error *err)
{
    struct file_writer writer;
    struct stat info;

    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode))
        (void)unlink(path);
    skep_status rc = file_writer_open(&writer, path, 0666, err);
    if (rc == SKEP_OK)
        rc = file_writer_write(&writer, name, strlen(name), err);
    if (rc == SKEP_OK)
        rc = file_writer_commit(&writer, err);
    file_writer_abort(&writer);
    return rc;
}

static skep_status point_last(const char *folder, const char *name, struct skep_error *err)
{
    static const char temp_suffix[] = ".tmp.link";
    char *path = join_path(folder, last_name);
    char *temp = mem_alloc(strlen(folder) + sizeof(last_name) + TEMP_SUFFIX_BYTES);
    skep_status rc = SKEP_OK;

    if (path == NULL || temp == NULL) {
        rc = error_no_memory(err, folder, strlen(folder));
        goto out;
    }
    snprintf(temp, strlen(folder) + sizeof(last_name) + TEMP_SUFFIX_BYTES, "%s%s", path,
             temp_suffix);
    (void)unlink(temp); /* the folder is locked, so it is nobody's */
    if (symlink(name, temp) != 0) {
        rc = errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS
                 ? write_last(path, name, err)
                 : failed(temp, "make this link", err);
    } else if (rename(temp, path) != 0) {
        rc = failed(path, "replace this link", err);
        (void)unlink(temp);
    }

out:
    mem_free(temp);
    mem_free(path);
    return rc;
}

static void remove_old(const char *folder, const struct generation *list, size_t count, size_t keep)
{
    char name[NAME_MAX + 1];

    for (size_t i = keep; i < count; i++) {
        generation_name(&list[i], name);
        char *path = join_path(folder, name);

        if (path != NULL && unlink(path) != 0 && errno != ENOENT)
            log_warn("%s: cannot remove this old checkpoint: %s", path, strerror(errno));
        mem_free(path);
    }
}

static skep_status save_in(const char *folder, const struct checkpoint_header *header,
                           struct expert *expert, float *copy, size_t keep, struct skep_error *err)
{
    struct generation *list = NULL;
    size_t count = 0;
    char name[NAME_MAX + 1];
    char *path = NULL;
    skep_status rc = list_generations(folder, &list, &count, err);

    if (rc != SKEP_OK)
        return rc;
    const struct generation next = {
        .updates = header->counters.updates,
        .number = count > 0 ? list[0].number + 1 : 1,
    };
    generation_name(&next, name);
    path = join_path(folder, name);
    rc = path != NULL ? checkpoint_save(path, header, expert, copy, err)
                      : error_no_memory(err, folder, sizeof(name));
    if (rc == SKEP_OK) {
        rc = point_last(folder, name, err);
        if (rc != SKEP_OK)
            (void)unlink(path); /* or they would pile up while the link cannot be replaced */
    }
    if (rc == SKEP_OK && keep > 0)
        remove_old(folder, list, count, keep - 1); /* the new one is not in the list */
    if (rc == SKEP_OK)
        sync_folder(folder);
    mem_free(path);
    mem_free(list);
    return rc;
}

skep_status checkpoint_dir_save(const struct checkpoint_dir *dir,
                                const struct checkpoint_header *header, struct expert *expert,
                                float *copy, size_t keep, struct skep_error *err)
{
    char *folder;
    skep_status rc = checkpoint_dir_check_uid(header->uid, err);

    if (rc != SKEP_OK)
        return rc;
    folder = join_path(dir->path, header->uid);
    if (folder == NULL)
        return error_no_memory(err, header->uid, strlen(header->uid));
    if (mkdir(folder, 0777) == 0)
        sync_folder(dir->path);
    else if (errno != EEXIST)
        rc = failed(folder, "make this folder", err);
    if (rc == SKEP_OK)
        rc = save_in(folder, header, expert, copy, keep, err);
    mem_free(folder);
    return rc;
}
