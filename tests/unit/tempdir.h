/* A folder of its own for a test, removed with all files in it (not with folders). */
#ifndef SKEP_TESTS_TEMPDIR_H
#define SKEP_TESTS_TEMPDIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tempdir {
    char path[256];
};

static inline void tempdir_make(struct tempdir *dir)
{
    const char *base = getenv("TMPDIR");

    snprintf(dir->path, sizeof(dir->path), "%s/skep-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(dir->path) == NULL) {
        perror(dir->path);
        abort();
    }
}

/* The path of a file in it; out has room for 512 characters. */
static inline const char *tempdir_file(const struct tempdir *dir, const char *name, char out[512])
{
    snprintf(out, 512, "%s/%s", dir->path, name);
    return out;
}

/* How many files are in it; each is removed if `remove_them`. */
static inline size_t tempdir_count(const struct tempdir *dir, int remove_them)
{
    DIR *d = opendir(dir->path);
    size_t n = 0;
    char path[512];

    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        n++;
        if (remove_them)
            unlink(tempdir_file(dir, e->d_name, path));
    }
    if (d != NULL)
        closedir(d);
    return n;
}

static inline void tempdir_remove(const struct tempdir *dir)
{
    tempdir_count(dir, 1);
    rmdir(dir->path);
}

#endif
