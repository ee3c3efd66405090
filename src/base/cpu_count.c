/*
 * Reads control groups as the kernel describes them (cgroups(7), "/proc files", and proc(5)):
 *
 *   /proc/self/cgroup     N:controllers:path     v2: "0::path"; v1: controllers name "cpu"
 *   /proc/self/mountinfo  ... root mount-point ... - type source options
 *
 * A group's files are at mount-point + (path without root). A quota holds for all groups below its
 * own, so every directory from there up to the mount point is read. What cannot be read sets no
 * quota: a process in another namespace than its mounts sees paths that do not exist.
 */
#include "base/cpu_count.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_BYTES = 4096 + 1024,
    PATH_BYTES = 4096,
    MAX_DEPTH = 64,       /* of nested groups; the kernel's own limit is far below */
    MOUNT_ROOT_FIELD = 3, /* of a line of mountinfo, counted from 0 */
    MOUNT_POINT_FIELD = 4,
    MAX_AFFINITY_CPUS = 1 << 16,
};

enum version { GROUP_V1, GROUP_V2 };

/* Undoes mountinfo's octal escapes (\040 for a space). */
static void unescape(char *text)
{
    char *out = text;

    for (const char *in = text; *in != '\0'; out++) {
        if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] >= '0' && in[2] <= '7' &&
            in[3] >= '0' && in[3] <= '7') {
            *out = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
            in += 4;
        } else {
            *out = *in++;
        }
    }
    *out = '\0';
}

static bool lists_cpu(const char *list)
{
    while (*list != '\0') {
        size_t n = strcspn(list, ",");

        if (n == 3 && memcmp(list, "cpu", 3) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

/* The process's group in the hierarchy of one version. */
static bool find_group(const char *root, enum version version, char path[static PATH_BYTES])
{
    char line[LINE_BYTES];
    bool found = false;

    snprintf(line, sizeof(line), "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        char *controllers = strchr(line, ':');
        char *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

        if (at == NULL)
            continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        if (at[0] != '/' || strlen(at) >= PATH_BYTES)
            continue;
        found = version == GROUP_V2 ? strcmp(line, "0:") == 0 : lists_cpu(controllers + 1);
        if (found)
            memcpy(path, at, strlen(at) + 1);
    }
    fclose(f);
    return found;
}

/* Cuts a line of mountinfo up. False if it mounts something else. */
static bool parse_mount(char *line, enum version version, char **mount_root, char **mount_point)
{
    char *rest = NULL;
    char *end = strstr(line, " - ");
    unsigned field = 0;

    if (end == NULL)
        return false;
    *end = '\0';
    char *type = strtok_r(end + 3, " \n", &rest);
    char *source = strtok_r(NULL, " \n", &rest);
    char *options = strtok_r(NULL, " \n", &rest);
    if (type == NULL || source == NULL || options == NULL)
        return false;
    if (version == GROUP_V2 ? strcmp(type, "cgroup2") != 0
                            : strcmp(type, "cgroup") != 0 || !lists_cpu(options))
        return false;
    *mount_root = *mount_point = NULL;
    for (char *at = strtok_r(line, " ", &rest); at != NULL; at = strtok_r(NULL, " ", &rest)) {
        if (field == MOUNT_ROOT_FIELD)
            *mount_root = at;
        if (field++ == MOUNT_POINT_FIELD)
            *mount_point = at;
    }
    if (*mount_root == NULL || *mount_point == NULL)
        return false;
    unescape(*mount_root);
    unescape(*mount_point);
    return true;
}

/* Where the group's own directory lies below the mount point: "" for the mount point itself. */
static const char *below_mount(const char *group, const char *mount_root)
{
    size_t n = strcmp(mount_root, "/") == 0 ? 0 : strlen(mount_root);

    if (strncmp(group, mount_root, n) != 0 || (group[n] != '/' && group[n] != '\0'))
        return ""; /* another namespace's path: the mount point is the best that can be seen */
    return group[n] == '/' && group[n + 1] == '\0' ? "" : group + n;
}

static bool read_line(const char *dir, const char *name, char line[static 64])
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

    if (n < 0 || (size_t)n >= sizeof(path))
        return false;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    bool ok = fgets(line, 64, f) != NULL;
    fclose(f);
    return ok;
}

/* The quota of one directory in CPUs, rounded up; 0: none. */
static unsigned quota_of(const char *dir, enum version version)
{
    char line[64];
    char *rest = line;
    long long quota;
    long long period;

    if (!read_line(dir, version == GROUP_V2 ? "cpu.max" : "cpu.cfs_quota_us", line))
        return 0;
    quota = strtoll(line, &rest, 10); /* "max", and v1's -1, are no quota */
    if (rest == line || quota <= 0)
        return 0;
    if (version == GROUP_V1 && !read_line(dir, "cpu.cfs_period_us", line))
        return 0;
    period = strtoll(version == GROUP_V2 ? rest : line, NULL, 10);
    if (period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period > 0);
    return cpus < INT_MAX ? (unsigned)cpus : INT_MAX;
}

static unsigned smaller(unsigned a, unsigned b)
{
    return b > 0 && (a == 0 || b < a) ? b : a;
}

/* Reads every directory from the group's own up to the mount point. */
static unsigned quota_on_path(const char *root, const char *mount_point, const char *below,
                              enum version version)
{
    char dir[PATH_BYTES];
    size_t top = strlen(root) + strlen(mount_point);
    int n = snprintf(dir, sizeof(dir), "%s%s%s", root, mount_point, below);
    unsigned quota = 0;

    if (strstr(below, "/..") != NULL) /* above what this process's namespace shows */
        n = snprintf(dir, sizeof(dir), "%s%s", root, mount_point);
    if (n < 0 || (size_t)n >= sizeof(dir))
        return 0;
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        quota = smaller(quota, quota_of(dir, version));
        char *last = strrchr(dir, '/');
        if (strlen(dir) <= top || last == NULL)
            break;
        *last = '\0';
    }
    return quota;
}

static unsigned quota_in_hierarchy(const char *root, enum version version)
{
    char group[PATH_BYTES];
    char line[LINE_BYTES];
    char *mount_root;
    char *mount_point;
    unsigned quota = 0;

    if (!find_group(root, version, group))
        return 0;
    snprintf(line, sizeof(line), "%s/proc/self/mountinfo", root);
    FILE *f = fopen(line, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (parse_mount(line, version, &mount_root, &mount_point))
            quota = smaller(
                quota, quota_on_path(root, mount_point, below_mount(group, mount_root), version));
    fclose(f);
    return quota;
}

unsigned cpu_quota(const char *root)
{
    return smaller(quota_in_hierarchy(root, GROUP_V2), quota_in_hierarchy(root, GROUP_V1));
}

/* The kernel refuses a mask smaller than its own, so the mask grows until it fits. */
static unsigned affinity_count(void)
{
    for (size_t cpus = CPU_SETSIZE; cpus <= MAX_AFFINITY_CPUS; cpus *= 2) {
        cpu_set_t *set = CPU_ALLOC(cpus);
        size_t bytes = CPU_ALLOC_SIZE(cpus);
        int count = 0;

        if (set == NULL)
            break;
        if (sched_getaffinity(0, bytes, set) == 0)
            count = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0)
            return (unsigned)count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

static unsigned counted;

static void count_once(void)
{
    counted = smaller(affinity_count(), cpu_quota(""));
}

unsigned cpu_count(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, count_once);
    return counted;
}
