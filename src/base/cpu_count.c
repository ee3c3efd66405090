/* See cpu_count.h. */
#include "base/cpu_count.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/control_group.h"

enum { MAX_AFFINITY_CPUS = 1 << 16 };

static unsigned smaller(unsigned a, unsigned b)
{
    return b > 0 && (a == 0 || b < a) ? b : a;
}

/* The quota of one group in CPUs, rounded up; 0: none. */
static unsigned quota_of(const struct control_group *group)
{
    bool is_v2 = group->version == CONTROL_GROUP_V2;
    char line[CONTROL_GROUP_LINE_BYTES];
    char *rest = line;
    long long quota;
    long long period;

    if (!control_group_line(group, is_v2 ? "cpu.max" : "cpu.cfs_quota_us", NULL, line))
        return 0;
    quota = strtoll(line, &rest, 10); /* "max", and v1's -1, are no quota */
    if (rest == line || quota <= 0)
        return 0;
    if (!is_v2 && !control_group_line(group, "cpu.cfs_period_us", NULL, line))
        return 0;
    period = strtoll(is_v2 ? rest : line, NULL, 10);
    if (period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period > 0);
    return cpus < INT_MAX ? (unsigned)cpus : INT_MAX;
}

static void take_quota(void *arg, const struct control_group *group)
{
    unsigned *quota = arg;

    *quota = smaller(*quota, quota_of(group));
}

unsigned cpu_quota(const char *root)
{
    unsigned quota = 0;

    control_group_walk(root, "cpu", take_quota, &quota);
    return quota;
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
