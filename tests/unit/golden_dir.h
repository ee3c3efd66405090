/* Where the golden data is: the folder $SKEP_GOLDEN_DIR, else the one of the source tree that this
 * was built from. What is missing is said, and ends the program: some look before any test runs,
 * where a failed assertion would crash. */
#ifndef SKEP_TESTS_GOLDEN_DIR_H
#define SKEP_TESTS_GOLDEN_DIR_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { GOLDEN_PATH_BYTES = 1024 };

_Noreturn static inline void golden_missing(const char *path)
{
    fprintf(stderr, "%s: no golden data there; set SKEP_GOLDEN_DIR to the folder tests/golden\n",
            path);
    exit(1);
}

/* Something in it; "" is all of it. Returns out. */
static inline const char *golden_path(const char *part, char out[static GOLDEN_PATH_BYTES])
{
    const char *base = getenv("SKEP_GOLDEN_DIR");
    struct stat info;

    snprintf(out, GOLDEN_PATH_BYTES, "%s/%s", base != NULL ? base : SKEP_GOLDEN_DEFAULT, part);
    if (stat(out, &info) != 0)
        golden_missing(out);
    return out;
}

/* The entries of one of its folders, sorted; 1 to `most`. Each is freed with free(), as the list.
 */
static inline size_t golden_list(const char *folder, int (*filter)(const struct dirent *entry),
                                 size_t most, struct dirent ***entries)
{
    int n = scandir(folder, entries, filter, alphasort);

    if (n <= 0 || (size_t)n > most)
        golden_missing(folder);
    return (size_t)n;
}

#endif
