/* All records of some keys, between real nodes on loopback. */
#include "dht_net.h"
#include "dht/directory/directory_list.h"

static skep_status declare_resource(const struct net_node *node, const char *key, uint32_t free,
                                    bool offline)
{
    struct record record = {
        .kind = RECORD_RESOURCE,
        .expires_at = directory_now_ms(net_directory(node)) / 1000 + 60,
        .resource = {.endpoint_count = 1,
                     .endpoints = {{.host = "127.0.0.1", .port = 7000}},
                     .free = free,
                     .offline = offline},
    };
    struct declaration declaration = {.record = &record};

    snprintf(record.resource.key, sizeof(record.resource.key), "%s", key);
    record_key_resource(swarm_record(node->swarm), key, declaration.key);
    net_declare(node, &declaration, 1);
    return declaration.outcome;
}

static skep_status declare_tracker(const struct net_node *node)
{
    struct record record = {
        .kind = RECORD_TRACKER,
        .expires_at = directory_now_ms(net_directory(node)) / 1000 + 60,
        .tracker = {.endpoint_count = 1, .endpoints = {{.host = "127.0.0.1", .port = 7000}}},
    };
    struct declaration declaration = {.record = &record};

    record_key_trackers_shard(swarm_record(node->swarm), record_shard(node->identity.peer_id),
                              declaration.key);
    net_declare(node, &declaration, 1);
    return declaration.outcome;
}

static size_t find(const struct net_node *node, const char *key, bool others_only,
                   struct record_list *list)
{
    skep_status rc =
        directory_find_resource(net_directory(node), key, others_only, net_deadline(), list, NULL);

    assert_true(rc == SKEP_OK || rc == SKEP_NOT_FOUND);
    assert_int_equal(rc == SKEP_OK, list->count > 0);
    return list->count;
}

static size_t count_of(const struct net_node *node, const char *key, bool others_only)
{
    struct record_list list;
    size_t n = find(node, key, others_only, &list);

    record_list_free(&list);
    return n;
}

static void every_tracker_of_a_key_is_found_freshest_first(void **state)
{
    (void)state;
    struct net_node nodes[5];
    struct record_list list;

    net_start_many(nodes, 5);
    for (uint32_t i = 1; i <= 3; i++) {
        assert_int_equal(declare_resource(&nodes[i], "rpi:4", i, false), SKEP_OK);
        net_next_ms(); /* seq is in ms */
    }
    assert_int_equal(declare_resource(&nodes[4], "other", 9, false), SKEP_OK);
    assert_true(NET_UNTIL(count_of(&nodes[0], "rpi:4", false) == 3));
    assert_int_equal(find(&nodes[0], "rpi:4", false, &list), 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(list.items[i].resource.free, 3 - i);
        assert_memory_equal(list.items[i].peer_id, nodes[3 - i].identity.peer_id, PEER_ID_BYTES);
    }
    record_list_free(&list);
    assert_int_equal(count_of(&nodes[0], "nothing", false), 0);
    net_stop_many(nodes, 5);
}

static void own_records_and_withdrawn_ones_are_left_out(void **state)
{
    (void)state;
    struct net_node nodes[3];

    net_start_many(nodes, 3);
    assert_int_equal(declare_resource(&nodes[1], "k", 1, false), SKEP_OK);
    assert_int_equal(declare_resource(&nodes[2], "k", 1, false), SKEP_OK);
    assert_true(NET_UNTIL(count_of(&nodes[1], "k", false) == 2));
    assert_int_equal(count_of(&nodes[1], "k", true), 1);
    assert_int_equal(declare_resource(&nodes[2], "k", 0, true), SKEP_OK);
    assert_true(NET_UNTIL(count_of(&nodes[1], "k", false) == 1));
    assert_int_equal(count_of(&nodes[1], "k", true), 0);
    net_stop_many(nodes, 3);
}

static void trackers_are_found_in_all_shards(void **state)
{
    (void)state;
    enum { N = 6 };
    struct net_node nodes[N];
    struct record_list list = {0};

    net_start_many(nodes, N);
    for (int i = 0; i < N; i++)
        assert_int_equal(declare_tracker(&nodes[i]), SKEP_OK);
    assert_true(NET_UNTIL(
        (record_list_free(&list), directory_find_trackers(net_directory(&nodes[0]), false,
                                                          net_deadline(), &list, NULL) == SKEP_OK &&
                                      list.count == N)));
    record_list_free(&list);
    net_stop_many(nodes, N);
}

static void without_peers_and_with_bad_keys_it_says_so(void **state)
{
    (void)state;
    struct net_node node;
    struct record_list list;
    char key[RECORD_RESOURCE_KEY_BYTES + 1];

    net_start(&node, 0);
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    assert_int_equal(
        directory_find_resource(net_directory(&node), "k", false, net_deadline(), &list, NULL),
        SKEP_UNAVAILABLE);
    assert_null(list.items);
    assert_int_equal(
        directory_find_resource(net_directory(&node), key, false, net_deadline(), &list, NULL),
        SKEP_INVALID_ARGUMENT);
    assert_int_equal(
        directory_find_resource(net_directory(&node), "\xff", false, net_deadline(), &list, NULL),
        SKEP_INVALID_ARGUMENT);
    assert_int_equal(
        directory_find_resource(net_directory(&node), "", false, net_deadline(), &list, NULL),
        SKEP_INVALID_ARGUMENT);
    net_stop(&node);
}

static int set_up(void **state)
{
    (void)state;
    return identity_system_init(NULL) == SKEP_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tracker_of_a_key_is_found_freshest_first),
        cmocka_unit_test(own_records_and_withdrawn_ones_are_left_out),
        cmocka_unit_test(trackers_are_found_in_all_shards),
        cmocka_unit_test(without_peers_and_with_bad_keys_it_says_so),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
