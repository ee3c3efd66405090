/*
 * A swarm of each test program's own. Programs run beside each other, on loopback: under one name,
 * a UDP port that one of them leaves and another takes would make one swarm of two.
 */
#ifndef SKEP_TESTS_OWN_SWARM_H
#define SKEP_TESTS_OWN_SWARM_H

#include <stdio.h>
#include <unistd.h>

static inline const char *own_swarm(void)
{
    static char name[32];

    if (name[0] == '\0')
        snprintf(name, sizeof(name), "test-%ld", (long)getpid());
    return name;
}

#endif
