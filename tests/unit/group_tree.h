/* Made-up trees of /proc and of control groups, one for each test. */
#ifndef SKEP_TESTS_GROUP_TREE_H
#define SKEP_TESTS_GROUP_TREE_H

#include "unit.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tempdir.h"

struct tree {
    struct tempdir dir;
};

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int group_tree_set_up(void **state)
{
    struct tree *tree = calloc(1, sizeof(*tree));

    tempdir_make(&tree->dir);
    *state = tree;
    return 0;
}

static int group_tree_tear_down(void **state)
{
    struct tree *tree = *state;

    nftw(tree->dir.path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(tree);
    return 0;
}

/* Writes a file, and makes the folders above it. */
static void put(const struct tree *tree, const char *name, const char *text)
{
    char path[1024];
    size_t root = strlen(tree->dir.path);

    snprintf(path, sizeof(path), "%s/%s", tree->dir.path, name);
    for (char *at = strchr(path + root + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char v2_mounts[] =
    "21 1 0:19 / /sys rw,nosuid - sysfs sysfs rw\n"
    "30 21 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

static void put_v2(const struct tree *tree, const char *group)
{
    put(tree, "proc/self/mountinfo", v2_mounts);
    put(tree, "proc/self/cgroup", group);
}

#define TREE_TEST(name)                                                                            \
    cmocka_unit_test_setup_teardown(name, group_tree_set_up, group_tree_tear_down)

#endif
