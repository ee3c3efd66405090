/* CPU quotas, read from made-up trees of /proc and of control groups. */
#include "group_tree.h"

#include <sched.h>

#include "base/cpu_count.h"

static unsigned quota(const struct tree *tree)
{
    return cpu_quota(tree->dir.path);
}

static void no_control_groups_set_no_quota(void **state)
{
    assert_int_equal(quota(*state), 0);
    put(*state, "proc/self/cgroup", "");
    put(*state, "proc/self/mountinfo", "");
    assert_int_equal(quota(*state), 0);
}

static void quota_of_the_own_group_counts(void **state)
{
    put_v2(*state, "0::/a.slice/b.service\n");
    put(*state, "sys/fs/cgroup/a.slice/b.service/cpu.max", "300000 100000\n");
    assert_int_equal(quota(*state), 3);
}

static void part_of_a_cpu_counts_as_one_more(void **state)
{
    put_v2(*state, "0::/a\n");
    put(*state, "sys/fs/cgroup/a/cpu.max", "150000 100000\n");
    assert_int_equal(quota(*state), 2);
    put(*state, "sys/fs/cgroup/a/cpu.max", "1000 100000\n");
    assert_int_equal(quota(*state), 1);
}

static void smallest_quota_of_all_groups_above_counts(void **state)
{
    put_v2(*state, "0::/a/b/c\n");
    put(*state, "sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    put(*state, "sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
    put(*state, "sys/fs/cgroup/a/cpu.max", "100000 50000\n");
    assert_int_equal(quota(*state), 2);
}

static void quota_at_the_mount_point_of_a_namespace_counts(void **state)
{
    put_v2(*state, "0::/\n");
    put(*state, "sys/fs/cgroup/cpu.max", "400000 100000\n");
    assert_int_equal(quota(*state), 4);
}

static void max_and_nonsense_are_no_quota(void **state)
{
    const char *const texts[] = {"max 100000\n", "",       "\n",        "x",
                                 "100000 0",     "100000", "-1 100000", "0 100000"};

    put_v2(*state, "0::/a\n");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        put(*state, "sys/fs/cgroup/a/cpu.max", texts[i]);
        assert_int_equal(quota(*state), 0);
    }
}

static void group_of_another_namespace_is_read_at_the_mount_point(void **state)
{
    put(*state, "proc/self/mountinfo",
        "30 21 0:26 /../other /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    put(*state, "proc/self/cgroup", "0::/../../elsewhere\n");
    put(*state, "sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(quota(*state), 2);
}

/* As Docker mounts it on a host with version 1. */
static const char v1_mounts[] =
    "33 21 0:29 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    "34 21 0:30 /docker/1f /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n";

static void version_1_quota_counts(void **state)
{
    put(*state, "proc/self/mountinfo", v1_mounts);
    put(*state, "proc/self/cgroup",
        "4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n2:cpuset:/\n1:name=systemd:/x\n0::/y\n");
    put(*state, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
    put(*state, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(*state), 3);
    put(*state, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(quota(*state), 0);
}

static void version_1_groups_above_count_too(void **state)
{
    put(*state, "proc/self/mountinfo", "34 21 0:30 / /my\\040groups/cpu rw - cgroup none rw,cpu\n");
    put(*state, "proc/self/cgroup", "3:cpu:/a/b\n2:cpuset:/c\n");
    put(*state, "my groups/cpu/a/b/cpu.cfs_quota_us", "900000\n");
    put(*state, "my groups/cpu/a/b/cpu.cfs_period_us", "100000\n");
    put(*state, "my groups/cpu/a/cpu.cfs_quota_us", "100000\n");
    put(*state, "my groups/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(*state), 1);
}

static void cpuset_and_cpuacct_are_not_taken_for_cpu(void **state)
{
    put(*state, "proc/self/mountinfo",
        "34 21 0:30 / /sys/fs/cgroup/cpuset rw - cgroup none rw,cpuset,cpuacct\n");
    put(*state, "proc/self/cgroup", "3:cpuset,cpuacct:/\n");
    put(*state, "sys/fs/cgroup/cpuset/cpu.cfs_quota_us", "100000\n");
    put(*state, "sys/fs/cgroup/cpuset/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(*state), 0);
}

static void both_versions_count_where_both_are_mounted(void **state)
{
    put(*state, "proc/self/mountinfo",
        "34 21 0:30 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu\n"
        "35 21 0:31 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n");
    put(*state, "proc/self/cgroup", "1:cpu:/a\n0::/b\n");
    put(*state, "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "500000\n");
    put(*state, "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota(*state), 5);
    put(*state, "sys/fs/cgroup/unified/b/cpu.max", "600000 100000\n");
    assert_int_equal(quota(*state), 5);
    put(*state, "sys/fs/cgroup/unified/b/cpu.max", "200000 100000\n");
    assert_int_equal(quota(*state), 2);
}

/* The count is kept at the first call, so this restricts the process before it. */
static void affinity_bounds_the_count(void **state)
{
    cpu_set_t all;
    cpu_set_t one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(cpu_count(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
    assert_int_equal(cpu_count(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(no_control_groups_set_no_quota),
        TREE_TEST(quota_of_the_own_group_counts),
        TREE_TEST(part_of_a_cpu_counts_as_one_more),
        TREE_TEST(smallest_quota_of_all_groups_above_counts),
        TREE_TEST(quota_at_the_mount_point_of_a_namespace_counts),
        TREE_TEST(max_and_nonsense_are_no_quota),
        TREE_TEST(group_of_another_namespace_is_read_at_the_mount_point),
        TREE_TEST(version_1_quota_counts),
        TREE_TEST(version_1_groups_above_count_too),
        TREE_TEST(cpuset_and_cpuacct_are_not_taken_for_cpu),
        TREE_TEST(both_versions_count_where_both_are_mounted),
        cmocka_unit_test(affinity_bounds_the_count),
    };

    return cmocka_run_group_tests_name("cpu_count", tests, NULL, NULL);
}
