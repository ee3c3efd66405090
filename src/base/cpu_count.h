/*
 * How many CPUs this process may use: the one place from which every number of threads derives.
 *
 * The count is the smallest of: the CPUs of the scheduler's affinity mask (taskset, cpusets), and
 * each CPU quota along the path of the process's control groups, rounded up. Both versions of
 * control groups count: cpu.max (v2), cpu.cfs_quota_us with cpu.cfs_period_us (v1).
 */
#ifndef SKEP_BASE_CPU_COUNT_H
#define SKEP_BASE_CPU_COUNT_H

/* At least 1. Measured at the first call and kept, so that all parts of a process agree. Thread:
 * any. */
unsigned cpu_count(void);

/*
 * The quotas alone, in CPUs, rounded up; 0: no quota.
 * @param root  as of control_group_walk(): "" for the system's.
 */
unsigned cpu_quota(const char *root);

#endif
