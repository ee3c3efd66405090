/*
 * One identity, one process: two nodes under one key would overwrite each other's records and
 * answer each other's calls.
 *
 * The lock is flock(2) on `<path>.lock`, so it ends with its holder however that ends. The file
 * holds the holder's pid for the message to others. It is unlinked on release, while still held;
 * hence a newcomer that locked a file has to check that the file still has the name.
 *
 * Where that file cannot be made, as on a read-only mount of secrets, the key file itself is locked
 * in its place. Either kind of holder looks for the other before it goes on. What it cannot see is
 * a holder of `<path>.lock` through a mount of the key file alone.
 */
#include "crypto/identity.h"
#include "crypto/key_file.h"

#include "base/error.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Each further try means that a holder released the lock within microseconds of our opening it. */
enum { MAX_TRIES = 100 };

static bool lock_path(char out[static PATH_MAX], const char *path)
{
    int n = snprintf(out, PATH_MAX, "%s.lock", path);

    return n > 0 && n < PATH_MAX;
}

/* @param fd  of the lock file; -1: not known who holds it. */
static skep_status refuse_held(int fd, const char *path, struct skep_error *err)
{
    char pid[24] = "";
    ssize_t n = fd >= 0 ? pread(fd, pid, sizeof(pid) - 1, 0) : 0;

    /* The holder writes its pid right after it locks; until then there is none to name. */
    pid[n > 0 ? n : 0] = '\0';
    pid[strspn(pid, "0123456789")] = '\0';
    return error_set(err, SKEP_FAILED_PRECONDITION,
                     "%s: this identity is in use by process %s; "
                     "give the second node an identity of its own",
                     path, pid[0] != '\0' ? pid : "(unknown)");
}

static bool still_named(int fd, const char *name)
{
    struct stat held, named;

    return fstat(fd, &held) == 0 && stat(name, &named) == 0 && held.st_dev == named.st_dev &&
           held.st_ino == named.st_ino;
}

static void write_pid(int fd)
{
    char text[24];
    int n = snprintf(text, sizeof(text), "%ld\n", (long)getpid());

    /* The pid is for people; the lock holds without it, e.g. on a full disk. */
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        return;
}

/* One try: *fd is -1 with SKEP_OK if the file lost its name meanwhile. */
static skep_status try_lock(const char *name, const char *path, int *fd, struct skep_error *err)
{
    skep_status rc = SKEP_OK;
    int locked = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY, 0600);

    *fd = -1;
    if (locked < 0)
        return error_set(err, status_from_errno(errno), "%s: cannot open: %s", name,
                         strerror(errno));
    if (flock(locked, LOCK_EX | LOCK_NB) != 0) {
        rc = errno == EWOULDBLOCK ? refuse_held(locked, path, err)
                                  : error_set(err, status_from_errno(errno), "%s: cannot lock: %s",
                                              name, strerror(errno));
        close(locked);
        return rc;
    }
    if (!still_named(locked, name)) {
        close(locked);
        return SKEP_OK;
    }
    write_pid(locked);
    *fd = fd_move_high(locked);
    return SKEP_OK;
}

/* Opens a file for its lock alone; -1 if it is not there or not for us. */
static int open_to_look(const char *name)
{
    return open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
}

/* Whether somebody holds the lock of a file. */
static bool is_held(const char *name)
{
    int fd = open_to_look(name);
    bool held = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;

    if (fd >= 0)
        close(fd);
    return held;
}

/* The key file in place of the lock file `name`, which cannot be made. */
static skep_status lock_key(const char *name, const char *path, int *fd, struct skep_error *err)
{
    int locked = open_to_look(path);
    int other = open_to_look(name);
    skep_status rc = SKEP_OK;

    if (locked < 0)
        return error_set(err, status_from_errno(errno), "%s: cannot open: %s", path,
                         strerror(errno));
    if (other >= 0 && flock(other, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        rc = refuse_held(other, path, err);
    else if (flock(locked, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        rc = refuse_held(-1, path, err);
    /* Else it is locked, or on a file system without locks, which is trusted to be used by one. */
    if (other >= 0)
        close(other);
    if (rc == SKEP_OK)
        *fd = fd_move_high(locked);
    else
        close(locked);
    return rc;
}

/* Whether a lock file cannot be made for reasons that do not concern the key. */
static bool is_read_only(skep_status rc, const char *path)
{
    return rc == SKEP_PERMISSION_DENIED && access(path, R_OK) == 0;
}

skep_status identity_lock(const char *path, int *fd, struct skep_error *err)
{
    char name[PATH_MAX];

    *fd = -1;
    if (!lock_path(name, path))
        return error_set(err, SKEP_INVALID_ARGUMENT, "%s: path too long", path);
    skep_status rc = key_file_make_parents(path, err);
    for (int i = 0; i < MAX_TRIES && rc == SKEP_OK && *fd < 0; i++)
        rc = try_lock(name, path, fd, err);
    if (rc == SKEP_OK && *fd < 0)
        return error_set(err, SKEP_FAILED_PRECONDITION, "%s: keeps being replaced by others", name);
    if (is_read_only(rc, path))
        return lock_key(name, path, fd, err);
    if (rc == SKEP_OK && is_held(path)) {
        identity_unlock(path, *fd);
        *fd = -1;
        rc = refuse_held(-1, path, err);
    }
    return rc;
}

void identity_unlock(const char *path, int fd)
{
    char name[PATH_MAX];

    if (fd < 0)
        return;
    if (lock_path(name, path) && still_named(fd, name))
        unlink(name);
    close(fd);
}
