/*
 * The control groups of this process, both versions, and what bounds them. A limit holds for all
 * groups below its own, so every directory from the process's group up to the mount point counts.
 * Thread: any.
 */
#ifndef SKEP_BASE_CONTROL_GROUP_H
#define SKEP_BASE_CONTROL_GROUP_H

#include <stdbool.h>

enum control_group_version { CONTROL_GROUP_V1, CONTROL_GROUP_V2 };

/* One directory of a group. */
struct control_group {
    const char *dir; /* view, for the call */
    enum control_group_version version;
    bool is_own; /* of this process itself, or the nearest that can be seen; else one above */
};

enum { CONTROL_GROUP_LINE_BYTES = 128 };

/*
 * Calls fn for each directory, in either version's hierarchy from the own group upwards; what
 * cannot be read is left out.
 * @param root        prefix of all paths that are read: "" for the system's, or a made-up tree that
 *                    holds proc/self/cgroup, proc/self/mountinfo and the groups' files at the
 *                    places that mountinfo names.
 * @param controller  whose hierarchy of version 1: "cpu", "memory".
 */
void control_group_walk(const char *root, const char *controller,
                        void (*fn)(void *arg, const struct control_group *group), void *arg);

/*
 * Reads the first line of a group's file, or with a key the first that begins with it and a space.
 * @param key  NULL: the first line.
 * @return false if there is none. A longer line is cut.
 */
bool control_group_line(const struct control_group *group, const char *file, const char *key,
                        char line[static CONTROL_GROUP_LINE_BYTES]);

#endif
