/*
 * Reads control groups as the kernel describes them (cgroups(7), "/proc files", and proc(5)):
 *
 *   /proc/self/cgroup     N:controllers:path     v2: "0::path"; v1: controllers are a list
 *   /proc/self/mountinfo  ... root mount-point ... - type source options
 *
 * A group's files are at mount-point + (path without root). What cannot be read bounds nothing: a
 * process in another namespace than its mounts sees paths that do not exist.
 */
#include "base/control_group.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    LINE_BYTES = 4096 + 1024,
    PATH_BYTES = 4096,
    MAX_DEPTH = 64,       /* of nested groups; the kernel's own limit is far below */
    MOUNT_ROOT_FIELD = 3, /* of a line of mountinfo, counted from 0 */
    MOUNT_POINT_FIELD = 4,
};

/* In one hierarchy. */
struct walk {
    const char *root;
    const char *controller;
    enum control_group_version version;
    void (*fn)(void *arg, const struct control_group *group);
    void *arg;
};

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

/* Whether a list that commas part names a controller. */
static bool lists(const char *list, const char *controller)
{
    size_t wanted = strlen(controller);

    while (*list != '\0') {
        size_t n = strcspn(list, ",");

        if (n == wanted && memcmp(list, controller, n) == 0)
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

/* The process's group in the hierarchy of one version. */
static bool find_group(const struct walk *walk, char path[static PATH_BYTES])
{
    char line[LINE_BYTES];
    bool found = false;

    snprintf(line, sizeof(line), "%s/proc/self/cgroup", walk->root);
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
        found = walk->version == CONTROL_GROUP_V2 ? strcmp(line, "0:") == 0
                                                  : lists(controllers + 1, walk->controller);
        if (found)
            memcpy(path, at, strlen(at) + 1);
    }
    fclose(f);
    return found;
}

/* Cuts a line of mountinfo up. False if it mounts something else. */
static bool parse_mount(const struct walk *walk, char *line, char **mount_root, char **mount_point)
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
    if (walk->version == CONTROL_GROUP_V2
            ? strcmp(type, "cgroup2") != 0
            : strcmp(type, "cgroup") != 0 || !lists(options, walk->controller))
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

bool control_group_line(const struct control_group *group, const char *file, const char *key,
                        char line[static CONTROL_GROUP_LINE_BYTES])
{
    char path[PATH_BYTES];
    int n = snprintf(path, sizeof(path), "%s/%s", group->dir, file);
    size_t key_len = key != NULL ? strlen(key) : 0;
    bool found = false;

    if (n < 0 || (size_t)n >= sizeof(path))
        return false;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return false;
    while (!found && fgets(line, CONTROL_GROUP_LINE_BYTES, f) != NULL)
        found = key == NULL || (strncmp(line, key, key_len) == 0 && line[key_len] == ' ');
    fclose(f);
    return found;
}

/* Every directory from the group's own up to the mount point. */
static void walk_path(const struct walk *walk, const char *mount_point, const char *below)
{
    char dir[PATH_BYTES];
    size_t top = strlen(walk->root) + strlen(mount_point);
    int n = snprintf(dir, sizeof(dir), "%s%s%s", walk->root, mount_point, below);

    if (strstr(below, "/..") != NULL) /* above what this process's namespace shows */
        n = snprintf(dir, sizeof(dir), "%s%s", walk->root, mount_point);
    if (n < 0 || (size_t)n >= sizeof(dir))
        return;
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        const struct control_group group = {
            .dir = dir, .version = walk->version, .is_own = depth == 0};
        walk->fn(walk->arg, &group);
        char *last = strrchr(dir, '/');
        if (strlen(dir) <= top || last == NULL)
            break;
        *last = '\0';
    }
}

static void walk_hierarchy(const struct walk *walk)
{
    char group[PATH_BYTES];
    char line[LINE_BYTES];
    char *mount_root;
    char *mount_point;

    if (!find_group(walk, group))
        return;
    snprintf(line, sizeof(line), "%s/proc/self/mountinfo", walk->root);
    FILE *f = fopen(line, "re");
    if (f == NULL)
        return;
    while (fgets(line, sizeof(line), f) != NULL)
        if (parse_mount(walk, line, &mount_root, &mount_point))
            walk_path(walk, mount_point, below_mount(group, mount_root));
    fclose(f);
}

void control_group_walk(const char *root, const char *controller,
                        void (*fn)(void *arg, const struct control_group *group), void *arg)
{
    struct walk walk = {
        .root = root, .controller = controller, .version = CONTROL_GROUP_V2, .fn = fn, .arg = arg};

    walk_hierarchy(&walk);
    walk.version = CONTROL_GROUP_V1;
    walk_hierarchy(&walk);
}
