/* Memory limits, read from made-up trees of /proc and of control groups. */
#include "group_tree.h"

#include "node/lifecycle/memory.h"

static uint64_t limit(const struct tree *tree)
{
    return memory_group_limit(tree->dir.path);
}

static void no_control_groups_set_no_limit(void **state)
{
    assert_true(limit(*state) == UINT64_MAX);
    put(*state, "proc/self/cgroup", "");
    put(*state, "proc/self/mountinfo", "");
    assert_true(limit(*state) == UINT64_MAX);
}

static void smallest_limit_of_all_groups_above_counts(void **state)
{
    put_v2(*state, "0::/a.slice/b.service\n");
    put(*state, "sys/fs/cgroup/a.slice/b.service/memory.max", "300000000\n");
    assert_int_equal(limit(*state), 300000000);
    put(*state, "sys/fs/cgroup/a.slice/memory.max", "200000000\n");
    assert_int_equal(limit(*state), 200000000);
    put(*state, "sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
    assert_int_equal(limit(*state), 200000000);
    put(*state, "sys/fs/cgroup/c/memory.max", "1000\n"); /* of others */
    assert_int_equal(limit(*state), 200000000);
}

static void limit_at_the_mount_point_of_a_namespace_counts(void **state)
{
    put_v2(*state, "0::/\n");
    put(*state, "sys/fs/cgroup/memory.max", "400000000\n");
    assert_int_equal(limit(*state), 400000000);
}

static void max_and_nonsense_are_no_limit(void **state)
{
    const char *const texts[] = {"max\n", "", "\n", "x", "-1\n", " 7"};

    put_v2(*state, "0::/a\n");
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        put(*state, "sys/fs/cgroup/a/memory.max", texts[i]);
        assert_true(limit(*state) == UINT64_MAX);
    }
    put(*state, "sys/fs/cgroup/a/memory.max", "99999999999999999999999\n");
    assert_true(limit(*state) == UINT64_MAX);
    put(*state, "sys/fs/cgroup/a/memory.max", "0\n");
    assert_int_equal(limit(*state), 0);
}

static void put_v1(const struct tree *tree, const char *mount_root)
{
    char mounts[256];

    snprintf(mounts, sizeof(mounts),
             "33 21 0:29 %s /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
             "34 21 0:30 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n",
             mount_root);
    put(tree, "proc/self/mountinfo", mounts);
    put(tree, "proc/self/cgroup", "4:memory:/a/b\n3:cpu:/elsewhere\n0::/y\n");
}

static void version_1_limits_of_all_groups_count(void **state)
{
    put_v1(*state, "/");
    put(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(*state, "sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "500000000\n");
    assert_int_equal(limit(*state), 500000000);
    put(*state, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "400000000\n");
    put(*state, "sys/fs/cgroup/memory/a/memory.use_hierarchy", "1\n");
    assert_int_equal(limit(*state), 400000000);
    put(*state, "sys/fs/cgroup/memory/a/memory.use_hierarchy", "0\n");
    assert_int_equal(limit(*state), 500000000); /* it bounds itself only */
    put(*state, "sys/fs/cgroup/cpu/elsewhere/memory.limit_in_bytes", "1000\n");
    assert_int_equal(limit(*state), 500000000);
}

/* As in a container: the groups above its own lie outside of what is mounted. */
static void version_1_limits_of_groups_out_of_sight_count(void **state)
{
    put_v1(*state, "/a/b");
    put(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "500000000\n");
    put(*state, "sys/fs/cgroup/memory/memory.stat",
        "cache 4096\nhierarchical_memory_limit 300000000\n"
        "hierarchical_memsw_limit 9223372036854771712\n");
    assert_int_equal(limit(*state), 300000000);
}

static void both_versions_count_where_both_are_mounted(void **state)
{
    put(*state, "proc/self/mountinfo",
        "34 21 0:30 / /sys/fs/cgroup/memory rw - cgroup none rw,memory\n"
        "35 21 0:31 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n");
    put(*state, "proc/self/cgroup", "1:memory:/a\n0::/b\n");
    put(*state, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500000000\n");
    assert_int_equal(limit(*state), 500000000);
    put(*state, "sys/fs/cgroup/unified/b/memory.max", "200000000\n");
    assert_int_equal(limit(*state), 200000000);
}

static void what_is_available_is_within_the_limit(void **state)
{
    (void)state;
    assert_true(memory_available() > 0);
    assert_true(memory_available() <= memory_group_limit(""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TREE_TEST(no_control_groups_set_no_limit),
        TREE_TEST(smallest_limit_of_all_groups_above_counts),
        TREE_TEST(limit_at_the_mount_point_of_a_namespace_counts),
        TREE_TEST(max_and_nonsense_are_no_limit),
        TREE_TEST(version_1_limits_of_all_groups_count),
        TREE_TEST(version_1_limits_of_groups_out_of_sight_count),
        TREE_TEST(both_versions_count_where_both_are_mounted),
        cmocka_unit_test(what_is_available_is_within_the_limit),
    };

    return cmocka_run_group_tests_name("memory_limit", tests, NULL, NULL);
}
